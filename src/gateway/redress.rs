//! Changes by which the operator puts right what a session did.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ATTEMPTS, Error, Gateway, Reply, changed_paths, error::Failure, record, turn::Turn};
use crate::{
    model::{Operation, Session},
    ops::Source,
};

impl Gateway {
    /// As [`Gateway::handle`] for the operator who undoes something: decided,
    /// kept and recorded alike, but not held against the limits of a session,
    /// or a session that changed much could not be undone. `facts` say in the
    /// record what is undone.
    ///
    /// # Errors
    /// As [`Gateway::handle`].
    pub fn redress(
        &self,
        session: &Session,
        operation: &Operation,
        facts: &BTreeMap<String, Value>,
    ) -> Result<Reply, Error> {
        let _held = self.locks.hold(changed_paths(operation));
        let mut attempt = 1;
        loop {
            let mut draft = record::operation(session, &self.policy, operation);
            draft.facts = Some(facts.clone());
            let turn = Turn { gate: self, session, operation, source: Source::Disk, meter: None };
            match turn.run(&mut draft) {
                Err(Failure::Moved) if attempt < ATTEMPTS => attempt += 1,
                Ok(reply) => return Ok(reply),
                Err(failure) => return Err(self.fail(draft, failure, None)),
            }
        }
    }
}
