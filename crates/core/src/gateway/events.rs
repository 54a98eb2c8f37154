//! Events at a gateway that are no operations: its start and stop, those of a session, and messages
//! that never became requests.

use std::{collections::BTreeMap, time::Duration};

use portcullis_audit::{Draft, Kind, Receipt};
use serde_json::Value;

use super::{Error, ErrorKind, Gateway, Refusal, record};
use crate::{audit_log, model::Session};

/// The text in a record in place of one that the secret rules did not search.
const NOT_LOOKED_AT: &str = "(not recorded: it could not be searched for secrets)";

/// Maximum of characters of each text that the record of an event or of a refused message repeats,
/// except for a path.
const MAX_REPEATED: usize = 512;

impl Gateway {
    /// Forgets the counts, approvals and connections of a session that has ended.
    pub fn end_session(&self, session: &Session) {
        self.record_ended(self.watcher.ended());
        self.meters.forget(&session.id);
        self.mount_meters.forget(&session.id);
        self.approvals.forget(&session.id);
        self.connections.forget(&session.id);
    }

    /// Refuses a message that never became an operation, and records that. `op` is the requested
    /// operation or method, `path` the text that came.
    pub fn refuse(
        &self,
        session: &Session,
        op: &str,
        path: Option<&str>,
        refusal: &Refusal,
    ) -> Error {
        let policy = self.policy();
        let repeated = |text: &str| shortened(&self.recorded_text(text));
        let (op, path) = (repeated(op), path.map(|path| self.recorded_text(path)));
        let mut draft = record::request(session, &policy, &op, path.as_deref());
        let meter = match self.open_meter(session, &policy) {
            Ok(meter) => meter,
            Err(decision) => return self.fail(draft, decision.into(), None),
        };
        let error = refusal.render();
        draft.decision = refusal.is_denial().then(|| "deny".to_owned());
        draft.rule = error.rule().map(str::to_owned);
        // The reason may repeat what was sent.
        let reason = error.reason().map_or_else(|| error.to_string(), str::to_owned);
        draft.reason = Some(repeated(&reason));
        self.refusals.charge(session.agent.as_str(), &draft);
        self.record_error(draft, error, meter.as_deref())
    }

    /// Refuses a request for its method, which its sender chose, as [`Gateway::refuse`] does. The
    /// record of a method without a `/` says that it is one: it could have the name of an event of
    /// the gateway's.
    pub fn refuse_method(&self, session: &Session, method: &str, refusal: &Refusal) -> Error {
        match method.contains('/') {
            true => self.refuse(session, method, None, refusal),
            false => self.refuse(session, &format!("method {method}"), None, refusal),
        }
    }

    /// Returns a text of a peer as records have it.
    pub(super) fn recorded_text(&self, text: &str) -> String {
        self.redact_text(text).unwrap_or_else(|| NOT_LOOKED_AT.to_owned())
    }

    /// Records an act of a peer that was neither a request nor allowed, such as a malformed line.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn report(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = self.event(session, event, facts);
        draft.decision = Some("deny".to_owned());
        draft.result = Some(ErrorKind::InvalidInput.as_str().to_owned());
        self.refusals.charge(session.agent.as_str(), &draft);
        Ok(self.audit_log.record(draft)?)
    }

    /// Returns the time for which a transport must take no message of the session's agent, because
    /// too many were refused that no limit of the policy bounds. A transport asks before it takes a
    /// message.
    pub fn pause(&self, session: &Session) -> Duration {
        self.refusals.pause(session.agent.as_str())
    }

    /// Records an event that needed no decision, such as the start of a session.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn note(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = self.event(session, event, facts);
        draft.result = Some("ok".to_owned());
        Ok(self.audit_log.record(draft)?)
    }

    /// Records an event durably before it happens; for events that change no file of the workspace.
    ///
    /// # Errors
    /// When no record can be written; the event must not happen then.
    pub fn note_durably(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), event, None);
        record::add_facts(&mut draft, facts);
        draft.result = Some("ok".to_owned());
        Ok(self.audit_log.note(Kind::Decision, draft, true)?)
    }

    /// Returns the draft of an event's record, with the beginning of each text of its facts.
    fn event(&self, session: &Session, event: &str, facts: BTreeMap<String, Value>) -> Draft {
        let mut draft = record::request(session, &self.policy(), event, None);
        let shortened = self.redact_facts(facts).into_iter().map(|(name, fact)| match fact {
            Value::String(text) => (name, shortened(&text).into()),
            fact => (name, fact),
        });
        record::add_facts(&mut draft, shortened);
        draft
    }

    /// Records durably that the gateway starts to serve.
    ///
    /// # Errors
    /// When no record can be written; nothing may be served then.
    pub fn start(
        &self,
        session: &Session,
        facts: BTreeMap<String, Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), "start", None);
        draft.op = None;
        draft.facts = Some(facts);
        Ok(self.audit_log.note(Kind::Start, draft, true)?)
    }

    /// Records an orderly stop durably and drops the gateway. Returns why no checkpoint of the log
    /// could be signed, as [`audit_log::AuditLog::close`].
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn stop(self, session: &Session) -> Result<Option<audit_log::Error>, Error> {
        let draft = self.stopping(session);
        Ok(self.audit_log.close(draft)?)
    }

    /// Stops a gateway that other threads share: their requests are refused from then on, and the
    /// next start settles those that have begun.
    ///
    /// # Errors
    /// As [`Self::stop`].
    pub fn stop_shared(&self, session: &Session) -> Result<Option<audit_log::Error>, Error> {
        Ok(self.audit_log.close_shared(self.stopping(session))?)
    }

    fn stopping(&self, session: &Session) -> Draft {
        self.record_ended(self.watcher.stop());
        let mut draft = record::request(session, &self.policy(), "stop", None);
        draft.op = None;
        draft
    }
}

/// Returns the beginning of a redacted text: a secret that is cut before is no longer found.
fn shortened(redacted: &str) -> String {
    redacted.chars().take(MAX_REPEATED).collect()
}
