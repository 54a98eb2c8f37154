//! Watches on open directories: inotify, without interpreting its events.
//!
//! A watch is set on a descriptor that was opened beneath the root, never on a path: inotify takes
//! names only, so it gets the one of the descriptor in `/proc`. Landlock restricts opening, and
//! nothing is opened here; so this works in a confined gateway too.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use portcullis_search::watch::{DirectoryEvent, Notice, WatchId};
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

use super::Error;

/// Size of the buffer for events, in bytes.
const BUFFER_SIZE: usize = 64 * 1024;

/// The reason why a directory cannot be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WatchError {
    /// The user's limit is reached.
    #[error(
        "the user's limit of inotify {0} is reached; \
         `sysctl fs.inotify.max_user_{0}` shows and raises it"
    )]
    Limit(&'static str),
    /// `/proc` is not mounted, so descriptors have no names.
    #[error("`/proc` is not there, without which no directory can be watched")]
    NoProc,
    /// An error of the workspace.
    #[error(transparent)]
    Workspace(#[from] Error),
}

/// An inotify instance.
#[derive(Debug)]
pub(crate) struct Watches(OwnedFd);

impl Watches {
    /// Opens an inotify instance.
    ///
    /// # Errors
    /// [`WatchError::Limit`] when the user has too many.
    pub(crate) fn new() -> Result<Self, WatchError> {
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(fd) => Ok(Self(fd)),
            Err(Errno::MFILE) => Err(WatchError::Limit("instances")),
            Err(errno) => Err(Error::os("watch for changes")(errno).into()),
        }
    }

    /// Watches the directory behind `directory`. One that is watched already keeps its number.
    ///
    /// # Errors
    /// [`WatchError::Limit`] when the user watches too many directories.
    pub(crate) fn add(&self, directory: BorrowedFd<'_>) -> Result<WatchId, WatchError> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
        inotify::add_watch(&self.0, name, flags).map_err(|errno| match errno {
            Errno::NOSPC => WatchError::Limit("watches"),
            // The descriptor is open: only its name can be missing.
            Errno::NOENT => WatchError::NoProc,
            errno => Error::os("watch the directory")(errno).into(),
        })
    }

    /// Removes a watch; one that is gone already is no error.
    pub(crate) fn remove(&self, watch: WatchId) {
        if let Err(error) = inotify::remove_watch(&self.0, watch)
            && error != Errno::INVAL
        {
            tracing::warn!(%error, "a watch could not be removed");
        }
    }

    /// Reads the events that the kernel has now, at most about `most`; false if there may be more.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn read(&self, notices: &mut Vec<Notice>, most: usize) -> Result<bool, Error> {
        let mut room = vec![MaybeUninit::uninit(); BUFFER_SIZE];
        let mut reader = Reader::new(&self.0, &mut room);
        loop {
            if notices.len() >= most && reader.is_buffer_empty() {
                return Ok(false);
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::os("read what changed")(errno)),
            };
            let Some(what) = what(event.events(), event.cookie()) else { continue };
            notices.push(Notice {
                watch: event.wd(),
                what,
                name: event.file_name().and_then(|name| Some(name.to_str().ok()?.to_owned())),
                directory: event.events().contains(ReadFlags::ISDIR),
            });
        }
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn what(events: ReadFlags, cookie: u32) -> Option<DirectoryEvent> {
    const MEANINGS: [(ReadFlags, DirectoryEvent); 7] = [
        (ReadFlags::QUEUE_OVERFLOW, DirectoryEvent::Lost),
        (ReadFlags::IGNORED, DirectoryEvent::Gone),
        (ReadFlags::UNMOUNT, DirectoryEvent::Gone),
        (ReadFlags::CREATE, DirectoryEvent::Created),
        (ReadFlags::DELETE, DirectoryEvent::Deleted),
        (ReadFlags::MODIFY, DirectoryEvent::Modified),
        (ReadFlags::CLOSE_WRITE, DirectoryEvent::Modified),
    ];
    if events.contains(ReadFlags::MOVED_FROM) {
        return Some(DirectoryEvent::MovedFrom(cookie));
    }
    if events.contains(ReadFlags::MOVED_TO) {
        return Some(DirectoryEvent::MovedTo(cookie));
    }
    MEANINGS.into_iter().find(|(flag, _)| events.contains(*flag)).map(|(_, what)| what)
}
