//! The gateway process of `portcullis run`: the confined process between editor and agent.
//!
//! The broker starts it, passes it the editor's streams and, once the agent waits in its sandbox,
//! the agent's. It confines itself before it has a second thread, and reports "started" only when
//! the start is recorded. While it serves, the broker passes it policy reloads (`orders`).

use std::{
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
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;

use super::{
    commands::SandboxCommands,
    egress::CredentialLinks,
    gateway_start::{self, OpenedWorkspace, Origins, StartedGateway},
    orders::OrderReceiver,
    protocol::{self, Acp, AgentOrder, AgentService, Progress, ServeOrder},
};
use crate::{
    acp::{self, EditorUser},
    app::{
        bootstrap::Started,
        connection_notices::{ConnectionNotices, ExplainOptions},
        failure::{Context as _, Failure},
        logging,
        policy_transfer::SharedPolicy,
        process,
        session::session,
        stderr,
    },
    cli::{
        agent_notices::{self, AgentNotices},
        announcer::{self, Announcer, EditorOrTerminal},
        gateway_options,
    },
    commands::Registry,
    egress::{CredentialRoute, Egress, Links},
    mcp::{
        self,
        attach::AttachTokens,
        paths::Roots,
        sandbox_socket::{Connections, SandboxSocket},
    },
    model::{ClaimedToolCall, Connect, Host, Session, Transport},
    sandbox::{Channel, become_gateway, stop_signals, suspend_signal},
};

/// The hidden first argument that makes this process a gateway process.
pub(crate) const COMMAND: &str = "gateway-process";

/// Longest piece of the agent's stderr that is shown as one line, in bytes.
const MAX_LINE: u64 = 8 * 1024;

/// The number of the agent's standard streams.
const STREAMS: usize = 3;

/// Timeout of the last threads once nothing is served any more.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of requests of MCP clients in the sandbox at that time. The broker waits for twenty
/// seconds in all.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for the last programs to leave the mount, with their writes. The broker kills them
/// after four seconds.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for the end of the agent's stderr.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the gateway process, if this process was started as one.
pub(crate) fn run_if_gateway() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gateway(parent).or_fail("cannot start the gateway")?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    // The broker stops the job; this process continues.
    let _suspend = suspend_signal().or_fail("cannot watch for signals")?;
    let (order, files) = channel.receive::<ServeOrder>().or_fail("cannot start the gateway")?;
    let mut files = files.into_iter();
    let agent = order.agent.parse().or_fail("cannot name the agent")?;
    let open = |workspace| OpenedWorkspace::open(workspace, &agent, order.mount, &mut files);
    let given = order.workspaces.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let editor = files.collect::<Vec<_>>();
    let transport = match order.service {
        AgentService::Acp(_) => Transport::Acp,
        AgentService::Command | AgentService::Terminal => Transport::Mount,
    };
    let session = session(agent, transport)?;
    if let Some((main, workspace)) = given.first().zip(order.workspaces.first()) {
        let options = logging::Options { log: workspace.launch.log.clone() };
        logging::start(&options, main.state_path())?;
    }
    // The first workspace decides on connections.
    let explain = given.first().zip(order.workspaces.first());
    let explain = explain.map(|(given, workspace)| {
        given.options().explain(&session.agent, workspace.launch.hosts.preset())
    });
    let explain = explain.unwrap_or_default();
    let (introduced, shared) = gateway_start::start(&channel, given, &session, order.mount)?;
    let StartedGateway { started, mounted, agent, origins, streams, egress } = introduced;
    let user = Arc::<EditorUser>::default();
    let serve = |ends| serve_egress(&started, ends, Arc::clone(&user), explain);
    let egress = egress.map(serve).transpose()?;
    let location = if mounted.is_empty() {
        mcp::ClientLocation::Sandbox
    } else {
        mcp::ClientLocation::Mounted
    };
    let setup = Arc::clone(&origins.setup);
    let serving = Serving {
        channel: &channel,
        signals: &signals,
        order: &order,
        started: &started,
        shared: &shared,
        location,
        egress: egress.as_ref(),
        user: &user,
        setup: &setup,
    };
    let served = match &order.service {
        AgentService::Acp(way) => serving.acp(way, (agent, streams), editor, origins),
        AgentService::Command => serving.command(),
        AgentService::Terminal => {
            stderr::hold();
            let served = serving.command();
            stderr::show_held();
            served
        }
    };
    // Also after an error: writes are committed, and the end is recorded.
    let (end, mut is_over) = (Instant::now() + MOUNT_TIMEOUT, true);
    for mounted in mounted {
        is_over &= mounted.end(end.saturating_duration_since(Instant::now()));
    }
    if let Some(egress) = egress {
        egress.stop(STOP_TIMEOUT);
    }
    served?;
    let stopped: Vec<_> = started.into_iter().map(|started| started.stop(STOP_TIMEOUT)).collect();
    stopped.into_iter().try_for_each(|stopped| stopped.map(drop))?;
    match is_over {
        true => Ok(()),
        false => Err(Failure::new(
            "a mount was stopped while a request was under way, of which the log may have no record",
        )),
    }
}

/// Serves the sandbox's proxy under the policy of the first workspace.
fn serve_egress(
    started: &[Started],
    (ends, credentials): (Links, CredentialLinks),
    editor: Arc<EditorUser>,
    explain: ExplainOptions,
) -> Result<Egress, Failure> {
    const DOING: &str = "cannot serve the proxy";
    let started = started.first().ok_or_else(|| Failure::new(DOING))?;
    let session = Session { transport: Transport::Proxy, ..started.session.clone() };
    let terminal = Announcer::of(started);
    let approver = Box::new(EditorOrTerminal { editor, terminal });
    let gateway = Arc::clone(&started.gateway);
    let output = Box::new(ConnectionNotices::new(explain));
    let egress = Egress::start(gateway, session, ends, approver, output);
    let egress = egress.or_fail(DOING)?;
    for (protocol::CredentialRoute { id, host, port, url }, process) in credentials {
        let host = Host::parse(&host).or_fail(DOING)?;
        let route = CredentialRoute { id, to: Connect { host, port }, url };
        egress.add_credential(route, process).or_fail(DOING)?;
    }
    Ok(egress)
}

/// The service of an agent or command, and the broker, which sends orders.
struct Serving<'a> {
    channel: &'a Channel,
    signals: &'a SignalFd,
    order: &'a ServeOrder,
    /// The workspaces, in their order.
    started: &'a [Started],
    /// The files through which their policy reloads come.
    shared: &'a [SharedPolicy],
    /// The location of the agent's MCP clients.
    location: mcp::ClientLocation,
    /// The service of the sandbox's proxy, if it has one.
    egress: Option<&'a Egress>,
    /// The editor's user, of whom the proxy has something asked.
    user: &'a Arc<EditorUser>,
    /// True until the agent's own programs begin.
    setup: &'a AtomicBool,
}

impl Serving<'_> {
    /// Serves the mount until the broker reports the end of the command.
    fn command(&self) -> Result<(), Failure> {
        self.print_started()?;
        let (done, _serving) = io::pipe().or_fail("cannot open a pipe")?;
        self.orders(None)?.follow(&done);
        Ok(())
    }

    /// Returns the workspace in which the program begins.
    fn main(&self) -> Result<&Started, Failure> {
        self.started.first().ok_or_else(|| Failure::new("the order names no workspace"))
    }

    /// Returns the further workspaces, as transports use them.
    fn further(&self) -> Vec<mcp::FurtherWorkspace> {
        let further = self.started.iter().zip(&self.order.workspaces).skip(1);
        let reached = |(started, workspace): (&Started, &protocol::WorkspaceOrder)| {
            let gateway = Arc::clone(&started.gateway);
            let roots = Roots::new(gateway.workspace().root(), Some(&workspace.alias));
            let options = gateway_options::log_options_of(started);
            mcp::FurtherWorkspace { gateway, roots, options }
        };
        further.map(reached).collect()
    }

    /// Returns the longest line of a request or a reply, in bytes.
    fn max_line(&self) -> usize {
        self.started.iter().map(Started::max_line).max().unwrap_or_default()
    }

    fn alias(&self) -> Option<PathBuf> {
        self.order.workspaces.first().map(|workspace| workspace.alias.clone())
    }

    fn print_started(&self) -> Result<(), Failure> {
        let session = self.main()?.session.id.clone();
        let records = self.started.iter().map(|started| started.record).collect();
        let sent = self.channel.send(&Progress::Started { session, records }, &[]);
        sent.or_fail("cannot answer the broker")
    }

    fn orders(&self, agent_in: Option<Closable>) -> Result<OrderReceiver<'_>, Failure> {
        let all = self.started.iter().zip(self.shared);
        let reloading = all.map(|(started, shared)| started.reloading(shared)).collect();
        let Self { channel, signals, egress, setup, .. } = *self;
        let started = self.main()?;
        Ok(OrderReceiver { started, channel, signals, reloading, agent_in, egress, setup })
    }

    /// Serves the agent over ACP.
    fn acp(
        &self,
        way: &Acp,
        (mut agent, mut streams): (AgentOrder, Vec<OwnedFd>),
        editor: Vec<OwnedFd>,
        origins: Origins,
    ) -> Result<(), Failure> {
        let started = self.main()?;
        let [editor_in, editor_out] = take(editor)?;
        let orders = if agent.commands { streams.pop() } else { None };
        let Origins { leaders, tool_call, .. } = origins;
        let commands = orders
            .map(|orders| SandboxCommands::start(orders, Arc::clone(&started.gateway), leaders));
        let commands = commands.transpose().or_fail("cannot start a thread")?;
        let registry = commands.as_ref().map(|commands| Arc::clone(&commands.registry));
        let sandbox_socket = if streams.len() > STREAMS { streams.pop() } else { None };
        let [agent_in, agent_out, agent_err] = take(streams)?;
        let attached = match sandbox_socket.zip(agent.entrance.take()) {
            Some((sandbox_socket, entrance)) => {
                let config = self.mcp_config(started, registry.clone());
                let tokens = AttachTokens::new(&entrance.program, &entrance.address);
                let connections = match entrance.is_relayed {
                    true => Connections::Relay(sandbox_socket),
                    false => Connections::Listener(sandbox_socket),
                };
                let gateway = Arc::clone(&started.gateway);
                let socket = SandboxSocket::start(connections, gateway, tokens.clone(), config)
                    .or_fail("cannot start a thread")?;
                Some((socket, tokens))
            }
            None => None,
        };
        let (socket, tokens) = attached.unzip();
        self.print_started()?;

        let agent_in = Closable::new(agent_in.into());
        let orders = self.orders(Some(agent_in.clone()))?;
        let (reported_all, wait_for_all) = mpsc::channel::<()>();
        thread::Builder::new()
            .name("agent-stderr".to_owned())
            .spawn(move || {
                show_errors(agent_err.into());
                drop(reported_all);
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
                .name("gateway-orders".to_owned())
                .spawn_scoped(scope, move || orders.follow(&done))
                .or_fail("cannot start a thread")?;
            let served = self.serve(started, (way, streams), tokens, (&agent, registry, tool_call));
            // The receiver of orders sees it closed.
            drop(serving);
            served
        })?;
        // The broker stops an agent that continues, while its writes are still committed. The
        // agent may have ended already.
        let connection_reported = self.egress.is_some_and(Egress::has_reported);
        let _ = self
            .channel
            .send(&Progress::Served { no_acp: notices.is_no_acp(), connection_reported }, &[]);
        // The agent's last output must not be lost; an agent that continues is cut off after the
        // timeout.
        let _ = wait_for_all.recv_timeout(STDERR_TIMEOUT);
        if let Some(socket) = socket {
            socket.stop(SOCKET_TIMEOUT);
        }
        if let Some(commands) = commands {
            commands.end();
        }
        Ok(())
    }

    /// Serves until the agent closes its output, or the editor is gone and the agent's time has
    /// passed.
    fn serve(
        &self,
        started: &Started,
        (way, streams): (&Acp, Streams),
        attach: Option<Arc<AttachTokens>>,
        (agent, commands, tool_call): (&AgentOrder, Option<Arc<Registry>>, Arc<ClaimedToolCall>),
    ) -> Result<(), Failure> {
        let gateway = &started.gateway;
        let config = acp::Config {
            workspace_alias: self.alias(),
            further: self.further(),
            granted: agent.granted.clone(),
            variables: agent.variables.clone(),
            source: way.source.parse().or_fail("cannot serve")?,
            prompt: !started.durable,
            forward: way.forward.clone(),
            notices: Some(streams.notices),
            commands,
            tool_call,
            max_line: self.max_line(),
            attach,
            user: Arc::clone(self.user),
            ..acp::Config::new(started.session.clone(), gateway.workspace().root().to_owned())
        };
        let editor = (streams.editor_in, streams.editor_out);
        let served = (streams.agent_out, ClosedWhenDropped(streams.agent_in));
        let ending = acp::serve(gateway, &config, editor, served).or_fail("cannot serve")?;
        tracing::info!(?ending, "the connection ended");
        Ok(())
    }

    /// Returns the configuration of MCP clients that connect to the sandbox socket.
    fn mcp_config(&self, started: &Started, commands: Option<Arc<Registry>>) -> mcp::Config {
        let root = started.gateway.workspace().root().to_owned();
        let name = mcp::Name::near(&root.file_name().unwrap_or_default().to_string_lossy());
        mcp::Config {
            session: started.session.clone(),
            root,
            alias: self.alias(),
            further: self.further(),
            commands,
            toolset: mcp::Toolset::Workspace(name),
            location: self.location,
            // The client is the agent itself.
            elicit: false,
            // A policy reload may add the effect `ask`.
            prompt: false,
            max_line: self.max_line(),
            attached: None,
            revoked: Arc::default(),
            options: gateway_options::log_options_of(started),
            announce: announcer::announce,
        }
    }
}

/// The streams of editor and agent.
struct Streams {
    editor_in: File,
    editor_out: File,
    agent_in: Closable,
    agent_out: File,
    /// Messages about the agent's output besides ACP.
    notices: Arc<AgentNotices>,
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

    /// Closes it, once a write in progress has ended: at the latest when the agent ends.
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
            // Among many writes the closing thread may not get the lock for long.
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

/// A writer that closes the agent's input when dropped, while other threads could still close it.
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

/// Copies the agent's stderr to ours, line by line and escaped, so that it cannot control a
/// terminal or imitate one of our own messages.
fn show_errors(errors: File) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                stderr::write_blocking(format_args!("{}\n", agent_notices::quoted(text)));
            }
        }
    }
}

fn take<const N: usize>(streams: Vec<OwnedFd>) -> Result<[OwnedFd; N], Failure> {
    streams.try_into().map_err(|_| Failure::new("the broker sent the wrong streams"))
}
