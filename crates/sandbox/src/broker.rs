//! The broker's side of a cell: checks what was asked for, chooses how the
//! cell is made, starts its first stage and reads what the self-test found.
//! Nothing that an agent wrote passes through here.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{getegid, geteuid},
};

use super::{
    bait::Trap,
    channel::{Channel, ChannelError},
    hatch::{self, Hatch, Opened},
    hint::{self, Program, ProgramError, Reach},
    home, landlock,
    launch_error::LaunchError,
    launcher,
    layout::{self, GrantError, Layout, Plan},
    messages::{Bait, Enter, Go, Init, Launch, Mapped, News, Target},
    mounts::{self, Mounts},
    named_pipes,
    process::Running,
    requirements,
    resolve::{Resolved, resolve_missing},
    running_agent::RunningAgent,
    selftest,
    spec::{self, Cell, Enforcement, INNER_USER, Mode, Network, Report},
    stage::Stage,
    trusted_paths::{Access, AgentPath, Trusted, TrustedPath, TrustedPaths},
};

/// How long the stages may take until the self-test is done.
const PATIENCE: Duration = Duration::from_secs(30);

/// An agent that is confined, tested and waiting for the word.
#[derive(Debug)]
pub struct PendingAgent {
    /// Our end of the agent's standard input.
    pub stdin: OwnedFd,
    /// Our end of its standard output.
    pub stdout: OwnedFd,
    /// Our end of its standard error.
    pub stderr: OwnedFd,
    /// What the self-test found.
    pub report: Report,
    /// Directories that the agent may turn out to need, judged by its command
    /// line; for a message when it dies at once.
    pub suspects: Vec<PathBuf>,
    /// Where whoever connects from the sandbox is to be heard, and nobody else
    /// can connect; or why there is nothing. Nothing where none was asked for.
    pub hatch: Option<Result<Opened, String>>,
    channel: Channel,
    child: Running,
}

impl Cell {
    /// Makes the cell, tests it from inside, and holds the agent back.
    ///
    /// # Errors
    /// When anything overlaps, is missing, is not allowed by this machine, or
    /// does not hold. Weaker enforcement than full only down to the floor.
    pub fn launch(&self) -> Result<PendingAgent, LaunchError> {
        let prepared = self.prepare()?;
        let mode = requirements::choose(self.floor)?;
        match self.attempt(&prepared, mode) {
            Err(Attempt::Namespaces(why)) if self.floor <= Enforcement::Partial => {
                let weaker = requirements::partial()
                    .map_err(|more| LaunchError::Refused(format!("{why}; and {more}")))?;
                self.attempt(&prepared, weaker).map_err(Attempt::into)
            }
            other => other.map_err(Attempt::into),
        }
    }

    /// What the product trusts, and what the agent gets.
    ///
    /// # Errors
    /// When a grant cannot be given.
    pub fn trusted_paths(&self) -> Result<TrustedPaths, LaunchError> {
        let (read, write) = self.grants()?;
        Ok(self.trusted_paths_with(&read, &write))
    }

    fn trusted_paths_with(&self, read: &[Resolved], write: &[Resolved]) -> TrustedPaths {
        let state = TrustedPath { role: Trusted::State, path: self.state.clone() };
        let root = self.workspace.clone();
        let workspace = AgentPath {
            access: Access::Workspace,
            path: self.alias.clone().unwrap_or_else(|| root.clone()),
            target: Some(root),
        };
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
        // Also before it is made: another agent's may be there already.
        let place = std::path::Path::new(named_pipes::PLACE).join(hatch::PREFIX);
        let hatch = TrustedPath { role: Trusted::Hatch, path: place };
        TrustedPaths {
            trusted: [state, hatch].into_iter().chain(self.trusted.iter().cloned()).collect(),
            agents: [workspace, home].into_iter().chain(read).chain(write).collect(),
        }
    }

    /// What the agent may read, and what it may change, looked up.
    fn grants(&self) -> Result<(Vec<Resolved>, Vec<Resolved>), GrantError> {
        Ok((layout::resolve_grants(&self.read)?, layout::resolve_grants(&self.write)?))
    }

    fn prepare(&self) -> Result<Prepared, LaunchError> {
        if let Network::Connect { listen, .. } = &self.network {
            let first = requirements::first_unprivileged_port();
            if let Some(port) = listen.iter().find(|port| **port < first) {
                return Err(LaunchError::PrivilegedPort(*port, first));
            }
        }
        // Looked up once: what is checked is what is given.
        let (read, write) = self.grants()?;
        self.trusted_paths_with(&read, &write).check()?;
        let workspace = mounts::existing(&self.workspace)
            .map_err(|e| LaunchError::Io("look up the workspace", e))?;
        let directory =
            std::env::current_dir().map_err(|e| LaunchError::Io("look up this directory", e))?;
        let path = std::env::var_os("PATH");
        let reach = self.reach(&read, &write);
        let program = hint::find(&self.program, path.as_deref(), &directory, &reach)?;
        if self.floor > Enforcement::None
            && let Some(inside) = program
                .needs
                .iter()
                .chain(&program.doubtful)
                .chain(program.links.iter().map(|(link, _)| link))
                .find(|path| path.starts_with(&workspace))
        {
            return Err(LaunchError::InWorkspace(inside.clone()));
        }
        let private = self.trusted.iter().filter(|trusted| trusted.role.is_private());
        let kept: Vec<_> = [&self.workspace, &self.state]
            .into_iter()
            .chain(private.map(|trusted| &trusted.path))
            .map(|path| resolve_missing(path).map_or_else(|_| path.clone(), |found| found.target))
            .collect();
        let missing: Vec<_> = program.needs.iter().filter(|p| !reach.sees(p)).cloned().collect();
        if self.floor > Enforcement::None && !missing.is_empty() {
            return Err(LaunchError::Unreachable(hint::directories(&missing, &kept)));
        }
        // The agent would choose what the operator is told to give it.
        if let Some(path) = program.doubtful.iter().find(|path| !reach.sees(path)) {
            return Err(ProgramError::Doubtful(path.clone()).into());
        }
        // What would be refused is not suggested.
        let overlaps = |path: &std::path::Path| {
            kept.iter().any(|kept| path.starts_with(kept) || kept.starts_with(path))
        };
        let named = hint::named_in(&self.arguments, |path| reach.sees(path) || overlaps(path));
        let suspects = hint::directories(&named, &kept);
        let alias = self.alias.iter().flat_map(|alias| layout::links_to(&workspace, alias));
        let links = program.links.iter().cloned().chain(alias).collect();
        Ok(Prepared { read, write, workspace, program, links, suspects })
    }

    /// What the agent may change and sees. One that is not confined does both
    /// everywhere, so nothing is kept from it.
    fn reach(&self, read: &[Resolved], write: &[Resolved]) -> Reach {
        if self.floor == Enforcement::None {
            return Reach::default();
        }
        let given = || read.iter().chain(write);
        let home = resolve_missing(&self.home).map(|found| found.target);
        Reach {
            writes: write.iter().map(|grant| grant.target.clone()).chain(home).collect(),
            sees: given().map(|grant| grant.target.clone()).collect(),
            links: given().flat_map(|g| g.links.iter().map(|(link, _)| link.clone())).collect(),
        }
    }

    fn attempt(&self, prepared: &Prepared, mode: Mode) -> Result<PendingAgent, Attempt> {
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
        let trap = Trap::set(&self.network).map_err(|e| LaunchError::Io("open sockets", e))?;
        let streams = Streams::open(owner).map_err(|e| LaunchError::Io("open pipes", e))?;
        let (channel, theirs) = Channel::pair().map_err(LaunchError::Channel)?;
        let child = Command::new("/proc/self/exe")
            .args(Stage::Launch.arguments())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| LaunchError::Io("execute this program again", e))?;
        let child = Running(child);

        let inner = launcher::inner_ids(geteuid().as_raw(), getegid().as_raw());
        let seen = match mode {
            Mode::Root { user } => (user, user),
            Mode::Mapped { .. } => (INNER_USER, INNER_USER),
            _ => inner,
        };
        let launch = Launch { mode, private_network: self.network == Network::None };
        let hatch = self.hatch(prepared, mode);
        let open = hatch.as_ref().and_then(|hatch| hatch.as_ref().ok());
        let init = Init { mode, layout: self.layout(prepared, &home, seen, mode, open)? };
        let mut enter = self.enter(prepared, &home, mode, trap.bait())?;
        enter.hatch = open.map(Hatch::entrance);
        let sent = (|| {
            channel.send(&launch, &[])?;
            if let Mode::Mapped { user } = mode
                && let Some(news) = map(&channel, child.0.id(), user)?
            {
                return Ok(Some(news));
            }
            channel.send(&init, &[])?;
            let descriptors =
                [streams.stdin.as_fd(), streams.stdout.as_fd(), streams.stderr.as_fd()];
            channel.send(&enter, &descriptors)?;
            Ok(None)
        })();
        let news = match sent {
            Ok(Some(news)) => news,
            Ok(None) => channel.receive_within(PATIENCE).map_err(LaunchError::Channel)?.0,
            // A stage that failed early did not wait for the rest; it says why.
            Err(error) => match channel.receive_within(PATIENCE) {
                Ok((news, _)) => news,
                Err(_) => return Err(LaunchError::Channel(error).into()),
            },
        };
        let report = match news {
            News::Ready(report) => report,
            News::Failed { stage, error, namespaces: true } => {
                return Err(Attempt::Namespaces(format!(
                    "cannot {stage}: {error} ({})",
                    requirements::advice()
                )));
            }
            News::Failed { stage, error, .. } => {
                return Err(LaunchError::Stage(stage, error).into());
            }
            News::NotExecuted { .. } | News::Unmapped => {
                return Err(LaunchError::Channel(ChannelError::Closed).into());
            }
        };
        if report.surprises().next().is_some() {
            let list: Vec<_> = report
                .surprises()
                .map(|p| format!("{} (before: {}, after: {})", p.name, p.before, p.after))
                .collect();
            return Err(LaunchError::SelfTest(list.join("; ")).into());
        }
        let Streams { ours: [stdin, stdout, stderr], .. } = streams;
        let suspects = prepared.suspects.clone();
        let hatch = hatch.map(|hatch| {
            let hatch = hatch?;
            report.hatch.clone().unwrap_or(Ok(()))?;
            hatch.open()
        });
        Ok(PendingAgent { stdin, stdout, stderr, report, suspects, hatch, channel, child })
    }

    fn hatch(&self, prepared: &Prepared, mode: Mode) -> Option<Result<Hatch, String>> {
        let sees = |path: &std::path::Path| hatch::holds(&[&prepared.read, &prepared.write], path);
        self.hatch.then(|| Hatch::make(mode, sees))
    }

    fn layout(
        &self,
        prepared: &Prepared,
        home: &std::path::Path,
        user: (u32, u32),
        mode: Mode,
        hatch: Option<&Hatch>,
    ) -> Result<Layout, LaunchError> {
        if !mode.is_full() {
            return Ok(Layout::default());
        }
        let mounts = Mounts::read().map_err(GrantError::Mounts)?;
        let files = hatch.map(Hatch::files).unwrap_or_default();
        let plan = Plan {
            read: &prepared.read,
            write: &prepared.write,
            home,
            workspace: &prepared.workspace,
            links: &prepared.links,
            files: &files,
            user,
            // Sticky and open to all; there is only one user.
            temporary_mode: 0o1777,
        };
        Ok(Layout::new(&plan, &mounts)?)
    }

    fn enter(
        &self,
        prepared: &Prepared,
        home: &std::path::Path,
        mode: Mode,
        bait: Bait,
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
        let mut targets = Vec::new();
        let roles = [("workspace", &self.workspace), ("state directory", &self.state)];
        let files = self.trusted.iter().filter(|trusted| trusted.role.is_in_use());
        let files = files.map(|trusted| ("operator's file", &trusted.path));
        for (role, path) in roles.into_iter().chain(files) {
            // What does not exist yet cannot be reached yet.
            let Ok(path) = mounts::existing(path) else { continue };
            let identity =
                selftest::identity(&path).map_err(|e| LaunchError::Io("look up a directory", e))?;
            let target = Target { role: role.to_owned(), path, identity };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let paths = |found: &[Resolved]| found.iter().map(|r| r.target.clone()).collect();
        let (ports, udp, listen) = match &self.network {
            Network::None => (None, false, Vec::new()),
            Network::Connect { ports, dns, listen } => (Some(ports.clone()), *dns, listen.clone()),
        };
        Ok(Enter {
            mode,
            program: prepared.program.path.clone(),
            name: self.program.clone(),
            arguments: self.arguments.clone(),
            environment: environment.into_iter().collect(),
            workspace: prepared.workspace.clone(),
            targets,
            uid: mode.user().unwrap_or_else(|| geteuid().as_raw()),
            home: home.to_owned(),
            temporary,
            readable: paths(&prepared.read),
            writable: paths(&prepared.write),
            ports,
            listen,
            udp,
            files: self.files,
            bait,
            hatch: None,
        })
    }
}

impl PendingAgent {
    /// Lets the agent run, once everything that must be on record is.
    ///
    /// # Errors
    /// When the program cannot be executed after all.
    pub fn release(self) -> Result<RunningAgent, LaunchError> {
        self.channel.send(&Go::Execute, &[])?;
        // The channel closes when the program is executed.
        match self.channel.receive_within::<News>(PATIENCE) {
            Err(ChannelError::Closed) => {
                let relay = self.hatch.and_then(|hatch| hatch.ok()?.relay);
                Ok(RunningAgent { child: self.child, _relay: relay })
            }
            Ok((News::NotExecuted { errno }, _)) => {
                Err(LaunchError::NotExecuted(io::Error::from_raw_os_error(errno)))
            }
            Ok((News::Failed { stage, error, .. }, _)) => Err(LaunchError::Stage(stage, error)),
            Ok((News::Ready(_) | News::Unmapped, _)) => {
                Err(LaunchError::Channel(ChannelError::Closed))
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Maps the users of the first stage's new namespace, once it is in there; or
/// gives what it said instead.
fn map(channel: &Channel, stage: u32, user: u32) -> Result<Option<News>, ChannelError> {
    match channel.receive_within(PATIENCE)?.0 {
        News::Unmapped => {
            launcher::map_ids_of(stage, user).map_err(|e| ChannelError::Io("map users for", e))?;
            channel.send(&Mapped, &[])?;
            Ok(None)
        }
        other => Ok(Some(other)),
    }
}

struct Prepared {
    read: Vec<Resolved>,
    write: Vec<Resolved>,
    workspace: PathBuf,
    program: Program,
    /// Links on the way to the program and to the workspace.
    links: Vec<(PathBuf, PathBuf)>,
    suspects: Vec<PathBuf>,
}

/// Why one way of making the cell did not work.
enum Attempt {
    /// A weaker one might.
    Namespaces(String),
    /// No other would.
    Final(LaunchError),
}

impl From<LaunchError> for Attempt {
    fn from(error: LaunchError) -> Self {
        Self::Final(error)
    }
}

impl From<Attempt> for LaunchError {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Namespaces(why) => Self::Refused(why),
            Attempt::Final(error) => error,
        }
    }
}

/// The agent's standard streams.
struct Streams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    ours: [OwnedFd; 3],
}

impl Streams {
    /// Pipes that belong to the agent's user, so that it can open
    /// `/dev/stderr`.
    fn open(owner: Option<u32>) -> io::Result<Self> {
        let (stdin, our_stdin) = pipe_with(PipeFlags::CLOEXEC)?;
        let (our_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (our_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        if let Some(owner) = owner {
            let (uid, gid) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
            for pipe in [&stdin, &stdout, &stderr] {
                rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
            }
        }
        Ok(Self { stdin, stdout, stderr, ours: [our_stdin, our_stdout, our_stderr] })
    }
}
