//! The kernel's FUSE protocol, over a descriptor of `/dev/fuse` that somebody else opened
//! and mounted.
//!
//! It opens nothing and mounts nothing, and knows no policy: a [`FileSystem`] answers each
//! request. Operations are an allow list; what is not on it, or what the file system does not
//! do, is `ENOSYS`. What comes from the kernel is read as what comes from a stranger: every
//! length and every name is looked at.

mod abi;
mod deadline;
mod directory;
mod dispatch;
mod file_system;
mod notify;
mod reply;
mod request;
mod session;
mod types;

pub use deadline::{begins, is_wanted};
pub use directory::Directory;
pub use file_system::FileSystem;
pub use notify::Notifier;
pub use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};
pub use session::{Session, SessionError, Stopper};
pub use types::{
    Attributes, Caller, Data, Entry, Handle, NodeId, Opened, RenameMode, Seek, SetAttributes,
    SetTime, Statistics, WriteFrom,
};
