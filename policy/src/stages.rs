//! The stages of a decision, in order.
//!
//! One walker runs them. Evaluation stops it at the first denial, an
//! explanation lets it go on, so the two cannot differ. No stage allows on its
//! own: only the last one of the names does, when nothing before it denied.

mod content;
mod names;
mod objects;

use std::borrow::Cow;

use super::{
    Decision, Effect, Mode, Place, Policy, Query, index::Components, questions::Questions,
    spelling::Spellings,
};
use crate::model::Access;

pub use objects::{Object, ObjectKind};

/// One check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    HiddenNames,
    DeniedExtensions,
    SecretNames,
    Rules,
    AllowedExtensions,
    AllowedPaths,
    Symlinks,
    Type,
    Hardlinks,
}

/// The stages that look at names only.
pub(super) const NAMES: [Stage; 6] = [
    Stage::HiddenNames,
    Stage::DeniedExtensions,
    Stage::SecretNames,
    Stage::Rules,
    Stage::AllowedExtensions,
    Stage::AllowedPaths,
];

/// The stages that look at the object too. A name without an extension may be
/// a directory's, so extensions are looked at again.
pub(super) const OBJECTS: [Stage; 4] =
    [Stage::Symlinks, Stage::Type, Stage::Hardlinks, Stage::AllowedExtensions];

/// The stages for something that was met in a directory, whose type is known.
pub(super) const ENTRY: [Stage; 8] = [
    Stage::HiddenNames,
    Stage::DeniedExtensions,
    Stage::SecretNames,
    Stage::Rules,
    Stage::AllowedExtensions,
    Stage::AllowedPaths,
    Stage::Type,
    Stage::Hardlinks,
];

impl Stage {
    /// The stage's name, which its rule ids start with.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::HiddenNames => "names.hidden",
            Self::DeniedExtensions => "extensions.deny",
            Self::SecretNames => "secrets.names",
            Self::Rules => "rules",
            Self::AllowedExtensions => "extensions.allow",
            Self::AllowedPaths => "allowedPaths",
            Self::Symlinks => "files.symlinks",
            Self::Type => "files.type",
            Self::Hardlinks => "files.hardlinks",
        }
    }
}

/// What a stage says.
#[derive(Debug)]
pub(super) enum Verdict<'p> {
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
pub(super) struct Outcome<'p> {
    pub(super) effect: Effect,
    pub(super) would_deny: bool,
    pub(super) finding: Option<Finding<'p>>,
}

/// A rule that spoke, before it is put into words.
#[derive(Debug, Clone)]
pub(super) struct Finding<'p> {
    rule: RuleName<'p>,
    /// Layer and line.
    place: Option<(usize, u64)>,
    reason: Option<Cow<'p, str>>,
}

#[derive(Debug, Clone)]
enum RuleName<'p> {
    Fixed(&'static str),
    Id(&'p str),
    Access(&'static str, Access),
    Secret(usize),
}

impl<'p> Finding<'p> {
    fn fixed(rule: &'static str, place: Option<(usize, u64)>, reason: &'static str) -> Self {
        Self { rule: RuleName::Fixed(rule), place, reason: Some(reason.into()) }
    }

    /// Whether it is the default deny that speaks, which a wider list would
    /// lift.
    pub(super) fn is_default_deny(&self) -> bool {
        matches!(self.rule, RuleName::Access(..) | RuleName::Fixed("default"))
    }

    /// The answer in words.
    pub(super) fn decision(self, effect: Effect, policy: &Policy) -> Decision {
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

/// A query with its path prepared for matching.
pub(super) struct Subject<'q> {
    query: &'q Query<'q>,
    question: Questions,
    raw: Components<'q>,
    /// `None` when folding changes nothing.
    folded: Option<Components<'q>>,
    others: Vec<Components<'q>>,
}

impl<'q> Subject<'q> {
    pub(super) fn new(query: &'q Query<'q>, spellings: &'q Spellings<'q>) -> Self {
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

    /// The spellings that denials are matched against.
    fn spellings(&self) -> impl Iterator<Item = &Components<'q>> {
        std::iter::once(self.folded.as_ref().unwrap_or(&self.raw)).chain(&self.others)
    }
}

impl Policy {
    /// The answer that a walk over the [`NAMES`] comes to.
    pub(super) fn answer(&self, outcome: Outcome<'_>) -> Decision {
        let Outcome { effect, would_deny, finding } = outcome;
        match finding {
            Some(finding) => Decision { would_deny, ..finding.decision(effect, self) },
            // The last stage always speaks; were it not there, nothing would
            // have been allowed.
            None => default_deny(),
        }
    }

    /// Runs `stages`, shows each verdict to `visit` and returns the first
    /// denial, else what asks, else what observe mode lets pass, else what
    /// allowed. With `to_the_end` it goes on after a denial.
    pub(super) fn walk<'p>(
        &'p self,
        stages: &[Stage],
        subject: &Subject<'_>,
        object: Option<&Object>,
        to_the_end: bool,
        mut visit: impl FnMut(Stage, &Verdict<'p>),
    ) -> Outcome<'p> {
        let (mut denial, mut relaxed, mut question) = (None, None, None);
        let mut allowance = None;
        for stage in stages {
            let verdict = match self.verdict(*stage, subject, object) {
                Verdict::Deny(finding) if self.relaxes(*stage) => Verdict::WouldDeny(finding),
                verdict => verdict,
            };
            visit(*stage, &verdict);
            match verdict {
                Verdict::Pass => {}
                Verdict::Allow(finding) => allowance = Some(finding),
                Verdict::Ask(finding) => question = question.or(Some(finding)),
                Verdict::WouldDeny(finding) => relaxed = relaxed.or(Some(finding)),
                Verdict::Deny(finding) => {
                    denial = denial.or(Some(finding));
                    if !to_the_end {
                        break;
                    }
                }
            }
        }
        if denial.is_some() {
            return Outcome { effect: Effect::Deny, would_deny: false, finding: denial };
        }
        let would_deny = relaxed.is_some();
        let effect = if question.is_some() { Effect::Ask } else { Effect::Allow };
        Outcome { effect, would_deny, finding: question.or(relaxed).or(allowance) }
    }

    /// Whether observe mode lets pass what `stage` denies: only the stages of
    /// default deny.
    fn relaxes(&self, stage: Stage) -> bool {
        self.mode == Mode::Observe
            && matches!(stage, Stage::AllowedExtensions | Stage::AllowedPaths)
    }

    fn verdict(&self, stage: Stage, subject: &Subject<'_>, object: Option<&Object>) -> Verdict<'_> {
        match stage {
            Stage::HiddenNames => self.hidden_names(subject),
            Stage::DeniedExtensions => self.denied_extension(subject),
            Stage::SecretNames => self.secret_names(subject),
            Stage::Rules => self.ruled(subject),
            Stage::AllowedExtensions => self.allowed_extension(subject, object),
            Stage::AllowedPaths => self.allowed_path(subject),
            Stage::Symlinks => self.symlinks(object),
            Stage::Type => self.file_type(subject, object),
            Stage::Hardlinks => self.hardlinks(subject, object),
        }
    }
}

/// The answer when nothing allowed.
pub(super) fn default_deny() -> Decision {
    let rule = "default".to_owned();
    Decision { effect: Effect::Deny, rule, place: None, reason: None, would_deny: false }
}
