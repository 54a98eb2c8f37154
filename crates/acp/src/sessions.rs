//! The sessions of one connection.
//!
//! A session exists because the editor requested it: an agent cannot invent one, nor use one that
//! was closed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::{lock, model::Session};

/// Maximum length in bytes of a session ID from an agent.
const MAX_ID: usize = 1024;

/// An ACP session with its session in the log.
#[derive(Debug)]
pub(super) struct SessionLink {
    /// The ID in ACP.
    pub(super) acp_id: String,
    /// The session in the log.
    pub(super) session: Session,
}

/// The sessions on which agent and editor have agreed.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    known: Mutex<HashMap<String, Arc<SessionLink>>>,
}

/// Effects of an editor's request on sessions, once it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The reply names a new session: `session/new`, `session/fork`. Contains the session in the
    /// log if it is needed before.
    Opens(Option<Session>),
    /// Continues a session of this ID: `session/load`, `session/resume`. It takes effect with the
    /// request, since the agent replays before it replies.
    Continues { id: String, fresh: bool },
    /// Ends it: `session/close`, `session/delete`.
    Ends(String),
    /// A prompt turn of this session, which begins with the request.
    Prompts(String),
    /// The exchange `initialize`, which is edited.
    Initialize,
    /// No effect.
    Nothing,
}

impl Sessions {
    pub(super) fn get(&self, id: &str) -> Option<Arc<SessionLink>> {
        lock(&self.known).get(id).cloned()
    }

    /// True if a session has not ended.
    pub(super) fn has(&self, session_link: &Arc<SessionLink>) -> bool {
        self.get(&session_link.acp_id).is_some_and(|known| Arc::ptr_eq(&known, session_link))
    }

    /// Adds a session; `None` if it exists already or its ID is too long.
    pub(super) fn open(
        &self,
        id: &str,
        make: impl FnOnce() -> Option<Session>,
    ) -> Option<Arc<SessionLink>> {
        let mut known = lock(&self.known);
        if id.len() > MAX_ID || known.contains_key(id) {
            return None;
        }
        let session_link = Arc::new(SessionLink { acp_id: id.to_owned(), session: make()? });
        known.insert(id.to_owned(), Arc::clone(&session_link));
        Some(session_link)
    }

    /// Removes a session and returns it, if it exists.
    pub(super) fn close(&self, id: &str) -> Option<Arc<SessionLink>> {
        lock(&self.known).remove(id)
    }
}
