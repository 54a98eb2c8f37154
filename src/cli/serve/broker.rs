//! The broker: one thread that knows the agents, starts and watches the other
//! processes, and hands out streams. It reads no byte of the network's.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use super::{
    door::{self, Doorway},
    journal::Journal,
    orders::{Found, FromFront, FromWorker, Span, ToFront, Wanted},
    plan::Plan,
    readiness::Readiness,
    telemetry::Exporter,
    workers::{Guest, NotBegun, Worker},
};
use crate::{
    cli::{
        failure::{Context as _, Failure},
        ship::Shipping,
        supervise::is_reload,
    },
    config::serve::Agent,
    model::Escaped,
    sandbox::ChannelError,
};

/// How long a worker that did not start is left alone: doubled each time, up
/// to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long everything may take to stop.
const STOP: Duration = Duration::from_millis(9_500);
/// How long spans may take to be exported then.
const EXPORT: Duration = Duration::from_secs(3);
/// How long the last copies of the service's log may take at least.
const COPY: Duration = Duration::from_millis(300);
/// A front that dies so often within a minute is not started again.
const FRONT_DEATHS: usize = 5;

/// A service that runs.
pub(super) struct Broker {
    pub(super) plan: Plan,
    pub(super) journal: Journal,
    shipping: Shipping,
    pub(super) doorway: Doorway,
    pub(super) signals: SignalFd,
    pub(super) workers: BTreeMap<String, Worker>,
    /// Workers that stop, and whose place may have another already.
    pub(super) leaving: Vec<Worker>,
    failing: HashMap<String, (Instant, Duration)>,
    pub(super) readiness: Readiness,
    pub(super) telemetry: Option<Exporter>,
    sessions: u64,
    deaths: Vec<Instant>,
}

/// Who said something.
enum Who {
    Front,
    Worker(String),
    Leaving(u32),
}

impl Broker {
    pub(super) fn new(
        plan: Plan,
        journal: Journal,
        shipping: Shipping,
        doorway: Doorway,
        signals: SignalFd,
    ) -> Result<Self, Failure> {
        let telemetry = plan.service.telemetry.as_ref().map(Exporter::start).transpose()?;
        Ok(Self {
            plan,
            journal,
            shipping,
            doorway,
            signals,
            workers: BTreeMap::new(),
            leaving: Vec::new(),
            failing: HashMap::new(),
            readiness: Readiness::start()?,
            telemetry,
            sessions: 0,
            deaths: Vec::new(),
        })
    }

    /// Serves until a signal says to stop.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        loop {
            let (signalled, heard) = self.wait()?;
            if signalled && self.follow_signals()? {
                break;
            }
            for who in heard {
                self.hear(who)?;
            }
            self.tend();
        }
        self.stop()
    }

    /// Waits for whatever comes first.
    fn wait(&mut self) -> Result<(bool, Vec<Who>), Failure> {
        let idle = self.plan.service.idle;
        let workers = self.workers.values().chain(&self.leaving);
        let exported = self.telemetry.as_ref().and_then(Exporter::next);
        let next = workers.filter_map(|worker| worker.next(idle));
        let next = next.chain(self.journal.next()).chain(exported).min();
        let timeout = next.map(|next| {
            let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut names = vec![Who::Front];
        let mut files: Vec<BorrowedFd<'_>> =
            vec![self.signals.as_fd(), self.doorway.channel.as_fd()];
        for (name, worker) in &self.workers {
            names.push(Who::Worker(name.clone()));
            files.push(worker.channel.as_fd());
        }
        for worker in &self.leaving {
            names.push(Who::Leaving(worker.id()));
            files.push(worker.channel.as_fd());
        }
        let mut waiting: Vec<_> =
            files.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, Vec::new())),
            Err(error) => return Err(error).or_fail("cannot wait"),
        }
        let mut said = waiting.iter().map(|fd| !fd.revents().is_empty());
        let signalled = said.next().unwrap_or(false);
        let heard = names.into_iter().zip(said).filter(|(_, said)| *said).map(|(who, _)| who);
        Ok((signalled, heard.collect()))
    }

    /// Whether it is time to stop.
    fn follow_signals(&mut self) -> Result<bool, Failure> {
        while let Some(signal) = self.signals.read_signal().or_fail("cannot read a signal")? {
            if !is_reload(&signal) {
                return Ok(true);
            }
            self.reload();
        }
        Ok(false)
    }

    fn hear(&mut self, who: Who) -> Result<(), Failure> {
        match who {
            Who::Front => match self.doorway.channel.receive::<FromFront>() {
                Ok((message, _)) => self.hear_front(message),
                Err(ChannelError::Format(error)) => {
                    // It speaks only what we made it speak: it is not itself.
                    self.revive(&format!("it said what cannot be understood: {error}"))?;
                }
                Err(_) => self.revive("it ended")?,
            },
            Who::Worker(name) => {
                let Some(worker) = self.workers.get(&name) else { return Ok(()) };
                match worker.channel.receive::<FromWorker>() {
                    Ok((message, _)) => self.hear_worker(&name, message),
                    Err(error) => self.bury(&name, &error.to_string()),
                }
            }
            Who::Leaving(id) => {
                let Some(at) = self.leaving.iter().position(|worker| worker.id() == id) else {
                    return Ok(());
                };
                let Some(worker) = self.leaving.get(at) else { return Ok(()) };
                let gone = match worker.channel.receive::<FromWorker>() {
                    Ok((FromWorker::Spans { spans, lost }, _)) => {
                        self.export(&worker.name, spans, lost);
                        false
                    }
                    // What it still says of its sessions matters to nobody.
                    Ok(_) => false,
                    Err(_) => true,
                };
                if gone {
                    self.see_off(at);
                }
            }
        }
        Ok(())
    }

    fn hear_front(&mut self, message: FromFront) {
        match message {
            FromFront::Ask { number, token, peer, want } => {
                let peer: String = peer.chars().take(64).collect();
                // Where there is no answer yet, it waits for a worker.
                if let Some(answer) = self.judge(number, &token, &peer, want) {
                    self.answer(number, answer, None);
                }
            }
            FromFront::IsReady { number } => {
                let verdict = self.is_ready();
                self.answer(number, Found::Ready(verdict), None);
            }
            FromFront::Throttled { peer, attempts } => {
                let peer: String = peer.chars().take(64).collect();
                self.journal.throttled(&peer, attempts);
            }
            FromFront::Ready { .. } | FromFront::Failed { .. } => {}
        }
    }

    /// Whether everything can be served, or why not.
    fn is_ready(&mut self) -> Result<(), String> {
        if self.journal.is_broken() {
            return Err("the service's log cannot be written".to_owned());
        }
        let now = Instant::now();
        let fails = |name: &String| self.failing.get(name).is_some_and(|(until, _)| now < *until);
        let failing = self.plan.places.keys().filter(|name| fails(name)).cloned().collect();
        self.readiness.judge(&self.plan.places, &self.doorway.control, failing)
    }

    /// Who it is, and whether that one may.
    fn judge(
        &mut self,
        question: u64,
        token: &[u8; 32],
        peer: &str,
        want: Wanted,
    ) -> Option<Found> {
        if self.journal.is_broken() {
            return Some(Found::Unavailable);
        }
        let Some(agent) = self.agent(token).cloned() else {
            self.journal.refused("login", "the token is no agent's", peer, BTreeMap::new());
            return Some(Found::Unauthorised);
        };
        let denied = |journal: &mut Journal, what: &str, named: Option<&str>| {
            let mut facts = BTreeMap::from([("agent".to_owned(), json!(agent.name.as_str()))]);
            let named = named.map(|name| Escaped(name).to_string());
            facts.extend(named.map(|name| ("workspace".to_owned(), json!(name))));
            journal.refused("session", what, peer, facts);
            Some(Found::UnknownWorkspace)
        };
        match want {
            Wanted::Metrics if agent.metrics => Some(Found::Granted),
            Wanted::Metrics => {
                denied(&mut self.journal, "the agent may not read the service's numbers", None)
            }
            Wanted::Workspaces => {
                let names = self.plan.places.keys().filter(|name| agent.may_use(name));
                Some(Found::Workspaces(names.cloned().collect()))
            }
            Wanted::Session { workspace, door } => {
                if !self.plan.places.contains_key(&workspace) || !agent.may_use(&workspace) {
                    let what = "there is no such workspace for this agent";
                    return denied(&mut self.journal, what, Some(&workspace));
                }
                let agent = agent.name.as_str().to_owned();
                let peer = peer.to_owned();
                self.admit(&workspace, Guest { question, agent, door, peer, again: false })
            }
        }
    }

    /// The agent that a token belongs to. Compares all, in the same time.
    fn agent(&self, token: &[u8; 32]) -> Option<&Agent> {
        let mut found = None;
        for agent in &self.plan.service.agents {
            if bool::from(agent.token.ct_eq(token)) {
                found = Some(agent);
            }
        }
        found
    }

    /// Begins a session, or has its guest wait for the worker.
    fn admit(&mut self, name: &str, guest: Guest) -> Option<Found> {
        if !self.workers.contains_key(name)
            && let Err(found) = self.start(name)
        {
            return Some(found);
        }
        let most = self.plan.service.limits.sessions;
        let Some(worker) = self.workers.get_mut(name) else { return Some(Found::Unavailable) };
        if worker.sessions_of(&guest.agent) >= most {
            return Some(Found::Busy);
        }
        if !worker.is_ready() {
            return match worker.wait(guest) {
                Ok(()) => None,
                Err(_) => Some(Found::Busy),
            };
        }
        self.begin(name, guest);
        None
    }

    /// Hands a session to a worker that is ready.
    fn begin(&mut self, name: &str, guest: Guest) {
        self.sessions += 1;
        let number = self.sessions;
        let Some(worker) = self.workers.get_mut(name) else { return };
        match worker.hand(number, guest) {
            Ok(()) => {}
            Err((guest, NotBegun::Busy)) => self.answer(guest.question, Found::Busy, None),
            Err((guest, NotBegun::Gone)) => {
                self.bury(name, "it hears nothing");
                self.again(name, guest);
            }
        }
    }

    /// Has a guest whose worker died on it try another, once.
    fn again(&mut self, name: &str, guest: Guest) {
        let question = guest.question;
        if guest.again {
            return self.answer(question, Found::Unavailable, None);
        }
        if let Some(found) = self.admit(name, Guest { again: true, ..guest }) {
            self.answer(question, found, None);
        }
    }

    fn answer(&self, number: u64, answer: Found, stream: Option<OwnedFd>) {
        let files: Vec<_> = stream.iter().map(|stream| stream.as_fd()).collect();
        // A front that does not listen is seen when its channel closes; whoever
        // asked hears nothing in time and may ask again.
        let _ = self.doorway.channel.send_now(&ToFront::Answer { number, answer }, &files);
    }

    fn start(&mut self, name: &str) -> Result<(), Found> {
        if self.failing.get(name).is_some_and(|(until, _)| Instant::now() < *until) {
            return Err(Found::Unavailable);
        }
        let Some(place) = self.plan.places.get(name) else { return Err(Found::UnknownWorkspace) };
        let outside = self.plan.outside(Some(place), &self.doorway.control);
        match Worker::start(&self.plan, place, outside) {
            Ok(worker) => {
                self.workers.insert(name.to_owned(), worker);
                Ok(())
            }
            Err(failure) => {
                self.failed(name, failure.message());
                Err(Found::Unavailable)
            }
        }
    }

    fn hear_worker(&mut self, name: &str, message: FromWorker) {
        match message {
            FromWorker::Ready { apart } => {
                self.failing.remove(name);
                let Some(worker) = self.workers.get_mut(name) else { return };
                let Some(place) = self.plan.places.get(name) else { return };
                if let Err(failure) = worker.set_ready(&self.plan, place) {
                    eprintln!("portcullis: warning: {}", failure.message());
                }
                let facts = facts([
                    ("workspace", json!(name)),
                    ("process", json!(worker.id())),
                    ("outOfReach", json!(apart.tried)),
                ]);
                let waiting = std::mem::take(&mut worker.waiting);
                self.journal.note("worker.start", facts);
                for guest in waiting {
                    // One that died meanwhile was buried with the rest.
                    if self.workers.contains_key(name) {
                        self.begin(name, guest);
                    } else {
                        self.answer(guest.question, Found::Unavailable, None);
                    }
                }
            }
            FromWorker::Failed { why } => {
                self.failed(name, &why);
                let Some(worker) = self.workers.remove(name) else { return };
                self.turn_away(&worker.waiting);
                worker.end();
            }
            FromWorker::Numbers(numbers) => {
                // What a front has no room for now comes again in a second.
                let workspace = name.to_owned();
                let _ =
                    self.doorway.channel.send_now(&ToFront::Numbers { workspace, numbers }, &[]);
            }
            FromWorker::Spans { spans, lost } => self.export(name, spans, lost),
            FromWorker::Begun { number } => self.begun(name, number, true),
            FromWorker::NotBegun { number } => {
                self.begun(name, number, false);
                self.ended(name, number);
            }
            FromWorker::Ended { number } => {
                // It may be heard of before the beginning.
                self.begun(name, number, true);
                self.ended(name, number);
            }
        }
    }

    /// Tells who asked for a session that it has begun, or that it has not.
    fn begun(&mut self, name: &str, number: u64, begun: bool) {
        let guest = self.workers.get_mut(name).and_then(|worker| worker.begun(number));
        match guest {
            Some((guest, stream)) if begun => {
                self.answer(guest.question, Found::Stream, Some(stream));
            }
            Some((guest, _)) => self.answer(guest.question, Found::Busy, None),
            None => {}
        }
    }

    fn ended(&mut self, name: &str, number: u64) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.ended(number);
        }
    }

    /// A worker did not start: others are told at once for a while.
    fn failed(&mut self, name: &str, why: &str) {
        eprintln!("portcullis: error: the workspace `{name}` cannot be served: {}", Escaped(why));
        self.journal.deny("worker.start", why, facts([("workspace", json!(name))]));
        let (first, most) = BACK_OFF;
        let pause = self.failing.get(name).map_or(first, |(_, pause)| (*pause * 2).min(most));
        self.failing.insert(name.to_owned(), (Instant::now() + pause, pause));
    }

    fn turn_away(&self, guests: &[Guest]) {
        for guest in guests {
            self.answer(guest.question, Found::Unavailable, None);
        }
    }

    /// Tells the front that a worker is gone.
    fn tell_gone(&self, name: &str, died: bool) {
        let forget = !self.plan.places.contains_key(name);
        let message = ToFront::Gone { workspace: name.to_owned(), died, forget };
        // Only numbers depend on it.
        let _ = self.doorway.channel.send_now(&message, &[]);
    }

    /// A worker is gone that nobody told to go.
    fn bury(&mut self, name: &str, why: &str) {
        let Some(mut worker) = self.workers.remove(name) else { return };
        let left = worker.left_standing();
        let (ready, process) = (worker.is_ready(), worker.id());
        self.turn_away(&worker.waiting);
        self.tell_gone(name, true);
        let how = worker.end();
        if !ready {
            return self.failed(name, &format!("its process ended: {how}"));
        }
        eprintln!(
            "portcullis: warning: the worker of `{name}` ended ({how}: {why}); the next session \
             starts another"
        );
        let facts = facts([("workspace", json!(name)), ("process", json!(process))]);
        self.journal.deny("worker.stop", &format!("it ended by itself: {how}"), facts);
        for guest in left {
            self.again(name, guest);
        }
    }

    /// A worker that was told to stop has stopped.
    fn see_off(&mut self, at: usize) {
        let worker = self.leaving.swap_remove(at);
        if !self.workers.contains_key(&worker.name) {
            self.tell_gone(&worker.name, false);
        }
        let facts = facts([("workspace", json!(worker.name)), ("process", json!(worker.id()))]);
        let how = worker.end();
        if how == "exit status: 0" {
            self.journal.note("worker.stop", facts);
        } else {
            self.journal.deny("worker.stop", &how, facts);
        }
    }

    /// Has the worker of a place stop; the place may have another at once.
    pub(super) fn dismiss(&mut self, name: &str) {
        if let Some(mut worker) = self.workers.remove(name) {
            self.turn_away(&std::mem::take(&mut worker.waiting));
            self.turn_away(&worker.left_standing());
            worker.stop();
            self.leaving.push(worker);
        }
    }

    /// What time brings: workers that idle or are stuck, records to be made.
    fn tend(&mut self) {
        let idle = self.plan.service.idle;
        let of = |broker: &Self, is: &dyn Fn(&Worker) -> bool| -> Vec<String> {
            let found = broker.workers.iter().filter(|(_, worker)| is(worker));
            found.map(|(name, _)| name.clone()).collect()
        };
        for name in of(self, &|worker| worker.is_idle(idle)) {
            self.dismiss(&name);
        }
        for name in of(self, &Worker::is_stuck) {
            self.bury(&name, "it took too long");
        }
        while let Some(at) = self.leaving.iter().position(Worker::is_stuck) {
            self.see_off(at);
        }
        self.journal.tend();
        if let Some(news) = self.telemetry.as_mut().and_then(Exporter::news) {
            // They are totals: the next ones will do as well.
            let _ = self.doorway.channel.send_now(&ToFront::Exported(news), &[]);
        }
    }

    pub(super) fn export(&self, workspace: &str, spans: Vec<Span>, lost: u64) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.take(workspace, spans, lost);
        }
    }

    /// The front is gone, or not itself: another takes its place.
    fn revive(&mut self, why: &str) -> Result<(), Failure> {
        let how = self.doorway.end();
        eprintln!("portcullis: warning: the front ended ({how}: {why}) and is started again");
        self.journal.deny("front.stop", why, facts([("how", json!(how))]));
        self.deaths.retain(|at| at.elapsed() < Duration::from_secs(60));
        self.deaths.push(Instant::now());
        if self.deaths.len() >= FRONT_DEATHS {
            return Err(Failure::new("the front keeps ending"));
        }
        // Questions of the old one have nobody to hear the answer, and the new
        // one counts its own from the beginning: none may get another's stream.
        for worker in self.workers.values_mut() {
            worker.waiting.clear();
            worker.left_standing().clear();
        }
        self.doorway.start(&self.plan).map(drop)
    }

    /// Stops everything in order.
    fn stop(mut self) -> Result<(), Failure> {
        door::notify("STOPPING=1");
        let end = Instant::now() + STOP;
        // The front takes nobody any more, and its clients hear why.
        let _ = self.doorway.channel.send_now(&ToFront::Stop, &[]);
        let names: Vec<_> = self.workers.keys().cloned().collect();
        for name in names {
            self.dismiss(&name);
        }
        while !self.leaving.is_empty() && Instant::now() < end {
            let patience = end.saturating_duration_since(Instant::now());
            self.hear_last_words();
            let heard = self.wait_within(patience.min(Duration::from_millis(50)))?;
            for who in heard {
                if let Who::Leaving(_) = who {
                    self.hear(who)?;
                }
            }
        }
        for at in (0..self.leaving.len()).rev() {
            self.see_off(at);
        }
        while !self.doorway.has_ended() && Instant::now() < end {
            self.hear_last_words();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.hear_last_words();
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.finish(end.saturating_duration_since(Instant::now()).min(EXPORT));
        }
        let stopped = self.journal.stop();
        let left = end.saturating_duration_since(Instant::now());
        self.shipping.finish_within(left.max(COPY));
        stopped
    }

    /// Of a front that stops: nobody is let in any more.
    fn hear_last_words(&mut self) {
        for message in self.doorway.last_words() {
            if let FromFront::Throttled { .. } = message {
                self.hear_front(message);
            }
        }
    }

    /// As [`wait`](Self::wait), for workers that leave alone.
    fn wait_within(&self, patience: Duration) -> Result<Vec<Who>, Failure> {
        let limit = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(0),
            tv_nsec: patience.subsec_nanos().into(),
        };
        let mut waiting: Vec<_> = self
            .leaving
            .iter()
            .map(|worker| PollFd::from_borrowed_fd(worker.channel.as_fd(), PollFlags::IN))
            .collect();
        match poll(&mut waiting, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).or_fail("cannot wait"),
        }
        let said: Vec<_> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.leaving.iter().zip(said).filter(|(_, said)| *said);
        Ok(heard.map(|(worker, _)| Who::Leaving(worker.id())).collect())
    }
}

/// Facts of a record.
pub(super) fn facts<const N: usize>(facts: [(&str, Value); N]) -> BTreeMap<String, Value> {
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
