//! Spans of requests, gathered in a worker for the broker to export.
//!
//! A worker can open no connection, so its spans go over the existing channel. A
//! span contains the fields of [`Span`] only: no path, no content, no session.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tracing::{
    Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterFn, filter_fn},
    layer::Context,
    registry::LookupSpan,
};

use crate::{
    app::failure::{Context as _, Failure},
    cli::serve::messages::{FromWorker, Span},
    gateway::{Gateway, random_bytes},
    sandbox::Channel,
};

/// The name of a request's span.
const NAME: &str = "request";
/// Maximum of spans that wait for the broker.
const MAX_QUEUED: usize = 2048;
/// Maximum of spans in a message, which must fit in a packet.
const MAX_BATCH: usize = 128;
/// Longest text of a span, in characters.
const MAX_TEXT: usize = 128;
/// Time for which spans are gathered before they are sent.
const BATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The spans of a worker, until they are sent.
pub(crate) struct Spans {
    layer: SpanLayer,
    waiting: Receiver<Option<Span>>,
}

/// The thread that sends them.
pub(crate) struct SendingSpans {
    queue: SyncSender<Option<Span>>,
    thread: JoinHandle<()>,
}

impl Spans {
    /// Gathers the spans of `percent` percent of the requests.
    ///
    /// # Errors
    /// Only in builds without the export.
    #[expect(clippy::unnecessary_wraps, reason = "as in builds without it")]
    pub(crate) fn of(percent: u64) -> Result<Self, Failure> {
        let (queue, waiting) = sync_channel(MAX_QUEUED);
        Ok(Self { layer: SpanLayer { percent, queue, lost: Arc::default() }, waiting })
    }

    /// Returns the subscriber layer that gathers spans.
    pub(crate) fn layer(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        let only: FilterFn = filter_fn(|metadata| {
            metadata.is_span()
                && metadata.name() == NAME
                && metadata.target() == Gateway::SPANS
                && *metadata.level() <= Level::DEBUG
        });
        Box::new(self.layer.clone().with_filter(only))
    }

    /// Sends gathered spans until [`finish`](SendingSpans::finish) is called.
    pub(crate) fn send(self, channel: &Arc<Channel>) -> Result<SendingSpans, Failure> {
        let Self { layer: SpanLayer { queue, lost, .. }, waiting } = self;
        let channel = Arc::clone(channel);
        let thread = thread::Builder::new()
            .name("spans".to_owned())
            .spawn(move || run(&waiting, &lost, &channel))
            .or_fail("cannot start a thread")?;
        Ok(SendingSpans { queue, thread })
    }
}

impl SendingSpans {
    /// Sends the remaining spans.
    pub(crate) fn finish(self) {
        // A thread that has ended takes no more, and has nothing left to send.
        let _ = self.queue.send(None);
        let _ = self.thread.join();
    }
}

/// Sends spans in batches. `None` is the end.
fn run(waiting: &Receiver<Option<Span>>, lost: &AtomicU64, channel: &Channel) {
    let mut is_over = false;
    while !is_over && let Ok(Some(span)) = waiting.recv() {
        let mut spans = vec![span];
        let end = Instant::now() + BATCH_INTERVAL;
        while spans.len() < MAX_BATCH {
            match waiting.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Some(span)) => spans.push(span),
                Ok(None) => {
                    is_over = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let lost = lost.swap(0, Ordering::Relaxed);
        // The end of the broker is noticed elsewhere.
        if channel.send(&FromWorker::Spans { spans, lost }, &[]).is_err() {
            return;
        }
    }
}

/// Converts tracing spans to [`Span`]s, and queues them.
#[derive(Clone)]
struct SpanLayer {
    percent: u64,
    queue: SyncSender<Option<Span>>,
    /// The number of spans dropped for lack of room since the last message.
    lost: Arc<AtomicU64>,
}

impl SpanLayer {
    /// Returns true if a request is sampled. Without random numbers all are.
    fn takes(&self) -> bool {
        let random = random_bytes().map(u64::from_ne_bytes);
        random.map_or(true, |random| random % 100 < self.percent)
    }
}

/// A span in progress.
struct OpenSpan {
    span: Span,
    at: Instant,
}

impl<S> Layer<S> for SpanLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|_| self.takes()) else { return };
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begun = u64::try_from(begun.as_nanos()).unwrap_or(u64::MAX);
        let mut one = OpenSpan { span: Span { begun, ..Span::default() }, at: Instant::now() };
        attributes.record(&mut one.span);
        span.extensions_mut().insert(one);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(one) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut one.span);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(mut one) = span.extensions_mut().remove::<OpenSpan>() else { return };
        one.span.nanos = u64::try_from(one.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if self.queue.try_send(Some(one.span)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Visits the fields that may be known outside.
impl Visit for Span {
    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "op" => &mut self.operation,
            "agent" => &mut self.agent,
            "transport" => &mut self.transport,
            "decision" => &mut self.decision,
            "rule" => &mut self.rule,
            "result" => &mut self.result,
            _ => return,
        };
        *place = value.chars().take(MAX_TEXT).collect();
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "record" {
            self.record = Some(value);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
