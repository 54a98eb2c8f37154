//! The accepted policies. A worker starts under its workspace's accepted policy,
//! even if the file has changed since.

use std::collections::BTreeMap;

use crate::{
    app::{failure::Failure, policy_loading::unusable, policy_reload::in_one_line},
    config::{self, Operator, PolicyTexts, signature::PolicyKey},
    gateway::{Gateway, ReloadError},
};

/// The accepted policies, by their names in the configuration.
pub(super) type Policies = BTreeMap<String, AcceptedPolicy>;

/// An accepted policy.
#[derive(Clone)]
pub(super) struct AcceptedPolicy {
    pub(super) texts: PolicyTexts,
    pub(super) sha256: String,
    pub(super) version: u64,
    /// The key of its signature, if one is required.
    pub(super) signed_by: Option<PolicyKey>,
    /// Its last refused replacement.
    pub(super) refused: Option<RefusedPolicy>,
}

/// A refused policy.
#[derive(Clone)]
pub(super) struct RefusedPolicy {
    /// Its hash, if it could be computed.
    pub(super) sha256: Option<String>,
    pub(super) reason: String,
}

/// The reason why a policy is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusalReason {
    /// The policy cannot be used.
    #[error(transparent)]
    Unusable(#[from] config::Error),
    /// The policy cannot replace the one in force.
    #[error(transparent)]
    NoSuccessor(#[from] ReloadError),
    /// An agent may change it, or that cannot be determined.
    #[error("{0}")]
    Misplaced(String),
}

impl RefusalReason {
    /// Returns the failure, for people.
    pub(super) fn failure(&self, reference: &str) -> Failure {
        match self {
            Self::Unusable(error) => unusable(reference, error),
            Self::NoSuccessor(error) => Failure::new(error),
            Self::Misplaced(reason) => Failure::new(reason),
        }
    }

    /// Returns the refusal, for the record.
    pub(super) fn refused(&self, sha256: Option<String>) -> RefusedPolicy {
        let reason = match self {
            Self::Unusable(error) => in_one_line(error),
            other => other.to_string(),
        };
        RefusedPolicy { sha256, reason }
    }
}

impl AcceptedPolicy {
    /// Accepts the policy with these texts, if it may be enforced and may replace
    /// `old`.
    pub(super) fn judge(
        texts: PolicyTexts,
        operator: &Operator,
        old: Option<&Self>,
    ) -> Result<Self, RefusalReason> {
        let signed_by = operator.trust(&texts).map_err(config::Error::from)?;
        let policy = texts.compile()?;
        if let Some(old) = old.filter(|old| old.sha256 != policy.sha256()) {
            // The running worker applies the same rule.
            Gateway::check_reload(&old.texts.compile()?, &policy)?;
        }
        let (sha256, version) = (policy.sha256().to_owned(), policy.version());
        Ok(Self { texts, sha256, version, signed_by, refused: None })
    }

    /// Returns true if its signature satisfies the current configuration.
    pub(super) fn is_trusted(&self, operator: &Operator) -> bool {
        let known = |key| operator.policy_keys.contains(key);
        !operator.require_signature || self.signed_by.as_ref().is_some_and(known)
    }
}
