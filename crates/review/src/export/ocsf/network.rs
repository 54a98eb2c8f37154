//! Events of the class 4001, Network Activity: connections of agents to hosts.

use std::collections::BTreeMap;

use portcullis_audit::RecordView;
use serde_json::{Map, Value, json};

use super::{ActivityId, Class, event, is_connection, object};
use crate::Filter;

pub(super) const CLASS: Class = Class {
    uid: 4001,
    name: "Network Activity",
    category: 4,
    category_name: "Network Activity",
    profiles: &["host", "security_control"],
};

const OPEN: ActivityId = ActivityId(1, "Open");
const CLOSE: ActivityId = ActivityId(2, "Close");
const RESET: ActivityId = ActivityId(3, "Reset");
const FAIL: ActivityId = ActivityId(4, "Fail");
const REFUSE: ActivityId = ActivityId(5, "Refuse");
const OTHER: ActivityId = ActivityId(99, "Other");

/// The attributes by which an event says that it was denied.
const DENIED: [&str; 9] = [
    "severity_id",
    "severity",
    "message",
    "action_id",
    "action",
    "disposition_id",
    "disposition",
    "is_alert",
    "authorizations",
];

/// The end of a connection that was cut off.
pub(super) struct Denial {
    /// An event of its own, for where the connection's is not wanted.
    pub(super) event: Box<Map<String, Value>>,
    /// True if the filter asks for it.
    pub(super) is_wanted: bool,
}

impl Denial {
    /// Returns it if the record of an outcome is one.
    pub(super) fn of(
        record: &RecordView<'_>,
        line: &[u8],
        device: &str,
        filter: &Filter,
    ) -> Option<Self> {
        if record.decision() != Some("deny") || !is_connection(record) {
            return None;
        }
        let (about, time) = (record.subject()?, record.t.as_str().parse().ok()?);
        let event = Box::new(event(record, line, device, &about, time));
        Some(Self { event, is_wanted: filter.matches(record) })
    }

    /// Says of the connection's event that it was denied.
    pub(super) fn add_to(mut self, event: &mut Map<String, Value>) {
        event.extend(DENIED.iter().filter_map(|key| self.event.remove_entry(*key)));
    }
}

/// Returns the activity of a connection's record without its end.
pub(super) fn activity(record: &RecordView<'_>) -> ActivityId {
    match (record.kind_name(), record.decision(), record.result()) {
        ("intent", ..) => OPEN,
        (_, Some("deny"), _) => REFUSE,
        // The name led to no connection.
        (_, _, Some("unreachable")) => FAIL,
        // The host is allowed and the connection does not exist yet.
        _ => OTHER,
    }
}

/// Returns the endpoint and the direction, which is outbound.
pub(super) fn attributes(record: &RecordView<'_>) -> Map<String, Value> {
    let fact = |name: &str| record.facts.as_ref()?.get(name);
    let mut endpoint = object(json!({ "port": fact("port").and_then(Value::as_u64) }));
    endpoint.retain(|_, value| !value.is_null());
    let host = record.fact("host").unwrap_or_default();
    if host.parse::<std::net::IpAddr>().is_err() {
        endpoint.insert("hostname".to_owned(), host.into());
    }
    let address = record.fact("address").unwrap_or(host);
    if address.parse::<std::net::IpAddr>().is_ok() {
        endpoint.insert("ip".to_owned(), address.into());
    }
    object(json!({
        "dst_endpoint": endpoint,
        "connection_info": {
            "direction_id": 2,
            "direction": "Outbound",
            "protocol_name": "tcp",
            "protocol_num": 6,
        },
    }))
}

/// Adds the end of a connection and the bytes of each direction.
pub(super) fn end(
    event: &mut Map<String, Value>,
    result: &str,
    counts: Option<&BTreeMap<String, u64>>,
) {
    let activity = match result {
        "unreachable" | "failed" => FAIL,
        "refused" | "denied" => REFUSE,
        "reset" => RESET,
        _ => CLOSE,
    };
    CLASS.describe(event, activity, activity.1);
    let count = |name: &str| counts.and_then(|counts| counts.get(name)).copied();
    let (bytes_in, bytes_out) = (count("bytesIn"), count("bytesOut"));
    let bytes = bytes_in.zip(bytes_out).map(|(came, sent)| came.saturating_add(sent));
    let traffic = [("bytes_in", bytes_in), ("bytes_out", bytes_out), ("bytes", bytes)];
    let traffic = traffic.into_iter().filter_map(|(name, count)| Some((name, count?)));
    let traffic: BTreeMap<_, _> = traffic.collect();
    if !traffic.is_empty() {
        event.insert("traffic".to_owned(), json!(traffic));
    }
    if let Some(duration) = count("milliseconds") {
        event.insert("duration".to_owned(), duration.into());
    }
}
