//! Requests of clients: a type for each operation, and [`Operation`], which borrows one of them.

use super::{Encoding, GlobQuery, GrepQuery, LineRange, OperationKind, WatchQuery, WorkspacePath};

/// A request to disclose a file's content, or some of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub path: WorkspacePath,
    /// The lines.
    pub range: LineRange,
    /// The encoding of the content.
    pub encoding: Encoding,
}

/// A request to create a file or replace its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The file.
    pub path: WorkspacePath,
    /// Its new content.
    pub content: Vec<u8>,
    /// The permission bits of a file that is created (`0o777` at most); the default depends on the
    /// gateway's umask. An existing file keeps its own.
    pub mode: Option<u32>,
}

/// A request to append to a file, which is created if missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The file.
    pub path: WorkspacePath,
    /// The bytes to append.
    pub content: Vec<u8>,
}

/// A request to replace the only occurrence of a text by another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The file.
    pub path: WorkspacePath,
    /// The text to replace.
    pub old: String,
    /// The replacement.
    pub new: String,
}

/// A request to disclose the entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The directory.
    pub path: WorkspacePath,
}

/// A request to disclose the names in a directory without sizes, times and modes, which takes less
/// than half the time of a [`List`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The directory.
    pub path: WorkspacePath,
}

/// A request to disclose type, size and time of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The entry.
    pub path: WorkspacePath,
}

/// A request to disclose the entries beneath a directory whose paths match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// The directory.
    pub path: WorkspacePath,
    /// The search.
    pub query: GlobQuery,
}

/// A request to disclose the lines that match in a file, or in the files beneath a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grep {
    /// The file or the directory.
    pub path: WorkspacePath,
    /// The search.
    pub query: GrepQuery,
}

/// A request to create a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mkdir {
    /// The directory.
    pub path: WorkspacePath,
    /// True if missing parents are created, too, and an existing directory is not an error.
    pub recursive: bool,
    /// The permission bits of the directory; the default depends on the gateway's umask.
    pub mode: Option<u32>,
}

/// A request to remove a file, a link, an empty directory or a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remove {
    /// The entry; for a link the link itself.
    pub path: WorkspacePath,
    /// True if a directory is removed with everything in it.
    pub recursive: bool,
}

/// A request to rename an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The old name.
    pub from: WorkspacePath,
    /// The new name.
    pub to: WorkspacePath,
    /// True if an existing file or link at the new path is replaced, and an empty directory by a
    /// directory.
    pub replace: bool,
}

/// A request to set permission bits or the time of the last change of content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAttributes {
    /// The file or the directory; for a link the link itself, which has no permission bits.
    pub path: WorkspacePath,
    /// The permission bits: `0o777` at most. The owner must keep the right to read, and to search a
    /// directory.
    pub mode: Option<u32>,
    /// The time of the last change of content: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
}

/// A request to create a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symlink {
    /// The link.
    pub path: WorkspacePath,
    /// The target: relative to the link's directory, and within the workspace.
    pub target: String,
}

/// A request to disclose a backup: a content, or the names in a tree. Only the operator sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recall {
    /// The path of the backup's original.
    pub path: WorkspacePath,
    /// The ID of the backup.
    pub backup: String,
    /// The encoding of the content.
    pub encoding: Encoding,
}

/// A request to write a backup back. Only the operator sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// The path to restore.
    pub path: WorkspacePath,
    /// The ID of the backup.
    pub backup: String,
    /// True if the request only tests whether it would be allowed and possible.
    pub dry_run: bool,
}

/// Requests that can be borrowed as an [`Operation`].
pub trait AsOperation {
    /// Borrows the request, for decisions and records.
    fn as_operation(&self) -> Operation<'_>;
}

macro_rules! operations {
    ($($name:ident($request:ident): $kind:ident, $path:ident;)*) => {
        /// One request with its payload, for questions to the policy and to the operator, and for
        /// records.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the types say what they are")]
        pub enum Operation<'a> {
            $($name(&'a $request),)*
        }

        $(impl AsOperation for $request {
            fn as_operation(&self) -> Operation<'_> {
                Operation::$name(self)
            }
        })*

        impl<'a> Operation<'a> {
            /// Returns the operation's kind.
            pub fn kind(self) -> OperationKind {
                match self {
                    $(Self::$name(_) => OperationKind::$kind,)*
                }
            }

            /// Returns the path that the operation is about; for a rename the old one.
            pub fn path(self) -> &'a WorkspacePath {
                match self {
                    $(Self::$name(request) => &request.$path,)*
                }
            }
        }
    };
}

// Each operation with its request, its kind, and the field that is its path.
operations! {
    Read(Read): Read, path;
    Write(Write): Write, path;
    Append(Append): Append, path;
    Edit(Edit): Edit, path;
    List(List): List, path;
    Names(Names): List, path;
    Stat(Stat): Stat, path;
    Glob(Glob): Glob, path;
    Grep(Grep): Grep, path;
    Watch(WatchQuery): Watch, path;
    Mkdir(Mkdir): Mkdir, path;
    Remove(Remove): Remove, path;
    Rename(Rename): Rename, from;
    SetAttributes(SetAttributes): SetAttributes, path;
    Symlink(Symlink): Symlink, path;
    Recall(Recall): Read, path;
    Restore(Restore): Restore, path;
}

impl<'a> Operation<'a> {
    /// Returns the new path of a rename.
    pub fn new_path(self) -> Option<&'a WorkspacePath> {
        match self {
            Self::Rename(Rename { to, .. }) => Some(to),
            _ => None,
        }
    }
}
