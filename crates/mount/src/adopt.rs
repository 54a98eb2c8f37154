//! Conversion of a workspace directory to a scratch directory by a rename: a build creates a
//! directory beside the name that it shall have, with a few files in it, and renames it.
//!
//! The directory is removed from the workspace by a request of its own, and its readable
//! content is copied to scratch first.

use std::path::{Path, PathBuf};

use portcullis_fuse::RenameMode;
use portcullis_policy::{
    ObjectKind,
    model::{
        Encoding, LineRange, WorkspacePath,
        request::{Read, Remove},
    },
};
use rustix::{
    fs::FileType,
    io::{Errno, Result},
};

use crate::{
    errno,
    mount::Mount,
    router::Router,
    scratch::{AdoptedEntry, Scratch},
};

/// The maximum of entries and of bytes that are moved; beyond it the rename fails, and
/// programs copy.
const MAX_ENTRIES: usize = 64;
const MAX_BYTES: u64 = 1 << 20;

impl Router<'_, '_> {
    /// Renames a directory of the workspace to a scratch name.
    ///
    /// # Errors
    /// `EXDEV` for a directory that is too large or in use, or has entries that are not shown, and for
    /// any other entry; the error of the read or removal.
    pub(crate) fn adopt(
        &self,
        scratch: &Scratch,
        (from, to): ((u64, &str), (u64, &str)),
        mode: RenameMode,
        pid: u32,
    ) -> Result<()> {
        let mount = self.mount;
        let (_held, [old, new]) = mount.change_paths([from, to])?;
        if mount.seen(&old)?.stat.kind != ObjectKind::Directory {
            return Err(Errno::XDEV);
        }
        // The lock keeps other requests from changing these paths.
        let there = scratch.roots().by_path.get(&new).map(|root| root.kind);
        if there.is_some() && mode == RenameMode::NoReplace {
            return Err(Errno::EXIST);
        }
        if there.is_some_and(|kind| kind != FileType::Directory) {
            return Err(Errno::NOTDIR);
        }
        if new.is_within(&old) {
            return Err(Errno::INVAL);
        }
        if !scratch.roots().beneath(&old).is_empty() {
            return Err(Errno::XDEV);
        }
        let node = mount.lock().nodes.child(from.0, from.1);
        let entries = ContentCollector { mount, scratch, pid }.entries(&old, node)?;
        let root = scratch.make_unnamed(&mut scratch.change_roots(), None)?;
        let moved = scratch.fill(root, &entries).and_then(|()| {
            if there.is_some() {
                // Before the removal below: a program may have filled it.
                scratch.remove_root(&mut scratch.change_roots(), &new)?;
            }
            let _change = mount.begin_change();
            let remove = Remove { path: old, recursive: true };
            mount.request(pid, node.unwrap_or(from.0), &remove).inspect_err(|_| {
                if there.is_some() {
                    // Without room for it, it stays removed: it was empty.
                    let _ = scratch.make_root(&mut scratch.change_roots(), new.clone(), None);
                }
            })
        });
        moved.inspect_err(|_| scratch.drop_root(root))?;
        mount.counts.changes.add();
        scratch.name_root(&mut scratch.change_roots(), root, new)?;
        let mut state = mount.lock();
        if let Some(node) = node {
            // Until the kernel looks the names up again.
            self.note_became(node, root.node);
            let children = state.nodes.get(node).map(|node| &node.children);
            for name in children.into_iter().flat_map(|children| children.keys()) {
                mount.invalidations.entry(node, name.clone());
            }
        }
        state.nodes.unlink(from.0, from.1);
        Ok(())
    }
}

/// Collects the content of a directory, read as a program would read it.
struct ContentCollector<'a, 'g> {
    mount: &'a Mount<'g>,
    scratch: &'a Scratch,
    pid: u32,
}

impl ContentCollector<'_, '_> {
    fn entries(
        &self,
        top: &WorkspacePath,
        node: Option<u64>,
    ) -> Result<Vec<(PathBuf, AdoptedEntry)>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut directories = vec![(top.clone(), PathBuf::new(), node)];
        while let Some((path, at, node)) = directories.pop() {
            if node.is_some_and(|node| !self.mount.lock().nodes.staged_only(node).is_empty()) {
                return Err(Errno::XDEV);
            }
            let names = self.mount.names_in(&path)?;
            // These would be removed with the directory.
            if names.hidden > 0 {
                return Err(Errno::XDEV);
            }
            for (name, kind) in names.shown {
                // An entry of the workspace with a scratch name is not shown.
                if found.len() >= MAX_ENTRIES || self.scratch.rules().may_match_name(&name) {
                    return Err(Errno::XDEV);
                }
                let (path, at) = (path.join(&name).map_err(errno::of_name)?, at.join(&name));
                let node = node.and_then(|node| self.mount.lock().nodes.child(node, &name));
                let moved = match kind {
                    ObjectKind::Directory => {
                        directories.push((path, at.clone(), node));
                        AdoptedEntry::Directory
                    }
                    ObjectKind::File => self.file(&path, node, &mut bytes)?,
                    ObjectKind::Symlink => AdoptedEntry::Link(self.link(&path)?),
                    _ => return Err(Errno::XDEV),
                };
                found.push((at, moved));
            }
        }
        // Directories come before their content.
        found.sort_by_key(|(path, _)| depth(path));
        Ok(found)
    }

    fn file(
        &self,
        path: &WorkspacePath,
        node: Option<u64>,
        bytes: &mut u64,
    ) -> Result<AdoptedEntry> {
        let is_dirty = node.is_some_and(|node| {
            let state = self.mount.lock();
            let staged = state.nodes.get(node).and_then(|node| node.staged());
            staged.is_some_and(|staged| staged.shows().dirty)
        });
        let stat = self.mount.seen(path)?.stat;
        *bytes += stat.size;
        if is_dirty || *bytes > MAX_BYTES {
            return Err(Errno::XDEV);
        }
        let (range, encoding) = (LineRange::default(), Encoding::Base64);
        let read = Read { path: path.clone(), range, encoding };
        let content = self.mount.request(self.pid, node.unwrap_or(crate::nodes::ROOT), &read)?;
        Ok(AdoptedEntry::File(content.output.bytes, stat.mode))
    }

    fn link(&self, path: &WorkspacePath) -> Result<String> {
        let claimed = || self.mount.claimed(self.pid);
        let target = self.mount.view().read_link(path, |_| true, &claimed);
        let target = target.map_err(|error| errno::of_link(&error))?;
        target.ok_or(Errno::NOENT)
    }
}

fn depth(path: &Path) -> usize {
    path.components().count()
}
