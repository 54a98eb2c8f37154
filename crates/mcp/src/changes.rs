//! Notifications of changes: of subscribed resources, of their list, and of the
//! tools.
//!
//! A subscription of the protocol becomes one of the gateway, decided and recorded.
//! Notifications are sent a few times a second at most, and none to a client that
//! does not read.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rmcp::{Peer, RoleServer, model::ResourceUpdatedNotificationParam, service::SubscriptionSink};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use crate::{
    gateway::{self, EventKind, Gateway, PolicyListener, Subscription},
    lock,
    model::{Session, WatchQuery, WorkspacePath},
};

use super::{shared::Shared, tool_catalog::ShownTools};

/// Minimum interval between notifications.
const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(100);

/// The subscriptions of one client, or of one stream of it.
#[derive(Default)]
pub(super) struct Changes {
    followed: Mutex<FollowedList>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct FollowedList {
    /// The subscriptions by URI.
    files: BTreeMap<String, Subscription>,
    /// All files, for changes of their list.
    all: Option<Subscription>,
    tools: Option<AnnouncedTools>,
    task: Option<JoinHandle<()>>,
}

/// The tools that the client has seen or was notified of.
struct AnnouncedTools {
    shown: Arc<ShownTools>,
    /// Signals when a policy is loaded that may show other tools.
    policy_listener: Arc<PolicyListener>,
}

/// Pending notifications.
#[derive(Default)]
struct PendingNotifications {
    updated: Vec<String>,
    list: bool,
    tools: bool,
}

/// The destination of notifications.
pub(super) enum Sink {
    /// The client, in revisions with sessions.
    Peer(Peer<RoleServer>),
    /// A stream of the subscription.
    Stream(SubscriptionSink),
}

impl Sink {
    async fn send_notifications(&self, news: PendingNotifications) {
        for uri in news.updated {
            let told = match self {
                Self::Peer(peer) => {
                    let params = ResourceUpdatedNotificationParam::new(uri);
                    peer.notify_resource_updated(params).await.is_ok()
                }
                Self::Stream(sink) => sink.notify_resource_updated(uri).await.is_ok(),
            };
            if !told {
                tracing::debug!("a change was not told");
            }
        }
        if news.list {
            let told = match self {
                Self::Peer(peer) => peer.notify_resource_list_changed().await.is_ok(),
                Self::Stream(sink) => sink.notify_resource_list_changed().await.is_ok(),
            };
            if !told {
                tracing::debug!("a change of the list was not told");
            }
        }
        if news.tools {
            let told = match self {
                Self::Peer(peer) => peer.notify_tool_list_changed().await.is_ok(),
                Self::Stream(sink) => sink.notify_tool_list_changed().await.is_ok(),
            };
            if !told {
                tracing::debug!("a change of the tools was not told");
            }
        }
    }
}

impl Changes {
    /// Subscribes to the file or directory that `uri` names; does nothing if the
    /// subscription exists.
    pub(super) fn follow(
        &self,
        gateway: &Gateway,
        session: &Session,
        uri: &str,
        path: WorkspacePath,
    ) -> Result<(), gateway::Error> {
        if self.lock().files.contains_key(uri) {
            return Ok(());
        }
        let query = WatchQuery { path, recursive: false, ignore: Vec::new() };
        let watching = gateway.watch(session, &query)?;
        self.listen_to(&watching.output);
        let same = self.lock().files.insert(uri.to_owned(), watching.output);
        // Another request made it meanwhile.
        same.iter().for_each(|same| gateway.unwatch(same));
        Ok(())
    }

    /// Ends the subscription to `uri`.
    pub(super) fn leave(&self, gateway: &Gateway, uri: &str) {
        let left = self.lock().files.remove(uri);
        if let Some(subscription) = left {
            gateway.unwatch(&subscription);
        }
    }

    /// Subscribes to the list of all files.
    pub(super) fn follow_list(
        &self,
        gateway: &Gateway,
        session: &Session,
    ) -> Result<(), gateway::Error> {
        if self.lock().all.is_some() {
            return Ok(());
        }
        let watching = gateway.watch(session, &WatchQuery::new(WorkspacePath::root()))?;
        self.listen_to(&watching.output);
        self.lock().all = Some(watching.output);
        Ok(())
    }

    /// Subscribes to the list of tools; returns the tools shown now.
    pub(super) fn follow_tools(&self, shared: &Shared) -> Arc<ShownTools> {
        let mut followed = self.lock();
        let policy_listener = match followed.tools.take() {
            Some(tools) => tools.policy_listener,
            None => self.policy_listener(&shared.gateway),
        };
        // In this order, or a policy loaded between the two would be missed.
        let shown = shared.shown();
        followed.tools = Some(AnnouncedTools { shown: Arc::clone(&shown), policy_listener });
        shown
    }

    /// Ends all subscriptions, on record.
    pub(super) fn end(&self, gateway: &Gateway) {
        let mut followed = std::mem::take(&mut *self.lock());
        followed.files.values().chain(&followed.all).for_each(|one| gateway.unwatch(one));
        if let Some(task) = followed.task.take() {
            task.abort();
        }
    }

    /// Starts the notifications, unless they are started.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>, peer: &Peer<RoleServer>) {
        let mut followed = self.lock();
        if followed.task.is_none() {
            let (changes, shared) = (Arc::clone(self), Arc::clone(shared));
            let sink = Sink::Peer(peer.clone());
            followed.task =
                Some(tokio::spawn(async move { changes.send_notifications(&shared, &sink).await }));
        }
    }

    /// Sends notifications until cancelled.
    pub(super) async fn send_notifications(&self, shared: &Shared, sink: &Sink) {
        loop {
            self.wake.notified().await;
            while !shared.writer.has_room() {
                sleep(NOTIFICATION_INTERVAL).await;
            }
            sink.send_notifications(self.news(shared)).await;
            sleep(NOTIFICATION_INTERVAL).await;
        }
    }

    fn listen_to(&self, subscription: &Subscription) {
        let wake = Arc::clone(&self.wake);
        subscription.on_ready(move || wake.notify_one());
    }

    fn policy_listener(&self, gateway: &Gateway) -> Arc<PolicyListener> {
        let wake = Arc::clone(&self.wake);
        let policy_listener: Arc<PolicyListener> = Arc::new(move || {
            wake.notify_one();
            true
        });
        gateway.on_policy(&policy_listener);
        policy_listener
    }

    fn news(&self, shared: &Shared) -> PendingNotifications {
        let mut followed = self.lock();
        let mut news = PendingNotifications::default();
        for (uri, subscription) in &followed.files {
            let mut changed = false;
            while let Ok(Some(_)) = subscription.next(Duration::ZERO) {
                changed = true;
            }
            if changed {
                news.updated.push(uri.clone());
            }
        }
        while let Some(Ok(Some(event))) = followed.all.as_ref().map(|all| all.next(Duration::ZERO))
        {
            news.list |= event.what != EventKind::Modified;
        }
        if let Some(tools) = &mut followed.tools {
            let before = std::mem::replace(&mut tools.shown, shared.shown());
            news.tools = !before.shows_as(&tools.shown);
        }
        news
    }

    fn lock(&self) -> MutexGuard<'_, FollowedList> {
        lock(&self.followed)
    }
}
