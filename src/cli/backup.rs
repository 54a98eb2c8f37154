//! `portcullis backup`: lists, shows, compares and restores backups.

mod diff;
mod entries;
mod list;
mod prune;
mod restore;
mod show;
mod steps;
pub(crate) mod undo;
mod verify;

use std::process::ExitCode;

use crate::app::failure::Failure;

/// List, show, compare and restore backups, and undo changes
///
/// A BACKUP is an id, the beginning of one, or a path, which stands for the
/// newest backup of that path; a path that may be the beginning of an id
/// begins with `./`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup list src\n  \
    portcullis backup diff src/main.rs\n  \
    portcullis backup restore src/main.rs\n  \
    portcullis backup undo --session last\n  \
    portcullis backup show 20261103T1201 -o old.txt")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BackupCommand {
    List(list::Args),
    Show(show::Args),
    Diff(diff::Args),
    Restore(restore::Args),
    Undo(undo::Args),
    Verify(verify::Args),
    Prune(prune::Args),
}

/// Runs the command.
///
/// # Errors
/// When state directory or backup store cannot be opened, or the operation fails.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        BackupCommand::List(args) => list::run(&args),
        BackupCommand::Show(args) => show::run(args),
        BackupCommand::Diff(args) => diff::run(&args),
        BackupCommand::Restore(args) => restore::run(&args),
        BackupCommand::Undo(args) => undo::run(&args),
        BackupCommand::Verify(args) => verify::run(&args),
        BackupCommand::Prune(args) => prune::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        _args: super::Args,
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
