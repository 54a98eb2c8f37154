//! A subscription that was begun before `rmcp` acknowledges it.

use std::sync::{Arc, Mutex};

use rmcp::{model::SubscriptionFilter, service::SubscriptionContext};

use super::{
    changes::{Changes, Sink},
    shared::Shared,
};
use crate::lock;

tokio::task_local! {
    /// What was begun for the request that is handled.
    pub(super) static BEGUN: Begun;
}

/// What was begun for one request.
pub(super) struct Begun {
    pub(super) granted: SubscriptionFilter,
    pub(super) following: Mutex<Option<Following>>,
}

/// What a stream follows, which ends with the stream.
pub(super) struct Following {
    pub(super) changes: Arc<Changes>,
    pub(super) shared: Arc<Shared>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.changes.end(&self.shared.gateway);
    }
}

/// What the request that is handled follows.
pub(super) fn granted() -> Option<SubscriptionFilter> {
    BEGUN.try_with(|begun| begun.granted.clone()).ok()
}

/// Tells the stream of the request that is handled of changes until it ends.
pub(super) async fn tell(shared: &Shared, context: &SubscriptionContext) {
    let take = |begun: &Begun| lock(&begun.following).take();
    let Some(following) = BEGUN.try_with(take).ok().flatten() else { return };
    let sink = Sink::Stream(context.sink().clone());
    tokio::select! {
        () = context.cancelled() => {}
        // Or its stream would keep the session until `rmcp` waits no longer.
        () = shared.left.cancelled() => {}
        () = following.changes.tell(shared, &sink) => {}
    }
}
