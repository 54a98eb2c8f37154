//! The stages of a decision, in order.
//!
//! One walk runs them. Evaluation stops it at the first denial, and an explanation continues to the
//! end, so the two cannot differ. Only the last stage of the names allows, if nothing before it
//! denied.

mod content;
mod finding;
mod links;
mod names;
mod objects;
mod subject;

use super::{Decision, Effect, Mode, Policy};

use finding::Outcome;
pub(super) use finding::Verdict;
pub use objects::{Object, ObjectKind};
pub(super) use subject::PreparedQuery;

/// One check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    HiddenNames,
    DeniedExtensions,
    SecretNames,
    Rules,
    Links,
    AllowedExtensions,
    AllowedPaths,
    Symlinks,
    Type,
    Hardlinks,
}

/// The stages that depend on names only.
pub(super) const NAMES: [Stage; 7] = [
    Stage::HiddenNames,
    Stage::DeniedExtensions,
    Stage::SecretNames,
    Stage::Rules,
    Stage::Links,
    Stage::AllowedExtensions,
    Stage::AllowedPaths,
];

/// The stages that depend on the object, too. A name without an extension may be a directory's, so
/// extensions are checked again.
pub(super) const OBJECTS: [Stage; 4] =
    [Stage::Symlinks, Stage::Type, Stage::Hardlinks, Stage::AllowedExtensions];

/// The stages for an entry of a directory, whose type is known.
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
    /// Returns the stage's name, which is the prefix of its rule IDs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::HiddenNames => "names.hidden",
            Self::DeniedExtensions => "extensions.deny",
            Self::SecretNames => "secrets.names",
            Self::Rules => "rules",
            Self::Links => "links",
            Self::AllowedExtensions => "extensions.allow",
            Self::AllowedPaths => "allowedPaths",
            Self::Symlinks => "files.symlinks",
            Self::Type => "files.type",
            Self::Hardlinks => "files.hardlinks",
        }
    }
}

impl Policy {
    /// Returns the decision to which a walk over the [`NAMES`] leads.
    pub(super) fn answer(&self, outcome: Outcome<'_>) -> Decision {
        let Outcome { effect, would_deny, finding } = outcome;
        match finding {
            Some(finding) => Decision { would_deny, ..finding.decision(effect, self) },
            // The last stage always has a finding; without it, nothing would have been allowed.
            None => default_deny(),
        }
    }

    /// Runs `stages`, passes each verdict to `visit` and returns the first denial, else a decision
    /// to ask, else one that only observe mode allows, else the allowance. With `to_the_end` it
    /// continues after a denial.
    pub(super) fn walk<'p>(
        &'p self,
        stages: &[Stage],
        subject: &PreparedQuery<'_>,
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

    /// True if observe mode allows requests that `stage` denies: only the stages of the default
    /// denial.
    fn relaxes(&self, stage: Stage) -> bool {
        self.mode == Mode::Observe
            && matches!(stage, Stage::AllowedExtensions | Stage::AllowedPaths)
    }

    fn verdict(
        &self,
        stage: Stage,
        subject: &PreparedQuery<'_>,
        object: Option<&Object>,
    ) -> Verdict<'_> {
        match stage {
            Stage::HiddenNames => self.hidden_names(subject),
            Stage::DeniedExtensions => self.denied_extension(subject),
            Stage::SecretNames => self.secret_names(subject),
            Stage::Rules => self.ruled(subject),
            Stage::Links => self.links(subject),
            Stage::AllowedExtensions => self.allowed_extension(subject, object),
            Stage::AllowedPaths => self.allowed_path(subject),
            Stage::Symlinks => self.symlinks(object),
            Stage::Type => self.file_type(subject, object),
            Stage::Hardlinks => self.hardlinks(subject, object),
        }
    }
}

/// Returns the decision if nothing allowed.
pub(super) fn default_deny() -> Decision {
    Decision::new(Effect::Deny, "default")
}
