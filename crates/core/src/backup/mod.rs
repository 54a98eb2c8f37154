//! The backup store: pre-images of files that were changed or removed.
//!
//! It makes backups ([`BackupStore::save`], [`BackupStore::settle`]), lists and reads them, packs
//! them when no request waits ([`BackupStore::pack`]), and deletes them by the policy's retention.
//! It refuses to back up an object that it cannot restore completely, and to delete a session's
//! first version of a file for space. It neither decides nor restores anything to the workspace by
//! itself.

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
mod shards;
mod store;
mod temp;
mod tree;
mod unfinished;

#[cfg(test)]
mod tests;

pub use content::BackupContent;
pub(crate) use copy::{content_hash, holds, start_writing};
pub use error::Error;
pub(crate) use format::{ACL_ACCESS, ACL_DEFAULT, access_list};
pub use format::{Attributes, BackupKind};
pub use id::{BackupId, BackupIdError};
pub use maintenance::BackupMaintenance;
pub(crate) use owners::{AssignableOwners, DIRECTORY_BITS};
pub use pack::Packed;
pub(crate) use read::PathBuilder;
pub use read::{Backup, BackupList, Tree};
pub(crate) use save::{Meta, Origin, Saved};
pub use store::{BackupStore, Pruned};
pub(crate) use tree::{MAX_ENTRIES, fingerprint};
pub use tree::{Node, NodeKind};
