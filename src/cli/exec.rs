//! `portcullis exec`: runs a command in a sandbox with a mount of the workspace.
//!
//! It begins as `run` does. Differences: standard input, output and error belong to the
//! command, signals are passed on to it, and at the end a summary lists its changes and
//! denials.

use std::{collections::BTreeMap, ffi::OsString, process::ExitCode, time::Duration};

use super::agent::{
    command::{ReportOptions, SandboxCommand},
    options::{Purpose, SandboxOptions},
};
use crate::{app::failure::Failure, policy::parse_duration, sandbox::StandardStreams};

/// Run one command that sees the workspace through the gateway
///
/// The command runs in a sandbox, in the workspace's directory, which is a mount there:
/// policy, backups and log are between it and the files. A summary at the end lists what it
/// changed and was denied, and how to undo it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Standard input, output and error are the command's, and signals are passed on to it.\n\
    The exit code is the command's. It is 128 plus the number of the signal that ended it, 124 after\n\
    its timeout, 127 if there is no such program, and 126 if it cannot be executed.\n\nExamples:\n  \
    portcullis exec -- cargo test\n  \
    portcullis exec --timeout 10m --agent-read ~/.cargo -- make\n  \
    portcullis exec --summary ../changes.json -- sh -c 'rm -r build && make'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Stop the command after this time, such as `90s` or `10m`, by SIGTERM, and two seconds later
    /// by SIGKILL [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    timeout: Option<Duration>,
    #[command(flatten)]
    report: ReportOptions,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_timeout(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text)
        .filter(|timeout| !timeout.is_zero())
        .ok_or("expected a number above 0 and `ms`, `s`, `m` or `h`, such as `90s`")
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    SandboxCommand {
        purpose: Purpose::Work,
        callback: None,
        sandbox: args.sandbox,
        command: args.command,
        shells: Vec::new(),
        environment: BTreeMap::new(),
        streams: StandardStreams::Own,
        timeout: args.timeout,
        report: args.report,
    }
    .run()
}
