//! Opens and reads files.

use std::sync::{Arc, atomic::AtomicU32};

use portcullis_core::{Version, VisibleEntry};
use portcullis_fuse::Data;
use portcullis_policy::{
    ObjectKind,
    model::{Encoding, LineRange, WorkspacePath, request::Read},
};
use rustix::io::Errno;

use crate::{
    handles::OpenFile,
    mount::Mount,
    node::{Bytes, Content, Node},
    stage::empty_write,
    staged::{Staged, now, range},
    view_cache::{Key, View, is_settled},
};

/// Maximum of repeated reads of a file that changes meanwhile.
pub(crate) const MAX_READ_ATTEMPTS: usize = 4;

/// The content of a file for a reader.
pub(crate) struct Snapshot {
    pub(crate) view: View,
    pub(crate) seen: VisibleEntry,
    pub(crate) policy: u64,
    /// The version, if the view is certainly of it.
    pub(crate) version: Option<Version>,
    /// True if that version's content is final.
    settled: bool,
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) handle: u64,
    /// True if the pages that the kernel has of it are current.
    pub(crate) keeps_pages: bool,
}

/// The mode of an open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OpenMode {
    pub(crate) writes: bool,
    pub(crate) truncates: bool,
}

impl Mount<'_> {
    /// Opens a file: decides, reads and records, or decides again on a version that was read
    /// before.
    ///
    /// # Errors
    /// The reason why it was not opened.
    pub(crate) fn open_file(&self, id: u64, how: OpenMode, pid: u32) -> Result<Opening, Errno> {
        {
            let mut state = self.lock();
            state.handles.room()?;
            if let Some(error) = state.nodes.take_unheard(id) {
                return Err(error);
            }
        }
        if how.writes || how.truncates {
            return self.open_staged(id, how, pid);
        }
        let staged = self.lock().nodes.get(id).and_then(|node| node.staged().cloned());
        if let Some(staged) = staged {
            let is_same = self.decide_staged(id, &staged, pid)?;
            if !is_same {
                self.correct_size(id, staged.shows().size);
            }
            return self.add_handle(id, None, is_same);
        }
        let kept = self.keep_path(id);
        let snapshot = match &kept {
            Ok((_, path)) => self.snapshot(id, path, pid)?,
            // The file is open elsewhere, and keeps its content.
            Err(error) => {
                let state = self.lock();
                let shows = |content: &Content| content.policy == self.policy();
                let node = state.nodes.get(id).filter(|node| node.is_open());
                node.and_then(|node| node.content.as_ref()).filter(|c| shows(c)).ok_or(*error)?;
                drop(state);
                return self.add_handle(id, None, true);
            }
        };
        let keeps_pages = self.show(id, &snapshot)?;
        self.add_handle(id, None, keeps_pages)
    }

    /// Makes a snapshot the content of all handles of a node that is being opened; returns true if
    /// the kernel's pages are current.
    ///
    /// # Errors
    /// `ENOMEM` when too much is open.
    pub(crate) fn show(&self, id: u64, snapshot: &Snapshot) -> Result<bool, Errno> {
        let keeps_pages = self.set_view(id, snapshot)?;
        self.correct_size(id, snapshot.view.len() as u64);
        Ok(keeps_pages)
    }

    /// Notes the size of the content with which a node is opened.
    pub(crate) fn correct_size(&self, id: u64, size: u64) {
        if let Some(node) = self.lock().nodes.get_mut(id) {
            node.correct_size(size);
        }
    }

    /// Has the kernel ask for the attributes of a node again before its open is answered, if it has
    /// another size than that of the content: otherwise it would cut the content to that size.
    pub(crate) fn send_size(&self, id: u64) {
        let corrected = self.lock().nodes.get(id).and_then(Node::corrected_size);
        let Some(size) = corrected else { return };
        self.invalidations.attributes(id);
        // Another open may have another size meanwhile.
        if let Some(node) = self.lock().nodes.get_mut(id)
            && node.corrected_size() == Some(size)
        {
            node.is_corrected = false;
        }
    }

    fn set_view(&self, id: u64, snapshot: &Snapshot) -> Result<bool, Errno> {
        let mut state = self.lock();
        let bytes = Bytes::View(Arc::clone(&snapshot.view), snapshot.version);
        // Another thread may have begun to write meanwhile.
        if state.nodes.get(id).is_some_and(|node| node.staged().is_none()) {
            state.set_content(id, Content { bytes, policy: snapshot.policy })?;
        }
        let Some(node) = state.nodes.get_mut(id) else { return Ok(false) };
        let key = snapshot.version.filter(|_| snapshot.settled);
        let key = key.map(|version| Key { version, policy: snapshot.policy });
        let keeps_pages = key.is_some() && node.shown == key;
        node.shown = key;
        Ok(keeps_pages)
    }

    pub(crate) fn add_handle(
        &self,
        id: u64,
        staged: Option<Arc<Staged>>,
        keeps_pages: bool,
    ) -> Result<Opening, Errno> {
        let mut state = self.lock();
        let handle =
            state.handles.add_file(OpenFile { node: id, staged, closer: AtomicU32::new(0) })?;
        state.nodes.open(id);
        Ok(Opening { handle, keeps_pages })
    }

    /// Returns the current content of a node's file: decided, and recorded unless this version
    /// was read before.
    ///
    /// # Errors
    /// The reason why it may not be read.
    pub(crate) fn snapshot(
        &self,
        id: u64,
        path: &WorkspacePath,
        pid: u32,
    ) -> Result<Snapshot, Errno> {
        let mut attempts = 0..MAX_READ_ATTEMPTS;
        loop {
            let (begun, policy) = (now(), self.policy());
            let look = self.lock().nodes.look();
            let seen = self.seen(path)?;
            if seen.stat.kind == ObjectKind::Directory {
                return Err(Errno::ISDIR);
            }
            if !self.is_same(id, &seen, look) {
                return Err(Errno::STALE);
            }
            let (version, settled) = (seen.stat.version(), is_settled(seen.stat.changed, begun));
            let key = Key { version, policy };
            // The first open by the agent's programs has a record, also if the setup read the file.
            let is_setup = self.is_setup();
            let known = if is_setup { None } else { self.lock().views.get(id, &key) };
            if let Some(view) = known
                && self.repeats(path, &seen.stat)
            {
                return Ok(Snapshot { view, seen, policy, version: Some(version), settled: true });
            }
            if self.repeats_denial(id, &key, (path, &seen.stat)) {
                return Err(Errno::ACCESS);
            }
            let reading = self.begin_reading(seen.stat.size)?;
            let view = self.read_version(pid, id, (path, key))?;
            drop(reading);
            let is_certain = self.seen(path)?.stat.version() == version && self.policy() == policy;
            if is_certain && settled && !is_setup {
                self.lock().views.insert(id, key, Arc::clone(&view));
            }
            if is_certain || attempts.next().is_none() {
                let version = is_certain.then_some(version);
                return Ok(Snapshot { view, seen, policy, version, settled });
            }
        }
    }

    /// Decides if the staged version of a node may be read under the current policy; returns
    /// true if its content is unchanged.
    pub(crate) fn decide_staged(
        &self,
        id: u64,
        staged: &Arc<Staged>,
        pid: u32,
    ) -> Result<bool, Errno> {
        staged.live()?;
        let policy = self.policy();
        let (_kept, path) = match self.keep_path(id) {
            Ok(kept) => kept,
            // It will never have a name.
            Err(Errno::NOENT) => return Ok(true),
            Err(error) => return Err(error),
        };
        let staged_only = self.lock().nodes.get(id).is_some_and(|node| node.is_staged_only());
        let mut is_same = true;
        if staged_only {
            self.admit(pid, id, &empty_write(&path), (&path, None))?;
        } else {
            // Content from another policy or path is not shown any more: written content is
            // committed, if it may be, and the file is read anew.
            let is_old = self.lock().nodes.get(id).is_none_or(|node| !node.is_shown_under(policy));
            if is_old {
                self.commit_named(id, staged, pid)?;
            }
            let seen = self.seen(&path)?;
            let shows = staged.shows();
            if is_old || (!shows.dirty && shows.base != Some(seen.stat.version())) {
                self.renew(id, staged, &path, pid)?;
                if is_old {
                    self.invalidations.content(id);
                }
                is_same = false;
            } else if !self.repeats(&path, &seen.stat) {
                // The request gives the reason, and records it.
                let (range, encoding) = (LineRange::default(), Encoding::Base64);
                self.request(pid, id, &Read { path, range, encoding })?;
                self.counts.opens.add();
            }
        }
        if let Some(content) = self.lock().nodes.get_mut(id).and_then(|node| node.content.as_mut())
        {
            content.policy = policy;
        }
        Ok(is_same)
    }

    /// Restarts a staged version from the current content. If only another program has changed it,
    /// the kernel drops its pages with the open, or with the attributes, that this is for: an
    /// invalidation would have it ignore a reply with attributes that it waits for, and so cut what
    /// it reads to the size of the old version.
    pub(crate) fn renew(
        &self,
        id: u64,
        staged: &Arc<Staged>,
        path: &WorkspacePath,
        pid: u32,
    ) -> Result<(), Errno> {
        let snapshot = self.snapshot(id, path, pid)?;
        let version = snapshot.version.ok_or(Errno::STALE)?;
        let stat = &snapshot.seen.stat;
        staged.renew(snapshot.view, version, (stat.modified, stat.changed))
    }

    /// Reads an open file from `offset`, at most `count` bytes.
    ///
    /// # Errors
    /// `EIO` after a refusal; the reason why it may not be read any more; `ESTALE` if it has changed
    /// since its size was returned.
    pub(crate) fn read_file(
        &self,
        handle: u64,
        offset: u64,
        count: usize,
        pid: u32,
    ) -> Result<Data, Errno> {
        let (file, content, returned_size) = {
            let state = self.lock();
            let file = state.handles.file(handle)?;
            let node = state.nodes.get(file.node);
            let content = node.and_then(|node| node.content.clone());
            let returned = node.filter(|node| !node.is_detached());
            let returned = returned.and_then(|node| node.returned_attr);
            (file, content, returned.map(|attr| attr.size))
        };
        if let Some(staged) = &file.staged {
            staged.live()?;
        }
        let policy = self.policy();
        let end = offset.saturating_add(count as u64);
        let content = match content {
            Some(content)
                if content.policy == policy
                    && !returned_size.is_some_and(|size| content.differs(size, end)) =>
            {
                content
            }
            content => {
                let known = content.clone().filter(|content| content.policy == policy);
                let current = self.read_again(file.node, content, pid)?;
                // The kernel would cut it, or fill it with zeros.
                if let (Some(size), Some(known)) = (returned_size, known)
                    && !current.has_size(size)
                    && !current.continues(&known, size)
                {
                    self.invalidations.content(file.node);
                    return Err(Errno::STALE);
                }
                current
            }
        };
        match content.bytes {
            Bytes::View(view, _) => {
                let range = range(view.len(), offset, count);
                Ok(Data::Shared(view, range))
            }
            Bytes::Staged(staged) => staged.read(offset, count, |part| Data::Owned(part.to_vec())),
        }
    }

    /// Decides again on an open file after a policy reload, or when another size of it was returned.
    fn read_again(&self, id: u64, content: Option<Content>, pid: u32) -> Result<Content, Errno> {
        if let Some(Content { bytes: Bytes::Staged(staged), .. }) = &content {
            self.decide_staged(id, staged, pid)?;
            return content.ok_or(Errno::IO);
        }
        let (_kept, path) = self.keep_path(id).map_err(|_| Errno::IO)?;
        let snapshot = self.snapshot(id, &path, pid)?;
        self.set_view(id, &snapshot)?;
        let bytes = Bytes::View(snapshot.view, snapshot.version);
        Ok(Content { bytes, policy: snapshot.policy })
    }
}
