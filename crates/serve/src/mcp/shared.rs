//! State shared by the sessions of one token at one workspace.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::{Duration, Instant},
};

use rmcp::model::RequestId;
use tokio::{net::UnixStream, sync::Semaphore};

use super::{link, session_scheduler::SessionScheduler, sessions::Sessions};
use crate::{Caller, Front, OpenError, Peer, TokenHash};

/// The timeout of the worker's reply to a request that it is to refuse.
pub(super) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Ids in use of one token at one workspace, each with its session.
pub(super) type Ids = Arc<Mutex<HashSet<(String, RequestId)>>>;

/// The reason why no session was opened for a request.
pub(super) type Refusal = Arc<OnceLock<OpenError>>;

/// State shared by the sessions of one token at one workspace.
pub(super) struct Shared {
    pub(super) front: Weak<Front>,
    pub(super) token: TokenHash,
    pub(super) workspace: String,
    pub(super) sessions: Arc<Sessions>,
    pub(super) scheduler: SessionScheduler,
    pub(super) ids: Ids,
    /// A permit for each request that is not answered.
    pub(super) under_way: Arc<Semaphore>,
    /// The session of the revisions that have no sessions.
    pub(super) common: tokio::sync::Mutex<Option<SharedSession>>,
}

/// A session shared by requests.
pub(super) struct SharedSession {
    link: Arc<link::Link>,
    used: Instant,
}

impl Shared {
    fn front(&self) -> Result<Arc<Front>, OpenError> {
        self.front.upgrade().ok_or(OpenError::Unavailable)
    }

    /// Opens a session with the worker for a request from `peer`. The peer is an
    /// argument because requests of one token may come from different peers.
    pub(super) async fn session(&self, peer: &Peer) -> Result<UnixStream, OpenError> {
        let caller = Caller { token: self.token, peer: peer.clone() };
        self.front()?.open(&caller, &self.workspace, crate::model::Transport::Mcp).await
    }

    /// Opens a session for JSON-RPC messages.
    pub(super) async fn open(&self, peer: &Peer) -> Result<Arc<link::Link>, OpenError> {
        // Replies that a client does not read occupy the memory of its own token
        // only.
        let memory = self.front()?.sockets().share(self.token);
        Ok(link::Link::start(self.session(peer).await?, memory))
    }

    /// Returns the session shared by requests without one.
    pub(super) async fn common(&self, peer: &Peer) -> Result<Arc<link::Link>, OpenError> {
        let mut common = self.common.lock().await;
        if let Some(common) = common.as_mut().filter(|common| common.link.is_read()) {
            common.used = Instant::now();
            return Ok(Arc::clone(&common.link));
        }
        let link = self.open(peer).await?;
        *common = Some(SharedSession { link: Arc::clone(&link), used: Instant::now() });
        Ok(link)
    }

    /// Ends the shared session when there was no request for `idle` and none is
    /// pending; returns true if there is none now. The worker cannot stop while it
    /// has the session.
    pub(super) fn end_if_idle(&self, idle: Duration) -> bool {
        // A locked session is in use.
        let Ok(mut common) = self.common.try_lock() else { return false };
        common.take_if(|common| {
            let unused = common.used.elapsed() >= idle && common.link.is_idle();
            unused || common.link.has_ended()
        });
        common.is_none()
    }
}
