//! Listings of directories. A directory is listed after it is watched, so that an entry made in
//! between is seen twice rather than not at all.

use super::{
    directories::{Directories, Unwatched},
    hub::{MAX_WATCHED, Refusal, WatchState, rescan},
    queue::{Change, EventKind},
    tree::{Id, ROOT},
};
use crate::{model::WorkspacePath, policy::ObjectKind};

impl<D: Directories> WatchState<D> {
    /// Lists everything again, because something may have been missed, and makes all subscribers do
    /// the same.
    pub(super) fn look_again(&mut self) {
        if let Err(error) = self.look_from_root() {
            self.fail(&error);
        }
        self.scopes.iter().for_each(|scope| scope.report(&rescan(scope.start())));
    }

    pub(super) fn look_from_root(&mut self) -> Result<(), Refusal<D::Error>> {
        for scope in &mut self.scopes {
            let enters = scope.start().is_root();
            scope.entered.set(ROOT, enters);
        }
        self.explore(ROOT, &[])
    }

    /// Watches the directory `id` and, as far as scopes want it, everything beneath it. Reports
    /// every entry to the scopes that are marked in `whom`.
    pub(super) fn explore(&mut self, id: Id, whom: &[bool]) -> Result<(), Refusal<D::Error>> {
        let announce = whom.contains(&true);
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let Some(path) = self.tree.path(id) else { continue };
            let Some(directory) = self.open(id, &path)? else { continue };
            let entered = self.scopes.iter().any(|scope| scope.entered.has(id));
            let interesting = announce && entered;
            let (mut directories, mut others) = (Vec::new(), Vec::new());
            if entered {
                let read = self.directories.names(directory, &mut |name, kind| match kind {
                    Some(ObjectKind::Directory) => directories.push(name.to_owned()),
                    None => others.push((name.to_owned(), None)),
                    kind if interesting => others.push((name.to_owned(), kind)),
                    _ => {}
                });
                self.unreadable += u64::from(!read);
            } else {
                // Only entries on the way to the start of a scope matter.
                for name in self.ways(&path) {
                    let Ok(path) = path.join(&name) else { continue };
                    match self.directories.kind(&path) {
                        Some(ObjectKind::Directory) => directories.push(name),
                        Some(kind) => others.push((name, Some(kind))),
                        None => {}
                    }
                }
            }
            others.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            for (name, kind) in others {
                let Ok(path) = path.join(&name) else { continue };
                let Some(kind) = kind.or_else(|| self.directories.kind(&path)) else { continue };
                if kind == ObjectKind::Directory {
                    directories.push(name);
                } else if announce {
                    self.announce_found(id, name, &path, kind, whom);
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
                    self.announce_found(id, name.clone(), &path, kind, whom);
                }
                pending.extend(self.admit(id, &name, &path)?);
            }
        }
        Ok(())
    }

    /// Opens a directory and watches it; `None` if it is gone or cannot be read.
    fn open(
        &mut self,
        id: Id,
        path: &WorkspacePath,
    ) -> Result<Option<D::Opened>, Refusal<D::Error>> {
        let (directory, watch) = match self.directories.watch(path) {
            Ok(watched) => watched,
            Err(Unwatched::Failed(error)) => return Err(Refusal::System(error)),
            Err(error) => {
                self.unreadable += u64::from(matches!(error, Unwatched::Unreadable));
                if id != ROOT {
                    self.forget(id);
                }
                return Ok(None);
            }
        };
        let old = self.tree.watch(id);
        if old != Some(watch) {
            // Another directory has this name now, with others beneath it; or this one was known
            // under another name.
            for child in self.tree.children(id) {
                self.forget(child);
            }
            if let Some(elsewhere) = self.tree.by_watch(watch).filter(|other| *other != id) {
                self.tree.set_watch(elsewhere, None);
                self.forget(elsewhere);
            }
            if let Some(old) = old {
                self.directories.unwatch(old);
            }
            if !self.tree.contains(id) {
                self.directories.unwatch(watch);
                return Ok(None);
            }
            self.tree.set_watch(id, Some(watch));
        }
        Ok(Some(directory))
    }

    /// Adds a directory if a scope wants it; returns its ID.
    pub(super) fn admit(
        &mut self,
        parent: Id,
        name: &str,
        path: &WorkspacePath,
    ) -> Result<Option<Id>, Refusal<D::Error>> {
        let enter: Vec<bool> = self
            .scopes
            .iter()
            .map(|s| s.enters(&self.policy, s.entered.has(parent), path))
            .collect();
        let wanted = enter.contains(&true) || self.scopes.iter().any(|s| s.leads_through(path));
        if !wanted || self.directories.is_temporary(name) {
            if let Some(child) = self.tree.child(parent, name) {
                self.forget(child);
            }
            return Ok(None);
        }
        if self.tree.len() >= MAX_WATCHED {
            return Err(Refusal::TooLarge);
        }
        let Some(id) = self.tree.add(parent, name) else { return Ok(None) };
        for (scope, enter) in self.scopes.iter_mut().zip(enter) {
            scope.entered.set(id, enter);
        }
        Ok(Some(id))
    }

    /// Returns the entries of the directory at `path` that lead to the starts of scopes.
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

    /// Reports an entry that was found by listing to the scopes that are marked in `whom`.
    fn announce_found(
        &mut self,
        parent: Id,
        name: String,
        path: &WorkspacePath,
        kind: ObjectKind,
        whom: &[bool],
    ) {
        let change = Change { what: EventKind::Created, path: path.clone(), kind };
        for (scope, _) in self.scopes.iter().zip(whom).filter(|(_, marked)| **marked) {
            if scope.shows(&self.policy, parent, path, kind) {
                scope.report(&change);
            }
        }
        self.found.insert(parent, name);
    }
}
