//! A worker's process: the gate of one workspace, confined to its root and its
//! state before it has a thread. It gets sessions as streams from the broker.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsFd as _, OwnedFd},
    process::ExitCode,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;
use rustix::net::{Shutdown, shutdown};
use serde_json::json;

use super::{
    files::Files,
    orders::{FromWorker, Spoken, ToWorker, WorkerStart},
    telemetry::Spans,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        logging,
        options::Common,
        policy_loading::{unusable, warn_of_observing},
        policy_reload::Reloading,
        policy_rollback, policy_transfer, process,
        session::{random_id, session},
        signer::Remote,
    },
    cli::local::{self, Housekept, Parts},
    config::{LoadedPolicy, Operator, audit::Durability},
    frontend::{
        acp::line_for,
        desk::Desk,
        files,
        mcp::{self, Name, Toolset},
    },
    gateway::{Gateway, Numbers, Shares},
    ledger::Signing,
    model::{Access, AgentName, Door, Session},
    sandbox::{Apart, Channel, GateAccess, become_gate, restrict_worker, stop_signals},
};

/// The hidden word on the command line that makes this process a worker.
const COMMAND: &str = "worker-process";
/// The agent's name in records of the worker's own.
const NOBODY: &str = "serve";
/// How long sessions may take to end when the worker stops.
const GRACE: Duration = Duration::from_secs(7);
/// Of that, how long the front has to pass on what clients of the `files` channel
/// have said: it is told to stop at the same time.
const FRONT: Duration = Duration::from_secs(1);
/// How long the last threads may take after that.
const LAST: Duration = Duration::from_secs(1);
/// Requests that are carried out at once: enough for changes to be synced
/// together.
const TURNS: usize = 16;
/// Of these, those of one session: others then find a turn free.
const TURNS_OF_ONE: usize = 4;
/// How often the broker hears what was counted.
const TELL: Duration = Duration::from_secs(1);
/// The stack of a session's thread, in bytes.
const STACK: usize = 1 << 20;

/// Runs the worker, if this process was started as one.
pub(crate) fn run_if_worker() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

/// Starts one.
pub(super) fn spawn() -> Result<(process::Child, Channel), Failure> {
    process::spawn(COMMAND)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gate(parent).or_fail("cannot start a worker")?;
    // The broker says when to stop.
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
            return tell(&FromWorker::Failed { why: format!("{}{help}", failure.message()) });
        }
    };
    tell(&FromWorker::Ready { apart })?;
    match worker {
        Some(worker) => worker.serve(channel),
        None => Ok(()),
    }
}

/// One that serves.
struct Worker {
    start: WorkerStart,
    gateway: Arc<Gateway>,
    session: Session,
    state: Dir,
    signatures: bool,
    durable: bool,
    spans: Option<Arc<Spans>>,
    _desk: Desk,
}

/// Opens everything, confines this process and records the start. For a trial
/// it stops before it has made anything.
fn open(start: &WorkerStart, files: Vec<OwnedFd>) -> Result<(Option<Worker>, Apart), Failure> {
    let mut files = files.into_iter();
    let texts = files.next().ok_or_else(|| Failure::new("no policy came with the order"))?;
    let texts = policy_transfer::read(texts).or_fail("cannot read the policy")?;
    let common = Common {
        workspace: start.root.clone(),
        policy: texts.reference().to_owned(),
        config: None,
        state: Some(start.state.clone()),
        adopt: None,
        agent: Some(NOBODY.parse::<AgentName>().or_fail("cannot name the worker")?),
    };
    // The broker has checked the signature.
    let signed_by = start.signed_by.as_deref().map(str::parse).transpose();
    let signed_by = signed_by.or_fail("cannot read whose signature the policy has")?;
    let policy = texts.compile().map_err(|error| unusable(&common.policy, &error))?;
    let policy = LoadedPolicy { policy, signed_by, texts };
    let operator = Operator {
        path: start.config.clone(),
        require_signature: start.signatures,
        ..Operator::default()
    };
    let parts = Parts::open_under(&common, operator, start.audit.clone(), policy)?;
    let confine = |parts: &Parts| {
        let looked = start.outside.before().map_err(Failure::new)?;
        let report = restrict_worker(GateAccess {
            read_write: &[parts.workspace.dir().as_fd(), parts.state.as_fd()],
            read_only: &[],
        })
        .or_fail("cannot confine the worker")?;
        let apart = looked.after().map_err(Failure::new)?;
        Ok::<_, Failure>((report, apart))
    };
    if start.trial {
        let (_, apart) = confine(&parts)?;
        return Ok((None, apart));
    }
    warn_of_observing(&parts.policy);
    let session = session(&common, NOBODY, Door::Serve)?;
    parts.state.create_dir_all("logs").or_fail("cannot make the directory for logs")?;
    let spans = start.spans.map(Spans::of).transpose()?;
    let options = logging::Options { log: start.log.clone() };
    logging::start_with(&options, &parts.state_path, spans.as_ref().map(Spans::layer))?;
    // The last that needs a socket. A policy that is loaded later may ask.
    let desk = local::open_desk(&parts.state)?;
    let signing = match start.audit.signer_key() {
        Some(public) => {
            let signer =
                files.next().ok_or_else(|| Failure::new("no signer came with the order"))?;
            Some(parts.paced(Signing::by(Box::new(Remote::new(signer, public)))))
        }
        None => parts.signing()?,
    };
    let (report, apart) = confine(&parts)?;
    let mut facts = parts.facts();
    facts.insert("gateLandlockAbi".to_owned(), json!(report.landlock_abi));
    facts.insert("name".to_owned(), json!(start.name));
    facts.insert("outOfReach".to_owned(), json!(apart.tried));
    // Nothing confines the clients.
    facts.insert("enforcement".to_owned(), json!("none"));
    let signatures = parts.operator.require_signature;
    if signatures {
        policy_rollback::note(&parts.state, &parts.policy)
            .or_fail("cannot note the policy's version")?;
    }
    let durable = parts.audit.durability == Durability::Synced;
    let mut ledger = parts.ledger(signing)?;
    ledger.keep_checkpoints().or_fail("cannot start a thread")?;
    let (state, claim, audit) = (parts.state, parts.claim, parts.audit);
    let mut gateway = local::assemble(parts.workspace, parts.policy, &state, ledger, audit.search)?;
    gateway.share(Shares {
        turns: TURNS,
        per_session: TURNS_OF_ONE,
        requests_per_second: start.requests_per_second,
        bytes_per_second: start.bytes_per_second,
        concurrent: start.concurrent_requests,
        watches: start.watches,
    });
    gateway.count();
    let housekept = Housekept { age: audit.compress.age() };
    local::begin(&gateway, &session, facts, (&state, &claim), Some(&desk), Some(housekept))?;
    let worker = Worker {
        start: start.clone(),
        gateway: Arc::new(gateway),
        session,
        state,
        signatures,
        durable,
        spans,
        _desk: desk,
    };
    Ok((Some(worker), apart))
}

/// The sessions under way, so that they can be ended.
#[derive(Default)]
struct Sessions {
    open: Mutex<HashMap<u64, Open>>,
    ended: Condvar,
}

/// One of them.
struct Open {
    agent: String,
    door: Door,
    stream: OwnedFd,
    /// Nothing more of it is begun.
    revoked: Arc<AtomicBool>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        // A map has no state between two of its operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has those that are `meant` hear nothing more: each ends when it has answered
    /// what it heard.
    fn hush(&self, meant: impl Fn(&Open) -> bool) {
        for open in self.lock().values().filter(|open| meant(open)) {
            // One whose client is gone ends by itself.
            let _ = shutdown(&open.stream, Shutdown::Read);
        }
    }

    /// The same, and of what was heard nothing more is begun, either: whoever said
    /// it may not any more.
    fn revoke(&self, meant: impl Fn(&Open) -> bool) {
        for open in self.lock().values().filter(|open| meant(open)) {
            open.revoked.store(true, Ordering::SeqCst);
        }
        self.hush(meant);
    }

    /// Ends all of them: with the whole `service`, or because the workspace is not
    /// to be served any more as it was.
    fn end(&self, service: bool) {
        let end = Instant::now() + GRACE;
        if service {
            self.hush(|open| open.door != Door::Files);
            self.wait(Instant::now() + FRONT);
            self.hush(|_| true);
        } else {
            self.revoke(|_| true);
        }
        self.wait(end);
    }

    /// Waits until there are none, no longer than until `end`.
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
    /// Serves until the broker says to stop or is gone.
    fn serve(self, channel: Channel) -> Result<(), Failure> {
        let channel = Arc::new(channel);
        let sessions = Arc::new(Sessions::default());
        if let Some(spans) = &self.spans {
            spans.send(&channel)?;
        }
        let (gateway, tell) = (Arc::downgrade(&self.gateway), Arc::clone(&channel));
        let open = Arc::clone(&sessions);
        let report = move || {
            let mut last = Numbers::default();
            loop {
                thread::sleep(TELL);
                // Ends with the gate.
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
            Arc::clone(&self.gateway),
            files::Limits {
                message: self.start.message_bytes,
                memory: self.start.message_memory,
                ..files::Limits::default()
            },
        )?;
        let reloading = Reloading {
            gateway: &self.gateway,
            session: &self.session,
            state: &self.state,
            signatures: self.signatures,
        };
        let mut service = true;
        while let Ok((order, files)) = channel.receive::<ToWorker>() {
            match order {
                ToWorker::Connection { number, agent, door, peer } => {
                    let Some(stream) = files.into_iter().next() else { continue };
                    let begun = self.begin(
                        &channel,
                        &sessions,
                        &channel_files,
                        number,
                        &agent,
                        door,
                        peer,
                        stream,
                    );
                    let message = match begun {
                        Ok(()) => FromWorker::Begun { number },
                        Err(failure) => {
                            tracing::error!(why = failure.message(), "a session was not begun");
                            FromWorker::NotBegun { number }
                        }
                    };
                    // A broker that is gone is seen above.
                    let _ = channel.send(&message, &[]);
                }
                ToWorker::Close { agent } => sessions.revoke(|open| open.agent == agent),
                ToWorker::Policy => {
                    reloading.reload(files, "signal");
                }
                ToWorker::NoPolicy { sha256, why } => {
                    reloading.refuse(sha256.as_deref(), &why, "signal");
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
        if let Some(spans) = &self.spans {
            spans.finish(&channel);
        }
        let end = Instant::now() + LAST;
        let mut gateway = self.gateway;
        loop {
            // Threads that only counted, or read a last line, let go at once.
            gateway = match Arc::try_unwrap(gateway) {
                Ok(gateway) => {
                    let stopped = gateway.stop(&self.session);
                    return stopped.map(drop).or_fail("cannot record the stop");
                }
                // The next start settles what it left half done.
                Err(_) if Instant::now() >= end => {
                    return Err(Failure::new("a session did not end in time"));
                }
                Err(shared) => shared,
            };
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one order")]
    fn begin(
        &self,
        channel: &Arc<Channel>,
        sessions: &Arc<Sessions>,
        files: &Files,
        number: u64,
        agent: &str,
        door: Spoken,
        peer: String,
        stream: OwnedFd,
    ) -> Result<(), Failure> {
        let name: AgentName = agent.parse().or_fail("cannot name the agent")?;
        let door = match door {
            Spoken::Mcp => Door::Mcp,
            Spoken::Files => Door::Files,
        };
        let id = random_id()?;
        let session = Session { id, agent: name, user: self.session.user.clone(), door };
        let facts = [("peer".to_owned(), json!(peer))].into();
        self.gateway.note(&session, "session", facts).or_fail("cannot record the session")?;
        let hold = stream.try_clone().or_fail("cannot hold a session")?;
        let revoked = Arc::<AtomicBool>::default();
        let open = Open {
            agent: agent.to_owned(),
            door: session.door,
            stream: hold,
            revoked: Arc::clone(&revoked),
        };
        sessions.lock().insert(number, open);
        let (over, all) = (Arc::clone(channel), Arc::clone(sessions));
        let ended = move || {
            all.lock().remove(&number);
            all.ended.notify_all();
            // A broker that is gone has no use for it.
            let _ = over.send(&FromWorker::Ended { number }, &[]);
        };
        if session.door == Door::Files {
            return files.serve(session, stream, revoked, ended).inspect_err(|_| {
                sessions.lock().remove(&number);
            });
        }
        let (gateway, config) = (Arc::clone(&self.gateway), self.mcp(session));
        let run = move || {
            if let Err(error) = serve_lines(&gateway, config, stream) {
                tracing::info!(%error, "a session ended early");
            }
            drop(gateway);
            ended();
        };
        let started =
            thread::Builder::new().name("session".to_owned()).stack_size(STACK).spawn(run);
        started.map(drop).or_fail("cannot start a thread").inspect_err(|_| {
            sessions.lock().remove(&number);
        })
    }

    fn mcp(&self, session: Session) -> mcp::Config {
        let policy = self.gateway.policy();
        let size = policy.max_size(Access::Read).max(policy.max_size(Access::Write));
        mcp::Config {
            session,
            root: self.gateway.workspace().root().to_owned(),
            alias: Some(self.start.alias.clone()),
            toolset: match self.start.reference {
                true => Toolset::Reference,
                false => Toolset::Workspace(Name::near(&self.start.name)),
            },
            place: mcp::Place::Remote,
            elicit: self.start.elicit,
            prompt: !self.durable,
            max_line: line_for(size),
            guest: None,
            notify: |line| errln!("{line}"),
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
