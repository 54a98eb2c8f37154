//! `portcullis git`: the commits that agents make in their private repositories.

mod decide;
mod import;
mod processes;
mod refs;
mod sessions;

use std::process::ExitCode;

use crate::app::failure::Failure;

/// Import commits that an agent made in its private repository
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis git import --dry-run\n  \
    portcullis git import --list")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: GitCommand,
}

#[derive(Debug, clap::Subcommand)]
enum GitCommand {
    Import(import::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        GitCommand::Import(args) => import::run(&args),
    }
}
