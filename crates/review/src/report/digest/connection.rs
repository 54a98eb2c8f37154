//! Connections that have ended: bytes received from and sent to each host, and those cut off.

use portcullis_audit::RecordView;

use super::Digest;
use crate::{Traffic, report::items::Connected};

impl Digest {
    /// Counts a connection that has ended.
    pub(super) fn connection(&mut self, record: &RecordView<'_>) {
        let Some(host) = record.subject() else { return };
        let mut traffic = Traffic::default();
        traffic.add(record.counts.as_ref());
        let connected = self
            .hosts
            .entry(host.to_string())
            .or_insert_with(|| Connected { host: host.into_owned(), ..Connected::default() });
        let is_denied = record.decision() == Some("deny");
        connected.add(&Connected {
            host: String::new(),
            connections: 1,
            denied: is_denied.into(),
            uncounted: traffic.uncounted(1),
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
        });
        // Its intent counts as allowed already.
        if is_denied {
            self.request(record);
        }
    }
}
