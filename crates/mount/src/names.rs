//! Changes of names: MKDIR, UNLINK, RMDIR, RENAME.

use std::{
    ffi::OsStr,
    iter,
    path::{Path, PathBuf},
};

use portcullis_core::{Exchange, Version};
use portcullis_policy::{
    ObjectKind,
    model::{
        WorkspacePath,
        request::{Mkdir, Remove, Rename, Symlink},
    },
};
use rustix::io::Errno;

use crate::{
    attributes::Attr,
    mount::{Mount, State},
    scratch::Scratch,
    staged::Time,
};

impl Mount<'_> {
    /// Creates a directory.
    ///
    /// # Errors
    /// The error of the gateway.
    pub(crate) fn make_directory(
        &self,
        parent: u64,
        name: &str,
        mode: u32,
        pid: u32,
    ) -> Result<Attr, Errno> {
        {
            let (_kept, path) = self.keep_path_of(parent, name)?;
            let known = self.lock().nodes.child(parent, name);
            if self.is_staged_only(known) {
                return Err(Errno::EXIST);
            }
            let _change = self.begin_change();
            let mode = Some(mode & 0o777);
            let mkdir = Mkdir { path: path.clone(), recursive: false, mode };
            self.admit(pid, parent, &mkdir, (&path, None))?;
            self.request(pid, parent, &mkdir)?;
            self.counts.changes.add();
        }
        self.look_up(parent, name)
    }

    /// Creates a link to `target`. An absolute path in the workspace as programs see it is
    /// converted to one relative to the link's directory: as an absolute path of the host it would
    /// lead elsewhere once the workspace is moved.
    ///
    /// # Errors
    /// The error of the gateway.
    pub(crate) fn make_link(
        &self,
        parent: u64,
        name: &str,
        target: &str,
        pid: u32,
    ) -> Result<Attr, Errno> {
        {
            let (_kept, path) = self.keep_path_of(parent, name)?;
            let known = self.lock().nodes.child(parent, name);
            if self.is_staged_only(known) {
                return Err(Errno::EXIST);
            }
            let _change = self.begin_change();
            let relative = self.relative_target(&path, target);
            let target = relative.unwrap_or_else(|| target.to_owned());
            let link = Symlink { path: path.clone(), target };
            self.admit(pid, parent, &link, (&path, None))?;
            self.request(pid, parent, &link)?;
            self.counts.changes.add();
        }
        self.look_up(parent, name)
    }

    /// Returns an absolute path in the workspace as a path relative to the directory of a link.
    /// `..` in it is preserved, and may be refused.
    fn relative_target(&self, link: &WorkspacePath, target: &str) -> Option<String> {
        let mut roots = self.options.roots.iter();
        let rest = roots.find_map(|root| Path::new(target).strip_prefix(root).ok())?;
        let up = link.parent().map_or(0, |parent| parent.components().count());
        let path: PathBuf = iter::repeat_n(OsStr::new(".."), up).chain(rest).collect();
        let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
        path.into_os_string().into_string().ok()
    }

    /// Removes a name: of a directory if `directory`, otherwise of any other entry.
    ///
    /// # Errors
    /// The error of the gateway.
    pub(crate) fn remove(
        &self,
        parent: u64,
        name: &str,
        directory: bool,
        pid: u32,
    ) -> Result<(), Errno> {
        let (_held, [path]) = self.change_paths([(parent, name)])?;
        if directory && self.has_scratch_beneath(&path) {
            return Err(Errno::NOTEMPTY);
        }
        let known = self.lock().nodes.child(parent, name);
        if self.is_staged_only(known) {
            if directory {
                return Err(Errno::NOTDIR);
            }
            self.lock().nodes.unlink(parent, name);
            return Ok(());
        }
        let seen = self.seen(&path)?;
        match (directory, seen.stat.kind == ObjectKind::Directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            _ => {}
        }
        if let Some(id) = known
            && !self.lock().nodes.staged_only(id).is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        let _change = self.begin_change();
        self.request(pid, known.unwrap_or(parent), &Remove { path, recursive: false })?;
        self.counts.changes.add();
        self.lock().nodes.unlink(parent, name);
        Ok(())
    }

    /// Returns true if there are scratch directories in a directory of the workspace.
    fn has_scratch_beneath(&self, path: &WorkspacePath) -> bool {
        let scratch = self.scratch.as_ref();
        scratch.is_some_and(|scratch| !scratch.roots().beneath(path).is_empty())
    }

    pub(crate) fn is_staged_only(&self, id: Option<u64>) -> bool {
        let state = self.lock();
        id.and_then(|id| state.nodes.get(id)).is_some_and(|node| node.is_staged_only())
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// The error of the gateway; that of the commit of a staged version, which comes first.
    pub(crate) fn rename_entry(
        &self,
        from: (u64, &str),
        to: (u64, &str),
        replace: bool,
        pid: u32,
    ) -> Result<(), Errno> {
        let (_held, [old, new]) = self.change_paths([from, to])?;
        if old != new && self.has_scratch_beneath(&new) {
            return Err(Errno::NOTEMPTY);
        }
        let moved = match &self.scratch {
            Some(scratch) => scratch.roots().moved(&old, &new)?,
            None => Vec::new(),
        };
        let (source, target) = {
            let state = self.lock();
            (state.nodes.child(from.0, from.1), state.nodes.child(to.0, to.1))
        };
        // A staged version is committed under the old name first, so that the new name gets a
        // complete file.
        let staged = source.and_then(|id| self.lock().nodes.get(id)?.staged().cloned());
        if let (Some(id), Some(staged)) = (source, staged) {
            self.commit_named(id, &staged, pid)?;
        }
        let target_is_staged_only = self.is_staged_only(target);
        if target_is_staged_only && !replace {
            return Err(Errno::EXIST);
        }
        let _change = self.begin_change();
        let rename = Rename { from: old, to: new.clone(), replace };
        self.admit(pid, source.unwrap_or(from.0), &rename, (&new, None))?;
        if let Some(id) = target
            && !self.lock().nodes.staged_only(id).is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        let before = source.and_then(|id| self.version_of(id, &rename.from));
        self.request(pid, source.unwrap_or(from.0), &rename)?;
        self.counts.changes.add();
        {
            // The lock makes both moves visible at once.
            let mut roots = self.scratch.as_ref().map(Scratch::change_roots);
            let mut state = self.lock();
            state.nodes.rename(from, to);
            if let Some(roots) = &mut roots {
                roots.rename(&moved);
            }
            source.into_iter().for_each(|id| forget_views(&mut state, id));
        }
        if let Some(id) = source {
            self.settle(id, &new, before, None);
        }
        self.scratch.as_ref().map_or(Ok(()), |scratch| scratch.note_paths(&moved))
    }

    /// Exchanges two entries.
    ///
    /// # Errors
    /// As [`Mount::rename_entry`]; `EXDEV` where a scratch directory would have to move.
    pub(crate) fn exchange_entries(
        &self,
        one: (u64, &str),
        other: (u64, &str),
        pid: u32,
    ) -> Result<(), Errno> {
        let (_held, paths) = self.change_paths([one, other])?;
        if paths.iter().any(|path| self.has_scratch_beneath(path)) {
            return Err(Errno::XDEV);
        }
        let ids = [one, other].map(|(parent, name)| self.lock().nodes.child(parent, name));
        for id in ids.into_iter().flatten() {
            let staged = self.lock().nodes.get(id).and_then(|node| node.staged().cloned());
            if let Some(staged) = staged {
                self.commit_named(id, &staged, pid)?;
            }
        }
        let _change = self.begin_change();
        let [from, to] = paths.clone();
        let exchange = Exchange { rename: Rename { from, to, replace: false } };
        let node = ids[0].unwrap_or(one.0);
        for path in &paths {
            self.admit(pid, node, &exchange, (path, None))?;
        }
        let each = || ids.into_iter().zip(&paths).filter_map(|(id, path)| Some((id?, path)));
        let before: Vec<_> = each().map(|(id, path)| self.version_of(id, path)).collect();
        self.request(pid, node, &exchange)?;
        self.counts.changes.add();
        {
            let mut state = self.lock();
            state.nodes.exchange(one, other);
            each().for_each(|(id, _)| forget_views(&mut state, id));
        }
        for ((id, old), before) in each().zip(before) {
            let [from, to] = &paths;
            self.settle(id, if old == from { to } else { from }, before, None);
        }
        Ok(())
    }

    /// Returns the version of a node's file on the disk, before a change of its name or attributes.
    pub(crate) fn version_of(&self, id: u64, path: &WorkspacePath) -> Option<Version> {
        let version = self.seen(path).ok()?.stat.version();
        let inode = self.lock().nodes.get(id)?.inode;
        Some(version).filter(|version| inode == Some(version.inode()))
    }

    /// Replaces the version `before` of a node by the one that a change of this mount's made; the
    /// content is the same. A staged version based on `before`, also with later writes, is then
    /// based on the new one.
    pub(crate) fn settle(
        &self,
        id: u64,
        path: &WorkspacePath,
        before: Option<Version>,
        modified: Option<Time>,
    ) {
        let (Some(before), Ok(seen)) = (before, self.seen(path)) else { return };
        let version = seen.stat.version();
        if !version.has_content_of(&before, modified.is_some()) {
            return;
        }
        let mut state = self.lock();
        let Some(node) = state.nodes.get_mut(id) else { return };
        if let Some(times) = node.times.as_mut().filter(|times| times.version == before) {
            times.version = version;
            times.changed = seen.stat.changed;
            times.modified = modified.unwrap_or(times.modified);
        }
        let modified = node.times.map_or(seen.stat.modified, |times| times.modified);
        if let Some(staged) = node.staged() {
            staged.rebase(before, version, (modified, seen.stat.changed));
        }
    }
}

/// Removes cached views, which depend on the path of the file.
fn forget_views(state: &mut State, id: u64) {
    for id in state.nodes.beneath(id) {
        state.views.remove(id);
        state.nodes.forget_views(id);
    }
}
