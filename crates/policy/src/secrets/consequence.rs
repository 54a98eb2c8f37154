//! What becomes of reads and writes of a content in which something is found.

/// What a reader gets of a file with a secret; the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnRead {
    /// It is refused.
    Deny,
    /// Placeholders stand for the secrets.
    Redact,
    /// It is given, and recorded.
    Warn,
}

impl OnRead {
    /// The word of a policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Redact => "redact",
            Self::Warn => "warn",
        }
    }
}

/// What becomes of a write with a secret; the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnWrite {
    /// It is refused.
    Deny,
    /// It is done, and recorded.
    Warn,
}

impl OnWrite {
    /// The word of a policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
        }
    }
}
