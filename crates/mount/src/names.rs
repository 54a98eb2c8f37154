//! Changes of names: MKDIR, UNLINK, RMDIR, RENAME.

use portcullis_core::Exchange;
use portcullis_policy::{
    ObjectKind,
    model::{
        WorkspacePath,
        request::{Mkdir, Remove, Rename, Symlink},
    },
};
use rustix::io::Errno;

use crate::{attributes::Attr, change::Wanted, mount::Mount, staged::Time};

impl Mount<'_> {
    /// Creates a directory. The gateway gives it the mode that its own umask leaves; another
    /// one is set by a second request, and if that is refused the directory goes again.
    ///
    /// # Errors
    /// As the gateway says.
    pub(crate) fn make_directory(
        &self,
        parent: u64,
        name: &str,
        mode: u32,
        pid: u32,
    ) -> Result<Attr, Errno> {
        {
            let _names = self.keep_names();
            let path = self.path_of(parent, name)?;
            let known = self.lock().nodes.child(parent, name);
            if self.is_staged_only(known) {
                return Err(Errno::EXIST);
            }
            let _change = self.begin_change();
            let mkdir = Mkdir { path: path.clone(), recursive: false };
            self.admit(pid, parent, &mkdir, (&path, None))?;
            self.request(pid, parent, &mkdir)?;
            self.counts.changes.add();
        }
        let made = self.look_up(parent, name)?;
        let mode = Some(mode & 0o777).filter(|mode| *mode != made.mode);
        let wanted = Wanted { mode, ..Wanted::default() };
        self.set_attributes(made.node, None, wanted, pid).inspect_err(|_| {
            self.forget_node(made.node, 1);
            let _ = self.remove(parent, name, true, pid);
        })
    }

    /// Creates a link to `target`, which says where from its directory.
    ///
    /// # Errors
    /// As the gateway says.
    pub(crate) fn make_link(
        &self,
        parent: u64,
        name: &str,
        target: &str,
        pid: u32,
    ) -> Result<Attr, Errno> {
        {
            let _names = self.keep_names();
            let path = self.path_of(parent, name)?;
            let known = self.lock().nodes.child(parent, name);
            if self.is_staged_only(known) {
                return Err(Errno::EXIST);
            }
            let _change = self.begin_change();
            let link = Symlink { path: path.clone(), target: target.to_owned() };
            self.admit(pid, parent, &link, (&path, None))?;
            self.request(pid, parent, &link)?;
            self.counts.changes.add();
        }
        self.look_up(parent, name)
    }

    /// Removes a name: that of a directory if `directory`, else of anything else.
    ///
    /// # Errors
    /// As the gateway says.
    pub(crate) fn remove(
        &self,
        parent: u64,
        name: &str,
        directory: bool,
        pid: u32,
    ) -> Result<(), Errno> {
        let _names = self.change_names();
        let path = self.path_of(parent, name)?;
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

    fn is_staged_only(&self, id: Option<u64>) -> bool {
        let state = self.lock();
        id.and_then(|id| state.nodes.get(id)).is_some_and(|node| node.is_staged_only())
    }

    /// Gives an entry another name.
    ///
    /// # Errors
    /// As the gateway says; why what is staged of it could not be committed before.
    pub(crate) fn rename_entry(
        &self,
        from: (u64, &str),
        to: (u64, &str),
        replace: bool,
        pid: u32,
    ) -> Result<(), Errno> {
        let _names = self.change_names();
        let (old, new) = (self.path_of(from.0, from.1)?, self.path_of(to.0, to.1)?);
        let (source, target) = {
            let state = self.lock();
            (state.nodes.child(from.0, from.1), state.nodes.child(to.0, to.1))
        };
        // What is staged is stored under the old name first: the new one gets a whole file.
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
        self.request(pid, source.unwrap_or(from.0), &rename)?;
        self.counts.changes.add();
        self.lock().nodes.rename(from, to);
        if let Some(id) = source {
            self.moved(id, &new);
        }
        Ok(())
    }

    /// Gives each of two entries the other's name.
    ///
    /// # Errors
    /// As [`Mount::rename_entry`].
    pub(crate) fn exchange_entries(
        &self,
        one: (u64, &str),
        other: (u64, &str),
        pid: u32,
    ) -> Result<(), Errno> {
        let _names = self.change_names();
        let paths = [self.path_of(one.0, one.1)?, self.path_of(other.0, other.1)?];
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
        self.request(pid, node, &exchange)?;
        self.counts.changes.add();
        self.lock().nodes.exchange(one, other);
        for (id, path) in ids.into_iter().zip(paths.iter().rev()) {
            id.into_iter().for_each(|id| self.moved(id, path));
        }
        Ok(())
    }

    /// A node has another path, and what is shown of a file depends on that.
    fn moved(&self, id: u64, path: &WorkspacePath) {
        {
            let mut state = self.lock();
            for id in state.nodes.beneath(id) {
                state.memo.remove(id);
                state.nodes.forget_views(id);
            }
        }
        self.settle(id, path, None);
    }

    /// Takes the version that a change of this mount made of a node for the one that it
    /// knows; the content is the same.
    pub(crate) fn settle(&self, id: u64, path: &WorkspacePath, modified: Option<Time>) {
        let Ok(seen) = self.seen(path) else { return };
        let version = seen.stat.version();
        let mut state = self.lock();
        let Some(node) = state.nodes.get_mut(id) else { return };
        if node.inode != Some(seen.stat.inode()) {
            return;
        }
        if let Some(times) = &mut node.times {
            times.version = version;
            times.changed = seen.stat.changed;
            times.modified = modified.unwrap_or(times.modified);
        }
        let modified = node.times.map_or(seen.stat.modified, |times| times.modified);
        if let Some(staged) = node.staged()
            && !staged.shows().dirty
        {
            staged.rebase(version, (modified, seen.stat.changed));
        }
    }
}
