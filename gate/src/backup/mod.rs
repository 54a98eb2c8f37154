//! The vault: what files were before they were changed or removed.
//!
//! It keeps copies ([`Vault::save`], [`Vault::settle`]), lists and reads them, packs them when
//! nobody waits ([`Vault::pack`]), and forgets them as the policy's retention
//! says. It refuses to keep what it cannot give back
//! whole, and to make room by giving up a session's first version of a file.
//! It neither decides nor puts anything back into the workspace by itself.

mod copy;
mod error;
mod format;
mod id;
mod name;
mod object;
mod owners;
mod pack;
mod read;
mod retention;
mod save;
mod store;
mod temp;
mod tree;
mod unfinished;

#[cfg(test)]
mod tests;

pub use crate::policy::Retention;
pub use copy::{content_hash, holds, start_writing};
pub use error::Error;
pub use format::{ACL_ACCESS, ACL_DEFAULT, Attributes, EntryKind};
pub use id::{BackupId, BackupIdError};
pub use owners::Owners;
pub use pack::{Packed, Progress};
pub use read::{Content, Entry, Listing, Trail, Tree};
pub use save::{Meta, Origin, Saved};
pub use store::{Pruned, Vault};
pub use tree::{MAX_ENTRIES, Node, NodeKind, fingerprint};
