//! What happens at a gate and is no operation: its beginning and end, a
//! session's, and what never became a request.

use std::{collections::BTreeMap, time::Duration};

use portcullis_audit::{Draft, Kind, Receipt};

use super::{Error, ErrorKind, Gateway, Refusal, record};
use crate::{ledger, model::Session};

/// In a record in place of a text that the rules about secrets did not look at.
const NOT_LOOKED_AT: &str = "(not recorded: it could not be searched for secrets)";

impl Gateway {
    /// Forgets what a session has done, because it has ended.
    pub fn end_session(&self, session: &Session) {
        self.record_ended(self.watcher.ended());
        self.meters.forget(&session.id);
        self.mount_meters.forget(&session.id);
        self.approvals.forget(&session.id);
        self.connections.forget(&session.id);
    }

    /// Refuses what never became an operation, and records that. `op` is the
    /// operation or the method that was asked for, `path` the text that came.
    pub fn refuse(
        &self,
        session: &Session,
        op: &str,
        path: Option<&str>,
        refusal: &Refusal,
    ) -> Error {
        let policy = self.policy();
        let text = |text| self.redact_text(text).unwrap_or_else(|| NOT_LOOKED_AT.to_owned());
        let (op, path) = (text(op), path.map(text));
        let mut draft = record::request(session, &policy, &op, path.as_deref());
        let begun = self.meter_of(session, &policy).and_then(|meter| {
            meter.as_ref().map_or(Ok(()), |meter| meter.open())?;
            Ok(meter)
        });
        let meter = match begun {
            Ok(meter) => meter,
            Err(decision) => return self.fail(draft, decision.into(), None),
        };
        let error = refusal.render();
        // Nothing was decided about what its sender took back.
        draft.decision = (*refusal != Refusal::Cancelled).then(|| "deny".to_owned());
        draft.rule = error.rule().map(str::to_owned);
        draft.reason = error.reason().map(str::to_owned);
        self.refusals.charge(session.agent.as_str());
        self.record_error(draft, error, meter.as_deref())
    }

    /// Records something that a peer did and that was neither a request nor
    /// allowed, such as a malformed line.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn report(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, serde_json::Value>,
    ) -> Result<Receipt, Error> {
        self.refusals.charge(session.agent.as_str());
        let denied = Some("deny".to_owned());
        self.event(session, event, facts, denied, ErrorKind::InvalidInput.as_str())
    }

    /// How long a door must not hear the session's agent, for it had too much refused that
    /// no limit of the policy bounds. A door asks before it takes a message.
    pub fn pause(&self, session: &Session) -> Duration {
        self.refusals.pause(session.agent.as_str())
    }

    /// Records something that happened and needed no decision, such as the
    /// beginning of a session.
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

    /// The same, durably: of what is done next, and is no change of the workspace.
    ///
    /// # Errors
    /// When no record can be written; it must not be done then.
    pub fn note_durably(
        &self,
        session: &Session,
        event: &str,
        facts: BTreeMap<String, serde_json::Value>,
    ) -> Result<Receipt, Error> {
        let mut draft = record::request(session, &self.policy(), event, None);
        draft.facts = Some(facts);
        draft.result = Some("ok".to_owned());
        Ok(self.ledger.note(Kind::Decision, draft, true)?)
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
        (draft.decision, draft.facts) = (decision, Some(self.redact_facts(facts)));
        draft.result = Some(result.to_owned());
        Ok(self.ledger.record(draft)?)
    }

    /// Records that the gate begins to serve, durably.
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
        Ok(self.ledger.note(Kind::Start, draft, true)?)
    }

    /// Records an orderly stop, durably, and lets go of everything. Gives why no
    /// checkpoint of the log could be signed, as [`ledger::AuditLog::close`].
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn stop(self, session: &Session) -> Result<Option<ledger::Error>, Error> {
        let draft = self.stopping(session);
        Ok(self.ledger.close(draft)?)
    }

    /// The same while other threads have the gateway: what they ask of it is refused from
    /// then on, and what they have begun is settled by the next start.
    ///
    /// # Errors
    /// As [`Self::stop`].
    pub fn stop_shared(&self, session: &Session) -> Result<Option<ledger::Error>, Error> {
        Ok(self.ledger.close_shared(self.stopping(session))?)
    }

    fn stopping(&self, session: &Session) -> Draft {
        self.record_ended(self.watcher.stop());
        let mut draft = record::request(session, &self.policy(), "stop", None);
        draft.op = None;
        draft
    }
}
