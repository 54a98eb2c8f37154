//! The end of a log as a command sees it that changes nothing.

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Records; `None` where the next start unpacks the last segment first: no record
    /// was looked at.
    pub records: Option<u64>,
    /// Bytes after the last record, which the next start sets aside.
    pub torn: usize,
}
