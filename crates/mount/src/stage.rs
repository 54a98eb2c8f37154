//! Opens for writing; creation and changes of staged versions.

use std::sync::Arc;

use portcullis_fuse::WriteFrom;
use portcullis_policy::{
    ObjectKind,
    model::{WorkspacePath, request::Write},
};
use rustix::io::Errno;

use crate::{
    attributes::Attr,
    handles::OpenFile,
    mount::Mount,
    node::{Bytes, Content},
    nodes::Nodes,
    open::{MAX_READ_ATTEMPTS, OpenMode, Opening},
    staged::Staged,
};

impl Mount<'_> {
    /// Opens a file for writing, which creates a staged version of it.
    ///
    /// # Errors
    /// `EACCES` if it may not be written; the error of a read.
    pub(crate) fn open_staged(&self, id: u64, how: OpenMode, pid: u32) -> Result<Opening, Errno> {
        self.admit_writing(id, pid)?;
        // The open count keeps a close by another thread from being the last.
        self.lock().nodes.open(id);
        let opened = self.stage(id, how.truncates, pid).and_then(|(staged, is_same)| {
            if how.truncates {
                staged.empty()?;
            }
            self.add_handle(id, Some(staged), is_same && !how.truncates)
        });
        self.close(id);
        opened
    }

    /// Asks the gateway if the file of a node may be written.
    fn admit_writing(&self, id: u64, pid: u32) -> Result<(), Errno> {
        let (_kept, path) = match self.keep_path(id) {
            Ok(kept) => kept,
            // It will never have a name.
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let staged_only = self.lock().nodes.get(id).is_some_and(|node| node.is_staged_only());
        let existing = if staged_only { None } else { Some(self.seen(&path)?.stat) };
        self.admit(pid, id, &empty_write(&path), (&path, existing.as_ref()))
    }

    /// Returns the staged version of a node's file, which begins with the shown content or `empty`;
    /// also returns true if the kernel's pages are current.
    pub(crate) fn stage(
        &self,
        id: u64,
        empty: bool,
        pid: u32,
    ) -> Result<(Arc<Staged>, bool), Errno> {
        let existing = self.lock().nodes.get(id).ok_or(Errno::STALE)?.staged().cloned();
        if let Some(staged) = existing {
            staged.live()?;
            let is_same = empty || self.decide_staged(id, &staged, pid)?;
            if !is_same {
                self.correct_size(id, staged.shows().size);
            }
            return Ok((staged, is_same));
        }
        let (_kept, path) = self.keep_path(id)?;
        let (new, policy, is_same) = if empty {
            let look = self.lock().nodes.look();
            let policy = self.policy();
            let seen = self.seen(&path)?;
            match seen.stat.kind {
                ObjectKind::File if self.is_same(id, &seen, look) => {}
                ObjectKind::File => return Err(Errno::STALE),
                ObjectKind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::ACCESS),
            }
            (Staged::emptied(&self.budget), policy, false)
        } else {
            let snapshot = self.snapshot(id, &path, pid)?;
            let version = snapshot.version.ok_or(Errno::STALE)?;
            let is_same = self.show(id, &snapshot)?;
            let stat = &snapshot.seen.stat;
            let times = (stat.modified, stat.changed);
            let staged = Staged::from_view(&self.budget, snapshot.view, version, times)?;
            (staged, snapshot.policy, is_same)
        };
        let mut state = self.lock();
        // Another thread may have been faster.
        if let Some(staged) = state.nodes.get(id).ok_or(Errno::STALE)?.staged() {
            return Ok((Arc::clone(staged), false));
        }
        let new = Arc::new(new);
        state.set_content(id, Content { bytes: Bytes::Staged(Arc::clone(&new)), policy })?;
        Ok((new, is_same))
    }

    /// Creates a file, which exists in this mount only until its first commit.
    ///
    /// # Errors
    /// `EACCES` if the name may not be created, even if it exists.
    pub(crate) fn create_file(
        &self,
        parent: u64,
        name: &str,
        mode: u32,
        (how, exclusive): (OpenMode, bool),
        pid: u32,
    ) -> Result<(Attr, Opening), Errno> {
        self.lock().handles.room()?;
        let mut attempts = 1..MAX_READ_ATTEMPTS;
        loop {
            let created = self.try_to_create((parent, name), mode, (how, exclusive), pid);
            // The second lookup found a file that the first did not.
            let is_seen_late = !exclusive && matches!(created, Err(Errno::EXIST));
            if !is_seen_late || attempts.next().is_none() {
                return created;
            }
        }
    }

    fn try_to_create(
        &self,
        (parent, name): (u64, &str),
        mode: u32,
        (how, exclusive): (OpenMode, bool),
        pid: u32,
    ) -> Result<(Attr, Opening), Errno> {
        match self.look_up(parent, name) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
            Ok(attr) => {
                let opened = if exclusive {
                    Err(Errno::EXIST)
                } else {
                    self.open_file(attr.node, OpenMode { writes: true, ..how }, pid)
                };
                let opening = opened.inspect_err(|_| self.forget_node(attr.node, 1))?;
                // Its size may have changed.
                let returned = self.lock().nodes.get(attr.node).and_then(|node| node.returned_attr);
                return Ok((returned.unwrap_or(attr), opening));
            }
        }
        let (_kept, path) = self.keep_path_of(parent, name)?;
        self.admit(pid, parent, &empty_write(&path), (&path, None))?;
        // The lookup may have used a path that a rename changed, or missed a name hidden for a
        // moment. The lock excludes both.
        self.settle_missing(parent, name, &path);
        let created = self.add_created(mode & 0o777, |nodes| {
            // The kernel makes one name at a time in a directory.
            nodes.make_room(parent, name)?;
            let created = nodes.create(parent, name, ObjectKind::File, None);
            created.map_err(|_| Errno::NFILE)
        });
        created.inspect_err(|error| {
            if *error != Errno::EXIST {
                self.lock().nodes.unlink(parent, name);
            }
        })
    }

    /// Looks up a name again and detaches its node if it is missing; `path` is locked.
    fn settle_missing(&self, parent: u64, name: &str, path: &WorkspacePath) {
        let known = self.lock().nodes.child(parent, name);
        if known.is_some() && matches!(self.seen(path), Err(Errno::NOENT)) {
            self.lock().nodes.gone(parent, name);
        }
    }

    /// Creates a file without a name, which is stored only if it gets one.
    ///
    /// # Errors
    /// `ENFILE`.
    pub(crate) fn create_unnamed(&self, mode: u32) -> Result<(Attr, Opening), Errno> {
        self.lock().handles.room()?;
        self.add_created(mode, |nodes| nodes.create_unnamed().map_err(|_| Errno::NFILE))
    }

    /// Gives a file created without a name its name, and commits it.
    ///
    /// # Errors
    /// `EPERM` for a file that has a name: a second one is not possible. `EEXIST`; the error of the
    /// commit.
    pub(crate) fn name_file(
        &self,
        id: u64,
        (parent, name): (u64, &str),
        pid: u32,
    ) -> Result<Attr, Errno> {
        {
            let (_held, [path]) = self.change_paths([(parent, name)])?;
            let unnamed = self.lock().nodes.get(id).and_then(|node| node.unnamed().cloned());
            let staged = unnamed.ok_or(Errno::PERM)?;
            self.admit(pid, parent, &empty_write(&path), (&path, None))?;
            let is_known = self.lock().nodes.child(parent, name).is_some();
            match self.seen(&path) {
                Err(Errno::NOENT) if !is_known => {}
                Ok(_) | Err(Errno::NOENT) => return Err(Errno::EXIST),
                Err(error) => return Err(error),
            }
            self.lock().nodes.give_name(id, (parent, name));
            self.commit_named(id, &staged, pid)?;
        }
        self.look_up(parent, name)
    }

    /// Opens a new file; `node` creates its node.
    fn add_created(
        &self,
        mode: u32,
        node: impl FnOnce(&mut Nodes) -> Result<u64, Errno>,
    ) -> Result<(Attr, Opening), Errno> {
        let staged = Arc::new(Staged::created(&self.budget, mode));
        let bytes = Bytes::Staged(Arc::clone(&staged));
        let shows = staged.shows();
        let policy = self.policy();
        let attr = {
            let mut state = self.lock();
            let id = node(&mut state.nodes)?;
            state.nodes.refer(id);
            let (modified, changed) = (shows.modified, shows.changed);
            let (kind, size) = (ObjectKind::File, 0);
            let links = u32::from(state.nodes.get(id).is_some_and(|node| !node.is_detached()));
            let attr = Attr { node: id, kind, mode, links, size, modified, changed };
            state.set_content(id, Content { bytes, policy })?;
            if let Some(node) = state.nodes.get_mut(id) {
                node.returned_attr = Some(attr);
            }
            attr
        };
        let opened = self.add_handle(attr.node, Some(staged), false);
        let opened = opened.inspect_err(|_| self.forget_node(attr.node, 1))?;
        Ok((attr, opened))
    }

    /// Writes to an open file: at the kernel's offset, or at the end.
    ///
    /// # Errors
    /// `EIO` after a refusal; `EFBIG`, `EDQUOT`.
    pub(crate) fn write_file(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        (from, pid): (WriteFrom, u32),
    ) -> Result<(), Errno> {
        let keep = |error: &Errno| {
            if from == WriteFrom::Mapping {
                self.keep_mapping_error(handle, data, *error, pid);
            }
        };
        let (file, staged) = self.writable(handle, pid).inspect_err(keep)?;
        let appends = from == WriteFrom::Append;
        let wrote = staged.write((!appends).then_some(offset), data).map_err(|error| {
            let begin = if appends { staged.shows().size } else { offset };
            let end = begin.saturating_add(data.len() as u64);
            self.record_size(file.node, end, pid, error)
        });
        let wrote = wrote.inspect_err(keep)?;
        if wrote != offset {
            // The kernel assumed another end of the file.
            self.invalidations.content(file.node);
        }
        Ok(())
    }

    /// Returns the staged version of a handle that is open for writing. Before its first change it
    /// is restarted if the file on the disk has changed.
    pub(crate) fn writable(
        &self,
        handle: u64,
        pid: u32,
    ) -> Result<(Arc<OpenFile>, Arc<Staged>), Errno> {
        let file = self.lock().handles.file(handle)?;
        let staged = file.staged.clone().ok_or(Errno::BADF)?;
        staged.live()?;
        let shows = staged.shows();
        if !shows.dirty && shows.base.is_some() {
            self.refresh(file.node, &staged, pid)?;
        }
        Ok((file, staged))
    }

    fn refresh(&self, id: u64, staged: &Arc<Staged>, pid: u32) -> Result<(), Errno> {
        let (_kept, path) = match self.keep_path(id) {
            Ok(kept) => kept,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let held = staged.hold();
        let (shows, seen) = (staged.shows(), self.seen(&path));
        drop(held);
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => {
                // A policy reload may hide it.
                self.admit(pid, id, &empty_write(&path), (&path, None))?;
                return Err(error);
            }
        };
        if !shows.dirty && shows.base != Some(seen.stat.version()) {
            self.renew(id, staged, &path, pid)?;
            // The kernel would complete the pages that are written with those of the old version.
            self.invalidations.content(id);
        }
        Ok(())
    }

    /// Changes the size of a file; without a handle the change is committed at once.
    ///
    /// # Errors
    /// As [`Mount::write_file`], or the error of the commit.
    pub(crate) fn resize_file(
        &self,
        id: u64,
        handle: Option<u64>,
        size: u64,
        pid: u32,
    ) -> Result<(), Errno> {
        match handle.map(|handle| self.writable(handle, pid)) {
            Some(Ok((file, staged))) => {
                let done = staged.resize(size);
                return done.map_err(|error| self.record_size(file.node, size, pid, error));
            }
            // For a handle that is open for reading; the kernel does not send this.
            None | Some(Err(Errno::BADF)) => {}
            Some(Err(error)) => return Err(error),
        }
        self.admit_writing(id, pid)?;
        if self.attributes(id)?.size == size {
            return Ok(());
        }
        // The open count keeps a close by another thread from being the last.
        self.lock().nodes.open(id);
        let done = self.stage(id, size == 0, pid).and_then(|(staged, _)| {
            staged.resize(size).map_err(|error| self.record_size(id, size, pid, error))?;
            self.commit(id, &staged, pid)
        });
        self.close(id);
        done
    }

    /// Records or counts the refusal of a write that would make the file `size` bytes long, if
    /// `error` is that. Returns the error.
    fn record_size(&self, id: u64, size: u64, pid: u32, error: Errno) -> Errno {
        if error != Errno::FBIG {
            return error;
        }
        // A file without a name is never stored.
        let Ok(path) = self.path(id) else { return error };
        let length = path.as_str().len();
        let is_first = self.oversized_files.is_first(self.policy(), path.clone(), length);
        if is_first || self.view().counts_denials() {
            let denial = self.view().deny_size(&path, size, || self.claimed(pid));
            self.refused(id, &denial);
        } else {
            self.counts.refusals.add();
            self.repeats.denial(&path);
        }
        error
    }
}

/// Returns the request decided before the content is known.
pub(crate) fn empty_write(path: &WorkspacePath) -> Write {
    Write { path: path.clone(), content: Vec::new(), mode: None }
}
