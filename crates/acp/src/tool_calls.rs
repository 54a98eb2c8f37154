//! Tool calls that the agent announces, by which its records are named.
//!
//! They are claims. A call is open from its announcement until the agent says that it is completed
//! or failed, or its prompt turn ends. Records name one only if it is the only one that can be meant.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use portcullis_rpc::Object;
use serde_json::value::RawValue;

use crate::{lock, model::ClaimedToolCall};

use super::sessions::SessionLink;

/// Maximum number of open tool calls of a session that are known.
const MAX_OPEN: usize = 64;
/// Maximum length in bytes of the ID of a tool call.
const MAX_ID: usize = 1024;

/// The open tool calls of a connection.
#[derive(Debug)]
pub(super) struct ToolCalls {
    /// The open calls, by the IDs of ACP sessions.
    by_session: Mutex<HashMap<String, SessionCalls>>,
    /// The one of all sessions.
    of_run: Arc<ClaimedToolCall>,
}

#[derive(Debug, Default)]
struct SessionCalls {
    open: Vec<OpenCall>,
    /// True if others are open that are not known, so that any may be meant.
    has_others: bool,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    /// The ID for records, with placeholders in place of secrets. `None` if it cannot be recorded.
    recorded_id: Option<Arc<str>>,
    is_running: bool,
}

/// The states of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Pending,
    Running,
    Over,
}

/// The content of an update about a tool call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolCallUpdate {
    pub(super) session: String,
    pub(super) id: String,
    /// `None` in a request for permission, which says nothing of a known call.
    pub(super) status: Option<Status>,
}

impl ToolCallUpdate {
    pub(super) fn of(params: &RawValue) -> Option<Self> {
        // Most updates are parts of a message.
        if !params.get().contains("toolCallId") {
            return None;
        }
        let params = Object::parse(params.get())?;
        // Some agents announce a call by the request for its permission alone.
        let update = params.object("update").or_else(|| params.object("toolCall"))?;
        let text = |object: &Object<'_>, key| -> Option<String> {
            serde_json::from_str(object.get(key)?.get()).ok()
        };
        let (kind, status) = (text(&update, "sessionUpdate"), text(&update, "status"));
        let status = match (kind.as_deref(), status.as_deref()) {
            (None, None) => None,
            (Some("tool_call"), None) | (_, Some("pending")) => Some(Status::Pending),
            (_, Some("in_progress")) => Some(Status::Running),
            (_, Some("completed" | "failed")) => Some(Status::Over),
            _ => return None,
        };
        Some(Self {
            session: text(&params, "sessionId")?,
            id: text(&update, "toolCallId")?,
            status,
        })
    }
}

impl ToolCalls {
    /// Returns a connection without any; `of_run` gets the call that records of the mount name.
    pub(super) fn new(of_run: Arc<ClaimedToolCall>) -> Self {
        Self { by_session: Mutex::default(), of_run }
    }

    /// Forgets the open calls of a session.
    pub(super) fn forget(&self, session_link: &SessionLink) {
        let mut all = lock(&self.by_session);
        if all.remove(&session_link.acp_id).is_some() {
            self.publish(&all, session_link);
        }
    }

    /// Applies an update; `recorded_id` returns the ID for records, or `None` if it has none.
    pub(super) fn apply(
        &self,
        session_link: &SessionLink,
        (id, status): (String, Option<Status>),
        recorded_id: impl FnOnce(&str) -> Option<String>,
    ) {
        let mut all = lock(&self.by_session);
        let calls = all.entry(session_link.acp_id.clone()).or_default();
        let known = calls.open.iter().position(|call| call.id == id);
        match (known, status) {
            (Some(_), None) | (None, Some(Status::Over)) => return,
            (Some(known), Some(Status::Over)) => drop(calls.open.remove(known)),
            (Some(known), Some(status)) => {
                if let Some(call) = calls.open.get_mut(known) {
                    call.is_running = status == Status::Running;
                }
            }
            (None, _) if id.len() > MAX_ID || calls.open.len() == MAX_OPEN => {
                calls.has_others = true;
            }
            (None, status) => {
                let recorded_id = recorded_id(&id).map(Arc::from);
                let is_running = status == Some(Status::Running);
                calls.open.push(OpenCall { id, recorded_id, is_running });
            }
        }
        self.publish(&all, session_link);
    }

    fn publish(&self, all: &HashMap<String, SessionCalls>, changed: &SessionLink) {
        if let Some(acp) = &changed.session.acp {
            acp.tool_call.set(the_one(all.get(&changed.acp_id).into_iter()));
        }
        self.of_run.set(the_one(all.values()));
    }
}

/// Returns the only call in progress, or if there is none the only pending one.
fn the_one<'c>(sessions: impl Iterator<Item = &'c SessionCalls> + Clone) -> Option<Arc<str>> {
    if sessions.clone().any(|calls| calls.has_others) {
        return None;
    }
    let calls = sessions.flat_map(|calls| &calls.open);
    let is_any_running = calls.clone().any(|call| call.is_running);
    let mut meant = calls.filter(|call| call.is_running == is_any_running);
    let only = meant.next()?;
    meant.next().is_none().then(|| only.recorded_id.clone()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AcpSession, Session, Transport};

    fn link(id: &str) -> SessionLink {
        let session = Session {
            id: id.to_owned(),
            agent: "a".parse().unwrap(),
            user: String::new(),
            transport: Transport::Acp,
            acp: Some(AcpSession::new("run")),
        };
        SessionLink { acp_id: id.to_owned(), session }
    }

    #[test]
    fn a_call_is_named_only_if_no_other_can_be_meant() {
        let calls = ToolCalls::new(Arc::default());
        let (first, second) = (link("1"), link("2"));
        let hear = |link: &SessionLink, id: &str, status: Status| {
            let recorded_id = |id: &str| (id != "secret").then(|| id.to_owned());
            calls.apply(link, (id.to_owned(), status.into()), recorded_id);
        };
        let of = |link: &SessionLink| link.session.acp.as_ref().unwrap().tool_call.get();
        let named = || {
            [of(&first), of(&second), calls.of_run.get()].map(|id| id.as_deref().map(str::to_owned))
        };
        let some = |id: &str| Some(id.to_owned());
        hear(&first, "a", Status::Pending);
        assert_eq!(named(), [some("a"), None, some("a")]);
        hear(&first, "b", Status::Pending);
        assert_eq!(named(), [None, None, None]);
        hear(&first, "b", Status::Running);
        assert_eq!(named(), [some("b"), None, some("b")]);
        hear(&second, "c", Status::Running);
        assert_eq!(named(), [some("b"), some("c"), None]);
        hear(&first, "b", Status::Over);
        assert_eq!(named(), [some("a"), some("c"), some("c")]);
        calls.forget(&second);
        assert_eq!(named(), [some("a"), None, some("a")]);
        // A request for permission does not say that a call has ceased to run.
        hear(&first, "d", Status::Running);
        hear(&first, "e", Status::Running);
        calls.apply(&first, ("d".to_owned(), None), |_| None);
        assert_eq!(named(), [None, None, None]);
        hear(&first, "d", Status::Over);
        hear(&first, "e", Status::Over);
        // One whose ID cannot be recorded may be meant, too.
        hear(&first, "secret", Status::Pending);
        assert_eq!(named(), [None, None, None]);
        hear(&first, "secret", Status::Over);
        assert_eq!(named(), [some("a"), None, some("a")]);
        hear(&first, &"x".repeat(MAX_ID + 1), Status::Running);
        assert_eq!(named(), [None, None, None]);
        calls.forget(&first);
        (0..100).for_each(|call| hear(&first, &call.to_string(), Status::Pending));
        assert_eq!(lock(&calls.by_session)["1"].open.len(), MAX_OPEN);
    }

    #[test]
    fn updates_say_what_became_of_a_call() {
        let heard = |update: &str| {
            let params = format!(r#"{{"sessionId":"s","update":{update}}}"#);
            let params = RawValue::from_string(params).unwrap();
            ToolCallUpdate::of(&params).map(|heard| (heard.id, heard.status))
        };
        let call = |kind: &str, more: &str| {
            heard(&format!(r#"{{"sessionUpdate":"{kind}","toolCallId":"c"{more}}}"#))
        };
        let is = |status| Some(("c".to_owned(), status));
        let asked = r#"{"sessionId":"s","toolCall":{"toolCallId":"c"},"options":[]}"#;
        let asked = ToolCallUpdate::of(&RawValue::from_string(asked.to_owned()).unwrap());
        assert_eq!(asked.map(|heard| (heard.id, heard.status)), is(None));
        assert_eq!(call("tool_call", ""), is(Some(Status::Pending)));
        assert_eq!(call("tool_call_update", ""), None);
        let with = |status: &str| call("tool_call_update", &format!(r#","status":"{status}""#));
        assert_eq!(with("in_progress"), is(Some(Status::Running)));
        assert_eq!(
            (with("completed"), with("failed")),
            (is(Some(Status::Over)), is(Some(Status::Over)))
        );
        assert_eq!(heard(r#"{"sessionUpdate":"agent_message_chunk","content":{}}"#), None);
        assert_eq!(heard(r#"{"sessionUpdate":"tool_call","toolCallId":7}"#), None);
    }
}
