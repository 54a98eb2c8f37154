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
    journal::{Journal, Refused},
    orders::{FromFront, ToFront, Wanted, WorkspaceAnswer},
    workers::{Guest, NotBegun},
};
use crate::{config::serve::Agent, model::Escaped};

impl Broker {
    pub(super) fn hear_front(&mut self, message: FromFront) {
        match message {
            FromFront::Ask { number, token, peer, want } => {
                let peer: String = peer.chars().take(64).collect();
                // Without a reply yet, the request waits for a worker.
                if let Some(answer) = self.judge(number, &token, &peer, want) {
                    self.answer(number, answer, None);
                }
            }
            FromFront::IsReady { number } => {
                let verdict = self.is_ready();
                self.answer(number, WorkspaceAnswer::Ready(verdict), None);
            }
            FromFront::Throttled { peer, attempts } => {
                let peer: String = peer.chars().take(64).collect();
                self.journal.throttled(&peer, attempts);
            }
            FromFront::Ready { .. } | FromFront::Failed { .. } => {}
        }
    }

    /// Checks if every workspace can be served; returns the reason if not.
    fn is_ready(&mut self) -> Result<(), String> {
        if self.journal.is_broken() {
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
            let _told = self.start(&name);
        }
        let failing = self.plan.places.keys().filter(|name| self.failing.contains_key(*name));
        let failing = failing.chain(&self.plan.unserved).cloned().collect();
        self.readiness.judge(&self.plan, &self.doorway.control, failing)
    }

    /// Authenticates and authorizes a request.
    fn judge(
        &mut self,
        question: u64,
        token: &[u8; 32],
        peer: &str,
        want: Wanted,
    ) -> Option<WorkspaceAnswer> {
        if self.journal.is_broken() {
            return Some(WorkspaceAnswer::Unavailable);
        }
        let Some(agent) = self.agent(token).cloned() else {
            self.journal.refused(Refused::Login, "the token is no agent's", peer, BTreeMap::new());
            return Some(WorkspaceAnswer::Unauthorised);
        };
        let denied = |journal: &mut Journal, what: &str, named: Option<&str>| {
            let mut facts = facts([("agent", json!(agent.name.as_str()))]);
            let named = named.map(|name| Escaped(name).to_string());
            facts.extend(named.map(|name| ("workspace".to_owned(), json!(name))));
            journal.refused(Refused::Session, what, peer, facts);
            Some(WorkspaceAnswer::UnknownWorkspace)
        };
        match want {
            Wanted::Metrics if agent.metrics => Some(WorkspaceAnswer::Granted),
            Wanted::Metrics => {
                denied(&mut self.journal, "the agent may not read the service's numbers", None)
            }
            Wanted::Workspaces => {
                let names = self.plan.places.keys().filter(|name| agent.may_use(name));
                Some(WorkspaceAnswer::Workspaces(names.cloned().collect()))
            }
            Wanted::Session { workspace, door } => {
                if agent.may_use(&workspace) && self.plan.unserved.contains(&workspace) {
                    return Some(WorkspaceAnswer::Unavailable);
                }
                if !self.plan.places.contains_key(&workspace) || !agent.may_use(&workspace) {
                    let what = "there is no such workspace for this agent";
                    return denied(&mut self.journal, what, Some(&workspace));
                }
                let (agent, token) = (agent.name.as_str().to_owned(), agent.token);
                let peer = peer.to_owned();
                self.admit(&workspace, Guest { question, agent, token, door, peer, again: false })
            }
        }
    }

    /// Returns the agent of a token. Compares all tokens, in constant time.
    fn agent(&self, token: &[u8; 32]) -> Option<&Agent> {
        let mut found = None;
        for agent in &self.plan.service.agents {
            if bool::from(agent.token.ct_eq(token)) {
                found = Some(agent);
            }
        }
        found
    }

    /// Begins a session, or lets its request wait for the worker.
    pub(super) fn admit(&mut self, name: &str, guest: Guest) -> Option<WorkspaceAnswer> {
        if !self.workers.contains_key(name)
            && let Err(found) = self.start(name)
        {
            return Some(found);
        }
        let most = self.plan.service.limits.sessions;
        let Some(worker) = self.workers.get_mut(name) else {
            return Some(WorkspaceAnswer::Unavailable);
        };
        if worker.sessions_of(&guest.agent) >= most {
            return Some(self.busy(name, &guest, "the agent has as many sessions as it may have"));
        }
        if worker.is_full() {
            return Some(self.busy(name, &guest, "the worker has as many sessions as it can have"));
        }
        if !worker.is_ready() {
            let guest = worker.wait(guest).err()?;
            return Some(self.busy(name, &guest, "too many wait for the worker"));
        }
        self.begin(name, guest);
        None
    }

    /// Records the refusal of a session for lack of room.
    pub(super) fn busy(&mut self, name: &str, guest: &Guest, why: &str) -> WorkspaceAnswer {
        let facts = facts([("agent", json!(guest.agent)), ("workspace", json!(name))]);
        self.journal.refused(Refused::Session, why, &guest.peer, facts);
        WorkspaceAnswer::Busy
    }

    /// Passes a session to a worker that is ready.
    pub(super) fn begin(&mut self, name: &str, guest: Guest) {
        // The configuration may have changed during the wait.
        if !self.agent(&guest.token).is_some_and(|agent| guest.is(agent) && agent.may_use(name)) {
            return self.answer(guest.question, WorkspaceAnswer::Unavailable, None);
        }
        self.sessions += 1;
        let number = self.sessions;
        let Some(worker) = self.workers.get_mut(name) else { return };
        match worker.hand(number, guest) {
            Ok(()) => {}
            Err((guest, NotBegun::Busy)) => {
                let found = self.busy(name, &guest, "the worker has no room for another session");
                self.answer(guest.question, found, None);
            }
            Err((guest, NotBegun::Gone)) => {
                self.bury(name, "it hears nothing");
                self.again(name, guest);
            }
        }
    }

    /// Tries another worker for a request whose worker died, once.
    pub(super) fn again(&mut self, name: &str, guest: Guest) {
        let question = guest.question;
        if guest.again {
            return self.answer(question, WorkspaceAnswer::Unavailable, None);
        }
        if let Some(found) = self.admit(name, Guest { again: true, ..guest }) {
            self.answer(question, found, None);
        }
    }

    pub(super) fn answer(&self, number: u64, answer: WorkspaceAnswer, stream: Option<OwnedFd>) {
        let files: Vec<_> = stream.iter().map(|stream| stream.as_fd()).collect();
        // A front that does not read is noticed when its channel closes; the request
        // times out, and the client may try again.
        let _ = self.doorway.channel.send_now(&ToFront::Answer { number, answer }, &files);
    }
}
