//! Approvals by the editor's user: `session/request_permission` (ACP v1) with the operation and the
//! reason for the question, in the gateway's own name.
//!
//! The text contains file content and an agent's names. Both are shown as text: control and
//! bidirectional characters are escaped, and the diff is in a fence that nothing in it can close.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    gateway::{Answer, Question, Ticket},
    mcp_attach::UserApprover,
    model::{OperationKind, WorkspacePath},
    question::{code, text, what},
};

use super::{editor_requests, editor_requests::EditorRequests, paths::Roots};

/// The gateway's own option IDs.
const OPTIONS: [(&str, Answer); 3] =
    [("once", Answer::Once), ("session", Answer::Session), ("reject", Answer::Reject)];

#[derive(Deserialize)]
struct Chosen {
    outcome: Outcome,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Outcome {
    Selected { option_id: String },
    Cancelled,
}

/// Asks the editor's user for attached clients of an ACP session.
pub(super) struct SessionAsker {
    pub(super) editor_requests: Arc<EditorRequests>,
    pub(super) roots: Roots,
}

impl UserApprover for SessionAsker {
    fn ask(&self, acp_id: &str, ticket: &Arc<Ticket>) -> Option<Box<dyn Send>> {
        let params = params(acp_id, ticket.question(), &self.roots, &self.editor_requests);
        let answered = Arc::clone(ticket);
        let call =
            self.editor_requests.post("session/request_permission", &params, move |answer| {
                take(&answered, answer);
            });
        // The question can still be answered in another way, or time out.
        let call = call
            .inspect_err(|error| tracing::warn!(%error, "the editor cannot be asked for approval"))
            .ok()?;
        Some(Box::new(PendingQuestion { editor_requests: Arc::clone(&self.editor_requests), call }))
    }
}

/// A pending question, which is cancelled when it is dropped.
struct PendingQuestion {
    editor_requests: Arc<EditorRequests>,
    call: String,
}

impl Drop for PendingQuestion {
    fn drop(&mut self) {
        self.editor_requests.give_up(&self.call);
    }
}

pub(super) fn take(ticket: &Ticket, answer: editor_requests::Answer) {
    let editor_requests::Answer::Result(result) = answer else {
        // An error of the editor is not a reply to the question.
        tracing::warn!("the editor did not understand the question for approval");
        return;
    };
    let chosen = serde_json::from_str::<Chosen>(result.get());
    let (answer, by) = match chosen.map(|chosen| chosen.outcome) {
        Ok(Outcome::Selected { option_id }) => {
            match OPTIONS.into_iter().find(|(id, _)| *id == option_id) {
                Some((_, answer)) => (answer, "the editor's user"),
                None => (Answer::Reject, "an option that was not offered"),
            }
        }
        Ok(Outcome::Cancelled) => (Answer::Reject, "the editor's user, who cancelled"),
        Err(_) => (Answer::Reject, "an answer that cannot be read"),
    };
    // The question may have been answered elsewhere already.
    let _ = ticket.answer(answer, by);
}

/// Builds the parameters. `roots` are those of the workspace in which the agent begins; any other
/// one is named in the text.
pub(super) fn params(
    session: &str,
    question: &Question,
    roots: &Roots,
    editor_requests: &EditorRequests,
) -> Value {
    let binding = &question.binding;
    let (top, own) = (WorkspacePath::root(), Roots::new(&question.workspace, None));
    let what = match own.absolute(&top) {
        root if root == roots.absolute(&top) => what(question),
        root => format!("{} in the workspace {}", what(question), code(&root)),
    };
    // A host or a command is not a path in the workspace.
    let is_path = !matches!(binding.operation, OperationKind::Connect | OperationKind::Command);
    let place = WorkspacePath::parse(&binding.path).ok().filter(|_| is_path);
    let locations: Vec<_> =
        place.iter().map(|path| json!({ "path": own.absolute(path) })).collect();
    json!({
        "sessionId": session,
        "toolCall": {
            // Editors merge an agent's updates of tool calls by this ID, so the agent must not know
            // it.
            "toolCallId": editor_requests.unguessable(&question.id),
            "title": format!("Portcullis asks: {what}"),
            "kind": kind(binding.operation),
            "status": "pending",
            "locations": locations,
            "content": [{
                "type": "content",
                "content": { "type": "text", "text": text(&what, question) },
            }],
        },
        "options": [
            { "optionId": "once", "name": "Allow once", "kind": "allow_once" },
            {
                "optionId": "session",
                "name": format!("Allow this for this session: {what}"),
                "kind": "allow_always",
            },
            { "optionId": "reject", "name": "Reject", "kind": "reject_once" },
        ],
    })
}

/// Returns the `ToolKind` of the schema.
fn kind(operation: OperationKind) -> &'static str {
    use OperationKind as O;
    match operation {
        O::Read | O::List | O::Stat | O::Watch => "read",
        O::Glob | O::Grep => "search",
        O::Write | O::Append | O::Edit | O::Mkdir | O::SetAttributes | O::Symlink | O::Restore => {
            "edit"
        }
        O::Remove => "delete",
        O::Rename => "move",
        O::Connect => "fetch",
        O::Command => "execute",
    }
}
