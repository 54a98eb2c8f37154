//! Requests of the front: authentication, authorization, and sessions with workers. The
//! front reads the network, so its messages are treated as an attacker's.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, OwnedFd},
    time::Instant,
};

use serde_json::json;
use subtle::ConstantTimeEq as _;

use super::{
    broker::{Broker, facts},
    messages::{FromFront, FrontRequest, ToFront, WorkspaceAnswer},
    service_log::{Refused, ServiceLog},
    workers::{SessionFailure, SessionRequest},
};
use crate::{config::serve::AgentConfig, model::Escaped};

impl Broker {
    pub(super) fn handle_front(&mut self, message: FromFront) {
        match message {
            FromFront::Ask { number, token, peer, request } => {
                let peer: String = peer.chars().take(64).collect();
                // Without a reply yet, the request waits for a worker.
                if let Some(answer) = self.authorize(number, &token, &peer, request) {
                    self.answer(number, answer, None);
                }
            }
            FromFront::IsReady { number } => {
                let readiness = self.is_ready();
                self.answer(number, WorkspaceAnswer::Ready(readiness), None);
            }
            FromFront::Throttled { peer, attempts } => {
                let peer: String = peer.chars().take(64).collect();
                self.service_log.throttled(&peer, attempts);
            }
            FromFront::Ready { .. } | FromFront::Failed { .. } => {}
        }
    }

    /// Checks if every workspace can be served; returns the reason if not.
    fn is_ready(&mut self) -> Result<(), String> {
        if self.service_log.is_broken() {
            return Err("the service's log cannot be written".to_owned());
        }
        // No client uses a service that is not ready, so the probe triggers new attempts.
        let now = Instant::now();
        let due = self.failing.iter().filter(|(name, (until, _))| {
            *until <= now
                && !self.workers.contains_key(*name)
                && self.plan.places.contains_key(*name)
        });
        for name in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            // A failure is reported there.
            let _ = self.start(&name);
        }
        let failing = self.plan.places.keys().filter(|name| self.failing.contains_key(*name));
        let failing = failing.chain(&self.plan.unserved).cloned().collect();
        self.readiness.check(&self.plan, &self.front_listeners.control, failing)
    }

    /// Authenticates and authorizes a request.
    fn authorize(
        &mut self,
        request_number: u64,
        token: &[u8; 32],
        peer: &str,
        request: FrontRequest,
    ) -> Option<WorkspaceAnswer> {
        if self.service_log.is_broken() {
            return Some(WorkspaceAnswer::Unavailable);
        }
        let Some(agent) = self.agent(token).cloned() else {
            self.service_log.refused(
                Refused::Login,
                "the token is no agent's",
                peer,
                BTreeMap::new(),
            );
            return Some(WorkspaceAnswer::Unauthorised);
        };
        let denied = |service_log: &mut ServiceLog, what: &str, named: Option<&str>| {
            let mut facts = facts([("agent", json!(agent.name.as_str()))]);
            let named = named.map(|name| Escaped(name).to_string());
            facts.extend(named.map(|name| ("workspace".to_owned(), json!(name))));
            service_log.refused(Refused::Session, what, peer, facts);
            Some(WorkspaceAnswer::UnknownWorkspace)
        };
        match request {
            FrontRequest::Metrics if agent.metrics => Some(WorkspaceAnswer::Granted),
            FrontRequest::Metrics => {
                denied(&mut self.service_log, "the agent may not read the service's numbers", None)
            }
            FrontRequest::Workspaces => {
                let names = self.plan.places.keys().filter(|name| agent.may_use(name));
                Some(WorkspaceAnswer::Workspaces(names.cloned().collect()))
            }
            FrontRequest::Session { workspace, transport } => {
                if agent.may_use(&workspace) && self.plan.unserved.contains(&workspace) {
                    return Some(WorkspaceAnswer::Unavailable);
                }
                if !self.plan.places.contains_key(&workspace) || !agent.may_use(&workspace) {
                    let what = "there is no such workspace for this agent";
                    return denied(&mut self.service_log, what, Some(&workspace));
                }
                let (agent, token) = (agent.name.as_str().to_owned(), agent.token);
                let peer = peer.to_owned();
                self.admit(
                    &workspace,
                    SessionRequest {
                        request_number,
                        agent,
                        token,
                        transport,
                        peer,
                        is_retry: false,
                    },
                )
            }
        }
    }

    /// Returns the agent of a token. Compares all tokens, in constant time.
    fn agent(&self, token: &[u8; 32]) -> Option<&AgentConfig> {
        let mut found = None;
        for agent in &self.plan.service.agents {
            if bool::from(agent.token.ct_eq(token)) {
                found = Some(agent);
            }
        }
        found
    }

    /// Begins a session, or lets its request wait for the worker.
    pub(super) fn admit(
        &mut self,
        name: &str,
        session_request: SessionRequest,
    ) -> Option<WorkspaceAnswer> {
        if !self.workers.contains_key(name)
            && let Err(answer) = self.start(name)
        {
            return Some(answer);
        }
        let max_sessions = self.plan.service.limits.sessions;
        let Some(worker) = self.workers.get_mut(name) else {
            return Some(WorkspaceAnswer::Unavailable);
        };
        if worker.sessions_of(&session_request.agent) >= max_sessions {
            return Some(self.busy(
                name,
                &session_request,
                "the agent has as many sessions as it may have",
            ));
        }
        if worker.is_full() {
            return Some(self.busy(
                name,
                &session_request,
                "the worker has as many sessions as it can have",
            ));
        }
        if !worker.is_ready() {
            let session_request = worker.wait(session_request).err()?;
            return Some(self.busy(name, &session_request, "too many wait for the worker"));
        }
        self.begin(name, session_request);
        None
    }

    /// Records the refusal of a session for lack of room.
    pub(super) fn busy(
        &mut self,
        name: &str,
        session_request: &SessionRequest,
        reason: &str,
    ) -> WorkspaceAnswer {
        let facts = facts([("agent", json!(session_request.agent)), ("workspace", json!(name))]);
        self.service_log.refused(Refused::Session, reason, &session_request.peer, facts);
        WorkspaceAnswer::Busy
    }

    /// Passes a session to a worker that is ready.
    pub(super) fn begin(&mut self, name: &str, session_request: SessionRequest) {
        // The configuration may have changed during the wait.
        if !self
            .agent(&session_request.token)
            .is_some_and(|agent| session_request.is(agent) && agent.may_use(name))
        {
            return self.answer(session_request.request_number, WorkspaceAnswer::Unavailable, None);
        }
        self.sessions += 1;
        let number = self.sessions;
        let Some(worker) = self.workers.get_mut(name) else { return };
        match worker.pass_session(number, session_request) {
            Ok(()) => {}
            Err((session_request, SessionFailure::Busy)) => {
                let found =
                    self.busy(name, &session_request, "the worker has no room for another session");
                self.answer(session_request.request_number, found, None);
            }
            Err((session_request, SessionFailure::Gone)) => {
                self.handle_unexpected_end(name, "it reads no messages");
                self.retry(name, session_request);
            }
        }
    }

    /// Retries a request whose worker ended, once, with another worker.
    pub(super) fn retry(&mut self, name: &str, session_request: SessionRequest) {
        let request_number = session_request.request_number;
        if session_request.is_retry {
            return self.answer(request_number, WorkspaceAnswer::Unavailable, None);
        }
        if let Some(found) = self.admit(name, SessionRequest { is_retry: true, ..session_request })
        {
            self.answer(request_number, found, None);
        }
    }

    pub(super) fn answer(&self, number: u64, answer: WorkspaceAnswer, stream: Option<OwnedFd>) {
        let files: Vec<_> = stream.iter().map(|stream| stream.as_fd()).collect();
        // A front that does not read is noticed when its channel closes; the request
        // times out, and the client may try again.
        let _ = self.front_listeners.channel.send_now(&ToFront::Answer { number, answer }, &files);
    }
}
