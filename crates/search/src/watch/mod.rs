//! Telling subscribers what changes.
//!
//! One [`Hub`] serves a gate. It hears of directories through [`Directories`], which the
//! core implements, and filters for each subscriber by the policy, name by name. The core
//! asks the policy once more about each change that a subscriber takes, so a mistake in here
//! tells less, or of a change that was none, and names nothing that may not be seen.
//!
//! What a subscriber may not be told of comes and goes for it as if it did. When something
//! could be missed, and beneath a directory that got another name, the word is to look again,
//! never silence.

mod directories;
mod found;
mod hub;
mod look;
mod notices;
mod queue;
mod scope;
mod tree;

pub use directories::{Directories, Notice, Unwatched, WatchId, What};
pub use hub::{Extent, Hub, Refusal};
pub use queue::{Change, Ended, EventKind, Queue, WatchEnd};
