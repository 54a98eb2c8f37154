//! The policies that were taken up. A worker starts under its workspace's one,
//! whatever has become of the file since.

use std::collections::BTreeMap;

use crate::{
    app::{failure::Failure, policy_loading::unusable, policy_reload::in_one_line},
    config::{self, Operator, PolicyTexts, signature::PolicyKey},
    gateway::{Gateway, ReloadError},
};

/// They, by what the configuration calls them.
pub(super) type Policies = BTreeMap<String, Accepted>;

/// A policy that was taken up.
#[derive(Clone)]
pub(super) struct Accepted {
    pub(super) texts: PolicyTexts,
    pub(super) sha256: String,
    pub(super) version: u64,
    /// Whose signature was checked, where one is required.
    pub(super) signed_by: Option<PolicyKey>,
    /// What was offered in its place last, and was not taken up.
    pub(super) refused: Option<RefusedPolicy>,
}

/// A policy that was not taken up.
#[derive(Clone)]
pub(super) struct RefusedPolicy {
    /// Its hash, if it got that far.
    pub(super) sha256: Option<String>,
    pub(super) why: String,
}

/// Why a policy is not taken up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// It cannot be used.
    #[error(transparent)]
    Unusable(#[from] config::Error),
    /// It cannot take the place of the one in force.
    #[error(transparent)]
    NoSuccessor(#[from] ReloadError),
    /// An agent may change it, or that cannot be told.
    #[error("{0}")]
    Misplaced(String),
}

impl Unfit {
    /// For people.
    pub(super) fn failure(&self, reference: &str) -> Failure {
        match self {
            Self::Unusable(error) => unusable(reference, error),
            Self::NoSuccessor(error) => Failure::new(error),
            Self::Misplaced(why) => Failure::new(why),
        }
    }

    /// For the record.
    pub(super) fn refused(&self, sha256: Option<String>) -> RefusedPolicy {
        let why = match self {
            Self::Unusable(error) => in_one_line(error),
            other => other.to_string(),
        };
        RefusedPolicy { sha256, why }
    }
}

impl Accepted {
    /// The policy whose texts these are, if it may be enforced, in the place of
    /// `old`.
    pub(super) fn judge(
        texts: PolicyTexts,
        operator: &Operator,
        old: Option<&Self>,
    ) -> Result<Self, Unfit> {
        let signed_by = operator.trust(&texts).map_err(config::Error::from)?;
        let policy = texts.compile()?;
        if let Some(old) = old.filter(|old| old.sha256 != policy.sha256()) {
            // The worker that runs holds it against the same rule.
            Gateway::check_reload(&old.texts.compile()?, &policy)?;
        }
        let (sha256, version) = (policy.sha256().to_owned(), policy.version());
        Ok(Self { texts, sha256, version, signed_by, refused: None })
    }

    /// Whether it was signed as the operator wants it now.
    pub(super) fn is_trusted(&self, operator: &Operator) -> bool {
        let known = |key| operator.policy_keys.contains(key);
        !operator.require_signature || self.signed_by.as_ref().is_some_and(known)
    }
}
