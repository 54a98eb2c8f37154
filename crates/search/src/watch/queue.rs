//! A bounded queue of changes for one subscriber.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    model::{Session, WorkspacePath},
    policy::ObjectKind,
};

/// Most changes that wait for one subscriber.
const MOST: usize = 4096;
/// Most bytes of paths that wait for one subscriber.
const MOST_BYTES: usize = 1 << 20;
/// How far back a change is looked for that says the same already.
const LOOK_BACK: usize = 32;

/// One change, as the subscriber may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub what: EventKind,
    /// Where; of a rename the new path.
    pub path: WorkspacePath,
    /// What is there, or was.
    pub kind: ObjectKind,
}

/// What happened to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// It was made, or came where it can be seen.
    Created,
    /// Its content was changed, or another took its place.
    Modified,
    /// It was removed, or went where it cannot be seen; a directory with all
    /// in it.
    Deleted,
    /// It got another name; a directory with all in it.
    Renamed {
        /// The old path.
        from: WorkspacePath,
    },
    /// More changed there than could be told: whoever keeps track must look
    /// again at everything at and beneath the path.
    Rescan,
}

impl EventKind {
    /// The word in replies.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Created => "create",
            Self::Modified => "modify",
            Self::Deleted => "delete",
            Self::Renamed { .. } => "rename",
            Self::Rescan => "rescan",
        }
    }
}

/// Why nothing more will come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The subscriber ended it.
    #[error("the subscription was ended")]
    Closed,
    /// The gate serves no more.
    #[error("the gate stops")]
    Stopped,
    /// A policy came into force that denies it.
    #[error("the policy does not allow it any more")]
    Denied,
    /// Not everything can be watched any more.
    #[error("{0}")]
    Failed(String),
}

impl WatchEnd {
    /// The word in records.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Stopped => "stopped",
            Self::Denied => "denied",
            Self::Failed(_) => "failed",
        }
    }
}

/// A subscription that is over, for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Whose it was.
    pub session: Session,
    /// What it was about.
    pub path: WorkspacePath,
    /// The record with which it began.
    pub seq: u64,
    /// Why it ended.
    pub why: WatchEnd,
    /// Changes told, those among them that said to look again.
    pub events: u64,
    /// How often the subscriber had to look again.
    pub rescans: u64,
}

/// What waits for one subscriber.
pub struct Queue {
    pub(super) session: Session,
    path: WorkspacePath,
    seq: OnceLock<u64>,
    state: Mutex<QueueState>,
    ready: Condvar,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct QueueState {
    events: VecDeque<Change>,
    bytes: usize,
    told: u64,
    rescans: u64,
    end: Option<WatchEnd>,
    /// The end has been told.
    reported: bool,
}

impl Queue {
    /// An empty queue of a session for what happens at and beneath a path.
    pub fn new(session: Session, path: WorkspacePath) -> Self {
        Self {
            session,
            path,
            seq: OnceLock::new(),
            state: Mutex::default(),
            ready: Condvar::new(),
            wake: OnceLock::new(),
        }
    }

    /// What is watched; its canonical path.
    pub fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// Whose it is.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Says which record began it; only then its end has one.
    pub fn began(&self, seq: u64) {
        let _ = self.seq.set(seq);
    }

    /// From now on `wake` is called, often needlessly, when there may be something to take.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second one would take it from the first.
        let _ = self.wake.set(Box::new(wake));
        self.ring();
    }

    /// Puts a change in. What says no more than what waits is left out; where
    /// there is no room, all that waits becomes the word to look again.
    pub(super) fn push(&self, event: &Change) {
        let mut state = self.lock();
        if state.end.is_some() || state.says(event) {
            return;
        }
        let weight = weight(event);
        if state.events.len() >= MOST || state.bytes.saturating_add(weight) > MOST_BYTES {
            state.events.clear();
            let (what, path) = (EventKind::Rescan, self.path.clone());
            let rescan = Change { what, path, kind: ObjectKind::Directory };
            state.bytes = self::weight(&rescan);
            state.events.push_back(rescan);
        } else {
            state.bytes = state.bytes.saturating_add(weight);
            state.events.push_back(event.clone());
        }
        drop(state);
        self.ring();
    }

    /// Lets nothing more in. The first reason counts.
    pub fn end(&self, why: WatchEnd) {
        self.lock().end.get_or_insert(why);
        self.ring();
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().end.is_some()
    }

    /// What its record says, once, if it is over and ever began.
    pub(super) fn report(&self) -> Option<Ended> {
        let mut state = self.lock();
        let (seq, why) = (*self.seq.get()?, state.end.clone()?);
        if std::mem::replace(&mut state.reported, true) {
            return None;
        }
        let (session, path) = (self.session.clone(), self.path.clone());
        Some(Ended { session, path, seq, why, events: state.told, rescans: state.rescans })
    }

    /// The next change, waiting for one no longer than `timeout`.
    ///
    /// # Errors
    /// When nothing more will come; what waited was given before.
    pub fn next(&self, timeout: Duration) -> Result<Option<Change>, WatchEnd> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            if state.end == Some(WatchEnd::Closed) {
                return Err(WatchEnd::Closed);
            }
            if let Some(event) = state.events.pop_front() {
                state.bytes = state.bytes.saturating_sub(weight(&event));
                state.told += 1;
                state.rescans += u64::from(event.what == EventKind::Rescan);
                return Ok(Some(event));
            }
            if let Some(why) = &state.end {
                return Err(why.clone());
            }
            state = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => {
                    self.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn ring(&self) {
        self.ready.notify_all();
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Plain data; a panic elsewhere left it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Whether what waits says as much. Whoever hears of a new file, or that
    /// one was changed, looks at it afterwards.
    fn says(&self, event: &Change) -> bool {
        match event.what {
            EventKind::Modified => self
                .events
                .iter()
                .rev()
                .take(LOOK_BACK)
                .find(|waiting| waiting.path == event.path)
                .is_some_and(|waiting| {
                    matches!(waiting.what, EventKind::Created | EventKind::Modified)
                }),
            EventKind::Rescan => self.events.back() == Some(event),
            _ => false,
        }
    }
}

fn weight(event: &Change) -> usize {
    let from = match &event.what {
        EventKind::Renamed { from } => from.as_str().len(),
        _ => 0,
    };
    event.path.as_str().len() + from
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Door;

    fn queue() -> Queue {
        let agent = "agent".parse().unwrap();
        let session = Session { id: "s".into(), agent, user: "u".into(), door: Door::Cli };
        Queue::new(session, WorkspacePath::root())
    }

    fn event(what: EventKind, path: &str) -> Change {
        Change { what, path: WorkspacePath::parse(path).unwrap(), kind: ObjectKind::File }
    }

    fn all(queue: &Queue) -> Vec<Change> {
        std::iter::from_fn(|| queue.next(Duration::ZERO).unwrap()).collect()
    }

    #[test]
    fn a_change_that_waits_is_not_told_twice_and_none_is_lost() {
        let queue = queue();
        let (made, changed) = (event(EventKind::Created, "a"), event(EventKind::Modified, "a"));
        for event in [&made, &changed, &event(EventKind::Modified, "b"), &changed] {
            queue.push(event);
        }
        assert_eq!(all(&queue), [made.clone(), event(EventKind::Modified, "b")]);
        queue.push(&changed);
        queue.push(&event(EventKind::Deleted, "a"));
        queue.push(&changed);
        assert_eq!(all(&queue), [changed.clone(), event(EventKind::Deleted, "a"), changed]);
    }

    #[test]
    fn a_subscriber_that_does_not_read_is_told_to_look_again() {
        let queue = queue();
        for n in 0..=MOST {
            queue.push(&event(EventKind::Created, &format!("f{n}")));
        }
        let last = event(EventKind::Created, "last");
        queue.push(&last);
        let told = all(&queue);
        assert_eq!((told.len(), &told[0].what, &told[1]), (2, &EventKind::Rescan, &last));
        for n in 0..400 {
            queue.push(&event(EventKind::Created, &format!("{n}/{}", "x/".repeat(2_000))));
        }
        assert_eq!(all(&queue)[0].what, EventKind::Rescan);
    }

    #[test]
    fn what_waited_comes_before_the_end_and_the_end_is_reported_once() {
        let queue = queue();
        queue.push(&event(EventKind::Created, "a"));
        queue.end(WatchEnd::Denied);
        queue.end(WatchEnd::Stopped);
        queue.push(&event(EventKind::Created, "b"));
        assert!(queue.next(Duration::ZERO).unwrap().is_some());
        assert_eq!(queue.next(Duration::MAX), Err(WatchEnd::Denied));
        assert_eq!(queue.report(), None);
        queue.seq.set(7).unwrap();
        assert_eq!(queue.report().map(|ended| (ended.seq, ended.events)), Some((7, 1)));
        assert_eq!(queue.report(), None);
    }
}
