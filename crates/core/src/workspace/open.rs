//! Opens the root: the only place where the workspace is reached by a name.
#![expect(clippy::disallowed_methods, reason = "the root itself can only be opened by its path")]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use cap_std::{ambient_authority, fs::Dir};
use rustix::{fs::OFlags, io::Errno};

use super::{beneath::open_beneath, names};

/// The directory that an agent works in.
#[derive(Debug)]
pub struct Workspace {
    dir: Dir,
    root: PathBuf,
    aliases: bool,
}

impl Workspace {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// When it is missing, no directory, or its path is not UTF-8 (transports and logs could not
    /// name it), and where `openat2` is not available, without which nothing in it can be resolved.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = path.canonicalize()?;
        if root.to_str().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not UTF-8"));
        }
        let dir = Dir::open_ambient_dir(&root, ambient_authority())?;
        match open_beneath(dir.as_fd(), "", OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => Ok(Self { aliases: names::may_have_aliases(dir.as_fd()), dir, root }),
            Err(Errno::NOSYS | Errno::PERM) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the system call openat2 is not there (Linux before 5.6), or a filter forbids it \
                 (systemd: RestrictSUIDSGID=)",
            )),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Builds the workspace from a root that another process opened and handed over.
    pub fn from_fd(fd: OwnedFd, root: PathBuf) -> Self {
        Self {
            aliases: names::may_have_aliases(fd.as_fd()),
            dir: Dir::from_std_file(fd.into()),
            root,
        }
    }

    /// Copies the workspace for another thread.
    ///
    /// # Errors
    /// When the descriptor cannot be copied.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { dir: self.dir.try_clone()?, root: self.root.clone(), aliases: self.aliases })
    }

    /// Returns the root's canonical path on the host, which is never shown to an agent.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// True if its file system may have name aliases. Each name from outside is searched for in its
    /// directory then.
    pub fn has_aliases(&self) -> bool {
        self.aliases
    }

    /// Returns the root's descriptor, for the rules of a process that confines itself before a
    /// gateway takes the workspace over.
    pub fn rule_descriptor(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
