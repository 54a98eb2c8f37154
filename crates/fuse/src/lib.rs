//! The kernel's FUSE protocol, over a descriptor of `/dev/fuse` that another process opened
//! and mounted.
//!
//! This crate opens nothing, mounts nothing, and knows no policy: a [`FileSystem`] serves
//! each request. Operations are an allow list; operations that are not on it, or that the
//! file system does not have, are `ENOSYS`. Input from the kernel is treated as untrusted:
//! every length and every name is checked.

mod abi;
#[cfg(test)]
mod campaign;
mod change_queue;
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
