//! Replacement of the policy in force between two requests.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_audit::{Draft, Kind, Receipt};
use serde_json::{Value, json};

use super::{Error, Gateway, policy_listeners::PolicyListener, record};
use crate::{model::Session, policy::Policy};

/// The reason why the policy in force stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The version does not rise.
    #[error("its version {new} is not greater than {old}, that of the policy in force")]
    Version {
        /// The version of the policy in force.
        old: u64,
        /// The version of the policy that was offered.
        new: u64,
    },
    /// The agent's sandbox exists already.
    #[error(
        "its `[agent]` section differs, and the agent's sandbox cannot be changed while it runs"
    )]
    Agent,
    /// The reload could not be recorded.
    #[error("{0}")]
    Unavailable(String),
}

impl Gateway {
    /// Checks that `new` may replace `old`.
    ///
    /// # Errors
    /// The reason why `old` stays.
    pub fn check_reload(old: &Policy, new: &Policy) -> Result<(), ReloadError> {
        if new.version() <= old.version() {
            return Err(ReloadError::Version { old: old.version(), new: new.version() });
        }
        if new.agent() != old.agent() {
            return Err(ReloadError::Agent);
        }
        Ok(())
    }

    /// Calls `policy_listener` whenever another policy comes into force, until its last `Arc` is
    /// dropped. The reload waits for it, so it has to return.
    pub fn on_policy(&self, policy_listener: &Arc<PolicyListener>) {
        self.policy_listeners.add(policy_listener);
    }

    /// Puts `new` in force for every request that begins afterwards, and for those under way that
    /// have neither taken effect nor disclosed anything: they are decided again. The record is
    /// durable before, and the caches of a mount's kernel are invalidated when this returns, unless
    /// that takes too long. `None` when `new` is the policy in force already.
    ///
    /// # Errors
    /// The policy in force stays; [`Gateway::refuse_policy`] records why.
    pub fn reload(
        &self,
        session: &Session,
        mut new: Policy,
        trigger: &str,
    ) -> Result<Option<Receipt>, ReloadError> {
        let old = self.policy();
        if new.sha256() == old.sha256() {
            return Ok(None);
        }
        Self::check_reload(&old, &new)?;
        new.keep_hosts(&old);
        let mut draft = record::request(session, &new, "reload", None);
        draft.result = Some("ok".to_owned());
        draft.facts = Some(BTreeMap::from([
            ("name".to_owned(), json!(new.name())),
            ("version".to_owned(), json!(new.version())),
            ("mode".to_owned(), json!(new.mode().as_str())),
            ("networkMode".to_owned(), json!(new.network().mode().as_str())),
            ("oldSha256".to_owned(), json!(old.sha256())),
            ("oldVersion".to_owned(), json!(old.version())),
            ("trigger".to_owned(), json!(trigger)),
        ]));
        let receipt =
            self.note_policy(draft).map_err(|e| ReloadError::Unavailable(e.to_string()))?;
        self.backup_store.set_retention(*new.backups());
        *self.policy.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(new);
        self.watcher.set_policy(&self.policy());
        if !self.policy_listeners.notify() {
            tracing::warn!("programs may have names and pages from before for a while");
        }
        Ok(Some(receipt))
    }

    /// Records that a policy was offered and refused. `sha256` is its hash, if it is known.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn refuse_policy(
        &self,
        session: &Session,
        sha256: Option<&str>,
        why: &str,
        trigger: &str,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), "reload", None);
        draft.result = Some("refused".to_owned());
        draft.reason = Some(why.to_owned());
        let mut facts = BTreeMap::from([("trigger".to_owned(), json!(trigger))]);
        facts.extend(sha256.map(|hash| ("refusedSha256".to_owned(), Value::from(hash))));
        draft.facts = Some(facts);
        self.note_policy(draft)
    }

    fn note_policy(&self, draft: Draft) -> Result<Receipt, Error> {
        Ok(self.audit_log.note(Kind::Policy, draft, true)?)
    }
}
