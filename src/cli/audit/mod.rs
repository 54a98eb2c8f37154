//! `portcullis audit`: verify, show, search and repair the log.

mod attachments;
mod blame;
mod bundle;
mod check_bundle;
mod check_proof;
mod check_receipts;
pub(crate) mod checkpoint;
mod compress;
mod export;
mod files;
pub(super) mod filter;
mod heads;
mod key;
mod location;
mod path;
mod prove;
mod prune;
mod query;
mod recover;
mod report;
mod select;
mod session;
mod ship;
pub(crate) mod show;
mod story;
mod verify;

use std::process::ExitCode;

use crate::app::{failure::Failure, logging};

/// Verify, show, search and repair the audit log
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit show --last 20\n  \
    portcullis audit show --follow --decision deny\n  \
    portcullis audit query --path 'src/**' --stats agent,op")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Verify(Box<verify::Args>),
    Key(key::Args),
    Checkpoint(checkpoint::Args),
    Prove(prove::Args),
    CheckProof(check_proof::Args),
    CheckReceipts(check_receipts::Args),
    Prune(prune::Args),
    Compress(compress::Args),
    Ship(ship::Args),
    Show(Box<show::Args>),
    Query(Box<query::Args>),
    Blame(blame::Args),
    Session(session::Args),
    Report(report::Args),
    Export(Box<export::Args>),
    Bundle(bundle::Args),
    CheckBundle(check_bundle::Args),
    Recover(recover::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // The person at the terminal should see warnings, such as of a wait for a
    // gateway.
    logging::start_on_stderr("warn")?;
    match args.command {
        Command::Verify(args) => verify::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Prove(args) => prove::run(&args),
        Command::CheckProof(args) => check_proof::run(&args),
        Command::CheckReceipts(args) => check_receipts::run(&args),
        Command::Prune(args) => prune::run(&args),
        Command::Compress(args) => compress::run(&args),
        Command::Ship(args) => ship::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Blame(args) => blame::run(&args),
        Command::Session(args) => session::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::CheckBundle(args) => check_bundle::run(&args),
        Command::Recover(args) => recover::run(args),
    }
}
