//! Requests to hosts that were not passed on: the proxy or the process of a credential refused them
//! before a connection was decided on.

use serde_json::json;

use super::{Error, Gateway, credential_hosts::CREDENTIALS, open_connection::HOST, record};
use crate::{
    model::{Connect, OperationKind, Session, complete_words},
    policy::Decision,
};

/// The longest reason in a record, in bytes.
const MAX_REASON: usize = 500;

/// A request that was not passed on.
#[derive(Debug, Clone, Copy)]
pub struct RefusedRequest<'a> {
    /// The host and port to which it was to go.
    pub to: &'a Connect,
    /// The id of the operator's credential, if it was sent to the process of one.
    pub credential: Option<&'a str>,
    /// The HTTP status of the reply, which says of what kind the refusal is.
    pub status: u16,
    /// Its method.
    pub method: Option<&'a str>,
    /// Its path, without the query.
    pub path: Option<&'a str>,
    /// The reason, which may contain text of the request.
    pub reason: &'a str,
}

impl Gateway {
    /// Denies a request that was not passed on, and records that. The rule is the one of
    /// credentials if it was sent to the process of one, else the one of what a connection carries.
    pub fn refuse_request(&self, session: &Session, request: &RefusedRequest<'_>) -> Error {
        let RefusedRequest { to, credential, status, method, path, reason } = *request;
        let policy = self.policy();
        let mut draft = record::request(session, &policy, OperationKind::Connect.as_str(), None);
        let credential_fact = credential.map(|id| ("credential", json!(id)));
        let facts = [
            ("host", json!(to.host.to_string())),
            ("port", json!(to.port)),
            ("status", json!(status)),
        ];
        let facts = facts.into_iter().chain(credential_fact);
        let facts = facts.map(|(name, fact)| (name.to_owned(), fact)).collect();
        record::add_facts(&mut draft, self.redact_facts(facts));
        record::add_facts(
            &mut draft,
            record::host_request(|text| self.redact_text(text), method, path),
        );
        match self.open_meter(session, &policy) {
            Ok(meter) => {
                let rule = if credential.is_some() { CREDENTIALS } else { HOST };
                let reason = self.recorded_text(reason);
                let denial = Decision::built_in_denial(rule, complete_words(&reason, MAX_REASON));
                self.fail(draft, denial.into(), meter.as_deref())
            }
            Err(closed) => self.fail(draft, closed.into(), None),
        }
    }
}
