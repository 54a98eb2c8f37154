//! The vault: what files were before they were changed or removed.
//!
//! It keeps copies ([`BackupStore::save`], [`BackupStore::settle`]), lists and reads them, packs them when
//! nobody waits ([`BackupStore::pack`]), and forgets them as the policy's retention
//! says. It refuses to keep what it cannot give back
//! whole, and to make room by giving up a session's first version of a file.
//! It neither decides nor puts anything back into the workspace by itself.

mod content;
mod copy;
mod directory;
mod error;
mod format;
mod id;
mod maintenance;
mod name;
mod object;
mod owners;
mod pack;
mod range;
mod read;
mod retention;
mod save;
mod store;
mod temp;
mod tree;
mod unfinished;

#[cfg(test)]
mod tests;

pub use content::BackupContent;
pub(crate) use copy::{content_hash, holds, start_writing};
pub use error::Error;
pub(crate) use format::{ACL_ACCESS, ACL_DEFAULT};
pub use format::{Attributes, BackupKind};
pub use id::{BackupId, BackupIdError};
pub use maintenance::BackupMaintenance;
pub(crate) use owners::Owners;
pub use pack::Packed;
pub(crate) use read::Trail;
pub use read::{Backup, BackupList, Tree};
pub(crate) use save::{Meta, Origin, Saved};
pub use store::{BackupStore, Pruned};
pub(crate) use tree::{MAX_ENTRIES, fingerprint};
pub use tree::{Node, NodeKind};
