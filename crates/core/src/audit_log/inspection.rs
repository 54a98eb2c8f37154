//! The end of a log, for commands that change nothing.

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogInspection {
    /// Number of records; `None` if the next start unpacks the last segment first, and no record
    /// was read.
    pub records: Option<u64>,
    /// Bytes after the last record, which the next start sets aside.
    pub torn: usize,
}
