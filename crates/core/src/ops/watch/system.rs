//! The directories of the workspace for the watcher: opened beneath the root, watched by their
//! descriptors.

use std::{
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use portcullis_search::watch::{Directories, Notice, Unwatched, WatchId};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::OFlags,
    io::Errno,
};

use crate::{
    model::WorkspacePath,
    policy::ObjectKind,
    workspace::{Error, Stat, TempName, WatchError, Watches, Workspace, stream_names},
};

/// An inotify instance, and an event descriptor that ends a wait for it.
pub(super) struct System {
    workspace: Workspace,
    watches: Watches,
    wake: OwnedFd,
}

impl System {
    pub(super) fn new(workspace: Workspace) -> Result<Self, WatchError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::os("watch for changes"))?;
        Ok(Self { workspace, watches: Watches::new()?, wake })
    }
}

impl Directories for System {
    type Opened = OwnedFd;
    type Error = WatchError;

    fn watch(&self, path: &WorkspacePath) -> Result<(OwnedFd, WatchId), Unwatched<WatchError>> {
        let opened = self.workspace.open_directory(path).map_err(WatchError::from);
        let watched = opened.and_then(|directory| {
            let watch = self.watches.add(directory.as_fd())?;
            Ok((directory, watch))
        });
        watched.map_err(|error| match error {
            WatchError::Limit(_) | WatchError::NoProc => Unwatched::Failed(error),
            WatchError::Workspace(Error::Os { .. }) => Unwatched::Unreadable,
            WatchError::Workspace(_) => Unwatched::Gone,
        })
    }

    fn unwatch(&self, watch: WatchId) {
        self.watches.remove(watch);
    }

    fn names(&self, directory: OwnedFd, visit: &mut dyn FnMut(&str, Option<ObjectKind>)) -> bool {
        let read = stream_names(directory, |name, kind| {
            visit(name, kind);
            ControlFlow::Continue(())
        });
        read.is_ok()
    }

    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind> {
        match self.workspace.open_at(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(handle) => Stat::of(handle).ok().map(|stat| stat.kind),
            Err(Error::NotFound | Error::NotADirectory) => None,
            // A mount point exists, and cannot be looked at.
            Err(_) => Some(ObjectKind::Missing),
        }
    }

    fn is_temporary(&self, name: &str) -> bool {
        TempName::is_reserved_name(name)
    }

    fn read(&self, notices: &mut Vec<Notice>, most: usize) -> Result<bool, WatchError> {
        Ok(self.watches.read(notices, most)?)
    }

    fn more_comes(&self, within: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.watches.as_fd(), PollFlags::IN)];
        let wait = Timespec::try_from(within).unwrap_or_default();
        poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
    }

    fn wait(&self) -> Result<(), WatchError> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.watches.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("wait for changes")(errno).into()),
        }
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        Ok(())
    }

    fn wake(&self) {
        // A full counter ends the wait already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
