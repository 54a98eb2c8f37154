//! Whose request is read next: of each session one at a time.
//!
//! The front has one thread, and a client that puts many requests at once, each
//! over a connection of its own, would have all of them in the way of everybody
//! else's next one. So a request holds its session's turn until it is on its way
//! to the worker.
//!
//! Where other sessions ask for something, too, that is not enough: whoever asks
//! most would have the processors most, and who comes seldom would find them
//! taken at every step. There a request holds the turn until it is answered, and
//! where more of its session wait, some time longer ([`REST`]). What takes long to
//! be answered, such as a question to a person, holds it no longer than
//! [`LONGEST`].

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
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::lock;

/// So many sessions are remembered before those that nobody waits for are
/// forgotten.
const MOST: usize = 64;
/// A session is company for so long after it last asked for something.
const NEAR: Duration = Duration::from_millis(50);
/// How long a request that is not answered keeps the next one waiting.
const LONGEST: Duration = Duration::from_millis(20);
/// So many times as long as a request took, its session rests then.
const REST: u32 = 3;
/// And no longer than this.
const LONGEST_REST: Duration = Duration::from_millis(5);

/// The sessions of a front that asked for something last: the latest one, and
/// the latest of all others.
#[derive(Default)]
pub(super) struct Company {
    keys: RandomState,
    latest: Mutex<[Option<(u64, Instant)>; 2]>,
}

/// The turns of one token's sessions with one workspace.
pub(super) struct Turns {
    company: Arc<Company>,
    sessions: Mutex<HashMap<Option<String>, Weak<WaitingLine>>>,
}

/// Those of one session that wait.
struct WaitingLine {
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A turn, until it is [over](Self::over).
#[derive(Clone)]
pub(super) struct Turn {
    held: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    line: Arc<WaitingLine>,
    begun: Instant,
    /// Others ask for something, too.
    has_company: bool,
}

impl Company {
    /// Takes note that a session asks for something; whether others do.
    fn ask(&self, session: u64, now: Instant) -> bool {
        let mut latest = lock(&self.latest);
        let [last, other] = &mut *latest;
        match last {
            Some((known, at)) if *known == session => *at = now,
            _ => *other = last.replace((session, now)),
        }
        other.is_some_and(|(_, at)| now.saturating_duration_since(at) < NEAR)
    }
}

impl Turns {
    pub(super) fn new(company: &Arc<Company>) -> Self {
        Self { company: Arc::clone(company), sessions: Mutex::default() }
    }

    /// Waits for a turn in `session`.
    pub(super) async fn enter(&self, session: Option<&str>) -> Turn {
        // The same session of another token, or at another workspace, is another.
        let key = self.company.keys.hash_one((std::ptr::from_ref(self).addr(), session));
        self.company.ask(key, Instant::now());
        let line = self.of(session);
        let turn = {
            let _waiting = Waiting::new(&line.waiting);
            // Never closed.
            Arc::clone(&line.turn).acquire_owned().await.ok()
        };
        let begun = Instant::now();
        let has_company = self.company.ask(key, begun);
        Turn { held: Arc::new(Mutex::new(turn)), line, begun, has_company }
    }

    fn of(&self, session: Option<&str>) -> Arc<WaitingLine> {
        let mut sessions = lock(&self.sessions);
        let session = session.map(str::to_owned);
        if let Some(line) = sessions.get(&session).and_then(Weak::upgrade) {
            return line;
        }
        if sessions.len() >= MOST {
            sessions.retain(|_, line| line.strong_count() > 0);
        }
        let turn = Arc::new(Semaphore::new(1));
        let line = Arc::new(WaitingLine { turn, waiting: AtomicUsize::new(0) });
        sessions.insert(session, Arc::downgrade(&line));
        line
    }
}

impl Turn {
    /// The request is on its way to the worker.
    pub(super) fn sent(&self) {
        match self.has_company {
            true => self.end_in(LONGEST),
            false => self.end(),
        }
    }

    /// It is answered, or nobody waits for that any more.
    pub(super) fn over(&self) {
        let more = self.line.waiting.load(Ordering::Relaxed) > 0;
        match self.has_company && more {
            true => self.end_in((self.begun.elapsed() * REST).min(LONGEST_REST)),
            false => self.end(),
        }
    }

    fn end_in(&self, time: Duration) {
        let turn = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            turn.end();
        });
    }

    /// Lets the next one go on.
    fn end(&self) {
        lock(&self.held).take();
    }
}

/// Counts one that waits.
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
        // The clock goes on only where all wait for it.
        builder.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn a_session_has_one_turn_and_others_have_theirs() {
        run(async {
            let turns = Turns::new(&Arc::default());
            let first = turns.enter(Some("a")).await;
            let kept = first.clone();
            let _other = turns.enter(Some("b")).await;
            let _none = turns.enter(None).await;
            let mut next = Box::pin(turns.enter(Some("a")));
            assert!(is_waiting(&mut next).await);
            kept.over();
            next.await.over();
            drop(first);
            for n in 0..1000 {
                turns.enter(Some(&n.to_string())).await.over();
            }
            assert!(turns.sessions.lock().unwrap().len() <= MOST);
        });
    }

    #[test]
    fn a_session_alone_may_have_many_requests_with_the_worker() {
        run(async {
            let turns = Turns::new(&Arc::default());
            for _ in 0..3 {
                let turn = turns.enter(Some("a")).await;
                turn.sent();
                let mut next = Box::pin(turns.enter(Some("a")));
                assert!(!is_waiting(&mut next).await);
            }
        });
    }

    #[test]
    fn a_session_with_company_has_one_and_what_takes_long_holds_up_nobody() {
        run(async {
            let company = Arc::default();
            let (turns, others) = (Turns::new(&company), Turns::new(&company));
            others.enter(Some("a")).await.over();
            let turn = turns.enter(Some("a")).await;
            turn.sent();
            let mut next = Box::pin(turns.enter(Some("a")));
            assert!(is_waiting(&mut next).await);
            // It is answered.
            turn.over();
            let turn = next.await;
            turn.sent();
            // It is not.
            let begun = Instant::now();
            turns.enter(Some("a")).await.over();
            assert_eq!(begun.elapsed(), LONGEST);
        });
    }

    #[test]
    fn a_session_that_floods_rests_where_it_has_company() {
        run(async {
            let company = Arc::default();
            let (turns, others) = (Turns::new(&company), Turns::new(&company));
            for has_company in [false, true] {
                let turn = turns.enter(Some("a")).await;
                let mut next = Box::pin(turns.enter(Some("a")));
                assert!(is_waiting(&mut next).await);
                tokio::time::sleep(LONGEST_REST).await;
                let answered = Instant::now();
                turn.over();
                next.await.over();
                let rest = if has_company { LONGEST_REST } else { Duration::ZERO };
                assert_eq!(answered.elapsed(), rest);
                others.enter(Some("a")).await.over();
            }
            // Whom nobody of its own waits behind does not rest.
            turns.enter(Some("a")).await.over();
            let mut next = Box::pin(turns.enter(Some("a")));
            assert!(!is_waiting(&mut next).await);
        });
    }
}
