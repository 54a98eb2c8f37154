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
    app::{
        failure::Failure,
        record_time::{RecordTime, period},
    },
    cli::render::unknown_word,
    model::{OperationKind, Transport},
    policy::Effect,
    review,
};

/// The `op` of records without an operation; names with a `.` are not listed.
const EVENTS: [&str; 17] = [
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
    "unstored",
];

/// The filters, which must all match.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Start of the period: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`, `yesterday`
    /// [default: the first record]
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
    /// End of the period, in the same forms, which does not include this time [default: the
    /// last record]
    #[arg(long, value_name = "TIME")]
    until: Option<RecordTime>,
    /// Only records of this session: its identifier, or the beginning of that
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only records of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only records of this operation, such as `write`; may be given several times
    #[arg(long, value_name = "OPERATION", value_parser = parse_op)]
    op: Vec<String>,
    /// Only records of this path and all beneath it, or of a pattern such as `src/**/*.rs`; may be
    /// given several times
    #[arg(long, value_name = "PATH|GLOB")]
    path: Vec<PathArgument>,
    /// Only records with this decision
    #[arg(long, value_name = "DECISION", value_parser = decisions())]
    decision: Option<String>,
    /// Only records of this kind; may be given several times
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Vec<String>,
}

impl Filter {
    /// Returns the filter of records, for the log `at`.
    pub(super) fn records(&self, at: &LogSource) -> Result<review::Filter, Failure> {
        let (since, until) = period(self.since.as_ref(), self.until.as_ref())?;
        Ok(review::Filter {
            since,
            until,
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
    Err(format!(
        "{}, or the name of an event or a method, such as `watch.end` or `terminal/create`",
        unknown_word(text, known())
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
        assert!(parse_op("wirte").unwrap_err().starts_with("did you mean `write`? "));
        assert!(parse_op("frob").unwrap_err().contains("expected one of read, write"));
    }
}
