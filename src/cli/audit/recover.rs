//! `portcullis audit recover`: set a damaged end of the log aside.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use portcullis_audit::DamageKind;

use super::Place;
use crate::{
    cli::failure::{Context as _, Exit, Failure},
    ledger,
    model::Escaped,
};

/// Set a damaged end of the log aside, so that gates can start again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit recover\n\n\
    Nothing is thrown away: everything from the first damage on is moved to \
    `audit/quarantine` in the\nstate directory, and a record with its hash and size goes on from \
    the last record before it.\nStop the gates first. A log whose last line is torn needs no \
    repair: the next gate does it.")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (_, state) = args.place.open()?;
    let plan = ledger::plan(&state).or_fail("cannot look at the audit log")?;
    if plan.is_empty() {
        outln!("the log is whole: nothing to recover");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(first) = plan.damages.first() {
        outln!("first damage: {}", Escaped(&first.to_string()));
    }
    outln!("kept: the first {} records", plan.keep.records);
    for (segment, from, bytes) in &plan.aside {
        outln!("set aside: {bytes} bytes of {segment} from byte {from} on");
    }
    for name in &plan.strangers {
        outln!("set aside: the file {}", Escaped(name));
    }
    for name in &plan.checkpoints {
        outln!("set aside: the checkpoint {}", Escaped(name));
    }
    // What cannot be read cannot be kept aside either.
    if plan.damages.iter().any(|damage| damage.kind == DamageKind::BadSegment) {
        return Err(Failure::new("nothing was changed: a compressed segment cannot be read")
            .help("put the segment back from a copy")
            .exit(Exit::Audit));
    }
    if plan.anew {
        outln!(
            "signed anew: no checkpoint is left of what was signed, so nothing shows whether the \
             records that are kept were in it"
        );
    }
    if !args.yes && !agreed()? {
        return Err(Failure::new("nothing was changed"));
    }
    ledger::recover(&state, &plan).or_fail("cannot recover the audit log")?;
    outln!(
        "done: gates can start again; `portcullis audit show --kind recovered` shows the record"
    );
    Ok(ExitCode::SUCCESS)
}

/// Asks the person at the terminal.
fn agreed() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing was changed: nobody is there to agree")
            .help("give --yes to do it without asking"));
    }
    err!("set this aside? [y/N] ");
    io::stderr().flush().or_fail("cannot ask")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).or_fail("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
