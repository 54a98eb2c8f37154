//! The policy engine.
//!
//! Texts become a [`PolicySource`], which [`compile`] turns into a [`Policy`] or refuses with
//! [`Diagnostics`]. A policy decides queries with a [`Decision`]. Rules have no order: a denial
//! takes precedence, everything that nothing allows is denied, and a policy with any problem is not
//! compiled.
//!
//! This crate does no I/O, reads no clock and has no state between queries. Functions that every
//! request calls are not generic, since those would be compiled in each crate that uses them.

mod action_set;
mod agent_limits;
mod check;
mod compile;
mod compiled;
mod decision;
mod diagnostics;
mod directory_visibility;
mod document;
mod duration;
mod embedded;
#[cfg(test)]
mod embedded_tests;
mod evaluate;
mod explain;
mod glob;
mod index;
mod labels;
mod layered;
mod limits;
mod mode;
pub mod model;
mod mount;
mod network;
mod normalized;
mod pattern;
mod query;
mod schema;
mod scratch;
mod secrets;
mod selftest;
mod settings;
mod size;
mod source;
mod stages;
mod statements;
mod string_format;
mod visibility;

pub use agent_limits::{AgentLimits, MIN_MEMORY, PROCESSES, PROCESSORS};
pub use check::nearest;
pub use compile::compile;
pub use compiled::Policy;
pub use decision::{Decision, Effect, SourceLocation};
pub use diagnostics::{Diagnostic, Diagnostics};
pub use directory_visibility::DirectoryVisibility;
pub use document::Document;
pub use duration::parse_duration;
pub use embedded::{EMBEDDED, embedded, is_name, unknown_name};
pub use evaluate::path_accesses;
pub use explain::{Explanation, StageReport, StageVerdict};
pub use glob::{GlobError, GlobPattern};
pub use labels::{LabelIds, Labelled, Labels};
pub use limits::{Limit, Limits};
pub use mode::Mode;
pub use network::{
    HostPattern, HostPatternError, Network, NetworkLimits, NetworkRule, SessionHosts,
};
pub use query::Query;
pub use schema::{Field, POLICY as KEYS, Shape, Status, optional, required};
pub use scratch::Scratch;
pub use secrets::{
    Disclosed, SecretFinding, SecretKey, SecretSpans, Secrets, Subject, WithFindings,
    begins_at_word_boundary, ends_at_word_boundary, every_match_has_keyword, leaves_value,
};
pub use settings::{AgentAccess, Retention};
pub use size::parse as parse_size;
pub use source::{Loaded, Loader, MAX_FILE, PolicySource};
pub use stages::{Object, ObjectKind};
pub use statements::is_extension;
pub use string_format::StringFormat;
pub use visibility::Visibility;

/// The parts of policies, for tools that compare and explain them and for transports that show
/// which paths can be used. They can only be read: [`compile`](crate::compile()) alone makes a
/// [`Policy`] of them, and none can be changed:
///
/// ```compile_fail,E0616
/// fn observe(policy: &mut portcullis_policy::Policy) {
///     policy.mode = portcullis_policy::Mode::Observe;
/// }
/// ```
///
/// ```compile_fail,E0594
/// fn forget(policy: &mut portcullis_policy::Policy) {
///     policy.settings().max_read.value = u64::MAX;
/// }
/// ```
pub mod parts {
    pub use crate::{
        action_set::{ActionSet, PerAccess},
        compiled::{AllowedExtensions, CompiledRule, Grant, Layer},
        diagnostics::Source,
        index::{Components, PatternSet},
        layered::Layered,
        limits::{LimitRules, MOUNT, SESSION},
        mount::MountSettings,
        normalized::NormalizedForms,
        pattern::{Class, Comparison, Component, Name, Pattern, Segment, Token},
        scratch::{History, Repository},
        secrets::{OnRead, OnWrite, SecretSettings},
        settings::{Binary, Hardlinks, Settings, Symlinks},
        statements::Agents,
    };
}
