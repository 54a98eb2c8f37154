//! Searching beneath a directory, by name or in content.
//!
//! A search sees the workspace through a [`View`] that the core makes of it: entries that
//! the agent may list and contents as a reader gets them. It opens nothing, has no
//! policy, and can name no entry that it was not shown, for those types are the
//! view's. The lines that it finds are ranges of a text, out of which the view cuts them.
//! So a mistake in here makes an answer incomplete or puts it in another order; it discloses
//! nothing.
//!
//! ```compile_fail,E0277
//! use portcullis_policy::model::WorkspacePath;
//! fn entry<V: portcullis_search::View>(path: WorkspacePath) -> V::Entry {
//!     path.into()
//! }
//! ```
//!
//! [`watch`] hears of names before they are decided on, and no contents; the core decides on
//! each change once more before anybody is told of it.
//!
//! A directory that merely nothing allows is entered where something beneath it could be
//! allowed, and leaves no trace in the answer. Links are never followed.

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

pub use follower::{Follower, Unfollowed};
pub use glob::{MAX_ENTRIES, glob};
pub use grep::{MAX_LINES, grep};
pub use tally::{Skipped, Stopped, Summary};
pub use view::{Contents, Directory, Line, Matched, Met, Names, Piece, Start, View, Visit, Wanted};
pub use watch::{EventKind, WatchEnd};

use portcullis_policy::{self as policy, model};

/// Why a search could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The pattern or the expression is none.
    #[error("the pattern cannot be used: {0}")]
    Pattern(String),
    /// Whoever asked gave it up; nothing is disclosed.
    #[error("cancelled")]
    Cancelled,
}

/// The pattern that `text` spells.
fn pattern(text: &str) -> Result<policy::GlobPattern, Error> {
    policy::GlobPattern::parse(text).map_err(|error| Error::Pattern(error.to_string()))
}
