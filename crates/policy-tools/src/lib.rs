//! Tools for policy authors: they show a policy's decisions before it is in force.
//!
//! All of them use the policy engine that enforces. None decides anything itself, and none changes
//! a workspace, a log or a policy in force.

mod bounds;
mod compare;
mod descriptions;
mod diff;
mod examples;
mod history;
mod init;
mod judge;
mod learn;
mod learn_hosts;
mod lint;
mod literal;
mod outline;
mod progress;
mod relate;
mod replay;
mod schema;
mod sides;
mod tree;
mod trial;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};

pub use compare::{SettingChange, compare_modes, compare_settings};
pub use diff::{Change, Diff, Seen, Side, diff};
pub use history::{Count, Recorded, read_history};
pub use init::{FirstPolicy, InitError, first_policy};
pub use judge::{Deed, judge};
pub use learn::{Learned, NewExtension, Proposal, learn};
pub use learn_hosts::{NewHost, learn_hosts};
pub use lint::{Finding, LINTS, Lint, Subject, hidden, lint, named};
pub use outline::{OutlineFile, PathPattern, Statement, StatementKind, outline};
pub use progress::{Unwatched, Watch, Work};
pub use relate::covers;
pub use replay::{Changed, Replay, replay};
pub use schema::{SCHEMA_FILE, json_schema};
pub use tree::{Tree, TreeEntry};
pub use trial::{Coverage, Ruling, Stage, TestOutcome, TestReport, TestText, run_tests};
