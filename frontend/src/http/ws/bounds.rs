//! What bounds the sockets, and the memory that all of them share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{SMALL, STEP};
use crate::{http::TokenHash, lock};

/// What comes with one token may have one of so many parts of the memory, and as
/// much as the largest message takes in any case.
const PARTS: usize = 2;

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
    tokens: Mutex<HashMap<TokenHash, Weak<Semaphore>>>,
}

/// Memory for what comes with one token.
#[derive(Debug, Clone)]
pub(in crate::http) struct Share {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// What one message has of it.
#[derive(Debug, Default)]
pub(in crate::http) struct Taken {
    own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl Sockets {
    pub(in crate::http) fn new(bounds: Bounds) -> Self {
        let memory = Arc::new(Semaphore::new(steps(bounds.memory)));
        let sockets = Self { bounds, memory, tokens: Mutex::default() };
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

    /// The share of whoever has this token, however many connections that are.
    pub(in crate::http) fn share(&self, token: TokenHash) -> Share {
        let mut tokens = lock(&self.tokens);
        let own = tokens.get(&token).and_then(Weak::upgrade).unwrap_or_else(|| {
            tokens.retain(|_, own| own.strong_count() > 0);
            let most = (self.bounds.memory / PARTS).max(self.bounds.message);
            let own = Arc::new(Semaphore::new(steps(most)));
            tokens.insert(token, Arc::downgrade(&own));
            own
        });
        Share { own, all: self.memory() }
    }
}

/// In how many steps so much memory is taken.
pub(super) fn steps(bytes: usize) -> usize {
    (bytes / STEP).clamp(1, Semaphore::MAX_PERMITS)
}

impl Share {
    /// Takes memory so that `taken` has room for a message of which `length` bytes
    /// are there; whether there was enough. Not waited for: those that wait for
    /// each other would wait for ever.
    pub(in crate::http) fn hold(&self, taken: &mut Taken, length: usize) -> bool {
        while taken.room() < length {
            // In this order: what one token may not have keeps nothing from others.
            let Ok(own) = Arc::clone(&self.own).try_acquire_owned() else { return false };
            let Ok(all) = Arc::clone(&self.all).try_acquire_owned() else { return false };
            merge(&mut taken.own, own);
            merge(&mut taken.all, all);
        }
        true
    }
}

impl Taken {
    /// How many bytes of a message there may be.
    pub(super) fn room(&self) -> usize {
        let steps = self.all.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        steps.saturating_mul(STEP).saturating_add(SMALL)
    }
}

fn merge(whole: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match whole {
        Some(whole) => whole.merge(more),
        None => *whole = Some(more),
    }
}

#[cfg(test)]
impl Share {
    /// One of so many steps, all of which it may have.
    pub(super) fn of(steps: usize) -> Self {
        let all = Arc::new(Semaphore::new(steps));
        Self { own: Arc::clone(&all), all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_leaves_memory_to_others_on_however_many_connections() {
        let bounds = Bounds { message: 1 << 20, memory: 8 << 20, ..Bounds::default() };
        let sockets = Sockets::new(bounds);
        let (one, other) = (TokenHash::of("one"), TokenHash::of("other"));
        let message = |token: TokenHash| {
            let mut taken = Taken::default();
            sockets.share(token).hold(&mut taken, 1 << 20).then_some(taken)
        };
        let held: Vec<_> = std::iter::from_fn(|| message(one)).collect();
        assert_eq!(held.len(), 4);
        let others: Vec<_> = (0..3).filter_map(|_| message(other)).collect();
        assert_eq!(others.len(), 3);
        drop((held, others));
        assert!(message(one).is_some());
        assert_eq!(sockets.memory().available_permits(), steps(8 << 20));
    }

    #[test]
    fn the_largest_message_has_room_where_there_is_no_more_memory() {
        let bounds = Bounds { message: 1 << 20, memory: 1 << 20, ..Bounds::default() };
        let share = Sockets::new(bounds).share(TokenHash::of("one"));
        assert!(share.hold(&mut Taken::default(), 1 << 20));
    }
}
