//! One watcher for all subscribers of a gate: an inotify instance, the tree of
//! the directories that somebody wants to hear of, and a thread that passes on
//! what happens in them.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{
    super::EntryKind,
    found::Found,
    notices,
    queue::{Ended, Event, EventKind, Queue, WatchEnd},
    scope::Scope,
    tree::{Id, ROOT, Tree},
};
use crate::{
    model::{AgentName, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
    workspace::{self, Notice, WatchError, Watches, Workspace},
};

/// Most directories that are watched.
pub(super) const MOST: usize = 1_000_000;
/// Notices that are dealt with at once.
const BATCH: usize = 16_384;
/// How long a notice is waited for that belongs to one that is there.
const SETTLE: Duration = Duration::from_millis(5);
/// Batches after which others get their turn.
const ROUNDS: usize = 4;

/// What the thread and the subscribers share.
pub(super) struct Shared {
    state: Mutex<State>,
    watches: Arc<Watches>,
    /// Wakes the thread.
    bell: OwnedFd,
    stop: AtomicBool,
    ended: Mutex<Vec<Ended>>,
}

/// What is watched, and for whom.
pub(super) struct State {
    pub(super) watches: Arc<Watches>,
    pub(super) workspace: Workspace,
    pub(super) policy: Arc<Policy>,
    pub(super) tree: Tree,
    pub(super) scopes: Vec<Scope>,
    pub(super) found: Found,
    /// Directories that could not be looked into.
    pub(super) unreadable: u64,
}

/// What there was to be watched at the beginning of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) directories: u64,
    pub(super) unreadable: u64,
}

impl Shared {
    pub(super) fn new(workspace: Workspace, policy: Arc<Policy>) -> Result<Self, WatchError> {
        let watches = Arc::new(Watches::new()?);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(workspace::Error::os("watch for changes"))?;
        let state = State {
            watches: Arc::clone(&watches),
            workspace,
            policy,
            tree: Tree::default(),
            scopes: Vec::new(),
            found: Found::default(),
            unreadable: 0,
        };
        let (stop, ended) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { state: Mutex::new(state), watches, bell, stop, ended })
    }

    /// Watches until it is told to stop.
    pub(super) fn run(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::from_borrowed_fd(self.watches.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for changes");
                    let why = WatchEnd::Failed("the gate cannot watch any more".to_owned());
                    self.lock().end_all(&why);
                    return;
                }
            }
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            let mut state = self.lock();
            state.sweep();
            if !state.hear() {
                // It goes on at once, if only to see that nothing more waits.
                self.ring();
            }
        }
    }

    /// Adds a subscriber.
    pub(super) fn subscribe(
        &self,
        agent: &AgentName,
        query: &WatchQuery,
        queue: Arc<Queue>,
    ) -> Result<Extent, WatchError> {
        let extent = self.lock().subscribe(agent, query, queue);
        // It may not have heard all that the kernel has to say, and the thread does.
        self.ring();
        extent
    }

    /// How many subscribers there are: all, and those of a session.
    pub(super) fn count(&self, session: &str) -> (usize, usize) {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        all.filter(|queue| !queue.is_over()).fold((0, 0), |(all, own), queue| {
            (all + 1, own + usize::from(queue.session.id == session))
        })
    }

    /// How many subscribers an agent has.
    pub(super) fn of_agent(&self, agent: &AgentName) -> usize {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        all.filter(|queue| queue.session.agent == *agent && !queue.is_over()).count()
    }

    /// Judges by another policy from now on.
    pub(super) fn set_policy(&self, policy: Arc<Policy>) {
        let mut state = self.lock();
        state.policy = policy;
        state.scopes.iter().filter(|scope| !scope.holds(&state.policy)).for_each(|scope| {
            scope.end(&WatchEnd::Denied);
        });
        state.sweep();
        state.look_again();
        self.ring();
    }

    /// A session is closed: it hears of nothing more.
    pub(super) fn end_session(&self, session: &str) {
        let state = self.lock();
        let all = state.scopes.iter().flat_map(|scope| &scope.queues);
        for queue in all.filter(|queue| queue.session.id == session) {
            queue.end(WatchEnd::Denied);
            self.over(queue);
        }
    }

    /// A subscriber left.
    pub(super) fn over(&self, queue: &Queue) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).extend(queue.report());
        self.ring();
    }

    /// The subscriptions that have ended since this was asked last.
    pub(super) fn ended(&self) -> Vec<Ended> {
        std::mem::take(&mut self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends everything.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.ring();
        let mut state = self.lock();
        state.end_all(&WatchEnd::Stopped);
        for queue in state.scopes.iter().flat_map(|scope| &scope.queues) {
            self.over(queue);
        }
        state.scopes.clear();
    }

    fn ring(&self) {
        // Full, it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn subscribe(
        &mut self,
        agent: &AgentName,
        query: &WatchQuery,
        queue: Arc<Queue>,
    ) -> Result<Extent, WatchError> {
        // What happened before is not for the new one.
        self.hear();
        if let Some(scope) = self.scopes.iter_mut().find(|scope| scope.is(agent, query)) {
            scope.queues.push(queue);
        } else {
            let mut scope = Scope::new(agent.clone(), query.clone());
            scope.queues.push(queue);
            if !scope.holds(&self.policy) {
                return Err(workspace::Error::Moved.into());
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

    /// Takes what the kernel has to say, some of it at least; true when that was all.
    fn hear(&mut self) -> bool {
        for _ in 0..ROUNDS {
            let (notices, drained) = match self.notices() {
                Ok(read) => read,
                Err(error) => {
                    tracing::error!(%error, "cannot read what changed");
                    self.end_all(&WatchEnd::Failed(error.to_string()));
                    return true;
                }
            };
            if notices.is_empty() {
                // What was found has been told by now, and the next of that name is another.
                self.found = Found::default();
                return true;
            }
            self.deal_with(notices);
            if drained {
                // What was found before these were read has been told by now.
                self.found.drained();
            }
        }
        false
    }

    /// What the kernel has to say, and whether that was all.
    fn notices(&self) -> Result<(Vec<Notice>, bool), workspace::Error> {
        let mut notices = Vec::new();
        loop {
            let before = notices.len();
            if !self.watches.read(&mut notices, BATCH)? {
                return Ok((notices, false));
            }
            let more = notices.len() > before && notices::is_unsettled(&notices);
            if !more || !self.more_comes() {
                return Ok((notices, true));
            }
        }
    }

    /// Waits a moment for another notice.
    fn more_comes(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.watches.as_fd(), PollFlags::IN)];
        let wait = Timespec::try_from(SETTLE).unwrap_or_default();
        poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
    }

    /// Lets go of subscribers that left, and of what nobody wants any more.
    fn sweep(&mut self) {
        let before = self.scopes.len();
        for scope in &mut self.scopes {
            scope.queues.retain(|queue| !queue.is_over());
        }
        self.scopes.retain(|scope| !scope.queues.is_empty());
        if self.scopes.len() < before {
            self.prune();
        }
    }

    /// Lets go of directories that nobody wants.
    fn prune(&mut self) {
        let mut pending = vec![ROOT];
        while let Some(id) = pending.pop() {
            let wanted = self.tree.path(id).is_some_and(|path| {
                self.scopes.iter().any(|s| s.entered.has(id) || s.leads_through(&path))
            });
            if wanted { pending.extend(self.tree.children(id)) } else { self.forget(id) }
        }
    }

    /// Watches a directory and all beneath it no more.
    pub(super) fn forget(&mut self, id: Id) {
        for (id, watch) in self.tree.remove(id) {
            self.scopes.iter_mut().for_each(|scope| scope.entered.set(id, false));
            self.found.forget(id);
            if let Some(watch) = watch {
                self.watches.remove(watch);
            }
        }
    }

    pub(super) fn end_all(&mut self, why: &WatchEnd) {
        self.scopes.iter().for_each(|scope| scope.end(why));
    }

    /// Not everything can be watched any more.
    pub(super) fn fail(&mut self, error: &WatchError) {
        tracing::warn!(%error, "subscriptions end");
        let why = WatchEnd::Failed(error.to_string());
        self.scopes.iter().filter(|s| s.is_recursive()).for_each(|scope| scope.end(&why));
    }
}

pub(super) fn rescan(path: &WorkspacePath) -> Event {
    Event { what: EventKind::Rescan, path: path.clone(), kind: EntryKind::Directory }
}

/// What a kind is to a door, as a list has it.
pub(super) fn entry_kind(kind: ObjectKind) -> EntryKind {
    match kind {
        ObjectKind::File => EntryKind::File,
        ObjectKind::Directory => EntryKind::Directory,
        ObjectKind::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}
