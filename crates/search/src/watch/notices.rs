//! From what the kernel says of directories to what subscribers are told.
//!
//! A renaming is two notices. What moves between what one may see and what one
//! may not is told as if it came or went. The gate's own changes are exchanges
//! with a temporary name: the name itself is never told, and the file has
//! changed.

use std::collections::{HashMap, HashSet};

use super::{
    directories::{Directories, Notice, WatchId, What},
    found::Found,
    hub::{WatchState, rescan},
    queue::{Change, EventKind},
    tree::Id,
};
use crate::{model::WorkspacePath, policy::ObjectKind};

/// A watch and a name in its directory.
type Raw<'n> = (WatchId, &'n str);

/// An entry of a watched directory.
struct WatchedEntry {
    parent: Id,
    name: String,
    path: WorkspacePath,
}

fn raw(notice: &Notice) -> Option<Raw<'_>> {
    Some((notice.watch, notice.name.as_deref()?))
}

/// Whether the other half of something may come in a moment.
pub(super) fn is_unsettled(notices: &[Notice], directories: &impl Directories) -> bool {
    let mut gone = HashSet::new();
    let mut reserved = false;
    for notice in notices {
        match notice.what {
            What::MovedFrom(cookie) => {
                gone.insert(cookie);
                // The other way round it is the second half of an exchange.
                reserved =
                    notice.name.as_deref().is_some_and(|name| directories.is_temporary(name));
            }
            What::MovedTo(cookie) => drop(gone.remove(&cookie)),
            _ => {}
        }
    }
    !gone.is_empty() || reserved
}

/// The notices of one batch, each of which is dealt with once.
struct Batch {
    notices: Vec<Option<Notice>>,
    /// Where the second half of each renaming is.
    arrivals: HashMap<u32, usize>,
}

impl Batch {
    fn new(notices: Vec<Notice>) -> Self {
        let arrival = |(at, notice): (usize, &Notice)| match notice.what {
            What::MovedTo(cookie) => Some((cookie, at)),
            _ => None,
        };
        let arrivals = notices.iter().enumerate().filter_map(arrival).collect();
        Self { notices: notices.into_iter().map(Some).collect(), arrivals }
    }

    fn take(&mut self, at: usize) -> Option<Notice> {
        self.notices.get_mut(at)?.take()
    }

    /// The second half of the renaming `cookie`.
    fn take_arrival(&mut self, cookie: u32) -> Option<Notice> {
        let at = *self.arrivals.get(&cookie)?;
        self.take(at)
    }

    /// Where the renaming is that makes one of `from` to `to`, at `at`, an
    /// exchange: the next one, and the other way round.
    fn way_back(
        &self,
        at: usize,
        from: Option<Raw<'_>>,
        to: Option<Raw<'_>>,
    ) -> Option<[usize; 2]> {
        let (from, to) = (from?, to?);
        let is_departure =
            |notice: &Notice| matches!(notice.what, What::MovedFrom(_)).then_some(notice.what);
        let (back, what) = self
            .notices
            .iter()
            .enumerate()
            .skip(at)
            .find_map(|(at, notice)| Some((at, is_departure(notice.as_ref()?)?)))?;
        let What::MovedFrom(cookie) = what else { return None };
        let arrival = *self.arrivals.get(&cookie)?;
        let at = |at: usize| self.notices.get(at)?.as_ref().and_then(raw);
        (at(back) == Some(to) && at(arrival) == Some(from)).then_some([back, arrival])
    }
}

impl<D: Directories> WatchState<D> {
    /// Deals with notices in their order.
    pub(super) fn deal_with(&mut self, notices: Vec<Notice>) {
        let count = notices.len();
        let mut batch = Batch::new(notices);
        let mut lost = false;
        for at in 0..count {
            let Some(notice) = batch.take(at) else { continue };
            match notice.what {
                What::Lost => lost = true,
                What::Gone => {
                    if let Some(id) = self.tree.by_watch(notice.watch) {
                        self.tree.set_watch(id, None);
                        self.forget(id);
                    }
                }
                What::Created => {
                    // What was found and told before was this; no other has the name
                    // without going first. One that moves there can take its place.
                    if let Some(place) = self.place(&notice)
                        && !self.unfind(&place)
                    {
                        self.came(&place, notice.directory);
                    }
                }
                What::MovedTo(_) => {
                    if let Some(place) = self.place(&notice) {
                        self.came(&place, notice.directory);
                    }
                }
                What::Deleted => {
                    if let Some(place) = self.place(&notice) {
                        self.went(&place, notice.directory, false);
                    }
                }
                What::Modified => {
                    if let Some(place) = self.place(&notice).filter(|_| !notice.directory) {
                        self.tell(&place, EventKind::Modified, ObjectKind::File);
                    }
                }
                What::MovedFrom(cookie) => {
                    let to = batch.take_arrival(cookie);
                    self.moved(&mut batch, at, &notice, to.as_ref());
                }
            }
        }
        if lost {
            // That it went may be among what was lost.
            self.found = Found::default();
            self.look_again();
        }
    }

    /// The directory in which a name is that may be told, and the path that it makes.
    fn entry(&self, (watch, name): Raw<'_>) -> Option<(Id, WorkspacePath)> {
        if self.directories.is_temporary(name) {
            return None;
        }
        let parent = self.tree.by_watch(watch)?;
        Some((parent, self.tree.path(parent)?.join(name).ok()?))
    }

    /// What a notice is about; `None` when nobody may ever hear of it.
    fn place(&self, notice: &Notice) -> Option<WatchedEntry> {
        let (parent, path) = self.entry(raw(notice)?)?;
        Some(WatchedEntry { parent, name: notice.name.clone()?, path })
    }

    fn moved(&mut self, batch: &mut Batch, at: usize, gone: &Notice, came: Option<&Notice>) {
        let from = self.place(gone);
        let to = came.and_then(|came| self.place(came));
        let back = batch.way_back(at, raw(gone), came.and_then(raw));
        let there = |place: &WatchedEntry| self.directories.kind(&place.path).is_some();
        let exchanged = match (&from, &to) {
            (Some(from), Some(to)) => back.is_some() && there(from) && there(to),
            _ => back.is_some(),
        };
        // What was at the other name before, as its own departure says.
        let mut other = false;
        if exchanged {
            let halves = back.into_iter().flatten().map(|at| batch.take(at));
            other = halves.flatten().any(|notice| notice.directory);
        }
        if exchanged {
            for (place, was) in [(from, gone.directory), (to, other)] {
                if let Some(place) = place {
                    self.replaced(&place, was);
                }
            }
            return;
        }
        match (from, to) {
            (None, None) => {}
            (None, Some(to)) if self.is_exchanging(gone) => {
                self.replaced(&to, self.is_known(&to));
            }
            (None, Some(to)) => self.came(&to, gone.directory),
            // Only half of an exchange was told so far.
            (Some(from), None) if self.directories.kind(&from.path).is_some() => {
                self.replaced(&from, gone.directory);
            }
            (Some(from), None) => self.went(&from, gone.directory, true),
            (Some(from), Some(to)) => {
                match gone.directory {
                    true => self.directory_renamed(&from, &to),
                    false => self.renamed(&from, &to),
                }
                // Something new has the old name, or got it in exchange.
                if let Some(kind) = self.directories.kind(&from.path) {
                    self.came(&from, kind == ObjectKind::Directory);
                    self.found.insert(from.parent, from.name);
                }
            }
        }
    }

    /// Whether something has the temporary name that was the gate's before.
    fn is_exchanging(&self, gone: &Notice) -> bool {
        let name = gone.name.as_deref().filter(|name| self.directories.is_temporary(name));
        let directory = self.tree.by_watch(gone.watch).and_then(|id| self.tree.path(id));
        let path = name.zip(directory).and_then(|(name, directory)| directory.join(name).ok());
        path.is_some_and(|path| self.directories.kind(&path).is_some())
    }

    /// An entry is new in its directory, or took the place of one that was found there
    /// and told. A directory is then told anew with all in it.
    fn came(&mut self, place: &WatchedEntry, directory: bool) {
        let told = self.unfind(place);
        if directory {
            self.tell(place, EventKind::Created, ObjectKind::Directory);
            return self.look_into(place, &vec![true; self.scopes.len()]);
        }
        let kind = self.other_kind(&place.path);
        self.tell(place, if told { EventKind::Modified } else { EventKind::Created }, kind);
        self.forget_child(place);
    }

    /// Whether the entry was a watched directory.
    fn is_known(&self, place: &WatchedEntry) -> bool {
        self.tree.child(place.parent, &place.name).is_some()
    }

    /// Something else has the entry's name now; `was` tells whether a directory
    /// had it.
    fn replaced(&mut self, place: &WatchedEntry, was: bool) {
        match self.directories.kind(&place.path) {
            Some(kind) if kind != ObjectKind::Directory && !was => {
                self.tell(place, EventKind::Modified, kind);
            }
            now => {
                self.went(place, was || now == Some(ObjectKind::Directory), true);
                if let Some(now) = now {
                    self.came(place, now == ObjectKind::Directory);
                }
            }
        }
    }

    /// An entry is in its directory no more; with `whole` it may have taken
    /// along what lies beneath it.
    fn went(&mut self, place: &WatchedEntry, directory: bool, whole: bool) {
        self.unfind(place);
        let kind = if directory { ObjectKind::Directory } else { ObjectKind::File };
        self.tell(place, EventKind::Deleted, kind);
        let child = self.tree.child(place.parent, &place.name);
        for scope in self.scopes.iter().filter(|_| whole && directory) {
            // What went with a directory of which one may not hear.
            let entered = child.is_some_and(|child| scope.entered.has(child));
            let told = scope.shows(&self.policy, place.parent, &place.path, kind);
            if scope.leads_through(&place.path) || (entered && !told) {
                scope.tell(&rescan(scope.start()));
            }
        }
        self.forget_child(place);
    }

    /// A file, a link or the like has another name.
    fn renamed(&mut self, from: &WatchedEntry, to: &WatchedEntry) {
        let kind = self.other_kind(&to.path);
        // What was found at the new name may be what this took the place of.
        self.unfind(to);
        self.unfind(from);
        self.forget_child(from);
        self.forget_child(to);
        for scope in &self.scopes {
            let shows =
                |place: &WatchedEntry| scope.shows(&self.policy, place.parent, &place.path, kind);
            if let Some(change) = renaming(from, to, (shows(from), shows(to)), kind) {
                scope.tell(&change);
            }
        }
    }

    /// A directory has another name. What was known beneath it may be wrong: notices
    /// that wait are about the old name or the new one, and more of them come. So it is
    /// watched anew, and whoever follows it looks at all beneath it again.
    fn directory_renamed(&mut self, from: &WatchedEntry, to: &WatchedEntry) {
        let known = self.unfind(to);
        self.unfind(from);
        let child = self.tree.child(from.parent, &from.name);
        let kind = ObjectKind::Directory;
        let mut follow = Vec::new();
        for scope in &self.scopes {
            let shows =
                |place: &WatchedEntry| scope.shows(&self.policy, place.parent, &place.path, kind);
            let (old, new) = (shows(from), shows(to) && !known);
            if let Some(change) = renaming(from, to, (old, new), kind) {
                scope.tell(&change);
            }
            // What could be seen beneath a directory of which one may not hear.
            let entered = child.is_some_and(|child| scope.entered.has(child));
            if scope.leads_through(&from.path) || (entered && !old) {
                scope.tell(&rescan(scope.start()));
            }
            follow.push(old && new);
        }
        self.forget_child(from);
        self.forget_child(to);
        let whom: Vec<_> = follow.iter().map(|follow| !follow).collect();
        self.look_into(to, &whom);
        for (scope, _) in self.scopes.iter().zip(follow).filter(|(_, follow)| *follow) {
            if scope.enters(&self.policy, scope.entered.has(to.parent), &to.path) {
                scope.tell(&rescan(&to.path));
            }
        }
    }

    /// Watches a directory that came or has another name, and tells the scopes that
    /// are marked in `whom` of what is in it.
    fn look_into(&mut self, place: &WatchedEntry, whom: &[bool]) {
        let looked = self
            .admit(place.parent, &place.name, &place.path)
            .and_then(|id| id.map_or(Ok(()), |id| self.explore(id, whom)));
        if let Err(error) = looked {
            self.fail(&error);
        }
    }

    fn tell(&self, place: &WatchedEntry, what: EventKind, kind: ObjectKind) {
        let change = Change { what, path: place.path.clone(), kind };
        for scope in &self.scopes {
            if scope.shows(&self.policy, place.parent, &place.path, kind) {
                scope.tell(&change);
            }
        }
    }

    /// Whether the entry was told of when it was found; it is not so any more.
    fn unfind(&mut self, place: &WatchedEntry) -> bool {
        self.found.take(place.parent, &place.name)
    }

    /// What an entry is that was no directory when the kernel told of it.
    fn other_kind(&self, path: &WorkspacePath) -> ObjectKind {
        let now = self.directories.kind(path).filter(|kind| *kind != ObjectKind::Directory);
        now.unwrap_or(ObjectKind::File)
    }

    fn forget_child(&mut self, place: &WatchedEntry) {
        if let Some(child) = self.tree.child(place.parent, &place.name) {
            self.forget(child);
        }
    }
}

/// What is told of a renaming to whoever may see the old and the new name, or one of them.
fn renaming(
    from: &WatchedEntry,
    to: &WatchedEntry,
    (old, new): (bool, bool),
    kind: ObjectKind,
) -> Option<Change> {
    let (what, path) = match (old, new) {
        (true, true) => (EventKind::Renamed { from: from.path.clone() }, &to.path),
        (true, false) => (EventKind::Deleted, &from.path),
        (false, true) => (EventKind::Created, &to.path),
        (false, false) => return None,
    };
    Some(Change { what, path: path.clone(), kind })
}
