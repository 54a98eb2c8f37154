//! Findings of the stages of a decision.

use std::borrow::Cow;

use crate::{Decision, Effect, Policy, SourceLocation, model::Access};

/// The verdict of a stage.
#[derive(Debug)]
pub(crate) enum Verdict<'p> {
    /// The stage has no objection.
    Pass,
    /// The stage denies.
    Deny(Finding<'p>),
    /// The stage denies, but observe mode allows.
    WouldDeny(Finding<'p>),
    /// The stage asks, unless another one denies.
    Ask(Finding<'p>),
    /// The stage allows, unless another one denies.
    Allow(Finding<'p>),
}

/// The result of a walk over stages.
#[derive(Debug)]
pub(crate) struct Outcome<'p> {
    pub(crate) effect: Effect,
    pub(crate) would_deny: bool,
    pub(crate) finding: Option<Finding<'p>>,
}

/// The rule of a verdict, before it is formatted.
#[derive(Debug, Clone)]
pub(crate) struct Finding<'p> {
    pub(super) rule: RuleName<'p>,
    /// The layer and the line.
    pub(super) location: Option<(usize, u64)>,
    pub(super) reason: Option<Cow<'p, str>>,
}

#[derive(Debug, Clone)]
pub(super) enum RuleName<'p> {
    Fixed(&'static str),
    Id(&'p str),
    Access(&'static str, Access),
    Secret(usize),
    Label(&'p str),
}

impl<'p> Finding<'p> {
    pub(super) fn fixed(
        rule: &'static str,
        location: Option<(usize, u64)>,
        reason: &'static str,
    ) -> Self {
        Self { rule: RuleName::Fixed(rule), location, reason: Some(reason.into()) }
    }

    /// True if it is the default denial, which a wider list would lift.
    pub(crate) fn is_default_deny(&self) -> bool {
        matches!(self.rule, RuleName::Access(..) | RuleName::Fixed("default"))
    }

    /// Makes the decision.
    pub(crate) fn decision(self, effect: Effect, policy: &Policy) -> Decision {
        let rule = match self.rule {
            RuleName::Fixed(rule) => rule.to_owned(),
            RuleName::Id(id) => id.to_owned(),
            RuleName::Label(id) => format!("labels.{id}"),
            RuleName::Access(list, access) => [list, access.as_str()].join("."),
            RuleName::Secret(index) => format!("secrets.names[{index}]"),
        };
        let location = self.location.and_then(|(layer, line)| {
            Some(SourceLocation { file: policy.layers.get(layer)?.file.clone(), line })
        });
        let reason = self.reason.map(Cow::into_owned);
        Decision { location, reason, ..Decision::new(effect, rule) }
    }
}
