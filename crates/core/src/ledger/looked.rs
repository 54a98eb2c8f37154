//! What a look at the end of a log finds.

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Records; `None` where the next start unpacks the last segment first: no record
    /// was looked at.
    pub records: Option<u64>,
    /// Bytes after the last record, which the next start sets aside.
    pub torn: usize,
}
