//! Connections to hosts: decided and recorded here, made by another process.
//!
//! [`Gateway::connect`] decides on the name before it is looked up, [`ConnectionAttempt::open`] on
//! one of its addresses. An [`OpenConnection`] stands for a record on stable storage: its owner may
//! connect to that address and forward bytes. Nothing here opens a socket.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    time::Instant,
};

use portcullis_audit::{Draft, Receipt};

use super::{
    Gateway,
    client::Client,
    connection_end::{self, EndReason},
    connection_request::ConnectionRequest,
    error::Error,
    limits::Meter,
    open_connection::OpenConnection,
    open_tunnel::OpenTunnel,
    pending_approval::Approved,
    span,
};
use crate::{
    audit_log::Seal,
    model::{Connect, Host, OperationKind, Session},
    policy::Decision,
};

/// A connection whose name was decided on, before its addresses are.
#[derive(Debug)]
pub struct ConnectionAttempt {
    request: Arc<ConnectionRequest>,
    approved: Option<Approved>,
    /// The draft of the decision's record.
    decided: Draft,
    receipt: Receipt,
}

impl Gateway {
    /// Adds an address of this machine, or of a network that it is on. A name that leads to it is
    /// refused as one that leads to the loopback interface.
    pub fn add_local_address(&self, address: IpAddr) {
        self.local_addresses.write().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    /// Restricts connections to `host` to those with the operator's credential `id`, from now on;
    /// denials name `url`, by which programs in the sandbox reach it.
    pub fn reach_with_credential(&self, host: &Host, id: &str, url: &str) {
        self.credential_hosts.add(host, id, url);
    }

    /// Decides whether an agent may connect to a host, and records that, before the name is looked
    /// up. Waits for an approval where a rule asks for one.
    ///
    /// # Errors
    /// As [`Gateway::handle`]: the name may not be looked up then.
    pub fn connect(
        self: &Arc<Self>,
        session: &Session,
        connect: &Connect,
        client: Client<'_>,
    ) -> Result<ConnectionAttempt, Error> {
        self.connect_with(session, connect, None, client)
    }

    /// Does the same as [`Gateway::connect`] for a connection with the operator's credential of
    /// that id, which the policy must let programs use.
    ///
    /// # Errors
    /// As [`Gateway::connect`].
    pub fn connect_with(
        self: &Arc<Self>,
        session: &Session,
        connect: &Connect,
        credential: Option<&str>,
        client: Client<'_>,
    ) -> Result<ConnectionAttempt, Error> {
        let operation = OperationKind::Connect.as_str();
        let span = span::of(session, operation);
        let _inside = span.enter();
        let begun = Instant::now();
        let request = ConnectionRequest {
            gateway: Arc::clone(self),
            session: session.clone(),
            connect: connect.clone(),
            credential: credential.map(str::to_owned),
            facts: client.facts.clone(),
        };
        let attempt = request.attempt(client);
        let receipt = attempt.as_ref().map(|attempt| Some(&attempt.receipt));
        self.answered(&span, operation, begun, receipt);
        attempt
    }
}

impl ConnectionRequest {
    fn attempt(self, client: Client<'_>) -> Result<ConnectionAttempt, Error> {
        let policy = self.gateway.policy();
        let meter = self.gateway.begin_request(&self.session, &policy).map_err(|decision| {
            self.gateway.fail(self.draft(&policy, None), decision.into(), None)
        })?;
        let (settled, approved) = self.settle(None, None, client, meter.as_deref())?;
        let mut draft = settled.draft;
        draft.result = Some("ok".to_owned());
        // A look-up discloses the name, so the record comes first.
        let receipt = self.gateway.audit_log.record(draft.clone())?;
        Ok(ConnectionAttempt { request: Arc::new(self), approved, decided: draft, receipt })
    }
}

impl ConnectionAttempt {
    /// Returns the host and the port.
    pub fn target(&self) -> &Connect {
        &self.request.connect
    }

    /// Returns the receipt of the decision's record.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Records that the name led to no connection: no address was found, or none may be connected
    /// to. No intent is open, so this is no outcome.
    ///
    /// # Errors
    /// When no record can be written.
    pub fn unreachable(&self, reason: &str) -> Result<Receipt, Error> {
        let result = Some(EndReason::Unreachable.as_str().to_owned());
        let gateway = &self.request.gateway;
        let reason = connection_end::recorded(gateway, reason);
        let draft = Draft { result, reason, ..self.decided.clone() };
        Ok(gateway.audit_log.record(draft)?)
    }

    /// Decides on an address of the host, and records durably that it is connected to. The result
    /// permits a connection to exactly this address; several addresses can be tried one after the
    /// other. Waits for an approval where a rule asks for one.
    ///
    /// # Errors
    /// As [`Gateway::handle`]: no packet may be sent to the address.
    pub fn open(&self, address: IpAddr, client: Client<'_>) -> Result<OpenConnection, Error> {
        let request = &self.request;
        let (gateway, session) = (&request.gateway, &request.session);
        let policy = gateway.policy();
        let denied = |decision: Decision, meter: Option<&Meter>| {
            gateway.fail(request.draft(&gateway.policy(), Some(address)), decision.into(), meter)
        };
        let meter =
            gateway.meter_of(session, &policy).map_err(|decision| denied(decision, None))?;
        let meter = meter.as_deref();
        meter.map_or(Ok(()), Meter::open).map_err(|decision| denied(decision, meter))?;
        let (settled, _) = request.settle(Some(address), self.approved.as_ref(), client, meter)?;
        let host = &request.connect.host;
        let limits = settled.context.limits();
        let slot = gateway
            .connections
            .open(&session.id, host, &limits)
            .map_err(|decision| denied(decision, meter))?;
        let tunnel = Arc::new(OpenTunnel::new(request, address, &settled));
        let registration = gateway.carrier(session).tunnels.register(Arc::clone(&tunnel) as _);
        // A read since the decision did not see that the connection is open.
        if let Some((denial, now)) = tunnel.denial().and_then(|_| tunnel.ended_by()) {
            let mut draft = request.draft(&now.policy, Some(address));
            request.note_reads(&mut draft, &now, std::slice::from_ref(&denial));
            return Err(gateway.fail(draft, denial.denying().into(), meter));
        }
        let grant = gateway.audit_log.admit(settled.draft, &Seal::new())?;
        Ok(OpenConnection::granted((request, address), slot, grant, (tunnel, registration)))
    }
}

#[cfg(test)]
mod tests;
