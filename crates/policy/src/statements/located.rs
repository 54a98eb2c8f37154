//! Values as written, with their lines.

use crate::pattern::Pattern;

/// A list and the line of its key.
#[derive(Debug, Clone)]
pub(crate) struct StatedList<T> {
    pub(crate) line: u64,
    pub(crate) items: Vec<T>,
}

/// A value and its line.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) line: u64,
    pub(crate) value: T,
}

/// A path pattern with its alternatives.
#[derive(Debug, Clone)]
pub(crate) struct StatedPattern {
    pub(crate) line: u64,
    pub(crate) alternatives: Vec<Pattern>,
}

impl StatedPattern {
    /// Extends the pattern to everything beneath its matches.
    pub(super) fn and_beneath(self) -> Self {
        let alternatives = self.alternatives.into_iter().map(Pattern::and_beneath).collect();
        Self { alternatives, ..self }
    }
}
