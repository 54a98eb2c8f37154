//! Asking the client's user where a rule asks for a person: elicitation.
//!
//! Whoever runs the client answers for its user: a client that cannot be
//! trusted with that is served with `--ask shell`. Up to 2025-11-25 the gate
//! asks by a request of its own; from 2026-07-28 on it says that the call needs
//! input, and the client calls again with the answer. `portcullis approve`
//! answers too, and the first answer counts.

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
/// What may be chosen.
const CHOICES: [(&str, Answer); 3] =
    [("once", Answer::Once), ("session", Answer::Session), ("reject", Answer::Reject)];

/// One call's side of waiting for a person: from the thread that carries it
/// out to the one that speaks to the client.
pub(super) struct Asker {
    pub(super) cancel: Arc<Cancel>,
    pub(super) asked: mpsc::UnboundedSender<Arc<Ticket>>,
    pub(super) tickets: Arc<Tickets>,
}

impl Asker {
    /// For a call that needs nobody: one that does after all, for a policy put in
    /// force meanwhile, is given up.
    pub(super) fn nobody() -> Self {
        let tickets = Arc::<Tickets>::default();
        tickets.leave();
        Self { cancel: Arc::default(), asked: mpsc::unbounded_channel().0, tickets }
    }
}

impl Approver for Asker {
    fn ask(&self, ticket: &Arc<Ticket>) {
        self.cancel.wait_for(ticket);
        self.tickets.wait_for(ticket);
        // Without anybody there another way to answer is left.
        let _ = self.asked.send(Arc::clone(ticket));
    }

    fn over(&self, ticket: &Ticket) {
        self.cancel.go_on();
        self.tickets.over(ticket);
    }
}

/// The questions of one client that wait. Another client may have the same
/// session, as attached clients of one agent do; these are not its own.
#[derive(Default)]
pub(super) struct Tickets(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    tickets: Vec<Arc<Ticket>>,
    left: bool,
}

impl Tickets {
    /// The client says no more: nobody is there to be asked.
    pub(super) fn leave(&self) {
        let mut waiting = lock(&self.0);
        waiting.left = true;
        waiting.tickets.drain(..).for_each(|ticket| ticket.withdraw());
    }

    /// What waits is given up; the client may ask again.
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

/// Whether a call was taken back.
#[derive(Default)]
pub(super) struct Cancel {
    cancelled: AtomicBool,
    ticket: Mutex<Option<Arc<Ticket>>>,
}

impl Cancel {
    /// Takes the call back: what waits is given up, what has not begun does not
    /// begin. What is being done is done.
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
        // Under the lock, or a cancellation could slip through.
        if self.is_cancelled() {
            ticket.withdraw();
        }
    }

    fn go_on(&self) {
        lock(&self.ticket).take();
    }
}

/// The question as a form: the client may be the agent itself.
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
                    "description": "`session` allows the same on this path for this session",
                    "enum": CHOICES.map(|(word, _)| word),
                },
            },
            "required": [FIELD],
        },
    });
    // A form that `rmcp` cannot send is none; other ways to answer are left.
    serde_json::from_value(params)
        .inspect_err(|error| tracing::error!(%error, "the question is no form"))
        .ok()
}

/// Hands the client's answer to whoever waits.
pub(super) fn take(ticket: &Ticket, result: &ElicitResult) {
    let chosen = result.content.as_ref().and_then(|content| content.get(FIELD)?.as_str());
    let choice = CHOICES.into_iter().find(|(word, _)| Some(*word) == chosen);
    let (answer, by) = match (&result.action, choice) {
        (ElicitationAction::Accept, Some((_, answer))) => (answer, "the client's user"),
        (ElicitationAction::Accept, None) => (Answer::Reject, "an answer that was not offered"),
        (ElicitationAction::Decline, _) => (Answer::Reject, "the client's user, who declined"),
        _ => (Answer::Reject, "the client's user, who cancelled"),
    };
    // Too late is no error: somebody else was faster.
    let _ = ticket.answer(answer, by);
}

/// The same for an answer as it came.
pub(super) fn take_value(ticket: &Ticket, value: Option<&Value>) {
    match value.map(|value| serde_json::from_value::<ElicitResult>(value.clone())) {
        Some(Ok(result)) => take(ticket, &result),
        _ => {
            let _ = ticket.answer(Answer::Reject, "an answer that cannot be read");
        }
    }
}
