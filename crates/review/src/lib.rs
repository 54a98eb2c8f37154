//! What a reviewer asks of the log: search, figures, who changed what,
//! reports and exports.
//!
//! Reads the log, the vault and the policies that were in force, and writes
//! nothing but an index that may be deleted at any time. It checks no chain:
//! the verifier of the audit crate does. It refuses to pass over what it
//! cannot read: every scan says what was damaged.

mod actor;
mod blame;
pub mod bundle;
pub mod change;
mod changes;
mod csv;
pub mod export;
mod field;
mod filter;
mod index;
mod kept;
mod log;
mod origin;
pub mod report;
mod scan;
mod session;
mod stats;
mod story;
pub mod undo;
mod visible;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};

/// Largest file of the workspace that is read to be compared, in bytes: a sparse one
/// may have any length.
const MOST_READ: u64 = 4 << 30;

pub use actor::Actor;
pub use blame::{Blame, BlameError, Kept, State, Version, blame};
pub use csv::{cell, header};
pub use field::{Field, UnknownField, verdict};
pub use filter::{Filter, PathFilter};
pub use index::forget_index;
pub use kept::{MOST_POLICY, is_foreign, open_kept, open_kept_in, read_kept};
pub use log::{Begins, Log};
pub use origin::recorded_workspace;
pub use scan::{Order, Scanned};
pub use session::{Event, Patch, Patches, Session, SessionError, sessions};
pub use stats::{Group, Stats};
pub use story::{Activity, Note, Paths, Story, StoryPart};
pub use visible::visible_json;
