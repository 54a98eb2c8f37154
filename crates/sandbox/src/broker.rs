//! The broker's side of a sandbox: checks the [`SandboxSpec`], chooses the mode, starts the first
//! stage and reads the result of the self-test. Nothing that an agent wrote passes through this
//! module.

use std::{
    ffi::OsString,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::process::{getegid, geteuid};

use super::{
    built_sandbox::{BuiltSandbox, PendingAgent, STEP_TIMEOUT},
    cgroup::Cgroup,
    channel::{Channel, ChannelError},
    home, landlock,
    launch_error::{LaunchError, LaunchFailure},
    launcher,
    layout::{self, GrantError, Layout, Plan},
    limits::Controllers,
    messages::{Enter, Init, Launch, MapsWritten, SelfTestTargets, StageMessage, Target},
    mount::{Mount, NoMount},
    mounts::{self, Mounts},
    named_pipes,
    process::Running,
    program_files::{self, AgentAccess, ProgramError, ProgramFiles},
    proxy, requirements,
    resolve::{Resolved, resolve_missing},
    sandbox_socket::{self, PendingSocket},
    self_test_sockets::TargetSockets,
    selftest,
    spec::{self, Enforcement, Mode, Network, SandboxSpec, StandardStreams},
    stage::Stage,
    streams::Streams,
    trusted_paths::{Access, AgentPath, Trusted, TrustedPath, TrustedPaths},
};

impl SandboxSpec {
    /// Makes the sandbox, tests it from inside, and holds the agent back.
    ///
    /// # Errors
    /// If paths overlap, something is missing or refused by this machine, or the self-test fails.
    /// Enforcement is weaker than full only down to the floor.
    pub fn launch(&self) -> Result<PendingAgent, LaunchError> {
        self.build()?.test()
    }

    /// Makes the sandbox without testing it. The caller serves its mount before the test, which
    /// uses it. Where no mount is possible, the sandbox is made without one.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn build(&self) -> Result<BuiltSandbox, LaunchError> {
        let prepared = self.prepare()?;
        let mode = requirements::choose(self.floor, self.mount)?;
        let reason = match self.attempt(&prepared, mode) {
            Err(LaunchFailure::Namespaces(reason)) => reason,
            other => return other.map_err(LaunchFailure::into),
        };
        // As root of the host, a sandbox without a mount may need no user namespace.
        let mut without = Err(LaunchFailure::Namespaces(reason.clone()));
        if self.mount {
            let mode = requirements::choose(self.floor, false)?;
            without = self.attempt(&prepared, mode);
        }
        let built = match without {
            Err(LaunchFailure::Namespaces(reason)) if self.floor <= Enforcement::Partial => {
                let weaker = requirements::partial()
                    .map_err(|more| LaunchError::Refused(format!("{reason}; and {more}")))?;
                self.attempt(&prepared, weaker)
            }
            other => other,
        };
        let mount = self.mount.then_some(Err(NoMount::Namespaces(reason)));
        built.map(|built| BuiltSandbox { mount, ..built }).map_err(LaunchFailure::into)
    }

    /// Returns the paths that the product trusts, and those that the agent gets.
    ///
    /// # Errors
    /// If a grant cannot be given.
    pub fn trusted_paths(&self) -> Result<TrustedPaths, LaunchError> {
        let (read, write) = self.grants()?;
        Ok(self.trusted_paths_with(&read, &write))
    }

    /// True if the program exists in the sandbox, as far as can be known before that is made.
    pub fn has_program(&self) -> bool {
        self.prepare().is_ok()
    }

    pub(super) fn trusted_paths_with(&self, read: &[Resolved], write: &[Resolved]) -> TrustedPaths {
        let state = TrustedPath { role: Trusted::State, path: self.state.clone() };
        let workspaces = self.workspaces().map(|(root, alias)| AgentPath {
            access: Access::Workspace,
            path: alias.unwrap_or(root).to_owned(),
            target: Some(root.to_owned()),
        });
        let home = AgentPath {
            access: Access::Home,
            path: self.home.clone(),
            target: resolve_missing(&self.home).ok().map(|found| found.target),
        };
        let granted = |access, found: &Resolved| AgentPath {
            access,
            path: found.path.clone(),
            target: Some(found.target.clone()),
        };
        let read = read.iter().map(|found| granted(Access::Read, found));
        let write = write.iter().map(|found| granted(Access::Write, found));
        // Checked before it is made: another agent's may exist already.
        let place = Path::new(named_pipes::PLACE).join(sandbox_socket::PREFIX);
        let sandbox_socket = TrustedPath { role: Trusted::SandboxSocket, path: place };
        TrustedPaths {
            trusted: [state, sandbox_socket]
                .into_iter()
                .chain(self.trusted.iter().cloned())
                .collect(),
            agents: workspaces.chain([home]).chain(read).chain(write).collect(),
        }
    }

    /// Resolves the paths that the agent may read, and those that it may change.
    pub(super) fn grants(&self) -> Result<(Vec<Resolved>, Vec<Resolved>), GrantError> {
        Ok((layout::resolve_grants(&self.read)?, layout::resolve_grants(&self.write)?))
    }

    fn prepare(&self) -> Result<Prepared, LaunchError> {
        if let Network::Connect { listen, .. } = &self.network {
            let first = requirements::first_unprivileged_port();
            if let Some(port) = listen.iter().find(|port| (1..first).contains(*port)) {
                return Err(LaunchError::PrivilegedPort(*port, first));
            }
        }
        // Resolved once, so that what is granted is what was checked.
        let (read, write) = self.grants()?;
        self.trusted_paths_with(&read, &write).check()?;
        let workspaces = self.existing_workspaces()?;
        let reach = self.reach(&read, &write);
        let program = self.find_program(&workspaces, &reach)?;
        if self.floor > Enforcement::None
            && let Some(inside) = program
                .needs
                .iter()
                .chain(&program.doubtful)
                .chain(program.links.iter().map(|(link, _)| link))
                .find(|path| workspaces.iter().any(|workspace| path.starts_with(workspace)))
        {
            return Err(LaunchError::InWorkspace(inside.clone()));
        }
        let withheld = self.withheld();
        let missing: Vec<_> = program.needs.iter().filter(|p| !reach.sees(p)).cloned().collect();
        if self.floor > Enforcement::None && !missing.is_empty() {
            return Err(LaunchError::Unreachable(program_files::libraries(&missing, &withheld)));
        }
        // The agent would choose the path that the message advises to grant.
        if let Some(path) = program.doubtful.iter().find(|path| !reach.sees(path)) {
            return Err(ProgramError::Doubtful(path.clone()).into());
        }
        // The message suggests no path that would be refused.
        let overlaps = |path: &Path| {
            withheld.iter().any(|other| path.starts_with(other) || other.starts_with(path))
        };
        let named =
            program_files::named_in(&self.arguments, |path| reach.sees(path) || overlaps(path));
        let suspects = program_files::libraries(&named, &withheld);
        let aliases = workspaces.iter().zip(self.workspaces());
        let aliases = aliases.filter_map(|(root, (_, alias))| Some(layout::links_to(root, alias?)));
        let links = program.links.iter().chain(&self.links).cloned();
        let links = links.chain(aliases.flatten()).collect();
        Ok(Prepared { read, write, workspaces, program, links, suspects })
    }

    /// Returns the canonical paths of the workspaces.
    pub(super) fn existing_workspaces(&self) -> Result<Vec<PathBuf>, LaunchError> {
        let found = self.workspaces().map(|(root, _)| mounts::existing(root));
        found.collect::<Result<_, _>>().map_err(|e| LaunchError::Io("look up the workspace", e))
    }

    /// Returns the paths that no agent is given, nor any directory that contains them.
    pub(super) fn withheld(&self) -> Vec<PathBuf> {
        let private = self.trusted.iter().filter(|trusted| trusted.role.is_private());
        self.workspaces()
            .map(|(root, _)| root)
            .chain([self.state.as_path()])
            .chain(private.map(|trusted| trusted.path.as_path()))
            .map(|path| resolve_missing(path).map_or_else(|_| path.into(), |found| found.target))
            .collect()
    }

    /// Returns the paths that the agent may change and those that it sees. Both are empty for an
    /// unconfined agent, from which nothing is hidden.
    pub(super) fn reach(&self, read: &[Resolved], write: &[Resolved]) -> AgentAccess {
        if self.floor == Enforcement::None {
            return AgentAccess::default();
        }
        let given = || read.iter().chain(write);
        let home = resolve_missing(&self.home).map(|found| found.target);
        AgentAccess {
            writes: write.iter().map(|grant| grant.target.clone()).chain(home).collect(),
            sees: given().map(|grant| grant.target.clone()).collect(),
            links: given().flat_map(|g| g.links.iter().map(|(link, _)| link.clone())).collect(),
        }
    }

    fn attempt(&self, prepared: &Prepared, mode: Mode) -> Result<BuiltSandbox, LaunchFailure> {
        if let Network::Connect { .. } = self.network
            && mode.is_confined()
            && !landlock::restricts_tcp()
        {
            return Err(LaunchError::Refused(
                "limiting TCP to some ports needs Landlock ABI 4 (Linux 6.7); use `--agent-network none`"
                    .to_owned(),
            )
            .into());
        }
        let owner = mode.user();
        let home = home::prepare(&self.home, owner).map_err(LaunchError::Home)?;
        let target_sockets =
            TargetSockets::set(&self.network).map_err(|e| LaunchError::Io("open sockets", e))?;
        let streams = match self.streams {
            StandardStreams::Pipes => Streams::open(owner),
            StandardStreams::Own => Streams::own(owner),
            StandardStreams::Terminal { .. } => Ok(Streams::none()),
        };
        let streams = streams.map_err(|e| LaunchError::Io("open pipes", e))?;
        let commands = self.commands.then(Channel::pair).transpose();
        let (commands, orders) = commands.map_err(LaunchError::Channel)?.unzip();
        let (channel, theirs) = Channel::pair().map_err(LaunchError::Channel)?;
        let child = Stage::Launch.command(theirs.into()).process_group(0).spawn();
        let child = Running(child.map_err(|e| LaunchError::Io("execute this program again", e))?);
        // The child waits for its first message. Without a cgroup, resource limits apply.
        let cgroup = mode.is_confined().then(|| Cgroup::make(&self.limits, child.0.id()).ok());
        let cgroup = cgroup.flatten();

        let inner = launcher::inner_ids(geteuid().as_raw(), getegid().as_raw());
        let seen = match mode {
            Mode::Root { user } => (user, user),
            Mode::Mapped { inner, .. } => (inner, inner),
            _ => inner,
        };
        let sandbox_socket = self.sandbox_socket(prepared, mode);
        let open = sandbox_socket.as_ref().and_then(|sandbox_socket| sandbox_socket.as_ref().ok());
        let layout = self.layout(prepared, &home, seen, mode, open)?;
        let mounts = layout.mounts.iter().map(|mount| mount.path.clone()).collect();
        let launch = Launch { mode, private_network: self.network == Network::None, mounts };
        let init = Init { mode, layout, sockets: self.sockets(mode) };
        let mut enter = self.enter(prepared, &home, mode, target_sockets.self_test_targets())?;
        enter.sandbox_socket = open.map(PendingSocket::entrance);
        enter.controllers = cgroup.as_ref().map(Cgroup::controllers).unwrap_or_default();
        let sent = (|| {
            channel.send(&launch, &[])?;
            if let Mode::Mapped { user, inner } = mode
                && let Some(messages) = map(&channel, child.0.id(), user, inner)?
            {
                return Ok(Some((messages, Vec::new())));
            }
            channel.send(&init, &[])?;
            let mut descriptors: Vec<_> = streams.theirs.iter().map(OwnedFd::as_fd).collect();
            descriptors.extend(orders.iter().map(Channel::as_fd));
            channel.send(&enter, &descriptors)?;
            Ok(None)
        })();
        let (messages, mut descriptors) = match sent {
            Ok(Some(messages)) => messages,
            Ok(None) => channel.receive_within(STEP_TIMEOUT).map_err(LaunchError::Channel)?,
            Err(error @ ChannelError::TooLarge(_)) => {
                return Err(LaunchError::Channel(error).into());
            }
            // A stage that failed early did not receive the rest; its message gives the reason.
            Err(error) => match channel.receive_within(STEP_TIMEOUT) {
                Ok(messages) => messages,
                Err(_) => return Err(LaunchError::Channel(error).into()),
            },
        };
        let (mount, sockets) = match messages {
            StageMessage::Built { mount } => (mount, init.sockets.split(&mut descriptors)),
            StageMessage::Failed { stage, error, namespaces: true } => {
                return Err(LaunchFailure::Namespaces(format!(
                    "cannot {stage}: {error} ({})",
                    requirements::advice()
                )));
            }
            StageMessage::Failed { stage, error, .. } => {
                return Err(LaunchError::Stage(stage, error).into());
            }
            StageMessage::Ready(_)
            | StageMessage::Prepared { .. }
            | StageMessage::NotExecuted { .. }
            | StageMessage::Unmapped => {
                return Err(LaunchError::Channel(ChannelError::Closed).into());
            }
        };
        let (user, group) = seen;
        let mount = match mount {
            Some(Ok(())) => {
                let (mut devices, mounts) = (descriptors, prepared.workspaces.len());
                if devices.len() < mounts {
                    return Err(LaunchError::Channel(ChannelError::Closed).into());
                }
                let processes = devices.split_off(mounts).pop();
                Some(Ok(Mount { devices, processes, user, group }))
            }
            Some(Err(reason)) => Some(Err(reason)),
            None if self.mount => {
                let reason = "the sandbox has no root directory of its own".to_owned();
                Some(Err(NoMount::Namespaces(reason)))
            }
            None => None,
        };
        let suspects = prepared.suspects.clone();
        let requested_streams = self.streams;
        Ok(BuiltSandbox {
            mount,
            sockets,
            requested_streams,
            streams,
            commands,
            suspects,
            sandbox_socket,
            target_sockets,
            channel,
            child,
            cgroup,
        })
    }

    fn sandbox_socket(
        &self,
        prepared: &Prepared,
        mode: Mode,
    ) -> Option<Result<PendingSocket, String>> {
        let sees = |path: &Path| sandbox_socket::holds(&[&prepared.read, &prepared.write], path);
        self.sandbox_socket.then(|| PendingSocket::make(mode, sees))
    }

    fn layout(
        &self,
        prepared: &Prepared,
        home: &Path,
        user: (u32, u32),
        mode: Mode,
        sandbox_socket: Option<&PendingSocket>,
    ) -> Result<Layout, LaunchError> {
        if !mode.is_full() {
            return Ok(Layout::default());
        }
        let mounts = Mounts::read().map_err(GrantError::Mounts)?;
        let files = sandbox_socket.map(PendingSocket::files).unwrap_or_default();
        let workspaces: Vec<_> = prepared.workspaces.iter().map(PathBuf::as_path).collect();
        let plan = Plan {
            read: &prepared.read,
            write: &prepared.write,
            home,
            workspaces: &workspaces,
            links: &prepared.links,
            files: &files,
            user,
            // Sticky and writable by all: there is only one user.
            temporary_mode: 0o1777,
            mount: self.mount && mode.has_user_namespace(),
        };
        Ok(Layout::new(&plan, &mounts)?)
    }

    fn enter(
        &self,
        prepared: &Prepared,
        home: &Path,
        mode: Mode,
        self_test_targets: SelfTestTargets,
    ) -> Result<Enter, LaunchError> {
        let temporary = if mode.is_full() {
            PathBuf::from(spec::TEMPORARY)
        } else {
            home::temporary(home, mode.user())?
        };
        let mut environment = self.environment.clone();
        for (name, value) in [
            ("HOME", home.as_os_str().to_owned()),
            ("TMPDIR", temporary.clone().into_os_string()),
            ("USER", OsString::from("agent")),
        ] {
            environment.entry(name.into()).or_insert(value);
        }
        if self.has_proxy(mode) {
            proxy::name_in(&mut environment, &self.listeners);
        }
        let paths = |found: &[Resolved]| found.iter().map(|r| r.target.clone()).collect();
        let (ports, udp, listen) = match &self.network {
            Network::None => (None, false, Vec::new()),
            Network::Connect { ports, dns, listen } => (Some(ports.clone()), *dns, listen.clone()),
        };
        let mut enter = Enter {
            mode,
            program: prepared.program.path.clone(),
            name: self.program.clone(),
            arguments: self.arguments.clone(),
            environment: environment.into_iter().collect(),
            workspace: prepared.workspaces.first().cloned().unwrap_or_default(),
            further: prepared.workspaces.iter().skip(1).cloned().collect(),
            targets: Vec::new(),
            uid: mode.user().unwrap_or_else(|| geteuid().as_raw()),
            home: home.to_owned(),
            temporary,
            readable: paths(&prepared.read),
            writable: paths(&prepared.write),
            ports,
            listen,
            udp,
            limits: self.limits,
            controllers: Controllers::default(),
            files: self.files,
            terminal: matches!(self.streams, StandardStreams::Terminal { .. }),
            commands: self.commands,
            self_test_targets,
            sandbox_socket: None,
        };
        enter.targets = self.targets(&enter)?;
        Ok(enter)
    }

    /// Returns the paths that must be out of the agent's reach.
    fn targets(&self, enter: &Enter) -> Result<Vec<Target>, LaunchError> {
        let files = self.trusted.iter().filter(|trusted| trusted.role.is_in_use());
        let files = files.map(|trusted| ("operator's file", &*trusted.path));
        let state = [("state directory", &*self.state)].into_iter();
        let named = state.chain(files).map(|(role, path)| (role.to_owned(), path));
        let mut targets = Vec::new();
        for (role, path) in enter.workspaces().chain(named) {
            // A path that does not exist yet is out of reach.
            let Ok(path) = mounts::existing(path) else { continue };
            let identity =
                selftest::identity(&path).map_err(|e| LaunchError::Io("look up a directory", e))?;
            let target = Target { role, path, identity };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(targets)
    }
}

/// Maps the users of the first stage's new namespace once it is made. Returns any other message
/// that the stage sends instead.
fn map(
    channel: &Channel,
    stage: u32,
    user: u32,
    inner: u32,
) -> Result<Option<StageMessage>, ChannelError> {
    match channel.receive_within(STEP_TIMEOUT)?.0 {
        StageMessage::Unmapped => {
            launcher::map_ids_of(stage, user, inner)
                .map_err(|e| ChannelError::Io("map users for", e))?;
            channel.send(&MapsWritten, &[])?;
            Ok(None)
        }
        other => Ok(Some(other)),
    }
}

struct Prepared {
    read: Vec<Resolved>,
    write: Vec<Resolved>,
    /// The first is the one in which the program starts.
    workspaces: Vec<PathBuf>,
    program: ProgramFiles,
    /// Links on the way to the program and to the workspaces.
    links: Vec<(PathBuf, PathBuf)>,
    suspects: Vec<PathBuf>,
}
