//! Whose request is read next: of each session one at a time, until it is on its
//! way to the worker.
//!
//! The front has one thread. Without this a client that puts many requests at
//! once, each over a connection of its own, has all of them in the way of
//! everybody else's next one. What waits for the worker holds no turn.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many sessions are remembered before those that nobody waits for are
/// forgotten.
const MOST: usize = 64;

/// The turns of one token's sessions with one workspace.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Option<String>, Weak<Semaphore>>>);

/// A turn, until it is [over](Self::over).
#[derive(Clone)]
pub(super) struct Turn(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Turns {
    /// Waits for a turn in `session`.
    pub(super) async fn enter(&self, session: Option<&str>) -> Turn {
        // Never closed.
        let turn = self.of(session).acquire_owned().await.ok();
        Turn(Arc::new(Mutex::new(turn)))
    }

    fn of(&self, session: Option<&str>) -> Arc<Semaphore> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = session.map(str::to_owned);
        if let Some(turn) = turns.get(&session).and_then(Weak::upgrade) {
            return turn;
        }
        if turns.len() >= MOST {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(session, Arc::downgrade(&turn));
        turn
    }
}

impl Turn {
    /// Lets the next one go on.
    pub(super) fn over(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_one_turn_and_others_have_theirs() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let turns = Turns::default();
            let first = turns.enter(Some("a")).await;
            let kept = first.clone();
            let _other = turns.enter(Some("b")).await;
            let _none = turns.enter(None).await;
            let mut next = Box::pin(turns.enter(Some("a")));
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(next.as_mut().poll(context).is_pending())
            });
            assert!(waits.await);
            kept.over();
            next.await.over();
            drop(first);
            for n in 0..1000 {
                turns.enter(Some(&n.to_string())).await.over();
            }
            assert!(turns.0.lock().unwrap().len() <= MOST);
        });
    }
}
