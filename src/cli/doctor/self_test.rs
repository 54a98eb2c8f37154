//! The self-test: a sandbox is made as `run` makes it, tested from inside, and
//! taken down before anything is executed in it.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::check::{Check, Status};
use crate::{
    app::{
        agent_sandbox::{HOME_OUT_OF_REACH, SandboxGround, plain_spec},
        failure::Failure,
    },
    cli::agent::{agent_config, credentials::Credentials, egress::Egress},
    operator_files,
    policy::{Mode, Policy},
    sandbox::{
        BuiltSandbox, EnforcedLimit, EnforcedLimits, Enforcement, Grant, LaunchError, Mechanism,
        Report, SandboxSpec, own_program,
    },
};

const NAME: &str = "self-test";

/// More memory and processors than any machine has.
const UNREACHABLE_LIMIT: u64 = 1 << 50;

/// Programs of which most machines have one.
const PROGRAMS: [&str; 4] = ["/usr/bin/true", "/bin/true", "/usr/bin/env", "/bin/sh"];

/// The checks that result from the test.
pub(super) struct SelfTestChecks {
    pub(super) check: Check,
    /// A grant of the policy that a start refuses before it makes a sandbox.
    pub(super) refused: Option<Check>,
    /// The possibility of a mount.
    pub(super) mount: Check,
    /// The limits on the sandbox's programs; `None` if there was no sandbox.
    pub(super) limits: Option<Check>,
    /// The possibility of a proxy.
    pub(super) proxy: Check,
    /// True if a sandbox with full enforcement could be made.
    pub(super) full: bool,
}

/// Makes a sandbox over `ground` with the agent's home at `home`, and takes it
/// down again. `partial` says that the operator accepts less than a full one.
pub(super) fn test(
    ground: &SandboxGround<'_>,
    home: &Path,
    partial: bool,
) -> Result<SelfTestChecks, Failure> {
    let mut spec = spec(ground, home)?;
    let refused = agent_config::refuse(&spec, &[]).err().map(judge_grant);
    spec.sandbox_socket = true;
    // Wide ones, where the policy has none, to see what would enforce some.
    spec.limits.memory.get_or_insert(UNREACHABLE_LIMIT);
    spec.limits.cpu.get_or_insert(UNREACHABLE_LIMIT);
    let traces = Traces::before(home);
    let launched = launch(&spec);
    (spec.sandbox_socket, spec.mount, spec.proxy) = (false, true, true);
    let mut built = spec.build();
    let listener = built.as_mut().ok().and_then(|built| built.sockets.proxy.take());
    let proxy = judge_proxy(listener, ground.policy);
    let mount = judge_mount(built);
    traces.remove();
    let limits = launched.as_ref().ok().map(|(report, _)| judge_limits(&report.limits));
    let found = |check, full| SelfTestChecks { check, refused, mount, proxy, limits, full };
    Ok(match launched {
        Ok((report, mcp)) => {
            let full = report.enforcement == Enforcement::Full;
            found(judge(&report, mcp, full, partial), full)
        }
        Err(error) => {
            let help = match &error {
                LaunchError::SelfTest(surprises) if surprises.contains("home directory") => {
                    HOME_OUT_OF_REACH
                }
                _ => "the message, or a line above, says what to change",
            };
            let check =
                Check::new(NAME, Status::Failed, "no sandbox", error.to_string()).help(help);
            found(check, false)
        }
    })
}

/// Returns a sandbox over `ground` for a program that most machines have.
fn spec(ground: &SandboxGround<'_>, home: &Path) -> Result<SandboxSpec, Failure> {
    let program =
        PROGRAMS.iter().map(PathBuf::from).find(|program| operator_files::exists(program));
    let (program, grant) = match program {
        Some(program) => (program, None),
        None => {
            let own = own_program().map_err(Failure::new)?;
            (own.clone(), Some(Grant { path: own, required: true }))
        }
    };
    let mut spec = plain_spec(ground, program, home.to_owned(), Enforcement::Partial);
    spec.read.extend(grant);
    Ok(spec)
}

/// Reports a grant that a start refuses.
fn judge_grant(refused: Failure) -> Check {
    let means = "`run`, `exec` and `shell` refuse such a grant of the policy";
    let check = Check::new("grants", Status::Failed, refused.message(), means);
    match refused.advice() {
        Some(advice) => check.help(advice),
        None => check,
    }
}

/// Checks that a sandbox could have a mount. No process serves it, so it ends with the sandbox.
fn judge_mount(built: Result<BuiltSandbox, LaunchError>) -> Check {
    const NAME: &str = "mount";
    let works = "without it an agent reaches the workspace by its editor and over MCP alone";
    let impossible = |reason: String, help: &str| {
        let facts = json!({ "possible": false, "reason": &reason });
        Check::new(NAME, Status::Warning, reason, works).help(help).facts(facts)
    };
    match built.map(|built| built.mount) {
        Ok(Some(Ok(_))) => {
            let means = "`portcullis run` and `portcullis exec` let programs reach the workspace \
                         as files";
            Check::new(NAME, Status::Ok, "possible", means).facts(json!({ "possible": true }))
        }
        Ok(Some(Err(reason))) => impossible(reason.to_string(), reason.help()),
        Ok(None) => impossible("the sandbox was to have none".to_owned(), "report this"),
        Err(error) => impossible(error.to_string(), "see `self-test`"),
    }
}

/// Checks which limits on the agent's programs are enforced.
fn judge_limits(limits: &EnforcedLimits) -> Check {
    const NAME: &str = "limits";
    let by = |limit: Option<EnforcedLimit>| limit.map(|limit| limit.by);
    let (memory, processes) = (by(limits.memory), by(limits.processes));
    let cpu = by(limits.cpu);
    let facts = json!({ "memory": memory, "processes": processes, "cpu": cpu });
    let check = match (processes, memory) {
        (None, _) => Check::new(
            NAME,
            Status::Warning,
            "no limit on processes",
            "an agent can start as many as the machine has, and others get none",
        )
        .help("start it as another user than root, or where a cgroup is delegated"),
        (Some(_), Some(Mechanism::Cgroup)) => Check::new(
            NAME,
            Status::Ok,
            "by a cgroup",
            "memory and processes are limited for all of the agent's programs together",
        ),
        (Some(_), _) => Check::new(
            NAME,
            Status::Ok,
            "by resource limits",
            "processes are limited for all of the agent's programs together, memory for each of them",
        ),
    };
    check.facts(facts)
}

/// Checks that programs could have a proxy, with the processes behind it, to reach the hosts that
/// the policy allows.
fn judge_proxy(listener: Option<OwnedFd>, policy: &Policy) -> Check {
    const NAME: &str = "proxy";
    let network = policy.network();
    let labels: Vec<_> = policy.labels().paths().keys().collect();
    let rules = network.may_allow();
    let mode = network.mode().as_str();
    let started = match listener {
        Some(listener) => Egress::start(listener, Credentials::default(), Vec::new())
            .map(drop)
            .map_err(|reason| reason.message().to_owned()),
        None => Err("a sandbox has no network namespace here".to_owned()),
    };
    let facts = |possible: bool| json!({ "possible": possible, "rules": rules, "mode": mode, "labels": labels });
    match started {
        Ok(()) => {
            let (status, means) = match (network.mode(), rules) {
                (Mode::Observe, _) => (
                    Status::Warning,
                    "the policy only observes connections: programs reach every host that no rule denies",
                ),
                (Mode::Enforce, true) => {
                    (Status::Ok, "programs reach the hosts that the policy allows")
                }
                (Mode::Enforce, false) => {
                    (Status::Ok, "the policy allows no host, so programs get none")
                }
            };
            Check::new(NAME, status, "possible", means).facts(facts(true))
        }
        Err(reason) => {
            let status = if rules { Status::Warning } else { Status::Ok };
            Check::new(
                NAME,
                status,
                reason,
                "programs reach no host, not even those that the policy allows",
            )
            .help("see `namespaces` and `self-test`")
            .facts(facts(false))
        }
    }
}

/// Starts a sandbox; returns its report, and an error if the agent's MCP client could not reach the
/// gateway. The sandbox has ended when this returns.
fn launch(spec: &SandboxSpec) -> Result<(Report, Result<(), String>), LaunchError> {
    let pending = spec.launch()?;
    let mcp = pending
        .sandbox_socket
        .as_ref()
        .map_or(Ok(()), |sandbox_socket| sandbox_socket.as_ref().map(drop).map_err(Clone::clone));
    Ok((pending.report.clone(), mcp))
}

fn judge(report: &Report, mcp: Result<(), String>, full: bool, partial: bool) -> Check {
    let passed = report.probes.iter().filter(|probe| probe.passed).count();
    let count = report.probes.len();
    let found = format!("{} enforcement, {passed} of {count} probes passed", report.enforcement);
    let check = match (full, partial) {
        (true, _) => Check::new(
            NAME,
            Status::Ok,
            found,
            "the sandbox refuses the agent every forbidden access",
        ),
        (false, true) => Check::new(
            NAME,
            Status::Warning,
            found,
            "the agent cannot reach the workspace, but sees more of this machine",
        )
        .help("see `namespaces` for full enforcement"),
        (false, false) => Check::new(
            NAME,
            Status::Failed,
            found,
            "`run` refuses less than full enforcement unless told otherwise",
        )
        .help("see `namespaces`, or accept less with --allow-partial"),
    };
    let check =
        report.gaps.iter().fold(check, |check, gap| check.detail(Status::Warning, gap.clone()));
    let check = report.probes.iter().fold(check, |check, probe| {
        let status = if probe.passed { Status::Ok } else { Status::Failed };
        let (before, after) = (short(&probe.before), short(&probe.after));
        // As it was without confinement, where that was tried and differs.
        let before = match before {
            "-" => String::new(),
            before if before == after => String::new(),
            before => format!(", was {before}"),
        };
        check.detail(status, format!("{}: {after}{before}", probe.name))
    });
    let (check, mcp) = match mcp {
        Ok(()) => (check, "offered".to_owned()),
        Err(reason) => {
            let missing = format!("the agent is not offered the gateway's MCP server: {reason}");
            (check.detail(Status::Warning, missing), format!("not offered: {reason}"))
        }
    };
    check.facts(json!({
        "mcp": mcp,
        "enforcement": report.enforcement,
        "landlockAbi": report.landlock_abi,
        "namespaces": report.namespaces,
        "agentUid": report.uid,
        "gaps": report.gaps,
        "probes": report.probes,
    }))
}

/// Returns `EPERM` of `EPERM: Operation not permitted`.
fn short(word: &str) -> &str {
    word.split(':').next().unwrap_or(word)
}

/// The directories that a sandbox makes for its home, so that none stays.
struct Traces(Vec<PathBuf>);

impl Traces {
    fn before(home: &Path) -> Self {
        let inside = home.join("tmp");
        Self(
            inside
                .ancestors()
                .take_while(|path| !operator_files::exists(path))
                .map(PathBuf::from)
                .collect(),
        )
    }

    fn remove(self) {
        for directory in self.0 {
            // Never one that holds anything.
            let _ = operator_files::remove_dir(directory);
        }
    }
}
