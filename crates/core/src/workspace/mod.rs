//! The agent's files, reached through one directory handle that was opened at
//! the start and never by a name again.
//!
//! Resolves paths beneath the handle ([`resolve`](Workspace::resolve)), opens
//! what a decision allowed, and walks directories. It decides nothing and
//! changes nothing; it refuses whatever leaves the root, crosses a mount or
//! moved between two looks, and knows nothing by a name that its directory does not
//! have for it (`names`).

mod beneath;
mod entry;
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

pub use error::Error;
pub(crate) use handle::{Identity, Parent, read_bounded, read_bounded_into};
pub use handle::{Stat, Version};
pub(crate) use kinds::Kinds;
pub use open::Workspace;
pub(crate) use permit::Permit;
pub use resolve::{Follow, Resolved};
pub(crate) use resolve::{Met, read_link};
pub(crate) use stream::stream_names;
pub(crate) use temp::TempName;
pub use walk::{Listing, Walked};
pub(crate) use watch::{WatchError, Watches};
