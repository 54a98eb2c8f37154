//! The sessions that clients began, each with its link to the worker. One ends
//! with its link: what the client asks then is answered 404, so that it begins
//! anew, and its streams end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use portcullis_mcp::REPEATED;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use super::link::Link;
use crate::lock;

/// How long the last answers may take to go out.
const LAST: Duration = Duration::from_millis(100);

/// Where a request that begins a session puts the link of it.
pub(super) type Opened = Arc<OnceLock<Weak<Link>>>;

/// Those of one token at one workspace.
pub(super) struct Sessions {
    manager: Arc<LocalSessionManager>,
    links: Mutex<HashMap<String, Weak<Link>>>,
}

impl Sessions {
    pub(super) fn new(manager: Arc<LocalSessionManager>) -> Arc<Self> {
        Arc::new(Self { manager, links: Mutex::default() })
    }

    /// Takes note of a session that was begun, until its link ends.
    pub(super) fn begun(self: &Arc<Self>, id: &str, link: &Weak<Link>) {
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

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        // Where it is locked, somebody comes or goes.
        self.manager.sessions.try_read().is_ok_and(|sessions| sessions.is_empty())
    }

    /// A session's link to the worker.
    pub(super) fn link(&self, id: &str) -> Option<Arc<Link>> {
        lock(&self.links).get(id).and_then(Weak::upgrade)
    }

    /// Whether there is a session; `rmcp` ends one that there is not as well.
    pub(super) async fn is_there(&self, id: &str) -> bool {
        self.manager.sessions.read().await.contains_key(id)
    }

    /// Whether the worker does not hear a session any more.
    pub(super) fn is_deaf(&self, id: &str) -> bool {
        let link = lock(&self.links).get(id).map(Weak::upgrade);
        // What nobody took note of is `rmcp`'s to answer.
        let Some(link) = link else { return false };
        !link.is_some_and(|link| link.is_heard())
    }

    /// The client ended a session: the worker hears it at once, and not when
    /// `rmcp` waits no longer for the answers to what is under way.
    pub(super) async fn leave(&self, id: &str) {
        if let Some(link) = self.link(id) {
            // One that takes nothing hears it when `rmcp` lets go.
            let _ = tokio::time::timeout(LAST, link.hang_up()).await;
        }
    }

    /// A request was refused for its id, which the worker records.
    pub(super) async fn repeated(&self, id: &str) {
        if let Some(link) = self.link(id) {
            link.notify(REPEATED, None).await;
        }
    }

    async fn end(&self, id: &str) {
        // Whoever comes now finds none.
        let handle = self.manager.sessions.write().await.remove(id);
        lock(&self.links).remove(id);
        let Some(handle) = handle else { return };
        tokio::time::sleep(LAST).await;
        // One that has ended by itself needs no word.
        let _ = handle.close().await;
    }
}
