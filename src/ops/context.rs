//! What every operation is given.

use super::{Error, Findings, Source};
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Policy, Query, SecretKey},
    workspace::Workspace,
};

/// For whom, where and under which policy an operation is prepared.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The agent that asks.
    pub agent: &'a AgentName,
    /// What it asks for.
    pub operation: OperationKind,
    /// Where content comes from and goes to.
    pub source: Source<'a>,
    /// What placeholders of secrets are made with.
    pub key: &'a SecretKey,
    /// Collects the secrets that are found.
    pub findings: &'a Findings,
}

impl Context<'_> {
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
        let decision = self.policy.evaluate_content(&query, content);
        if decision.is_allow() { Ok(()) } else { Err(Error::Refused(decision)) }
    }
}
