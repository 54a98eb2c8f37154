//! Searches beneath a directory, by name or in content.
//!
//! A search sees the workspace through a [`View`] that the core provides: entries that the agent
//! may list and contents as a reader gets them. It opens nothing, has no policy, and cannot name an
//! entry that it was not shown, because only the view makes values of those types. The lines that
//! it finds are ranges of a text, from which the view cuts them. So a mistake in this crate makes a
//! reply incomplete or disordered, but discloses nothing.
//!
//! ```compile_fail,E0277
//! use portcullis_policy::model::WorkspacePath;
//! fn entry<V: portcullis_search::View>(path: WorkspacePath) -> V::Entry {
//!     path.into()
//! }
//! ```
//!
//! [`watch`] receives names before they are decided on, and no contents. The core decides on each
//! change once more before it is reported.
//!
//! A directory that only the default denies is entered if something beneath it could be allowed,
//! and does not appear in the reply. Links are never followed.

mod dialect;
mod follower;
mod glob;
mod grep;
mod ignore;
mod lines;
mod page;
mod tally;
#[cfg(test)]
mod tests;
mod view;
mod walk;
pub mod watch;

pub use follower::{Follower, NoFollower};
pub use glob::{MAX_ENTRIES, glob};
pub use grep::{MAX_LINES, grep};
pub use tally::{Skipped, Stopped, Summary};
pub use view::{
    Contents, Directory, Line, Matched, NameFilter, Names, Piece, Start, View, Visit, VisitedEntry,
};
pub use watch::{EventKind, WatchEnd};

use portcullis_policy::{self as policy, model};

/// Reasons why a search failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The pattern or the expression is invalid.
    #[error("the pattern cannot be used: {0}")]
    Pattern(String),
    /// The client cancelled it; nothing is disclosed.
    #[error("cancelled")]
    Cancelled,
}

/// Parses a pattern.
fn pattern(text: &str) -> Result<policy::GlobPattern, Error> {
    policy::GlobPattern::parse(text).map_err(|error| Error::Pattern(error.to_string()))
}
