//! Scheduler of requests: of each session one at a time.
//!
//! The front has one thread, and a client that sends many requests at once, each
//! over a connection of its own, would delay the next request of every other client.
//! So a request holds its session's slot until it is sent to the worker. The same bounds
//! the messages that wait for a worker that does not read.
//!
//! While other sessions send requests, too, that is not enough: the session with
//! most requests would occupy most of the processors. There a request holds the slot
//! until its reply, and, if more of its session wait, some time longer ([`PAUSE_FACTOR`]). A
//! request with a slow reply, such as one that waits for an approval, holds it no
//! longer than [`MAX_HOLD`].

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::lock;

/// The number of sessions above which those without waiting requests are removed.
const MAX_IDLE_SESSIONS: usize = 64;
/// Time after its last request for which a session counts as active.
const ACTIVE_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum time for which an unanswered request delays the next one.
const MAX_HOLD: Duration = Duration::from_millis(20);
/// Factor from the duration of a request to the pause of its session after it.
const PAUSE_FACTOR: u32 = 3;
/// Maximum of that pause.
const MAX_PAUSE: Duration = Duration::from_millis(5);

/// The sessions of a front with the latest requests: the latest one, and the latest
/// of all others.
#[derive(Default)]
pub(super) struct ActiveSessions {
    keys: RandomState,
    latest: Mutex<[Option<(u64, Instant)>; 2]>,
}

/// The slots of one token's sessions with one workspace.
pub(super) struct SessionScheduler {
    active_sessions: Arc<ActiveSessions>,
    sessions: Mutex<HashMap<Option<String>, Weak<SessionQueue>>>,
}

/// The waiting requests of one session.
struct SessionQueue {
    slot: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A slot. Dropping it notes that the reply is complete, or its client gone.
pub(super) struct SessionSlot {
    held: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    queue: Arc<SessionQueue>,
    begun: Instant,
    /// Set if other sessions are active.
    has_active_sessions: bool,
}

impl ActiveSessions {
    /// Notes a request of a session; returns true if other sessions are active.
    fn note(&self, session: u64, now: Instant) -> bool {
        let mut latest = lock(&self.latest);
        let [last, other] = &mut *latest;
        match last {
            Some((known, at)) if *known == session => *at = now,
            _ => *other = last.replace((session, now)),
        }
        other.is_some_and(|(_, at)| now.saturating_duration_since(at) < ACTIVE_TIMEOUT)
    }
}

impl SessionScheduler {
    pub(super) fn new(active_sessions: &Arc<ActiveSessions>) -> Self {
        Self { active_sessions: Arc::clone(active_sessions), sessions: Mutex::default() }
    }

    /// Waits for a slot of `session`.
    pub(super) async fn enter(&self, session: Option<&str>) -> SessionSlot {
        // Sessions of other tokens or workspaces may have the same id.
        let key = self.active_sessions.keys.hash_one((std::ptr::from_ref(self).addr(), session));
        self.active_sessions.note(key, Instant::now());
        let queue = self.of(session);
        let permit = {
            let _waiting = Waiting::new(&queue.waiting);
            // Never closed.
            Arc::clone(&queue.slot).acquire_owned().await.ok()
        };
        let begun = Instant::now();
        let has_active_sessions = self.active_sessions.note(key, begun);
        SessionSlot { held: Arc::new(Mutex::new(permit)), queue, begun, has_active_sessions }
    }

    fn of(&self, session: Option<&str>) -> Arc<SessionQueue> {
        let mut sessions = lock(&self.sessions);
        let session = session.map(str::to_owned);
        if let Some(queue) = sessions.get(&session).and_then(Weak::upgrade) {
            return queue;
        }
        if sessions.len() >= MAX_IDLE_SESSIONS {
            sessions.retain(|_, queue| queue.strong_count() > 0);
        }
        let slot = Arc::new(Semaphore::new(1));
        let queue = Arc::new(SessionQueue { slot, waiting: AtomicUsize::new(0) });
        sessions.insert(session, Arc::downgrade(&queue));
        queue
    }
}

impl SessionSlot {
    /// Notes that the request is sent to the worker.
    pub(super) fn sent(&self) {
        match self.has_active_sessions {
            true => self.end_in(MAX_HOLD),
            false => self.end(),
        }
    }

    fn end_in(&self, time: Duration) {
        // Tasks are also dropped where there is no runtime any more.
        let Ok(runtime) = Handle::try_current() else { return self.end() };
        let held = Arc::clone(&self.held);
        runtime.spawn(async move {
            tokio::time::sleep(time).await;
            lock(&held).take();
        });
    }

    /// Frees the slot for the next request.
    fn end(&self) {
        lock(&self.held).take();
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let more = self.queue.waiting.load(Ordering::Relaxed) > 0;
        match self.has_active_sessions && more {
            true => self.end_in((self.begun.elapsed() * PAUSE_FACTOR).min(MAX_PAUSE)),
            false => self.end(),
        }
    }
}

/// Counts one waiting request while it exists.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    async fn is_waiting<T>(next: &mut (impl Future<Output = T> + Unpin)) -> bool {
        let mut next = std::pin::Pin::new(next);
        std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_pending())).await
    }

    fn run(test: impl Future<Output = ()>) {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        // The paused clock advances only where all tasks wait for it.
        builder.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn a_session_has_one_turn_and_others_have_theirs() {
        run(async {
            let scheduler = SessionScheduler::new(&Arc::default());
            let first = scheduler.enter(Some("a")).await;
            let _other = scheduler.enter(Some("b")).await;
            let _none = scheduler.enter(None).await;
            let mut next = Box::pin(scheduler.enter(Some("a")));
            assert!(is_waiting(&mut next).await);
            drop(first);
            drop(next.await);
            for n in 0..1000 {
                drop(scheduler.enter(Some(&n.to_string())).await);
            }
            assert!(scheduler.sessions.lock().unwrap().len() <= MAX_IDLE_SESSIONS);
        });
    }

    #[test]
    fn a_session_alone_may_have_many_requests_with_the_worker() {
        run(async {
            let scheduler = SessionScheduler::new(&Arc::default());
            for _ in 0..3 {
                let slot = scheduler.enter(Some("a")).await;
                slot.sent();
                let mut next = Box::pin(scheduler.enter(Some("a")));
                assert!(!is_waiting(&mut next).await);
            }
        });
    }

    #[test]
    fn a_session_with_active_sessions_has_one_and_what_takes_long_holds_up_nobody() {
        run(async {
            let active_sessions = Arc::default();
            let (scheduler, others) =
                (SessionScheduler::new(&active_sessions), SessionScheduler::new(&active_sessions));
            drop(others.enter(Some("a")).await);
            let slot = scheduler.enter(Some("a")).await;
            slot.sent();
            let mut next = Box::pin(scheduler.enter(Some("a")));
            assert!(is_waiting(&mut next).await);
            // The request has its reply.
            drop(slot);
            let slot = next.await;
            slot.sent();
            // The request has no reply.
            let begun = Instant::now();
            drop(scheduler.enter(Some("a")).await);
            assert_eq!(begun.elapsed(), MAX_HOLD);
        });
    }

    #[test]
    fn a_session_that_floods_rests_where_it_has_active_sessions() {
        run(async {
            let active_sessions = Arc::default();
            let (scheduler, others) =
                (SessionScheduler::new(&active_sessions), SessionScheduler::new(&active_sessions));
            for has_active_sessions in [false, true] {
                let slot = scheduler.enter(Some("a")).await;
                let mut next = Box::pin(scheduler.enter(Some("a")));
                assert!(is_waiting(&mut next).await);
                tokio::time::sleep(MAX_PAUSE).await;
                let answered = Instant::now();
                drop(slot);
                drop(next.await);
                let rest = if has_active_sessions { MAX_PAUSE } else { Duration::ZERO };
                assert_eq!(answered.elapsed(), rest);
                drop(others.enter(Some("a")).await);
            }
            // A session without waiting requests does not pause.
            drop(scheduler.enter(Some("a")).await);
            let mut next = Box::pin(scheduler.enter(Some("a")));
            assert!(!is_waiting(&mut next).await);
        });
    }
}
