//! The sessions of one connection.
//!
//! A session exists because the editor asked for it: an agent cannot make one
//! up, nor use one that was closed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::{lock, model::Session};

/// Longest session id in bytes that the gate takes from an agent.
const MAX_ID: usize = 1024;

/// One ACP session and what the gateway knows it as.
#[derive(Debug)]
pub(super) struct Visit {
    /// The id that agent and editor use.
    pub(super) acp_id: String,
    /// The session in the log.
    pub(super) session: Session,
}

/// The sessions that agent and editor have agreed on.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    known: Mutex<HashMap<String, Arc<Visit>>>,
}

/// What an editor's request does to sessions once it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The reply names a new session: `session/new`, `session/fork`. With the
    /// session that it will be, where somebody may need it before.
    Opens(Option<Session>),
    /// Continues a session of this id: `session/load`, `session/resume`. It
    /// counts from the request on, for the agent replays before it replies.
    Continues { id: String, fresh: bool },
    /// Ends it: `session/close`, `session/delete`.
    Ends(String),
    /// A prompt turn of this session, which begins with the request.
    Prompts(String),
    /// The exchange that is edited.
    Initialize,
    /// None.
    Nothing,
}

impl Sessions {
    pub(super) fn get(&self, id: &str) -> Option<Arc<Visit>> {
        lock(&self.known).get(id).cloned()
    }

    /// Adds a session; `None` when it is known already or its id is too long.
    pub(super) fn open(
        &self,
        id: &str,
        make: impl FnOnce() -> Option<Session>,
    ) -> Option<Arc<Visit>> {
        let mut known = lock(&self.known);
        if id.len() > MAX_ID || known.contains_key(id) {
            return None;
        }
        let visit = Arc::new(Visit { acp_id: id.to_owned(), session: make()? });
        known.insert(id.to_owned(), Arc::clone(&visit));
        Some(visit)
    }

    /// Takes a session away; gives it back when it was known.
    pub(super) fn close(&self, id: &str) -> Option<Arc<Visit>> {
        lock(&self.known).remove(id)
    }
}
