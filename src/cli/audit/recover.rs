//! `portcullis audit recover`: sets a damaged end of the log aside.

use std::{fmt::Display, process::ExitCode};

use cap_std::fs::Dir;
use portcullis_audit::{DamageKind, PACKED, Segment};

use super::{checkpoint, location::LogLocation};
use crate::{
    app::{
        failure::{Exit, Failure},
        session,
    },
    cli::{confirmation, render::counted},
    config::audit::Audit,
    gateway::{AuditLog, LogError},
    model::Escaped,
};

/// The maximum of checkpoints set aside that are listed.
const MAX_NAMED: usize = 100;

/// Set a damaged end of the log aside, so that gateways can start again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit recover\n\n\
    Nothing is thrown away: everything from the first damage on is moved to `audit/quarantine` in \
    the state directory, and a record with its hash and size follows the last record before it. \
    A segment that cannot be read to its end is named instead, and nothing is moved: put it back \
    from a copy. If there is none, move it out of the log's directory; the segments after it are \
    then set aside as well, unless it was the first. \
    Stop the gateways first. A log whose last line is torn needs no repair: the next gateway does \
    it.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Recover without a question
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (_, state) = args.location.open_damaged()?;
    let audit = args.location.audit()?;
    let plan = AuditLog::plan_recovery(&state)
        .map_err(|error| failed(&error, format_args!("cannot look at the audit log: {error}")))?;
    if plan.is_empty() {
        startable(&state, &audit)?;
        outln!("the log is intact: nothing to recover");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(first) = plan.damages.first() {
        outln!("first damage: {}", Escaped(&first.to_string()));
    }
    if plan.damages.iter().any(|damage| damage.kind == DamageKind::UnsupportedVersion) {
        errln!(
            "portcullis: warning: records of another format version are set aside\n  help: if a newer \
             portcullis wrote them, recover the log with that one"
        );
    }
    outln!("kept: the first {} records", plan.keep.records);
    if plan.in_doubt {
        outln!(
            "set aside too: the last record before the broken link; one of the two was changed, \
             and no checkpoint says which"
        );
    }
    for (segment, from, bytes) in &plan.aside {
        outln!("set aside: {} of {segment} from byte {from} on", counted(*bytes, "byte"));
    }
    for name in &plan.unexpected {
        match name.strip_suffix(PACKED).filter(|name| Segment::from_name(name).is_some()) {
            Some(plain) => outln!(
                "set aside: the file {name}, which does not count beside {plain}; if it is the \
                 good one, move {plain} away instead and ask again"
            ),
            None => outln!("set aside: the file {}", Escaped(name)),
        }
    }
    for name in plan.checkpoints.iter().take(MAX_NAMED) {
        outln!("set aside: the checkpoint {}", Escaped(name));
    }
    if let Some(more @ 1..) = plan.checkpoints.len().checked_sub(MAX_NAMED) {
        outln!("set aside: {more} more checkpoints");
    }
    for segment in plan.roots.keys().copied().map(Segment) {
        outln!(
            "computed again: the stored root of {segment}, from its records; the former one is \
             set aside"
        );
    }
    for key in &plan.keys {
        outln!("put back: the log's public key {key}");
    }
    if plan.unaccounted > 0 {
        outln!(
            "missing: {} segments from the first one on; the record of who had them removed is \
             lost, and a `recovered` record that says so takes its place",
            plan.unaccounted
        );
    }
    if plan.unsigned {
        outln!(
            "missing: every checkpoint of a log that was signed; a `recovered` record says so, and \
             what is there is signed now. Compare it with a copy: nothing else shows what was removed"
        );
    }
    if plan.sign_again {
        outln!(
            "signed again: the log differs from the checkpoint that was signed last, which is stored \
             beside its key and set aside; nothing shows what else that checkpoint covered"
        );
    }
    confirmation::require(args.yes, "set this aside?")?;
    AuditLog::recover(&state, &plan, &session::user()).map_err(|error| {
        let failure = failed(&error, format_args!("cannot recover the audit log: {error}"));
        match error {
            LogError::StillDamaged(_) => failure.help(
                "no gateway should use it: `portcullis audit verify` shows what is wrong; run \
                 `portcullis audit recover` again for what only shows now, else put the log back \
                 from a copy",
            ),
            _ => failure,
        }
    })?;
    sign(&state, &audit).inspect_err(|_why| {
        outln!("set aside; gateways cannot start yet");
    })?;
    outln!("done: the log is intact");
    outln!("gateways can start again; `portcullis audit show --kind recovered` shows the record");
    Ok(ExitCode::SUCCESS)
}

/// Opens the recovered log, and signs it: a gateway that stops does not read all of a long log for
/// its checkpoint, and the log would count as damaged without one.
fn sign(state: &Dir, audit: &Audit) -> Result<(), Failure> {
    let audit_log = checkpoint::open(state, audit)?;
    if let Err(error) = audit_log.checkpoint() {
        if error.is_damage() {
            return Err(failed(&error, format_args!("cannot sign the audit log: {error}")));
        }
        errln!(
            "portcullis: warning: the recovered log is not signed: {error}\n  help: `portcullis audit \
             checkpoint` signs it"
        );
    }
    leave(audit_log)
}

/// Opens the log as a gateway does at its start: a recovered log must be usable by
/// gateways.
fn startable(state: &Dir, audit: &Audit) -> Result<(), Failure> {
    leave(checkpoint::open(state, audit)?)
}

fn leave(audit_log: AuditLog) -> Result<(), Failure> {
    audit_log.leave().map_err(|error| {
        failed(&error, format_args!("a gateway cannot use the audit log: {error}"))
    })
}

fn failed(error: &LogError, words: impl Display) -> Failure {
    let exit = if error.is_damage() { Exit::Audit } else { Exit::Failure };
    Failure::new(words).exit(exit)
}
