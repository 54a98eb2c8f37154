//! `portcullis backup undo`: undoes the changes of a record or a session.

use std::process::ExitCode;

use super::put_back::{self, Flags};
use crate::{
    app::{failure::Failure, options::Common},
    undo::Select,
};

/// Undo what one record or one session changed
///
/// Shows what would be done; does it with --yes, or after a yes on the
/// terminal. Every step is decided, backed up and recorded as any other change,
/// so that an undo can be undone too. Files that something else changed since
/// are conflicts: nothing is done while there are any, unless they are to be
/// skipped (the exit code is 1 then) or overwritten.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup undo --session 5f2c\n  \
    portcullis backup undo --record 1207 --yes\n  \
    portcullis backup undo --session 5f2c --skip-conflicts --yes")]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Every change of this session; the beginning of its id is enough
    #[arg(long, value_name = "ID", group = "what", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    session: Option<String>,
    /// The change of this record of the log; with what else was stored of a file while a program had it open
    #[arg(long, value_name = "RECORD", group = "what")]
    record: Option<u64>,
    #[command(flatten)]
    flags: Flags,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let select = match (&args.session, args.record) {
        (Some(session), _) => Select::Session(session.clone()),
        (None, record) => Select::Record(record.unwrap_or(0)),
    };
    put_back::run(&args.common, &select, None, &args.flags)
}
