//! Reports of changes to subscribers.
//!
//! One [`Hub`] serves a gateway. It receives events through [`Directories`], which the core
//! implements, and filters them for each subscriber by the policy, name by name. The core asks the
//! policy once more about each change that a subscriber takes. So a mistake in this module omits a
//! change or reports one that did not happen, but discloses no hidden name.
//!
//! Hidden entries appear and disappear for a subscriber where they cross its visibility. If an
//! event may have been missed, and beneath a renamed directory, subscribers are told to list again.

mod directories;
mod hub;
mod known_entries;
mod notices;
mod queue;
mod rescan;
mod scope;
mod tree;

pub use directories::{Directories, DirectoryEvent, Notice, Unwatched, WatchId};
pub use hub::{Extent, Hub, Refusal};
pub use queue::{Change, EndedSubscription, EventKind, Queue, WatchEnd};
