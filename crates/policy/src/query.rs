//! Queries to a policy.

use super::model::{Access, AgentName, OperationKind, WorkspacePath};

/// A query: may this agent, for this operation, have this access to this path?
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The agent that sent the request.
    pub agent: &'a AgentName,
    /// The operation.
    pub operation: OperationKind,
    /// The access, one of those that the operation needs.
    pub access: Access,
    /// The path, requested or canonical.
    pub path: &'a WorkspacePath,
}
