//! The sessions that clients began, each with its link to the worker. A session ends
//! with its link: later requests get 404, so that the client begins a new session,
//! and its streams end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use portcullis_mcp::REPEATED;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use super::link::Link;
use crate::lock;

/// Time for the last replies to be sent.
const FINAL_TIMEOUT: Duration = Duration::from_millis(100);

/// The cell for the link of a session that a request begins.
pub(super) type NewSessionLink = Arc<OnceLock<Weak<Link>>>;

/// The sessions of one token at one workspace.
pub(super) struct Sessions {
    manager: Arc<LocalSessionManager>,
    links: Mutex<HashMap<String, Weak<Link>>>,
}

impl Sessions {
    pub(super) fn new(manager: Arc<LocalSessionManager>) -> Arc<Self> {
        Arc::new(Self { manager, links: Mutex::default() })
    }

    /// Registers a new session until its link ends.
    pub(super) fn register(self: &Arc<Self>, id: &str, link: &Weak<Link>) {
        lock(&self.links).insert(id.to_owned(), Weak::clone(link));
        let ended = link.upgrade().map(|link| link.ended());
        let (sessions, id) = (Arc::clone(self), id.to_owned());
        tokio::spawn(async move {
            if let Some(ended) = ended {
                ended.await;
            }
            sessions.end(&id).await;
        });
    }

    /// Returns true if there are no sessions.
    pub(super) fn is_empty(&self) -> bool {
        // A locked map means that a session is being added or removed.
        self.manager.sessions.try_read().is_ok_and(|sessions| sessions.is_empty())
    }

    /// Returns a session's link to the worker.
    pub(super) fn link(&self, id: &str) -> Option<Arc<Link>> {
        lock(&self.links).get(id).and_then(Weak::upgrade)
    }

    /// Returns true if the session exists; `rmcp` reports success for others, too.
    pub(super) async fn exists(&self, id: &str) -> bool {
        self.manager.sessions.read().await.contains_key(id)
    }

    /// Returns true if the worker has stopped reading from a session.
    pub(super) fn has_stopped_reading(&self, id: &str) -> bool {
        let link = lock(&self.links).get(id).map(Weak::upgrade);
        // An unregistered session is handled by `rmcp`.
        let Some(link) = link else { return false };
        !link.is_some_and(|link| link.is_read())
    }

    /// Announces to the worker that the client has ended a session, before `rmcp` stops
    /// waiting for replies in flight.
    pub(super) async fn announce_end(&self, id: &str) {
        if let Some(link) = self.link(id) {
            // A worker that does not read notices when `rmcp` drops the session.
            let _ = tokio::time::timeout(FINAL_TIMEOUT, link.shut_down()).await;
        }
    }

    /// Reports to the worker, which records it, that a request repeated an id in use.
    pub(super) async fn report_repeated_id(&self, id: &str) {
        if let Some(link) = self.link(id) {
            link.notify(REPEATED, None).await;
        }
    }

    async fn end(&self, id: &str) {
        // Later requests find no session.
        let handle = self.manager.sessions.write().await.remove(id);
        lock(&self.links).remove(id);
        let Some(handle) = handle else { return };
        tokio::time::sleep(FINAL_TIMEOUT).await;
        // A session that has ended by itself returns an error.
        let _ = handle.close().await;
    }
}
