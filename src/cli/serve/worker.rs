//! A worker's process: the gateway of a workspace, confined to its root and its
//! state directory before it has a second thread. It gets sessions as streams from
//! the broker.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::OwnedFd,
    process::ExitCode,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::net::{Shutdown, shutdown};
use serde_json::json;

use super::{
    files::Files,
    messages::{FromWorker, StreamProtocol, ToWorker, WorkerStart},
    telemetry::Spans,
};
use crate::{
    app::{
        bootstrap::{Profile, Started},
        failure::{Context as _, Failure},
        logging,
        policy_loading::warn_of_observing,
        policy_transfer::SharedPolicy,
        process,
        session::{random_id, session},
    },
    cli::{announcer, gateway_options},
    gateway::{Gateway, GatewayMetrics, SharedLimits},
    mcp::{self, Name, Toolset},
    model::{AgentName, Session, Transport},
    sandbox::{Channel, IsolationReport, become_gateway, stop_signals},
    serve::files,
};

/// The hidden first argument that makes this process a worker.
const COMMAND: &str = "worker-process";
/// The agent's name in records of the worker itself.
const NOBODY: &str = "serve";
/// Timeout for sessions to end when the worker stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(7);
/// The part of it in which the front may still forward messages of clients of the
/// `files` channel: it gets the order to stop at the same time.
const FRONT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the last threads after that.
const FINAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum of requests carried out at once: enough for changes to share a sync.
const MAX_CONCURRENT: usize = 16;
/// Maximum of those of one session, so that slots are left for others.
const MAX_CONCURRENT_OF_SESSION: usize = 4;
/// Interval of updates of the broker's counters.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The stack of a session's thread, in bytes.
const STACK_SIZE: usize = 1 << 20;

/// Runs the worker, if this process was started as one.
pub(crate) fn run_if_worker() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

/// Starts a worker.
pub(super) fn spawn() -> Result<(process::Child, Channel), Failure> {
    process::spawn(COMMAND)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gateway(parent).or_fail("cannot start a worker")?;
    // The broker orders the stop.
    let _signals = stop_signals().or_fail("cannot block signals")?;
    let (ToWorker::Start(start), files) =
        channel.receive::<ToWorker>().or_fail("cannot start a worker")?
    else {
        return Err(Failure::new("the broker began with something else"));
    };
    let tell =
        |message: &FromWorker| channel.send(message, &[]).or_fail("cannot answer the broker");
    let (worker, apart) = match open(&start, files) {
        Ok(opened) => opened,
        Err(failure) => {
            failure.print_details();
            let help = failure.advice().map(|help| format!(" ({help})")).unwrap_or_default();
            return tell(&FromWorker::Failed { reason: format!("{}{help}", failure.message()) });
        }
    };
    tell(&FromWorker::Ready { apart })?;
    match worker {
        Some(worker) => worker.serve(channel),
        None => Ok(()),
    }
}

/// A serving worker.
struct Worker {
    start: WorkerStart,
    started: Started,
    spans: Option<Spans>,
    /// The file through which policy reloads come.
    shared: SharedPolicy,
}

/// Opens everything, confines this process and records the start. A trial stops
/// before anything is created.
fn open(
    start: &WorkerStart,
    files: Vec<OwnedFd>,
) -> Result<(Option<Worker>, IsolationReport), Failure> {
    let mut files = files.into_iter();
    let mut opened = start.launch.open(&mut files)?;
    if start.trial {
        return Ok((None, opened.try_confinement(&start.unreachable)?));
    }
    opened.sign_through(&mut files)?;
    opened.notify_through(start.launch.notifies, &mut files)?;
    let shared = files.next().ok_or_else(|| Failure::new("the broker sent too few files"))?.into();
    warn_of_observing(&opened.policy);
    let session = session(NOBODY.parse().or_fail("cannot name the worker")?, Transport::Serve)?;
    let spans = start.spans.map(Spans::of).transpose()?;
    let options = logging::Options { log: start.launch.log.clone() };
    logging::start_with(&options, &opened.state_path, spans.as_ref().map(Spans::layer))?;
    let profile = Profile {
        long_lived: true,
        reloads: true,
        shares: Some(SharedLimits {
            slots: MAX_CONCURRENT,
            per_session: MAX_CONCURRENT_OF_SESSION,
            requests_per_second: start.requests_per_second,
            bytes_per_second: start.bytes_per_second,
            concurrent: start.concurrent_requests,
            watches: start.watches,
        }),
        processes: None,
        further: None,
    };
    let (confined, apart) = opened.confine_worker(profile, &start.unreachable)?;
    let facts = [
        ("name", json!(start.name)),
        ("unreachable", json!(apart.tried)),
        // The clients are not confined.
        ("enforcement", json!("none")),
    ];
    let facts = facts.map(|(name, fact)| (name.to_owned(), fact)).into();
    let started = confined.recover()?.start(session, facts)?;
    Ok((Some(Worker { start: start.clone(), started, spans, shared }), apart))
}

/// The open sessions, which can be ended.
#[derive(Default)]
struct Sessions {
    open: Mutex<HashMap<u64, Open>>,
    ended: Condvar,
}

/// An open session.
struct Open {
    agent: String,
    transport: Transport,
    stream: OwnedFd,
    /// Set once no further request may begin.
    revoked: Arc<AtomicBool>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        // A map has no intermediate state between two operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts down the input of matching sessions: each ends when it has replied to
    /// the requests so far.
    fn shut_down_input(&self, meant: impl Fn(&Open) -> bool) {
        for open in self.lock().values().filter(|open| meant(open)) {
            // A session whose client is gone ends by itself.
            let _ = shutdown(&open.stream, Shutdown::Read);
        }
    }

    /// Shuts down matching sessions likewise, but requests so far that have not
    /// begun do not begin: the client has lost the right to them.
    fn revoke(&self, meant: impl Fn(&Open) -> bool) {
        for open in self.lock().values().filter(|open| meant(open)) {
            open.revoked.store(true, Ordering::SeqCst);
        }
        self.shut_down_input(meant);
    }

    /// Ends all sessions: because the whole `service` stops, or because the
    /// workspace is not served any more or has changed.
    fn end(&self, service: bool) {
        let end = Instant::now() + STOP_TIMEOUT;
        if service {
            self.shut_down_input(|open| open.transport != Transport::Files);
            self.wait(Instant::now() + FRONT_TIMEOUT);
            self.shut_down_input(|_| true);
        } else {
            self.revoke(|_| true);
        }
        self.wait(end);
    }

    /// Waits until there are none, at most until `end`.
    fn wait(&self, end: Instant) {
        let mut open = self.lock();
        while !open.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.ended.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Worker {
    /// Serves until the broker orders the stop or has ended.
    fn serve(mut self, channel: Channel) -> Result<(), Failure> {
        let channel = Arc::new(channel);
        let sessions = Arc::new(Sessions::default());
        let spans = self.spans.take().map(|spans| spans.send(&channel)).transpose()?;
        let (gateway, tell) = (Arc::downgrade(&self.started.gateway), Arc::clone(&channel));
        let open = Arc::clone(&sessions);
        let report = move || {
            let mut last = GatewayMetrics::default();
            loop {
                thread::sleep(REPORT_INTERVAL);
                // Ends with the gateway.
                let Some(mut now) = gateway.upgrade().map(|gateway| gateway.numbers()) else {
                    return;
                };
                now.sessions = u64::try_from(open.lock().len()).unwrap_or(u64::MAX);
                if now != last && tell.send(&FromWorker::Numbers(now.clone()), &[]).is_err() {
                    return;
                }
                last = now;
            }
        };
        thread::Builder::new()
            .name("numbers".to_owned())
            .spawn(report)
            .or_fail("cannot start a thread")?;
        let channel_files = Files::start(
            Arc::clone(&self.started.gateway),
            files::ChannelLimits {
                message: self.start.message_bytes,
                memory: self.start.message_memory,
                ..files::ChannelLimits::default()
            },
        )?;
        let reloading = self.started.reloading(&self.shared);
        let mut service = true;
        while let Ok((order, files)) = channel.receive::<ToWorker>() {
            match order {
                ToWorker::Connection { number, agent, transport, peer } => {
                    let Some(stream) = files.into_iter().next() else { continue };
                    let begun = self.begin(
                        &channel,
                        &sessions,
                        &channel_files,
                        number,
                        &agent,
                        transport,
                        peer,
                        stream,
                    );
                    let message = match begun {
                        Ok(()) => FromWorker::Begun { number },
                        Err(failure) => {
                            tracing::error!(reason = failure.message(), "a session was not begun");
                            FromWorker::NotBegun { number }
                        }
                    };
                    // The end of the broker is noticed above.
                    let _ = channel.send(&message, &[]);
                }
                ToWorker::Close { agent } => sessions.revoke(|open| open.agent == agent),
                ToWorker::Policy { hash } => {
                    reloading.reload(hash, "signal");
                }
                ToWorker::NoPolicy { sha256, reason } => {
                    reloading.refuse(sha256.as_deref(), &reason, "signal");
                }
                ToWorker::Stop { service: whole } => {
                    service = whole;
                    break;
                }
                ToWorker::Start(_) => {}
            }
        }
        sessions.end(service);
        drop(channel_files);
        if let Some(spans) = spans {
            spans.finish();
        }
        // Threads that update counters, or read a last line, end at once.
        self.started.stop(FINAL_TIMEOUT).map(drop)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one order")]
    fn begin(
        &self,
        channel: &Arc<Channel>,
        sessions: &Arc<Sessions>,
        files: &Files,
        number: u64,
        agent: &str,
        transport: StreamProtocol,
        peer: String,
        stream: OwnedFd,
    ) -> Result<(), Failure> {
        let name: AgentName = agent.parse().or_fail("cannot name the agent")?;
        let transport = match transport {
            StreamProtocol::Mcp => Transport::Mcp,
            StreamProtocol::Files => Transport::Files,
        };
        let id = random_id()?;
        let session = Session {
            id,
            agent: name,
            user: self.started.session.user.clone(),
            transport,
            acp: None,
        };
        let facts = [("peer".to_owned(), json!(peer))].into();
        self.started
            .gateway
            .note(&session, "session", facts)
            .or_fail("cannot record the session")?;
        let hold = stream.try_clone().or_fail("cannot hold a session")?;
        let revoked = Arc::<AtomicBool>::default();
        let open = Open {
            agent: agent.to_owned(),
            transport: session.transport,
            stream: hold,
            revoked: Arc::clone(&revoked),
        };
        sessions.lock().insert(number, open);
        let (over, all) = (Arc::clone(channel), Arc::clone(sessions));
        let ended = move || {
            all.lock().remove(&number);
            all.ended.notify_all();
            // The broker may have ended.
            let _ = over.send(&FromWorker::Ended { number }, &[]);
        };
        if session.transport == Transport::Files {
            return files.serve(session, stream, revoked, ended).inspect_err(|_| {
                sessions.lock().remove(&number);
            });
        }
        let (gateway, config) = (Arc::clone(&self.started.gateway), self.mcp(session, revoked));
        let run = move || {
            if let Err(error) = serve_lines(&gateway, config, stream) {
                tracing::info!(%error, "a session ended early");
            }
            drop(gateway);
            ended();
        };
        let started =
            thread::Builder::new().name("session".to_owned()).stack_size(STACK_SIZE).spawn(run);
        started.map(drop).or_fail("cannot start a thread").inspect_err(|_| {
            sessions.lock().remove(&number);
        })
    }

    fn mcp(&self, session: Session, revoked: Arc<AtomicBool>) -> mcp::Config {
        mcp::Config {
            session,
            root: self.started.gateway.workspace().root().to_owned(),
            alias: Some(self.start.alias.clone()),
            further: Vec::new(),
            commands: None,
            toolset: match self.start.reference {
                true => Toolset::Reference,
                false => Toolset::Workspace(Name::near(&self.start.name)),
            },
            location: mcp::ClientLocation::Remote,
            elicit: self.start.elicit,
            prompt: !self.started.durable,
            max_line: self.started.max_line(),
            attached: None,
            revoked,
            options: gateway_options::log_options_of(&self.started),
            announce: announcer::announce,
        }
    }
}

fn serve_lines(
    gateway: &Arc<Gateway>,
    config: mcp::Config,
    stream: OwnedFd,
) -> Result<(), mcp::Error> {
    let input = mcp::Input { stream: File::from(stream.try_clone()?), stop: None };
    mcp::serve(gateway, config, input, File::from(stream))
}
