//! The broker: one thread that knows the agents, starts and watches the other
//! processes, and hands out streams. It reads no byte of a client. This module
//! contains its loop; [`front_requests`](super::front_requests) handles messages of
//! the front, [`worker_pool`](super::worker_pool) those of workers.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::{
    listeners::{self, FrontListeners},
    messages::{FromFront, FromWorker, Span, ToFront},
    plan::Plan,
    readiness::Readiness,
    service_log::ServiceLog,
    telemetry::Exporter,
    workers::WorkerProcess,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        process::is_reload,
        ship::Shipping,
        stderr,
    },
    sandbox::ChannelError,
};

/// First and longest pause before a worker that failed to start is started again;
/// each pause is twice the last.
pub(super) const RETRY_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));
/// Timeout for everything to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(9_500);
/// Timeout for the export of spans at that time.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum time for the last copies of the service's log.
const MIN_COPY_TIMEOUT: Duration = Duration::from_millis(300);
/// Number of ends within a minute after which the front is not started again.
const MAX_FRONT_ENDS: usize = 5;

/// A running service.
pub(super) struct Broker {
    pub(super) plan: Plan,
    pub(super) service_log: ServiceLog,
    shipping: Shipping,
    pub(super) front_listeners: FrontListeners,
    pub(super) signals: SignalFd,
    pub(super) workers: BTreeMap<String, WorkerProcess>,
    /// Workers that stop, which may have successors already.
    pub(super) stopping: Vec<WorkerProcess>,
    pub(super) failing: HashMap<String, (Instant, Duration)>,
    pub(super) readiness: Readiness,
    pub(super) telemetry: Option<Exporter>,
    pub(super) sessions: u64,
    /// The times at which the front ended.
    front_ends: Vec<Instant>,
    /// Messages for which the front's channel had no room.
    pub(super) unsent: Vec<ToFront>,
}

/// The sender of a message.
enum MessageSender {
    Front,
    Worker(String),
    Stopping(u32),
}

impl Broker {
    pub(super) fn new(
        plan: Plan,
        service_log: ServiceLog,
        shipping: Shipping,
        front_listeners: FrontListeners,
        signals: SignalFd,
    ) -> Result<Self, Failure> {
        let telemetry = plan.service.telemetry.as_ref().map(Exporter::start).transpose()?;
        Ok(Self {
            plan,
            service_log,
            shipping,
            front_listeners,
            signals,
            workers: BTreeMap::new(),
            stopping: Vec::new(),
            failing: HashMap::new(),
            readiness: Readiness::start()?,
            telemetry,
            sessions: 0,
            front_ends: Vec::new(),
            unsent: Vec::new(),
        })
    }

    /// Serves until a signal requests the stop.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        stderr::drop_unread();
        loop {
            let (is_signalled, senders) = self.wait()?;
            if is_signalled && self.handle_signals()? {
                break;
            }
            for sender in senders {
                self.receive(sender)?;
            }
            self.handle_deadlines();
        }
        self.stop()
    }

    /// Waits for the first event; returns true for a signal, and the senders of
    /// messages.
    fn wait(&mut self) -> Result<(bool, Vec<MessageSender>), Failure> {
        let idle = self.plan.service.idle;
        let workers = self.workers.values().chain(&self.stopping);
        let exported = self.telemetry.as_ref().and_then(Exporter::next);
        let next = workers.filter_map(|worker| worker.next(idle));
        let next = next.chain(self.service_log.next()).chain(exported).min();
        let timeout = next.and_then(|next| {
            let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).ok()
        });
        let mut senders = vec![MessageSender::Front];
        let mut files: Vec<BorrowedFd<'_>> =
            vec![self.signals.as_fd(), self.front_listeners.channel.as_fd()];
        for (name, worker) in &self.workers {
            senders.push(MessageSender::Worker(name.clone()));
            files.push(worker.channel.as_fd());
        }
        for worker in &self.stopping {
            senders.push(MessageSender::Stopping(worker.id()));
            files.push(worker.channel.as_fd());
        }
        let mut waiting: Vec<_> =
            files.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, Vec::new())),
            Err(error) => return Err(error).or_fail("cannot wait"),
        }
        let mut ready = waiting.iter().map(|fd| !fd.revents().is_empty());
        let is_signalled = ready.next().unwrap_or(false);
        let senders = senders.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        Ok((is_signalled, senders.map(|(sender, _)| sender).collect()))
    }

    /// Handles signals; returns true for a stop.
    fn handle_signals(&mut self) -> Result<bool, Failure> {
        while let Some(signal) = self.signals.read_signal().or_fail("cannot read a signal")? {
            if !is_reload(&signal) {
                return Ok(true);
            }
            self.reload();
        }
        Ok(false)
    }

    /// Receives one message and handles it.
    fn receive(&mut self, sender: MessageSender) -> Result<(), Failure> {
        match sender {
            MessageSender::Front => match self.front_listeners.channel.receive::<FromFront>() {
                Ok((message, _)) => self.handle_front(message),
                Err(ChannelError::Format(error)) => {
                    // The front sends only messages of this program: it is
                    // compromised or broken.
                    self.replace_front(&format!("it sent an invalid message: {error}"))?;
                }
                Err(_) => self.replace_front("it ended")?,
            },
            MessageSender::Worker(name) => {
                let Some(worker) = self.workers.get(&name) else { return Ok(()) };
                match worker.channel.receive::<FromWorker>() {
                    Ok((message, _)) => self.handle_worker(&name, message),
                    Err(error) => self.handle_unexpected_end(&name, &error.to_string()),
                }
            }
            MessageSender::Stopping(id) => {
                let Some(at) = self.stopping.iter().position(|worker| worker.id() == id) else {
                    return Ok(());
                };
                let Some(worker) = self.stopping.get(at) else { return Ok(()) };
                let has_ended = match worker.channel.receive::<FromWorker>() {
                    Ok((FromWorker::Spans { spans, lost }, _)) => {
                        self.export(&worker.name, spans, lost);
                        false
                    }
                    // Further messages about its sessions are irrelevant.
                    Ok(_) => false,
                    Err(_) => true,
                };
                if has_ended {
                    self.handle_end(at);
                }
            }
        }
        Ok(())
    }

    /// Handles deadlines: idle and stuck workers, due records.
    fn handle_deadlines(&mut self) {
        let idle = self.plan.service.idle;
        let workers_that = |broker: &Self, is: &dyn Fn(&WorkerProcess) -> bool| -> Vec<String> {
            let found = broker.workers.iter().filter(|(_, worker)| is(worker));
            found.map(|(name, _)| name.clone()).collect()
        };
        for name in workers_that(self, &|worker| worker.is_idle(idle)) {
            self.stop_worker(&name, false);
        }
        let mut unoffered = Vec::new();
        for (name, worker) in &mut self.workers {
            if worker.catch_up() {
                unoffered.push(name.clone());
            }
        }
        for worker in &mut self.stopping {
            worker.catch_up();
        }
        for name in unoffered {
            self.offer_policy(&name);
        }
        self.instruct_front();
        for name in workers_that(self, &WorkerProcess::is_stuck) {
            self.handle_unexpected_end(&name, "it took too long");
        }
        while let Some(at) = self.stopping.iter().position(WorkerProcess::is_stuck) {
            self.handle_end(at);
        }
        self.service_log.handle_deadlines();
        if let Some(totals) = self.telemetry.as_mut().and_then(Exporter::totals) {
            // Totals: the next message replaces a lost one.
            let _ = self.front_listeners.channel.send_now(&ToFront::Exported(totals), &[]);
        }
    }

    pub(super) fn export(&self, workspace: &str, spans: Vec<Span>, lost: u64) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.take(workspace, spans, lost);
        }
    }

    /// Replaces a front that has ended or sent an invalid message.
    fn replace_front(&mut self, reason: &str) -> Result<(), Failure> {
        let status = self.front_listeners.end();
        errln!("portcullis: warning: the front ended ({status}: {reason}) and is started again");
        self.service_log.deny("front.stop", reason, facts([("status", json!(status))]));
        self.front_ends.retain(|at| at.elapsed() < Duration::from_secs(60));
        self.front_ends.push(Instant::now());
        if self.front_ends.len() >= MAX_FRONT_ENDS {
            let ends = self.front_ends.len();
            return Err(Failure::new(format_args!("the front ended {ends} times within a minute")));
        }
        // Requests of the old front have no receiver, and the new one counts its own
        // from the beginning: a reply must not go to the wrong request.
        for worker in self.workers.values_mut() {
            worker.waiting.clear();
            worker.unanswered().clear();
        }
        self.unsent.clear();
        self.front_listeners.replace(&self.plan)
    }

    /// Stops everything in order.
    fn stop(mut self) -> Result<(), Failure> {
        listeners::notify("STOPPING=1");
        let end = Instant::now() + STOP_TIMEOUT;
        // The front accepts no more connections, and closes those of clients with a
        // reason.
        let _ = self.front_listeners.channel.send_now(&ToFront::Stop, &[]);
        let names: Vec<_> = self.workers.keys().cloned().collect();
        for name in names {
            self.stop_worker(&name, true);
        }
        while !self.stopping.is_empty() && Instant::now() < end {
            let max_wait = end.saturating_duration_since(Instant::now());
            self.handle_final_messages();
            for sender in self.wait_within(max_wait.min(Duration::from_millis(50)))? {
                self.receive(sender)?;
            }
        }
        for at in (0..self.stopping.len()).rev() {
            self.handle_end(at);
        }
        while !self.front_listeners.has_ended() && Instant::now() < end {
            self.handle_final_messages();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.handle_final_messages();
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.finish(end.saturating_duration_since(Instant::now()).min(EXPORT_TIMEOUT));
        }
        let stopped = self.service_log.stop();
        let left = end.saturating_duration_since(Instant::now());
        self.shipping.finish_within(left.max(MIN_COPY_TIMEOUT));
        stopped
    }

    /// Handles the final messages of a front that stops; no session begins any more.
    fn handle_final_messages(&mut self) {
        for message in self.front_listeners.final_messages() {
            if let FromFront::Throttled { .. } = message {
                self.handle_front(message);
            }
        }
    }

    /// Waits as [`wait`](Self::wait), for stopping workers only.
    fn wait_within(&self, max_wait: Duration) -> Result<Vec<MessageSender>, Failure> {
        let limit = Timespec::try_from(max_wait).ok();
        let mut waiting: Vec<_> = self
            .stopping
            .iter()
            .map(|worker| PollFd::from_borrowed_fd(worker.channel.as_fd(), PollFlags::IN))
            .collect();
        match poll(&mut waiting, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).or_fail("cannot wait"),
        }
        let ready = waiting.iter().map(|fd| !fd.revents().is_empty());
        let senders = self.stopping.iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        Ok(senders.map(|(worker, _)| MessageSender::Stopping(worker.id())).collect())
    }
}

/// Returns `facts` with owned names.
pub(super) fn facts<const N: usize>(facts: [(&str, Value); N]) -> BTreeMap<String, Value> {
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
