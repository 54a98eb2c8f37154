//! What the stages of a decision find.

use std::borrow::Cow;

use crate::{Decision, Effect, Place, Policy, model::Access};

/// What a stage says.
#[derive(Debug)]
pub(crate) enum Verdict<'p> {
    /// It has no objection.
    Pass,
    /// It refuses.
    Deny(Finding<'p>),
    /// It would refuse, but the policy only observes.
    WouldDeny(Finding<'p>),
    /// It wants a person to be asked, provided that no stage refuses.
    Ask(Finding<'p>),
    /// It allows, provided that no stage refuses.
    Allow(Finding<'p>),
}

/// What a walk over stages comes to.
#[derive(Debug)]
pub(crate) struct Outcome<'p> {
    pub(crate) effect: Effect,
    pub(crate) would_deny: bool,
    pub(crate) finding: Option<Finding<'p>>,
}

/// A rule that spoke, before it is put into words.
#[derive(Debug, Clone)]
pub(crate) struct Finding<'p> {
    pub(super) rule: RuleName<'p>,
    /// Layer and line.
    pub(super) place: Option<(usize, u64)>,
    pub(super) reason: Option<Cow<'p, str>>,
}

#[derive(Debug, Clone)]
pub(super) enum RuleName<'p> {
    Fixed(&'static str),
    Id(&'p str),
    Access(&'static str, Access),
    Secret(usize),
}

impl<'p> Finding<'p> {
    pub(super) fn fixed(
        rule: &'static str,
        place: Option<(usize, u64)>,
        reason: &'static str,
    ) -> Self {
        Self { rule: RuleName::Fixed(rule), place, reason: Some(reason.into()) }
    }

    /// Whether it is the default deny that speaks, which a wider list would
    /// lift.
    pub(crate) fn is_default_deny(&self) -> bool {
        matches!(self.rule, RuleName::Access(..) | RuleName::Fixed("default"))
    }

    /// The answer in words.
    pub(crate) fn decision(self, effect: Effect, policy: &Policy) -> Decision {
        let rule = match self.rule {
            RuleName::Fixed(rule) => rule.to_owned(),
            RuleName::Id(id) => id.to_owned(),
            RuleName::Access(list, access) => [list, access.as_str()].join("."),
            RuleName::Secret(index) => format!("secrets.names[{index}]"),
        };
        let place = self.place.and_then(|(layer, line)| {
            Some(Place { file: policy.layers.get(layer)?.file.clone(), line })
        });
        let reason = self.reason.map(Cow::into_owned);
        Decision { effect, rule, place, reason, would_deny: false }
    }
}
