//! Tools for policy authors: they show a policy's decisions before it is in force.
//!
//! All of them use the policy engine that enforces. None decides anything itself, and none changes
//! a workspace, a log or a policy in force.

mod bounds;
mod carried_labels;
mod compare;
mod compared_paths;
mod descriptions;
mod diff;
#[cfg(test)]
mod diff_tests;
mod entry_operation;
mod examples;
mod history;
mod init;
mod learn;
mod learn_guard;
mod learn_hosts;
mod lint;
mod literal;
mod lost_bounds;
mod outline;
mod progress;
#[cfg(test)]
mod random_policies;
mod relate;
mod replay;
mod schema;
mod session_hosts;
mod test_runner;
mod tree;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};
use portcullis_review as review;

pub use compare::SettingChange;
pub use diff::{Change, ComparedPolicy, Diff, PathOrigin, diff};
pub use entry_operation::{EntryOperation, decide_entry, is_entered};
pub use history::{Count, Recorded};
pub use init::{FirstPolicy, InitError, first_policy};
pub use learn::{Learned, NewExtension, Proposal, learn};
pub use learn_hosts::{LearnedHosts, NewHost, learn_hosts};
pub use lint::{
    Finding, LINTS, Lint, Subject, for_others, hidden, lint, named, not_in_mount, shows_git_objects,
};
pub use outline::{OutlineFile, PathPattern, Statement, StatementKind, outline};
pub use progress::{NoObserver, Phase, ProgressObserver};
pub use relate::covers;
pub use replay::{Changed, Replay, StricterConnections, replay};
pub use schema::{SCHEMA_FILE, json_schema};
pub use session_hosts::hosts_of_session;
pub use test_runner::{
    Coverage, ExpectedDecision, Stage, TestOutcome, TestReport, TestText, run_tests,
};
pub use tree::{Tree, TreeEntry};
