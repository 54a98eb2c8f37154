//! The credentials that the policy lets programs use, without their keys.

use serde_json::json;

use super::check::{Check, Status};
use crate::{
    cli::agent::credentials::{check_roots, read_key},
    config::credentials::Credential,
    policy::Policy,
};

/// Checks the credentials of the configuration; `None` if neither it nor the policy has any.
pub(super) fn judge(credentials: &[Credential], policy: &Policy) -> Option<Check> {
    const NAME: &str = "credentials";
    let named = policy.network().credentials();
    let missing: Vec<_> =
        named.iter().filter(|id| credentials.iter().all(|one| one.id != **id)).collect();
    if credentials.is_empty() && missing.is_empty() {
        return None;
    }
    let (mut status, mut details, mut facts) = (Status::Ok, Vec::new(), Vec::new());
    for credential in credentials {
        let Credential { id, to, from, .. } = credential;
        let is_used = named.contains(id);
        let readable = read_key(from).and_then(|_| check_roots(credential));
        let used = if is_used { "used" } else { "not named by the policy" };
        let (own, found) = match &readable {
            Ok(()) => (Status::Ok, format!("`{id}` for {to} from {from}: {used}")),
            Err(reason) if is_used => {
                (Status::Failed, format!("`{id}` for {to} from {from}: {reason}"))
            }
            Err(reason) => (Status::Ok, format!("`{id}` for {to} from {from}: {used}; {reason}")),
        };
        status = status.max(own);
        details.push((own, found));
        let (host, readable) = (to.to_string(), readable.is_ok());
        let from = from.to_string();
        facts.push(
            json!({ "id": id, "host": host, "from": from, "used": is_used, "readable": readable }),
        );
    }
    for id in missing {
        status = Status::Failed;
        details
            .push((status, format!("`{id}` is named by the policy, and not in the configuration")));
    }
    let found = format!("{} in the configuration", credentials.len());
    let means = "programs use them and never have them";
    let check = Check::new(NAME, status, found, means).facts(json!({ "credentials": facts }));
    Some(details.into_iter().fold(check, |check, (status, text)| check.detail(status, text)))
}
