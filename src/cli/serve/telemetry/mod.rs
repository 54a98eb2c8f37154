//! Export of request spans with OpenTelemetry, in builds that have it.
//!
//! Workers gather spans (`spans`), the broker exports them (`exporter`).

#[cfg(not(feature = "otlp"))]
mod disabled;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod spans;

#[cfg(feature = "otlp")]
pub(super) use self::{exporter::Exporter, spans::Spans};
#[cfg(not(feature = "otlp"))]
pub(super) use disabled::{Exporter, Spans};
