//! Export of request spans: OTLP over HTTP, on a thread of the broker.
//!
//! Front and workers can open no connection, and remain so. The only network input here is the
//! reply of the collector that the operator named: redirections are not followed, and
//! `opentelemetry-http` reads at most 4 MiB. Nothing waits for the export: spans for which there is
//! no room are counted and dropped, those that the collector refuses are counted and not sent
//! again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{
        IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
    },
};
use reqwest::{blocking::Client, redirect::Policy};

use crate::{
    app::failure::{Context as _, Failure},
    cli::serve::messages::Span,
    config::serve::Telemetry,
    model::Escaped,
    serve::Exported,
};

/// Maximum of queued spans.
const MAX_QUEUED: usize = 4096;
/// Maximum of spans in a request.
const MAX_BATCH: usize = 512;
/// Time for which spans are gathered for a request.
const BATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of updates of the front's counters.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Default timeout of an export, without a variable of OpenTelemetry.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The variables with the timeout, in milliseconds.
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
/// The default `service.name` of the resource.
const SERVICE: &str = "portcullis";

/// The exporting thread.
pub(crate) struct Exporter {
    spans: SyncSender<(Arc<str>, Span)>,
    over: Receiver<()>,
    counts: Arc<Counts>,
    reported: Exported,
    reported_at: Instant,
}

#[derive(Default)]
struct Counts {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Exporter {
    /// Starts the export to the address in `config`; variables of OpenTelemetry are used for other
    /// settings.
    ///
    /// # Errors
    /// When the address or a variable cannot be used.
    pub(crate) fn start(config: &Telemetry) -> Result<Self, Failure> {
        const DOING: &str = "cannot export spans";
        let timeout = timeout();
        let client = Client::builder().redirect(Policy::none()).timeout(timeout).build();
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client.or_fail(DOING)?)
            .with_timeout(timeout)
            .with_endpoint(config.traces())
            .build()
            .or_fail(DOING)?;
        exporter.set_resource(&resource(config));
        let (spans, waiting) = sync_channel(MAX_QUEUED);
        let (end, over) = sync_channel(1);
        let counts = Arc::<Counts>::default();
        let theirs = Arc::clone(&counts);
        thread::Builder::new()
            .name("telemetry".to_owned())
            .spawn(move || {
                run(&exporter, &waiting, &theirs);
                // The receiver waits for this at the end only.
                let _ = end.try_send(());
            })
            .or_fail("cannot start a thread")?;
        let reported = Exported::default();
        Ok(Self { spans, over, counts, reported, reported_at: Instant::now() })
    }

    /// Queues the spans of a workspace, and counts the `lost` ones. Never blocks.
    pub(crate) fn take(&self, workspace: &str, spans: Vec<Span>, lost: u64) {
        let workspace = Arc::<str>::from(workspace);
        let full = |span| self.spans.try_send((Arc::clone(&workspace), span)).is_err();
        let dropped = spans.into_iter().filter_map(|span| full(span).then_some(())).count();
        let dropped = u64::try_from(dropped).unwrap_or(u64::MAX).saturating_add(lost);
        self.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Returns the time of the next update of counters.
    pub(crate) fn next(&self) -> Option<Instant> {
        (self.counts() != self.reported).then_some(self.reported_at + REPORT_INTERVAL)
    }

    /// Returns the counters, if an update is due.
    pub(crate) fn totals(&mut self) -> Option<Exported> {
        let now = self.counts();
        if now == self.reported || self.reported_at.elapsed() < REPORT_INTERVAL {
            return None;
        }
        (self.reported, self.reported_at) = (now, Instant::now());
        Some(now)
    }

    /// Exports the remaining spans, at most for `max_wait`.
    pub(crate) fn finish(self, max_wait: Duration) {
        drop(self.spans);
        // Spans that the collector does not accept in time are lost.
        let _ = self.over.recv_timeout(max_wait);
    }

    fn counts(&self) -> Exported {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { exported, failed, dropped } = &*self.counts;
        Exported { exported: read(exported), failed: read(failed), dropped: read(dropped) }
    }
}

/// Returns the timeout of an export.
fn timeout() -> Duration {
    let set = TIMEOUTS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    set.map_or(EXPORT_TIMEOUT, Duration::from_millis)
}

fn resource(config: &Telemetry) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let resource = Resource::builder().with_attribute(version);
    match &config.service {
        Some(name) => resource.with_service_name(name.clone()),
        None if named => resource,
        None => resource.with_service_name(SERVICE),
    }
    .build()
}

fn run(exporter: &SpanExporter, waiting: &Receiver<(Arc<str>, Span)>, counts: &Counts) {
    let mut failing = false;
    while let Ok((workspace, span)) = waiting.recv() {
        let mut batch = vec![data(&workspace, span)];
        let end = Instant::now() + BATCH_INTERVAL;
        while batch.len() < MAX_BATCH {
            match waiting.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((workspace, span)) => batch.push(data(&workspace, span)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let number = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        match futures_executor::block_on(exporter.export(batch)) {
            Ok(()) => {
                counts.exported.fetch_add(number, Ordering::Relaxed);
                failing = false;
            }
            Err(error) => {
                counts.failed.fetch_add(number, Ordering::Relaxed);
                if !std::mem::replace(&mut failing, true) {
                    let error = error.to_string();
                    errln!("portcullis: warning: spans are not exported: {}", Escaped(&error));
                }
            }
        }
    }
}

/// Converts a span to OpenTelemetry's: the root of a trace of its own.
fn data(workspace: &str, span: Span) -> SpanData {
    let ids = RandomIdGenerator::default();
    let (trace, id) = (ids.new_trace_id(), ids.new_span_id());
    let begun = SystemTime::UNIX_EPOCH + Duration::from_nanos(span.begun);
    let Span { operation, transport, agent, decision, rule, result, record, nanos, .. } = span;
    let texts = [
        ("portcullis.workspace", workspace.to_owned()),
        ("portcullis.operation", operation.clone()),
        ("portcullis.transport", transport),
        ("portcullis.agent", agent),
        ("portcullis.decision", decision),
        ("portcullis.rule", rule),
        ("portcullis.result", result),
    ];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let mut attributes: Vec<_> = texts.map(|(name, text)| KeyValue::new(name, text)).collect();
    let record = record.and_then(|record| i64::try_from(record).ok());
    attributes.extend(record.map(|record| KeyValue::new("portcullis.record", record)));
    SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Server,
        name: operation.into(),
        start_time: begun,
        end_time: begun + Duration::from_nanos(nanos),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder(SERVICE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
