//! The third stage: confines itself, tests its confinement, waits for the broker's order, and
//! becomes the agent.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, FileType, Mode as FileMode, OFlags, access, open, stat},
    io::Errno,
    process::{Pid, Signal, chdir, kill_process_group, setsid},
};

use super::{
    capabilities,
    channel::{self, Channel, ChannelError},
    command_starter::CommandStarter,
    file_limit,
    landlock::{self, AccessRight, Applied, Ports, Restriction, Rule},
    layout::{DEVICES, TERMINAL, TERMINALS},
    limits::{self, EnforcedLimits},
    machine_keys,
    messages::{BrokerOrder, Enter, RootReady, StageMessage},
    mounts, named_pipes, process,
    pseudo_terminal::{self, PseudoTerminal},
    sandbox_socket,
    seccomp::{self, Purpose},
    selftest::{self, Confinement},
    spec::{DeniedGrant, Enforcement, Report},
    stage::{StageError, failed},
};

/// The host's `/proc`, which a sandbox without its own may read: many programs do not start without
/// `/proc/self`, and a Landlock rule cannot name that of future processes. Landlock refuses what
/// ptrace(2) guards of processes outside the sandbox: environment, memory, descriptors, root and
/// current directory.
const PROC: &str = "/proc";

/// Timeout of a command that runs before the agent.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// Exit code of a command that could not be started, as in a shell.
const NOT_STARTED: i32 = 127;

/// Files of the host's `/etc` that a sandbox without its own root directory may read.
const ETC_FILES: [&str; 12] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/os-release",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/etc/pki",
    "/etc/alternatives",
];

/// Runs the stage.
pub(super) fn run(parent: u32) -> Result<u8, StageError> {
    let channel = Channel::from_stdin()?;
    let init = channel::take_stdout().map_err(failed("receive a channel"))?;
    match enter(&channel, Channel::from(init), parent) {
        Ok(StageEnd::Starts(starter)) => {
            // The broker takes the closed channel as the start of the agent.
            drop(channel);
            starter.run().map_err(failed("start commands"))
        }
        Ok(StageEnd::NotExecuted(error)) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let _ = channel.send(&StageMessage::NotExecuted { errno }, &[]);
            Ok(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
        }
        Err(error) => Ok(error.report(&channel)),
    }
}

/// Outcome of the stage, if it does not become the agent.
enum StageEnd {
    /// The agent is a child of this process, and commands may follow.
    Starts(CommandStarter),
    /// The agent could not be executed, for this reason.
    NotExecuted(io::Error),
}

fn enter(channel: &Channel, init: Channel, parent: u32) -> Result<StageEnd, StageError> {
    process::die_with(parent).map_err(failed("follow the init"))?;
    let (spec, mut streams) = channel.receive::<Enter>()?;
    let orders = if spec.commands { streams.pop().map(Channel::from) } else { None };
    let baseline = selftest::before(&spec);
    init.send(&(), &[])?;
    let (ready, _) = init.receive::<RootReady>()?;
    let orders = orders.map(|orders| (orders, init));
    // Until then, a request for the workspace's path may have no server.
    let (BrokerOrder::Enter, _) = channel.receive::<BrokerOrder>()? else {
        return Err(ChannelError::Closed.into());
    };

    let report = if spec.mode.is_confined() {
        confine(&spec, &ready, &baseline)?
    } else {
        setsid().map_err(failed("start a session"))?;
        Report {
            enforcement: Enforcement::None,
            landlock_abi: 0,
            namespaces: Vec::new(),
            uid: spec.uid,
            proc: true,
            mount: false,
            limits: EnforcedLimits::default(),
            listen: Vec::new(),
            denied: Vec::new(),
            gaps: vec!["the agent is not confined at all".to_owned()],
            probes: Vec::new(),
            sandbox_socket: None,
        }
    };
    file_limit::set(spec.files, spec.mode.is_confined()).map_err(failed("limit open files"))?;
    let streams = match spec.terminal {
        true => {
            let terminal = PseudoTerminal::open().map_err(failed("open a pseudo-terminal"))?;
            channel.send(&StageMessage::Ready(report), &[terminal.outer.as_fd()])?;
            vec![terminal.inner]
        }
        false => {
            channel.send(&StageMessage::Ready(report), &[])?;
            streams
        }
    };
    loop {
        match channel.receive::<BrokerOrder>()? {
            (BrokerOrder::Prepare(command), descriptors) => {
                let input = descriptors.into_iter().next();
                channel
                    .send(&StageMessage::Prepared { code: prepare(&spec, &command, input) }, &[])?;
            }
            (BrokerOrder::Execute, _) => return execute(spec, streams, orders),
            (BrokerOrder::Enter, _) => return Err(ChannelError::Closed.into()),
        }
    }
}

/// Runs a command as the agent, to its end, and returns its exit code.
fn prepare(spec: &Enter, command: &[OsString], input: Option<OwnedFd>) -> i32 {
    let Some((program, arguments)) = command.split_first() else { return 0 };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(spec.environment.iter().cloned());
    command.stdin(input.map_or_else(Stdio::null, Stdio::from));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.process_group(0).spawn() else { return NOT_STARTED };
    let (begun, mut pause) = (Instant::now(), Duration::from_millis(1));
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            }
            Ok(None) if begun.elapsed() < PREPARE_TIMEOUT => {}
            Ok(None) | Err(_) => break,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    // Files that an earlier agent left may delay it without end.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
    128 + Signal::KILL.as_raw()
}

fn confine(
    spec: &Enter,
    ready: &RootReady,
    baseline: &selftest::Baseline,
) -> Result<Report, StageError> {
    setsid().map_err(failed("start a session"))?;
    // Also when the directory is empty: the agent expects to start there.
    chdir(&spec.workspace)
        .or_else(|error| if ready.mount { Err(error) } else { chdir(&spec.home) })
        .map_err(failed("enter the workspace's path"))?;
    capabilities::drop_all(spec.mode.becomes()).map_err(failed("become an unprivileged user"))?;
    process::die_with_parent().map_err(failed("follow the init"))?;
    // Before the filter, which refuses changes of the processors.
    let first = usize::try_from(spec.self_test_targets.broker).unwrap_or(0);
    let limits = limits::enforce(&spec.limits, spec.controllers, first)
        .map_err(|e| StageError::Step("limit what the agent takes", e.to_string()))?;
    let applied = restrict_files(spec, ready.mount)?;
    let confinement = Confinement {
        udp: spec.udp,
        udp_ports: applied.udp,
        // Without its own network namespace the sandbox shares the host's abstract UNIX sockets,
        // unless Landlock confines them.
        unix: spec.mode.is_full() && (spec.ports.is_none() || applied.scopes),
        signals: spec.mode.is_full() || applied.scopes,
        proc: ready.proc || !spec.mode.is_full(),
        mount: ready.mount,
    };
    seccomp::restrict(Purpose::Agent {
        udp: confinement.udp,
        unix: confinement.unix,
        internet: spec.ports.is_some() || spec.mode.is_full(),
        listen: spec.private_network() || !spec.listen.is_empty(),
        metadata: !spec.mode.is_full(),
        affinity: spec.limits.cpu.is_none(),
    })?;
    Ok(report(spec, baseline, &applied, &confinement, limits))
}

fn report(
    spec: &Enter,
    baseline: &selftest::Baseline,
    applied: &Applied,
    confinement: &Confinement,
    limits: EnforcedLimits,
) -> Report {
    let probes = selftest::after(spec, baseline, confinement);
    let full = spec.mode.is_full();
    let mut gaps = Vec::new();
    if !full {
        gaps.push("no namespaces: which files exist can be seen".to_owned());
        gaps.push(
            "no namespaces: which processes run can be seen, with their arguments, and the host's \
             network interfaces, routes and connections"
                .to_owned(),
        );
        gaps.push(
            "no namespaces: the agent has no pseudo-terminals, and cannot set times and modes of \
             files, its own among them"
                .to_owned(),
        );
    }
    if spec.stays_root() {
        gaps.push(
            "the agent stays root, without root's powers: no other user to become here".to_owned(),
        );
    }
    if limits.processes.is_none() {
        gaps.push("nothing limits how many processes the agent starts".to_owned());
    }
    if !applied.ioctl {
        gaps.push("Landlock before ABI 5: device ioctls are not restricted".to_owned());
    }
    if !confinement.signals {
        gaps.push("Landlock before ABI 6: processes of the same user can be signalled".to_owned());
    }
    if full && !confinement.unix {
        gaps.push("Landlock before ABI 6: UNIX sockets are refused altogether".to_owned());
    }
    if full && !confinement.proc {
        gaps.push(
            "this container forbids a private /proc, so the agent has none, and some programs do not \
             start: allow it with `--security-opt unmask=ALL` (Podman), `--security-opt \
             systempaths=unconfined` (Docker) or `procMount: Unmasked` (Kubernetes)"
                .to_owned(),
        );
    }
    if spec.udp {
        gaps.push(
            if applied.udp {
                "UDP to port 53 of any host is open for name resolution"
            } else {
                "Landlock before ABI 10: UDP is open for name resolution, and with it to any port \
                 of any host"
            }
            .to_owned(),
        );
    }
    if !spec.listen.is_empty() {
        let ports: Vec<_> = spec.listen.iter().map(u16::to_string).collect();
        gaps.push(format!(
            "TCP connections are accepted on every interface, at port {} and any that the kernel picks",
            ports.join(", ")
        ));
    }
    let mut namespaces = Vec::new();
    if full {
        namespaces.extend(["mount", "pid", "ipc", "uts", "cgroup"].map(str::to_owned));
        if !spec.mode.is_root() {
            namespaces.push("user".to_owned());
        }
        if spec.private_network() {
            namespaces.push("net".to_owned());
        }
    }
    Report {
        enforcement: if full { Enforcement::Full } else { Enforcement::Partial },
        landlock_abi: applied.abi,
        namespaces,
        uid: spec.uid,
        proc: confinement.proc,
        mount: confinement.mount,
        limits,
        listen: spec.listen.clone(),
        denied: denied(spec),
        gaps,
        probes,
        sandbox_socket: spec.sandbox_socket.as_ref().map(sandbox_socket::prove),
    }
}

/// Returns the grants that this process, which has the agent's user by now, cannot use.
fn denied(spec: &Enter) -> Vec<DeniedGrant> {
    let read = spec.readable.iter().map(|path| (path, Access::READ_OK));
    let write = spec.writable.iter().map(|path| (path, Access::READ_OK | Access::WRITE_OK));
    read.chain(write)
        .filter(|(path, wanted)| {
            let directory = stat(*path).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_dir());
            let search = if directory { Access::EXEC_OK } else { Access::empty() };
            access(*path, *wanted | search) == Err(Errno::ACCESS)
        })
        .map(|(path, wanted)| DeniedGrant {
            path: path.clone(),
            write: wanted.contains(Access::WRITE_OK),
        })
        .collect()
}

fn restrict_files(spec: &Enter, mount: bool) -> Result<Applied, StageError> {
    // Rights in the mount are those that its server and the modes there give.
    let mounts = spec.workspaces().filter(|_| mount);
    let mounts = mounts.map(|(_, path)| (path.to_owned(), AccessRight::Write));
    let given = places(spec)
        .into_iter()
        .chain(mounts)
        .filter_map(|(path, right)| Some((mounts::without_links(&path).ok()?, right)));
    let opened: Vec<_> = given
        .chain(usual(spec).into_iter().filter_map(|(path, right)| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Some((open(path, flags, FileMode::empty()).ok()?, right))
        }))
        .collect();
    let rules = opened.iter().map(|(fd, right)| Rule { parent: fd.as_fd(), right: *right });
    let rules: Vec<_> = rules.collect();
    let connect = spec.ports.as_deref().unwrap_or_default();
    let ports = Ports { connect, bind: &spec.listen, dns: spec.udp };
    Ok(landlock::restrict(&Restriction {
        rules: &rules,
        ports: (!spec.private_network()).then_some(ports),
        logged: false,
    })?)
}

/// Returns the paths that the agent was granted, canonical, each with its right.
fn places(spec: &Enter) -> Vec<(PathBuf, AccessRight)> {
    let mut places: Vec<(PathBuf, AccessRight)> = Vec::new();
    if spec.mode.is_full() {
        places.push(("/".into(), AccessRight::Read));
        places.push(("/dev/shm".into(), AccessRight::Write));
        // Elsewhere it lies in the home directory, where another process of the agent can replace
        // it by a link to anything.
        places.push((spec.temporary.clone(), AccessRight::Write));
    } else {
        let keys = machine_keys::with_keys();
        for (directory, keys) in &keys {
            let shown = machine_keys::without_keys(directory, keys);
            places.extend(shown.into_iter().map(|path| (path, AccessRight::ReadOnlyData)));
        }
        let with_keys = |path: &PathBuf| keys.iter().any(|(directory, _)| directory == path);
        let readable = spec.readable.iter().filter(|path| !with_keys(path));
        places.extend(readable.map(|path| (path.clone(), AccessRight::Read)));
    }
    if let Some(entrance) = spec.sandbox_socket.as_ref().filter(|entrance| entrance.is_relayed) {
        places.push((entrance.program.clone(), AccessRight::Read));
        let pipes = named_pipes::paths(&entrance.address);
        places.extend(pipes.map(|path| (path, AccessRight::Device)));
    }
    places.extend(spec.writable.iter().map(|p| (p.clone(), AccessRight::Write)));
    places.push((spec.home.clone(), AccessRight::Write));
    places
}

/// Returns the paths that every agent reaches besides; links there are the system's own.
fn usual(spec: &Enter) -> Vec<(&'static str, AccessRight)> {
    let mut places: Vec<_> = DEVICES.map(|path| (path, AccessRight::Device)).into();
    if spec.mode.is_full() {
        places.extend([TERMINAL, TERMINALS].map(|path| (path, AccessRight::Terminal)));
        places.push((sandbox_socket::SOCKET, AccessRight::ReadOnlyData));
    } else {
        let keys = machine_keys::with_keys();
        let with_keys = |path: &str| {
            let found = mounts::existing(Path::new(path));
            found.is_ok_and(|found| keys.iter().any(|(directory, _)| *directory == found))
        };
        let files = ETC_FILES.into_iter().filter(|path| !with_keys(path)).chain([PROC]);
        places.extend(files.map(|path| (path, AccessRight::ReadOnlyData)));
    }
    places
}

/// Becomes the agent. If there are `orders` for more programs, starts the agent as a child instead,
/// and reports its PID to the init.
fn execute(
    spec: Enter,
    mut streams: Vec<OwnedFd>,
    orders: Option<(Channel, Channel)>,
) -> Result<StageEnd, StageError> {
    if spec.terminal
        && let Some(terminal) = streams.first()
    {
        pseudo_terminal::control(terminal).map_err(failed("take the pseudo-terminal"))?;
        let again = [terminal.try_clone(), terminal.try_clone()];
        for stream in again {
            streams.push(stream.map_err(failed("share the pseudo-terminal"))?);
        }
    }
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(streams) else {
        return Err(failed("receive the agent's streams")(io::Error::from(
            io::ErrorKind::InvalidData,
        )));
    };
    if !spec.mode.is_confined() {
        chdir(&spec.workspace).map_err(failed("enter the workspace"))?;
    }
    process::unblock_signals().map_err(failed("unblock signals"))?;
    let mut agent = Command::new(Path::new(&spec.program));
    agent.arg0(&spec.name).args(&spec.arguments).env_clear().envs(spec.environment.iter().cloned());
    agent.stdin(File::from(stdin)).stdout(File::from(stdout)).stderr(File::from(stderr));
    let Some((orders, init)) = orders else { return Ok(StageEnd::NotExecuted(agent.exec())) };
    // This process runs beside the agent, which must not have this one's descriptors.
    process::not_dumpable().map_err(failed("hide this process's memory"))?;
    channel::leave_stderr().map_err(failed("leave standard error"))?;
    let child = match agent.process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(StageEnd::NotExecuted(error)),
    };
    init.send(&child.id(), &[])?;
    let starter = CommandStarter::new(orders, spec.environment, child);
    Ok(StageEnd::Starts(starter.map_err(failed("watch the agent"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limits::{Controllers, ResourceLimits},
        messages::SelfTestTargets,
        spec::Mode,
    };

    fn spec(mode: Mode, temporary: &str) -> Enter {
        Enter {
            mode,
            program: "/bin/true".into(),
            name: "true".into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            workspace: "/work".into(),
            further: Vec::new(),
            targets: Vec::new(),
            uid: 1,
            home: "/home/agent".into(),
            temporary: temporary.into(),
            readable: Vec::new(),
            writable: Vec::new(),
            ports: None,
            listen: Vec::new(),
            udp: false,
            limits: ResourceLimits {
                memory: None,
                processes: 2,
                needs_processes: false,
                cpu: None,
            },
            controllers: Controllers::default(),
            files: None,
            terminal: false,
            commands: false,
            self_test_targets: SelfTestTargets {
                broker: 1,
                socket: PathBuf::new(),
                abstract_name: String::new(),
                port: 0,
            },
            sandbox_socket: None,
        }
    }

    #[test]
    fn what_the_agent_can_replace_is_not_granted_by_its_name() {
        let granted = |mode, temporary: &str| {
            places(&spec(mode, temporary)).iter().any(|(path, _)| path == Path::new(temporary))
        };
        assert!(!granted(Mode::Partial { user: None }, "/home/agent/tmp"));
        assert!(granted(Mode::User, "/tmp"));
    }
}
