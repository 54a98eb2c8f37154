//! Commits: a staged version becomes the file's content by one request.

use std::sync::{Arc, atomic::Ordering};

use portcullis_core::{Base, Committed, WriteOver};
use portcullis_policy::model::{
    WorkspacePath,
    request::{SetAttributes, Write},
};
use rustix::io::Errno;

use crate::{
    mount::Mount,
    node::{Node, Times},
    nodes::NoPath,
    staged::{Pending, Staged, Stored},
};

impl Mount<'_> {
    /// Commits an open file when one of its descriptors is closed. A file that was emptied is
    /// committed with the last one: a shell empties it, closes a duplicate descriptor, and only
    /// then starts the program that writes. The same applies to a new file that needs an approval:
    /// the operator would be shown an empty file.
    ///
    /// # Errors
    /// As [`Mount::commit_handle`].
    pub(crate) fn flush_handle(&self, handle: u64, pid: u32) -> Result<(), Errno> {
        let file = self.lock().handles.file(handle)?;
        match &file.staged {
            Some(staged)
                if staged.shows().size == 0
                    && (!self.is_staged_only(Some(file.node))
                        || self.asks_about_new(file.node)) =>
            {
                // The commit may come after the program has ended.
                file.closer.store(pid, Ordering::Relaxed);
                self.note_program(pid);
                staged.accepted()
            }
            _ => self.commit_handle(handle, pid),
        }
    }

    /// Commits a new file whose time a program sets: `touch` writes nothing, and ignores the result
    /// of close(2).
    ///
    /// # Errors
    /// As [`Mount::commit_handle`].
    pub(crate) fn commit_touched(&self, id: u64, pid: u32) -> Result<(), Errno> {
        let staged = self.lock().nodes.get(id).and_then(|node| node.staged().cloned());
        staged.map_or(Ok(()), |staged| self.commit(id, &staged, pid))
    }

    /// Returns true if a file exists in this mount only, and storing it needs an approval.
    pub(crate) fn asks_about_new(&self, id: u64) -> bool {
        self.is_staged_only(Some(id)) && self.path(id).is_ok_and(|path| self.asks_to_create(&path))
    }

    /// Commits an open file.
    ///
    /// # Errors
    /// The reason of the refusal; everything written is discarded then.
    pub(crate) fn commit_handle(&self, handle: u64, pid: u32) -> Result<(), Errno> {
        let file = self.lock().handles.file(handle)?;
        match &file.staged {
            Some(staged) => self.commit(file.node, staged, pid),
            None => Ok(()),
        }
    }

    /// Commits a staged version that differs from the disk.
    ///
    /// # Errors
    /// As [`Mount::commit_handle`].
    pub(crate) fn commit(&self, id: u64, staged: &Arc<Staged>, pid: u32) -> Result<(), Errno> {
        // A node without a path never gets one again.
        let kept = self.keep_path(id);
        if let Err(error @ Errno::INTR) = kept {
            return Err(error);
        }
        self.commit_named(id, staged, pid)
    }

    /// Commits a staged version; the caller holds the lock on the path.
    pub(crate) fn commit_named(
        &self,
        id: u64,
        staged: &Arc<Staged>,
        pid: u32,
    ) -> Result<(), Errno> {
        let _held = staged.hold();
        let mut memory = self.commits.reserve(staged.shows().size)?;
        let stored = loop {
            let Some(stored) = staged.stored()? else { return Ok(()) };
            let size = stored.bytes.len() as u64;
            if size <= memory.bytes {
                break stored;
            }
            // The version has grown meanwhile.
            drop((stored, memory));
            memory = self.commits.reserve(size)?;
        };
        let path = self.lock().nodes.path(id);
        let path = match path {
            Ok(path) => path,
            Err(NoPath::Unlinked) => return Ok(()),
            Err(NoPath::Replaced | NoPath::Unknown) => {
                let error = self.refuse_replaced(id, stored.bytes, pid);
                // An interrupted commit is no refusal.
                if error != Errno::INTR {
                    self.refuse(id, staged, error);
                }
                return Err(error);
            }
        };
        let _change = self.begin_change();
        match self.store(id, &path, staged, stored, pid) {
            Ok(attributes) => attributes,
            // An interrupted commit is no refusal: another open handle will store the version.
            Err(Errno::INTR) => Err(Errno::INTR),
            Err(error) => {
                self.refuse(id, staged, error);
                Err(error)
            }
        }
    }

    /// Stores a version. The inner result is that of its attributes, which are set after the
    /// content is stored; their denial is no error.
    fn store(
        &self,
        id: u64,
        path: &WorkspacePath,
        staged: &Arc<Staged>,
        mut stored: Stored,
        pid: u32,
    ) -> Result<Result<(), Errno>, Errno> {
        let content = std::mem::take(&mut stored.bytes);
        let Pending { mode, modified } = stored.attributes;
        let creates = stored.base == Base::Nothing;
        // A new file is created with its attributes.
        let create = if creates { stored.attributes } else { Pending::default() };
        let write = Write { path: path.clone(), content, mode: create.mode };
        // Commits under the same name are one step of an undo.
        let first = stored.first.take().filter(|(_, then)| then == path);
        let continues = first.as_ref().map(|(record, _)| *record);
        let request = WriteOver { write, base: stored.base, modified: create.modified };
        let reply = self.request_continuing(pid, id, &request, continues)?;
        self.counts.commits.add();
        let version = match reply.output.committed {
            Committed::Stored(version) => version,
            Committed::Buffered | Committed::Unchanged => None,
        };
        let shows = staged.shows();
        let first = first.unwrap_or_else(|| (reply.receipt.seq, path.clone()));
        let continues = Some(first.0);
        {
            let mut state = self.lock();
            state.views.remove(id);
            if let Some(node) = state.nodes.get_mut(id) {
                node.returned_attr =
                    node.returned_attr.map(|returned_attr| returned_attr.staged(&shows));
                if let Some(version) = version {
                    node.inode = Some(version.inode());
                    node.reason = None;
                    // Times that programs have seen of the staged file stay valid.
                    let (modified, changed) = (shows.modified, shows.changed);
                    node.times = Some(Times { version, modified, changed });
                }
            }
        }
        // Only now: a reader would compare the size with an older one that was returned.
        staged.committed(&stored, version, Some(first));
        if creates || stored.attributes == Pending::default() {
            return Ok(Ok(()));
        }
        let set = SetAttributes { path: path.clone(), mode, modified };
        let attributes = self.request_continuing(pid, id, &set, continues).map(drop);
        self.settle(id, path, version, modified);
        match attributes {
            // The record says so; the program's call that set them has returned.
            Err(Errno::ACCESS) => {
                self.invalidations.attributes(id);
                Ok(Ok(()))
            }
            attributes => Ok(attributes),
        }
    }

    /// Requests the write of a file whose name belongs to another object, so that its refusal is
    /// recorded; returns the error: that of a denial, otherwise `ESTALE`.
    fn refuse_replaced(&self, id: u64, content: Vec<u8>, pid: u32) -> Errno {
        let Some(path) = self.lock().nodes.last_path(id) else { return Errno::STALE };
        let write = Write { path, content, mode: None };
        let request = WriteOver { write, base: Base::Replaced, modified: None };
        self.request(pid, id, &request).err().unwrap_or(Errno::STALE)
    }

    /// Discards a staged version: its handles become unusable, and the file shows its content on
    /// the disk.
    fn refuse(&self, id: u64, staged: &Arc<Staged>, error: Errno) {
        staged.discard(error);
        let mut state = self.lock();
        let entry = state.nodes.entry(id);
        let Some(node) = state.nodes.get_mut(id) else { return };
        let was_staged_only = node.is_staged_only();
        let is_current = node.staged().is_some_and(|current| Arc::ptr_eq(current, staged));
        node.shown = None;
        if is_current {
            state.forget_content(id);
        }
        if was_staged_only && let Some((parent, name)) = entry {
            state.nodes.unlink(parent, &name);
            self.invalidations.entry(parent, name);
        }
        drop(state);
        self.invalidations.content(id);
    }

    /// Releases a handle after its last descriptor was closed.
    pub(crate) fn release(&self, handle: u64) {
        let removed = {
            let mut state = self.lock();
            let file = state.handles.file(handle).ok();
            state.handles.remove(handle).map(|node| (node, file))
        };
        let Some((id, file)) = removed else { return };
        // Writes through a mapping are committed with the last handle at the latest. Earlier
        // refusals were returned by close or fsync, and another handle will return this one.
        let closer = file.as_ref().map_or(0, |file| file.closer.load(Ordering::Relaxed));
        if let Some(staged) = file.and_then(|file| file.staged.clone())
            && staged.live().is_ok()
            && let Err(error) = self.commit(id, &staged, closer)
        {
            let is_shared = self.lock().handles.share(&staged);
            if !is_shared {
                self.keep_error(id, error);
            }
        }
        self.close(id);
    }

    /// Keeps the error of a write through a mapping, which no call returns. One to a file that was
    /// replaced or removed is recorded, and its version discarded.
    pub(crate) fn keep_mapping_error(&self, handle: u64, data: &[u8], error: Errno, pid: u32) {
        let Ok(file) = self.lock().handles.file(handle) else { return };
        let Some(staged) = &file.staged else { return };
        // The kernel writes a large mapping back by several requests at once.
        let _held = staged.hold();
        // The error of a discarded version was kept or returned.
        if staged.live().is_err() {
            return;
        }
        if !is_gone(error) {
            return self.keep_error(file.node, error);
        }
        let error = self.refuse_replaced(file.node, data.to_vec(), pid);
        if error != Errno::INTR {
            self.refuse(file.node, staged, error);
            self.keep_error(file.node, error);
        }
    }

    /// Keeps an error that no call returns for the next open.
    fn keep_error(&self, id: u64, error: Errno) {
        let error = match error {
            // Nothing is lost yet.
            Errno::INTR => return,
            // The file exists when it is opened. With `ESTALE` the kernel would open it again, and no
            // program would get the error.
            error if is_gone(error) => Errno::IO,
            error => error,
        };
        self.lock().nodes.keep_unheard(id, error);
    }

    /// Removes a handle of a node; the last one frees the node's content.
    pub(crate) fn close(&self, id: u64) {
        let mut state = self.lock();
        if state.nodes.get(id).is_some_and(Node::is_open_once) {
            state.forget_content(id);
        }
        if state.nodes.close(id) && state.nodes.get(id).is_none() {
            state.views.remove(id);
        }
    }
}

/// Returns true if an error says that a file was replaced or removed.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::STALE | Errno::NOENT | Errno::NOTDIR)
}
