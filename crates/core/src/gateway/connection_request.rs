//! Requests for connections, and the decisions on them.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, PoisonError},
};

use portcullis_audit::Draft;
use serde_json::{Value, json};

use super::{
    Gateway,
    approval_requests::with_approval,
    approvals::{Binding, DisclosedQuestion},
    client::Client,
    decision_context::DecisionContext,
    error::{Error, ErrorKind, Failure, Stopped},
    limits::Meter,
    obligations::Obligations,
    pending_approval::{ApprovalNeeded, Approved},
    record,
};
use crate::{
    model::{Connect, Host, OperationKind, Session},
    policy::{Decision, LabelIds, Policy},
};

/// The fact that names the reads by which a rule applies.
const WHEN_READ: &str = "whenRead";

/// A request for a connection.
#[derive(Debug)]
pub(super) struct ConnectionRequest {
    pub(super) gateway: Arc<Gateway>,
    pub(super) session: Session,
    pub(super) connect: Connect,
    /// The id of the operator's credential, if one is used.
    pub(super) credential: Option<String>,
    pub(super) facts: BTreeMap<String, Value>,
}

/// A decision that allows a connection.
pub(super) struct AllowedConnection {
    pub(super) context: Arc<DecisionContext>,
    /// The rules whose effect was `ask`.
    pub(super) rules: Vec<Decision>,
    pub(super) draft: Draft,
}

impl Gateway {
    /// Returns the context of a decision on a connection of the session now.
    pub(super) fn decision_context(&self, session: &Session) -> DecisionContext {
        DecisionContext::new(self.policy(), &self.further, self.carrier(session).reads())
    }
}

impl ConnectionRequest {
    /// Returns the draft of the record before anything was decided.
    pub(super) fn draft(&self, policy: &Policy, address: Option<IpAddr>) -> Draft {
        let operation = OperationKind::Connect.as_str();
        let mut draft = record::request(&self.session, policy, operation, None);
        let facts = draft.facts.get_or_insert_default();
        facts.extend(self.facts.clone());
        facts.extend(self.target(address));
        draft
    }

    /// Returns the facts that name the connection.
    pub(super) fn target(&self, address: Option<IpAddr>) -> BTreeMap<String, Value> {
        let Connect { host, port } = &self.connect;
        let host = [("host".to_owned(), json!(host.to_string())), ("port".to_owned(), json!(port))];
        let address = address.map(|address| ("address".to_owned(), json!(address.to_string())));
        let credential = self.credential.as_ref().map(|id| ("credential".to_owned(), json!(id)));
        // A program can put a secret into a name.
        self.gateway.redact_facts(host.into_iter().chain(address).chain(credential).collect())
    }

    /// Decides, after an approval where a rule asks for one; the draft has the decision.
    pub(super) fn settle(
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
    pub(super) fn note_reads(&self, draft: &mut Draft, now: &DecisionContext, rules: &[Decision]) {
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
