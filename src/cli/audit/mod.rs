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
mod session_summary;
mod ship;
pub(crate) mod show;
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
    command: AuditCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AuditCommand {
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
        AuditCommand::Verify(args) => verify::run(&args),
        AuditCommand::Key(args) => key::run(&args),
        AuditCommand::Checkpoint(args) => checkpoint::run(&args),
        AuditCommand::Prove(args) => prove::run(&args),
        AuditCommand::CheckProof(args) => check_proof::run(&args),
        AuditCommand::CheckReceipts(args) => check_receipts::run(&args),
        AuditCommand::Prune(args) => prune::run(&args),
        AuditCommand::Compress(args) => compress::run(&args),
        AuditCommand::Ship(args) => ship::run(&args),
        AuditCommand::Show(args) => show::run(&args),
        AuditCommand::Query(args) => query::run(&args),
        AuditCommand::Blame(args) => blame::run(&args),
        AuditCommand::Session(args) => session::run(&args),
        AuditCommand::Report(args) => report::run(&args),
        AuditCommand::Export(args) => export::run(&args),
        AuditCommand::Bundle(args) => bundle::run(&args),
        AuditCommand::CheckBundle(args) => check_bundle::run(&args),
        AuditCommand::Recover(args) => recover::run(args),
    }
}
