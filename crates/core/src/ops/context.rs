//! The context of an operation.

use portcullis_search::Follower;

use super::{Error, Findings, LastRenames, NameLocks, Source};
use crate::{
    backup::BackupStore,
    model::{Access, AgentName, OperationKind, Session, Transport, WorkspacePath},
    policy::{Labelled, ObjectKind, Policy, Query, SecretKey},
    workspace::{Permit, Workspace},
};

/// The workspace, policy and agent for which an operation is prepared.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The agent that sent the request.
    pub agent: &'a AgentName,
    /// The session of the request.
    pub session: &'a Session,
    /// The transport, whose limits apply.
    pub transport: Transport,
    /// The operation.
    pub operation: OperationKind,
    /// The source and destination of content.
    pub source: Source<'a>,
    /// The backups, for the secrets of what the session removed.
    pub backup_store: &'a BackupStore,
    /// The key of the placeholders of secrets.
    pub key: &'a SecretKey,
    /// The last renames, for the names of what the session removed.
    pub last_renames: &'a LastRenames,
    /// Locks between calls of an editor and changes of names.
    pub name_locks: &'a NameLocks,
    /// Collects the secrets that are found.
    pub findings: &'a Findings,
    /// The follower of the request's progress.
    pub follower: &'a dyn Follower,
}

impl Context<'_> {
    /// True if the agent may read the permit's object without an approval, by its name and its
    /// kind. Its content may prevent that all the same.
    pub(super) fn may_read(&self, permit: &Permit) -> bool {
        let (access, path) = (Access::Read, permit.path());
        let query = Query { agent: self.agent, operation: OperationKind::Read, access, path };
        let object = permit.object();
        let may_be_opened = object.kind == ObjectKind::Missing
            || self.policy.evaluate_object(&query, &object).is_allow();
        may_be_opened && self.policy.evaluate(&query).is_allow()
    }

    /// Returns the labels that content at `path` has.
    pub(super) fn labels_of(&self, path: &WorkspacePath) -> Labelled {
        self.policy.labels().of(path)
    }

    /// Returns the maximum size of a content that may be disclosed or stored, in bytes.
    pub(super) fn max_size(&self, access: Access) -> u64 {
        self.policy.max_size(access, self.transport)
    }

    /// Evaluates the policy for the size and kind of a complete content.
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
        let decision = self.policy.evaluate_content(&query, self.transport, content);
        if decision.is_allow() { Ok(()) } else { Err(Error::Refused(decision)) }
    }
}
