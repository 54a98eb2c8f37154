//! What a watcher needs of the system.

use std::{fmt::Display, time::Duration};

use crate::{model::WorkspacePath, policy::ObjectKind};

/// The number of a watch; the kernel gives none twice in a long time.
pub type WatchId = i32;

/// What the kernel says of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The watch.
    pub watch: WatchId,
    /// What happened.
    pub what: What,
    /// The entry's name; `None` when the directory itself is meant or the name
    /// is not UTF-8.
    pub name: Option<String>,
    /// Whether the entry is a directory.
    pub directory: bool,
}

/// What may happen in a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An entry was made.
    Created,
    /// An entry was removed.
    Deleted,
    /// A file's content was changed, or a file that was open for that closed.
    Modified,
    /// An entry went to the name in the notice with the same number.
    MovedFrom(u32),
    /// An entry came from the name in the notice with the same number.
    MovedTo(u32),
    /// The watch is no more: the directory is gone.
    Gone,
    /// The kernel had no room for notices; some are lost.
    Lost,
}

/// Why one directory is not watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwatched<E> {
    /// There is none, or it lies where nothing is watched.
    Gone,
    /// The system does not let it be looked into.
    Unreadable,
    /// No more directories can be watched.
    Failed(E),
}

/// The directories of a workspace, their names and what the kernel tells of them.
pub trait Directories: Send + Sync {
    /// A directory that was opened to be watched.
    type Opened;
    /// Why nothing can be watched, or heard of what is.
    type Error: Display;

    /// Watches a directory. One that is watched already keeps its number.
    ///
    /// # Errors
    /// As [`Unwatched`] says.
    fn watch(
        &self,
        path: &WorkspacePath,
    ) -> Result<(Self::Opened, WatchId), Unwatched<Self::Error>>;

    /// Watches it no more; a watch that is gone already is no error.
    fn unwatch(&self, watch: WatchId);

    /// Gives the names in a directory, and what they are where it tells; false when not
    /// all of them could be read.
    fn names(
        &self,
        directory: Self::Opened,
        visit: &mut dyn FnMut(&str, Option<ObjectKind>),
    ) -> bool;

    /// What is at a path now; `None` when nothing is.
    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind>;

    /// Whether a name is one that the gate gives to what it is still making.
    fn is_temporary(&self, name: &str) -> bool;

    /// Takes what the kernel has to say now, at most about `most` notices; false when
    /// there may be more.
    ///
    /// # Errors
    /// As the system says.
    fn read(&self, notices: &mut Vec<Notice>, most: usize) -> Result<bool, Self::Error>;

    /// Whether the kernel has more to say within a time.
    fn more_comes(&self, within: Duration) -> bool;

    /// Waits until the kernel has something to say, or it is rung for.
    ///
    /// # Errors
    /// As the system says.
    fn wait(&self) -> Result<(), Self::Error>;

    /// Ends a wait.
    fn ring(&self);
}
