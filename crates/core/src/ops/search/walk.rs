//! The walk: several threads, one open directory each, however deep and wide
//! the tree is.
//!
//! Every object is opened by its whole path beneath the root, so a directory
//! that is moved meanwhile leads nowhere else. What waits for its turn is
//! names only.

use std::{
    ops::ControlFlow,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::fs::OFlags;

use super::{
    super::{Context, list::tells_of_unnamed},
    ignore::{Ignores, Spent},
    names::Names,
    tally::{Skipped, Tally},
};
use crate::{
    model::{Access, WorkspacePath},
    policy::{Object, ObjectKind, Query, Sight, Sights},
    workspace::{Stat, stream_names},
};

/// Most threads of one search.
const THREADS: usize = 4;
/// Files that are handed to another thread at once.
const BATCH: usize = 64;
/// Names between two looks at the clock.
const NAMES: usize = 256;

/// What a search wants of the entries that it meets.
pub(super) trait Visitor: Sync {
    /// What one thread works with.
    type Tools;

    /// Makes it.
    fn tools(&self) -> Self::Tools;

    /// Whether something beneath the directory at this path, relative to the
    /// start, could be wanted.
    fn enters(&self, relative: &str) -> bool;

    /// Whether the entry at this path, relative to the start, is wanted.
    fn wants(&self, relative: &str, kind: ObjectKind) -> bool;

    /// Takes an entry that is wanted and may be listed.
    fn meet(&self, tools: &mut Self::Tools, path: WorkspacePath, kind: ObjectKind);
}

/// One search under way.
pub(super) struct Walk<'a, V> {
    pub(super) context: &'a Context<'a>,
    pub(super) tally: &'a Tally<'a>,
    pub(super) visitor: &'a V,
    /// Whether what is ignored is found too.
    pub(super) ignored: bool,
    /// Length of the start's path with the slash after it.
    start: usize,
    spent: Spent,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A directory.
#[derive(Debug)]
struct Place {
    path: WorkspacePath,
    depth: usize,
    /// Whether the agent may know of it.
    seen: bool,
    ignores: Option<Arc<Ignores>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Where the walk begins.
    first: Option<Place>,
    waiting: Vec<Waiting>,
    /// Threads that are at work and may bring more.
    busy: usize,
    /// Threads that have nothing to do.
    idle: usize,
    /// Files that wait for one of them.
    handed: usize,
}

/// What waits: the directories in one, or files.
#[derive(Debug)]
enum Waiting {
    Directories(Arc<Place>, Names),
    Files(Vec<WorkspacePath>),
}

enum Task {
    Enter(Place),
    Meet(Vec<WorkspacePath>),
}

impl<'a, V: Visitor> Walk<'a, V> {
    /// Prepares a walk beneath the directory `start`.
    pub(super) fn new(
        context: &'a Context<'a>,
        tally: &'a Tally<'a>,
        visitor: &'a V,
        start: &WorkspacePath,
        ignored: bool,
    ) -> Self {
        Self {
            context,
            tally,
            visitor,
            ignored,
            start: start.as_str().len() + usize::from(!start.is_root()),
            spent: Spent::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Walks until nothing is left or the tally says stop. With `seen` the
    /// agent may know that `start` is there.
    pub(super) fn run(&self, start: WorkspacePath, seen: bool) {
        let ignores = if self.ignored { None } else { self.ignores_above(&start) };
        lock(&self.queue).first = Some(Place { path: start, depth: 0, seen, ignores });
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        thread::scope(|scope| {
            for _ in 1..threads {
                // Without another thread this one does all of it.
                let spawned = thread::Builder::new()
                    .name("search".to_owned())
                    .spawn_scoped(scope, || self.work(&mut self.visitor.tools()));
                if let Err(error) = spawned {
                    tracing::warn!(%error, "a search goes on with fewer threads");
                }
            }
            self.work(&mut self.visitor.tools());
        });
    }

    /// What the directories above the start ignore.
    fn ignores_above(&self, start: &WorkspacePath) -> Option<Arc<Ignores>> {
        start.ancestors().iter().fold(None, |above, directory| {
            let (ignores, skipped) =
                Ignores::within(above.as_ref(), self.context, directory, &self.spent);
            skipped.into_iter().for_each(|why| self.tally.skip(why));
            ignores
        })
    }

    fn work(&self, tools: &mut V::Tools) {
        while let Some((task, _busy)) = self.next() {
            match task {
                Task::Enter(place) => self.enter(tools, place),
                Task::Meet(files) => self.meet_all(tools, files),
            }
        }
    }

    /// Waits for something to do; `None` when nothing will come any more.
    fn next(&self) -> Option<(Task, Busy<'_>)> {
        let mut queue = lock(&self.queue);
        loop {
            if self.tally.is_stopped() {
                self.changed.notify_all();
                return None;
            }
            if let Some(task) = queue.take() {
                queue.busy += 1;
                return Some((task, Busy { queue: &self.queue, changed: &self.changed }));
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

    /// Reads one directory.
    fn enter(&self, tools: &mut V::Tools, mut place: Place) {
        if !self.tally.goes_on() {
            return;
        }
        let (workspace, flags) = (self.context.workspace, OFlags::RDONLY | OFlags::DIRECTORY);
        let opened = match place.depth {
            0 => workspace.open_at(&place.path, flags),
            _ => workspace.open_listed(&place.path, flags),
        };
        let directory = match opened {
            Ok(directory) => directory,
            Err(error) => return self.skip(&place, Skipped::from(&error)),
        };
        if !self.ignored {
            let above = place.ignores.take();
            let (ignores, skipped) =
                Ignores::within(above.as_ref(), self.context, &place.path, &self.spent);
            place.ignores = ignores;
            skipped.into_iter().for_each(|why| self.skip(&place, why));
        }
        let place = Arc::new(place);
        let sights = self.context.policy.sights(&self.query(&place.path));
        let (mut directories, mut files) = (Names::default(), Vec::new());
        let (mut count, mut shown) = (0, 0);
        let read = stream_names(directory, |name, kind| {
            count += 1;
            let stop = match count % NAMES {
                0 => !self.tally.goes_on(),
                _ => self.tally.is_stopped(),
            };
            if stop {
                return ControlFlow::Break(());
            }
            if self.look(tools, &place, &sights, (name, kind), &mut directories, &mut files) {
                shown += 1;
                if shown % NAMES == 0 {
                    self.tally.looked(NAMES);
                }
            }
            if files.len() >= BATCH {
                let batch = std::mem::take(&mut files);
                if let Some(batch) = self.hand_over(batch) {
                    self.meet_all(tools, batch);
                }
            }
            ControlFlow::Continue(())
        });
        self.tally.looked(shown % NAMES);
        match read {
            Ok(not_utf8) if not_utf8 > 0 && tells_of_unnamed(&sights, &place.path) => {
                (0..not_utf8).for_each(|_| self.skip(&place, Skipped::NotUtf8));
            }
            Ok(_) => {}
            Err(error) => self.skip(&place, Skipped::from(&error)),
        }
        if directories.len() > 0 {
            lock(&self.queue).waiting.push(Waiting::Directories(place, directories));
            self.changed.notify_all();
        }
        self.meet_all(tools, files);
    }

    /// Decides about one name in a directory. True for one that matters to the search
    /// and may be seen: others must not count in what is told of its progress.
    fn look(
        &self,
        tools: &mut V::Tools,
        place: &Place,
        sights: &Sights<'_>,
        (name, kind): (&str, Option<ObjectKind>),
        directories: &mut Names,
        files: &mut Vec<WorkspacePath>,
    ) -> bool {
        // The policy cannot be asked about so long a path, and a denied name does not count.
        let Ok(path) = place.path.join(name) else { return false };
        let Some(kind) = kind.or_else(|| self.kind(&path)) else { return false };
        let directory = kind == ObjectKind::Directory;
        let relative = path.as_str().get(self.start..).unwrap_or_default();
        let (wanted, enter) =
            (self.visitor.wants(relative, kind), directory && self.visitor.enters(relative));
        if !wanted && !enter {
            return false;
        }
        if !self.ignored && Ignores::is_git(name) {
            return false;
        }
        let ignores = place.ignores.as_ref();
        let ignored = ignores.is_some_and(|ignores| ignores.ignore(&path, directory));
        let object = Object { kind, links: 1, through_symlink: false };
        let Some(sight) = sights.of(name, || Some(&path), &object) else { return false };
        let seen = match sight {
            Sight::Shown { .. } if ignored => {
                self.tally.skip(Skipped::Ignored);
                return false;
            }
            _ if ignored => return false,
            Sight::Shown { relaxed } => {
                if relaxed {
                    self.tally.relaxed();
                }
                true
            }
            Sight::Closed if enter && self.context.policy.may_allow_beneath(&self.query(&path)) => {
                false
            }
            Sight::Asked => {
                self.tally.asked();
                return false;
            }
            Sight::Closed | Sight::Denied => return false,
        };
        if enter {
            if place.depth >= self.tally.depth() {
                if seen {
                    self.tally.skip(Skipped::TooDeep);
                }
            } else {
                directories.push(name, seen);
            }
        }
        match (wanted && seen, kind) {
            (false, _) => {}
            (true, ObjectKind::File) => files.push(path),
            (true, _) => self.visitor.meet(tools, path, kind),
        }
        seen
    }

    /// The question whether something may be seen.
    fn query<'q>(&'q self, path: &'q WorkspacePath) -> Query<'q> {
        let Context { agent, operation, .. } = *self.context;
        Query { agent, operation, access: Access::List, path }
    }

    /// What an entry is where its directory does not tell.
    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind> {
        let fd = self.context.workspace.open_listed(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        Some(Stat::of(fd).ok()?.kind)
    }

    /// Gives the files to another thread, if one waits.
    fn hand_over(&self, files: Vec<WorkspacePath>) -> Option<Vec<WorkspacePath>> {
        let mut queue = lock(&self.queue);
        // One that is woken for them counts as idle until it has them.
        if queue.idle <= queue.handed {
            return Some(files);
        }
        queue.handed += 1;
        queue.waiting.push(Waiting::Files(files));
        drop(queue);
        self.changed.notify_one();
        None
    }

    fn meet_all(&self, tools: &mut V::Tools, files: Vec<WorkspacePath>) {
        for path in files {
            if !self.tally.goes_on() {
                return;
            }
            self.visitor.meet(tools, path, ObjectKind::File);
        }
    }

    /// Counts something in a directory, if the agent may know of that.
    fn skip(&self, place: &Place, why: Skipped) {
        if place.seen {
            self.tally.skip(why);
        }
    }
}

impl Queue {
    fn take(&mut self) -> Option<Task> {
        if let Some(first) = self.first.take() {
            return Some(Task::Enter(first));
        }
        loop {
            if let Waiting::Directories(place, names) = self.waiting.last_mut()?
                && let Some((name, seen)) = names.pop()
            {
                let Place { path, depth, ignores, .. } = &**place;
                let Ok(path) = path.join(&name) else { continue };
                let (depth, ignores) = (depth + 1, ignores.clone());
                return Some(Task::Enter(Place { path, depth, seen, ignores }));
            }
            if let Waiting::Files(files) = self.waiting.pop()? {
                self.handed = self.handed.saturating_sub(1);
                return Some(Task::Meet(files));
            }
        }
    }
}

/// A thread is at work as long as this lives.
struct Busy<'w> {
    queue: &'w Mutex<Queue>,
    changed: &'w Condvar,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut queue = lock(self.queue);
        queue.busy = queue.busy.saturating_sub(1);
        if queue.busy == 0 {
            self.changed.notify_all();
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
