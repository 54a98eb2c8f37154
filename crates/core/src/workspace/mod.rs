//! The agent's files, reached through one directory descriptor that is opened at the start and
//! never again by a name.
//!
//! Resolves paths beneath the descriptor ([`resolve`](Workspace::resolve)), opens what a decision
//! allowed, and walks directories. It decides nothing and changes nothing; it refuses objects that
//! leave the root, cross a mount or moved between two looks, and finds no entry by a name alias
//! (`names`).

mod beneath;
mod entry;
mod entry_identity;
mod error;
mod handle;
mod kinds;
mod names;
mod open;
mod permit;
mod resolve;
mod stream;
mod temp;
mod walk;
mod watch;

pub use entry_identity::EntryIdentity;
pub use error::Error;
pub(crate) use handle::{Identity, Parent, read_bounded, read_bounded_into};
pub use handle::{Stat, Version};
pub(crate) use kinds::Kinds;
pub use open::Workspace;
pub(crate) use permit::Permit;
pub use resolve::{Follow, Resolved};
pub(crate) use resolve::{VisitedName, read_link};
pub(crate) use stream::stream_names;
pub(crate) use temp::TempName;
pub use walk::{Listing, Walked};
pub(crate) use watch::{WatchError, Watches};
