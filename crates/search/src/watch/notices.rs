//! Translation of kernel notices into changes for subscribers.
//!
//! A rename is two notices. A move between visible and hidden paths is reported as a creation or a
//! removal. The gateway's own changes are exchanges with a temporary name: that name is never
//! reported, and the file counts as modified.

use std::collections::{HashMap, HashSet};

use super::{
    directories::{Directories, DirectoryEvent, Notice, WatchId},
    hub::{WatchState, rescan},
    known_entries::KnownEntries,
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

/// True if the other half of a rename or an exchange may follow shortly.
pub(super) fn is_unsettled(notices: &[Notice], directories: &impl Directories) -> bool {
    let mut gone = HashSet::new();
    let mut reserved = false;
    for notice in notices {
        match notice.what {
            DirectoryEvent::MovedFrom(cookie) => {
                gone.insert(cookie);
                // In the other direction it is the second half of an exchange.
                reserved =
                    notice.name.as_deref().is_some_and(|name| directories.is_temporary(name));
            }
            DirectoryEvent::MovedTo(cookie) => drop(gone.remove(&cookie)),
            _ => {}
        }
    }
    !gone.is_empty() || reserved
}

/// The notices of one batch, each of which is processed once.
struct Batch {
    notices: Vec<Option<Notice>>,
    /// The position of the second half of each rename.
    arrivals: HashMap<u32, usize>,
}

impl Batch {
    fn new(notices: Vec<Notice>) -> Self {
        let arrival = |(at, notice): (usize, &Notice)| match notice.what {
            DirectoryEvent::MovedTo(cookie) => Some((cookie, at)),
            _ => None,
        };
        let arrivals = notices.iter().enumerate().filter_map(arrival).collect();
        Self { notices: notices.into_iter().map(Some).collect(), arrivals }
    }

    fn take(&mut self, at: usize) -> Option<Notice> {
        self.notices.get_mut(at)?.take()
    }

    /// Takes the second half of the rename `cookie`.
    fn take_arrival(&mut self, cookie: u32) -> Option<Notice> {
        let at = *self.arrivals.get(&cookie)?;
        self.take(at)
    }

    /// Returns the positions of the rename that makes the one from `from` to `to`, at `at`, an
    /// exchange: the next one, in the other direction.
    fn reverse_rename(
        &self,
        at: usize,
        from: Option<Raw<'_>>,
        to: Option<Raw<'_>>,
    ) -> Option<[usize; 2]> {
        let (from, to) = (from?, to?);
        let is_departure = |notice: &Notice| {
            matches!(notice.what, DirectoryEvent::MovedFrom(_)).then_some(notice.what)
        };
        let (back, what) = self
            .notices
            .iter()
            .enumerate()
            .skip(at)
            .find_map(|(at, notice)| Some((at, is_departure(notice.as_ref()?)?)))?;
        let DirectoryEvent::MovedFrom(cookie) = what else { return None };
        let arrival = *self.arrivals.get(&cookie)?;
        let at = |at: usize| self.notices.get(at)?.as_ref().and_then(raw);
        (at(back) == Some(to) && at(arrival) == Some(from)).then_some([back, arrival])
    }
}

impl<D: Directories> WatchState<D> {
    /// Processes notices in order.
    pub(super) fn process(&mut self, notices: Vec<Notice>) {
        let count = notices.len();
        let mut batch = Batch::new(notices);
        let mut lost = false;
        for at in 0..count {
            let Some(notice) = batch.take(at) else { continue };
            match notice.what {
                DirectoryEvent::Lost => lost = true,
                DirectoryEvent::Gone => {
                    if let Some(id) = self.tree.by_watch(notice.watch) {
                        self.tree.set_watch(id, None);
                        self.forget(id);
                    }
                }
                DirectoryEvent::Created => {
                    // The entry was found and reported already: no other can have the name unless
                    // this one was removed before. A rename, however, can replace it.
                    if let Some(place) = self.place(&notice)
                        && !self.forget_listed(&place)
                    {
                        self.came(&place, notice.directory);
                    }
                }
                DirectoryEvent::MovedTo(_) => {
                    if let Some(place) = self.place(&notice) {
                        self.came(&place, notice.directory);
                    }
                }
                DirectoryEvent::Deleted => {
                    if let Some(place) = self.place(&notice) {
                        self.went(&place, notice.directory, false);
                    }
                }
                DirectoryEvent::Modified => {
                    if let Some(place) = self.place(&notice).filter(|_| !notice.directory) {
                        self.report(&place, EventKind::Modified, ObjectKind::File);
                    }
                }
                DirectoryEvent::MovedFrom(cookie) => {
                    let to = batch.take_arrival(cookie);
                    self.moved(&mut batch, at, &notice, to.as_ref());
                }
            }
        }
        if lost {
            // The notice of its removal may be among those that were lost.
            self.found = KnownEntries::default();
            self.look_again();
        }
    }

    /// Returns the parent directory and the path of a name that may be reported.
    fn entry(&self, (watch, name): Raw<'_>) -> Option<(Id, WorkspacePath)> {
        if self.directories.is_temporary(name) {
            return None;
        }
        let parent = self.tree.by_watch(watch)?;
        Some((parent, self.tree.path(parent)?.join(name).ok()?))
    }

    /// Returns the entry that a notice is about; `None` if it is never reported.
    fn place(&self, notice: &Notice) -> Option<WatchedEntry> {
        let (parent, path) = self.entry(raw(notice)?)?;
        Some(WatchedEntry { parent, name: notice.name.clone()?, path })
    }

    fn moved(&mut self, batch: &mut Batch, at: usize, gone: &Notice, came: Option<&Notice>) {
        let from = self.place(gone);
        let to = came.and_then(|came| self.place(came));
        let back = batch.reverse_rename(at, raw(gone), came.and_then(raw));
        let there = |place: &WatchedEntry| self.directories.kind(&place.path).is_some();
        let exchanged = match (&from, &to) {
            (Some(from), Some(to)) => back.is_some() && there(from) && there(to),
            _ => back.is_some(),
        };
        // True if the other name's entry was a directory, according to its own notice.
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
            // Only half of an exchange was reported so far.
            (Some(from), None) if self.directories.kind(&from.path).is_some() => {
                self.replaced(&from, gone.directory);
            }
            (Some(from), None) => self.went(&from, gone.directory, true),
            (Some(from), Some(to)) => {
                match gone.directory {
                    true => self.directory_renamed(&from, &to),
                    false => self.renamed(&from, &to),
                }
                // A new entry has the old name, or got it by an exchange.
                if let Some(kind) = self.directories.kind(&from.path) {
                    self.came(&from, kind == ObjectKind::Directory);
                    self.found.insert(from.parent, from.name);
                }
            }
        }
    }

    /// True if an entry has the temporary name that was the gateway's before.
    fn is_exchanging(&self, gone: &Notice) -> bool {
        let name = gone.name.as_deref().filter(|name| self.directories.is_temporary(name));
        let directory = self.tree.by_watch(gone.watch).and_then(|id| self.tree.path(id));
        let path = name.zip(directory).and_then(|(name, directory)| directory.join(name).ok());
        path.is_some_and(|path| self.directories.kind(&path).is_some())
    }

    /// Reports an entry that is new in its directory, or replaced one that was found and reported
    /// there. A directory is then reported again with everything in it.
    fn came(&mut self, place: &WatchedEntry, directory: bool) {
        let told = self.forget_listed(place);
        if directory {
            self.report(place, EventKind::Created, ObjectKind::Directory);
            return self.look_into(place, &vec![true; self.scopes.len()]);
        }
        let kind = self.other_kind(&place.path);
        self.report(place, if told { EventKind::Modified } else { EventKind::Created }, kind);
        self.forget_child(place);
    }

    /// True if the entry was a watched directory.
    fn is_known(&self, place: &WatchedEntry) -> bool {
        self.tree.child(place.parent, &place.name).is_some()
    }

    /// Reports an entry whose name another one has now; `was` is true if a directory had it.
    fn replaced(&mut self, place: &WatchedEntry, was: bool) {
        match self.directories.kind(&place.path) {
            Some(kind) if kind != ObjectKind::Directory && !was => {
                self.report(place, EventKind::Modified, kind);
            }
            now => {
                self.went(place, was || now == Some(ObjectKind::Directory), true);
                if let Some(now) = now {
                    self.came(place, now == ObjectKind::Directory);
                }
            }
        }
    }

    /// Reports that an entry left its directory; with `whole`, entries beneath it may have gone
    /// with it.
    fn went(&mut self, place: &WatchedEntry, directory: bool, whole: bool) {
        self.forget_listed(place);
        let kind = if directory { ObjectKind::Directory } else { ObjectKind::File };
        self.report(place, EventKind::Deleted, kind);
        let child = self.tree.child(place.parent, &place.name);
        for scope in self.scopes.iter().filter(|_| whole && directory) {
            // Visible entries may have gone with a hidden directory.
            let entered = child.is_some_and(|child| scope.entered.has(child));
            let told = scope.shows(&self.policy, place.parent, &place.path, kind);
            if scope.leads_through(&place.path) || (entered && !told) {
                scope.report(&rescan(scope.start()));
            }
        }
        self.forget_child(place);
    }

    /// Reports that a file, a link or another non-directory was renamed.
    fn renamed(&mut self, from: &WatchedEntry, to: &WatchedEntry) {
        let kind = self.other_kind(&to.path);
        // The entry found at the new name may be the one that this one replaced.
        self.forget_listed(to);
        self.forget_listed(from);
        self.forget_child(from);
        self.forget_child(to);
        for scope in &self.scopes {
            let shows =
                |place: &WatchedEntry| scope.shows(&self.policy, place.parent, &place.path, kind);
            if let Some(change) = renaming(from, to, (shows(from), shows(to)), kind) {
                scope.report(&change);
            }
        }
    }

    /// Reports that a directory was renamed. Earlier knowledge of its content may be wrong: waiting
    /// notices are about the old name or the new one, and more of them follow. So it is watched
    /// anew, and its subscribers list everything beneath it again.
    fn directory_renamed(&mut self, from: &WatchedEntry, to: &WatchedEntry) {
        let known = self.forget_listed(to);
        self.forget_listed(from);
        let child = self.tree.child(from.parent, &from.name);
        let kind = ObjectKind::Directory;
        let mut follow = Vec::new();
        for scope in &self.scopes {
            let shows =
                |place: &WatchedEntry| scope.shows(&self.policy, place.parent, &place.path, kind);
            let (old, new) = (shows(from), shows(to));
            if let Some(change) = renaming(from, to, (old, new && !known), kind) {
                scope.report(&change);
            }
            // Entries beneath a hidden directory may have been visible.
            let entered = child.is_some_and(|child| scope.entered.has(child));
            if scope.leads_through(&from.path) || (entered && !old) {
                scope.report(&rescan(scope.start()));
            }
            // Of what was found and reported, something may be gone.
            follow.push(new && (old || known));
        }
        self.forget_child(from);
        self.forget_child(to);
        let whom: Vec<_> = follow.iter().map(|follow| !follow).collect();
        self.look_into(to, &whom);
        for (scope, _) in self.scopes.iter().zip(follow).filter(|(_, follow)| *follow) {
            if scope.enters(&self.policy, scope.entered.has(to.parent), &to.path) {
                scope.report(&rescan(&to.path));
            }
        }
    }

    /// Watches a new or renamed directory, and reports its entries to the scopes that are marked in
    /// `whom`.
    fn look_into(&mut self, place: &WatchedEntry, whom: &[bool]) {
        let looked = self
            .admit(place.parent, &place.name, &place.path)
            .and_then(|id| id.map_or(Ok(()), |id| self.explore(id, whom)));
        if let Err(error) = looked {
            self.fail(&error);
        }
    }

    fn report(&self, place: &WatchedEntry, what: EventKind, kind: ObjectKind) {
        let change = Change { what, path: place.path.clone(), kind };
        for scope in &self.scopes {
            if scope.shows(&self.policy, place.parent, &place.path, kind) {
                scope.report(&change);
            }
        }
    }

    /// Removes the entry from those found by listing; true if it was one of them.
    fn forget_listed(&mut self, place: &WatchedEntry) -> bool {
        self.found.take(place.parent, &place.name)
    }

    /// Returns the kind of an entry that was not a directory when the kernel reported it.
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

/// Returns the change to report of a rename, by whether the old and the new name are visible.
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
