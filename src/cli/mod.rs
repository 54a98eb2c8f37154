//! The command line: one file per command, rendering and exit codes.

mod audit;
mod backup;
mod cell;
mod failure;
mod fs;
mod gate;
mod local;
mod logging;
mod options;
mod policy;
mod render;
mod run;
mod state;
mod supervise;

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
    Backup(backup::Args),
    Fs(fs::Args),
    Policy(policy::Args),
    Run(run::Args),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = cell::run_if_stage().or_else(gate::run_if_gate) {
        return code;
    }
    let result = match Cli::parse().command {
        Command::Audit(args) => audit::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Fs(args) => fs::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Run(args) => run::run(args),
    };
    result.unwrap_or_else(|failure| failure.report())
}
