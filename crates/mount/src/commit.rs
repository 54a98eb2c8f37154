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
    nodes::Gone,
    stage::empty_write,
    staged::{Pending, Staged, Stored},
};

impl Mount<'_> {
    /// Commits what an open file has when one of its descriptors is closed. A file that was
    /// emptied waits for the last one: a shell empties it, closes a second descriptor of it,
    /// and only then has a program write. So does a new one about which a person is asked, who
    /// would be shown an empty file.
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
                // It is stored when its program may be gone.
                file.closer.store(pid, Ordering::Relaxed);
                self.note_program(pid);
                staged.live()
            }
            _ => self.commit_handle(handle, pid),
        }
    }

    /// Commits a new file of which a program sets the time: `touch` writes nothing, and does not look at what
    /// close(2) says.
    ///
    /// # Errors
    /// As [`Mount::commit_handle`].
    pub(crate) fn commit_touched(&self, id: u64, pid: u32) -> Result<(), Errno> {
        let staged = self.lock().nodes.get(id).and_then(|node| node.staged().cloned());
        staged.map_or(Ok(()), |staged| self.commit(id, &staged, pid))
    }

    /// Whether a file exists in this mount alone, and a person is asked before it is stored.
    pub(crate) fn asks_about_new(&self, id: u64) -> bool {
        self.is_staged_only(Some(id)) && self.path(id).is_ok_and(|path| self.asks_to_create(&path))
    }

    /// Commits what an open file has.
    ///
    /// # Errors
    /// Why it was refused; then nothing of what was written is left.
    pub(crate) fn commit_handle(&self, handle: u64, pid: u32) -> Result<(), Errno> {
        let file = self.lock().handles.file(handle)?;
        match &file.staged {
            Some(staged) => self.commit(file.node, staged, pid),
            None => Ok(()),
        }
    }

    /// Commits what is staged and not on the disk.
    ///
    /// # Errors
    /// As [`Mount::commit_handle`].
    pub(crate) fn commit(&self, id: u64, staged: &Arc<Staged>, pid: u32) -> Result<(), Errno> {
        // A node without a path gets none again.
        let kept = self.keep_path(id);
        if let Err(error @ Errno::INTR) = kept {
            return Err(error);
        }
        self.commit_named(id, staged, pid)
    }

    /// The same for whoever has locked the path.
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
            // It has grown meanwhile.
            drop((stored, memory));
            memory = self.commits.reserve(size)?;
        };
        let path = self.lock().nodes.path(id);
        let path = match path {
            Ok(path) => path,
            Err(Gone::Unlinked) => return Ok(()),
            Err(Gone::Replaced | Gone::Unknown) => {
                let error = self.why_replaced(id, pid);
                self.refuse(id, staged, error);
                return Err(error);
            }
        };
        let _change = self.begin_change();
        match self.store(id, &path, staged, stored, pid) {
            Ok(attributes) => attributes,
            // It was given up, not refused: whoever has the file open stores it.
            Err(Errno::INTR) => Err(Errno::INTR),
            Err(error) => {
                self.refuse(id, staged, error);
                Err(error)
            }
        }
    }

    /// Stores a version. Within is the answer about its attributes, which are set when the
    /// content is stored.
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
        // A file that is created has its attributes from the beginning.
        let create = if creates { stored.attributes } else { Pending::default() };
        let write = Write { path: path.clone(), content, mode: create.mode };
        // What goes on under the same name is one step of an undo.
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
        staged.committed(&stored, version, Some(first));
        {
            let mut state = self.lock();
            state.memo.remove(id);
            if let (Some(node), Some(version)) = (state.nodes.get_mut(id), version) {
                node.inode = Some(version.inode());
                node.why = None;
                // What programs noted of the file while it was staged stays true.
                let (modified, changed) = (shows.modified, shows.changed);
                node.times = Some(Times { version, modified, changed });
                node.told = node.told.map(|told| told.staged(&shows));
            }
        }
        if creates || stored.attributes == Pending::default() {
            return Ok(Ok(()));
        }
        let set = SetAttributes { path: path.clone(), mode, modified };
        let attributes = self.request_continuing(pid, id, &set, continues).map(drop);
        self.settle(id, path, version, modified);
        Ok(attributes)
    }

    /// Why what was written to a file is not stored whose name another object has: it may not be
    /// written any more, which is on record then, or that program was faster.
    fn why_replaced(&self, id: u64, pid: u32) -> Errno {
        let path = self.lock().nodes.last_path(id);
        let admitted =
            path.map_or(Ok(()), |path| self.admit(pid, id, &empty_write(&path), (&path, None)));
        if let Err(error) = admitted {
            return error;
        }
        self.counts.refusals.add();
        if let Some(node) = self.lock().nodes.get_mut(id) {
            node.why = Some(Arc::from("another program replaced the file"));
        }
        Errno::STALE
    }

    /// Gives a staged version up: its handles are of no use any more, and the file shows
    /// what it has on the disk.
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

    /// The last descriptor of a handle was closed.
    pub(crate) fn release(&self, handle: u64) {
        let removed = {
            let mut state = self.lock();
            let file = state.handles.file(handle).ok();
            state.handles.remove(handle).map(|node| (node, file))
        };
        let Some((id, file)) = removed else { return };
        // What a mapping left is committed with the last handle at the latest. A refusal
        // before was told to whoever closed or synced.
        let closer = file.as_ref().map_or(0, |file| file.closer.load(Ordering::Relaxed));
        if let Some(staged) = file.and_then(|file| file.staged.clone())
            && staged.live().is_ok()
            && let Err(error) = self.commit(id, &staged, closer)
            && error != Errno::INTR
            && let Some(node) = self.lock().nodes.get_mut(id)
        {
            node.unheard = Some(error);
        }
        self.close(id);
    }

    /// A handle of a node is gone; with the last one goes what was kept for them.
    pub(crate) fn close(&self, id: u64) {
        let mut state = self.lock();
        if state.nodes.get(id).is_some_and(Node::is_open_once) {
            state.forget_content(id);
        }
        if state.nodes.close(id) && state.nodes.get(id).is_none() {
            state.memo.remove(id);
        }
    }
}
