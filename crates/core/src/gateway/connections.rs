//! Counts of each session's open connections and of the bytes that it has sent to each host,
//! compared with the policy's `[network.limits]`.
//!
//! The counts live as long as the gateway does, in memory alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    model::Host,
    policy::{Decision, NetworkLimits},
};

/// The maximum of hosts of one session for which bytes are counted. A further host is refused: if
/// the count of another one were dropped, the session could send to it again.
const MAX_HOSTS: usize = 4096;

/// The connections of all sessions.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<HashMap<String, SessionCounts>>);

#[derive(Debug, Default)]
struct SessionCounts {
    open: u64,
    sent: HashMap<Host, u64>,
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    connections: Arc<Connections>,
    session: String,
    host: Host,
}

impl Connections {
    /// Counts one more open connection of a session.
    ///
    /// # Errors
    /// A denial when the session has as many connections as it may, or has sent the host all that
    /// it may.
    pub(super) fn open(
        self: &Arc<Self>,
        session: &str,
        host: &Host,
        limits: &NetworkLimits,
    ) -> Result<Slot, Decision> {
        let mut all = self.lock();
        let counts = all.entry(session.to_owned()).or_default();
        if let Some(limit) =
            limits.connections.as_ref().filter(|limit| counts.open >= limit.maximum)
        {
            return Err(limit.exceeded());
        }
        if let Some(limit) = &limits.bytes_out {
            let sent = counts.sent.get(host);
            if sent.is_none() && counts.sent.len() >= MAX_HOSTS {
                return Err(limit.exceeded());
            }
            if sent.copied().unwrap_or(0) >= limit.maximum {
                return Err(limit.exceeded());
            }
        }
        counts.open += 1;
        let (session, host) = (session.to_owned(), host.clone());
        Ok(Slot { connections: Arc::clone(self), session, host })
    }

    /// Drops the counts of a session that has ended.
    pub(super) fn forget(&self, session: &str) {
        self.lock().remove(session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SessionCounts>> {
        // The map has plain numbers, which a panic elsewhere leaves intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Counts bytes that are about to be sent.
    ///
    /// # Errors
    /// A denial when that is more than the session may send to the host; nothing is counted then.
    pub(super) fn send(&self, bytes: u64, limits: &NetworkLimits) -> Result<(), Decision> {
        let Some(limit) = &limits.bytes_out else { return Ok(()) };
        let mut all = self.connections.lock();
        let counts = all.entry(self.session.clone()).or_default();
        let sent = counts.sent.entry(self.host.clone()).or_default();
        let after = sent.saturating_add(bytes);
        if after > limit.maximum {
            return Err(limit.exceeded());
        }
        *sent = after;
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(counts) = self.connections.lock().get_mut(&self.session) {
            counts.open = counts.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn limits(text: &str) -> NetworkLimits {
        let text = format!("schema = 1\n[network.limits]\n{text}\n");
        compile(&PolicySource::from_text("t", &text)).unwrap().network().limits().clone()
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_session_has_so_many_connections_at_once() {
        let (connections, limits) = (Arc::<Connections>::default(), limits("connections = 2"));
        let open = |session: &str| connections.open(session, &host("a.example"), &limits);
        let (one, _two) = (open("s").unwrap(), open("s").unwrap());
        assert_eq!(open("s").unwrap_err().rule(), "network.limits.connections");
        let _other = open("t").unwrap();
        drop(one);
        let _three = open("s").unwrap();
        assert!(open("s").is_err());
    }

    #[test]
    fn bytes_are_counted_by_session_and_host() {
        let (connections, limits) = (Arc::<Connections>::default(), limits("bytesOut = \"10B\""));
        let open = |session: &str, name| connections.open(session, &host(name), &limits);
        let one = open("s", "a.example").unwrap();
        one.send(6, &limits).unwrap();
        assert_eq!(one.send(5, &limits).unwrap_err().rule(), "network.limits.bytesOut");
        open("s", "a.example").unwrap().send(4, &limits).unwrap();
        assert!(one.send(1, &limits).is_err());
        drop(one);
        assert!(open("s", "a.example").is_err());
        open("s", "b.example").unwrap().send(10, &limits).unwrap();
        open("t", "a.example").unwrap().send(10, &limits).unwrap();
        connections.forget("s");
        open("s", "a.example").unwrap();
    }
}
