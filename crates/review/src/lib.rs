//! Reviews of the log: search, figures, changes of a file, reports and exports.
//!
//! Reads the log, the backup store and the policies that were in force. It writes nothing but an
//! index, which may be deleted at any time. It does not verify the chain, which is the audit
//! crate's task. It never skips unreadable parts silently: every scan reports the damage.

mod actor;
mod blame;
pub mod bundle;
pub mod change;
mod changes;
mod counted;
mod csv;
pub mod export;
mod field;
mod filter;
mod index;
mod log;
mod origin;
mod patch;
pub mod report;
mod scan;
mod session;
mod session_summary;
mod stats;
mod stored_files;
mod traffic;
pub mod undo;
mod visible;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};

/// Maximum size in bytes of a workspace file that is read for a comparison: a sparse file may have
/// any length.
const MAX_READ: u64 = 4 << 30;

pub use actor::Actor;
pub use blame::{Blame, BlameError, State, Version, VersionBackup, blame};
pub use counted::counted;
pub use csv::{cell, header};
pub use field::{Field, UnknownField, verdict};
pub use filter::{Filter, PathFilter};
pub use index::forget_index;
pub use log::{Log, LogStart};
pub use origin::{RecordedWorkspace, recorded_workspace};
pub use patch::{Patch, Patches};
pub use scan::{ScanOrder, Scanned};
pub use session::{
    Event, OtherRecord, Session, SessionError, last_changing_session, last_session, named_sessions,
    sessions, similar_session,
};
pub use session_summary::{Note, PartyActivity, Paths, SessionSummary, SummaryPart};
pub use stats::{Group, Stats};
pub use stored_files::{MAX_POLICY, is_foreign, open_regular, open_regular_in, read_regular};
pub use traffic::Traffic;
pub use visible::visible_json;
