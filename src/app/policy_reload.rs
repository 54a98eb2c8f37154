//! Policy reloads in a serving process. The process cannot open policy files: it gets their texts,
//! and compiles and tests them before they replace the policy in force.

use cap_std::fs::Dir;

use super::{
    policy_loading::{warn_of_observed_connections, warn_of_observing},
    policy_rollback,
    policy_texts::keep_policy,
    policy_transfer::SharedPolicy,
};
use crate::{
    config,
    gateway::Gateway,
    model::{Escaped, Session},
};

/// The policy reloads of a gateway.
pub(crate) struct Reloading<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) session: &'a Session,
    pub(crate) state: &'a Dir,
    /// True if policies must be signed; the broker has checked that.
    pub(crate) signatures: bool,
    /// The file through which the texts come.
    pub(crate) shared: &'a SharedPolicy,
}

impl Reloading<'_> {
    /// Loads the policy whose texts have that hash, or records the reason of a refusal. Returns
    /// false if it is the policy in force already.
    pub(crate) fn reload(&self, hash: [u8; 32], trigger: &str) -> bool {
        self.adopt_policy(hash, trigger).unwrap_or_else(|(sha256, reason)| {
            self.refuse(sha256.as_deref(), &reason, trigger);
            true
        })
    }

    /// Returns the workspace for messages: there may be several.
    fn workspace(&self) -> String {
        self.gateway.workspace().root().to_string_lossy().into_owned()
    }

    fn adopt_policy(
        &self,
        hash: [u8; 32],
        trigger: &str,
    ) -> Result<bool, (Option<String>, String)> {
        let taken = self.shared.take(hash);
        let taken = taken.map_err(|error| (None, format!("it did not arrive: {error}")))?;
        // Another policy has replaced it, and the broker announces that next.
        let Some(texts) = taken else { return Ok(true) };
        let sha256 = texts.sha256();
        if sha256 == self.gateway.policy().sha256() {
            return Ok(false);
        }
        let policy = match texts.compile() {
            Ok(policy) => policy,
            Err(error) => {
                if let config::Error::Invalid { diagnostics, .. } = &error {
                    err!("{}", diagnostics.render(false));
                }
                return Err((Some(sha256), in_one_line(&error)));
            }
        };
        if self.signatures
            && let Err(failure) = policy_rollback::check(self.state, &policy)
        {
            return Err((Some(sha256), failure.message().to_owned()));
        }
        if let Err(error) = keep_policy(self.state, &policy, self.gateway.boot()) {
            return Err((Some(sha256), format!("cannot keep its text: {error}")));
        }
        let (name, version) = (policy.name().to_owned(), policy.version());
        match self.gateway.reload(self.session, policy, trigger) {
            Ok(Some(receipt)) => {
                errln!(
                    "portcullis: policy `{}` version {version} is in force in `{}`, record {}",
                    Escaped(&name),
                    Escaped(&self.workspace()),
                    receipt.seq
                );
                let policy = self.gateway.policy();
                warn_of_observing(&policy);
                warn_of_observed_connections(&policy);
                if self.signatures
                    && let Err(error) = policy_rollback::note(self.state, &policy)
                {
                    tracing::error!(%error, "cannot note the version of a signed policy");
                }
            }
            Ok(None) => {}
            Err(error) => return Err((Some(sha256), error.to_string())),
        }
        Ok(true)
    }

    /// Records the refusal of a policy.
    pub(crate) fn refuse(&self, sha256: Option<&str>, reason: &str, trigger: &str) {
        let policy = self.gateway.policy();
        errln!(
            "portcullis: warning: the changed policy of `{}` is not accepted: {}; version {} \
             stays in force",
            Escaped(&self.workspace()),
            Escaped(reason),
            policy.version()
        );
        if let Err(error) = self.gateway.refuse_policy(self.session, sha256, reason, trigger) {
            // Without its log the gateway refuses every request anyway.
            tracing::error!(%error, "cannot record");
        }
    }
}

/// Returns the reason why a policy cannot be used, on one line for the record.
pub(crate) fn in_one_line(error: &config::Error) -> String {
    let config::Error::Invalid { diagnostics, .. } = error else { return error.to_string() };
    let more = diagnostics.iter().count().saturating_sub(1).saturating_add(diagnostics.omitted());
    let Some(one) = diagnostics.iter().next() else { return "it does not load".to_owned() };
    let place = if one.line > 0 { format!(" ({}:{})", one.file, one.line) } else { String::new() };
    let rest = if more > 0 { format!(", and {more} more errors") } else { String::new() };
    let label = one.label.as_ref().map(|label| format!(": {label}")).unwrap_or_default();
    format!("it does not load: {}{label}{place}{rest}", one.message)
}
