//! What a policy is asked.

use super::model::{Access, AgentName, OperationKind, WorkspacePath};

/// A question: may this agent, for this operation, have this access to this
/// path?
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The agent that asks.
    pub agent: &'a AgentName,
    /// What it wants to do.
    pub operation: OperationKind,
    /// Which of the accesses that the operation needs is asked about.
    pub access: Access,
    /// The path, requested or canonical.
    pub path: &'a WorkspacePath,
}
