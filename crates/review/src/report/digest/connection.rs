//! Bytes received from and sent to each host.

use portcullis_audit::RecordView;

use super::Digest;
use crate::report::items::Connected;

impl Digest {
    /// Counts a connection that has ended.
    pub(super) fn connection(&mut self, record: &RecordView<'_>) {
        let Some(host) = record.subject() else { return };
        let count = |name: &str| record.counts.as_ref()?.get(name).copied();
        let connected = self
            .hosts
            .entry(host.to_string())
            .or_insert_with(|| Connected { host: host.into_owned(), ..Connected::default() });
        connected.add(1, count("bytesIn").unwrap_or(0), count("bytesOut").unwrap_or(0));
    }
}
