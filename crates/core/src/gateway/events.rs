//! Events at a gateway that are no operations: its start and stop, those of a session, and messages
//! that never became requests.

use std::{collections::BTreeMap, time::Duration};

use portcullis_audit::{Draft, Kind, Receipt};

use super::{Error, ErrorKind, Gateway, Refusal, record};
use crate::{audit_log, model::Session};

/// The text in a record in place of one that the secret rules did not search.
const NOT_LOOKED_AT: &str = "(not recorded: it could not be searched for secrets)";

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
        let (op, path) = (self.recorded_text(op), path.map(|path| self.recorded_text(path)));
        let mut draft = record::request(session, &policy, &op, path.as_deref());
        let meter = match self.open_meter(session, &policy) {
            Ok(meter) => meter,
            Err(decision) => return self.fail(draft, decision.into(), None),
        };
        let error = refusal.render();
        draft.decision = refusal.is_denial().then(|| "deny".to_owned());
        draft.rule = error.rule().map(str::to_owned);
        draft.reason = error.reason().map(str::to_owned);
        self.refusals.charge(session.agent.as_str(), draft.path.as_deref());
        self.record_error(draft, error, meter.as_deref())
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
        facts: BTreeMap<String, serde_json::Value>,
    ) -> Result<Receipt, Error> {
        self.refusals.charge(session.agent.as_str(), None);
        let denied = Some("deny".to_owned());
        self.event(session, event, facts, denied, ErrorKind::InvalidInput.as_str())
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
        facts: BTreeMap<String, serde_json::Value>,
    ) -> Result<Receipt, Error> {
        self.event(session, event, facts, None, "ok")
    }

    /// Records an event durably before it happens; for events that change no file of the workspace.
    ///
    /// # Errors
    /// When no record can be written; the event must not happen then.
    pub fn note_durably(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, serde_json::Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), event, None);
        record::add_facts(&mut draft, facts);
        draft.result = Some("ok".to_owned());
        Ok(self.audit_log.note(Kind::Decision, draft, true)?)
    }

    fn event(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, serde_json::Value>,
        decision: Option<String>,
        result: &str,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), event, None);
        record::add_facts(&mut draft, self.redact_facts(facts));
        draft.decision = decision;
        draft.result = Some(result.to_owned());
        Ok(self.audit_log.record(draft)?)
    }

    /// Records durably that the gateway starts to serve.
    ///
    /// # Errors
    /// When no record can be written; nothing may be served then.
    pub fn start(
        &self,
        session: &Session,
        facts: BTreeMap<String, serde_json::Value>,
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
