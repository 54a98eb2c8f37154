//! SETATTR: size, mode and times.

use portcullis_policy::model::request::SetAttributes;
use rustix::io::Errno;

use crate::{
    attributes::Attr,
    mount::Mount,
    staged::{Pending, Time},
};

/// The attributes to set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttributeChange {
    pub(crate) size: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) modified: Option<Time>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// Set-user-ID and set-group-ID, which change the rights of a program.
const SET_ID: u32 = 0o6000;

impl Mount<'_> {
    /// Sets attributes of a node, through a handle if there is one.
    ///
    /// # Errors
    /// `EPERM` for another owner and for set-id bits.
    pub(crate) fn set_attributes(
        &self,
        id: u64,
        handle: Option<u64>,
        wanted: AttributeChange,
        pid: u32,
    ) -> Result<Attr, Errno> {
        let options = &self.options;
        let gives_away = wanted.uid.is_some_and(|uid| uid != options.uid)
            || wanted.gid.is_some_and(|gid| gid != options.gid);
        if gives_away || wanted.mode.is_some_and(|mode| mode & SET_ID != 0) {
            return Err(Errno::PERM);
        }
        if let Some(size) = wanted.size {
            self.resize_file(id, handle, size, pid)?;
        }
        let pending =
            Pending { mode: wanted.mode.map(|mode| mode & 0o777), modified: wanted.modified };
        if pending == Pending::default() {
            return self.attributes(id);
        }
        let now = self.attributes(id)?;
        let changes = pending.mode.is_some_and(|mode| mode != now.mode)
            || pending.modified.is_some_and(|modified| modified != now.modified);
        if changes {
            self.change_attributes(id, pending, pid)?;
        }
        self.attributes(id)
    }

    fn change_attributes(&self, id: u64, pending: Pending, pid: u32) -> Result<(), Errno> {
        let kept = self.keep_path(id);
        let staged = self.lock().nodes.get(id).and_then(|node| node.staged().cloned());
        // A commit in progress has read the attributes that it stores, and replaces the file.
        let _held = staged.as_ref().map(|staged| staged.hold());
        if staged.as_ref().is_some_and(|staged| staged.set_attributes(pending)) {
            return Ok(());
        }
        let (_kept, path) = kept?;
        let _change = self.begin_change();
        let before = self.version_of(id, &path);
        let Pending { mode, modified } = pending;
        self.request(pid, id, &SetAttributes { path: path.clone(), mode, modified })?;
        self.counts.changes.add();
        self.settle(id, &path, before, modified);
        Ok(())
    }
}
