//! What a client may ask for: a type for each operation, and [`Operation`], which borrows
//! one of them.

use super::{Encoding, GlobQuery, GrepQuery, LineRange, OperationKind, WatchQuery, WorkspacePath};

/// Disclose a file's content, or some of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub path: WorkspacePath,
    /// The lines.
    pub range: LineRange,
    /// The form in which the content is taken.
    pub encoding: Encoding,
}

/// Create a file or replace its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The file.
    pub path: WorkspacePath,
    /// Its new content.
    pub content: Vec<u8>,
    /// The permission bits of a file that is created (`0o777` at most); default is what the
    /// gateway's umask leaves. A file that is there keeps its own.
    pub mode: Option<u32>,
}

/// Add to the end of a file, which is created when missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The file.
    pub path: WorkspacePath,
    /// The bytes to add.
    pub content: Vec<u8>,
}

/// Replace the one occurrence of a text by another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The file.
    pub path: WorkspacePath,
    /// The text to replace.
    pub old: String,
    /// The text to put there.
    pub new: String,
}

/// Disclose the entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The directory.
    pub path: WorkspacePath,
}

/// Disclose the names in a directory without sizes, times and modes, which takes less
/// than half the time of a [`List`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The directory.
    pub path: WorkspacePath,
}

/// Disclose type, size and time of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The entry.
    pub path: WorkspacePath,
}

/// Disclose the entries beneath a directory whose paths match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// The directory.
    pub path: WorkspacePath,
    /// The search.
    pub query: GlobQuery,
}

/// Disclose the lines that match in a file, or in the files beneath a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grep {
    /// The file or the directory.
    pub path: WorkspacePath,
    /// The search.
    pub query: GrepQuery,
}

/// Create a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mkdir {
    /// The directory.
    pub path: WorkspacePath,
    /// Missing parents are created too, and an existing directory is no error.
    pub recursive: bool,
    /// Permission bits of the directory; without them those that the umask of the gateway leaves.
    pub mode: Option<u32>,
}

/// Remove a file, a link, an empty directory or a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remove {
    /// The entry; of a link the link itself.
    pub path: WorkspacePath,
    /// A directory goes with everything in it.
    pub recursive: bool,
}

/// Give an entry another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The old name.
    pub from: WorkspacePath,
    /// The new name.
    pub to: WorkspacePath,
    /// A file or link that has the new name is replaced, and an empty directory by a directory.
    pub replace: bool,
}

/// Set permission bits or the time of the last change of content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAttributes {
    /// The file or the directory; of a link the link itself, which has no permission bits.
    pub path: WorkspacePath,
    /// The permission bits: `0o777` at most. The owner must be left able to read, and to
    /// search a directory.
    pub mode: Option<u32>,
    /// The last change of content: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
}

/// Create a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symlink {
    /// The link.
    pub path: WorkspacePath,
    /// Where it leads: relative to its directory, and not out of the workspace.
    pub target: String,
}

/// Disclose a backup: a content, or the names in a tree. Only the operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recall {
    /// The path that the backup is of.
    pub path: WorkspacePath,
    /// The id of the backup.
    pub backup: String,
    /// The form in which the content is taken.
    pub encoding: Encoding,
}

/// Put a backup back. Only the operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// The path at which it is put.
    pub path: WorkspacePath,
    /// The id of the backup.
    pub backup: String,
    /// Only find out whether that would be allowed and possible.
    pub dry_run: bool,
}

/// What can be borrowed as an [`Operation`].
pub trait AsOperation {
    /// The request, for what is said about it.
    fn as_operation(&self) -> Operation<'_>;
}

macro_rules! operations {
    ($($name:ident($request:ident): $kind:ident, $path:ident;)*) => {
        /// One request with its payload, for what is said about it: questions to the
        /// policy and to a person, and records.
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
            /// The operation's kind.
            pub fn kind(self) -> OperationKind {
                match self {
                    $(Self::$name(_) => OperationKind::$kind,)*
                }
            }

            /// The path that the operation is about; of a rename the old one.
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
    /// The new name of a rename.
    pub fn new_path(self) -> Option<&'a WorkspacePath> {
        match self {
            Self::Rename(Rename { to, .. }) => Some(to),
            _ => None,
        }
    }
}
