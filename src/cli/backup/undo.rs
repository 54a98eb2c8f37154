//! `portcullis backup undo`: undoes the changes of a record or a session.

use std::process::ExitCode;

use super::steps::{self, Flags};
use crate::{
    app::{audit_log::unreadable, failure::Failure, options::Common},
    change::Change,
    cli::gateway_options::log_options,
    model::Escaped,
    review::{Log, last_session},
    undo::Select,
};

/// Undo what a session or one record changed: the last session that changed something, or another
///
/// Shows what would be done; does it with --yes, or after a yes on the
/// terminal. Every step is decided, backed up and recorded as any other change,
/// so that an undo can be undone too, by its session. Files that something else changed since
/// are conflicts: nothing is done while there are any, unless they are to be
/// skipped (the exit code is 1 then) or overwritten.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis undo                              the last session, shown first\n  \
    portcullis backup undo --session 5f2c        the same command\n  \
    portcullis undo --record 1207 --yes\n  \
    portcullis undo --session 5f2c --skip-conflicts --yes")]
#[command(group = clap::ArgGroup::new("what"))]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// The last session that changed something and is no undo itself; so without any of these
    #[arg(long, group = "what")]
    last: bool,
    /// Every change of this session; the beginning of its id is enough, and `last` is as --last
    #[arg(long, value_name = "ID", group = "what", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    session: Option<String>,
    /// The change of this record of the log; with what else was stored of a file while a program
    /// had it open
    #[arg(long, value_name = "RECORD", group = "what")]
    record: Option<u64>,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command.
///
/// # Errors
/// When no session changed anything, or as a restore fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let session = args.session.as_deref().filter(|session| !args.last && *session != "last");
    let select = match (args.record, session) {
        (Some(record), _) => Select::Record(record),
        (None, Some(session)) => Select::Session(session.to_owned()),
        (None, None) => Select::Session(last(&args.common)?),
    };
    steps::run(&args.common, &select, None, &args.flags)
}

/// Returns the last session that changed something, other than by an undo: one that is undone by
/// mistake comes back unseen.
fn last(common: &Common) -> Result<String, Failure> {
    let state = common.state_directory()?;
    let directory = state.join("audit");
    let failed = |error| unreadable(&directory, &error);
    let log = Log::open(&directory).map_err(failed)?;
    let is_own = |change: Change| change.undoes.is_none();
    let session = last_session(&log, |record| Change::of(record).is_some_and(is_own));
    let session = session.map_err(failed)?;
    let session = session.ok_or_else(|| {
        let options = log_options(&state, common.config.as_deref());
        Failure::new("no session changed anything").help(format_args!(
            "`portcullis audit session {options}` lists the sessions; --workspace names another \
             workspace"
        ))
    })?;
    errln!("portcullis: the last session that changed something is {}", Escaped(&session));
    Ok(session)
}
