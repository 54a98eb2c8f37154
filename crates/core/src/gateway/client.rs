//! What a client takes part in while its request is carried out.

use std::collections::BTreeMap;

use serde_json::Value;

use super::approvals::{Approver, Nobody};
use crate::ops::{Follower, Source, Unfollowed};

/// The client's part in a request. By default there is no editor, nobody is asked, and
/// nobody follows.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// Where content comes from and goes to.
    pub source: Source<'a>,
    /// Whom a rule that asks is put to.
    pub approver: &'a dyn Approver,
    /// Who follows a search.
    pub follower: &'a dyn Follower,
    /// Facts that the client states for the record; nothing depends on them.
    pub facts: &'a BTreeMap<String, Value>,
}

static NO_FACTS: BTreeMap<String, Value> = BTreeMap::new();

impl Default for Client<'_> {
    fn default() -> Self {
        Self { source: Source::Disk, approver: &Nobody, follower: &Unfollowed, facts: &NO_FACTS }
    }
}

impl<'a> Client<'a> {
    /// A client that has `approver` ask a person.
    pub fn asking(approver: &'a dyn Approver) -> Self {
        Self { approver, ..Self::default() }
    }
}
