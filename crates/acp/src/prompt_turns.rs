//! Prompt turns and tool calls in the log.

use std::collections::BTreeMap;

use portcullis_rpc::{Object, Outcome};
use serde_json::{Value, value::RawValue};

use super::{
    proxy::{AcpProxy, recorded, short},
    tool_calls::ToolCallUpdate,
};

impl AcpProxy<'_> {
    /// Records the end of a prompt turn, with the agent's reason.
    pub(super) fn turn_ended(&self, id: &str, outcome: Option<Outcome<'_>>) {
        let stop_reason = match outcome {
            Some(Outcome::Result(result)) => Object::parse(result.get())
                .and_then(|result| serde_json::from_str(result.get("stopReason")?.get()).ok()),
            Some(Outcome::Error(_)) => Some("error".to_owned()),
            None => None,
        };
        let Some(session_link) = self.sessions.get(id) else { return };
        self.tool_calls.forget(&session_link);
        let mut facts = BTreeMap::from([("event".to_owned(), Value::from("end"))]);
        // A secret that is cut is no longer found.
        let stop_reason = stop_reason.and_then(|reason: String| self.gateway.redact_text(&reason));
        facts.extend(stop_reason.map(|reason| ("stopReason".to_owned(), short(&reason).into())));
        self.note_turn(id, facts);
    }

    /// Records the beginning or the end of a prompt turn in the log of each workspace.
    pub(super) fn note_turn(&self, id: &str, facts: BTreeMap<String, Value>) {
        let Some(session_link) = self.sessions.get(id) else { return };
        for gateway in self.gateways() {
            recorded(gateway.note(&session_link.session, "acp.prompt", facts.clone()));
        }
    }

    /// Notes what the agent says of a tool call, in an update or in the request for its permission.
    pub(super) fn note_tool_call(&self, method: &str, params: Option<&RawValue>) {
        let of_calls = ["session/update", "session/request_permission"];
        let params = params.filter(|_| of_calls.contains(&method));
        let update = params.and_then(ToolCallUpdate::of);
        let Some(ToolCallUpdate { session, id, status }) = update else { return };
        if let Some(session_link) = self.sessions.get(&session) {
            let recorded_id = |id: &str| Some(short(&self.gateway.redact_text(id)?));
            self.tool_calls.apply(&session_link, (id, status), recorded_id);
            // Its end may have been heard meanwhile.
            if !self.sessions.has(&session_link) {
                self.tool_calls.forget(&session_link);
            }
        }
    }
}
