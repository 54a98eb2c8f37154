//! The state of an operation in progress: cancelled or not, and the progress of a
//! search.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use tokio::sync::watch;

use crate::gateway::Follower;

use super::approver::Cancel;

/// The follower of an operation, on the thread that carries it out.
pub(super) struct Followed {
    cancel: Arc<Cancel>,
    /// True if the client reads no more.
    closed: Arc<AtomicBool>,
    entries: watch::Sender<u64>,
}

impl Followed {
    pub(super) fn new(
        cancel: &Arc<Cancel>,
        closed: &Arc<AtomicBool>,
    ) -> (Self, watch::Receiver<u64>) {
        let (entries, progress) = watch::channel(0);
        (Self { cancel: Arc::clone(cancel), closed: Arc::clone(closed), entries }, progress)
    }
}

impl Follower for Followed {
    fn is_wanted(&self) -> bool {
        !self.cancel.is_cancelled() && !self.closed.load(Ordering::SeqCst)
    }

    fn progress(&self, entries: u64) {
        self.entries.send_if_modified(|told| {
            let more = entries > *told;
            *told = entries.max(*told);
            more
        });
    }
}

/// The receiver of progress, on the protocol's side.
pub(super) struct Progress {
    token: Option<ProgressToken>,
    entries: watch::Receiver<u64>,
}

impl Progress {
    pub(super) fn new(context: &RequestContext<RoleServer>, entries: watch::Receiver<u64>) -> Self {
        Self { token: context.meta.get_progress_token(), entries }
    }

    /// Waits for progress to report; for ever if there is none.
    pub(super) async fn made(&mut self) -> f64 {
        if self.token.is_none() || self.entries.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let entries = u32::try_from(*self.entries.borrow_and_update()).unwrap_or(u32::MAX);
        entries.into()
    }

    /// Notifies the client.
    pub(super) async fn notify(&self, context: &RequestContext<RoleServer>, entries: f64) {
        let Some(token) = self.token.clone() else { return };
        let mut params = ProgressNotificationParam::new(token, entries);
        params.message = Some(format!("{entries} entries looked at"));
        if let Err(error) = context.peer.notify_progress(params).await {
            tracing::debug!(%error, "progress was not told");
        }
    }
}
