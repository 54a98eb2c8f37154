//! The change that write, append and edit share: new content of a file.

use std::{
    borrow::Cow,
    fs::File,
    io::Write as _,
    os::fd::{AsFd, OwnedFd},
};

use portcullis_audit::Hash;
use rustix::{
    fs::{
        Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, fsync, openat,
    },
    io::Errno,
};

use super::{
    Base, BufferError, Change, Committed, Context, Error, Facts, SealedChange, SomeAttributes,
    Source, atomic_exchange, attributes::set_modified, content::Current, parents,
    tmpfile::UnnamedFile,
};
use crate::{
    backup::{ACL_ACCESS, Origin, Saved, access_list, holds, start_writing},
    workspace::{self, Parent, Permit, Stat, TempName},
};

/// The new content of one file.
pub(super) struct Replacement<'a> {
    context: Context<'a>,
    permit: Permit,
    current: Current,
    /// Hash of the old content from which the new one was computed.
    based_on: Option<Hash>,
    content: Cow<'a, [u8]>,
    through_editor: bool,
    /// The attributes of a new file in the request.
    attributes: SomeAttributes,
    /// The expected state of the file.
    base: Base,
    /// The new file, if it could be written before the change.
    staged: Option<UnnamedFile>,
}

impl<'a> Replacement<'a> {
    /// Seals the change from the current content, `old` if it was read, to `content`; a new file
    /// gets `attributes`. The change fails if the file is not in the state `base`.
    pub(super) fn seal(
        context: Context<'a>,
        permit: Permit,
        current: Current,
        old: Option<&[u8]>,
        content: Cow<'a, [u8]>,
        attributes: SomeAttributes,
        base: Base,
    ) -> Result<SealedChange<'a>, Error> {
        let through_editor = match context.source {
            Source::Disk => false,
            Source::Auto(_) => current.buffer.is_some(),
            Source::Editor(_) => true,
        };
        if !through_editor {
            parents::check_may_rename(context.workspace, permit.path())?;
        } else if permit.stat().is_none() && context.workspace.has_aliases() {
            return Err(Error::Invalid(
                "no editor makes a file on this file system, which may find others by its name: \
                 start with `--source auto` or `--source disk`",
            ));
        }
        let is_made = permit.stat().is_none() && !through_editor;
        let attributes = if is_made { attributes } else { SomeAttributes::default() };
        let facts = Facts {
            bytes: u64::try_from(content.len()).ok(),
            after: Some(Hash::of(&content)),
            temp: if through_editor { None } else { Some(TempName::new()?) },
            editor: through_editor,
            attributes: Some(attributes).filter(|some| *some != SomeAttributes::default()),
            ..Facts::default()
        };
        let based_on = old.map(Hash::of);
        let change = Self {
            context,
            permit,
            current,
            based_on,
            content,
            through_editor,
            attributes,
            base,
            staged: None,
        };
        Ok(SealedChange::new(Box::new(change), facts))
    }

    fn commit_to_disk(&mut self, temp: &TempName, saved: &[Saved]) -> Result<Committed, Error> {
        let workspace = self.context.workspace;
        let (parent, new, ready) = match self.staged.take() {
            Some(staged) => {
                // Before the file has a name: that is another change of the file, which would need
                // a sync of its own.
                sync(&staged.file)?;
                workspace.confirm(&staged.parent).map_err(Error::unbegun)?;
                staged.link(temp.as_str()).map_err(workspace::Error::os("name the file"))?;
                (staged.parent, staged.file, Ok(()))
            }
            None => {
                let (parent, new) = self.create(temp)?;
                let filled = self.fill(&new).and_then(|()| sync(&new));
                let ready = filled.and_then(|()| Ok(workspace.confirm(&parent)?));
                (parent, new, ready)
            }
        };
        let old = self.permit.stat().map(|stat| stat.identity);
        ready
            .and_then(|()| atomic_exchange::put(workspace, &parent, temp, new.as_fd(), old, saved))
            .inspect_err(|_| atomic_exchange::discard(&parent, temp, new.as_fd()))?;
        let version = Stat::of(&new).ok().map(|stat| stat.version());
        parent.sync()?;
        Ok(Committed::Stored(version))
    }

    /// Makes the file under its temporary name, and its directory if that is missing.
    fn create(&self, temp: &TempName) -> Result<(Parent, OwnedFd), Error> {
        let (workspace, path) = (self.context.workspace, self.permit.path());
        parents::create(workspace, path)?;
        let parent = workspace.open_parent(path)?;
        let file = create(&parent, temp, self.is_private())?;
        Ok((parent, file))
    }

    /// True if the new file gets its mode later.
    fn is_private(&self) -> bool {
        self.permit.stat().is_some() || self.attributes.mode.is_some()
    }

    fn fill(&self, new: &OwnedFd) -> Result<(), Error> {
        let mut file = File::from(new.try_clone().map_err(workspace::Error::io("open the file"))?);
        file.write_all(&self.content).map_err(workspace::Error::io("write the file"))?;
        if let (Some(stat), Some(old)) = (self.permit.stat(), &self.current.disk) {
            keep_ownership(new, old, stat)?;
        } else if let Some(mode) = self.attributes.mode {
            fchmod(new, Mode::from_raw_mode(mode)).map_err(workspace::Error::os("set the mode"))?;
        }
        self.attributes.modified.map_or(Ok(()), |time| set_modified(new, time))
    }

    /// Hands the content to the editor and compares it with the disk.
    fn commit_to_editor(&self) -> Result<Committed, Error> {
        let (Source::Auto(buffers) | Source::Editor(buffers)) = self.context.source else {
            return Err(Error::Conflict);
        };
        let locks = self.context.name_locks;
        let pinned = locks.pin(self.context.workspace, &self.permit)?;
        match buffers.write(self.permit.path(), &self.content) {
            Err(error @ BufferError::Timeout) => {
                locks.abandon(pinned);
                return Err(error.into());
            }
            written => written?,
        }
        let shown = self
            .context
            .workspace
            .open_at(self.permit.path(), OFlags::RDONLY)
            .map_err(Error::from)
            .and_then(|file| Ok(holds(file.as_fd(), &self.content)?));
        match shown {
            Ok(true) => Ok(Committed::Stored(None)),
            _ => Ok(Committed::Buffered),
        }
    }
}

impl Change for Replacement<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        let disk = self.current.disk.iter().map(|file| Origin::File(file.as_fd()));
        let buffer = self.current.buffer.iter().map(|bytes| Origin::Bytes(bytes));
        disk.chain(buffer).collect()
    }

    fn content(&self) -> Option<&[u8]> {
        Some(&self.content)
    }

    fn is_based_on(&self, saved: &[Saved]) -> bool {
        // The exchange has to displace the object that was backed up.
        let disk = self.current.disk.as_ref().map(Stat::of).transpose();
        if !disk.is_ok_and(|disk| self.base.check(disk.as_ref()).is_ok()) {
            return false;
        }
        match self.based_on {
            // The agent saw the buffer, if there is one; its backup is the last.
            Some(hash) => saved.last().is_some_and(|saved| saved.sha256 == hash),
            None => true,
        }
    }

    fn stage(&mut self) {
        if !self.through_editor
            && let Ok(parent) = self.context.workspace.open_parent(self.permit.path())
            && let Some(staged) = UnnamedFile::new(parent, mode(self.is_private()))
            && self.fill(&staged.file).is_ok()
        {
            start_writing(&staged.file);
            self.staged = Some(staged);
        }
    }

    fn commit(
        mut self: Box<Self>,
        temp: Option<&TempName>,
        saved: &[Saved],
    ) -> Result<Committed, Error> {
        match temp {
            Some(temp) if !self.through_editor => self.commit_to_disk(temp, saved),
            _ => self.commit_to_editor(),
        }
    }
}

/// Makes the temporary file: `private` while it is filled if it gets another file's mode, with the
/// usual mode (umask, default ACL) if the file is new.
pub(super) fn create(parent: &Parent, temp: &TempName, private: bool) -> Result<OwnedFd, Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, temp.as_str(), flags, mode(private)).map_err(|errno| {
        // A confined gateway may create the file and fail to open it, when the directory is moved
        // out of the workspace in between.
        if errno == Errno::ACCESS
            && let Err(error) = atomic_exchange::unlink(parent, temp.as_str())
            && !matches!(error, Error::Workspace(workspace::Error::NotFound))
        {
            tracing::warn!(%error, "a temporary file could not be removed");
        }
        workspace::Error::os("create the file")(errno).into()
    })
}

fn mode(private: bool) -> Mode {
    Mode::from_raw_mode(if private { 0o600 } else { 0o666 })
}

fn sync(file: &OwnedFd) -> Result<(), Error> {
    Ok(fsync(file).map_err(workspace::Error::os("sync the file"))?)
}

/// Gives the new file the old one's owner, permission bits and ACL, without set-id bits.
pub(super) fn keep_ownership(new: &OwnedFd, old: &File, stat: &Stat) -> Result<(), Error> {
    let mine = Stat::of(new)?;
    if (mine.uid, mine.gid) != (stat.uid, stat.gid) {
        let (uid, gid) = (Uid::from_raw(stat.uid), Gid::from_raw(stat.gid));
        fchown(new, Some(uid), Some(gid)).map_err(|_| Error::Owner)?;
    }
    fchmod(new, Mode::from_raw_mode(stat.mode)).map_err(workspace::Error::os("set the mode"))?;
    let list =
        access_list(old, ACL_ACCESS).map_err(workspace::Error::os("read the access list"))?;
    set_list(new, ACL_ACCESS, list.as_deref())
}

/// Sets or removes one of an object's access control lists.
pub(super) fn set_list(fd: impl AsFd, name: &str, list: Option<&[u8]>) -> Result<(), Error> {
    let set = match list {
        Some(list) => fsetxattr(fd, name, list, XattrFlags::empty()),
        None => match fremovexattr(fd, name) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        },
    };
    set.map_err(|errno| workspace::Error::os("set the access list")(errno).into())
}
