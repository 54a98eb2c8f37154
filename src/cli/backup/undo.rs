//! `portcullis backup undo`: undoes the changes of a record or a session.

use std::{path::Path, process::ExitCode};

use portcullis_audit::Directory;

use super::steps::{self, Flags};
use crate::{
    app::{
        audit_log::{read_log, unreadable},
        failure::Failure,
        options::Common,
        state_directory,
    },
    change::Change,
    cli::{gateway_options::log_options, session_name},
    model::Escaped,
    review::{last_changing_session, named_sessions},
    undo::{self, Select},
};

/// Undo the changes of a session or of one record; by default those of the last session
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
    /// Undo the last session that left a change and is no undo, if possible one of an agent; the
    /// default
    #[arg(long, group = "what")]
    last: bool,
    /// Undo every change of this session; the beginning of its id or the id of one of its ACP
    /// sessions is enough, and `last` is the same as --last
    #[arg(long, value_name = "ID", group = "what", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    session: Option<String>,
    /// Undo the change of this record of the log. If a program stored a file several times while
    /// it had it open, all of these changes are undone
    #[arg(long, value_name = "RECORD", group = "what")]
    record: Option<u64>,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command.
///
/// # Errors
/// When no session left a change, or as a restore fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let session = args.session.as_deref().filter(|session| !args.last && *session != "last");
    let select = match (args.record, session) {
        (Some(record), _) => Select::Record(record),
        (None, Some(session)) => Select::Session(named(&args.common, session)?),
        (None, None) => Select::Session(last(&args.common)?),
    };
    steps::run(&args.common, &select, None, &args.flags)
}

/// Returns the session with this identifier, its beginning, or an ACP session of this ID.
fn named(common: &Common, name: &str) -> Result<String, Failure> {
    let state = common.state_directory()?;
    let directory = state.join("audit");
    let failed = |error| unreadable(&directory, &error);
    let log = read_log(&directory)?;
    let found = named_sessions(&log, name).map_err(failed)?;
    session_name::one(&log, found, name, &list(common, &state))
}

/// Returns the command that lists the sessions.
fn list(common: &Common, state: &Path) -> String {
    format!("portcullis audit session {}", log_options(state, common.config.as_deref()))
}

/// Returns the last session that changed something, other than by an undo: one that is undone by
/// mistake comes back unseen. Sessions that left everything as it was are passed over.
fn last(common: &Common) -> Result<String, Failure> {
    let state = common.state_directory()?;
    let directory = state.join("audit");
    let failed = |error| unreadable(&directory, &error);
    let log = read_log(&directory)?;
    let backup_store = state_directory::backup_store(&state)?;
    let (source, mut passed_over) = (Directory::new(&directory), Vec::new());
    let is_wanted = |session: &str| {
        // The undo itself reports an error.
        let wanted = undo::leaves_a_change(&source, session, backup_store.as_ref()).unwrap_or(true);
        if !wanted {
            passed_over.push(session.to_owned());
        }
        wanted
    };
    let is_no_undo = |change: &Change| change.undoes.is_none();
    let found = last_changing_session(&log, is_no_undo, is_wanted).map_err(failed)?;
    tell_of_passed_over(&passed_over);
    if let Some(session) = found {
        errln!("portcullis: the session to undo is {}", Escaped(&session));
        return Ok(session);
    }
    let what = if passed_over.is_empty() { "changed anything" } else { "left a change" };
    let pruned = session_name::pruned(&log);
    Err(Failure::new(format_args!("no session {what}{pruned}")).help(format_args!(
        "`{}` lists the sessions; --workspace names another workspace",
        list(common, &state)
    )))
}

/// Names the sessions that are not undone, the first of them.
fn tell_of_passed_over(sessions: &[String]) {
    const MAX_SHOWN: usize = 3;
    if sessions.is_empty() {
        return;
    }
    let shown: Vec<_> =
        sessions.iter().take(MAX_SHOWN).map(|session| Escaped(session).to_string()).collect();
    let more = match sessions.len().saturating_sub(MAX_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    errln!("portcullis: skipped {}{more}, which left everything as it was", shown.join(", "));
}
