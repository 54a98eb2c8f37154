//! `portcullis doctor`: checks if `run` works on this machine, how well, and what is missing.
//!
//! Each check tries what `run` uses, in the same way, rather than looking it up. No check leaves
//! anything behind: no state directory, no record.

mod check;
mod credentials;
mod kernel;
mod probe;
mod self_test;
mod ship;
mod storage;

use std::{path::Path, process::ExitCode};

use serde_json::json;

use self::check::{Check, Status};
use crate::{
    app::{
        agent_sandbox::{self, SandboxGround},
        failure::{Exit, Failure},
        options::Common,
        output::styled,
        policy_loading::{extended_tests, unused_keys},
        process, state_directory, trusted_paths,
    },
    config::{self, LoadedPolicy, Operator, audit::Audit, operator},
    gateway::Workspace,
    policy::Mode,
};

pub(crate) use probe::run_if_probe;

/// Check what this machine can enforce, and what `run` would refuse
///
/// Tries kernel, confinement and state directory as `run` uses them for this
/// workspace and policy, and says what each finding means and what to do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis doctor\n  \
    portcullis doctor --workspace ~/project --policy mine.toml\n  \
    portcullis doctor --json\n\n\
    Exit code 1 when `portcullis run` with the same options would refuse, else 0.")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Accept weaker confinement, as `run --allow-partial` does
    #[arg(long)]
    allow_partial: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.common.adopts_nothing()?;
    process::check_children()?;
    let checks = examine(args)?;
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    let refuses = worst == Status::Failed;
    if args.json {
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "status": worst.as_str(),
            "runRefuses": refuses,
            "checks": checks.iter().map(Check::json).collect::<Vec<_>>(),
        });
        styled(format_args!("{object}"));
    } else {
        checks.iter().for_each(Check::print);
        let last = match worst {
            Status::Ok => "all well: `portcullis run` gives full enforcement here",
            Status::Warning => "`portcullis run` works here; see the warnings",
            Status::Failed => "`portcullis run` would refuse here; see what failed",
        };
        styled(format_args!("\n{last}"));
    }
    Ok(if refuses { Exit::Failure.into() } else { ExitCode::SUCCESS })
}

fn examine(args: &Args) -> Result<Vec<Check>, Failure> {
    let (landlock, abi) = kernel::landlock();
    let config = args.common.config.as_deref();
    let (operator, audit) = (Operator::load(config), Audit::load(config));
    let (workspace, workspace_check) = workspace(args);
    let (policy, policy_check) = policy(args, operator.as_ref());
    // Each that cannot be used has a line of its own.
    let usable = operator.as_ref().ok().zip(audit.as_ref().ok());
    let operator = operator.as_ref().cloned().unwrap_or_default();
    let signatures = unused_keys(&operator).map(|problem| {
        Check::new("policy signatures", Status::Warning, "not required", problem)
            .help("add `requireSignature = true`, so that only signed policies are enforced")
    });
    let state = match (&args.common.state, &workspace) {
        (Some(state), _) => Some(state.clone()),
        (None, Some(workspace)) => Some(state_directory::default_directory(workspace.root())?),
        (None, None) => None,
    };
    let older = state.as_ref().zip(policy.as_ref()).and_then(|(s, p)| storage::newest(s, p));
    let test = match (&workspace, &policy, &state) {
        (Some(workspace), Some(policy), Some(state)) => {
            let audit = audit.as_ref().cloned().unwrap_or_default();
            Some(self_test(args, workspace, policy, (state, &operator, &audit))?)
        }
        _ => None,
    };
    let full = test.as_ref().is_some_and(|found| found.full);
    let mut checks = vec![kernel::release(), landlock];
    if abi > 0 {
        checks.push(kernel::errata(abi));
    }
    checks.extend([
        kernel::openat2_works(),
        kernel::namespaces(full),
        kernel::seccomp(),
        workspace_check,
        older.unwrap_or(policy_check),
    ]);
    checks.extend(signatures);
    if let Some(state) = &state {
        let owner = workspace.as_ref().and_then(|here| storage::owner(state, here.root()));
        checks.push(owner.unwrap_or_else(|| storage::directory(state)));
        checks.extend(storage::secret_key(state));
        checks.push(storage::space(state));
        checks.push(storage::reflink(state));
        let trusted = |config| storage::trusted(&args.common.workspace, state, config);
        checks.extend(usable.and_then(trusted));
        checks.push(storage::log(state, audit.as_ref().ok().and_then(Audit::signer_key)));
        match audit {
            Ok(audit) if audit.ship.is_empty() => {}
            Ok(audit) => checks.push(ship::copies(state, &audit.ship)),
            Err(error) => checks.push(
                Check::new("configuration", Status::Failed, "cannot be used", error.to_string())
                    .help("mend the `[audit]` section"),
            ),
        }
    }
    let judged = policy
        .as_ref()
        .and_then(|loaded| credentials::judge(&operator.credentials, &loaded.policy));
    checks.extend(judged);
    checks.extend(test.into_iter().flat_map(|found| {
        [found.refused, Some(found.mount), Some(found.proxy), found.limits, Some(found.check)]
            .into_iter()
            .flatten()
    }));
    Ok(checks)
}

fn workspace(args: &Args) -> (Option<Workspace>, Check) {
    const NAME: &str = "workspace";
    let shown = args.common.workspace.display().to_string();
    match Workspace::open(&args.common.workspace) {
        Ok(workspace) => {
            let root = workspace.root().display().to_string();
            let found = match workspace.has_aliases() {
                false => "it can be opened",
                true => {
                    "it can be opened; its file system may find entries by other names than their \
                     own, so each name is looked for in its directory"
                }
            };
            (Some(workspace), Check::new(NAME, Status::Ok, root, found))
        }
        Err(error) => {
            let check = Check::new(NAME, Status::Failed, shown, error.to_string())
                .help("name a directory with --workspace DIR");
            (None, check)
        }
    }
}

fn policy(
    args: &Args,
    operator: Result<&Operator, &operator::Error>,
) -> (Option<LoadedPolicy>, Check) {
    const NAME: &str = "policy";
    let reference = &args.common.policy;
    let operator = match operator {
        Ok(operator) => operator,
        Err(error) => {
            let check = Check::new(NAME, Status::Failed, reference.clone(), error.to_string())
                .help("correct the configuration, or name another with --config FILE");
            return (None, check);
        }
    };
    match config::load_trusted(reference, operator) {
        Ok(loaded) => {
            let (policy, files) = (&loaded.policy, loaded.texts.files.len());
            let found = format!("{} version {}", policy.name(), policy.version());
            let (own, more) = (policy.own_tests(), extended_tests(policy));
            let means = match files {
                0 => format!("loads; its {own} tests pass{more}"),
                files => format!("loads from {files} files; its {own} tests pass{more}"),
            };
            let facts = json!({
                "sha256": policy.sha256(),
                "tests": policy.tests(),
                "ownTests": policy.own_tests(),
                "mode": policy.mode().as_str(),
                "signedBy": loaded.signed_by.as_ref().map(ToString::to_string),
            });
            let check = match policy.mode() {
                Mode::Enforce => Check::new(NAME, Status::Ok, found, means),
                Mode::Observe => Check::new(
                    NAME,
                    Status::Warning,
                    format!("{found}, observing"),
                    "what nothing allows passes and is only recorded, but for connections",
                )
                .help("set `mode = \"enforce\"` once the policy has learnt enough"),
            };
            (Some(loaded), check.facts(facts))
        }
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.lines().next().unwrap_or_default().to_owned();
            let help = match error {
                // The policy itself may be as it should be.
                config::Error::Untrusted(_) => "`portcullis policy sign` signs it as it is now",
                _ => "`portcullis policy check` shows every error",
            };
            let check = Check::new(NAME, Status::Failed, reference.clone(), reason).help(help);
            (None, check)
        }
    }
}

fn self_test(
    args: &Args,
    workspace: &Workspace,
    policy: &LoadedPolicy,
    (state, operator, audit): (&Path, &Operator, &Audit),
) -> Result<self_test::SelfTestChecks, Failure> {
    let agent = args.common.agent("doctor")?;
    let place = state_directory::place(state)?;
    let data_name = state_directory::agent_data_name(workspace.root(), &place);
    let home = agent_sandbox::home(&data_name, &agent)?;
    let mut trusted = trusted_paths::own(operator, audit)?;
    trusted.extend(trusted_paths::policy(&policy.texts, operator)?);
    let ground =
        SandboxGround { policy: &policy.policy, trusted, workspace: workspace.root(), state };
    self_test::test(&ground, &home, args.allow_partial)
}
