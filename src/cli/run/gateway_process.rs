//! The gate of `portcullis run`: the confined process between editor and
//! agent.
//!
//! The broker starts it, hands it the editor's streams and, once the agent
//! waits in its cell, the agent's. It confines itself before any thread
//! exists, and says "started" only when the start is on record. While it
//! serves, the broker hands it other policies (`orders`).

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read, Write},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::json;

use super::{
    agent_notices::{self, AgentNotices},
    orders::Orders,
    protocol::{Agent, Progress, Serve},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        logging,
        options::Common,
        policy_rollback, process,
        session::session,
        signer::Remote,
        stderr,
    },
    cli::local::{self, Housekept, Parts},
    config::audit::Durability,
    frontend::{
        acp,
        guests::Guests,
        inside::{Arrivals, Inside},
        mcp,
    },
    gateway::Gateway,
    ledger::Signing,
    model::{Access, AgentName, Door, Session},
    sandbox::{GateAccess, become_gate, restrict_gate, stop_signals},
};

/// The hidden word on the command line that makes this process a gate.
pub(crate) const COMMAND: &str = "gate-process";

/// Longest piece of the agent's stderr that is shown as one line, in bytes.
const LONGEST_LINE: u64 = 8 * 1024;

/// The agent's standard streams.
const STREAMS: usize = 3;

/// How long the gate waits for the end of the agent's stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs the gate, if this process was started as one.
pub(crate) fn run_if_gate() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gate(parent).or_fail("cannot start the gate")?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    let (order, mut streams) = channel.receive::<Serve>().or_fail("cannot start the gate")?;
    let broker = if order.signer.is_some() { streams.pop() } else { None };
    let [editor_in, editor_out] = take(streams)?;
    let common = Common {
        workspace: order.workspace.clone(),
        policy: order.policy.clone(),
        config: order.config.clone(),
        state: Some(order.state.clone()),
        adopt: order.adopt.clone(),
        agent: Some(order.agent.parse::<AgentName>().or_fail("cannot name the agent")?),
    };
    let parts = Parts::open(&common)?;
    if parts.policy.sha256() != order.policy_sha256 {
        return Err(Failure::new("the policy changed while the agent was being started")
            .help("start it again"));
    }
    let session = session(&common, "agent", Door::Acp)?;
    parts.state.create_dir_all("logs").or_fail("cannot make the directory for logs")?;
    logging::start(&logging::Options { log: order.log.clone() }, &order.state)?;

    // The last that needs a socket. A policy that is loaded later may ask.
    let desk = local::open_desk(&parts.state)?;
    let signing = match (&order.signer, broker) {
        (Some(key), Some(broker)) => {
            let public = key.parse().or_fail("cannot use the signer's key")?;
            Some(parts.paced(Signing::by(Box::new(Remote::new(broker, public)))))
        }
        _ => parts.signing()?,
    };
    let report = restrict_gate(GateAccess {
        read_write: &[parts.workspace.dir().as_fd(), parts.state.as_fd()],
        read_only: &[],
    })
    .or_fail("cannot confine the gate")?;
    let mut facts = parts.facts();
    facts.insert("gateLandlockAbi".to_owned(), json!(report.landlock_abi));
    let confined = Progress::Confined { dropped_capabilities: report.dropped_capabilities };
    channel.send(&confined, &[]).or_fail("cannot answer the broker")?;

    let signatures = parts.operator.require_signature;
    if signatures {
        policy_rollback::note(&parts.state, &parts.policy)
            .or_fail("cannot note the policy's version")?;
    }
    let mut ledger = parts.ledger(signing)?;
    ledger.keep_checkpoints().or_fail("cannot start a thread")?;
    let (state, claim, compress) = (parts.state, parts.claim, parts.audit.compress);
    let prompt = parts.audit.durability != Durability::Synced;
    let gateway =
        local::assemble(parts.workspace, parts.policy, &state, ledger, parts.audit.search)?;
    let gateway = Arc::new(gateway);
    let (agent, mut streams) = channel.receive::<Agent>().or_fail("the agent did not start")?;
    let hatch = if streams.len() > STREAMS { streams.pop() } else { None };
    let [agent_in, agent_out, agent_err] = take(streams)?;
    facts.extend(agent.facts);
    let housekept = Housekept { age: compress.age() };
    local::begin(&gateway, &session, facts, (&state, &claim), Some(&desk), Some(housekept))?;
    let inside = match hatch.zip(agent.entrance) {
        Some((hatch, entrance)) => {
            let config = mcp_config(&gateway, &session, &order);
            let guests = Guests::new(&entrance.program, &entrance.address);
            let arrivals = match entrance.is_relayed {
                true => Arrivals::Relay(hatch),
                false => Arrivals::Listener(hatch),
            };
            let inside = Inside::attend(arrivals, Arc::clone(&gateway), guests.clone(), config)
                .or_fail("cannot start a thread")?;
            Some((inside, guests))
        }
        None => None,
    };
    let (inside, guests) = inside.unzip();
    channel.send(&Progress::Started, &[]).or_fail("cannot answer the broker")?;

    let agent_in = Closable::new(agent_in.into());
    let orders = Orders {
        channel: &channel,
        signals: &signals,
        gateway: &gateway,
        session: &session,
        state: &state,
        signatures,
        agent_in: agent_in.clone(),
    };
    let (said_all, wait_for_all) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("agent-stderr".to_owned())
        .spawn(move || {
            show_errors(agent_err.into());
            drop(said_all);
        })
        .or_fail("cannot start a thread")?;
    let notices = Arc::new(AgentNotices::default());
    let streams = Streams {
        editor_in: editor_in.into(),
        editor_out: editor_out.into(),
        agent_in,
        agent_out: agent_out.into(),
        notices: Arc::clone(&notices),
    };
    let (done, serving) = io::pipe().or_fail("cannot open a pipe")?;
    thread::scope(|scope| {
        thread::Builder::new()
            .name("gate-orders".to_owned())
            .spawn_scoped(scope, move || orders.follow(&done))
            .or_fail("cannot start a thread")?;
        let served = serve(&gateway, &session, &order, streams, prompt, guests, &agent.granted);
        // Whoever waits for orders sees it closed.
        drop(serving);
        served
    })?;
    if notices.is_no_acp() {
        // A broker that is gone needs no explanation.
        let _ = channel.send(&Progress::NoAcp, &[]);
    }
    // What an agent says last must not be lost; one that goes on has its time.
    let _ = wait_for_all.recv_timeout(LAST_WORDS);
    if let Some(inside) = inside {
        inside.end();
    }
    local::alone(gateway)?.stop(&session).map(drop).or_fail("cannot record the stop")
}

/// What is connected to whom.
struct Streams {
    editor_in: File,
    editor_out: File,
    agent_in: Closable,
    agent_out: File,
    /// What the agent prints beside ACP.
    notices: Arc<AgentNotices>,
}

/// Serves until the agent closes its output, or the editor is gone and the
/// agent has had its time.
fn serve(
    gateway: &Gateway,
    session: &Session,
    order: &Serve,
    streams: Streams,
    prompt: bool,
    guests: Option<Arc<Guests>>,
    granted: &[PathBuf],
) -> Result<(), Failure> {
    let policy = gateway.policy();
    let config = acp::Config {
        workspace_alias: Some(order.workspace_alias.clone()),
        granted: granted.to_owned(),
        source: order.source.parse().or_fail("cannot serve")?,
        prompt,
        forward: order.forward.clone(),
        notices: Some(streams.notices),
        terminal_allowed: policy.agent().terminal,
        max_line: max_line(gateway),
        guests,
        ..acp::Config::new(session.clone(), order.workspace.clone())
    };
    let editor = (streams.editor_in, streams.editor_out);
    let agent = (streams.agent_out, ClosedWhenDropped(streams.agent_in));
    let ending = acp::serve(gateway, &config, editor, agent).or_fail("cannot serve")?;
    tracing::info!(?ending, "the connection ended");
    Ok(())
}

/// How the agent is served that comes through the hatch.
fn mcp_config(gateway: &Gateway, session: &Session, order: &Serve) -> mcp::Config {
    let root = gateway.workspace().root().to_owned();
    let name = mcp::Name::near(&root.file_name().unwrap_or_default().to_string_lossy());
    mcp::Config {
        session: session.clone(),
        root,
        alias: Some(order.workspace_alias.clone()),
        toolset: mcp::Toolset::Workspace(name),
        place: mcp::Place::Cell,
        // The client is the agent.
        elicit: false,
        // A policy that is taken up later may ask.
        prompt: false,
        max_line: max_line(gateway),
        guest: None,
        notify: |line| errln!("{line}"),
    }
}

fn max_line(gateway: &Gateway) -> usize {
    let policy = gateway.policy();
    acp::line_for(policy.max_size(Access::Read).max(policy.max_size(Access::Write)))
}

/// A writer that another thread can close.
#[derive(Debug, Clone)]
pub(super) struct Closable {
    file: Arc<Mutex<Option<File>>>,
    closing: Arc<AtomicBool>,
}

impl Closable {
    fn new(file: File) -> Self {
        Self { file: Arc::new(Mutex::new(Some(file))), closing: Arc::default() }
    }

    /// Closes it, once a write that is under way has ended: at the latest when
    /// the agent does.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn write_with(
        &self,
        bytes: &[u8],
        write: impl FnOnce(&mut File, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closing.load(Ordering::Acquire) {
            // Whoever closes may wait for the lock for long, among writes.
            file.take();
        }
        match &mut *file {
            Some(file) => write(file, bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Closable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_with(bytes, |file, bytes| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The one that writes: when it is done, the agent's input ends, whoever else
/// could still close it.
struct ClosedWhenDropped(Closable);

impl Write for ClosedWhenDropped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl acp::Output for ClosedWhenDropped {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_with(bytes, |file, bytes| acp::write_now(file, bytes))
    }
}

impl Drop for ClosedWhenDropped {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Writes what the agent says on its stderr to ours, line by line, so that it
/// cannot steer a terminal or pass for one of our own messages.
fn show_errors(errors: File) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                stderr::say_at_leisure(format_args!("{}\n", agent_notices::quoted(text)));
            }
        }
    }
}

fn take<const N: usize>(streams: Vec<OwnedFd>) -> Result<[OwnedFd; N], Failure> {
    streams.try_into().map_err(|_| Failure::new("the broker sent the wrong streams"))
}
