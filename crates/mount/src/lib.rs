//! The file system that a gateway serves in an agent's sandbox, at the workspace's own path.
//!
//! It is a transport, as ACP and MCP are: [`Mount`] has no authority. It shows what the
//! gateway returns for its session, and each change is a request to
//! [`Gateway::handle`](portcullis_core::Gateway::handle), which decides, backs up, records
//! and carries it out.
//!
//! - An open for reading is one request to read the complete file; all reads are served from
//!   the reply. An open of a version that was read before is decided again and counted for
//!   the log; the file is not read again.
//! - Written content is staged, visible in this mount only, until a descriptor is closed or
//!   synced; then one request writes the complete file, and its error is that of the close
//!   or sync.
//! - Hidden and missing names are both `ENOENT`.

mod adopt;
mod attributes;
mod budget;
mod change;
mod command_leaders;
mod commit;
mod directory;
mod errno;
mod handles;
mod invalidate;
mod log;
mod lookup;
mod metrics;
mod mount;
mod names;
mod node;
mod nodes;
mod open;
mod options;
mod path_locks;
mod process_info;
mod recorded_paths;
mod repeats;
mod requester;
mod roots;
mod router;
mod scratch;
mod serve;
mod stage;
mod staged;
mod unheard;
mod view_cache;
mod waiting;

pub use command_leaders::CommandLeaders;
pub use metrics::MountMetrics;
pub use mount::Mount;
pub use options::Options;
pub use portcullis_fuse::{Session, SessionError, Stopper};
pub use scratch::{MAX_SLOTS, Scratch, ScratchMetrics};
