//! What every operation is given.

use portcullis_search::Follower;

use super::{Error, Findings, Known, NameLocks, Source};
use crate::{
    model::{Access, AgentName, Door, OperationKind, WorkspacePath},
    policy::{Labelled, ObjectKind, Policy, Query, SecretKey},
    workspace::{Permit, Workspace},
};

/// For whom, where and under which policy an operation is prepared.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The agent that asks.
    pub agent: &'a AgentName,
    /// Through which door, whose limits hold.
    pub door: Door,
    /// What it asks for.
    pub operation: OperationKind,
    /// Where content comes from and goes to.
    pub source: Source<'a>,
    /// What placeholders of secrets are made with.
    pub key: &'a SecretKey,
    /// Hashes of what was read before.
    pub known: &'a Known,
    /// Locks between calls of an editor and changes of names.
    pub name_locks: &'a NameLocks,
    /// Collects the secrets that are found.
    pub findings: &'a Findings,
    /// Who follows a search while it is under way.
    pub follower: &'a dyn Follower,
}

impl Context<'_> {
    /// Whether the agent may read what the permit is about, by its name and by what it
    /// is, without asking anybody. Its content may keep it from that all the same.
    pub(super) fn may_read(&self, permit: &Permit) -> bool {
        let (access, path) = (Access::Read, permit.path());
        let query = Query { agent: self.agent, operation: OperationKind::Read, access, path };
        let object = permit.object();
        let may_be_opened = object.kind == ObjectKind::Missing
            || self.policy.evaluate_object(&query, &object).is_allow();
        may_be_opened && self.policy.evaluate(&query).is_allow()
    }

    /// The labels that content at `path` has.
    pub(super) fn labels_of(&self, path: &WorkspacePath) -> Labelled {
        self.policy.labels().of(path)
    }

    /// The most bytes that may be disclosed or stored at once.
    pub(super) fn max_size(&self, access: Access) -> u64 {
        self.policy.max_size(access, self.door)
    }

    /// Asks the policy about size and kind of a whole content.
    ///
    /// # Errors
    /// [`Error::Refused`] with the decision.
    pub(super) fn check(
        &self,
        access: Access,
        path: &WorkspacePath,
        content: &[u8],
    ) -> Result<(), Error> {
        let query = Query { agent: self.agent, operation: self.operation, access, path };
        let decision = self.policy.evaluate_content(&query, self.door, content);
        if decision.is_allow() { Ok(()) } else { Err(Error::Refused(decision)) }
    }
}
