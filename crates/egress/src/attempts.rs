//! Connections that are being opened, with the approvals that they wait for.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use portcullis_core::{Approver, Ticket};

/// The maximum of attempts at once, including those that wait for an approval.
const MAX_ATTEMPTS: usize = 64;

/// The attempts of one sandbox.
pub(crate) struct Attempts {
    approver: Box<dyn Approver + Send>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    is_stopping: bool,
    /// The requests for approval that have no reply yet.
    questions: Vec<Arc<Ticket>>,
}

/// A running attempt, which ends when this is dropped.
pub(crate) struct Running(Arc<Attempts>);

impl Attempts {
    /// Returns the attempts of a sandbox; `approver` gets their requests for approval.
    pub(crate) fn new(approver: Box<dyn Approver + Send>) -> Self {
        Self { approver, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Begins an attempt; `None` if there are too many, or the session is ending.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut state = self.state();
        if state.is_stopping || state.running >= MAX_ATTEMPTS {
            return None;
        }
        state.running += 1;
        Some(Running(Arc::clone(self)))
    }

    /// Waits for `time`, or until the session ends.
    pub(crate) fn pause(&self, time: Duration) {
        let going = |state: &mut State| !state.is_stopping;
        drop(self.changed.wait_timeout_while(self.state(), time, going));
    }

    /// Ends the session: withdraws all requests for approval, also later ones, and lets no attempt
    /// begin.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        state.questions.drain(..).for_each(|question| question.withdraw());
        self.changed.notify_all();
    }

    /// True if the session is ending.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Waits until no attempt is running, or until `end`.
    pub(crate) fn wait(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        let running = |state: &mut State| state.running > 0;
        drop(self.changed.wait_timeout_while(self.state(), left, running));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Approver for Attempts {
    fn ask(&self, ticket: &Arc<Ticket>) {
        let mut state = self.state();
        match state.is_stopping {
            true => ticket.withdraw(),
            false => state.questions.push(Arc::clone(ticket)),
        }
        drop(state);
        self.approver.ask(ticket);
    }

    fn over(&self, ticket: &Ticket) {
        self.state().questions.retain(|one| !std::ptr::eq(&**one, ticket));
        self.approver.over(ticket);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running = state.running.saturating_sub(1);
        self.0.changed.notify_all();
    }
}
