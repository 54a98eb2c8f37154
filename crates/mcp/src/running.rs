//! Calls and reads in progress on other threads.

use std::sync::Arc;

use rmcp::{
    ErrorData,
    model::{CallToolResult, ReadResourceResult},
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinHandle},
};

use super::{approver::Cancel, arguments::Arguments};
use crate::gateway::Ticket;

/// A call of a tool in progress.
pub(super) struct Running {
    pub(super) tool: usize,
    pub(super) arguments: Arc<Arguments>,
    pub(super) work: RunningOperation<CallToolResult>,
}

/// A read of a resource in progress.
pub(super) struct Reading {
    pub(super) uri: String,
    pub(super) work: RunningOperation<Result<ReadResourceResult, ErrorData>>,
}

/// An operation in progress on another thread.
pub(super) struct RunningOperation<T> {
    pub(super) done: JoinHandle<T>,
    pub(super) asked: mpsc::UnboundedReceiver<Arc<Ticket>>,
    pub(super) cancel: Arc<Cancel>,
    pub(super) entries: watch::Receiver<u64>,
}

impl<T> RunningOperation<T> {
    /// Cancels it, and waits for its end.
    pub(super) async fn give_up(self) -> Result<T, JoinError> {
        self.cancel.cancel();
        self.done.await
    }
}
