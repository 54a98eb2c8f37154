//! The gate of `portcullis run`: the confined process between editor and
//! agent.
//!
//! The broker starts it, hands it the editor's streams and, once the agent
//! waits in its cell, the agent's. It confines itself before any thread
//! exists, and says "started" only when the start is on record. While it
//! serves, the broker hands it other policies (`orders`).

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Read, Write},
    os::fd::OwnedFd,
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

use nix::sys::signalfd::SignalFd;

use super::{
    notices::{self, AgentNotices},
    orders::Orders,
    protocol::{self, Acp, Agent, Progress, Serve, Service},
};
use crate::{
    acp,
    app::{
        bootstrap::{Profile, Recovered, Started},
        failure::{Context as _, Failure},
        logging,
        mount::{self, Mounted},
        policy_transfer::SharedPolicy,
        process,
        scratch::Place,
        session::session,
        stderr,
    },
    cli::announcer::Announcer,
    config::audit::MountRecords,
    mcp::{
        self,
        attach::AttachTokens,
        sandbox_socket::{Connections, SandboxSocket},
    },
    model::{Door, Session},
    sandbox::{Channel, become_gate, stop_signals, suspend_signal},
};

/// The hidden word on the command line that makes this process a gate.
pub(crate) const COMMAND: &str = "gate-process";

/// Longest piece of the agent's stderr that is shown as one line, in bytes.
const LONGEST_LINE: u64 = 8 * 1024;

/// The agent's standard streams.
const STREAMS: usize = 3;

/// How long the last threads may take when nothing is served any more.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How long requests of MCP clients in the sandbox may take then. The broker waits for
/// fifteen seconds in all.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last programs may take to be gone from the mount, with what they wrote. The
/// broker kills them after four seconds.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The record of what the sandbox is, where there is a mount.
const SANDBOX: &str = "sandbox";

/// How long the gate waits for the end of the agent's stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs the gate, if this process was started as one.
pub(crate) fn run_if_gate() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gate(parent).or_fail("cannot start the gate")?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    // The broker stops the job, and this process goes on.
    let _suspend = suspend_signal().or_fail("cannot watch for signals")?;
    let (order, files) = channel.receive::<Serve>().or_fail("cannot start the gate")?;
    let mut files = files.into_iter();
    let mut opened = order.launch.open(&mut files)?;
    opened.sign_through(&mut files)?;
    let [shared] = take(files.by_ref().take(1).collect())?;
    let shared = SharedPolicy::from(shared);
    let editor = files.collect::<Vec<_>>();
    let agent = order.agent.parse().or_fail("cannot name the agent")?;
    let door = match order.service {
        Service::Acp(_) => Door::Acp,
        Service::Command | Service::Terminal => Door::Mount,
    };
    let scratch = match order.mount {
        true => Place::open(&opened, &agent)?,
        false => None,
    };
    let session = session(agent, door)?;
    let options = logging::Options { log: order.launch.log.clone() };
    logging::start(&options, &opened.state_path)?;
    let (mount, processes) = match order.mount {
        true => {
            let roots = vec![order.launch.workspace.clone(), order.workspace_alias.clone()];
            let mount = receive_mount(&channel, (scratch, roots), opened.audit.mount)?;
            let processes = mount.as_ref().and_then(|mount| mount.processes.as_ref());
            let processes = processes.map(OwnedFd::try_clone).transpose();
            (mount, processes.or_fail("cannot start the gate")?)
        }
        false => (None, None),
    };
    let scratch = mount.as_ref().and_then(|mount| mount.scratch.as_ref());
    let scratch = scratch.map(|place| place.directory.try_clone()).transpose();
    let scratch = scratch.or_fail("cannot start the gate")?;
    let profile =
        Profile { long_lived: true, reloads: true, processes, scratch, ..Profile::default() };
    let confined = opened.confine(profile)?;
    let dropped_capabilities = confined.report().dropped_capabilities;
    channel
        .send(&Progress::Confined { dropped_capabilities }, &[])
        .or_fail("cannot answer the broker")?;

    let recovered = confined.recover()?;
    let Introduced { started, mounted, agent, streams } =
        introduce(&channel, recovered, session, mount)?;
    let place = if mounted.is_some() { mcp::Place::Mounted } else { mcp::Place::Cell };
    let serving = Serving { channel: &channel, signals: &signals, shared: &shared, place };
    let served = match &order.service {
        Service::Acp(way) => serving.acp(&order, way, (&started, agent, streams), editor),
        Service::Command => serving.command(&started),
        Service::Terminal => {
            stderr::hold();
            let served = serving.command(&started);
            stderr::show_held();
            served
        }
    };
    // Also after an error: what programs wrote is stored, and the end on record.
    if let Some(mounted) = mounted {
        mounted.end(MOUNT_TIMEOUT);
    }
    served?;
    started.stop(STOP_TIMEOUT).map(drop)
}

/// A gate whose start is on record, and the agent that waits.
struct Introduced {
    started: Started,
    mounted: Option<Mounted>,
    agent: Agent,
    /// The agent's streams, and what its MCP clients come from.
    streams: Vec<OwnedFd>,
}

/// Records the start and what the test of the sandbox found, in one record, or with a mount
/// in two: its test needs the mount, and that the start.
fn introduce(
    channel: &Channel,
    recovered: Recovered,
    session: Session,
    mount: Option<mount::Order>,
) -> Result<Introduced, Failure> {
    let Some(mount) = mount else {
        let (mut agent, streams) = introduced(channel)?;
        let started = recovered.start(session, std::mem::take(&mut agent.facts))?;
        return Ok(Introduced { started, mounted: None, agent, streams });
    };
    let mut facts = BTreeMap::from([("mount".to_owned(), true.into())]);
    if let Some(scratch) = &mount.scratch {
        facts.extend(scratch.facts());
        scratch.warn();
    }
    let started = recovered.start(session, facts)?;
    let announcer = Announcer { state: started.state_path.clone() };
    let mounted = Mounted::serve(&started, mount, Box::new(announcer))?;
    match introduced_in(channel, &started) {
        Ok((agent, streams)) => Ok(Introduced { started, mounted: Some(mounted), agent, streams }),
        Err(error) => {
            // No program ran.
            mounted.end(Duration::ZERO);
            Err(error)
        }
    }
}

/// Waits for an agent in a mount that is served, and records what its sandbox is.
fn introduced_in(channel: &Channel, started: &Started) -> Result<(Agent, Vec<OwnedFd>), Failure> {
    channel.send(&Progress::Mounted, &[]).or_fail("cannot answer the broker")?;
    let (mut agent, streams) = introduced(channel)?;
    let facts = std::mem::take(&mut agent.facts);
    let recorded = started.gateway.note(&started.session, SANDBOX, facts);
    recorded.or_fail("cannot record what the sandbox is")?;
    Ok((agent, streams))
}

/// The broker, and what it orders.
struct Serving<'a> {
    channel: &'a Channel,
    signals: &'a SignalFd,
    shared: &'a SharedPolicy,
    /// Where the agent's MCP clients are.
    place: mcp::Place,
}

impl Serving<'_> {
    /// Serves the mount until the broker says that the command has ended.
    fn command(&self, started: &Started) -> Result<(), Failure> {
        self.say_started(started)?;
        let (done, _serving) = io::pipe().or_fail("cannot open a pipe")?;
        self.orders(started, None).follow(&done);
        Ok(())
    }

    fn say_started(&self, started: &Started) -> Result<(), Failure> {
        let (session, record) = (started.session.id.clone(), started.record);
        let said = self.channel.send(&Progress::Started { session, record }, &[]);
        said.or_fail("cannot answer the broker")
    }

    fn orders<'a>(&'a self, started: &'a Started, agent_in: Option<Closable>) -> Orders<'a> {
        let reloading = started.reloading(self.shared);
        Orders { channel: self.channel, signals: self.signals, reloading, agent_in }
    }

    /// Serves the agent over ACP.
    fn acp(
        &self,
        order: &Serve,
        way: &Acp,
        (started, mut agent, mut streams): (&Started, Agent, Vec<OwnedFd>),
        editor: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let [editor_in, editor_out] = take(editor)?;
        let hatch = if streams.len() > STREAMS { streams.pop() } else { None };
        let [agent_in, agent_out, agent_err] = take(streams)?;
        let attached = match hatch.zip(agent.entrance.take()) {
            Some((hatch, entrance)) => {
                let config = mcp_config(started, order, self.place);
                let tokens = AttachTokens::new(&entrance.program, &entrance.address);
                let connections = match entrance.is_relayed {
                    true => Connections::Relay(hatch),
                    false => Connections::Listener(hatch),
                };
                let gateway = Arc::clone(&started.gateway);
                let socket = SandboxSocket::start(connections, gateway, tokens.clone(), config)
                    .or_fail("cannot start a thread")?;
                Some((socket, tokens))
            }
            None => None,
        };
        let (socket, tokens) = attached.unzip();
        self.say_started(started)?;

        let agent_in = Closable::new(agent_in.into());
        let orders = self.orders(started, Some(agent_in.clone()));
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
            let served = serve(started, order, way, streams, tokens, &agent);
            // Whoever waits for orders sees it closed.
            drop(serving);
            served
        })?;
        // The broker stops an agent that goes on, as long as what that writes is still stored. One
        // that is gone need not hear it.
        let _ = self.channel.send(&Progress::Served { no_acp: notices.is_no_acp() }, &[]);
        // What an agent says last must not be lost; one that goes on has its time.
        let _ = wait_for_all.recv_timeout(LAST_WORDS);
        if let Some(socket) = socket {
            socket.stop(SOCKET_TIMEOUT);
        }
        Ok(())
    }
}

fn introduced(channel: &Channel) -> Result<(Agent, Vec<OwnedFd>), Failure> {
    channel.receive::<Agent>().or_fail("the agent did not start")
}

fn receive_mount(
    channel: &Channel,
    (scratch, roots): (Option<Place>, Vec<PathBuf>),
    records: MountRecords,
) -> Result<Option<mount::Order>, Failure> {
    let received = channel.receive::<Option<protocol::Mount>>();
    let (order, files) = received.or_fail("the agent did not start")?;
    let Some(order) = order else { return Ok(None) };
    let mut files = files.into_iter();
    let device = files.next().ok_or_else(|| Failure::new("no mount came with the order"))?;
    let (user, group) = (order.user, order.group);
    let processes = files.next();
    Ok(Some(mount::Order { device, processes, user, group, roots, scratch, records }))
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
    started: &Started,
    order: &Serve,
    way: &Acp,
    streams: Streams,
    attach: Option<Arc<AttachTokens>>,
    agent: &Agent,
) -> Result<(), Failure> {
    let gateway = &started.gateway;
    let policy = gateway.policy();
    let config = acp::Config {
        workspace_alias: Some(order.workspace_alias.clone()),
        granted: agent.granted.clone(),
        variables: agent.variables.clone(),
        source: way.source.parse().or_fail("cannot serve")?,
        prompt: !started.durable,
        forward: way.forward.clone(),
        notices: Some(streams.notices),
        terminal_allowed: policy.agent().terminal,
        max_line: started.max_line(),
        attach,
        ..acp::Config::new(started.session.clone(), order.launch.workspace.clone())
    };
    let editor = (streams.editor_in, streams.editor_out);
    let served = (streams.agent_out, ClosedWhenDropped(streams.agent_in));
    let ending = acp::serve(gateway, &config, editor, served).or_fail("cannot serve")?;
    tracing::info!(?ending, "the connection ended");
    Ok(())
}

/// How the agent is served that comes through the hatch.
fn mcp_config(started: &Started, order: &Serve, place: mcp::Place) -> mcp::Config {
    let root = started.gateway.workspace().root().to_owned();
    let name = mcp::Name::near(&root.file_name().unwrap_or_default().to_string_lossy());
    mcp::Config {
        session: started.session.clone(),
        root,
        alias: Some(order.workspace_alias.clone()),
        toolset: mcp::Toolset::Workspace(name),
        place,
        // The client is the agent.
        elicit: false,
        // A policy that is taken up later may ask.
        prompt: false,
        max_line: started.max_line(),
        attached: None,
        notify: |line| errln!("{line}"),
    }
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
                stderr::say_at_leisure(format_args!("{}\n", notices::quoted(text)));
            }
        }
    }
}

fn take<const N: usize>(streams: Vec<OwnedFd>) -> Result<[OwnedFd; N], Failure> {
    streams.try_into().map_err(|_| Failure::new("the broker sent the wrong streams"))
}
