//! Export of request spans with OpenTelemetry, in builds that have it.
//!
//! Workers gather spans (`spans`), the broker exports them (`exporter`).

#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod spans;
#[cfg(not(feature = "otlp"))]
mod without;

#[cfg(feature = "otlp")]
pub(super) use self::{exporter::Exporter, spans::Spans};
#[cfg(not(feature = "otlp"))]
pub(super) use without::{Exporter, Spans};
