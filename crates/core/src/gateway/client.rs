//! The client's part in carrying a request out.

use std::collections::BTreeMap;

use serde_json::Value;

use super::approvals::{Approver, NoApprover};
use crate::ops::{Follower, NoFollower, Source};

/// The client's part in a request. By default there is no editor, no approver and no follower.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// The source and destination of content.
    pub source: Source<'a>,
    /// The approver of a request that a rule asks about.
    pub approver: &'a dyn Approver,
    /// The follower of the request's progress.
    pub follower: &'a dyn Follower,
    /// Facts that the client states for the record; nothing depends on them.
    pub facts: &'a BTreeMap<String, Value>,
}

static NO_FACTS: BTreeMap<String, Value> = BTreeMap::new();

impl Default for Client<'_> {
    fn default() -> Self {
        Self {
            source: Source::Disk,
            approver: &NoApprover,
            follower: &NoFollower,
            facts: &NO_FACTS,
        }
    }
}

impl<'a> Client<'a> {
    /// Returns a client that asks `approver`.
    pub fn asking(approver: &'a dyn Approver) -> Self {
        Self { approver, ..Self::default() }
    }
}
