//! Bytes of connections, as far as records have them.

use std::collections::BTreeMap;

/// Bytes of connections with one host, as far as they were counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Number of connections whose bytes are known.
    pub counted: u64,
}

impl Traffic {
    /// Adds the counts of the end of a connection, if there is one. No bytes are known of one that
    /// was interrupted, and no received ones if the process that carried it was killed.
    pub fn add(&mut self, counts: Option<&BTreeMap<String, u64>>) {
        let count = |name| counts?.get(name).copied();
        let (bytes_out, bytes_in) = (count("bytesOut"), count("bytesIn"));
        self.bytes_out = self.bytes_out.saturating_add(bytes_out.unwrap_or(0));
        self.bytes_in = self.bytes_in.saturating_add(bytes_in.unwrap_or(0));
        self.counted += u64::from(bytes_out.is_some() && bytes_in.is_some());
    }

    /// Returns how many of these connections have unknown bytes.
    pub fn uncounted(&self, connections: u64) -> u64 {
        connections.saturating_sub(self.counted)
    }

    /// Returns the bytes of so many connections as a text.
    pub fn text(&self, connections: u64) -> String {
        let Self { bytes_out, bytes_in, .. } = self;
        match self.uncounted(connections) {
            0 => format!("{bytes_out} bytes out, {bytes_in} in"),
            unknown => {
                format!("{bytes_out} bytes out, {bytes_in} in, and unknown bytes of {unknown}")
            }
        }
    }
}
