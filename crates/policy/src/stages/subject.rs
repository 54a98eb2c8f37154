//! The input of the stages.

use std::borrow::Cow;

use crate::{Query, index::Components, questions::Questions, spelling::Spellings};

/// A query with its path prepared for matching.
pub(crate) struct PreparedQuery<'q> {
    pub(super) query: &'q Query<'q>,
    pub(super) question: Questions,
    pub(super) raw: Components<'q>,
    /// `None` if folding changes nothing.
    folded: Option<Components<'q>>,
    others: Vec<Components<'q>>,
}

impl<'q> PreparedQuery<'q> {
    pub(crate) fn new(query: &'q Query<'q>, spellings: &'q Spellings<'q>) -> Self {
        Self {
            query,
            question: Questions::one(query.operation, query.access),
            raw: Components::of(spellings.raw),
            folded: match &spellings.folded {
                Cow::Borrowed(_) => None,
                Cow::Owned(folded) => {
                    Some(Components::spelled(folded, spellings.unfolded.as_deref()))
                }
            },
            others: spellings.others().map(|(text, was)| Components::spelled(text, was)).collect(),
        }
    }

    /// Returns the forms that denials compare.
    pub(super) fn spellings(&self) -> impl Iterator<Item = &Components<'q>> {
        std::iter::once(self.folded.as_ref().unwrap_or(&self.raw)).chain(&self.others)
    }
}
