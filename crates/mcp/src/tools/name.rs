//! The name of a workspace within names of tools.

use std::{fmt, str::FromStr};

/// A workspace's name within names of tools: 1 to 32 ASCII letters, digits, `_` and
/// `-`, which every client accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// The text is not a valid [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a workspace is 1 to 32 letters, digits, `_` or `-`")]
pub struct NameError;

impl Name {
    /// Returns the valid name nearest to `text`, such as the name of a directory.
    pub fn near(text: &str) -> Self {
        let clean = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = text.chars().map(clean).take(32).collect();
        Self(if name.is_empty() { "workspace".to_owned() } else { name })
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let near = Self::near(text);
        if near.0 == text { Ok(near) } else { Err(NameError) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
