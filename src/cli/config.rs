//! `portcullis config`: the operator's configuration.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;

use super::agent::credentials::{check_roots, read_key};
use crate::{
    app::{
        failure::{Context as _, Failure},
        notifier,
        policy_loading::warn_of_unused_keys,
        service_check,
    },
    config::{
        Operator,
        audit::Audit,
        credentials::{Credential, KeySource},
        operator::default_file,
        serve::Service,
    },
    gateway::random_hex,
    model::Escaped,
    sandbox::all_apart,
};

/// Check the operator's configuration
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis config check\n  \
    portcullis config check /etc/portcullis/portcullis.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    Check(CheckArgs),
}

/// Read a configuration as a start does, and report its errors
///
/// Starts nothing. The files of keys and certificates of `[[credentials]]` are read, variables are not. Policies
/// that it names are not loaded: `portcullis policy check` does that. A start refuses a
/// configuration that an agent could change, too: `portcullis doctor` says so of a workspace.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis config check\n  \
    portcullis config check /etc/portcullis/portcullis.toml --json\n  \
    portcullis config check --notify")]
struct CheckArgs {
    /// The file [default: $XDG_CONFIG_HOME/portcullis/portcullis.toml]
    #[arg(value_name = "FILE", env = "PORTCULLIS_CONFIG")]
    file: Option<PathBuf>,
    /// Send a test notification to each target of `[approvals.notify]`
    #[arg(long)]
    notify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the configuration cannot be used.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let ConfigCommand::Check(args) = &args.command;
    let operator = Operator::load(args.file.as_deref()).map_err(Failure::new)?;
    Audit::load(args.file.as_deref()).map_err(Failure::new)?;
    for credential in &operator.credentials {
        let Credential { id, from, .. } = credential;
        if let (KeySource::File(_), Err(reason)) = (from, read_key(from)) {
            let from = Escaped(&from.to_string()).to_string();
            return Err(Failure::new(format_args!("the credential `{id}` ({from}): {reason}")));
        }
        check_roots(credential).map_err(|reason| {
            Failure::new(format_args!("the credential `{id}`: {reason}"))
                .help("put the certificates there, or leave `ca` out of `[[credentials]]`")
        })?;
    }
    let serves = match &operator.path {
        Some(path) if operator.has_service => {
            let service = Service::load(path).map_err(Failure::new)?;
            service_check::check(&service)?;
            // Whether they are there is known to the machine that serves them.
            let roots = service.workspaces.iter().map(|one| ("workspace", one.root.clone()));
            all_apart(&roots.collect::<Vec<_>>()).map_err(Failure::new)?;
            true
        }
        _ => false,
    };
    warn_of_unused_keys(&operator);
    if args.notify {
        if operator.notifications.is_empty() {
            return Err(Failure::new("`[approvals.notify]` names nothing to notify")
                .help("set `desktop = true` or `webhook = \"URL\"` in it"));
        }
        let reference = random_hex::<4>().or_fail("cannot send a notification")?;
        notifier::send_test(&operator, &reference).map_err(|reason| {
            Failure::new(format_args!("a notification was not sent: {reason}"))
        })?;
        errln!("portcullis: sent a notification with the reference {reference}");
    }
    let shown = operator.path.map(|path| path.display().to_string());
    let default = default_file().map(|path| path.display().to_string());
    if args.json {
        outjson!(json!({
            "ok": true, "file": shown, "defaultFile": default, "requireSignature": operator.require_signature,
            "policyKeys": operator.policy_keys.len(), "serve": serves,
            "notifications": !operator.notifications.is_empty(),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    match (shown, default) {
        (Some(path), _) => outln!("{}: ok", Escaped(&path)),
        (None, Some(path)) => outln!("{}: no such file: the defaults apply", Escaped(&path)),
        (None, None) => outln!("there is no home directory with a file: the defaults apply"),
    }
    Ok(ExitCode::SUCCESS)
}
