//! Git objects: strict parsing, differences of trees, and the replay of commits onto another one.
//!
//! It opens nothing and starts nothing. Objects come through a [`Source`], such as the replies of
//! `git cat-file` ([`Objects`]); each is verified against its name. Objects for another repository
//! are made anew ([`Replay`]), so that only the parsed and decided parts of a hostile object get
//! there.

mod ancestry;
mod commit;
mod diff;
mod error;
mod name;
mod object;
mod pack;
mod replay;
mod source;
mod tree;
mod update;

pub use commit::Commit;
pub use diff::{Change, diff};
pub use error::Error;
pub use name::check_branch;
pub use object::{Format, Object, ObjectId, ObjectKind};
pub use pack::write_pack;
pub use replay::{Begin, FileChange, Outcome, PathAuthorizer, Replay, Replayed};
pub use source::{Objects, Source};
pub use tree::{Entry, Mode, Tree};
