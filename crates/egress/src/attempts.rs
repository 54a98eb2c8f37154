//! Connections that are being opened, with the approvals that they wait for.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
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
    running: Vec<Weak<Running>>,
    is_stopping: bool,
}

/// A running attempt, which ends when this is dropped.
pub(crate) struct Running {
    attempts: Arc<Attempts>,
    waiting: Mutex<Waiting>,
}

/// The wait of an attempt for an approval.
#[derive(Default)]
struct Waiting {
    is_withdrawn: bool,
    question: Option<Arc<Ticket>>,
}

impl Attempts {
    /// Returns the attempts of a sandbox; `approver` gets their requests for approval.
    pub(crate) fn new(approver: Box<dyn Approver + Send>) -> Self {
        Self { approver, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Begins an attempt; `None` if there are too many, or the session is ending.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Arc<Running>> {
        let mut state = self.state();
        if state.is_stopping || state.running.len() >= MAX_ATTEMPTS {
            return None;
        }
        let running = Running { attempts: Arc::clone(self), waiting: Mutex::default() };
        let running = Arc::new(running);
        state.running.push(Arc::downgrade(&running));
        Some(running)
    }

    /// Waits for `time`, or until the session ends.
    pub(crate) fn pause(&self, time: Duration) {
        let going = |state: &mut State| !state.is_stopping;
        drop(self.changed.wait_timeout_while(self.state(), time, going));
    }

    /// Ends the session: withdraws all attempts, and lets none begin.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        let running: Vec<_> = state.running.iter().filter_map(Weak::upgrade).collect();
        self.changed.notify_all();
        // The last reference to an attempt locks the state.
        drop(state);
        running.iter().for_each(|attempt| attempt.withdraw());
    }

    /// True if the session is ending.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Waits until no attempt is running, or until `end`.
    pub(crate) fn wait(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        let running = |state: &mut State| !state.running.is_empty();
        drop(self.changed.wait_timeout_while(self.state(), left, running));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Withdraws the attempt's request for approval, also a later one.
    pub(crate) fn withdraw(&self) {
        let mut waiting = self.waiting();
        waiting.is_withdrawn = true;
        if let Some(question) = waiting.question.take() {
            question.withdraw();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Approver for Running {
    fn ask(&self, ticket: &Arc<Ticket>) {
        let mut waiting = self.waiting();
        match waiting.is_withdrawn {
            true => ticket.withdraw(),
            false => waiting.question = Some(Arc::clone(ticket)),
        }
        drop(waiting);
        self.attempts.approver.ask(ticket);
    }

    fn over(&self, ticket: &Ticket) {
        self.waiting().question = None;
        self.attempts.approver.over(ticket);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.attempts.state();
        state.running.retain(|running| running.strong_count() > 0);
        self.attempts.changed.notify_all();
    }
}
