//! Open connections, decided on again by the policy in force and by what was read since they were
//! opened.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use super::{
    connection_request::{AllowedConnection, ConnectionRequest},
    decision_context::DecisionContext,
    lock::lock,
    obligations::Obligations,
    tunnels::Tunnel,
};
use crate::policy::Decision;

/// The function that closes a connection, set by the part that carries its bytes.
type Close = Box<dyn Fn() + Send + Sync>;

/// An open connection, as long as bytes may be on their way.
pub(super) struct OpenTunnel {
    request: Arc<ConnectionRequest>,
    address: IpAddr,
    decided: Mutex<LastDecision>,
    closing: Mutex<Closing>,
}

/// The last decision on a connection.
struct LastDecision {
    context: Arc<DecisionContext>,
    /// The rules that asked and were approved, under the policies and for the labels of the context.
    approved: Vec<String>,
    /// The denial that ends the connection.
    denial: Option<Decision>,
}

#[derive(Default)]
struct Closing {
    is_wanted: bool,
    close: Option<Arc<Close>>,
}

impl OpenTunnel {
    pub(super) fn new(
        request: &Arc<ConnectionRequest>,
        address: IpAddr,
        settled: &AllowedConnection,
    ) -> Self {
        let context = Arc::clone(&settled.context);
        let approved = settled.rules.iter().map(|rule| context.asking_rule(rule)).collect();
        Self {
            request: Arc::clone(request),
            address,
            decided: Mutex::new(LastDecision { context, approved, denial: None }),
            closing: Mutex::default(),
        }
    }

    /// Returns the denial that ends the connection, if there is one.
    pub(super) fn denial(&self) -> Option<Decision> {
        let mut decided = lock(&self.decided);
        if decided.denial.is_some() {
            return decided.denial.clone();
        }
        let context = self.request.context();
        if context.is_same(&decided.context) {
            return None;
        }
        // An approval holds for the policies by which it was asked for.
        if !context.has_policies_of(&decided.context) {
            decided.approved.clear();
        }
        let obligations = Obligations::default();
        let decision = self.request.evaluate(&context, Some(self.address), &obligations);
        let is_open = |rule: &Decision| !decided.approved.contains(&context.asking_rule(rule));
        let denial = match decision.is_deny() {
            true => Some(decision),
            false => obligations.asks().into_iter().find(is_open),
        };
        decided.context = Arc::new(context);
        decided.denial.clone_from(&denial);
        denial
    }

    /// Ends the connection by a denial, unless there is one already.
    pub(super) fn deny(&self, denial: Decision) {
        lock(&self.decided).denial.get_or_insert(denial);
    }

    /// Returns the context of the last decision.
    pub(super) fn context(&self) -> Arc<DecisionContext> {
        Arc::clone(&lock(&self.decided).context)
    }

    /// Returns the denial with the context that it is based on.
    pub(super) fn ended_by(&self) -> Option<(Decision, Arc<DecisionContext>)> {
        let LastDecision { context, denial, .. } = &*lock(&self.decided);
        Some((denial.clone()?, Arc::clone(context)))
    }

    /// Sets the function that closes the connection, and calls it at once if the connection has to
    /// be closed already.
    pub(super) fn closed_by(&self, close: Close) {
        let close = Arc::new(close);
        let mut closing = lock(&self.closing);
        closing.close = Some(Arc::clone(&close));
        let is_wanted = closing.is_wanted;
        drop(closing);
        if is_wanted {
            close();
        }
    }
}

impl Tunnel for OpenTunnel {
    fn is_denied(&self) -> bool {
        self.denial().is_some()
    }

    fn close(&self) {
        let mut closing = lock(&self.closing);
        closing.is_wanted = true;
        let close = closing.close.clone();
        drop(closing);
        // Without the function yet, `closed_by` closes the connection once it is open.
        if let Some(close) = close {
            close();
        }
    }
}

impl fmt::Debug for OpenTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTunnel").field("address", &self.address).finish_non_exhaustive()
    }
}
