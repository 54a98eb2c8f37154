//! What is allowed.
//!
//! Texts become a [`PolicySource`], which [`compile`] turns into a [`Policy`]
//! or refuses with [`Diagnostics`]; a policy answers queries with a
//! [`Decision`]. There is no order of rules: whatever denies wins, what nothing
//! allows is denied, and a policy with any fault does not come into being.
//!
//! This crate does no I/O, reads no clock and keeps no state between queries.
//! It is a crate of its own because every request waits for it: it is built for
//! speed, the rest of the gate for size. What is asked often is not generic; it
//! would be built where it is used.

mod check;
mod closed;
mod compare;
mod compile;
mod compiled;
mod decision;
mod denials;
mod diagnostics;
mod document;
mod duration;
mod embedded;
#[cfg(test)]
mod embedded_tests;
mod evaluate;
mod explain;
mod form;
mod glob;
mod index;
mod limits;
mod mode;
pub mod model;
mod mount;
mod outline;
mod pattern;
mod query;
mod questions;
mod said;
mod schema;
mod scratch;
mod secrets;
mod selftest;
mod settings;
mod sight;
mod sights;
mod size;
mod source;
mod spelling;
mod stages;
mod statements;

pub use compare::{SettingChange, compare_modes, compare_settings};
pub use compile::compile;
pub use compiled::Policy;
pub use decision::{Decision, Effect, Place};
pub use denials::{Denials, DeniedByRule};
pub use diagnostics::{Diagnostic, Diagnostics};
pub use document::Document;
pub use duration::parse_duration;
pub use embedded::{EMBEDDED, embedded, is_name, unknown_name};
pub use evaluate::questions;
pub use explain::{Explanation, StageReport, StageVerdict};
pub use form::Form;
pub use glob::{Glob, GlobError};
pub use limits::{Limit, Limits};
pub use mode::Mode;
pub use outline::{OutlineFile, PathPattern, Statement, StatementKind};
pub use query::Query;
pub use schema::{Field, POLICY as KEYS, Shape, Status, optional, required};
pub use scratch::Scratch;
pub use secrets::{
    Disclosed, Judged, SecretFinding, SecretKey, Secrets, Subject, Whole, begins_at_word_boundary,
    every_match_has_keyword,
};
pub use settings::{AgentAccess, DEFAULT_ENV, DEFAULT_READ, Network, Retention};
pub use sight::Sight;
pub use sights::Sights;
pub use size::parse as parse_size;
pub use source::{Loaded, Loader, MAX_FILE, PolicySource};
pub use stages::{Object, ObjectKind};
