//! The keys of the sections, with types and bounds.

use crate::policy::{Field, Shape, optional, required};

const TEXTS: Shape = Shape::List(&Shape::Text);

/// The keys of the file that this module reads.
pub const FIELDS: &[Field] = &[
    optional("serve", Shape::Table(SERVE)),
    optional("telemetry", Shape::Table(TELEMETRY)),
    optional("workspaces", Shape::Tables(WORKSPACE)),
    optional("agents", Shape::Tables(AGENT)),
];

const SERVE: &[Field] = &[
    optional("listen", TEXTS),
    optional("plaintext", Shape::Boolean),
    optional(
        "tls",
        Shape::Table(&[required("certificate", Shape::Text), required("key", Shape::Text)]),
    ),
    optional("hosts", TEXTS),
    optional("origins", TEXTS),
    optional("state", Shape::Text),
    optional("idleSeconds", Shape::Integer(1, 604_800)),
    optional("sessionIdleSeconds", Shape::Integer(1, 604_800)),
    optional("limits", Shape::Table(LIMITS)),
];

const LIMITS: &[Field] = &[
    optional("requestsPerSecond", Shape::Integer(1, 1_000_000)),
    optional("bytesPerSecond", Shape::Size),
    optional("concurrentRequests", Shape::Integer(1, 65_536)),
    optional("watches", Shape::Integer(1, 4_096)),
    optional("sessions", Shape::Integer(1, 4_000)),
    optional("connections", Shape::Integer(1, 65_536)),
    optional("failedLogins", Shape::Integer(1, 1_000_000)),
    optional("headSeconds", Shape::Integer(1, 3_600)),
    optional("headBytes", Shape::Integer(8_192, 1_048_576)),
    optional("bodySeconds", Shape::Integer(1, 3_600)),
    optional("messageSize", Shape::Size),
    optional("messageMemory", Shape::Size),
];

const TELEMETRY: &[Field] = &[
    required("otlp", Shape::Text),
    optional("service", Shape::Text),
    optional("samplePercent", Shape::Integer(1, 100)),
];

const WORKSPACE: &[Field] = &[
    required("name", Shape::Text),
    required("root", Shape::Text),
    optional("policy", Shape::Text),
    optional("state", Shape::Text),
    optional("tools", Shape::Word(&["workspace", "reference"])),
    optional("ask", Shape::Word(&["client", "shell"])),
];

const AGENT: &[Field] = &[
    required("name", Shape::Text),
    required("tokenHash", Shape::Text),
    required("workspaces", TEXTS),
    optional("metrics", Shape::Boolean),
];
