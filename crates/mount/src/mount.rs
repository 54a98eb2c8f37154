//! The mount itself: what all of its operations share.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portcullis_core::{
    Approver, Client, Error, ErrorKind, Gateway, Herald, MountView, Reply, Request, Seen, Stat,
};
use portcullis_policy::{
    Effect, ObjectKind, Query, Secrets,
    model::{Access, Encoding, LineRange, OperationKind, Session, WorkspacePath, request::Read},
};
use rustix::io::Errno;
use serde_json::Value;

use crate::{
    Numbers, Options,
    budget::{Budget, CommitBudget},
    claim::Claims,
    counts::Counts,
    errno,
    handles::Handles,
    invalidate::Invalidations,
    memo::{Key, Memo, View},
    node::Content,
    nodes::Nodes,
    path_locks::{Held, Lock, PathLocks},
    repeats::Repeats,
    scratch::{Scratch, ScratchNumbers},
    waiting::Program,
};

/// How long another policy waits until the kernel has forgotten what it knows. A process may hold a
/// lock that this needs until its request is served.
const INVALIDATION_TIMEOUT: Duration = Duration::from_secs(5);

/// A file system over a gateway, for the programs of one session.
///
/// It holds no authority: what it shows comes from the gateway's replies for this session,
/// and what it changes is a request to the gateway.
pub struct Mount<'g> {
    pub(crate) gateway: &'g Gateway,
    pub(crate) session: Session,
    pub(crate) options: Options,
    pub(crate) state: Mutex<State>,
    paths: PathLocks,
    pub(crate) budget: Arc<Budget>,
    /// Of commits under way.
    pub(crate) commits: CommitBudget,
    /// Of lists of open directories.
    pub(crate) lists: Arc<Budget>,
    claims: Claims,
    pub(crate) scratch: Option<Scratch>,
    scratch_is_recorded: AtomicBool,
    /// No thread serves requests any more.
    pub(crate) is_over: AtomicBool,
    pub(crate) counts: Counts,
    pub(crate) repeats: Repeats,
    pub(crate) invalidations: Arc<Invalidations>,
    approver: Option<&'g dyn Approver>,
    /// Hears of another policy as long as it is here.
    _herald: Arc<Herald>,
}

/// What the operations change. Nothing waits while it is locked.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nodes: Nodes,
    /// The bytes of all views that are open.
    open: u64,
    open_limit: u64,
    /// The bytes of files that are being read.
    reading: u64,
    /// Whether there was no room for a view.
    open_was_full: bool,
    pub(crate) handles: Handles,
    pub(crate) memo: Memo,
}

impl State {
    /// Gives all handles of a node this content.
    ///
    /// # Errors
    /// `ENOMEM` when that is too much together with what else is open.
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

    /// Nobody reads the content of a node any more.
    pub(crate) fn forget_content(&mut self, id: u64) {
        self.open -= self.view_size(id);
        if let Some(node) = self.nodes.get_mut(id) {
            node.content = None;
        }
    }

    /// Whether there was no room for what was to be opened.
    pub(crate) fn open_was_full(&self) -> bool {
        self.open_was_full
    }

    fn view_size(&self, id: u64) -> u64 {
        let content = self.nodes.get(id).and_then(|node| node.content.as_ref());
        content.map_or(0, Content::view_size)
    }
}

/// A file is being read.
pub(crate) struct Reading<'a>(&'a Mutex<State>, u64);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(self.0).reading -= self.1;
    }
}

/// A change of this mount is under way.
pub(crate) struct Change<'a>(&'a Mutex<State>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(self.0).nodes.end_change();
    }
}

/// Whether an entry is shown: devices, sockets and pipes of the host lead out of the
/// sandbox.
pub(crate) fn is_served(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic ends the process: see `panic` in the profile.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'g> Mount<'g> {
    /// A mount for `session`, whose door is [`Door::Mount`](portcullis_policy::model::Door).
    pub fn new(gateway: &'g Gateway, session: Session, mut options: Options) -> Self {
        let invalidations = Arc::new(Invalidations::default());
        let hears = Arc::clone(&invalidations);
        let herald: Arc<Herald> = Arc::new(move || hears.all_within(INVALIDATION_TIMEOUT));
        gateway.on_policy(&herald);
        let state = State {
            nodes: Nodes::new(options.nodes),
            open: 0,
            open_limit: options.open,
            reading: 0,
            open_was_full: false,
            handles: Handles::new(options.handles),
            memo: Memo::new(options.views),
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
            claims: Claims::new(options.processes.take(), options.leaders.take()),
            scratch_is_recorded: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            counts: Counts::default(),
            repeats: Repeats::default(),
            invalidations,
            approver: None,
            _herald: herald,
            options,
        }
    }

    /// The same, with somebody who puts questions to a person: no program waits for the answer.
    #[must_use]
    pub fn asking(self, approver: &'g dyn Approver) -> Self {
        Self { approver: Some(approver), ..self }
    }

    /// What it has done until now.
    pub fn numbers(&self) -> Numbers {
        self.counts.numbers()
    }

    /// What is in its scratch directories, if it has any.
    pub fn scratch(&self) -> Option<ScratchNumbers> {
        self.scratch.as_ref().map(Scratch::numbers)
    }

    /// Records what is in its scratch directories at the end, once.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn record_scratch(&self) -> Result<(), Error> {
        let Some(scratch) = &self.scratch else { return Ok(()) };
        if !self.scratch_is_recorded.swap(true, Ordering::Relaxed) {
            self.gateway.note(&self.session, ScratchNumbers::RECORD, scratch.numbers().facts())?;
            scratch.is_recorded();
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

    /// The path of a node, which nothing changes as long as the lock is held.
    ///
    /// # Errors
    /// As [`Mount::path`].
    pub(crate) fn keep_path(&self, node: u64) -> Result<(Held<'_>, WorkspacePath), Errno> {
        self.hold(|| self.path(node), |path| Lock::Shared(path.clone()))
    }

    /// The same for the entry `name` in the directory `parent`.
    ///
    /// # Errors
    /// As [`Mount::path_of`].
    pub(crate) fn keep_path_of(
        &self,
        parent: u64,
        name: &str,
    ) -> Result<(Held<'_>, WorkspacePath), Errno> {
        self.hold(|| self.path_of(parent, name), |path| Lock::Shared(path.clone()))
    }

    /// The paths of entries, given by directory and name, that are about to change: waits for
    /// whatever depends on one of them.
    ///
    /// # Errors
    /// As [`Mount::path_of`].
    pub(crate) fn change_paths<const N: usize>(
        &self,
        entries: [(u64, &str); N],
    ) -> Result<(Held<'_>, [WorkspacePath; N]), Errno> {
        let paths = || {
            let mut paths = entries.map(|_| WorkspacePath::root());
            for (path, (parent, name)) in paths.iter_mut().zip(entries) {
                *path = self.path_of(parent, name)?;
            }
            Ok(paths)
        };
        self.hold(paths, |paths| Lock::Exclusive(paths.to_vec()))
    }

    /// Finds something, and locks it as it is found.
    fn hold<T: PartialEq>(
        &self,
        find: impl Fn() -> Result<T, Errno>,
        lock: impl Fn(&T) -> Lock,
    ) -> Result<(Held<'_>, T), Errno> {
        loop {
            let found = find()?;
            let held = self.paths.hold(lock(&found))?;
            // It may have changed while this waited.
            if find()? == found {
                return Ok((held, found));
            }
        }
    }

    /// Reserves what the file of that size takes while it is read, as if it were open already.
    ///
    /// # Errors
    /// `ENOMEM` when that is too much together with what else is open or read.
    pub(crate) fn begin_reading(&self, size: u64) -> Result<Reading<'_>, Errno> {
        // A larger one is denied, and not read.
        let most = self.gateway.policy().max_size(Access::Read, self.session.door);
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

    /// Whether a file of that size has to be read to tell how long what is shown of it is.
    pub(crate) fn reads_for_size(&self, size: u64) -> bool {
        let policy = self.gateway.policy();
        policy.secrets().is_some_and(Secrets::redacts)
            && size <= policy.max_size(Access::Read, self.session.door)
    }

    /// Whether a person is asked before a new file is stored at `path`, whatever it has.
    pub(crate) fn asks_to_create(&self, path: &WorkspacePath) -> bool {
        let (operation, access) = (OperationKind::Write, Access::Write);
        let query = Query { agent: &self.session.agent, operation, access, path };
        self.gateway.policy().evaluate(&query).effect() == Effect::Ask
    }

    /// Until the end of the change no name is judged by what is seen of the workspace.
    pub(crate) fn begin_change(&self) -> Change<'_> {
        self.lock().nodes.begin_change();
        Change(&self.state)
    }

    /// The path of a node.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` when it has none any more.
    pub(crate) fn path(&self, node: u64) -> Result<WorkspacePath, Errno> {
        self.lock().nodes.path(node).map_err(errno::of_gone)
    }

    /// The path of the entry `name` in the directory `parent`.
    ///
    /// # Errors
    /// As [`Mount::path`]; `EINVAL` or `ENAMETOOLONG` for what is no name.
    pub(crate) fn path_of(&self, parent: u64, name: &str) -> Result<WorkspacePath, Errno> {
        let directory = self.path(parent)?;
        directory.join(name).map_err(errno::of_name)
    }

    /// The facts about what is at `path`.
    ///
    /// # Errors
    /// `ENOENT` when nothing is, or nothing that this session may know of.
    pub(crate) fn seen(&self, path: &WorkspacePath) -> Result<Seen, Errno> {
        match self.view().lookup(path) {
            Ok(Some(seen)) if is_served(seen.stat.kind) => Ok(seen),
            Ok(_) => Err(Errno::NOENT),
            Err(error) => Err(errno::of_look(&error)),
        }
    }

    /// Decides anew on an open of a version that is on record, and counts it; false where a
    /// request is needed.
    pub(crate) fn repeats(&self, path: &WorkspacePath, stat: &Stat) -> bool {
        let is_counted = !self.options.records_each_open && self.view().repeat(path, stat);
        if is_counted {
            self.counts.repeats.add();
            self.repeats.open(path);
        }
        is_counted
    }

    /// Decides anew on an open of a version that was denied before, and counts it; false
    /// where a request is needed.
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

    /// Has the gateway carry out a request of the process `pid`. A refusal is remembered for `node`.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn request<R: Request>(
        &self,
        pid: u32,
        node: u64,
        request: &R,
    ) -> Result<Reply<R::Output>, Errno> {
        self.request_continuing(pid, node, request, None)
    }

    /// The same of a change that is undone together with that of an earlier record.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn request_continuing<R: Request>(
        &self,
        pid: u32,
        node: u64,
        request: &R,
        continues: Option<u64>,
    ) -> Result<Reply<R::Output>, Errno> {
        self.handle(pid, request, continues).map_err(|error| self.refused(node, &error))
    }

    /// Has the gateway read a file, `key` being the version that is there. A denial is remembered for
    /// `node`, so that it can be counted when it repeats.
    ///
    /// # Errors
    /// Why nothing may be read.
    pub(crate) fn read_version(
        &self,
        pid: u32,
        node: u64,
        (path, key): (&WorkspacePath, Key),
    ) -> Result<View, Errno> {
        let (range, encoding) = (LineRange::default(), Encoding::Base64);
        let read = Read { path: path.clone(), range, encoding };
        let reply = self.handle(pid, &read, None).map_err(|error| {
            let rule = error.rule().filter(|_| error.kind() == ErrorKind::Denied);
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

    /// Whether the program of which `pid` is a thread is being killed.
    pub(crate) fn is_killed(&self, pid: u32) -> bool {
        self.claims.is_killed(pid)
    }

    /// Remembers the program of which `pid` is a thread for a while.
    pub(crate) fn note_program(&self, pid: u32) {
        self.claimed(pid);
    }

    fn claimed(&self, pid: u32) -> BTreeMap<String, Value> {
        self.claims.facts(pid, &|words| self.gateway.redact_words(words))
    }

    /// Asks whether a change may be made that is yet to come, of what is at `at`.
    ///
    /// # Errors
    /// `EACCES`; the denial has a record.
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

    fn refused(&self, node: u64, error: &Error) -> Errno {
        if error.kind() == ErrorKind::Cancelled {
            return errno::of_kind(error.kind());
        }
        self.counts.refusals.add();
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.why = Some(Arc::from(error.to_string()));
        }
        errno::of_kind(error.kind())
    }

    /// The kernel gives up references to a node.
    pub(crate) fn forget_node(&self, id: u64, count: u64) {
        let mut state = self.lock();
        state.nodes.forget(id, count);
        if state.nodes.get(id).is_none() {
            state.memo.remove(id);
        }
    }
}
