//! What bounds the sockets, and the memory that all of them share.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{SMALL, STEP};

/// What bounds the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest message from a client, in bytes.
    pub message: usize,
    /// Memory for messages on their way, of all clients, in bytes.
    pub memory: usize,
    /// How often a client is asked whether it is there.
    pub ping: Duration,
    /// How long it may stay silent, pings unanswered and no message whole.
    pub silence: Duration,
    /// How long a client may take to take a piece of a message; a whole one may
    /// take a second more for each 256 KiB.
    pub write: Duration,
    /// How long a message may take to arrive that takes memory, besides a second
    /// for each 256 KiB.
    pub arrive: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // 100 MB in base64, and what is around it.
            message: 144 << 20,
            memory: 512 << 20,
            ping: Duration::from_secs(45),
            silence: Duration::from_secs(120),
            write: Duration::from_secs(30),
            arrive: Duration::from_secs(30),
        }
    }
}

/// What the sockets of one front share.
#[derive(Debug)]
pub(in crate::http) struct Sockets {
    pub(super) bounds: Bounds,
    memory: Arc<Semaphore>,
}

impl Sockets {
    pub(in crate::http) fn new(bounds: Bounds) -> Self {
        let sockets = Self { bounds, memory: Arc::new(Semaphore::new(bounds.steps())) };
        debug_assert!(bounds.memory >= bounds.message, "room for one message");
        sockets
    }

    /// The memory that large messages share, counted in steps.
    pub(in crate::http) fn memory(&self) -> Arc<Semaphore> {
        Arc::clone(&self.memory)
    }

    /// Largest message, in bytes.
    pub(in crate::http) fn most(&self) -> usize {
        self.bounds.message
    }

    /// Memory for a message of `length` bytes; `None` when there is too little
    /// now.
    pub(in crate::http) fn room(&self, length: usize) -> Option<Option<OwnedSemaphorePermit>> {
        match self.bounds.taken(length) {
            0 => Some(None),
            steps => Arc::clone(&self.memory).try_acquire_many_owned(steps).ok().map(Some),
        }
    }

    /// As much of what is held as a message of `length` bytes takes.
    pub(in crate::http) fn kept(
        &self,
        room: Option<OwnedSemaphorePermit>,
        length: usize,
    ) -> Option<OwnedSemaphorePermit> {
        let mut room = room?;
        let steps = usize::try_from(self.bounds.taken(length)).unwrap_or(usize::MAX);
        room.split(steps.min(room.num_permits()))
    }
}

impl Bounds {
    pub(super) fn steps(&self) -> usize {
        (self.memory / STEP).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// How many steps a message of `length` bytes takes; the largest take all
    /// there are.
    fn taken(&self, length: usize) -> u32 {
        let steps = if length > SMALL { length.div_ceil(STEP).min(self.steps()) } else { 0 };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }
}
