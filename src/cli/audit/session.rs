//! `portcullis audit session`: a session as a story, or record by record with diffs.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    select::{Indexed, backup_store, damaged, warn_of_pruned},
    session_summary,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        output::{colours, is_closed},
        pager::PagerOptions,
    },
    change::Change,
    cli::render::{diff_line, time},
    model::{Escaped, Quoted},
    review::{
        Event, Patch, Patches, Session, SessionError, SessionSummary, last_session, sessions,
    },
};

/// Show one session as a story: who read, changed and was denied what
///
/// Prompt turns, then each command, process or client in the order of their first records, with
/// the paths that it read, changed or was denied. What a program says of itself is told as that.
/// With --records, each record by itself, with how it changed the contents.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit session                     the sessions there are\n  \
    portcullis audit session last\n  \
    portcullis audit session 223fb425\n  \
    portcullis audit session 223fb425 --records\n  \
    portcullis audit session 223fb425 --records --no-diff --json\n\n\
    The differences of --records come from the backups and the disk, as they are: what a policy would withhold\n\
    from an agent is in them.")]
pub(super) struct Args {
    #[command(flatten)]
    log: Indexed,
    /// The session, how its identifier begins, or `last`; without one, the sessions are listed
    id: Option<String>,
    /// Each record by itself, with differences
    #[arg(long, requires = "id")]
    records: bool,
    /// Only what happened, not how contents changed
    #[arg(long, requires = "records")]
    no_diff: bool,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.json {
        args.log.at.enable(args.pager);
    }
    let Some(id) = &args.id else { return list(args) };
    let newest;
    let id = match id.as_str() {
        "last" => {
            newest = last(args)?;
            &newest
        }
        id => id,
    };
    if !args.records {
        return tell(args, id);
    }
    let (log, bar) = args.log.open()?;
    let session = Session::find(&log, id);
    bar.finish();
    let session = session.map_err(|error| failure(args, id, error))?;
    if !session.is_whole() {
        warn_of_pruned(&log, None);
    }
    // There are neither backups nor a workspace beside a copy of a log.
    let contents = match (args.no_diff, &args.log.at.dir) {
        (false, None) => {
            Some((backup_store(&args.log.at.location)?, args.log.at.files(&log, &bar)?))
        }
        _ => None,
    };
    drop(bar);
    let mut patches = contents
        .as_ref()
        .map(|(backup_store, files)| Patches::new(backup_store.as_ref(), files.workspace()));
    let mut begun = false;
    for event in &session.events {
        let patch = match (event, &mut patches) {
            (Event::Change(change), Some(patches)) => patches
                .of(change)
                .or_fail(format_args!("cannot compare the contents of record {}", change.seq))?,
            _ => Patch::None,
        };
        if args.json {
            outjson!(object(&session.id, event, &patch));
        } else {
            if !begun {
                begun = true;
                outln!("session {}", Escaped(&session.id));
            }
            people(event, &patch);
        }
        if is_closed() {
            break;
        }
    }
    damaged(&session.scanned)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the story of a session.
fn tell(args: &Args, id: &str) -> Result<ExitCode, Failure> {
    let (log, bar) = args.log.open()?;
    let told = SessionSummary::find(&log, id);
    bar.finish();
    let told = told.map_err(|error| failure(args, id, error))?;
    if !told.is_whole() {
        warn_of_pruned(&log, None);
    }
    if args.json {
        session_summary::print_json(&told);
    } else {
        session_summary::print(&told);
    }
    damaged(&told.scanned)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the session of the newest record that has one.
fn last(args: &Args) -> Result<String, Failure> {
    let (log, bar) = args.log.open()?;
    let last = last_session(&log, |_| true);
    drop(bar);
    last.map_err(|error| args.log.unreadable(&error))?
        .ok_or_else(|| Failure::new("the log has no session yet"))
}

fn failure(args: &Args, id: &str, error: SessionError) -> Failure {
    match error {
        SessionError::Log(error) => args.log.unreadable(&error),
        SessionError::Ambiguous(ids) => {
            let ids: Vec<_> = ids.iter().take(10).map(|id| Escaped(id).to_string()).collect();
            Failure::new(format_args!("more than one session begins with `{}`", Escaped(id)))
                .help(format_args!("name one of: {}", ids.join(", ")))
        }
        SessionError::Unknown => {
            let options = args.log.at.options();
            Failure::new(format_args!("no session begins with `{}`", Escaped(id))).help(
                format_args!(
                    "`portcullis audit session {options}` lists them; with `last` it shows the newest"
                ),
            )
        }
    }
}

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let (log, bar) = args.log.open()?;
    warn_of_pruned(&log, None);
    let found = sessions(&log);
    drop(bar);
    let mut found = found.map_err(|error| args.log.unreadable(&error))?;
    found.groups.retain(|group| matches!(group.values.first(), Some(Some(_))));
    found.groups.sort_by(|a, b| a.first.cmp(&b.first));
    for group in &found.groups {
        let value = |at: usize| group.values.get(at).cloned().flatten().unwrap_or_default();
        if args.json {
            outjson!(json!({
                "session": value(0), "agent": value(1), "records": group.records,
                "first": group.first, "last": group.last,
            }));
        } else {
            let time = time(&group.first);
            let (id, agent) = (value(0), value(1));
            let (id, agent) = (Quoted(&id), Quoted(&agent));
            outln!("{time}  {id}  {:>7} records  {agent}", group.records);
        }
    }
    damaged(&found.scanned)?;
    Ok(ExitCode::SUCCESS)
}

fn people(event: &Event, patch: &Patch) {
    let clock = |t: &str| t.get(11..23).unwrap_or(t).to_owned();
    match event {
        Event::Change(change) => {
            let to = change.to.as_ref().map(|to| format!(" to {}", to.quoted()));
            let to = to.unwrap_or_default();
            outln!(
                "{:>8}  {}  {:<9} {}{to}  {}",
                change.seq,
                clock(&change.t),
                change.operation.to_string(),
                change.path.quoted(),
                ended(change),
            );
            if change.would_deny {
                let rule = change.rule.as_deref().unwrap_or("-");
                outln!("          (observed: {} would deny it)", Quoted(rule));
            }
        }
        Event::Other(other) => {
            let text = |text: &Option<String>| {
                text.as_deref().map(|text| Quoted(text).to_string()).unwrap_or_default()
            };
            let what = match (&other.op, other.kind.as_str()) {
                (Some(op), "decision" | "intent") => Quoted(op).to_string(),
                _ => Quoted(&other.kind).to_string(),
            };
            let about = match other.kind.as_str() {
                "approval" => format!("{} {}", text(&other.op), text(&other.path)),
                _ => text(&other.path),
            };
            let fact = |name: &str| match other.facts.get(name) {
                Some(Value::String(text)) => Quoted(text).to_string(),
                Some(value) => Quoted(&value.to_string()).to_string(),
                None => String::new(),
            };
            let mut line = format!("{:>8}  {}  {what:<9} {about}", other.seq, clock(&other.t));
            if other.kind == "approval" {
                line += &format!("  {} ({})", text(&other.decision), text(&other.result));
                if other.facts.contains_key("by") {
                    line += &format!(" by {}", fact("by"));
                }
            } else if other.kind == "policy" && other.result.as_deref() == Some("ok") {
                line += &format!(" {} version {} is in force", fact("name"), fact("version"));
            } else if other.kind == "policy" {
                line += &format!(" {}: {}", text(&other.result), text(&other.reason));
            } else if other.decision.as_deref() == Some("ask") {
                line += &format!("  a person is asked because of {}", text(&other.rule));
            } else if other.decision.as_deref() == Some("deny") {
                line += &format!("  denied by {}", text(&other.rule));
                if other.reason.is_some() {
                    line += &format!(": {}", text(&other.reason));
                }
            } else if what == "repeats" {
                line += &format!("{} more opens, {} more denials", fact("opens"), fact("denials"));
            } else if let (Some(sent), Some(came)) =
                (other.counts.get("bytesOut"), other.counts.get("bytesIn"))
            {
                line += &format!("  {sent} bytes out, {came} in  {}", text(&other.result));
            } else if other.result.as_deref().is_some_and(|result| result != "ok") {
                line += &format!("  {}", text(&other.result));
            }
            if other.would_deny {
                line += &format!("  (observed: {} would deny it)", text(&other.rule));
            }
            if !other.findings.is_empty() {
                let rules: Vec<_> = (other.findings.iter())
                    .map(|(rule, times)| format!("{} ({times})", Quoted(rule)))
                    .collect();
                line += &format!("  secrets found: {}", rules.join(", "));
            }
            outln!("{}", line.trim_end());
        }
    }
    let note = match patch {
        Patch::None => return,
        Patch::Text(text) => {
            let colours = colours();
            return text.lines().for_each(|line| outln!("          {}", diff_line(line, colours)));
        }
        Patch::Binary => "binary contents differ".to_owned(),
        Patch::Large => "the contents are too large to be compared here".to_owned(),
        Patch::Lost(side) => format!("nothing keeps the content {side} the change any more"),
        Patch::NotLookedAt(side) => {
            format!("no backup has the content {side} the change, and the files were not looked at")
        }
    };
    outln!("          ({note})");
}

fn ended(change: &Change) -> String {
    match change.result.as_deref() {
        Some("ok" | "committed") => String::new(),
        Some(other) => Quoted(other).to_string(),
        None => "(not settled)".to_owned(),
    }
}

fn object(session: &str, event: &Event, patch: &Patch) -> Value {
    let mut object = match event {
        Event::Change(change) => json!({
            "record": change.seq, "t": change.t, "kind": "change", "op": change.operation.as_str(),
            "path": change.path.as_str(),
            "to": change.to.as_ref().map(crate::model::WorkspacePath::as_str),
            "wouldDeny": change.would_deny.then_some(true), "rule": change.rule, "before": change.before, "after": change.after,
            "backup": change.backup.map(|id| id.to_string()), "answer": change.answer, "result": change.result,
        }),
        Event::Other(other) => json!({
            "record": other.seq, "t": other.t, "kind": other.kind, "op": other.op,
            "path": other.path, "to": other.to, "decision": other.decision,
            "wouldDeny": other.would_deny.then_some(true), "rule": other.rule,
            "reason": other.reason, "answer": other.answer, "result": other.result, "bytes": other.bytes,
            "secrets": (!other.findings.is_empty()).then_some(&other.findings),
            "counts": (!other.counts.is_empty()).then_some(&other.counts),
            "facts": (!other.facts.is_empty()).then_some(&other.facts),
        }),
    };
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        fields.insert("session".to_owned(), session.into());
        let (state, text) = match patch {
            Patch::None => return object,
            Patch::Text(text) => ("text", Some(text)),
            Patch::Binary => ("binary", None),
            Patch::Large => ("large", None),
            Patch::Lost(_) => ("lost", None),
            Patch::NotLookedAt(_) => ("notLookedAt", None),
        };
        fields.insert("content".to_owned(), state.into());
        if let Some(text) = text {
            fields.insert("diff".to_owned(), text.clone().into());
        }
    }
    object
}
