//! Uninhabited types for builds without the export.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tracing_subscriber::{Layer, Registry};

use crate::{
    app::failure::Failure, cli::serve::messages::Span, config::serve::Telemetry, sandbox::Channel,
    serve::Exported,
};

fn missing() -> Failure {
    Failure::new("this build of portcullis exports no spans")
}

/// No exporter exists.
#[derive(Debug)]
pub(crate) enum Exporter {}

impl Exporter {
    pub(crate) fn start(_config: &Telemetry) -> Result<Self, Failure> {
        Err(missing())
    }

    pub(crate) fn take(&self, _workspace: &str, _spans: Vec<Span>, _lost: u64) {
        match *self {}
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn totals(&mut self) -> Option<Exported> {
        match *self {}
    }

    pub(crate) fn finish(self, _max_wait: Duration) {
        match self {}
    }
}

/// No spans exist.
#[derive(Debug)]
pub(crate) enum Spans {}

impl Spans {
    pub(crate) fn of(_percent: u64) -> Result<Self, Failure> {
        Err(missing())
    }

    pub(crate) fn layer(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        match *self {}
    }

    pub(crate) fn send(self, _channel: &Arc<Channel>) -> Result<SendingSpans, Failure> {
        match self {}
    }
}

/// No spans are sent.
#[derive(Debug)]
pub(crate) enum SendingSpans {}

impl SendingSpans {
    pub(crate) fn finish(self) {
        match self {}
    }
}
