//! The steps of `restore --at`, `--before`, `--to` and `undo`: show them, ask, carry
//! them out.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use portcullis_audit::Directory;
use serde_json::{Value, json};

use crate::{
    app::{
        audit_log::{complete_log, unreadable},
        failure::{Exit, Failure},
        options::Common,
        path_argument,
    },
    cli::{
        confirmation::{self, Confirmation},
        local_gateway::LocalGateway,
        render,
        rows::{stderr_width, stdout_width, wrapped},
    },
    model::{Escaped, WorkspacePath},
    undo::{self, Action, Choice, History, Performed, Preview, Select, Status, Step},
};

/// The maximum of records in a line of a preview.
const MAX_RECORDS: usize = 6;
/// The reason for leaving out a step that depends on another one.
const DEPENDS: &str = "it depends on a step that is left out";
/// The blanks before a row that continues a line of a preview.
const CONTINUED: usize = 20;

/// The options of an undo.
#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Make the changes without a question; needed without a terminal, and with --json
    #[arg(short, long)]
    yes: bool,
    /// Report what would be done, and whether it is allowed and possible
    #[arg(long, conflicts_with_all = ["yes", "adopt"])]
    pub(super) dry_run: bool,
    /// Leave out what something else changed since, what cannot be undone or fails, and
    /// what depends on either
    #[arg(long, conflicts_with = "overwrite")]
    skip_conflicts: bool,
    /// Replace content that something else changed since, too; it is backed up first
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl Flags {
    fn choice(&self) -> Choice {
        match (self.skip_conflicts, self.overwrite) {
            (true, _) => Choice::Skip,
            (_, true) => Choice::Overwrite,
            _ => Choice::Refuse,
        }
    }
}

/// Undoes the selected records, restricted to `path` if given.
pub(super) fn run(
    common: &Common,
    select: &Select,
    path: Option<&str>,
    flags: &Flags,
) -> Result<ExitCode, Failure> {
    let local = LocalGateway::open(common)?;
    let answer = match path
        .map(|text| (text, path_argument::parse(local.gateway().workspace().root(), text)))
    {
        Some((text, Err(refusal))) => {
            let session = local.session();
            let error = local.gateway().refuse(session, "restore", Some(text), &refusal);
            Ok(render::report_error("backup", &error, flags.json))
        }
        Some((_, Ok(path))) => go(&local, select, Some(&path), flags),
        None => go(&local, select, None, flags),
    };
    // The first error says more.
    let closed = local.close();
    let code = answer?;
    closed.map(|()| code)
}

fn go(
    local: &LocalGateway,
    select: &Select,
    path: Option<&WorkspacePath>,
    flags: &Flags,
) -> Result<ExitCode, Failure> {
    let (gateway, session) = (local.gateway(), local.session());
    let failed = |error: undo::Error| match error {
        error @ undo::Error::Damaged { .. } => {
            Failure::new(error).exit(Exit::Audit).help(format_args!(
                "`{}` says what is wrong with the log",
                local.options().log_command("audit verify")
            ))
        }
        error @ undo::Error::TooMany(_) => Failure::new(error).help(format_args!(
            "undo what is newer first: name a later record, or put single files back with `{}`",
            local.options().command("backup restore ID")
        )),
        undo::Error::Log(error) => unreadable(&local.log(), &error),
        error => Failure::new(error),
    };
    complete_log(&local.log())?;
    let log = Directory::new(local.log());
    let compared = |mut history: History| {
        if let Some(path) = path {
            history.narrow(path);
        }
        let steps = undo::plan(&history, Some(gateway.backups())).map_err(failed)?;
        Ok::<_, Failure>(Preview::new(gateway, session, &history, steps))
    };
    let mut preview = compared(History::read(&log, select).map_err(failed)?)?;
    if !Choice::Refuse.allows(&preview)
        && let Some(history) = History::read_with_undos(&log, select).map_err(failed)?
    {
        // What an interrupted undo did is in the way of the rest.
        let whole = compared(history)?;
        if in_the_way(&whole) < in_the_way(&preview) {
            preview = whole;
        }
    }
    let choice = flags.choice();
    if choice != Choice::Refuse {
        preview.choose(choice);
    }
    if !flags.json {
        show(&preview, choice);
    }
    let refused = if to_do(&preview, choice) == 0 {
        // Without conflicts there is nothing to do.
        Some(in_the_way(&preview) != (0, 0))
    } else {
        (!choice.allows(&preview)).then_some(true)
    };
    if let Some(refused) = refused {
        if refused && choice == Choice::Refuse && !flags.json {
            errln!(
                "nothing was done: --skip-conflicts leaves out what conflicts or is impossible, \
                 --overwrite replaces what conflicts"
            );
        }
        return finish(local, &preview, None, flags, refused);
    }
    if flags.dry_run {
        return finish(local, &preview, None, flags, false);
    }
    match confirmed(flags)? {
        Confirmation::Yes => {}
        Confirmation::No => return finish(local, &preview, None, flags, false),
        Confirmation::NoneToGive => return finish(local, &preview, None, flags, true),
    }
    let bar = progress(preview.steps.len());
    let performed =
        undo::perform(gateway, session, &mut preview, choice, local.approver(), &mut || {
            bar.inc(1);
        });
    bar.finish_and_clear();
    finish(local, &preview, Some(&performed), flags, false)
}

/// Returns the numbers of steps that are impossible, and of those that conflict.
fn in_the_way(preview: &Preview) -> (usize, usize) {
    let impossible = preview.count(|status| matches!(status, Status::Impossible(_)));
    (impossible, preview.count(|status| matches!(status, Status::Conflict(_))))
}

/// Returns the number of steps that are taken.
fn to_do(preview: &Preview, choice: Choice) -> usize {
    let is_overwritten =
        |status: &Status| choice == Choice::Overwrite && matches!(status, Status::Conflict(_));
    preview.count(|status| *status == Status::Ready || is_overwritten(status))
}

/// Asks on the terminal, unless the command line agreed.
fn confirmed(flags: &Flags) -> Result<Confirmation, Failure> {
    // A program cannot be asked.
    let word = if flags.json && !flags.yes {
        Confirmation::NoneToGive
    } else {
        confirmation::ask(flags.yes, "Do this?")?
    };
    match word {
        Confirmation::NoneToGive if !flags.json => {
            errln!("nothing was done: add --yes to do it, or --dry-run to only look");
        }
        Confirmation::No => errln!("nothing was done"),
        _ => {}
    }
    Ok(word)
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Returns the name of a step's action.
fn word(step: &Step) -> &'static str {
    match step.action {
        Action::Restore(_) => "restore",
        Action::Remove => "remove",
        Action::RemoveDirectory => "rmdir",
        Action::SetAttributes(_) => "setattr",
        Action::Rename { .. } => "rename",
        Action::Exchange { .. } => "exchange",
    }
}

fn show(preview: &Preview, choice: Choice) {
    for (step, status) in &preview.steps {
        if *status == Status::Unchanged {
            continue;
        }
        let subject = match &step.action {
            Action::Rename { from } => format!("{} -> {}", from.quoted(), step.path.quoted()),
            Action::Exchange { with } => format!("{} <-> {}", with.quoted(), step.path.quoted()),
            _ => step.path.quoted().to_string(),
        };
        let (name, why) = named(status);
        let mark = match status {
            Status::Ready => "",
            Status::Depends => "left out",
            _ => name,
        };
        let why = why.map(|why| format!("; {}", Escaped(why))).unwrap_or_default();
        let line = format!("{mark:10} {:8} {subject}  ({}{why})", word(step), records(step));
        outln!("{}", wrapped(&line, 0, CONTINUED, stdout_width()));
    }
    let count = |what: fn(&Status) -> bool| preview.count(what);
    for session in &preview.undo_of {
        outln!("takes back an undo of session {}", Escaped(short(session)));
    }
    let mut words = vec![format!("{} to do", to_do(preview, choice))];
    let conflicts = if choice == Choice::Overwrite { "of them in conflict" } else { "in conflict" };
    for (number, word) in [
        (count(|s| matches!(s, Status::Conflict(_))), conflicts),
        (count(|s| matches!(s, Status::Impossible(_))), "impossible"),
        (count(|s| matches!(s, Status::Skipped(_))), "skipped"),
        (count(|s| *s == Status::Depends), "left out with them"),
        (count(|s| *s == Status::Unchanged), "unchanged"),
        (preview.undone, "undone before"),
    ] {
        if number > 0 {
            words.push(format!("{number} {word}"));
        }
    }
    outln!("{}", words.join(", "));
    if preview.steps.is_empty() && preview.undone > 0 {
        let by: Vec<_> = preview.undone_by.iter().map(|session| Escaped(short(session))).collect();
        let by: Vec<_> = by.iter().map(ToString::to_string).collect();
        outln!("undone already, by session {}", by.join(", "));
    }
    if let Some(first) = preview.begins {
        errln!(
            "portcullis: warning: the log begins with record {first}; changes of the session that \
             were pruned before it stay"
        );
    }
}

/// Returns the beginning of a session's identifier, which is enough to name it.
fn short(session: &str) -> &str {
    session.get(..12).unwrap_or(session)
}

fn records(step: &Step) -> String {
    let shown: Vec<String> =
        step.records.iter().take(MAX_RECORDS).map(ToString::to_string).collect();
    let more = step.records.len().saturating_sub(MAX_RECORDS);
    let word = if step.records.len() == 1 { "record" } else { "records" };
    match more {
        0 => format!("{word} {}", shown.join(", ")),
        more => format!("{word} {} and {more} more", shown.join(", ")),
    }
}

/// Prints what was done and what was left out.
fn finish(
    local: &LocalGateway,
    preview: &Preview,
    performed: Option<&Performed>,
    flags: &Flags,
    refused: bool,
) -> Result<ExitCode, Failure> {
    let session = local.session();
    let choice = flags.choice();
    let is_left_out = |(_, status): &&(Step, Status)| match status {
        Status::Unchanged | Status::Done => false,
        // A preview names what the same command would leave out.
        _ if performed.is_none() && choice == Choice::Refuse => false,
        Status::Ready => performed.is_some(),
        Status::Conflict(_) => performed.is_some() || choice != Choice::Overwrite,
        _ => true,
    };
    let left_out: Vec<_> = preview.steps.iter().filter(is_left_out).collect();
    let is_left = |(_, status): &&(Step, Status)| !matches!(status, Status::Skipped(_));
    let failed = refused || left_out.iter().any(is_left);
    let stopped = performed.and_then(|performed| performed.stopped.as_ref());
    let done = preview.count(|status| *status == Status::Done);
    if flags.json {
        let mut object = json!({
            "ok": !failed,
            "done": performed.is_some() && stopped.is_none(),
            "stepsDone": done,
            "undoneBefore": preview.undone,
            "undoneBy": preview.undone_by,
            "undoOf": preview.undo_of,
            "logBegins": preview.begins,
            "session": session.id,
            "steps": preview.steps.iter().map(step_json).collect::<Vec<_>>(),
            "receipts": performed.map_or(&[][..], |performed| performed.receipts.as_slice()),
            "leftOut": left_out.into_iter().map(step_json).collect::<Vec<_>>(),
        });
        let error = stopped.map(render::error_json);
        if let (Some(fields), Some(Value::Object(mut error))) = (object.as_object_mut(), error) {
            fields.append(&mut error);
        }
        outjson!(object);
    } else if let Some(performed) = performed {
        let has_failed = preview.count(|status| matches!(status, Status::Failed(_))) > 0;
        for (step, status) in &preview.steps {
            let (mark, why) = match status {
                Status::Unchanged => continue,
                Status::Done if !has_failed => continue,
                Status::Done => ("done", None),
                Status::Failed(why) => ("failed", Some(why.as_str())),
                Status::Ready => ("not tried", None),
                _ => ("left out", named(status).1),
            };
            let why = why.map(|why| format!(" ({})", Escaped(why))).unwrap_or_default();
            let line = format!("{mark}: {} {}{why}", word(step), step.path.quoted());
            errln!("{}", wrapped(&line, 0, CONTINUED, stderr_width()));
        }
        let command = local.options().command(format!("undo --session {}", short(&session.id)));
        let counted = render::counted(done as u64, "step");
        match done {
            0 => errln!("{counted} done"),
            _ => errln!("{counted} done; to take back: `{command}`"),
        }
        if let Some(error) = stopped {
            let record = error.receipt().map(|receipt| format!(" by record {}", receipt.seq));
            let record = record.unwrap_or_default();
            errln!("stopped there{record}; the same command continues from here");
        }
        // Its record is chained to all earlier ones.
        if let Some(receipt) = performed.receipts.last() {
            errln!("  record {}", render::receipt_text(receipt));
        }
    }
    Ok(match stopped {
        Some(error) => render::exit(error),
        None if failed => Exit::Failure.into(),
        None => ExitCode::SUCCESS,
    })
}

/// Returns the name of a status for programs, and its reason.
fn named(status: &Status) -> (&'static str, Option<&str>) {
    match status {
        Status::Ready => ("ready", None),
        Status::Unchanged => ("unchanged", None),
        Status::Conflict(why) => ("conflict", Some(why)),
        Status::Impossible(why) => ("impossible", Some(why)),
        Status::Skipped(why) => ("skipped", Some(why)),
        Status::Depends => ("depends", Some(DEPENDS)),
        Status::Done => ("done", None),
        Status::Failed(why) => ("failed", Some(why)),
    }
}

fn step_json((step, status): &(Step, Status)) -> Value {
    let (status, reason) = named(status);
    let (backup, from) = match &step.action {
        Action::Restore(id) => (Some(id.to_string()), None),
        Action::Rename { from } | Action::Exchange { with: from } => (None, Some(from.as_str())),
        _ => (None, None),
    };
    json!({
        "action": word(step),
        "path": step.path.as_str(),
        "from": from,
        "backup": backup,
        "records": step.records,
        "status": status,
        "reason": reason,
    })
}
