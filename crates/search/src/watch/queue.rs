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

/// Maximum number of changes that wait for one subscriber.
const MAX_QUEUED: usize = 4096;
/// Maximum number of bytes of paths that wait for one subscriber.
const MAX_BYTES: usize = 1 << 20;
/// Number of waiting changes among which an equivalent one is searched.
const MAX_COMPARED_CHANGES: usize = 32;

/// One change, as the subscriber may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind of change.
    pub what: EventKind,
    /// The path; of a rename the new one.
    pub path: WorkspacePath,
    /// The kind of the entry, now or before.
    pub kind: ObjectKind,
}

/// Kinds of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// The entry was made, or moved to where it is visible.
    Created,
    /// Its content was changed, or another entry replaced it.
    Modified,
    /// The entry was removed, or moved to where it is hidden; a directory with everything in it.
    Deleted,
    /// The entry was renamed; a directory with everything in it.
    Renamed {
        /// The old path.
        from: WorkspacePath,
    },
    /// Changes were lost: the subscriber must list everything at and beneath the path again.
    Rescan,
}

impl EventKind {
    /// Returns the name in replies.
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

/// Reasons why a subscription ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The subscriber ended it.
    #[error("the subscription was ended")]
    Closed,
    /// The gateway stopped.
    #[error("the gateway stops")]
    Stopped,
    /// A policy came into force that denies it.
    #[error("the policy does not allow it any more")]
    Denied,
    /// A part of the tree cannot be watched any more.
    #[error("{0}")]
    Failed(String),
}

impl WatchEnd {
    /// Returns the name in records.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Stopped => "stopped",
            Self::Denied => "denied",
            Self::Failed(_) => "failed",
        }
    }
}

/// A subscription that has ended, for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedSubscription {
    /// The session that had it.
    pub session: Session,
    /// Its path.
    pub path: WorkspacePath,
    /// The index of the record with which it began.
    pub seq: u64,
    /// The reason why it ended.
    pub reason: WatchEnd,
    /// Number of changes reported, including those to list again.
    pub events: u64,
    /// Number of times that the subscriber had to list again.
    pub rescans: u64,
}

/// The changes that wait for one subscriber.
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
    delivered: u64,
    rescans: u64,
    end: Option<WatchEnd>,
    /// True after the end was reported.
    reported: bool,
}

impl Queue {
    /// Makes an empty queue of a session for changes at and beneath a path.
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

    /// Returns the canonical path that is watched.
    pub fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// Returns the session that has it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sets the record with which it began; without one, its end has no record either.
    pub fn began(&self, seq: u64) {
        let _ = self.seq.set(seq);
    }

    /// Calls `wake` from now on, often needlessly, when there may be a change to take.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second callback would replace the first, so it is ignored.
        let _ = self.wake.set(Box::new(wake));
        self.wake();
    }

    /// Adds a change. One that a waiting change implies is dropped. Without space all waiting
    /// changes are replaced by one to list again.
    pub(super) fn push(&self, event: &Change) {
        let mut state = self.lock();
        if state.end.is_some() || state.says(event) {
            return;
        }
        let weight = weight(event);
        if state.events.len() >= MAX_QUEUED || state.bytes.saturating_add(weight) > MAX_BYTES {
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
        self.wake();
    }

    /// Closes the queue for further changes. The first reason counts.
    pub fn end(&self, reason: WatchEnd) {
        self.lock().end.get_or_insert(reason);
        self.wake();
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Returns the data for the record of its end, once, if it has ended and a record began it.
    pub(super) fn report(&self) -> Option<EndedSubscription> {
        let mut state = self.lock();
        let (seq, reason) = (*self.seq.get()?, state.end.clone()?);
        if std::mem::replace(&mut state.reported, true) {
            return None;
        }
        let (session, path) = (self.session.clone(), self.path.clone());
        Some(EndedSubscription {
            session,
            path,
            seq,
            reason,
            events: state.delivered,
            rescans: state.rescans,
        })
    }

    /// Returns the next change, waiting at most `timeout` for one.
    ///
    /// # Errors
    /// The reason for the end, after the waiting changes were taken.
    pub fn next(&self, timeout: Duration) -> Result<Option<Change>, WatchEnd> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            if state.end == Some(WatchEnd::Closed) {
                return Err(WatchEnd::Closed);
            }
            if let Some(event) = state.events.pop_front() {
                state.bytes = state.bytes.saturating_sub(weight(&event));
                state.delivered += 1;
                state.rescans += u64::from(event.what == EventKind::Rescan);
                return Ok(Some(event));
            }
            if let Some(reason) = &state.end {
                return Err(reason.clone());
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

    fn wake(&self) {
        self.ready.notify_all();
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The data is plain, so it is valid after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// True if a waiting change implies this one: a subscriber reads a file after its creation or
    /// change is reported.
    fn says(&self, event: &Change) -> bool {
        match event.what {
            EventKind::Modified => self
                .events
                .iter()
                .rev()
                .take(MAX_COMPARED_CHANGES)
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
    use crate::model::Transport;

    fn queue() -> Queue {
        let agent = "agent".parse().unwrap();
        let session = Session {
            id: "s".into(),
            agent,
            user: "u".into(),
            transport: Transport::Cli,
            acp: None,
        };
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
        for n in 0..=MAX_QUEUED {
            queue.push(&event(EventKind::Created, &format!("f{n}")));
        }
        let last = event(EventKind::Created, "last");
        queue.push(&last);
        let delivered = all(&queue);
        assert_eq!(
            (delivered.len(), &delivered[0].what, &delivered[1]),
            (2, &EventKind::Rescan, &last)
        );
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
