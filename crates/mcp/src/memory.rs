//! The memory shared by all attached clients of one gateway.
//!
//! They belong to one agent, which may open many connections, each with incomplete
//! lines, pending calls and unread replies. Requests and replies have separate
//! budgets: a client that waits for a reply has its request in memory, and must not
//! wait for that.

use std::{pin::Pin, sync::Arc, time::Duration};

use portcullis_rpc::{MemoryBudget, Reservation, parsed_size};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};

/// Maximum of bytes of incomplete lines and of requests without a reply.
const MAX_REQUESTS: usize = 192 << 20;
/// Maximum of bytes of unread replies; beyond it no call begins.
const MAX_REPLIES: usize = 64 << 20;
/// Maximum of calls carried out at once: the reply of each may be large.
pub(super) const MAX_CALLS: usize = 4;
/// Bytes reserved for a call's reply when it begins.
const REPLY_RESERVATION: usize = 1 << 20;
/// Timeout for a reservation.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest part of an incomplete line for which nothing is reserved.
const MAX_UNCOUNTED: usize = 64 << 10;
/// Bytes by which the reservation for a line grows.
const LINE_GROWTH: usize = 1 << 20;
/// Bytes that a request takes besides its text.
const REQUEST_OVERHEAD: usize = 8 << 10;
/// Copies of a text in memory: the line, and its value.
const COPIES_IN_MEMORY: usize = 2;
/// Maximum of bytes of a message's parsed values besides their text: those of 1,400 objects or 16,000
/// other values. The longest lists in arguments of a tool are 100 paths and 256 edits.
pub(super) const MAX_VALUES: usize = 1 << 20;
/// Timeout for a line to be complete while others wait for memory.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks if others wait for a slow line.
const LINE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The memory of all attached clients.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    requests: MemoryBudget,
    pub(super) replies: MemoryBudget,
    calls: Arc<Semaphore>,
}

/// The slot and the memory of a call, from its beginning until its reply is written.
#[derive(Debug)]
pub(crate) struct CallSlot {
    pub(super) _slot: OwnedSemaphorePermit,
    pub(super) _reply: Reservation,
    pub(super) _client: OwnedSemaphorePermit,
}

impl Default for ClientMemory {
    fn default() -> Self {
        Self {
            requests: MemoryBudget::new(MAX_REQUESTS),
            replies: MemoryBudget::new(MAX_REPLIES),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
        }
    }
}

impl ClientMemory {
    /// Waits for a call's slot, and for memory for its reply; `None` after a timeout.
    pub(super) async fn begin_call(&self) -> Option<(OwnedSemaphorePermit, Reservation)> {
        let slot = Arc::clone(&self.calls).acquire_owned().await.ok()?;
        let reply = timeout(RESERVE_TIMEOUT, self.replies.reserve(REPLY_RESERVATION)).await.ok()?;
        Some((slot, reply))
    }

    /// Returns how long a client has been waiting for memory.
    pub(super) fn waiting_for(&self) -> Duration {
        self.requests.waiting_for().max(self.replies.waiting_for())
    }
}

type Reserving = Pin<Box<dyn Future<Output = Option<Reservation>> + Send + Sync>>;

/// The memory of one client's line.
pub(super) struct LineMemory {
    memory: Arc<ClientMemory>,
    reserved: Option<Reservation>,
    /// The pending reservation. It is stored here, so that a reader that is dropped
    /// and polled again does not lose its place in the queue.
    reserving: Option<Reserving>,
    /// The time of the line's first reservation.
    since: Instant,
}

impl LineMemory {
    pub(super) fn new(memory: Arc<ClientMemory>) -> Self {
        Self { memory, reserved: None, reserving: None, since: Instant::now() }
    }

    /// Reserves memory for an incomplete line; returns false when there is none.
    pub(super) async fn grow(&mut self, length: usize) -> bool {
        length <= MAX_UNCOUNTED || self.cover(cost(length.next_multiple_of(LINE_GROWTH))).await
    }

    /// Reserves memory up to this number of bytes; returns false when there is none.
    pub(super) async fn cover(&mut self, bytes: usize) -> bool {
        let reserved = self.reserved.as_ref().map_or(0, Reservation::bytes);
        let more = bytes.saturating_sub(reserved);
        if more == 0 {
            return true;
        }
        let reserving = self.reserving.get_or_insert_with(|| {
            let budget = self.memory.requests.clone();
            Box::pin(async move { timeout(RESERVE_TIMEOUT, budget.reserve(more)).await.ok() })
        });
        let more = reserving.await;
        self.reserving = None;
        match (&mut self.reserved, more) {
            (Some(reserved), Some(more)) => reserved.merge(more),
            (None, Some(more)) => {
                self.reserved = Some(more);
                self.since = Instant::now();
            }
            (_, None) => {
                self.reserved = None;
                return false;
            }
        }
        true
    }

    /// Takes the memory of the complete line, of which this number of bytes is needed.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Reservation> {
        let mut reserved = self.reserved.take()?;
        reserved.shrink(bytes);
        Some(reserved)
    }

    /// Frees all memory.
    pub(super) fn clear(&mut self) {
        self.reserved = None;
    }

    /// Completes when a line with reserved memory is incomplete for too long, and
    /// others wait.
    pub(super) async fn late(&self) {
        if self.reserved.is_none() {
            return std::future::pending().await;
        }
        while self.since.elapsed() < LINE_TIMEOUT || self.memory.waiting_for() < LINE_TIMEOUT {
            sleep(LINE_POLL_INTERVAL).await;
        }
    }
}

impl std::fmt::Debug for LineMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineMemory").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

/// Returns the bytes of memory that a complete line takes with its parsed values.
pub(super) fn cost_of(line: &[u8]) -> usize {
    cost(line.len()).saturating_add(values_of(line))
}

/// Returns the bytes of memory that the parsed values of a message take besides their text. A message
/// with more than [`MAX_VALUES`] is not parsed.
pub fn values_of(message: &[u8]) -> usize {
    parsed_size(message).min(MAX_VALUES)
}

fn cost(length: usize) -> usize {
    length.saturating_mul(COPIES_IN_MEMORY).saturating_add(REQUEST_OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of them took forty times what was reserved.
    #[test]
    fn objects_of_a_line_were_not_counted() {
        let line = format!("[{}0]", "{\"\":\"\"},".repeat(1000));
        assert!(cost_of(line.as_bytes()) > 600_000);
        // What is not parsed takes none.
        let line = "[".repeat(4 << 20);
        assert_eq!(cost_of(line.as_bytes()), cost(line.len()) + MAX_VALUES);
    }

    #[test]
    fn a_call_has_a_slot_and_memory_until_its_reply_is_written() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(async {
            let memory = ClientMemory::default();
            let mut calls = Vec::new();
            for _ in 0..MAX_CALLS {
                calls.push(memory.begin_call().await.unwrap());
            }
            let next = timeout(Duration::from_secs(90), memory.begin_call());
            assert!(next.await.is_err());
            calls.pop();
            let unread = memory.replies.overdraw(MAX_REPLIES);
            assert!(memory.begin_call().await.is_none());
            drop(unread);
            assert!(memory.begin_call().await.is_some());
        });
    }
}
