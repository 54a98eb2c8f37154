//! Errors of access to the workspace.

use rustix::io::Errno;

/// The reason why a path could not be resolved or an object not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such entry.
    #[error("not found")]
    NotFound,
    /// A file is where a directory is needed.
    #[error("not a directory")]
    NotADirectory,
    /// A directory is where a file is needed.
    #[error("is a directory")]
    IsADirectory,
    /// A link leads out of the workspace, or through `/proc`.
    #[error("a link leads outside the workspace")]
    Outside,
    /// The entry is a mount point.
    #[error("another file system is mounted there")]
    Mount,
    /// More links than the kernel would follow.
    #[error("too many links")]
    Loop,
    /// A link's target or a name in a tree is not UTF-8.
    #[error("a name is not UTF-8")]
    NotUtf8,
    /// A path beneath a directory is too long to be named.
    #[error("a path is too long")]
    TooLong,
    /// The object was exchanged between two looks; another attempt may succeed.
    #[error("the object changed while it was being looked at")]
    Moved,
    /// A directory or a tree has more than a million entries, or a list takes too much
    /// memory.
    #[error("more entries than can be served")]
    TooLarge,
    /// The operating system refused.
    #[error("cannot {action}: {}", plain(*.errno))]
    Os {
        /// The action that failed, as an infinitive: `open the file`.
        action: &'static str,
        /// The system's error.
        errno: Errno,
    },
}

impl Error {
    /// Converts a system error on `action`.
    pub(crate) fn os(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::NOENT => Self::NotFound,
            Errno::NOTDIR => Self::NotADirectory,
            Errno::ISDIR => Self::IsADirectory,
            Errno::NAMETOOLONG => Self::TooLong,
            errno => Self::Os { action, errno },
        }
    }

    /// Converts an error of the standard library on `action`.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Self::os(action)(errno)
        }
    }
}

fn plain(errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => "permission denied by the operating system".to_owned(),
        Errno::NOSPC | Errno::DQUOT => "no space left".to_owned(),
        Errno::ROFS => "the file system is read-only".to_owned(),
        errno => {
            let text = std::io::Error::from(errno).to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }
    }
}
