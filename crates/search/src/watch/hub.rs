//! The watcher for all subscribers of a gateway: one inotify instance, the tree of watched
//! directories, and a thread that passes on events in them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    directories::{Directories, Notice},
    known_entries::KnownEntries,
    notices,
    queue::{Change, EndedSubscription, EventKind, Queue, WatchEnd},
    scope::Scope,
    tree::{Id, ROOT, Tree},
};
use crate::{
    model::{AgentName, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
};

/// Maximum number of watched directories.
pub(super) const MAX_WATCHED: usize = 1_000_000;
/// Number of notices that are processed at once.
const NOTICE_BATCH_SIZE: usize = 16_384;
/// Time to wait for a notice that belongs to a received one.
const MOVE_PAIR_TIMEOUT: Duration = Duration::from_millis(5);
/// Number of batches after which the lock is released.
const MAX_BATCHES_LOCKED: usize = 4;

/// The state that the thread and the subscribers share.
pub struct Hub<D> {
    state: Mutex<WatchState<D>>,
    directories: Arc<D>,
    stop: AtomicBool,
    ended: Mutex<Vec<EndedSubscription>>,
}

/// The watched directories and their subscribers.
pub(super) struct WatchState<D> {
    pub(super) directories: Arc<D>,
    pub(super) policy: Arc<Policy>,
    pub(super) tree: Tree,
    pub(super) scopes: Vec<Scope>,
    pub(super) found: KnownEntries,
    /// Number of directories that could not be read.
    pub(super) unreadable: u64,
}

/// The directories at the beginning of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number of directories that are watched.
    pub directories: u64,
    /// Number of directories that could not be read.
    pub unreadable: u64,
}

/// Reasons why a subscription is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal<E> {
    /// The policy in force denies its start.
    #[error("the policy does not allow it")]
    Denied,
    /// There are too many directories.
    #[error("there are too many directories")]
    TooLarge,
    /// The error of the system.
    #[error("{0}")]
    System(E),
}

impl<D: Directories> Hub<D> {
    /// Makes a hub without subscribers; it receives nothing before it [runs](Self::run).
    pub fn new(directories: D, policy: Arc<Policy>) -> Self {
        let directories = Arc::new(directories);
        let state = WatchState {
            directories: Arc::clone(&directories),
            policy,
            tree: Tree::default(),
            scopes: Vec::new(),
            found: KnownEntries::default(),
            unreadable: 0,
        };
        let (stop, ended) = (AtomicBool::new(false), Mutex::default());
        Self { state: Mutex::new(state), directories, stop, ended }
    }

    /// Watches until [`stop`](Self::stop) is called.
    pub fn run(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            if let Err(error) = self.directories.wait() {
                tracing::error!(%error, "cannot wait for changes");
                let reason = WatchEnd::Failed("the gateway cannot watch any more".to_owned());
                self.lock().end_all(&reason);
                return;
            }
            let mut state = self.lock();
            state.remove_unwanted();
            if !state.process_notices() {
                // The loop repeats at once, to see that nothing more waits.
                self.directories.wake();
            }
        }
    }

    /// Adds a subscriber.
    ///
    /// # Errors
    /// The reasons of [`Refusal`].
    pub fn subscribe(
        &self,
        agent: &AgentName,
        query: &WatchQuery,
        queue: Arc<Queue>,
    ) -> Result<Extent, Refusal<D::Error>> {
        let extent = self.lock().subscribe(agent, query, queue);
        // It may have left notices unread, which the thread reads.
        self.directories.wake();
        extent
    }

    /// Returns the number of all subscribers, and of those of one session.
    pub fn count(&self, session: &str) -> (usize, usize) {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        all.filter(|queue| !queue.is_over()).fold((0, 0), |(all, own), queue| {
            (all + 1, own + usize::from(queue.session.id == session))
        })
    }

    /// Returns the number of an agent's subscribers.
    pub fn of_agent(&self, agent: &AgentName) -> usize {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        all.filter(|queue| queue.session.agent == *agent && !queue.is_over()).count()
    }

    /// Applies another policy from now on.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        let mut state = self.lock();
        state.policy = policy;
        state.scopes.iter().filter(|scope| !scope.holds(&state.policy)).for_each(|scope| {
            scope.end(&WatchEnd::Denied);
        });
        state.remove_unwanted();
        state.look_again();
        self.directories.wake();
    }

    /// Ends the subscriptions of a closed session.
    pub fn end_session(&self, session: &str) {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        for queue in all.filter(|queue| queue.session.id == session) {
            queue.end(WatchEnd::Denied);
            self.over(queue);
        }
    }

    /// Records that a subscriber has left.
    pub fn over(&self, queue: &Queue) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).extend(queue.report());
        self.directories.wake();
    }

    /// Returns the subscriptions that have ended since the last call.
    pub fn ended(&self) -> Vec<EndedSubscription> {
        std::mem::take(&mut self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends all subscriptions.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.directories.wake();
        let mut state = self.lock();
        state.end_all(&WatchEnd::Stopped);
        for queue in state.scopes.iter().flat_map(|scope| &scope.queues) {
            self.over(queue);
        }
        state.scopes.clear();
    }

    fn lock(&self) -> MutexGuard<'_, WatchState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Directories> WatchState<D> {
    fn subscribe(
        &mut self,
        agent: &AgentName,
        query: &WatchQuery,
        queue: Arc<Queue>,
    ) -> Result<Extent, Refusal<D::Error>> {
        // Earlier events are not for the new subscriber.
        self.process_notices();
        if let Some(scope) = self.scopes.iter_mut().find(|scope| scope.is(agent, query)) {
            scope.queues.push(queue);
        } else {
            let mut scope = Scope::new(agent.clone(), query.clone());
            scope.queues.push(queue);
            if !scope.holds(&self.policy) {
                return Err(Refusal::Denied);
            }
            self.scopes.push(scope);
            self.unreadable = 0;
            if let Err(error) = self.look_from_root() {
                self.scopes.pop();
                self.prune();
                return Err(error);
            }
        }
        let directories = u64::try_from(self.tree.len()).unwrap_or(u64::MAX);
        Ok(Extent { directories, unreadable: self.unreadable })
    }

    /// Processes notices, at least some; true if none remain.
    fn process_notices(&mut self) -> bool {
        for _ in 0..MAX_BATCHES_LOCKED {
            let (notices, drained) = match self.notices() {
                Ok(read) => read,
                Err(error) => {
                    tracing::error!(%error, "cannot read what changed");
                    self.end_all(&WatchEnd::Failed(error.to_string()));
                    return true;
                }
            };
            if notices.is_empty() {
                // Found entries have been reported by now; the next one of that name is a different
                // entry.
                self.found = KnownEntries::default();
                return true;
            }
            self.process(notices);
            if drained {
                // Entries found before these notices were read have been reported by now.
                self.found.drained();
            }
        }
        false
    }

    /// Reads notices; true with them if none remain.
    fn notices(&self) -> Result<(Vec<Notice>, bool), D::Error> {
        let mut notices = Vec::new();
        loop {
            let before = notices.len();
            if !self.directories.read(&mut notices, NOTICE_BATCH_SIZE)? {
                return Ok((notices, false));
            }
            let more =
                notices.len() > before && notices::is_unsettled(&notices, &*self.directories);
            if !more || !self.directories.more_comes(MOVE_PAIR_TIMEOUT) {
                return Ok((notices, true));
            }
        }
    }

    /// Removes subscribers that have left, and directories that are no longer wanted.
    fn remove_unwanted(&mut self) {
        let before = self.scopes.len();
        for scope in &mut self.scopes {
            scope.queues.retain(|queue| !queue.is_over());
        }
        self.scopes.retain(|scope| !scope.queues.is_empty());
        if self.scopes.len() < before {
            self.prune();
        }
    }

    /// Removes directories that no scope wants.
    fn prune(&mut self) {
        let mut pending = vec![ROOT];
        while let Some(id) = pending.pop() {
            let wanted = self.tree.path(id).is_some_and(|path| {
                self.scopes.iter().any(|s| s.entered.has(id) || s.leads_through(&path))
            });
            if wanted { pending.extend(self.tree.children(id)) } else { self.forget(id) }
        }
    }

    /// Ends the watches of a directory and of everything beneath it.
    pub(super) fn forget(&mut self, id: Id) {
        for (id, watch) in self.tree.remove(id) {
            self.scopes.iter_mut().for_each(|scope| scope.entered.set(id, false));
            self.found.forget(id);
            if let Some(watch) = watch {
                self.directories.unwatch(watch);
            }
        }
    }

    pub(super) fn end_all(&mut self, reason: &WatchEnd) {
        self.scopes.iter().for_each(|scope| scope.end(reason));
    }

    /// Ends the recursive subscriptions, since not everything can be watched.
    pub(super) fn fail(&mut self, error: &Refusal<D::Error>) {
        tracing::warn!(%error, "subscriptions end");
        let reason = WatchEnd::Failed(error.to_string());
        self.scopes.iter().filter(|s| s.is_recursive()).for_each(|scope| scope.end(&reason));
    }
}

pub(super) fn rescan(path: &WorkspacePath) -> Change {
    Change { what: EventKind::Rescan, path: path.clone(), kind: ObjectKind::Directory }
}
