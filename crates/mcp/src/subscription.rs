//! Subscriptions made before `rmcp` acknowledges them.

use std::sync::{Arc, Mutex};

use rmcp::{model::SubscriptionFilter, service::SubscriptionContext};

use super::{
    changes::{Changes, Sink},
    shared::Shared,
};
use crate::lock;

tokio::task_local! {
    /// The subscriptions of the request that is handled.
    pub(super) static BEGUN: RequestSubscriptions;
}

/// The subscriptions of one request.
pub(super) struct RequestSubscriptions {
    pub(super) granted: SubscriptionFilter,
    pub(super) following: Mutex<Option<LinkDecisions>>,
}

/// The subscriptions of a stream, which end with it.
pub(super) struct LinkDecisions {
    pub(super) changes: Arc<Changes>,
    pub(super) shared: Arc<Shared>,
}

impl Drop for LinkDecisions {
    fn drop(&mut self) {
        self.changes.end(&self.shared.gateway);
    }
}

/// Returns the granted filter of the request that is handled.
pub(super) fn granted() -> Option<SubscriptionFilter> {
    BEGUN.try_with(|begun| begun.granted.clone()).ok()
}

/// Sends notifications on the stream of the request that is handled, until it ends.
pub(super) async fn send_notifications(shared: &Shared, context: &SubscriptionContext) {
    let take = |begun: &RequestSubscriptions| lock(&begun.following).take();
    let Some(following) = BEGUN.try_with(take).ok().flatten() else { return };
    let sink = Sink::Stream(context.sink().clone());
    tokio::select! {
        () = context.cancelled() => {}
        // Otherwise the stream would keep the session until a timeout of `rmcp`.
        () = shared.left.cancelled() => {}
        () = following.changes.send_notifications(shared, &sink) => {}
    }
}
