//! Metrics of a service in the Prometheus text format 0.0.4.
//!
//! The workers' counters arrive as snapshots through the broker; the front has
//! counters of its own. Labels contain names of workspaces, transports, operations and
//! rules, and never a path, an agent or an address.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, MutexGuard},
};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

use serde::{Deserialize, Serialize};

use super::{
    OpenError,
    reply::{self, Body},
};
use crate::{
    gateway::{GatewayMetrics, Times},
    lock,
    model::Transport,
};

/// The counters of a front, and the last snapshots of its workers.
#[derive(Debug, Default)]
pub(super) struct MetricsBoard(Mutex<Counts>);

/// Counts of spans exported, refused by the collector, and dropped for lack of room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as above")]
pub struct Exported {
    pub exported: u64,
    pub failed: u64,
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Counts {
    exported: Option<Exported>,
    workers: BTreeMap<String, Worker>,
    deaths: u64,
    sessions: BTreeMap<&'static str, u64>,
    refused: BTreeMap<&'static str, u64>,
    replies: BTreeMap<u16, u64>,
}

#[derive(Debug, Default)]
struct Worker {
    runs: bool,
    numbers: GatewayMetrics,
}

impl MetricsBoard {
    pub(super) fn worker(&self, workspace: String, numbers: GatewayMetrics) {
        self.lock().workers.insert(workspace, Worker { runs: true, numbers });
    }

    pub(super) fn gone(&self, workspace: &str, died: bool, forget: bool) {
        let mut state = self.lock();
        state.deaths += u64::from(died);
        if forget {
            state.workers.remove(workspace);
        } else if let Some(worker) = state.workers.get_mut(workspace) {
            worker.runs = false;
            worker.numbers.sessions = 0;
            (worker.numbers.waiting, worker.numbers.running) = (0, 0);
            if !died {
                // Its last checkpoint covers all records.
                worker.numbers.uncovered = 0;
            }
        }
    }

    pub(super) fn exported(&self, exported: Exported) {
        self.lock().exported = Some(exported);
    }

    pub(super) fn session(&self, transport: Transport) {
        *self.lock().sessions.entry(transport.as_str()).or_default() += 1;
    }

    pub(super) fn refused(&self, error: &OpenError) {
        let reason = match error {
            OpenError::Unauthorised => "unauthorised",
            OpenError::UnknownWorkspace => "unknown",
            OpenError::Busy => "busy",
            OpenError::Throttled(_) => "throttled",
            OpenError::Unavailable => "unavailable",
        };
        *self.lock().refused.entry(reason).or_default() += 1;
    }

    pub(super) fn replied(&self, status: StatusCode) {
        *self.lock().replies.entry(status.as_u16()).or_default() += 1;
    }

    /// Renders the metrics page, with `open` of at most `limit` connections.
    pub(super) fn page(&self, open: usize, limit: usize) -> Response<Body> {
        let mut page = Page::default();
        page.one("connections", "gauge", "Connections that are open", &[], open);
        page.one("connections_limit", "gauge", "Connections that may be open", &[], limit);
        self.lock().render(&mut page);
        let mut reply = reply::text(StatusCode::OK, "");
        *reply.body_mut() = reply::whole(page.0);
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        reply.headers_mut().insert(CONTENT_TYPE, kind);
        reply
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Plain counters stay consistent after a panic elsewhere.
        lock(&self.0)
    }
}

impl Counts {
    fn render(&self, page: &mut Page) {
        page.head("sessions_total", "counter", "Sessions that were begun, by transport");
        for (transport, count) in &self.sessions {
            page.line("sessions_total", &[("transport", transport)], count);
        }
        page.head("refused_total", "counter", "Callers that were turned away, by reason");
        for (reason, count) in &self.refused {
            page.line("refused_total", &[("reason", reason)], count);
        }
        page.head("http_replies_total", "counter", "Replies, by status");
        for (status, count) in &self.replies {
            page.line("http_replies_total", &[("status", &status.to_string())], count);
        }
        page.one(
            "worker_deaths_total",
            "counter",
            "Workers that ended by themselves",
            &[],
            self.deaths,
        );
        if let Some(Exported { exported, failed, dropped }) = self.exported {
            let help = "Spans of requests for OpenTelemetry, by what became of them";
            page.head("telemetry_spans_total", "counter", help);
            for (result, count) in
                [("exported", exported), ("failed", failed), ("dropped", dropped)]
            {
                page.line("telemetry_spans_total", &[("result", result)], count);
            }
        }
        page.head("worker_up", "gauge", "Whether a workspace's worker runs");
        for (name, worker) in &self.workers {
            page.line("worker_up", &[("workspace", name)], u8::from(worker.runs));
        }
        page.head(
            "decisions_total",
            "counter",
            "Decisions on record, by transport, effect and rule",
        );
        for (name, worker) in &self.workers {
            for one in &worker.numbers.decisions {
                let labels = [
                    ("workspace", name.as_str()),
                    ("transport", &one.transport),
                    ("effect", &one.effect),
                    ("rule", &one.rule),
                ];
                page.line("decisions_total", &labels, one.count);
            }
        }
        type Value = fn(&GatewayMetrics) -> u64;
        let values: [(&str, &str, &str, Value); 6] = [
            ("disclosed_bytes_total", "counter", "Bytes of content disclosed", |n| n.disclosed),
            ("stored_bytes_total", "counter", "Bytes of content stored", |n| n.stored),
            ("sessions", "gauge", "Sessions that are open", |n| n.sessions),
            ("requests_waiting", "gauge", "Requests that wait for their turn", |n| n.waiting),
            ("requests_running", "gauge", "Requests that are carried out", |n| n.running),
            (
                "audit_uncovered_records",
                "gauge",
                "Records of the audit log that no checkpoint covers yet",
                |n| n.uncovered,
            ),
        ];
        for (metric, kind, help, value) in values {
            page.head(metric, kind, help);
            for (name, worker) in &self.workers {
                page.line(metric, &[("workspace", name)], value(&worker.numbers));
            }
        }
        let metric = "request_duration_seconds";
        page.head(metric, "histogram", "Times from a request to its answer, by operation");
        for (name, worker) in &self.workers {
            for (operation, times) in &worker.numbers.times {
                page.histogram(metric, name, operation, times);
            }
        }
    }
}

/// The text of the page.
#[derive(Default)]
struct Page(String);

impl Page {
    fn one(
        &mut self,
        metric: &str,
        kind: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        self.head(metric, kind, help);
        self.line(metric, labels, value);
    }

    fn head(&mut self, metric: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            self.0,
            "# HELP portcullis_{metric} {help}\n# TYPE portcullis_{metric} {kind}"
        );
    }

    fn line(&mut self, metric: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.0, "portcullis_{metric}");
        for (nth, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if nth == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn histogram(&mut self, metric: &str, workspace: &str, operation: &str, times: &Times) {
        let mut sum = 0;
        let bounds = Times::BOUNDS.iter().map(|bound| seconds(*bound));
        let bounds = bounds.chain([String::from("+Inf")]);
        let labels = [("workspace", workspace), ("operation", operation)];
        for (class, bound) in times.classes.iter().zip(bounds) {
            sum += class;
            let labels = [labels[0], labels[1], ("le", &bound)];
            self.line(&format!("{metric}_bucket"), &labels, sum);
        }
        self.line(&format!("{metric}_sum"), &labels, seconds(times.sum));
        self.line(&format!("{metric}_count"), &labels, sum);
    }
}

/// Formats microseconds as seconds, exactly.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::RuleCount;

    #[test]
    fn what_prometheus_reads_is_well_formed() {
        let board = MetricsBoard::default();
        let decided = RuleCount {
            transport: "mcp".to_owned(),
            effect: "deny".to_owned(),
            rule: "a\"b\\c\nd".to_owned(),
            count: 3,
        };
        let mut classes = vec![0; Times::BOUNDS.len() + 1];
        (classes[0], classes[3], classes[Times::BOUNDS.len()]) = (2, 1, 1);
        let times = [("read".to_owned(), Times { classes, sum: 1_500_000 })].into();
        let numbers =
            GatewayMetrics { decisions: vec![decided], times, ..GatewayMetrics::default() };
        board.worker("shop".to_owned(), numbers);
        board.session(Transport::Files);
        board.gone("other", true, false);
        let mut page = Page::default();
        board.lock().render(&mut page);
        for line in [
            r#"portcullis_decisions_total{workspace="shop",transport="mcp",effect="deny",rule="a\"b\\c\nd"} 3"#,
            r#"portcullis_request_duration_seconds_bucket{workspace="shop",operation="read",le="0.00005"} 2"#,
            r#"portcullis_request_duration_seconds_bucket{workspace="shop",operation="read",le="0.0005"} 3"#,
            r#"portcullis_request_duration_seconds_bucket{workspace="shop",operation="read",le="+Inf"} 4"#,
            r#"portcullis_request_duration_seconds_sum{workspace="shop",operation="read"} 1.5"#,
            r#"portcullis_worker_up{workspace="shop"} 1"#,
            r#"portcullis_sessions_total{transport="files"} 1"#,
            "portcullis_worker_deaths_total 1",
        ] {
            assert!(page.0.lines().any(|one| one == line), "{line}\n{}", page.0);
        }
    }
}
