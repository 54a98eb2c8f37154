//! Changes by which the operator puts right what a session did.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Approver, Caller, Error, Gateway, Reply, request::Terms};
use crate::{
    model::{Operation, Session},
    ops::{Source, Unfollowed},
};

impl Gateway {
    /// As [`Gateway::handle_asking`] for the operator who undoes something:
    /// decided, kept and recorded alike, but not held against the limits of a
    /// session, or a session that changed much could not be undone. `facts` say
    /// in the record what is undone.
    ///
    /// # Errors
    /// As [`Gateway::handle`].
    pub fn redress(
        &self,
        session: &Session,
        operation: &Operation,
        facts: &BTreeMap<String, Value>,
        approver: &dyn Approver,
    ) -> Result<Reply, Error> {
        let caller = Caller { approver, follower: &Unfollowed };
        let terms = Terms { meter: None, facts, redress: true };
        self.carry_out(session, operation, Source::Disk, terms, caller)
    }
}
