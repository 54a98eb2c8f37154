//! The walk of a directory tree by several threads, with one open directory each, irrespective of
//! the tree's depth and width.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{
    ignore::{IgnoreUsage, Ignores},
    model::WorkspacePath,
    policy::{GlobPattern, ObjectKind},
    tally::{Skipped, Tally},
    view::{Directory as _, NameFilter, View, Visit, VisitedEntry},
};

/// Maximum number of threads of one search.
const MAX_THREADS: usize = 4;
/// Number of files that are passed to another thread at once.
const FILE_BATCH_SIZE: usize = 64;
/// Number of names between two checks of the time.
const NAMES_PER_CLOCK_CHECK: usize = 256;

/// The action of a search on the entries that it wants.
pub(super) trait Visitor<V: View>: Sync {
    /// The tools of one thread.
    type Tools;

    /// Makes the tools of one thread.
    fn tools(&self) -> Self::Tools;

    /// Takes an entry.
    fn visit_name(&self, tools: &mut Self::Tools, entry: V::Entry, kind: ObjectKind);
}

/// One running search.
pub(super) struct Walk<'a, V: View, T> {
    view: &'a V,
    tally: &'a Tally<'a>,
    visitor: &'a T,
    /// True if ignored entries are found, too.
    ignored: bool,
    spent: IgnoreUsage,
    queue: Mutex<WalkQueue<V>>,
    changed: Condvar,
}

/// A directory that waits to be entered.
struct PendingDirectory<V: View> {
    directory: V::Directory,
    depth: usize,
    /// The ignore patterns of the directories above it.
    ignores: Option<Arc<Ignores>>,
}

struct WalkQueue<V: View> {
    /// The start of the walk.
    first: Option<PendingDirectory<V>>,
    waiting: Vec<Waiting<V>>,
    /// Number of threads that work and may add tasks.
    busy: usize,
    /// Number of threads without work.
    idle: usize,
    /// Number of batches of files for idle threads.
    handed: usize,
}

/// Waiting tasks: directories of one depth with the ignore patterns above them, or files.
enum Waiting<V: View> {
    Directories(V::Waiting, usize, Option<Arc<Ignores>>),
    Files(Vec<V::Entry>),
}

enum Task<V: View> {
    Enter(PendingDirectory<V>),
    Meet(Vec<V::Entry>),
}

impl<'a, V: View, T: Visitor<V>> Walk<'a, V, T> {
    /// Prepares a walk.
    pub(super) fn new(view: &'a V, tally: &'a Tally<'a>, visitor: &'a T, ignored: bool) -> Self {
        let queue = WalkQueue { first: None, waiting: Vec::new(), busy: 0, idle: 0, handed: 0 };
        let (spent, queue, changed) = (IgnoreUsage::default(), Mutex::new(queue), Condvar::new());
        Self { view, tally, visitor, ignored, spent, queue, changed }
    }

    /// Walks beneath the directory `start` for matching entries, until nothing is left or the tally
    /// stops the search. With `directories` those are wanted, too.
    pub(super) fn run(&self, start: V::Directory, pattern: Option<GlobPattern>, directories: bool) {
        let path = start.as_ref();
        let start_length = path.as_str().len() + usize::from(!path.is_root());
        let wanted = NameFilter { pattern, directories, start: start_length };
        let ignores = if self.ignored { None } else { self.ignores_above(&start) };
        lock(&self.queue).first = Some(PendingDirectory { directory: start, depth: 0, ignores });
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        thread::scope(|scope| {
            for _ in 1..threads {
                // Without other threads this one does all of the work.
                let spawned = thread::Builder::new()
                    .name("search".to_owned())
                    .spawn_scoped(scope, || self.work(&mut self.visitor.tools(), &wanted));
                if let Err(error) = spawned {
                    tracing::warn!(%error, "a search goes on with fewer threads");
                }
            }
            self.work(&mut self.visitor.tools(), &wanted);
        });
    }

    /// Returns the ignore patterns of the directories above the start.
    fn ignores_above(&self, start: &V::Directory) -> Option<Arc<Ignores>> {
        self.view.above(start).iter().fold(None, |above, directory| {
            let (ignores, skipped) =
                Ignores::within(above.as_ref(), self.view, directory, &self.spent);
            skipped.into_iter().for_each(|reason| self.tally.skip(reason));
            ignores
        })
    }

    fn work(&self, tools: &mut T::Tools, wanted: &NameFilter) {
        while let Some((task, _busy)) = self.next() {
            match task {
                Task::Enter(place) => self.enter(tools, wanted, place),
                Task::Meet(files) => self.visit_all(tools, files),
            }
        }
    }

    /// Waits for a task; `None` if no more will come.
    fn next(&self) -> Option<(Task<V>, BusyGuard<'_, V>)> {
        let mut queue = lock(&self.queue);
        loop {
            if self.tally.is_stopped() {
                self.changed.notify_all();
                return None;
            }
            if let Some(task) = queue.take(self.view) {
                queue.busy += 1;
                return Some((task, BusyGuard { queue: &self.queue, changed: &self.changed }));
            }
            if queue.busy == 0 {
                self.changed.notify_all();
                return None;
            }
            queue.idle += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Visits one directory.
    fn enter(&self, tools: &mut T::Tools, wanted: &NameFilter, place: PendingDirectory<V>) {
        if !self.tally.may_continue() {
            return;
        }
        let PendingDirectory { directory, depth, mut ignores } = place;
        if !self.ignored {
            let (within, skipped) =
                Ignores::within(ignores.as_ref(), self.view, &directory, &self.spent);
            ignores = within;
            // Nothing is reported about a directory that the agent may not know of.
            skipped.filter(|_| directory.is_shown()).into_iter().for_each(|reason| {
                self.tally.skip(reason);
            });
        }
        let mut look = DirectoryVisit {
            walk: self,
            tools,
            depth,
            ignores,
            names: 0,
            shown: 0,
            files: Vec::new(),
        };
        let listed = self.view.list(&directory, wanted, &mut look);
        let DirectoryVisit { tools, ignores, shown, files, .. } = look;
        self.tally.looked(shown % NAMES_PER_CLOCK_CHECK);
        match listed {
            Ok((waiting, not_utf8)) => {
                (0..not_utf8).for_each(|_| self.tally.skip(Skipped::NotUtf8));
                if let Some(waiting) = waiting {
                    let waiting = Waiting::Directories(waiting, depth + 1, ignores);
                    lock(&self.queue).waiting.push(waiting);
                    self.changed.notify_all();
                }
            }
            Err(reason) => self.tally.skip(reason),
        }
        self.visit_all(tools, files);
    }

    /// Passes the files to another thread, if one is idle.
    fn hand_over(&self, files: Vec<V::Entry>) -> Option<Vec<V::Entry>> {
        let mut queue = lock(&self.queue);
        // A thread woken for them counts as idle until it takes them.
        if queue.idle <= queue.handed {
            return Some(files);
        }
        queue.handed += 1;
        queue.waiting.push(Waiting::Files(files));
        drop(queue);
        self.changed.notify_one();
        None
    }

    fn visit_all(&self, tools: &mut T::Tools, files: Vec<V::Entry>) {
        for entry in files {
            if !self.tally.may_continue() {
                return;
            }
            self.visitor.visit_name(tools, entry, ObjectKind::File);
        }
    }
}

/// One directory during its listing.
struct DirectoryVisit<'w, 'a, V: View, T: Visitor<V>> {
    walk: &'w Walk<'a, V, T>,
    tools: &'w mut T::Tools,
    depth: usize,
    ignores: Option<Arc<Ignores>>,
    /// Numbers of names, and of those that are shown.
    names: usize,
    shown: usize,
    files: Vec<V::Entry>,
}

impl<V: View, T: Visitor<V>> DirectoryVisit<'_, '_, V, T> {
    fn is_ignored(&self, path: &WorkspacePath, directory: bool) -> bool {
        self.ignores.as_ref().is_some_and(|ignores| ignores.ignore(path, directory))
    }

    /// True if it is git's directory and that is left out.
    fn is_git(&self, path: &WorkspacePath) -> bool {
        !self.walk.ignored && path.file_name().is_some_and(Ignores::is_git)
    }
}

impl<V: View, T: Visitor<V>> Visit<V::Entry> for DirectoryVisit<'_, '_, V, T> {
    fn may_continue(&mut self) -> bool {
        self.names += 1;
        match self.names % NAMES_PER_CLOCK_CHECK {
            0 => self.walk.tally.may_continue(),
            _ => !self.walk.tally.is_stopped(),
        }
    }

    fn visit_name(&mut self, visited: VisitedEntry<'_, V::Entry>) -> bool {
        let Walk { tally, visitor, .. } = self.walk;
        let deeper = self.depth < tally.depth();
        let (entry, kind, wanted, enter) = match visited {
            VisitedEntry::Passed(path) => {
                return deeper && !self.is_git(path) && !self.is_ignored(path, true);
            }
            VisitedEntry::Shown { entry, kind, wanted, enter } => (entry, kind, wanted, enter),
        };
        if self.is_git(entry.as_ref()) {
            return false;
        }
        if self.is_ignored(entry.as_ref(), kind == ObjectKind::Directory) {
            tally.skip(Skipped::Ignored);
            return false;
        }
        if enter && !deeper {
            tally.skip(Skipped::TooDeep);
        }
        match (wanted, kind) {
            (false, _) => {}
            (true, ObjectKind::File) => self.files.push(entry),
            (true, _) => visitor.visit_name(self.tools, entry, kind),
        }
        self.shown += 1;
        if self.shown.is_multiple_of(NAMES_PER_CLOCK_CHECK) {
            tally.looked(NAMES_PER_CLOCK_CHECK);
        }
        if self.files.len() >= FILE_BATCH_SIZE {
            let batch = std::mem::take(&mut self.files);
            if let Some(batch) = self.walk.hand_over(batch) {
                self.walk.visit_all(self.tools, batch);
            }
        }
        enter && deeper
    }
}

impl<V: View> WalkQueue<V> {
    fn take(&mut self, view: &V) -> Option<Task<V>> {
        if let Some(first) = self.first.take() {
            return Some(Task::Enter(first));
        }
        loop {
            if let Waiting::Directories(waiting, depth, ignores) = self.waiting.last_mut()?
                && let Some(directory) = view.next(waiting)
            {
                let (depth, ignores) = (*depth, ignores.clone());
                return Some(Task::Enter(PendingDirectory { directory, depth, ignores }));
            }
            if let Waiting::Files(files) = self.waiting.pop()? {
                self.handed = self.handed.saturating_sub(1);
                return Some(Task::Meet(files));
            }
        }
    }
}

/// A guard during whose lifetime a thread counts as working.
struct BusyGuard<'w, V: View> {
    queue: &'w Mutex<WalkQueue<V>>,
    changed: &'w Condvar,
}

impl<V: View> Drop for BusyGuard<'_, V> {
    fn drop(&mut self) {
        let mut queue = lock(self.queue);
        queue.busy = queue.busy.saturating_sub(1);
        if queue.busy == 0 {
            self.changed.notify_all();
        }
    }
}

fn lock<V: View>(queue: &Mutex<WalkQueue<V>>) -> MutexGuard<'_, WalkQueue<V>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
