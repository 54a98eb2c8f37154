//! The hosts that programs reach with a credential of the operator's, and only so: another way to
//! them would take the agent's own credential, and with it what the agent knows, to another
//! account.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use crate::{
    model::Host,
    policy::{Decision, Policy},
};

/// The rule of connections that are to go, or may not go, with a credential.
pub(super) const CREDENTIALS: &str = "network.credentials";

/// The hosts, each with the ids of its credentials and the URLs that are to be used instead of a
/// connection of a program's own.
#[derive(Debug, Default)]
pub(super) struct CredentialHosts(RwLock<BTreeMap<String, BTreeMap<String, String>>>);

impl CredentialHosts {
    pub(super) fn add(&self, host: &Host, id: &str, url: &str) {
        let mut hosts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        hosts.entry(host.to_string()).or_default().insert(id.to_owned(), url.to_owned());
    }

    /// Returns the denial of a connection to `host` that is made with this credential, or with
    /// none.
    pub(super) fn denial(
        &self,
        policy: &Policy,
        host: &Host,
        credential: Option<&str>,
    ) -> Option<Decision> {
        if let Some(id) = credential {
            let is_named = policy.network().credentials().contains(id);
            let reason = format!("the policy does not let programs use the credential `{id}`");
            return (!is_named).then(|| Decision::built_in_denial(CREDENTIALS, &reason));
        }
        let hosts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let urls = hosts.get(&host.to_string())?.iter();
        let urls: Vec<_> = urls.map(|(id, url)| format!("`{id}` alone, at {url}")).collect();
        let reason = format!("the host is reached with the credential {}", urls.join(", or "));
        Some(Decision::built_in_denial(CREDENTIALS, &reason))
    }
}
