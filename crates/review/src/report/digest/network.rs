//! Facts of records about an agent's network and connections.

use portcullis_audit::RecordView;
use serde_json::Value;

/// Returns the fact about the agent's network.
pub(super) fn agent_network(record: &RecordView<'_>) -> Option<Value> {
    record.facts.as_ref()?.get("agentNetwork").cloned()
}

/// True if a connection was allowed by its name: what follows about its address is the connection.
pub(super) fn is_of_name(record: &RecordView<'_>) -> bool {
    let is_allowed = !matches!(record.decision(), Some("deny" | "ask") | None);
    record.op() == Some("connect") && record.kind_name() == "decision" && is_allowed
}
