//! The command line: one file per command, rendering and exit codes.

mod audit;
mod failure;
pub(crate) use failure::Failure;
mod fs;
mod local;
mod logging;
mod options;
mod render;
mod state;

use std::process::ExitCode;

use clap::Parser as _;

/// A filesystem gateway for untrusted AI agents: every operation is decided,
/// backed up and audited
#[derive(Debug, clap::Parser)]
#[command(name = "portcullis", version, max_term_width = 100, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Audit(audit::Args),
    Fs(fs::Args),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Audit(args) => audit::run(args),
        Command::Fs(args) => fs::run(args),
    };
    result.unwrap_or_else(|failure| failure.report())
}
