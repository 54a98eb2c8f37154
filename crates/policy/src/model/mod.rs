//! The types that most crates share: paths, operations, sessions.
//!
//! They are parsed once where input enters. Nothing here does I/O, reads a clock or depends on a
//! protocol.

mod host;
mod operation;
mod path;
pub mod request;
mod search;
mod session;
mod text;
mod watch;

pub use host::{Connect, Host, HostError, HostName};
pub use operation::{Access, Bound, Encoding, LineRange, LineRangeError, OperationKind, Part};
pub use path::{PathError, WorkspacePath};
pub use request::{AsOperation, Operation};
pub use search::{GlobQuery, GrepQuery, Page, Position};
pub use session::{AcpSession, AgentName, AgentNameError, ClaimedToolCall, Session, Transport};
pub use text::{
    Escaped, Quoted, QuotedName, changes_direction, complete_words, distinct, distinct_diff,
    for_shell, has_hidden_characters, is_hidden_character, is_text, quoted,
};
pub use watch::{IGNORED_DIRECTORIES, WatchQuery};
