//! Decisions on commands that an agent starts in its sandbox. The mount's requests decide
//! separately on what such a command does to the workspace.

use std::{collections::BTreeMap, time::Instant};

use portcullis_audit::{Draft, Kind, Receipt};
use serde_json::Value;

use super::{Error, Gateway, record};
use crate::{model::Session, policy::Decision};

/// The operation in the record.
const COMMAND: &str = "command";
/// The built-in rule of these decisions.
const RULE: &str = "agent.terminal";

impl Gateway {
    /// Decides whether a command may be started, and records that durably; `facts` describe the
    /// command.
    ///
    /// # Errors
    /// When the policy in force or a limit of the session denies it, or no record can be written:
    /// it must not be started then.
    pub fn admit_command(
        &self,
        session: &Session,
        facts: BTreeMap<String, Value>,
    ) -> Result<Receipt, Error> {
        let policy = self.policy();
        let draft = record::request(session, &policy, COMMAND, None);
        let draft = Draft { facts: Some(self.redact_facts(facts)), ..draft };
        let begun = self.meter_of(session, &policy).and_then(|meter| {
            meter.as_ref().map_or(Ok(()), |meter| meter.begin(Instant::now()))?;
            Ok(meter)
        });
        let meter = match begun {
            Ok(meter) => meter,
            Err(decision) => return Err(self.fail(draft, decision.into(), None)),
        };
        if !policy.agent().terminal {
            let decision = Decision::built_in_denial(RULE, "the policy allows no terminals");
            return Err(self.fail(draft, decision.into(), meter.as_deref()));
        }
        let draft = Draft {
            decision: Some("allow".to_owned()),
            rule: Some(RULE.to_owned()),
            result: Some("ok".to_owned()),
            ..draft
        };
        Ok(self.audit_log.note(Kind::Decision, draft, true)?)
    }
}
