//! Spans of requests, gathered in a worker for the broker to export.
//!
//! A worker can open no connection, so its spans go over the existing channel. A
//! span contains the fields of [`Span`] only: no path, no content, no session.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
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

/// The gathered spans, shared by the gathering threads and the sending one.
pub(crate) struct Spans {
    percent: u64,
    state: Mutex<PendingSpans>,
    filled: Condvar,
}

#[derive(Default)]
struct PendingSpans {
    waiting: Vec<Span>,
    /// The number of spans dropped for lack of room since the last message.
    lost: u64,
    over: bool,
}

impl Spans {
    /// Gathers the spans of `percent` percent of the requests.
    ///
    /// # Errors
    /// Only in builds without the export.
    #[expect(clippy::unnecessary_wraps, reason = "as in builds without it")]
    pub(crate) fn of(percent: u64) -> Result<Arc<Self>, Failure> {
        Ok(Arc::new(Self { percent, state: Mutex::default(), filled: Condvar::new() }))
    }

    /// Returns the subscriber layer that gathers spans.
    pub(crate) fn layer(self: &Arc<Self>) -> Box<dyn Layer<Registry> + Send + Sync> {
        let only: FilterFn = filter_fn(|metadata| {
            metadata.is_span()
                && metadata.name() == NAME
                && metadata.target() == Gateway::SPANS
                && *metadata.level() <= Level::DEBUG
        });
        Box::new(SpanLayer(Arc::clone(self)).with_filter(only))
    }

    /// Sends gathered spans until [`finish`](Self::finish) is called.
    pub(crate) fn send(self: &Arc<Self>, channel: &Arc<Channel>) -> Result<(), Failure> {
        let (spans, channel) = (Arc::clone(self), Arc::clone(channel));
        thread::Builder::new()
            .name("spans".to_owned())
            .spawn(move || {
                while let Some(message) = spans.next() {
                    // The end of the broker is noticed elsewhere.
                    if channel.send(&message, &[]).is_err() {
                        return;
                    }
                }
            })
            .map(drop)
            .or_fail("cannot start a thread")
    }

    /// Sends the remaining spans.
    pub(crate) fn finish(&self, channel: &Channel) {
        lock(&self.state).over = true;
        self.filled.notify_all();
        while let Some(message) = lock(&self.state).take() {
            if channel.send(&message, &[]).is_err() {
                return;
            }
        }
    }

    fn next(&self) -> Option<FromWorker> {
        let mut state = lock(&self.state);
        while !state.over && state.waiting.is_empty() {
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let end = Instant::now() + BATCH_INTERVAL;
        while !state.over && state.waiting.len() < MAX_BATCH {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.filled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.over { None } else { state.take() }
    }

    fn push(&self, span: Span) {
        let mut state = lock(&self.state);
        if state.waiting.len() >= MAX_QUEUED {
            state.lost = state.lost.saturating_add(1);
            return;
        }
        state.waiting.push(span);
        drop(state);
        self.filled.notify_one();
    }

    /// Returns true if a request is sampled. Without random numbers all are.
    fn takes(&self) -> bool {
        let random = random_bytes().map(u64::from_ne_bytes);
        random.map_or(true, |random| random % 100 < self.percent)
    }
}

impl PendingSpans {
    fn take(&mut self) -> Option<FromWorker> {
        let lost = std::mem::take(&mut self.lost);
        let count = self.waiting.len().min(MAX_BATCH);
        if count == 0 && lost == 0 {
            return None;
        }
        Some(FromWorker::Spans { spans: self.waiting.drain(..count).collect(), lost })
    }
}

/// Converts tracing spans to [`Span`]s.
struct SpanLayer(Arc<Spans>);

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
        let Some(span) = context.span(id).filter(|_| self.0.takes()) else { return };
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
        self.0.push(one.span);
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

fn lock(state: &Mutex<PendingSpans>) -> MutexGuard<'_, PendingSpans> {
    // A list and a counter, which stay consistent after a panic elsewhere.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
