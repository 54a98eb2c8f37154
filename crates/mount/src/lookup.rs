//! Names and attributes: LOOKUP, GETATTR, READDIR, READLINK.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use portcullis_core::{Stat, VisibleEntry, WorkspaceError};
use portcullis_policy::{ObjectKind, model::WorkspacePath};
use rustix::{fs::FileType, io::Errno};

use crate::{
    attributes::Attr,
    budget::BudgetPart,
    directory::List,
    errno,
    handles::OpenDirectory,
    mount::{Mount, is_served},
    node::{Bytes, LinkRead},
    nodes::LookupStart,
    open::MAX_READ_ATTEMPTS,
    staged::now,
    view_cache::{Key, is_settled},
    waiting::Program,
};

/// An open directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpeningDirectory {
    pub(crate) handle: u64,
    /// True if the kernel may cache the entries.
    pub(crate) caches: bool,
    /// True if its cached entries are current.
    pub(crate) keeps: bool,
}

/// The workspace's entries of a directory.
pub(crate) struct Names {
    pub(crate) shown: Vec<(String, ObjectKind)>,
    /// The number of those that are not shown.
    pub(crate) hidden: usize,
    /// The memory reserved for them.
    pub(crate) taken: BudgetPart,
}

impl Mount<'_> {
    /// Looks up a name. The kernel gets a reference to the node.
    ///
    /// # Errors
    /// `ENOENT` for what is missing or hidden.
    pub(crate) fn look_up(&self, parent: u64, name: &str) -> Result<Attr, Errno> {
        let mut room = u64::MAX;
        self.look_up_within(parent, name, &mut room)
    }

    /// Looks up a name, where at most `room` bytes may be read to compute the size of a file. The
    /// bytes read are subtracted.
    ///
    /// # Errors
    /// `EAGAIN` for a file that is larger.
    pub(crate) fn look_up_within(
        &self,
        parent: u64,
        name: &str,
        room: &mut u64,
    ) -> Result<Attr, Errno> {
        let path = self.path_of(parent, name)?;
        let look = {
            let mut state = self.lock();
            if let Some(id) = state.nodes.child(parent, name)
                && state.nodes.get(id).is_some_and(|node| node.is_staged_only())
            {
                state.nodes.refer(id);
                drop(state);
                return self.attributes(id);
            }
            state.nodes.look()
        };
        let seen = match self.seen(&path) {
            Ok(seen) => seen,
            Err(error) => {
                self.lock().nodes.missing(parent, name, look);
                return Err(error);
            }
        };
        let object = (seen.stat.kind, seen.stat.inode());
        let (found, is_crowded) = {
            let nodes = &mut self.lock().nodes;
            (nodes.found(parent, name, object, look), nodes.is_crowded())
        };
        if is_crowded {
            self.invalidations.all();
        }
        let id = found.map_err(|_| Errno::NFILE)?;
        self.describe(id, &path, (&seen, look), room).inspect_err(|_| self.forget_node(id, 1))
    }

    /// Records or counts the lookup of a name that was not found, if the policy hides it. Whether
    /// something is there makes no difference. Those of the sandbox's setup are no program's.
    pub(crate) fn record_hidden(&self, path: &WorkspacePath, pid: u32) {
        if self.is_setup() {
            return;
        }
        let mut is_recorded = false;
        let is_hidden = self.view().deny_lookup(path, || {
            let requester = self.requester(pid);
            is_recorded = self.hidden_lookups.is_first(
                self.policy(),
                (requester.tree, path.clone()),
                path.as_str().len(),
            );
            is_recorded.then(|| self.facts_of(requester))
        });
        if is_hidden {
            self.counts.refusals.add();
        }
        if is_hidden && !is_recorded {
            self.repeats.denial(path);
        }
    }

    /// Returns the current attributes of a node.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` when its name is gone or belongs to another object, unless it is open.
    pub(crate) fn attributes(&self, id: u64) -> Result<Attr, Errno> {
        let mut attempts = 1..MAX_READ_ATTEMPTS;
        loop {
            match self.try_attributes(id) {
                // A commit may have replaced the file that was being looked at.
                Err(Errno::STALE) if attempts.next().is_some() => {}
                found => return found,
            }
        }
    }

    fn try_attributes(&self, id: u64) -> Result<Attr, Errno> {
        let (path, look) = {
            let state = self.lock();
            let node = state.nodes.get(id).ok_or(Errno::STALE)?;
            if node.is_staged_only() || node.is_detached() {
                let returned_attr =
                    node.returned_attr.filter(|_| node.is_open() || node.is_staged_only());
                let attr = returned_attr.ok_or(Errno::STALE)?;
                let links = if node.is_detached() { 0 } else { attr.links };
                let attr = Attr { links, ..attr };
                return Ok(node.staged().map_or(attr, |staged| attr.staged(&staged.shows())));
            }
            (state.nodes.path(id).map_err(errno::of_gone), state.nodes.look())
        };
        match path.and_then(|path| Ok((self.seen(&path)?, path))) {
            Ok((seen, path)) if self.is_same(id, &seen, look) => {
                let mut room = u64::MAX;
                self.describe(id, &path, (&seen, look), &mut room)
            }
            Ok(_) => self.remembered(id, Errno::STALE),
            Err(error) => self.remembered(id, error),
        }
    }

    /// Returns true if `seen` is the object of the node, or cannot be proved to be another one.
    pub(crate) fn is_same(&self, id: u64, seen: &VisibleEntry, look: LookupStart) -> bool {
        let state = self.lock();
        let Some(node) = state.nodes.get(id) else { return false };
        let same = node.inode == Some(seen.stat.inode()) && node.kind == seen.stat.kind;
        same || node.inode.is_none() || !state.nodes.holds(look)
    }

    /// Returns the last attributes of an open node whose name is gone.
    fn remembered(&self, id: u64, error: Errno) -> Result<Attr, Errno> {
        let state = self.lock();
        let node = state.nodes.get(id).filter(|node| node.is_open());
        node.and_then(|node| node.returned_attr).ok_or(error)
    }

    /// Returns the attributes of a node, computed from `seen`, which was looked up since `look`.
    fn describe(
        &self,
        id: u64,
        path: &WorkspacePath,
        (seen, look): (&VisibleEntry, LookupStart),
        room: &mut u64,
    ) -> Result<Attr, Errno> {
        let (stat, version) = (&seen.stat, seen.stat.version());
        let mut size = stat.size;
        if stat.kind == ObjectKind::File {
            let key = Key { version, policy: self.policy() };
            let known = self.known_size(id, &key);
            size = match known {
                Some(size) => size,
                None if self.reads_for_size(stat.size) => {
                    *room = room.checked_sub(stat.size).ok_or(Errno::AGAIN)?;
                    self.view_size(id, path, stat, key)?
                }
                None => stat.size,
            };
        }
        let mut attr = Attr::new(id, stat, seen.traverse, size);
        let mut state = self.lock();
        // Otherwise a commit may have replaced what was looked up.
        let is_current = state.nodes.holds(look);
        let Some(node) = state.nodes.get_mut(id) else { return Ok(attr) };
        if let Some(times) = node.times.filter(|times| times.version == version) {
            (attr.modified, attr.changed) = (times.modified, times.changed);
        }
        if let Some(shows) = node.staged().map(|staged| staged.shows())
            && (shows.dirty || shows.base == Some(version) || !is_current)
        {
            attr = attr.staged(&shows);
        }
        node.returned_attr = Some(attr);
        Ok(attr)
    }

    fn view_size(
        &self,
        id: u64,
        path: &WorkspacePath,
        stat: &Stat,
        key: Key,
    ) -> Result<u64, Errno> {
        let _reading = self.begin_reading(stat.size)?;
        let begun = now();
        let size =
            self.view().view_size(path, stat, &Program).map_err(|error| errno::of_look(&error))?;
        if is_settled(stat.changed, begun)
            && let Some(node) = self.lock().nodes.get_mut(id)
        {
            node.size = Some((key, size));
        }
        Ok(size)
    }

    /// Returns the size of a view computed before.
    fn known_size(&self, id: u64, key: &Key) -> Option<u64> {
        let state = self.lock();
        if let Some((known, size)) = state.nodes.get(id)?.size
            && known == *key
        {
            return Some(size);
        }
        if let Some(content) = state.nodes.get(id).and_then(|node| node.content.as_ref())
            && let Bytes::View(view, version) = &content.bytes
            && *version == Some(key.version)
            && content.policy == key.policy
        {
            return Some(view.len() as u64);
        }
        state.views.size(id, key)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// The error of the listing.
    pub(crate) fn open_directory(&self, id: u64) -> Result<OpeningDirectory, Errno> {
        self.lock().handles.room()?;
        let (path, begun, policy) = (self.path(id)?, now(), self.policy());
        let seen = self.seen(&path)?;
        if seen.stat.kind != ObjectKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let key = Key { version: seen.stat.version(), policy };
        let settled = is_settled(seen.stat.changed, begun);
        let mut state = self.lock();
        let has_staged = !state.nodes.staged_only(id).is_empty();
        let handle =
            state.handles.add_directory(OpenDirectory { node: id, list: Mutex::default() })?;
        state.nodes.open(id);
        let key = Some(key).filter(|_| settled && !has_staged);
        let keeps = key.is_some()
            && state.nodes.get_mut(id).is_some_and(|node| {
                let before = std::mem::replace(&mut node.shown, key);
                // A list has the attributes of all entries; later each needs a request of its own.
                let is_recent =
                    node.listed.is_some_and(|listed| listed.elapsed() < self.options.timeout / 2);
                let keeps = before == key && is_recent;
                if !keeps {
                    node.listed = Some(Instant::now());
                }
                keeps
            });
        Ok(OpeningDirectory { handle, caches: key.is_some(), keeps })
    }

    /// Returns the workspace's entries of a directory.
    ///
    /// # Errors
    /// `ENOMEM`, or the error of the listing.
    pub(crate) fn names_in(&self, path: &WorkspacePath) -> Result<Names, Errno> {
        let (mut taken, mut room) = (BudgetPart::nothing(&self.lists), Ok(()));
        let mut there = 0_usize;
        // While the directory is read, each name exists twice.
        let listed = self.view().list(path, |length| {
            there += 1;
            room = taken.add_name(length, 2);
            room.is_ok()
        });
        room?;
        let shown = listed.map_err(|error| errno::of_look(&error))?.ok_or(Errno::NOENT)?;
        Ok(Names { hidden: there.saturating_sub(shown.len()), shown, taken })
    }

    /// Returns the entries of a directory, with those that exist in this mount only.
    fn list(&self, id: u64) -> Result<List, Errno> {
        let (path, policy) = (self.path(id)?, self.policy());
        let Names { shown: mut entries, mut taken, .. } = self.names_in(&path)?;
        entries.retain(|(_, kind)| is_served(*kind));
        let staged = self.lock().nodes.staged_only(id);
        let listed: HashSet<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        let staged: Vec<_> = staged.iter().filter(|name| !listed.contains(&***name)).collect();
        entries.extend(staged.into_iter().map(|name| (name.to_string(), ObjectKind::File)));
        if let Some(scratch) = &self.scratch {
            // A workspace entry with a scratch name is not shown.
            let rules = scratch.rules();
            entries.retain(|(name, _)| {
                !rules.may_match_name(name)
                    || !path.join(name).is_ok_and(|path| rules.matches(&path))
            });
            let roots = scratch.roots();
            // The lock keeps a rename from changing path and roots in between.
            let path = self.path(id)?;
            for (at, root) in &roots.by_path {
                if let (Some(parent), Some(name)) = (at.parent(), at.file_name())
                    && parent == path
                {
                    let kind = match root.kind {
                        FileType::Directory => ObjectKind::Directory,
                        _ => ObjectKind::File,
                    };
                    entries.push((name.to_owned(), kind));
                }
            }
        }
        taken.fit(entries.iter().map(|(name, _)| name.len()))?;
        Ok(List::new(entries, policy, taken))
    }

    /// Passes the entries of an open directory from `offset` on to `give`, each with the offset of
    /// the next one, until it returns false. At offset 0 the list is made anew, and so is one made
    /// under another policy.
    ///
    /// # Errors
    /// The error of the listing.
    pub(crate) fn read_list(
        &self,
        handle: u64,
        offset: u64,
        mut give: impl FnMut(u64, &str, ObjectKind) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.lock().handles.directory(handle)?;
        let mut list = directory.list.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |list: &&mut List| offset != 0 && list.policy == self.policy();
        let list = match list.as_mut().filter(is_current) {
            Some(list) => list,
            None => {
                // The old list is freed first, because memory is limited.
                *list = None;
                list.insert(self.list(directory.node)?)
            }
        };
        let mut at = offset;
        while let Some((name, kind)) = list.at(at) {
            at += 1;
            if !give(at, name, kind) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the target of a link. The first read of a target under a policy is recorded, and
    /// further ones are counted; the same for one that is refused.
    ///
    /// # Errors
    /// `EACCES` when it leads out of the workspace, or may not be read.
    pub(crate) fn link_target(&self, id: u64, pid: u32) -> Result<String, Errno> {
        let path = self.path(id)?;
        let (policy, is_setup) = (self.policy(), self.is_setup());
        let mut read = None;
        let is_new = |target: Option<&str>| {
            let is_same = |known: &LinkRead| {
                (known.policy, known.is_setup) == (policy, is_setup)
                    && known.target.as_deref() == target
            };
            let is_known = !self.options.records_each_open && {
                let state = self.lock();
                let node = state.nodes.get(id);
                node.and_then(|node| node.link_read.as_ref()).is_some_and(is_same)
            };
            if is_known {
                match target {
                    Some(_) => self.repeats.open(&path),
                    None => self.repeats.denial(&path),
                }
                return false;
            }
            read = Some(LinkRead { policy, is_setup, target: target.map(str::to_owned) });
            true
        };
        let target = self.view().read_link(&path, is_new, &|| self.claimed(pid));
        let is_refused = matches!(
            target,
            Err(WorkspaceError::Outside | WorkspaceError::Loop | WorkspaceError::Mount)
        );
        if is_refused {
            self.counts.refusals.add();
        }
        // Only now it has a record, unless that failed.
        if (is_refused || target.is_ok())
            && read.is_some()
            && let Some(node) = self.lock().nodes.get_mut(id)
        {
            node.link_read = read;
        }
        target.map_err(|error| errno::of_link(&error))?.ok_or(Errno::NOENT)
    }
}
