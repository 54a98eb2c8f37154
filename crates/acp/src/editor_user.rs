//! Questions to the editor's user about programs in the sandbox, which belong to no ACP session.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

use crate::{gateway::Ticket, lock, mcp_attach::UserApprover};

/// The editor's user. Nobody is asked before there is a session.
#[derive(Default)]
pub struct EditorUser {
    messenger: OnceLock<Arc<dyn UserApprover>>,
    /// The session that was opened or prompted last: an editor shows a question in one.
    session: Mutex<Option<String>>,
    /// Questions under way, by their ids; each is taken back when it is dropped.
    asked: Mutex<HashMap<String, Box<dyn Send>>>,
}

impl EditorUser {
    /// Puts the question; false where nobody can be asked.
    pub fn ask(&self, ticket: &Arc<Ticket>) -> bool {
        let session = lock(&self.session).clone();
        let asked = self.messenger.get().zip(session);
        let asked = asked.and_then(|(messenger, session)| messenger.ask(&session, ticket));
        let is_asked = asked.is_some();
        lock(&self.asked).extend(asked.map(|asked| (ticket.question().id.clone(), asked)));
        is_asked
    }

    /// Takes a question back.
    pub fn over(&self, ticket: &Ticket) {
        let asked = lock(&self.asked).remove(&ticket.question().id);
        drop(asked);
    }

    pub(super) fn set_messenger(&self, messenger: Arc<dyn UserApprover>) {
        // There is one connection.
        let _ = self.messenger.set(messenger);
    }

    pub(super) fn set_session(&self, session: &str) {
        *lock(&self.session) = Some(session.to_owned());
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: &str) {
        lock(&self.session).take_if(|attended| attended == session);
    }
}

impl fmt::Debug for EditorUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EditorUser").field("session", &self.session).finish_non_exhaustive()
    }
}
