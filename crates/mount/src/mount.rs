//! The mount: state shared by all of its operations.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portcullis_core::{
    Approver, Client, Error, ErrorKind, Gateway, MountView, PolicyListener, Reply, Request, Stat,
    VisibleEntry,
};
use portcullis_policy::{
    Effect, ObjectKind, Query, Secrets,
    model::{Access, Encoding, LineRange, OperationKind, Session, WorkspacePath, request::Read},
};
use rustix::io::Errno;

use crate::{
    MountMetrics, Options,
    budget::{Budget, CommitBudget},
    errno,
    handles::Handles,
    invalidate::Invalidations,
    metrics::Counts,
    node::Content,
    nodes::Nodes,
    path_locks::{HeldPathLock, Lock, PathLocks},
    process_info::{ProcessReader, ProcessTree},
    recorded_paths::RecordedPaths,
    repeats::Repeats,
    scratch::{Scratch, ScratchMetrics},
    view_cache::{Key, View, ViewCache},
    waiting::Program,
};

/// Timeout of a policy reload for the kernel's invalidations. A process may hold a lock needed for
/// them until its request is served.
const INVALIDATION_TIMEOUT: Duration = Duration::from_secs(5);

/// A file system over a gateway, for the programs of one session.
///
/// It has no authority: everything shown comes from the gateway's replies for this session, and
/// each change is a request to the gateway.
pub struct Mount<'g> {
    pub(crate) gateway: &'g Gateway,
    pub(crate) session: Session,
    pub(crate) options: Options,
    pub(crate) state: Mutex<State>,
    paths: PathLocks,
    pub(crate) budget: Arc<Budget>,
    /// The memory of commits in progress.
    pub(crate) commits: CommitBudget,
    /// The memory of lists of open directories.
    pub(crate) lists: Arc<Budget>,
    pub(crate) process_reader: ProcessReader,
    pub(crate) scratch: Option<Scratch>,
    scratch_is_recorded: AtomicBool,
    /// Set when no thread serves requests any more.
    pub(crate) is_over: AtomicBool,
    pub(crate) counts: Counts,
    pub(crate) repeats: Repeats,
    /// The lookups of hidden names that are recorded.
    pub(crate) hidden_lookups: RecordedPaths<(ProcessTree, WorkspacePath)>,
    /// The files of which a write is recorded that would make them too large.
    pub(crate) oversized_files: RecordedPaths<WorkspacePath>,
    pub(crate) invalidations: Arc<Invalidations>,
    approver: Option<&'g dyn Approver>,
    /// Gets policy reloads while the mount exists.
    _policy_listener: Arc<PolicyListener>,
}

/// The mutable state of operations. No operation blocks while it is locked.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nodes: Nodes,
    /// The total bytes of open views.
    open: u64,
    open_limit: u64,
    /// The total bytes of files that are being read.
    reading: u64,
    /// True if a view was ever refused for lack of room.
    open_was_full: bool,
    pub(crate) handles: Handles,
    pub(crate) views: ViewCache,
}

impl State {
    /// Sets the content for all handles of a node.
    ///
    /// # Errors
    /// `ENOMEM` when that exceeds the limit together with other open files.
    pub(crate) fn set_content(&mut self, id: u64, content: Content) -> Result<(), Errno> {
        let before = self.view_size(id);
        let after = self.open - before + content.view_size();
        if after > self.open_limit {
            self.open_was_full = true;
            return Err(Errno::NOMEM);
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.content = Some(content);
            self.open = after;
        }
        Ok(())
    }

    /// Removes the content of a node.
    pub(crate) fn forget_content(&mut self, id: u64) {
        self.open -= self.view_size(id);
        if let Some(node) = self.nodes.get_mut(id) {
            node.content = None;
        }
    }

    /// Returns true if an open was ever refused for lack of room.
    pub(crate) fn open_was_full(&self) -> bool {
        self.open_was_full
    }

    fn view_size(&self, id: u64) -> u64 {
        let content = self.nodes.get(id).and_then(|node| node.content.as_ref());
        content.map_or(0, Content::view_size)
    }
}

/// Bytes reserved while a file is read.
pub(crate) struct Reading<'a>(&'a Mutex<State>, u64);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(self.0).reading -= self.1;
    }
}

/// A change of this mount in progress.
pub(crate) struct Change<'a>(&'a Mutex<State>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(self.0).nodes.end_change();
    }
}

/// Returns true if entries of a kind are shown: devices, sockets and pipes of the host lead out of
/// the sandbox.
pub(crate) fn is_served(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic ends the process: see `panic` in the profile.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'g> Mount<'g> {
    /// Returns a mount for `session`, whose transport is
    /// [`Transport::Mount`](portcullis_policy::model::Transport).
    pub fn new(gateway: &'g Gateway, session: Session, mut options: Options) -> Self {
        let invalidations = Arc::new(Invalidations::default());
        let hears = Arc::clone(&invalidations);
        let policy_listener: Arc<PolicyListener> =
            Arc::new(move || hears.all_within(INVALIDATION_TIMEOUT));
        gateway.on_policy(&policy_listener);
        let state = State {
            nodes: Nodes::new(options.nodes),
            open: 0,
            open_limit: options.open,
            reading: 0,
            open_was_full: false,
            handles: Handles::new(options.handles),
            views: ViewCache::new(options.views),
        };
        let scratch = options.scratch.take();
        let lists = Arc::new(Budget::new(options.lists, options.lists));
        Self {
            gateway,
            session,
            scratch: scratch.map(|scratch| scratch.owned_by((options.uid, options.gid), &lists)),
            state: Mutex::new(state),
            paths: PathLocks::default(),
            lists,
            budget: Arc::new(Budget::new(options.staged, options.file)),
            commits: CommitBudget::new(options.commits),
            process_reader: ProcessReader::new(options.processes.take(), options.leaders.take()),
            scratch_is_recorded: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            counts: Counts::default(),
            repeats: Repeats::default(),
            hidden_lookups: RecordedPaths::default(),
            oversized_files: RecordedPaths::default(),
            invalidations,
            approver: None,
            _policy_listener: policy_listener,
            options,
        }
    }

    /// Adds an approver, which passes questions to the operator; no program waits for the answer.
    #[must_use]
    pub fn asking(self, approver: &'g dyn Approver) -> Self {
        Self { approver: Some(approver), ..self }
    }

    /// Returns its counters.
    pub fn numbers(&self) -> MountMetrics {
        self.counts.numbers()
    }

    /// Returns the counters of its scratch directories, if it has any.
    pub fn scratch(&self) -> Option<ScratchMetrics> {
        self.scratch.as_ref().map(Scratch::numbers)
    }

    /// Records the counters of its scratch directories at the end, once.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn record_scratch(&self) -> Result<(), Error> {
        let Some(scratch) = &self.scratch else { return Ok(()) };
        if !self.scratch_is_recorded.swap(true, Ordering::Relaxed) {
            self.gateway.note(&self.session, ScratchMetrics::RECORD, scratch.numbers().facts())?;
            scratch.is_recorded();
            // After an error the next session carries all of them.
            let _ = scratch.store_labels(&self.gateway.labels_of(&self.session));
        }
        Ok(())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn view(&self) -> MountView<'_> {
        self.gateway.mount_view(&self.session)
    }

    pub(crate) fn policy(&self) -> u64 {
        self.view().policy_id()
    }

    /// Returns the path of a node, which does not change while the lock is held.
    ///
    /// # Errors
    /// As [`Mount::path`].
    pub(crate) fn keep_path(&self, node: u64) -> Result<(HeldPathLock<'_>, WorkspacePath), Errno> {
        self.hold(|| self.path(node), |path| Lock::Shared(path.clone()))
    }

    /// Returns the path of the entry `name` in the directory `parent`, which does not change while
    /// the lock is held.
    ///
    /// # Errors
    /// As [`Mount::path_of`].
    pub(crate) fn keep_path_of(
        &self,
        parent: u64,
        name: &str,
    ) -> Result<(HeldPathLock<'_>, WorkspacePath), Errno> {
        self.hold(|| self.path_of(parent, name), |path| Lock::Shared(path.clone()))
    }

    /// Returns the paths of entries, given by directory and name, that are about to change. Waits
    /// until no lock depends on one of them.
    ///
    /// # Errors
    /// As [`Mount::path_of`].
    pub(crate) fn change_paths<const N: usize>(
        &self,
        entries: [(u64, &str); N],
    ) -> Result<(HeldPathLock<'_>, [WorkspacePath; N]), Errno> {
        let paths = || {
            let mut paths = entries.map(|_| WorkspacePath::root());
            for (path, (parent, name)) in paths.iter_mut().zip(entries) {
                *path = self.path_of(parent, name)?;
            }
            Ok(paths)
        };
        self.hold(paths, |paths| Lock::Exclusive(paths.to_vec()))
    }

    /// Looks something up, and locks the result.
    fn hold<T: PartialEq>(
        &self,
        find: impl Fn() -> Result<T, Errno>,
        lock: impl Fn(&T) -> Lock,
    ) -> Result<(HeldPathLock<'_>, T), Errno> {
        loop {
            let found = find()?;
            let held = self.paths.hold(lock(&found))?;
            // It may have changed during the wait.
            if find()? == found {
                return Ok((held, found));
            }
        }
    }

    /// Reserves the memory of a file of that size while it is read, as if it were open already.
    ///
    /// # Errors
    /// `ENOMEM` when that exceeds the limit together with other open files and reads.
    pub(crate) fn begin_reading(&self, size: u64) -> Result<Reading<'_>, Errno> {
        // A larger file is denied, and not read.
        let most = self.gateway.policy().max_size(Access::Read, self.session.transport);
        let size = if size > most { 0 } else { size };
        let mut state = self.lock();
        let all = state.open.saturating_add(state.reading).saturating_add(size);
        if all > state.open_limit {
            state.open_was_full = true;
            return Err(Errno::NOMEM);
        }
        state.reading += size;
        Ok(Reading(&self.state, size))
    }

    /// Returns true if a file of that size has to be read to compute the size that is shown.
    pub(crate) fn reads_for_size(&self, size: u64) -> bool {
        let policy = self.gateway.policy();
        policy.secrets().is_some_and(Secrets::redacts)
            && size <= policy.max_size(Access::Read, self.session.transport)
    }

    /// Returns true if the policy asks before a new file is stored at `path`, whatever its content.
    pub(crate) fn asks_to_create(&self, path: &WorkspacePath) -> bool {
        let (operation, access) = (OperationKind::Write, Access::Write);
        let query = Query { agent: &self.session.agent, operation, access, path };
        self.gateway.policy().evaluate(&query).effect() == Effect::Ask
    }

    /// Begins a change. Until it ends, lookups in the workspace do not detach names.
    pub(crate) fn begin_change(&self) -> Change<'_> {
        self.lock().nodes.begin_change();
        Change(&self.state)
    }

    /// Returns the path of a node.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` when it has none any more.
    pub(crate) fn path(&self, node: u64) -> Result<WorkspacePath, Errno> {
        self.lock().nodes.path(node).map_err(errno::of_gone)
    }

    /// Returns the path of the entry `name` in the directory `parent`.
    ///
    /// # Errors
    /// As [`Mount::path`]; `EINVAL` or `ENAMETOOLONG` for an invalid name.
    pub(crate) fn path_of(&self, parent: u64, name: &str) -> Result<WorkspacePath, Errno> {
        let directory = self.path(parent)?;
        directory.join(name).map_err(errno::of_name)
    }

    /// Looks up the entry at `path`.
    ///
    /// # Errors
    /// `ENOENT` when there is none that this session may know of.
    pub(crate) fn seen(&self, path: &WorkspacePath) -> Result<VisibleEntry, Errno> {
        match self.view().lookup(path) {
            Ok(Some(seen)) if is_served(seen.stat.kind) => Ok(seen),
            Ok(_) => Err(Errno::NOENT),
            Err(error) => Err(errno::of_look(&error)),
        }
    }

    /// Decides again on an open of a recorded version, and counts it. Returns false if a request is
    /// needed.
    pub(crate) fn repeats(&self, path: &WorkspacePath, stat: &Stat) -> bool {
        let is_counted = !self.options.records_each_open && self.view().repeat(path, stat);
        if is_counted {
            self.counts.repeats.add();
            self.repeats.open(path);
        }
        is_counted
    }

    /// Decides again on an open of a version that was denied before, and counts it. Returns false
    /// if a request is needed.
    pub(crate) fn repeats_denial(
        &self,
        id: u64,
        key: &Key,
        (path, stat): (&WorkspacePath, &Stat),
    ) -> bool {
        let denied = self.lock().nodes.get(id).and_then(|node| node.denied.clone());
        let is_counted = !self.options.records_each_open
            && denied.is_some_and(|(denied, rule)| {
                denied == *key && self.view().repeats_denial(path, stat, &rule)
            });
        if is_counted {
            self.counts.refusals.add();
            self.repeats.denial(path);
        }
        is_counted
    }

    /// Passes a request of the process `pid` to the gateway. A refusal is stored at `node`.
    ///
    /// # Errors
    /// The error of the request.
    pub(crate) fn request<R: Request>(
        &self,
        pid: u32,
        node: u64,
        request: &R,
    ) -> Result<Reply<R::Output>, Errno> {
        self.request_continuing(pid, node, request, None)
    }

    /// Passes on a request whose change is undone together with that of an earlier record.
    ///
    /// # Errors
    /// The error of the request.
    pub(crate) fn request_continuing<R: Request>(
        &self,
        pid: u32,
        node: u64,
        request: &R,
        continues: Option<u64>,
    ) -> Result<Reply<R::Output>, Errno> {
        self.handle(pid, request, continues).map_err(|error| self.refused(node, &error))
    }

    /// Reads a file through the gateway; `key` is its current version. A denial is stored at
    /// `node`, so that its repetitions can be counted.
    ///
    /// # Errors
    /// The reason why it may not be read.
    pub(crate) fn read_version(
        &self,
        pid: u32,
        node: u64,
        (path, key): (&WorkspacePath, Key),
    ) -> Result<View, Errno> {
        let (range, encoding) = (LineRange::default(), Encoding::Base64);
        let read = Read { path: path.clone(), range, encoding };
        let reply = self.handle(pid, &read, None).map_err(|error| {
            let is_repeatable = error.kind() == ErrorKind::Denied && !self.is_setup();
            let rule = error.rule().filter(|_| is_repeatable);
            if let Some(node) = self.lock().nodes.get_mut(node) {
                node.denied = rule.map(|rule| (key, Arc::from(rule)));
            }
            self.refused(node, &error)
        })?;
        self.counts.opens.add();
        Ok(View::from(reply.output.bytes))
    }

    fn handle<R: Request>(
        &self,
        pid: u32,
        request: &R,
        continues: Option<u64>,
    ) -> Result<Reply<R::Output>, Error> {
        let mut facts = self.claimed(pid);
        facts.extend(continues.map(|record| ("continues".to_owned(), record.into())));
        let client = self.approver.map(Client::asking).unwrap_or_default();
        let client = Client { facts: &facts, follower: &Program, ..client };
        self.gateway.handle(&self.session, request, client)
    }

    /// Asks if a later change of the entry at `at` may be made.
    ///
    /// # Errors
    /// `EACCES`; the denial is recorded.
    pub(crate) fn admit<R: Request>(
        &self,
        pid: u32,
        node: u64,
        request: &R,
        (at, existing): (&WorkspacePath, Option<&Stat>),
    ) -> Result<(), Errno> {
        let admitted = self.view().admit(request, at, existing, || self.claimed(pid));
        admitted.map_err(|error| self.refused(node, &error))
    }

    pub(crate) fn refused(&self, node: u64, error: &Error) -> Errno {
        if error.kind() == ErrorKind::Cancelled {
            return errno::of_kind(error.kind());
        }
        self.counts.refusals.add();
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.reason = Some(Arc::from(error.to_string()));
        }
        errno::of_kind(error.kind())
    }

    /// Removes references of the kernel to a node.
    pub(crate) fn forget_node(&self, id: u64, count: u64) {
        let mut state = self.lock();
        state.nodes.forget(id, count);
        if state.nodes.get(id).is_none() {
            state.views.remove(id);
        }
    }
}
