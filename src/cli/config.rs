//! `portcullis config`: the operator's configuration.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;

use super::agent::credentials::read_key;
use crate::{
    app::{
        failure::{Context as _, Failure},
        notifier,
    },
    config::{
        Operator,
        audit::Audit,
        credentials::{Credential, KeySource},
        serve::Service,
    },
    gateway::random_hex,
    model::Escaped,
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

/// Read a configuration as a start does, and say what is wrong with it
///
/// Starts nothing. The files of keys of `[[credentials]]` are read, variables are not. Policies
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
    /// Send a notification as `[approvals.notify]` says, to try it
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
    for Credential { id, from, .. } in &operator.credentials {
        if let (KeySource::File(_), Err(reason)) = (from, read_key(from)) {
            let from = Escaped(&from.to_string()).to_string();
            return Err(Failure::new(format_args!("the credential `{id}` ({from}): {reason}")));
        }
    }
    let serves = match &operator.path {
        Some(path) if operator.has_service => {
            Service::load(path).map_err(Failure::new)?;
            true
        }
        _ => false,
    };
    if args.notify {
        if operator.notifications.is_empty() {
            return Err(Failure::new("`[approvals.notify]` names nothing to notify")
                .help("set `desktop = true` or `webhook = \"URL\"` in it"));
        }
        let reference = random_hex::<4>().or_fail("cannot send a notification")?;
        notifier::send_test(&operator.notifications, &reference).map_err(|reason| {
            Failure::new(format_args!("a notification was not sent: {reason}"))
        })?;
        errln!("portcullis: sent a notification with the reference {reference}");
    }
    let shown = operator.path.map(|path| path.display().to_string());
    if args.json {
        outjson!(json!({
            "ok": true, "file": shown, "requireSignature": operator.require_signature,
            "policyKeys": operator.policy_keys.len(), "serve": serves,
            "notifications": !operator.notifications.is_empty(),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    match shown {
        Some(path) => outln!("{}: ok", Escaped(&path)),
        None => outln!("there is no configuration file: the defaults apply"),
    }
    Ok(ExitCode::SUCCESS)
}
