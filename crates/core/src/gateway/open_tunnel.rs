//! Open connections, decided on again by the policy in force and by what was read since they were
//! opened.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    circumstances::Circumstances,
    connect::{ConnectionRequest, Settled},
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
    /// The rules that asked, and were approved.
    agreed: Vec<String>,
    decided: Mutex<LastDecision>,
    closing: Mutex<Closing>,
}

/// The circumstances of the last decision on a connection, and the denial that ends it.
struct LastDecision {
    circumstances: Arc<Circumstances>,
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
        settled: &Settled,
    ) -> Self {
        let circumstances = Arc::clone(&settled.circumstances);
        Self {
            request: Arc::clone(request),
            address,
            agreed: settled.rules.iter().map(|rule| rule.rule().to_owned()).collect(),
            decided: Mutex::new(LastDecision { circumstances, denial: None }),
            closing: Mutex::default(),
        }
    }

    /// Returns the denial that ends the connection, if there is one.
    pub(super) fn denial(&self) -> Option<Decision> {
        let mut decided = lock(&self.decided);
        if decided.denial.is_some() {
            return decided.denial.clone();
        }
        let circumstances = self.request.circumstances();
        if circumstances.is_same(&decided.circumstances) {
            return None;
        }
        let is_same_policy = circumstances.has_policies_of(&decided.circumstances);
        let obligations = Obligations::default();
        let decision = self.request.evaluate(&circumstances, Some(self.address), &obligations);
        // An approval holds for the policy by which it was asked for.
        let is_open = |rule: &Decision| {
            !is_same_policy || !self.agreed.iter().any(|agreed| agreed == rule.rule())
        };
        let denial = match decision.is_deny() {
            true => Some(decision),
            false => obligations.asks().into_iter().find(is_open),
        };
        *decided = LastDecision { circumstances: Arc::new(circumstances), denial: denial.clone() };
        denial
    }

    /// Ends the connection by a denial, unless there is one already.
    pub(super) fn deny(&self, denial: Decision) {
        lock(&self.decided).denial.get_or_insert(denial);
    }

    /// Returns the circumstances of the last decision.
    pub(super) fn circumstances(&self) -> Arc<Circumstances> {
        Arc::clone(&lock(&self.decided).circumstances)
    }

    /// Returns the denial with the circumstances that it is based on.
    pub(super) fn ended_by(&self) -> Option<(Decision, Arc<Circumstances>)> {
        let LastDecision { circumstances, denial } = &*lock(&self.decided);
        Some((denial.clone()?, Arc::clone(circumstances)))
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the value intact.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
