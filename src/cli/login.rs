//! `portcullis login`: runs an agent's login in its sandbox and home, on a terminal.

use std::{ffi::OsString, process::ExitCode};

use super::agent::{
    callback::CallbackPort,
    command::{ReportOptions, SandboxCommand},
    operator_terminal::operator_terminal,
    options::{Purpose, SandboxOptions},
};
use crate::app::failure::{Exit, Failure};

/// Log an agent in, with credentials that stay in its sandbox
///
/// The agent's own login runs in a sandbox, on a terminal like that of `shell`. It stores what it
/// gets in the home that the agent has in this workspace, where `run`, `exec` and `shell` find it
/// under the same name. It sees no file of the workspace, and nothing of your own home, and reaches the
/// hosts of its preset alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis login --preset codex\n  \
    portcullis login --agent mine -- my-agent login\n  \
    portcullis login --preset codex --callback 1455 -- codex login\n  \
    portcullis login --preset claude-code --callback auto")]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// A port of this machine's loopback interface at which the browser reaches the login, which
    /// listens at the same port in its sandbox; `auto` opens at most four ports at which the login
    /// listens, from 32768 to 60999, until it ends
    #[arg(long, value_name = "PORT|auto")]
    callback: Option<CallbackPort>,
    /// The agent's program and the arguments that log it in [default: the preset's]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !args.sandbox.names_agent() {
        return Err(Failure::new("a login is stored in the home of an agent with a name")
            .exit(Exit::Usage)
            .help("name it with `--preset` or `--agent`, as for `run`, `exec` and `shell`"));
    }
    let (streams, environment) = operator_terminal()?;
    SandboxCommand {
        purpose: Purpose::Login,
        callback: args.callback,
        sandbox: args.sandbox,
        command: args.command,
        shells: Vec::new(),
        environment,
        streams,
        timeout: None,
        report: ReportOptions::quiet(),
    }
    .run()
}
