//! One watcher for all subscribers of a gate: an inotify instance, the tree of
//! the directories that somebody wants to hear of, and a thread that passes on
//! what happens in them.
//!
//! A directory is always watched first and looked into afterwards, so what is
//! made in between is seen twice rather than not at all.

use std::{
    collections::HashSet,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::OFlags,
};

use super::{
    super::EntryKind,
    notices,
    scope::Scope,
    subscription::{Ended, Event, EventKind, Queue, WatchEnd},
    tree::{Id, Places, ROOT, Tree},
};
use crate::{
    model::{AgentName, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
    workspace::{self, Notice, Stat, TempName, WatchError, Watches, Workspace, stream_names},
};

/// Most directories that are watched.
const MOST: usize = 1_000_000;
/// Notices that are dealt with at once.
const BATCH: usize = 16_384;
/// How long a notice is waited for that belongs to one that is there.
const SETTLE: Duration = Duration::from_millis(5);

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
    /// Entries that were found by looking, and of which the kernel may be about
    /// to tell: found now, and at the last look.
    pub(super) found: HashSet<(Id, String)>,
    pub(super) found_before: HashSet<(Id, String)>,
    /// Directories that could not be looked into.
    unreadable: u64,
}

/// How things were before a directory got another name.
pub(super) struct Before {
    /// The new and the old path.
    pub(super) new: WorkspacePath,
    pub(super) old: WorkspacePath,
    /// What each scope entered.
    pub(super) entered: Vec<Places>,
    /// Which scopes were told of the renaming.
    pub(super) told: Vec<bool>,
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
            found: HashSet::new(),
            found_before: HashSet::new(),
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
            state.hear();
        }
    }

    /// Adds a subscriber.
    pub(super) fn subscribe(
        &self,
        agent: &AgentName,
        query: &WatchQuery,
        queue: Arc<Queue>,
    ) -> Result<Extent, WatchError> {
        self.lock().subscribe(agent, query, queue)
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

    /// Takes what the kernel has to say, some of it at least.
    fn hear(&mut self) {
        let mut notices: Vec<Notice> = Vec::new();
        let drained = loop {
            let before = notices.len();
            match self.watches.read(&mut notices, BATCH) {
                Ok(false) => break false,
                Ok(true) => {
                    let more = notices.len() > before && notices::is_unsettled(&notices);
                    if !more || !self.more_comes() {
                        break true;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read what changed");
                    return self.end_all(&WatchEnd::Failed(error.to_string()));
                }
            }
        };
        if !notices.is_empty() {
            self.deal_with(notices);
        }
        if drained {
            // What was found before these were read has been told by now.
            self.found_before = std::mem::take(&mut self.found);
        }
    }

    /// Waits a moment for another notice.
    fn more_comes(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.watches.as_fd(), PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(SETTLE.subsec_nanos()) };
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
            for scope in &mut self.scopes {
                scope.entered.set(id, false);
            }
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

    /// Looks at everything again, because something may have been missed, and
    /// lets everybody do the same.
    pub(super) fn look_again(&mut self) {
        if let Err(error) = self.look_from_root() {
            self.fail(&error);
        }
        for scope in &self.scopes {
            scope.tell(&rescan(scope.start()));
        }
    }

    fn look_from_root(&mut self) -> Result<(), WatchError> {
        for scope in &mut self.scopes {
            let enters = scope.start().is_root();
            scope.entered.set(ROOT, enters);
        }
        self.explore(ROOT, None, false).map(drop)
    }

    /// Watches the directory `id` and, as far as somebody wants it, all beneath
    /// it. With `announce` it tells of every entry; `before`, of a renaming,
    /// says what need not be told. Gives the scopes for which something can be
    /// seen no more.
    pub(super) fn explore(
        &mut self,
        id: Id,
        before: Option<&Before>,
        announce: bool,
    ) -> Result<Vec<bool>, WatchError> {
        let mut lost = vec![false; self.scopes.len()];
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let Some(path) = self.tree.path(id) else { continue };
            let Some(directory) = self.open(id, &path)? else { continue };
            let entered = self.scopes.iter().any(|scope| scope.entered.has(id));
            let interesting = announce && entered;
            let (mut directories, mut others) = (Vec::new(), Vec::new());
            if entered {
                let read = stream_names(&directory, |name, kind| {
                    match kind {
                        Some(ObjectKind::Directory) => directories.push(name.to_owned()),
                        None => others.push((name.to_owned(), None)),
                        kind if interesting => others.push((name.to_owned(), kind)),
                        _ => {}
                    }
                    ControlFlow::Continue(())
                });
                if read.is_err() {
                    self.unreadable += 1;
                }
            } else {
                // Only what leads to where a scope begins is of interest.
                for name in self.ways(&path) {
                    let Ok(path) = path.join(&name) else { continue };
                    match self.kind(&path) {
                        Some(ObjectKind::Directory) => directories.push(name),
                        Some(kind) => others.push((name, Some(kind))),
                        None => {}
                    }
                }
            }
            drop(directory);
            others.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            for (name, kind) in others {
                let Ok(path) = path.join(&name) else { continue };
                let Some(kind) = kind.or_else(|| self.kind(&path)) else { continue };
                if kind == ObjectKind::Directory {
                    directories.push(name);
                } else if announce {
                    self.announce_found(id, name, &path, kind, before, &mut lost);
                }
            }
            directories.sort_unstable();
            for child in self.tree.children(id) {
                let name =
                    self.tree.path(child).and_then(|path| Some(path.file_name()?.to_owned()));
                if name.is_none_or(|name| directories.binary_search(&name).is_err()) {
                    self.forget(child);
                }
            }
            for name in directories {
                let Ok(path) = path.join(&name) else { continue };
                if announce {
                    let kind = ObjectKind::Directory;
                    self.announce_found(id, name.clone(), &path, kind, before, &mut lost);
                }
                pending.extend(self.admit(id, &name, &path)?);
            }
        }
        Ok(lost)
    }

    /// Opens a directory and watches it; `None` when there is none any more, or
    /// none that can be looked into.
    fn open(&mut self, id: Id, path: &WorkspacePath) -> Result<Option<OwnedFd>, WatchError> {
        let opened = self.workspace.open_directory(path).map_err(WatchError::from);
        let watched = opened.and_then(|directory| {
            let watch = self.watches.add(directory.as_fd())?;
            Ok((directory, watch))
        });
        let (directory, watch) = match watched {
            Ok(watched) => watched,
            Err(error @ (WatchError::Limit(_) | WatchError::NoProc)) => return Err(error),
            Err(error) => {
                if matches!(error, WatchError::Workspace(workspace::Error::Os { .. })) {
                    self.unreadable += 1;
                }
                if id != ROOT {
                    self.forget(id);
                }
                return Ok(None);
            }
        };
        let old = self.tree.watch(id);
        if old != Some(watch) {
            // Another directory has this name now, with others beneath it; or
            // this one was known under another name.
            for child in self.tree.children(id) {
                self.forget(child);
            }
            if let Some(elsewhere) = self.tree.by_watch(watch).filter(|other| *other != id) {
                self.tree.set_watch(elsewhere, None);
                self.forget(elsewhere);
            }
            if let Some(old) = old {
                self.watches.remove(old);
            }
            if !self.tree.contains(id) {
                self.watches.remove(watch);
                return Ok(None);
            }
            self.tree.set_watch(id, Some(watch));
        }
        Ok(Some(directory))
    }

    /// Takes a directory up, if somebody wants it; gives its place.
    pub(super) fn admit(
        &mut self,
        parent: Id,
        name: &str,
        path: &WorkspacePath,
    ) -> Result<Option<Id>, WatchError> {
        let enter: Vec<bool> = self
            .scopes
            .iter()
            .map(|s| s.enters(&self.policy, s.entered.has(parent), path))
            .collect();
        let wanted = enter.contains(&true) || self.scopes.iter().any(|s| s.leads_through(path));
        if !wanted || TempName::is_reserved_name(name) {
            if let Some(child) = self.tree.child(parent, name) {
                self.forget(child);
            }
            return Ok(None);
        }
        if self.tree.len() >= MOST {
            return Err(WatchError::Workspace(workspace::Error::TooLarge));
        }
        let Some(id) = self.tree.add(parent, name) else { return Ok(None) };
        for (scope, enter) in self.scopes.iter_mut().zip(enter) {
            scope.entered.set(id, enter);
        }
        Ok(Some(id))
    }

    /// The entries of the directory at `path` through which scopes begin.
    fn ways(&self, path: &WorkspacePath) -> Vec<String> {
        let depth = path.components().count();
        let through = self.scopes.iter().filter(|scope| scope.leads_through(path));
        let mut names: Vec<_> = through
            .filter_map(|scope| scope.start().components().nth(depth).map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Tells of an entry that was found by looking, to whom it is new.
    fn announce_found(
        &mut self,
        parent: Id,
        name: String,
        path: &WorkspacePath,
        kind: ObjectKind,
        before: Option<&Before>,
        lost: &mut [bool],
    ) {
        let old = before.and_then(|before| path.rebase(&before.new, &before.old));
        let event = Event { what: EventKind::Created, path: path.clone(), kind: entry_kind(kind) };
        for (n, scope) in self.scopes.iter().enumerate() {
            let shown = scope.shows(&self.policy, &scope.entered, parent, path, kind);
            let came_along = before.zip(old.as_ref()).is_some_and(|(before, old)| {
                let entered = before.entered.get(n);
                before.told.get(n) == Some(&true)
                    && entered.is_some_and(|e| scope.shows(&self.policy, e, parent, old, kind))
            });
            match (shown, came_along) {
                (true, false) => scope.tell(&event),
                (false, true) => lost.iter_mut().skip(n).take(1).for_each(|lost| *lost = true),
                _ => {}
            }
        }
        self.found.insert((parent, name));
    }

    /// What is at a path now; `None` when nothing is.
    pub(super) fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind> {
        match self.workspace.open_at(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(handle) => Stat::of(handle).ok().map(|stat| stat.kind),
            Err(workspace::Error::NotFound | workspace::Error::NotADirectory) => None,
            // There, and not to be looked at: a mount point.
            Err(_) => Some(ObjectKind::Missing),
        }
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
