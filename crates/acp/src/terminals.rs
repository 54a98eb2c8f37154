//! The terminals of a connection, and the requests that wait for their commands.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use portcullis_commands::Registry;
use portcullis_rpc::Id;

use super::terminal_content::TerminalContent;
use crate::lock;

/// The prefix of all methods.
const METHODS: &str = "terminal/";
/// Maximum number of requests that wait for a command.
const MAX_WAITING: usize = 256;

/// The terminals of a connection.
pub(super) struct Terminals {
    pub(super) registry: Arc<Registry>,
    pub(super) waiting: Mutex<HashMap<Id, WaitingRequest>>,
    /// Their output, as shown to the editor.
    pub(super) content: TerminalContent,
    is_over: AtomicBool,
}

/// A request that waits for a command.
pub(super) struct WaitingRequest {
    /// The session in the log.
    pub(super) session: String,
    pub(super) number: u64,
    pub(super) for_what: AwaitedEvent,
}

/// The event that a request waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedEvent {
    Start,
    End,
}

impl Terminals {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        let (waiting, content, is_over) = Default::default();
        Self { registry, waiting, content, is_over }
    }

    /// True if a method is about terminals.
    pub(super) fn serves(method: &str) -> bool {
        method.starts_with(METHODS)
    }

    /// True if a request of this ID waits for a command.
    pub(super) fn has_waiting(&self, id: &Id) -> bool {
        lock(&self.waiting).contains_key(id)
    }

    /// True if no more requests may wait.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.waiting).len() >= MAX_WAITING
    }

    /// Adds a waiting request.
    pub(super) fn wait(&self, id: &Id, waiting: WaitingRequest) {
        lock(&self.waiting).insert(id.clone(), waiting);
        self.registry.wake();
    }

    /// Returns the event that a request waits for, and removes the request if it waits for a
    /// command's end.
    pub(super) fn cancel(&self, id: &Id) -> Option<AwaitedEvent> {
        let mut waiting = lock(&self.waiting);
        let for_what = waiting.get(id)?.for_what;
        if for_what == AwaitedEvent::End {
            waiting.remove(id);
        }
        Some(for_what)
    }

    /// Ends the thread that answers.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.registry.wake();
    }

    /// True if the thread is to end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}
