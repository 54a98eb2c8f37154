//! `portcullis audit prune`: removes old records; their roots stay.

use std::{path::Path, process::ExitCode};

use portcullis_audit::Segment;

use super::{checkpoint, location::LogLocation, select};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        record_time::RecordTime,
        session, ship,
    },
    cli::{confirmation, render::counted},
    config::audit::Target,
    gateway::{AuditLog, Pruning},
    model::Escaped,
    review::forget_index,
};

/// Delete old segments of the log; the rest still verifies
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit prune --before 90d\n  \
    portcullis audit prune --before 2026-01-01 --yes\n\n\
    Verifies the log first. The newest full segment (65,536 records) always stays. The prune is \
    itself recorded, and a checkpoint signed. Records that a target of `audit.ship` does not have \
    stay, unless `--unshipped` is given.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Records from before this time: `2026-01-01`, `2026-01-01T08:00:00Z`, or how long ago: `90d`
    #[arg(long, value_name = "TIME")]
    before: RecordTime,
    /// Remove records that a target of `audit.ship` does not have yet, as well
    #[arg(long)]
    unshipped: bool,
    /// Remove them without a question
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (path, state) = args.location.open()?;
    let before = args.before.as_str();
    let plan = match AuditLog::plan_prune(&state, before).or_fail("cannot look at the audit log")? {
        Pruning::Possible(plan) => plan,
        Pruning::Nothing(reason) => {
            outln!("nothing to prune: {reason}");
            return Ok(ExitCode::SUCCESS);
        }
        Pruning::Damaged(report) => {
            if let Some(first) = report.damages.first() {
                outln!("damaged: {}", Escaped(&first.to_string()));
            }
            return Err(Failure::new("nothing was removed: the log is damaged")
                .help("`portcullis audit verify` says what is wrong")
                .exit(Exit::Audit));
        }
    };
    outln!(
        "to be removed: {}, {}; {} in all will be gone then",
        counted(plan.records, "record"),
        counted(plan.bytes, "byte"),
        counted(plan.segments, "segment")
    );
    let audit = args.location.audit()?;
    if !args.unshipped {
        refuse_unshipped(&path, &audit.ship, Segment(plan.segments))?;
    }
    confirmation::require(args.yes, "remove them?")?;
    let audit_log = checkpoint::open(&state, &audit)?;
    let forget = || {
        forget_index(&select::index(&path), Segment(plan.segments))
            .or_fail("cannot remove the index of what is pruned")
    };
    // Again afterwards: a search may have created it meanwhile.
    forget()?;
    audit_log
        .prune(&plan, before, &session::user())
        .and_then(|()| audit_log.leave())
        .or_fail("cannot prune the audit log")?;
    forget()?;
    outln!("done: `portcullis audit show --kind pruned` shows the record");
    Ok(ExitCode::SUCCESS)
}

/// Refuses to remove segments before `end` that a target lacks.
fn refuse_unshipped(state: &Path, targets: &[Target], end: Segment) -> Result<(), Failure> {
    match ship::lacking(state, targets, end) {
        Some(lacking) => Err(Failure::new(format!(
            "nothing was removed: {}: {}",
            Escaped(&lacking.place),
            Escaped(&lacking.reason)
        ))
        .help(
            "`portcullis audit ship` sends what a target lacks; `--unshipped` removes the records \
             all the same",
        )),
        None => Ok(()),
    }
}
