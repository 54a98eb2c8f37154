//! Tool calls with terminals on their way to the editor.

use std::time::{Duration, Instant};

use portcullis_rpc::{Object, response};
use serde_json::{json, value::RawValue};

use super::{
    proxy::{AcpProxy, Peer},
    terminal_content::{ToolCall, progress, push, rendered},
    terminals::Terminals,
};
use crate::lock;

/// Minimum time between two updates of a tool call.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// The most bytes of an update in which terminals are replaced, and which is stored to be sent
/// anew.
const MAX_UPDATE: usize = 64 * 1024;

impl AcpProxy<'_> {
    /// Returns the parameters of a `session/update` with texts in place of terminals; `None` where
    /// there are none in it. A larger update than [`MAX_UPDATE`] passes as it came.
    pub(super) fn with_terminals(&self, params: &RawValue) -> Option<Box<RawValue>> {
        let terminals = self.terminals.as_ref()?;
        let mut stored = lock(&terminals.content.0);
        if stored.editor_requests.is_empty() && !params.get().contains("terminal") {
            return None;
        }
        let is_small = params.get().len() <= MAX_UPDATE;
        let mut params = Object::parse(params.get())?;
        let acp_session: String = serde_json::from_str(params.get("sessionId")?.get()).ok()?;
        let mut update = params.object("update")?;
        let id: String = serde_json::from_str(update.get("toolCallId")?.get()).ok()?;
        let content = update.get("content")?.get();
        // Its earlier content is no longer shown.
        stored.editor_requests.retain(|call| call.id != id || call.acp_session != acp_session);
        if !is_small {
            return None;
        }
        let content: Vec<Box<RawValue>> = serde_json::from_str(content).ok()?;
        let session = self.sessions.get(&acp_session)?.session.id.clone();
        let since = Instant::now();
        let mut call = ToolCall { session, acp_session, id, content, shown: Vec::new(), since };
        for number in call.terminals() {
            terminals.registry.note_tool_call(&call.session, number, &call.id);
        }
        call.shown = progress(&terminals.registry, &call);
        let content = rendered(&terminals.registry, &stored, &call)?;
        if call.shown.iter().any(|(_, is_over)| !is_over) {
            push(&mut stored.editor_requests, call);
        }
        drop(stored);
        update.set("content", content);
        let update = update.to_raw()?;
        params.set("update", update);
        params.to_raw()
    }

    /// Sends updates of tool calls whose terminals progressed; returns the time until the next
    /// check.
    pub(super) fn show_terminals(&self, terminals: &Terminals) -> Option<Duration> {
        let mut stored = lock(&terminals.content.0);
        let (mut editor_requests, mut next) =
            (std::mem::take(&mut stored.editor_requests), None::<Duration>);
        editor_requests.retain_mut(|call| {
            let shown = progress(&terminals.registry, call);
            if shown == call.shown {
                return true;
            }
            let is_over = shown.iter().all(|(_, is_over)| *is_over);
            let wait = UPDATE_INTERVAL.saturating_sub(call.since.elapsed());
            if !is_over && !wait.is_zero() {
                next = Some(next.map_or(wait, |next| next.min(wait)));
                return true;
            }
            let Some(content) = rendered(&terminals.registry, &stored, call) else { return false };
            let update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": call.id, "content": content });
            let params = json!({ "sessionId": call.acp_session, "update": update });
            let line = response::notification("session/update", Some(params));
            // An editor that does not read gets the update later.
            if self.queue(Peer::Editor).push_line_within(line, Duration::ZERO).is_err() {
                next = Some(UPDATE_INTERVAL);
                return true;
            }
            (call.shown, call.since) = (shown, Instant::now());
            !is_over
        });
        stored.editor_requests = editor_requests;
        next
    }
}
