//! Approvals by the client's user: elicitation.
//!
//! The client replies for its user, so a client that is not trusted with that is
//! served with `--ask shell`. Up to 2025-11-25 the gateway sends a request of its
//! own; from 2026-07-28 on its reply says that the call needs input, and the client
//! repeats the call with the answer. `portcullis approve` answers too, and the first
//! answer counts.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    gateway::{Answer, Approver, Question, Ticket},
    lock,
    question::{text, what},
};

/// The field of the form.
const FIELD: &str = "decision";
/// The choices of the field.
const CHOICES: [(&str, Answer); 3] =
    [("once", Answer::Once), ("session", Answer::Session), ("reject", Answer::Reject)];

/// The approver of one call. It connects the thread that carries the call out with
/// the one that handles the protocol.
pub(super) struct CallApprover {
    pub(super) cancel: Arc<Cancel>,
    pub(super) asked: mpsc::UnboundedSender<Arc<Ticket>>,
    pub(super) tickets: Arc<Tickets>,
}

impl CallApprover {
    /// Returns an approver for a call that needs no approval. One that is asked for
    /// after all, because of a policy reload, is withdrawn at once.
    pub(super) fn nobody() -> Self {
        let tickets = Arc::<Tickets>::default();
        tickets.leave();
        Self { cancel: Arc::default(), asked: mpsc::unbounded_channel().0, tickets }
    }
}

impl Approver for CallApprover {
    fn ask(&self, ticket: &Arc<Ticket>) {
        self.cancel.wait_for(ticket);
        self.tickets.wait_for(ticket);
        // Without a receiver another way to answer is left.
        let _ = self.asked.send(Arc::clone(ticket));
    }

    fn over(&self, ticket: &Ticket) {
        self.cancel.check_cancelled();
        self.tickets.over(ticket);
    }
}

/// The pending approvals of one client. Another client may have the same session, as
/// attached clients of one agent do; its approvals are not among these.
#[derive(Default)]
pub(super) struct Tickets(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    tickets: Vec<Arc<Ticket>>,
    left: bool,
}

impl Tickets {
    /// Withdraws all approvals, now and later: the client has left.
    pub(super) fn leave(&self) {
        let mut waiting = lock(&self.0);
        waiting.left = true;
        waiting.tickets.drain(..).for_each(|ticket| ticket.withdraw());
    }

    /// Withdraws the pending approvals; the client may ask again.
    pub(super) fn withdraw(&self) {
        lock(&self.0).tickets.iter().for_each(|ticket| ticket.withdraw());
    }

    fn wait_for(&self, ticket: &Arc<Ticket>) {
        let mut waiting = lock(&self.0);
        match waiting.left {
            true => ticket.withdraw(),
            false => waiting.tickets.push(Arc::clone(ticket)),
        }
    }

    fn over(&self, ticket: &Ticket) {
        lock(&self.0).tickets.retain(|waiting| !std::ptr::eq(&**waiting, ticket));
    }
}

/// The cancellation of a call.
#[derive(Default)]
pub(super) struct Cancel {
    cancelled: AtomicBool,
    ticket: Mutex<Option<Arc<Ticket>>>,
}

impl Cancel {
    /// Cancels the call: a pending approval is withdrawn, and an operation that has
    /// not begun does not begin. One that has begun is completed.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if let Some(ticket) = &*lock(&self.ticket) {
            ticket.withdraw();
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    fn wait_for(&self, ticket: &Arc<Ticket>) {
        let mut there = lock(&self.ticket);
        *there = Some(Arc::clone(ticket));
        // Under the lock, or a cancellation in between would be lost.
        if self.is_cancelled() {
            ticket.withdraw();
        }
    }

    fn check_cancelled(&self) {
        lock(&self.ticket).take();
    }
}

/// Returns the question as a form, without what the agent must not see: the client
/// may be the agent.
pub(super) fn form(question: &Question) -> Option<ElicitRequestParams> {
    let question = &question.for_sender();
    let what = what(question);
    let params = json!({
        "mode": "form",
        "message": format!("Portcullis asks: {what}\n\n{}", text(&what, question)),
        "requestedSchema": {
            "type": "object",
            "properties": {
                FIELD: {
                    "type": "string",
                    "title": "May it?",
                    "description": "`session` allows the same on this path, or the same command, for this session",
                    "enum": CHOICES.map(|(word, _)| word),
                },
            },
            "required": [FIELD],
        },
    });
    // A form that `rmcp` cannot send is left out; other ways to answer remain.
    serde_json::from_value(params)
        .inspect_err(|error| tracing::error!(%error, "the question is no form"))
        .ok()
}

/// Passes the client's answer to the pending approval.
pub(super) fn take(ticket: &Ticket, result: &ElicitResult) {
    let chosen = result.content.as_ref().and_then(|content| content.get(FIELD)?.as_str());
    let choice = CHOICES.into_iter().find(|(word, _)| Some(*word) == chosen);
    let (answer, by) = match (&result.action, choice) {
        (ElicitationAction::Accept, Some((_, answer))) => (answer, "the client's user"),
        (ElicitationAction::Accept, None) => (Answer::Reject, "an answer that was not offered"),
        (ElicitationAction::Decline, _) => (Answer::Reject, "the client's user, who declined"),
        _ => (Answer::Reject, "the client's user, who cancelled"),
    };
    // A late answer is ignored: another one came first.
    let _ = ticket.answer(answer, by);
}

/// Parses the client's answer and passes it on.
pub(super) fn take_value(ticket: &Ticket, value: Option<&Value>) {
    match value.map(|value| serde_json::from_value::<ElicitResult>(value.clone())) {
        Some(Ok(result)) => take(ticket, &result),
        _ => {
            let _ = ticket.answer(Answer::Reject, "an answer that cannot be read");
        }
    }
}
