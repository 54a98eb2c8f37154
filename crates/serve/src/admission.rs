//! The places of connections, and the share of them that one token has.
//!
//! A connection takes its place before it is accepted, when nobody knows whose it is; its first
//! request with a token counts it for that token. A few places more are for `/healthz` and
//! `/readyz` alone, so that a service whose places are all taken is not taken for a dead one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TokenHash;
use crate::lock;

/// The number of shares of the places; one token has one of them at most.
const SHARES: usize = 2;
/// The places for health checks.
const SPARE: usize = 8;

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    free: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    /// The number of places of each token.
    taken: Mutex<HashMap<TokenHash, usize>>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    state: Mutex<PlaceState>,
}

#[derive(Debug)]
struct PlaceState {
    _permit: OwnedSemaphorePermit,
    is_spare: bool,
    token: Option<TokenHash>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            free: Arc::new(Semaphore::new(most)),
            spare: Arc::new(Semaphore::new(SPARE)),
            taken: Mutex::default(),
        })
    }

    /// Waits for a place, which is one for health checks where there is no other.
    pub(super) async fn take(self: &Arc<Self>) -> Arc<Place> {
        let (permit, is_spare) = tokio::select! {
            biased;
            permit = Arc::clone(&self.free).acquire_owned() => (permit, false),
            permit = Arc::clone(&self.spare).acquire_owned() => (permit, true),
        };
        let Ok(permit) = permit else {
            // The semaphores are never closed.
            return std::future::pending().await;
        };
        let state = Mutex::new(PlaceState { _permit: permit, is_spare, token: None });
        Arc::new(Place { places: Arc::clone(self), state })
    }

    /// Returns the number of places that are taken, without those for health checks.
    pub(super) fn taken(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }

    /// Waits until all connections have ended.
    pub(super) async fn all_free(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let _ = self.free.acquire_many(all).await;
    }

    /// Counts one more place of a token, if it may have one.
    fn count(&self, token: TokenHash) -> bool {
        let mut taken = lock(&self.taken);
        let most = (self.most / SHARES).max(1);
        let count = taken.entry(token).or_default();
        let fits = *count < most;
        *count += usize::from(fits);
        fits
    }

    fn discount(&self, token: TokenHash) {
        let mut taken = lock(&self.taken);
        if let Some(count) = taken.get_mut(&token) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&token);
            }
        }
    }
}

impl Place {
    /// True if it is for any request; a place for health checks is exchanged if there is another
    /// one.
    pub(super) fn is_for_all(&self) -> bool {
        let mut state = lock(&self.state);
        if state.is_spare
            && let Ok(permit) = Arc::clone(&self.places.free).try_acquire_owned()
        {
            (state._permit, state.is_spare) = (permit, false);
        }
        !state.is_spare
    }

    /// Counts the place for the token of a request, and for no other any more. Returns false if
    /// that token has its share already.
    pub(super) fn belongs_to(&self, token: TokenHash) -> bool {
        let mut state = lock(&self.state);
        if state.token == Some(token) {
            return true;
        }
        let fits = self.places.count(token);
        if fits && let Some(before) = state.token.replace(token) {
            self.places.discount(before);
        }
        fits
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(token) = lock(&self.state).token {
            self.places.discount(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_half_of_the_places_and_gives_them_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let places = Places::new(4);
            let (one, other) = (TokenHash::of("one"), TokenHash::of("other"));
            let (first, second, third) =
                (places.take().await, places.take().await, places.take().await);
            assert!(first.belongs_to(one) && first.belongs_to(one) && second.belongs_to(one));
            assert!(!third.belongs_to(one) && third.belongs_to(other));
            assert!(second.belongs_to(other) && third.belongs_to(one));
            drop((first, third));
            assert_eq!((places.taken(), lock(&places.taken).len()), (1, 1));
            drop(second);
            assert_eq!((places.taken(), lock(&places.taken).len()), (0, 0));
        });
    }

    #[test]
    fn a_place_for_health_checks_becomes_another_when_one_is_free() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let places = Places::new(1);
            let (first, spare) = (places.take().await, places.take().await);
            assert!(first.is_for_all() && !spare.is_for_all());
            drop(first);
            assert!(spare.is_for_all());
            assert_eq!((places.taken(), places.spare.available_permits()), (1, SPARE));
        });
    }
}
