//! The filters of `audit show`, and the values of filters.
//!
//! A value that no record of this version has is refused: it would find nothing, which reads as
//! if nothing had happened.

use clap::builder::PossibleValuesParser;
use portcullis_audit::Kind;

use super::{
    location::LogSource,
    path::{self, PathArgument},
};
use crate::{
    app::{failure::Failure, record_time::RecordTime},
    model::{OperationKind, Transport},
    policy::Effect,
    review,
};

/// The `op` of records without an operation; names with a `.` are not listed.
const EVENTS: [&str; 16] = [
    "callback",
    "command",
    "commit",
    "egress",
    "import",
    "imported",
    "label",
    "limit",
    "login",
    "prune",
    "reload",
    "repeats",
    "resources",
    "sandbox",
    "scratch",
    "session",
];

/// The filters, which must all match.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// From this time on: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`, `yesterday`
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
    /// Of this session, or of all whose identifier begins so
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Of this operation, such as `write`; may be given several times
    #[arg(long, value_name = "OPERATION", value_parser = parse_op)]
    op: Vec<String>,
    /// About this path of the workspace and what is beneath it, or the paths of a pattern such as
    /// `src/**/*.rs`; may be given several times
    #[arg(long, value_name = "PATH|GLOB")]
    path: Vec<PathArgument>,
    /// Decided so
    #[arg(long, value_name = "DECISION", value_parser = decisions())]
    decision: Option<String>,
    /// Of this kind; may be given several times
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Vec<String>,
}

impl Filter {
    /// Returns the filter of records, for the log `at`.
    pub(super) fn records(&self, at: &LogSource) -> Result<review::Filter, Failure> {
        Ok(review::Filter {
            since: self.since.as_ref().map(|since| since.as_str().to_owned()),
            sessions: self.session.iter().cloned().collect(),
            agents: self.agent.iter().cloned().collect(),
            ops: self.op.clone(),
            paths: path::filters(&self.path, at)?,
            decisions: self.decision.iter().cloned().collect(),
            kinds: self.kind.clone(),
            ..review::Filter::default()
        })
    }
}

/// Returns a parser of the kinds of records.
pub(super) fn kinds() -> PossibleValuesParser {
    let known = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Unknown);
    PossibleValuesParser::new(known.map(Kind::as_str))
}

/// Returns a parser of decisions.
pub(super) fn decisions() -> PossibleValuesParser {
    PossibleValuesParser::new(Effect::ALL.map(Effect::as_str))
}

/// Returns a parser of transports.
pub(super) fn transports() -> PossibleValuesParser {
    PossibleValuesParser::new(Transport::ALL.map(Transport::as_str))
}

/// Parses an operation or an event. Records also contain names that clients made up: the name of
/// a method is accepted unchanged.
pub(super) fn parse_op(text: &str) -> Result<String, String> {
    let operations = || OperationKind::ALL.into_iter().chain([OperationKind::Connect]);
    let known = || operations().map(OperationKind::as_str).chain(EVENTS);
    if known().any(|word| word == text) || text.contains(['.', '/', '_']) {
        return Ok(text.to_owned());
    }
    let words: Vec<_> = known().collect();
    Err(format!(
        "expected one of {}, or the name of an event or a method, such as `watch.end` or \
         `terminal/create`",
        words.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_known_events_or_a_client_s_own_methods() {
        for word in ["write", "grep", "session", "watch.end", "terminal/create", "nes/start"] {
            assert_eq!(parse_op(word).as_deref(), Ok(word));
        }
        // They were refused, although their records are documented.
        for word in ["command", "import", "label", "repeats", "scratch"] {
            assert_eq!(parse_op(word).as_deref(), Ok(word));
        }
        assert!(parse_op("frob").unwrap_err().contains("expected one of read, write"));
    }
}
