//! Consequences of findings for reads and writes of a content.

/// The consequence for a read of a file with a secret; the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnRead {
    /// Denies the read.
    Deny,
    /// Replaces secrets with placeholders.
    Redact,
    /// Allows and records the read.
    Warn,
}

impl OnRead {
    /// Returns the name in a policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Redact => "redact",
            Self::Warn => "warn",
        }
    }
}

/// The consequence for a write with a secret; the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnWrite {
    /// Denies the write.
    Deny,
    /// Allows and records the write.
    Warn,
}

impl OnWrite {
    /// Returns the name in a policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
        }
    }
}
