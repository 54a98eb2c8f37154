//! Connections to hosts: decided and recorded here, made by another process.
//!
//! [`Gateway::connect`] decides on the name before it is looked up, [`ConnectionAttempt::open`] on
//! one of its addresses. An [`OpenConnection`] stands for a record on stable storage: its owner may
//! connect to that address and forward bytes. Nothing here opens a socket.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use portcullis_audit::{Draft, Receipt};
use serde_json::{Value, json};

use super::{
    Gateway,
    approval_requests::with_approval,
    approvals::{Binding, DisclosedQuestion},
    client::Client,
    connection_end::{self, ConnectionEnd, EndReason},
    connections::Slot,
    credential_hosts::CREDENTIALS,
    decision_context::DecisionContext,
    error::{Error, ErrorKind, Failure, Stopped},
    limits::Meter,
    obligations::Obligations,
    open_tunnel::OpenTunnel,
    pending_approval::{ApprovalNeeded, Approved},
    record, span,
    tunnels::Registration,
};
use crate::{
    audit_log::{Grant, Seal},
    model::{Connect, Host, OperationKind, Session},
    policy::{Decision, LabelIds, Policy},
};

/// The rule for what a connection carries: it must be meant for the host.
pub(super) const HOST: &str = "network.host";
/// The fact that names the reads by which a rule applies.
const WHEN_READ: &str = "whenRead";

/// A connection whose name was decided on, before its addresses are.
#[derive(Debug)]
pub struct ConnectionAttempt {
    request: Arc<ConnectionRequest>,
    approved: Option<Approved>,
    /// The draft of the decision's record.
    decided: Draft,
    receipt: Receipt,
}

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

/// A request for a connection.
#[derive(Debug)]
pub(super) struct ConnectionRequest {
    gateway: Arc<Gateway>,
    session: Session,
    connect: Connect,
    /// The id of the operator's credential, if one is used.
    credential: Option<String>,
    facts: BTreeMap<String, Value>,
}

/// A decision that allows a connection.
pub(super) struct AllowedConnection {
    pub(super) context: Arc<DecisionContext>,
    /// The rules whose effect was `ask`.
    pub(super) rules: Vec<Decision>,
    draft: Draft,
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

impl Gateway {
    /// Returns the context of a decision on a connection of the session now.
    pub(super) fn decision_context(&self, session: &Session) -> DecisionContext {
        DecisionContext::new(self.policy(), &self.further, self.carrier(session).reads())
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

    /// Returns the draft of the record before anything was decided.
    fn draft(&self, policy: &Policy, address: Option<IpAddr>) -> Draft {
        let operation = OperationKind::Connect.as_str();
        let mut draft = record::request(&self.session, policy, operation, None);
        let facts = draft.facts.get_or_insert_default();
        facts.extend(self.facts.clone());
        facts.extend(self.target(address));
        draft
    }

    /// Returns the facts that name the connection.
    fn target(&self, address: Option<IpAddr>) -> BTreeMap<String, Value> {
        let Connect { host, port } = &self.connect;
        let host = [("host".to_owned(), json!(host.to_string())), ("port".to_owned(), json!(port))];
        let address = address.map(|address| ("address".to_owned(), json!(address.to_string())));
        let credential = self.credential.as_ref().map(|id| ("credential".to_owned(), json!(id)));
        // A program can put a secret into a name.
        self.gateway.redact_facts(host.into_iter().chain(address).chain(credential).collect())
    }

    /// Decides, after an approval where a rule asks for one; the draft has the decision.
    fn settle(
        &self,
        address: Option<IpAddr>,
        approved: Option<&Approved>,
        client: Client<'_>,
        meter: Option<&Meter>,
    ) -> Result<(AllowedConnection, Option<Approved>), Error> {
        let fail = |stopped: Box<Stopped>| {
            let Stopped { mut draft, failure } = *stopped;
            // The session ended, or the program gave up, and nobody had answered.
            if matches!(&failure, Failure::Rendered(error) if error.kind() == ErrorKind::Cancelled)
            {
                draft.decision = Some("deny".to_owned());
            }
            self.gateway.fail(draft, failure, meter)
        };
        let denied = |decision: Decision| {
            Stopped::because(self.draft(&self.gateway.policy(), address), decision.into())
        };
        with_approval(
            |draft, asking| self.gateway.ask(&self.session, draft, asking, client.approver),
            |yes| {
                // The session may have been closed while the request waited.
                yes.and(meter).map_or(Ok(()), Meter::open).map_err(denied)?;
                self.decide(address, yes.or(approved))
            },
        )
        .map_err(fail)
    }

    /// Returns the context of a decision now.
    pub(super) fn context(&self) -> DecisionContext {
        self.gateway.decision_context(&self.session)
    }

    /// Decides by the policies in force, on the host and, if it is known, on its address.
    fn decide(
        &self,
        address: Option<IpAddr>,
        approved: Option<&Approved>,
    ) -> Result<AllowedConnection, Box<Stopped>> {
        let now = Arc::new(self.context());
        let mut draft = self.draft(&now.policy, address);
        let obligations = Obligations::default();
        let decision = self.evaluate(&now, address, &obligations);
        if decision.is_deny() {
            self.note_reads(&mut draft, &now, std::slice::from_ref(&decision));
            return Err(Stopped::because(draft, decision.into()));
        }
        record::decide(&mut draft, &decision);
        obligations.observe(&mut draft);
        let rules = obligations.asks();
        if rules.is_empty() {
            return Ok(AllowedConnection { context: now, rules, draft });
        }
        self.note_reads(&mut draft, &now, &rules);
        let binding = self.binding(&now, &rules, address);
        let Some(seq) = self.gateway.approvals.record_of(approved, &self.session, &binding) else {
            let (path, change) = (binding.path.clone(), format!("connect to {}", binding.path));
            let disclosed_part =
                DisclosedQuestion { path, to: None, rules: rules.clone(), change: change.clone() };
            let asking = ApprovalNeeded { binding, rules, change, disclosed_part };
            return Err(Stopped::because(draft, Failure::Ask(Box::new(asking))));
        };
        record::approve(&mut draft, &rules, seq);
        Ok(AllowedConnection { context: now, rules, draft })
    }

    /// Adds to the record the reads by which the rules apply.
    fn note_reads(&self, draft: &mut Draft, now: &DecisionContext, rules: &[Decision]) {
        let rules = rules.iter().filter_map(|decision| now.network_rule(decision));
        let labels: LabelIds = rules.flat_map(|rule| &rule.when_read).cloned().collect();
        if let Some(shown) = now.reads.shown(&labels, self.gateway.boot()) {
            draft.facts.get_or_insert_default().insert(WHEN_READ.to_owned(), shown);
        }
    }

    pub(super) fn evaluate(
        &self,
        now: &DecisionContext,
        address: Option<IpAddr>,
        obligations: &Obligations,
    ) -> Decision {
        let (host, credential) = (&self.connect.host, self.credential.as_deref());
        if let Some(denial) = self.gateway.credential_hosts.denial(&now.policy, host, credential) {
            return denial;
        }
        let name = now.evaluate_connect(&self.session.agent, &self.connect, obligations);
        let Some(address) = address else { return name };
        name.and(self.evaluate_address(now, address, obligations))
    }

    fn evaluate_address(
        &self,
        now: &DecisionContext,
        address: IpAddr,
        obligations: &Obligations,
    ) -> Decision {
        let own = &self.gateway.local_addresses;
        let is_local = own.read().unwrap_or_else(PoisonError::into_inner).contains(&address);
        let address = (address, is_local);
        now.evaluate_address(&self.session.agent, &self.connect, address, obligations)
    }

    /// Returns the address if a rule asks about it by itself, under whatever name. An approval of a
    /// name does not cover it, because the owner of the name decides where it leads.
    fn asked_about(&self, now: &DecisionContext, address: Option<IpAddr>) -> Option<IpAddr> {
        let address = address.filter(|address| self.connect.host != Host::Address(*address))?;
        let decision = self.evaluate_address(now, address, &Obligations::default());
        decision.is_ask().then_some(address)
    }

    fn binding(
        &self,
        now: &DecisionContext,
        rules: &[Decision],
        address: Option<IpAddr>,
    ) -> Binding {
        let named = now.addresses_beside(&self.connect.host, rules);
        let mut path = match self.asked_about(now, address) {
            Some(address) if !named.contains(&address) => format!("{} at {address}", self.connect),
            _ if named.is_empty() => self.connect.to_string(),
            _ => {
                let named: Vec<_> = named.iter().map(IpAddr::to_string).collect();
                format!("{}, also at {}", self.connect, named.join(" and "))
            }
        };
        // Each credential of a host is for something else.
        if let Some(id) = &self.credential {
            path.push_str(&format!(", with the credential `{id}`"));
        }
        let rules = rules.iter().map(|rule| now.asking_rule(rule)).collect();
        Binding::new(OperationKind::Connect, path, now.policy_hashes(), rules)
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

impl OpenConnection {
    /// Returns the connection that the log granted.
    fn granted(
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

#[cfg(test)]
mod tests;
