//! What the sessions of one token at one workspace share.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::{Duration, Instant},
};

use rmcp::model::RequestId;
use tokio::{net::UnixStream, sync::Semaphore};

use super::{link, sessions::Sessions, turns::Turns};
use crate::{Caller, Front, OpenError, Peer, TokenHash};

/// Those of one token at one workspace, each with its session.
pub(super) type Ids = Arc<Mutex<HashSet<(String, RequestId)>>>;

/// Why no session was opened for a request.
pub(super) type Refusal = Arc<OnceLock<OpenError>>;

/// What the sessions of one token at one workspace share.
pub(super) struct Shared {
    pub(super) front: Weak<Front>,
    pub(super) token: TokenHash,
    pub(super) workspace: String,
    pub(super) sessions: Arc<Sessions>,
    pub(super) turns: Turns,
    pub(super) ids: Ids,
    /// A permit for each request that is not answered.
    pub(super) under_way: Arc<Semaphore>,
    /// The session of the revisions that have none.
    pub(super) common: tokio::sync::Mutex<Option<Common>>,
}

/// A session that requests share.
pub(super) struct Common {
    link: Arc<link::Link>,
    used: Instant,
}

impl Shared {
    fn front(&self) -> Result<Arc<Front>, OpenError> {
        self.front.upgrade().ok_or(OpenError::Unavailable)
    }

    /// A session of its own with the worker, as it is, for whoever asks from
    /// `peer`: the token's others may be elsewhere.
    pub(super) async fn session(&self, peer: &Peer) -> Result<UnixStream, OpenError> {
        let caller = Caller { token: self.token, peer: peer.clone() };
        self.front()?.open(&caller, &self.workspace, crate::model::Door::Mcp).await
    }

    /// The same for messages.
    pub(super) async fn open(&self, peer: &Peer) -> Result<Arc<link::Link>, OpenError> {
        // What a client does not read takes memory from its own token alone.
        let memory = self.front()?.sockets().share(self.token);
        Ok(link::Link::start(self.session(peer).await?, memory))
    }

    /// The session of whoever has none.
    pub(super) async fn common(&self, peer: &Peer) -> Result<Arc<link::Link>, OpenError> {
        let mut common = self.common.lock().await;
        if let Some(common) = common.as_mut().filter(|common| common.link.is_heard()) {
            common.used = Instant::now();
            return Ok(Arc::clone(&common.link));
        }
        let link = self.open(peer).await?;
        *common = Some(Common { link: Arc::clone(&link), used: Instant::now() });
        Ok(link)
    }

    /// Ends the session of those without one when nothing was asked for `idle`,
    /// and nothing waits for an answer; whether there is none now. A worker that
    /// has it does not stop.
    pub(super) fn rest(&self, idle: Duration) -> bool {
        // Where it is held, somebody asks.
        let Ok(mut common) = self.common.try_lock() else { return false };
        common.take_if(|common| {
            let unused = common.used.elapsed() >= idle && common.link.is_silent();
            unused || common.link.is_over()
        });
        common.is_none()
    }
}
