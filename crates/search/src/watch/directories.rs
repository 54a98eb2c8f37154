//! The operating system's interface for a watcher.

use std::{fmt::Display, time::Duration};

use crate::{model::WorkspacePath, policy::ObjectKind};

/// The number of a watch; the kernel does not reuse it for a long time.
pub type WatchId = i32;

/// An event of the kernel about one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The watch.
    pub watch: WatchId,
    /// The event.
    pub what: DirectoryEvent,
    /// The entry's name; `None` if the event is about the directory itself or the name is not
    /// UTF-8.
    pub name: Option<String>,
    /// True if the entry is a directory.
    pub directory: bool,
}

/// Events in a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryEvent {
    /// An entry was made.
    Created,
    /// An entry was removed.
    Deleted,
    /// A file's content was changed, or a file that was open for writing was closed.
    Modified,
    /// An entry was renamed to the name in the notice with the same number.
    MovedFrom(u32),
    /// An entry was renamed from the name in the notice with the same number.
    MovedTo(u32),
    /// The watch ended because the directory is gone.
    Gone,
    /// The kernel's queue overflowed; some notices are lost.
    Lost,
}

/// Reasons why a directory is not watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwatched<E> {
    /// It does not exist, or is in a place that is not watched.
    Gone,
    /// The system does not permit reading it.
    Unreadable,
    /// The maximum number of watches is reached.
    Failed(E),
}

/// The directories of a workspace, with their names and the kernel's events.
pub trait Directories: Send + Sync {
    /// A directory that was opened to be watched.
    type Opened;
    /// An error of watching or of reading events.
    type Error: Display;

    /// Watches a directory. One that is watched already keeps its number.
    ///
    /// # Errors
    /// The reasons of [`Unwatched`].
    fn watch(
        &self,
        path: &WorkspacePath,
    ) -> Result<(Self::Opened, WatchId), Unwatched<Self::Error>>;

    /// Ends a watch; one that is gone already is no error.
    fn unwatch(&self, watch: WatchId);

    /// Passes on the names in a directory, with their kinds if the directory has them. False if not
    /// all could be read.
    fn names(
        &self,
        directory: Self::Opened,
        visit: &mut dyn FnMut(&str, Option<ObjectKind>),
    ) -> bool;

    /// Returns the kind of the entry at a path; `None` if there is none.
    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind>;

    /// True if the gateway uses such names for temporary files.
    fn is_temporary(&self, name: &str) -> bool;

    /// Reads the kernel's present notices, at most about `most`. False if there may be more.
    ///
    /// # Errors
    /// The error of the system.
    fn read(&self, notices: &mut Vec<Notice>, most: usize) -> Result<bool, Self::Error>;

    /// True if the kernel has further notices within this time.
    fn more_comes(&self, within: Duration) -> bool;

    /// Waits until the kernel has notices, or until [`wake`](Self::wake) is called.
    ///
    /// # Errors
    /// The error of the system.
    fn wait(&self) -> Result<(), Self::Error>;

    /// Ends a wait.
    fn wake(&self);
}
