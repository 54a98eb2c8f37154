//! Spans of requests: agent, operation and result without path and content, and the number of the
//! record that has the rest.

use portcullis_audit::{Draft, Kind, Receipt};
use tracing::field::Empty;

use crate::model::Session;

/// The target of these spans, by which collectors select them.
pub(super) const SPANS: &str = "portcullis::gateway";

/// Returns the span of a request; empty fields are filled in later.
pub(super) fn of(session: &Session, op: &str) -> tracing::Span {
    let (agent, transport) = (session.agent.as_str(), session.transport.as_str());
    tracing::debug_span!(
        target: SPANS,
        "request",
        op,
        agent,
        transport,
        session = session.recorded_id(),
        decision = Empty,
        rule = Empty,
        result = Empty,
        record = Empty,
    )
}

/// Adds the decision of the request's record to its span.
pub(super) fn decided(kind: Kind, draft: &Draft) {
    // The files of a search have records beside its own.
    let beside = draft.facts.as_ref().is_some_and(|facts| facts.contains_key("search"));
    if beside || !matches!(kind, Kind::Decision | Kind::Intent) {
        return;
    }
    let span = tracing::Span::current();
    for (field, value) in [("decision", &draft.decision), ("rule", &draft.rule)] {
        value.as_ref().map(|value| span.record(field, value.as_str()));
    }
}

/// Adds the result of the request to its span.
pub(super) fn answered(span: &tracing::Span, receipt: Option<&Receipt>, result: &str) {
    span.record("result", result);
    receipt.map(|receipt| span.record("record", receipt.seq));
}
