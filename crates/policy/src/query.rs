//! Queries to a policy.

use super::model::{Access, AgentName, OperationKind, WorkspacePath};

/// The question whether this agent, for this operation, may have this access to this path.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The agent that asks.
    pub agent: &'a AgentName,
    /// The operation.
    pub operation: OperationKind,
    /// The access in question, one of those that the operation needs.
    pub access: Access,
    /// The path, requested or canonical.
    pub path: &'a WorkspacePath,
}
