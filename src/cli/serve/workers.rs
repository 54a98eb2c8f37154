//! A worker as the broker sees it: a process that starts, serves and stops.

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use rustix::process::{Resource, getrlimit};

use super::{
    messages::{FromWorker, StreamProtocol, ToWorker, WorkerStart},
    plan::{Plan, ServedWorkspace},
    worker,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        launch::Launch,
        notifier,
        policy_transfer::{SharedPolicy, packed},
        preset_hosts::PresetHosts,
        process::Child,
        ship::{self, Shipping},
        signer::{self, Program},
    },
    config::{audit::Audit, serve::AgentConfig},
    sandbox::{Channel, ChannelError, IsolationReport, UnreachablePaths, stream_pair},
};

/// Timeout for a worker to start: it may have to recover unfinished changes.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a worker to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(9);
/// Timeout for a worker to accept orders.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(9);
/// Interval of repeated orders.
const REPEAT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum of sessions that wait for a worker to start.
const MAX_WAITING: usize = 512;
/// Maximum of open files that are taken into account.
const MAX_FILES: u64 = 65_536;
/// Open files that a worker needs for requests in progress and watches.
const FILES_OF_WORKER: u64 = 1024;
/// Open files of a session: six over MCP, fewer over the `files` channel.
const FILES_OF_SESSION: u64 = 8;
/// Minimum of sessions, whatever the limit of open files.
const MIN_SESSIONS: usize = 16;

/// A request for a session: the number of the front's request, and its sender.
#[derive(Debug)]
pub(super) struct SessionRequest {
    pub(super) request_number: u64,
    pub(super) agent: String,
    /// The hash of the token that the request carries.
    pub(super) token: [u8; 32],
    pub(super) transport: StreamProtocol,
    pub(super) peer: String,
    /// True if a worker has ended before it replied.
    pub(super) is_retry: bool,
}

impl SessionRequest {
    /// Returns true if it is from this agent.
    pub(super) fn is(&self, agent: &AgentConfig) -> bool {
        self.agent == agent.name.as_str()
    }
}

/// A worker's process.
pub(super) struct WorkerProcess {
    pub(super) name: String,
    pub(super) channel: Channel,
    /// The file through which it gets policy reloads.
    pub(super) shared: SharedPolicy,
    child: Child,
    /// It ends with the worker.
    _notifier: Option<Child>,
    since: Instant,
    ready: bool,
    pub(super) waiting: Vec<SessionRequest>,
    /// Open sessions, with their agents.
    sessions: HashMap<u64, String>,
    /// Sessions passed to it that have not begun, with the front's end of the stream.
    handed: HashMap<u64, (SessionRequest, OwnedFd)>,
    /// The maximum of sessions, which leaves open files for their requests.
    most: usize,
    idle_since: Instant,
    stopping: Option<Instant>,
    shipping: Option<Shipping>,
    /// Orders for which its channel has no room yet.
    owed: PendingOrders,
}

/// Orders for which a worker's channel had no room. They are repeated, because a session that
/// should end must not continue.
#[derive(Debug, Default)]
struct PendingOrders {
    /// Agents whose sessions must end.
    close: BTreeSet<String>,
    /// True if its policy has changed.
    policy: bool,
    /// Set if it must stop; true if the whole service does.
    stop: Option<bool>,
    since: Option<Instant>,
}

impl PendingOrders {
    /// Sends as many orders as there is room for.
    fn pay(&mut self, channel: &Channel) {
        // A worker that has ended has no sessions.
        self.close.retain(|agent| {
            let order = ToWorker::Close { agent: agent.clone() };
            matches!(channel.send_now(&order, &[]), Err(ChannelError::Full))
        });
        self.stop = self.stop.filter(|service| {
            let order = ToWorker::Stop { service: *service };
            matches!(channel.send_now(&order, &[]), Err(ChannelError::Full))
        });
        self.note();
    }

    /// Notes the time since when there are orders.
    fn note(&mut self) {
        let any = self.policy || self.stop.is_some() || !self.close.is_empty();
        self.since = any.then(|| self.since.unwrap_or_else(Instant::now));
    }
}

/// The reason why a session could not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFailure {
    /// The maximum is reached.
    Busy,
    /// The worker has ended.
    Gone,
}

impl WorkerProcess {
    /// Starts the worker of a workspace.
    pub(super) fn start(
        plan: &Plan,
        workspace: &ServedWorkspace,
        unreachable: UnreachablePaths,
    ) -> Result<Self, Failure> {
        let program = plan.audit.signer_key().map(|public| {
            let without = plan.operator.key_variables().map(str::to_owned).collect();
            Program::new(&plan.audit, public, without)
        });
        let program = program.transpose()?;
        plan.check_programs()?;
        let (child, channel) = worker::spawn()?;
        let (mut order, policy) = order(plan, workspace, unreachable, false)?;
        let (notifier, notifying) = notifier::start(&plan.operator)?.unzip();
        order.launch.notifies = notifying.is_some();
        let (asked, asking) = Channel::pair().or_fail("cannot start a worker")?;
        let mut descriptors = vec![policy.as_fd()];
        descriptors.extend(program.as_ref().map(|_| asking.as_fd()));
        descriptors.extend(notifying.as_ref().map(OwnedFd::as_fd));
        let shared = SharedPolicy::create().or_fail("cannot start a worker")?;
        descriptors.push(shared.as_fd());
        channel
            .send(&ToWorker::Start(Box::new(order)), &descriptors)
            .or_fail("cannot start a worker")?;
        if let Some(program) = program {
            signer::serve(asked, program)?;
        }
        let now = Instant::now();
        Ok(Self {
            name: workspace.name.clone(),
            channel,
            shared,
            child,
            _notifier: notifier,
            since: now,
            ready: false,
            waiting: Vec::new(),
            sessions: HashMap::new(),
            handed: HashMap::new(),
            most: most_sessions(),
            idle_since: now,
            stopping: None,
            shipping: None,
            owed: PendingOrders::default(),
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it accepts sessions.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Notes that it is ready, and starts to copy its log.
    pub(super) fn set_ready(
        &mut self,
        plan: &Plan,
        workspace: &ServedWorkspace,
    ) -> Result<(), Failure> {
        self.ready = true;
        self.idle_since = Instant::now();
        let targets = ship::beneath(&plan.audit.ship, &workspace.name);
        self.shipping = Some(Shipping::start(&workspace.state, &targets)?);
        Ok(())
    }

    /// Lets a request wait for it, or returns it if too many wait.
    pub(super) fn wait(&mut self, session_request: SessionRequest) -> Result<(), SessionRequest> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(session_request);
        }
        self.waiting.push(session_request);
        Ok(())
    }

    /// Returns the number of an agent's sessions, those that wait included.
    pub(super) fn sessions_of(&self, agent: &str) -> usize {
        self.sessions.values().filter(|name| *name == agent).count()
            + self.waiting.iter().filter(|session_request| session_request.agent == agent).count()
    }

    /// Returns true if it has the maximum of sessions.
    pub(super) fn is_full(&self) -> bool {
        self.sessions.len() + self.waiting.len() >= self.most
    }

    /// Passes a session to it; it reports when that has begun.
    pub(super) fn pass_session(
        &mut self,
        number: u64,
        session_request: SessionRequest,
    ) -> Result<(), (SessionRequest, SessionFailure)> {
        let Ok((ours, theirs)) = stream_pair() else {
            return Err((session_request, SessionFailure::Busy));
        };
        let order = ToWorker::Connection {
            number,
            agent: session_request.agent.clone(),
            transport: session_request.transport,
            peer: session_request.peer.clone(),
        };
        match self.channel.send_now(&order, &[theirs.as_fd()]) {
            Ok(()) => {}
            Err(ChannelError::Full) => return Err((session_request, SessionFailure::Busy)),
            Err(_) => return Err((session_request, SessionFailure::Gone)),
        }
        self.sessions.insert(number, session_request.agent.clone());
        self.handed.insert(number, (session_request, ours));
        Ok(())
    }

    /// Handles the beginning or failure of a session: returns its request, and the front's end
    /// of the stream.
    pub(super) fn begun(&mut self, number: u64) -> Option<(SessionRequest, OwnedFd)> {
        self.handed.remove(&number)
    }

    /// Returns the requests that an ended worker left without a reply.
    pub(super) fn unanswered(&mut self) -> Vec<SessionRequest> {
        self.handed.drain().map(|(_, (session_request, _))| session_request).collect()
    }

    /// Handles the end of a session.
    pub(super) fn ended(&mut self, number: u64) {
        self.sessions.remove(&number);
        self.idle_since = Instant::now();
    }

    /// Ends the sessions of agents for which `may` returns false.
    pub(super) fn close_for(&mut self, may: impl Fn(&str) -> bool) {
        self.owed.close.extend(self.sessions.values().filter(|name| !may(name)).cloned());
        self.owed.pay(&self.channel);
    }

    /// Sends pending orders; returns true if its policy must be offered again.
    pub(super) fn catch_up(&mut self) -> bool {
        self.owed.pay(&self.channel);
        self.owed.policy
    }

    /// Notes if its policy must be offered again.
    pub(super) fn note_pending_policy(&mut self, owed: bool) {
        self.owed.policy = owed;
        self.owed.note();
    }

    /// Returns true if it has been unused for `time`.
    pub(super) fn is_idle(&self, time: Duration) -> bool {
        self.ready
            && self.sessions.is_empty()
            && self.waiting.is_empty()
            && self.idle_since.elapsed() >= time
    }

    /// Orders it to stop, because the whole `service` stops or because its workspace is not
    /// served any more or has changed.
    pub(super) fn stop(&mut self, service: bool) {
        if self.stopping.is_none() {
            self.stopping = Some(Instant::now());
            self.owed.stop = Some(service);
            self.owed.pay(&self.channel);
        }
    }

    /// Returns the time of the next check, if no event comes before.
    pub(super) fn next(&self, idle: Duration) -> Option<Instant> {
        match self.stopping {
            Some(_) if self.owed.stop.is_some() => Some(Instant::now() + REPEAT_INTERVAL),
            Some(since) => Some(since + STOP_TIMEOUT),
            None if self.owed.since.is_some() => Some(Instant::now() + REPEAT_INTERVAL),
            None if !self.ready => Some(self.since + START_TIMEOUT),
            None if self.sessions.is_empty() => Some(self.idle_since + idle),
            None => None,
        }
    }

    /// Returns true if it exceeds a timeout: to start, to accept orders or to stop.
    pub(super) fn is_stuck(&self) -> bool {
        match self.stopping {
            Some(since) => since.elapsed() >= STOP_TIMEOUT,
            None if !self.ready => self.since.elapsed() >= START_TIMEOUT,
            None => self.owed.since.is_some_and(|since| since.elapsed() >= ACCEPT_TIMEOUT),
        }
    }

    /// Ends the worker, whose channel is closed or which is stuck. Returns its exit status.
    pub(super) fn end(mut self) -> String {
        let deadline = Instant::now() + Duration::from_secs(1);
        let status = loop {
            match self.child.ended() {
                Some(status) => break Some(status),
                // It announced its end, or must end.
                None if Instant::now() >= deadline || self.is_stuck() => break self.child.kill(),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        if let Some(shipping) = self.shipping.take() {
            // Copies of a log are not waited for.
            let _ = std::thread::Builder::new().spawn(|| shipping.finish());
        }
        status.map_or_else(|| "unknown".to_owned(), |status| status.to_string())
    }
}

/// Proves, with a worker of `place` that stops at once, that workers cannot reach the paths in
/// `unreachable`.
pub(super) fn trial(
    plan: &Plan,
    workspace: &ServedWorkspace,
    unreachable: UnreachablePaths,
) -> Result<IsolationReport, Failure> {
    let (_child, channel) = worker::spawn()?;
    let (order, policy) = order(plan, workspace, unreachable, true)?;
    channel
        .send(&ToWorker::Start(Box::new(order)), &[policy.as_fd()])
        .or_fail("cannot start a worker")?;
    match channel.receive_within::<FromWorker>(START_TIMEOUT).or_fail("the trial worker ended")?.0 {
        FromWorker::Ready { apart } => Ok(apart),
        FromWorker::Failed { reason } => Err(Failure::new(format_args!(
            "the worker of `{}` cannot start, or is not isolated: {reason}",
            workspace.name
        ))),
        FromWorker::Begun { .. }
        | FromWorker::NotBegun { .. }
        | FromWorker::Ended { .. }
        | FromWorker::Numbers(_)
        | FromWorker::Spans { .. } => {
            Err(Failure::new("the trial worker sent an unexpected message"))
        }
    }
}

/// Returns the maximum of sessions by open files: a worker has the same limit as this process.
fn most_sessions() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(MAX_FILES);
    let most = files.saturating_sub(FILES_OF_WORKER) / FILES_OF_SESSION;
    usize::try_from(most).unwrap_or(usize::MAX).max(MIN_SESSIONS)
}

/// Returns a worker's first order, and the texts of its policy.
fn order(
    plan: &Plan,
    workspace: &ServedWorkspace,
    unreachable: UnreachablePaths,
    trial: bool,
) -> Result<(WorkerStart, OwnedFd), Failure> {
    let policy = plan.policies.get(&workspace.policy);
    let policy = policy.ok_or_else(|| Failure::new("its policy is not known"))?;
    let texts = packed(&policy.texts).or_fail("cannot hand a policy over")?;
    let limits = &plan.service.limits;
    let order = WorkerStart {
        trial,
        name: workspace.name.clone(),
        launch: Launch {
            workspace: workspace.root.clone(),
            state: workspace.state.clone(),
            adopt: None,
            config: plan.config.clone(),
            signatures: plan.operator.require_signature,
            signed_by: policy.signed_by.as_ref().map(ToString::to_string),
            // The broker copies logs, so that no session waits for a target that hangs.
            audit: Audit { ship: Vec::new(), ..plan.audit.without_credentials() },
            notifies: false,
            hosts: PresetHosts::default(),
            log: plan.log.clone(),
        },
        alias: workspace.alias.clone(),
        reference: workspace.reference,
        elicit: workspace.elicit,
        unreachable,
        requests_per_second: limits.requests_per_second,
        bytes_per_second: limits.bytes_per_second,
        concurrent_requests: limits.concurrent_requests,
        watches: limits.watches,
        spans: plan.service.telemetry.as_ref().map(|telemetry| telemetry.sample_percent),
        message_bytes: limits.message_bytes,
        message_memory: limits.message_memory,
    };
    Ok((order, texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_end_sessions_is_kept_until_there_is_room_for_it() {
        let (ours, theirs) = Channel::pair().unwrap();
        while ours.send_now(&ToWorker::Policy { hash: [0; 32] }, &[]).is_ok() {}
        let mut owed = PendingOrders { close: ["a".to_owned()].into(), ..PendingOrders::default() };
        owed.pay(&ours);
        let since = owed.since.unwrap();
        owed.pay(&ours);
        assert_eq!((owed.close.len(), owed.since), (1, Some(since)));
        for _ in 0..4 {
            theirs.receive::<ToWorker>().unwrap();
        }
        owed.pay(&ours);
        assert!(owed.close.is_empty() && owed.since.is_none());
        while ours.send_now(&ToWorker::Stop { service: true }, &[]).is_err() {
            theirs.receive::<ToWorker>().unwrap();
        }
        let mut heard = std::iter::from_fn(|| Some(theirs.receive::<ToWorker>().unwrap().0));
        let close = heard.find(|order| !matches!(order, ToWorker::Policy { .. })).unwrap();
        assert!(matches!(close, ToWorker::Close { agent } if agent == "a"));
    }
}
