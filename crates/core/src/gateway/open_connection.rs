//! Connections that may be made, and the records of their ends.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use portcullis_audit::{Draft, Receipt};

use super::{
    connection_end::{ConnectionEnd, EndReason},
    connection_request::ConnectionRequest,
    connections::Slot,
    credential_hosts::CREDENTIALS,
    error::Error,
    open_tunnel::OpenTunnel,
    record,
    tunnels::Registration,
};
use crate::{audit_log::Grant, model::OperationKind, policy::Decision};

/// The rule for what a connection carries: it must be meant for the host.
pub(super) const HOST: &str = "network.host";

/// A connection that may be made, to the one address in its record.
#[derive(Debug)]
pub struct OpenConnection {
    request: Arc<ConnectionRequest>,
    address: IpAddr,
    receipt: Receipt,
    begun: Instant,
    slot: Slot,
    sent: AtomicU64,
    tunnel: Arc<OpenTunnel>,
    /// Dropped with the connection, after which a read that waits for its end goes on.
    _registration: Registration,
    is_closed: bool,
}

impl OpenConnection {
    /// Returns the connection that the log granted.
    pub(super) fn granted(
        (request, address): (&Arc<ConnectionRequest>, IpAddr),
        slot: Slot,
        grant: Grant,
        (tunnel, registration): (Arc<OpenTunnel>, Registration),
    ) -> Self {
        Self {
            request: Arc::clone(request),
            address,
            receipt: grant.into_receipt(),
            begun: Instant::now(),
            slot,
            sent: AtomicU64::new(0),
            tunnel,
            _registration: registration,
            is_closed: false,
        }
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the receipt of the intent's record.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Counts bytes that are about to be sent to the host, in batches of any size; 0 only checks
    /// whether the connection may go on.
    ///
    /// # Errors
    /// When they may not be sent, because of a limit or of another policy, or because the log takes
    /// no more records: the connection has to be closed. The record of its end has the reason.
    pub fn account(&self, bytes: u64) -> Result<(), Error> {
        self.request.gateway.audit_log.check()?;
        if let Some(denial) = self.tunnel.denial() {
            return Err(Error::denied(&denial));
        }
        self.count(bytes).map_err(|denial| {
            let error = Error::denied(&denial);
            self.tunnel.deny(denial);
            error
        })?;
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Counts bytes against the limits of the session, which may have been closed by them.
    fn count(&self, bytes: u64) -> Result<(), Decision> {
        let ConnectionRequest { gateway, session, .. } = &*self.request;
        gateway.open_meter(session, &gateway.policy())?;
        self.slot.send(bytes, &self.tunnel.context().limits())
    }

    /// Returns the denial that ended the connection, if one did.
    pub fn denial(&self) -> Option<Error> {
        self.tunnel.ended_by().map(|(denial, _)| Error::denied(&denial))
    }

    /// Sets the function that closes the connection at once, for a read that forbids the
    /// connection: that read waits until this value is dropped. The function may be called more
    /// than once, and during this call.
    pub fn closed_by(&self, close: impl Fn() + Send + Sync + 'static) {
        self.tunnel.closed_by(Box::new(close));
    }

    /// Records the end of the connection.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn close(mut self, end: ConnectionEnd<'_>) -> Result<Receipt, Error> {
        self.is_closed = true;
        self.record_end(end)
    }

    fn record_end(&self, end: ConnectionEnd<'_>) -> Result<Receipt, Error> {
        let request = &self.request;
        let milliseconds = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut draft = Draft {
            session: Some(request.session.recorded_id().to_owned()),
            agent: Some(request.session.agent.to_string()),
            op: Some(OperationKind::Connect.as_str().to_owned()),
            facts: Some(request.target(Some(self.address))),
            ..end.draft(&request.gateway, self.sent.load(Ordering::Relaxed), milliseconds)
        };
        let redact = |text: &str| request.gateway.redact_text(text);
        let named = record::host_request(redact, end.method, end.path);
        record::add_facts(&mut draft, named);
        if let Some((denial, now)) = self.tunnel.ended_by() {
            record::decide(&mut draft, &denial);
            request.note_reads(&mut draft, &now, std::slice::from_ref(&denial));
            draft.decision = Some("deny".to_owned());
            draft.result = Some(EndReason::Denied.as_str().to_owned());
        } else if end.reason == EndReason::Refused {
            draft.decision = Some("deny".to_owned());
            let rule = if request.credential.is_some() { CREDENTIALS } else { HOST };
            draft.rule = Some(rule.to_owned());
            request.gateway.count_denial(&request.session, &mut draft);
        }
        if draft.decision.is_some() {
            request.gateway.refusals.charge(request.session.agent.as_str(), &draft);
        }
        Ok(request.gateway.audit_log.complete(&self.receipt, draft)?)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let end = ConnectionEnd { bytes_in: None, ..ConnectionEnd::of(EndReason::Abandoned) };
        if let Err(error) = self.record_end(end) {
            tracing::error!(%error, record = self.receipt.seq, "the end of a connection has no record");
        }
    }
}
