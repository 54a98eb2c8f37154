//! Admission of connections: how many there may be at once, and how many of them with one token.
//!
//! A connection is admitted before it is accepted, when its token is not known; its first request
//! with a token counts it for that token. A few more are admitted for `/healthz` and `/readyz`
//! alone, so that a service with all its connections is not taken for a dead one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TokenHash;
use crate::lock;

/// One token has at most one of this number of equal parts of the connections.
const TOKEN_SHARES: usize = 2;
/// The maximum of connections for health checks.
const MAX_HEALTH_CHECKS: usize = 8;

/// The connections that may be open.
#[derive(Debug)]
pub(super) struct Admission {
    most: usize,
    free: Arc<Semaphore>,
    free_for_health: Arc<Semaphore>,
    /// The number of connections of each token.
    by_token: Mutex<HashMap<TokenHash, usize>>,
}

/// The admission of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct AdmissionGuard {
    admission: Arc<Admission>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    _permit: OwnedSemaphorePermit,
    is_for_health: bool,
    token: Option<TokenHash>,
}

impl Admission {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            free: Arc::new(Semaphore::new(most)),
            free_for_health: Arc::new(Semaphore::new(MAX_HEALTH_CHECKS)),
            by_token: Mutex::default(),
        })
    }

    /// Waits until a connection may be accepted; if it may not for any request, then for health
    /// checks.
    pub(super) async fn admit(self: &Arc<Self>) -> Arc<AdmissionGuard> {
        let (permit, is_for_health) = tokio::select! {
            biased;
            permit = Arc::clone(&self.free).acquire_owned() => (permit, false),
            permit = Arc::clone(&self.free_for_health).acquire_owned() => (permit, true),
        };
        let Ok(permit) = permit else {
            // The semaphores are never closed.
            return std::future::pending().await;
        };
        let state = Mutex::new(State { _permit: permit, is_for_health, token: None });
        Arc::new(AdmissionGuard { admission: Arc::clone(self), state })
    }

    /// Returns the number of admitted connections, without those for health checks.
    pub(super) fn admitted(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }

    /// Waits until all connections have ended.
    pub(super) async fn all_ended(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let _ = self.free.acquire_many(all).await;
    }

    /// Counts one more connection of a token, if it may have one.
    fn count(&self, token: TokenHash) -> bool {
        let mut by_token = lock(&self.by_token);
        let most = (self.most / TOKEN_SHARES).max(1);
        let count = by_token.entry(token).or_default();
        let fits = *count < most;
        *count += usize::from(fits);
        fits
    }

    fn discount(&self, token: TokenHash) {
        let mut by_token = lock(&self.by_token);
        if let Some(count) = by_token.get_mut(&token) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_token.remove(&token);
            }
        }
    }
}

impl AdmissionGuard {
    /// True if the connection is for any request. One for health checks becomes one for any request
    /// if another has ended.
    pub(super) fn is_for_all(&self) -> bool {
        let mut state = lock(&self.state);
        if state.is_for_health
            && let Ok(permit) = Arc::clone(&self.admission.free).try_acquire_owned()
        {
            (state._permit, state.is_for_health) = (permit, false);
        }
        !state.is_for_health
    }

    /// Counts the connection for the token of a request, and for no other any more. Returns false
    /// if that token has as many connections as it may.
    pub(super) fn count_for(&self, token: TokenHash) -> bool {
        let mut state = lock(&self.state);
        if state.token == Some(token) {
            return true;
        }
        let fits = self.admission.count(token);
        if fits && let Some(before) = state.token.replace(token) {
            self.admission.discount(before);
        }
        fits
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        if let Some(token) = lock(&self.state).token {
            self.admission.discount(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_half_of_the_connections_until_they_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let admission = Admission::new(4);
            let (one, other) = (TokenHash::of("one"), TokenHash::of("other"));
            let (first, second, third) =
                (admission.admit().await, admission.admit().await, admission.admit().await);
            assert!(first.count_for(one) && first.count_for(one) && second.count_for(one));
            assert!(!third.count_for(one) && third.count_for(other));
            assert!(second.count_for(other) && third.count_for(one));
            drop((first, third));
            assert_eq!((admission.admitted(), lock(&admission.by_token).len()), (1, 1));
            drop(second);
            assert_eq!((admission.admitted(), lock(&admission.by_token).len()), (0, 0));
        });
    }

    #[test]
    fn a_connection_for_health_checks_is_for_all_once_another_has_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let admission = Admission::new(1);
            let (first, extra) = (admission.admit().await, admission.admit().await);
            assert!(first.is_for_all() && !extra.is_for_all());
            drop(first);
            assert!(extra.is_for_all());
            assert_eq!(
                (admission.admitted(), admission.free_for_health.available_permits()),
                (1, MAX_HEALTH_CHECKS)
            );
        });
    }
}
