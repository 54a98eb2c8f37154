//! The input of the stages.

use std::borrow::Cow;

use crate::{Query, action_set::ActionSet, index::Components, normalized::NormalizedForms};

/// A query with its path prepared for matching.
pub(crate) struct PreparedQuery<'q> {
    pub(super) query: &'q Query<'q>,
    pub(super) action: ActionSet,
    pub(super) raw: Components<'q>,
    /// `None` if folding changes nothing.
    folded: Option<Components<'q>>,
    others: Vec<Components<'q>>,
}

impl<'q> PreparedQuery<'q> {
    pub(crate) fn new(query: &'q Query<'q>, forms: &'q NormalizedForms<'q>) -> Self {
        Self {
            query,
            action: ActionSet::one(query.operation, query.access),
            raw: Components::of(forms.raw),
            folded: match &forms.folded {
                Cow::Borrowed(_) => None,
                Cow::Owned(folded) => Some(Components::spelled(folded, forms.unfolded.as_deref())),
            },
            others: forms.others().map(|(text, was)| Components::spelled(text, was)).collect(),
        }
    }

    /// Returns the forms that denials compare.
    pub(super) fn forms(&self) -> impl Iterator<Item = &Components<'q>> {
        std::iter::once(self.folded.as_ref().unwrap_or(&self.raw)).chain(&self.others)
    }
}
