//! `portcullis audit session`: a session as a story, or record by record with diffs.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    select::{Indexed, ScanProgress, backup_store, warn_of_pruned},
    session_summary,
};
use crate::{
    app::{
        audit_log::damaged,
        failure::{Context as _, Failure},
        output::{colours, is_closed},
        pager::PagerOptions,
    },
    change::Change,
    cli::{
        render::{counted, diff_lines, time},
        rows::fitted,
        session_name,
    },
    model::{Escaped, Quoted},
    review::{
        Event, Log, Patch, Patches, Session, SessionError, SessionSummary, last_session,
        named_sessions, sessions,
    },
};

/// Show one session in order: what each party read, changed and was denied
///
/// Prints prompt turns, then each command, process or client in the order of their first records,
/// with the paths that it read, changed or was denied. What a program claims about itself is marked
/// as a claim. With --records, prints each record by itself, with the differences in content.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit session                     the sessions there are\n  \
    portcullis audit session last\n  \
    portcullis audit session 223fb425\n  \
    portcullis audit session 223fb425 --records\n  \
    portcullis audit session 223fb425 --records --no-diff --json\n\n\
    The differences of --records come from the backups and the disk, without redaction.")]
pub(super) struct Args {
    #[command(flatten)]
    log: Indexed,
    /// The session: the beginning of its identifier, the id of one of its ACP sessions, or `last`
    /// for that of the last agent; without one, the sessions are listed
    id: Option<String>,
    /// Print each record by itself, with the differences in content
    #[arg(long, requires = "id")]
    records: bool,
    /// Show the events only, not how contents changed
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
    let (log, bar) = args.log.open()?;
    let id = match id.as_str() {
        "last" => last(args, &log)?,
        id => named(args, &log, id)?,
    };
    let id = id.as_str();
    if !args.records {
        return tell(args, &log, &bar, id);
    }
    let session = Session::find(&log, id);
    bar.finish();
    let session = session.map_err(|error| failure(args, error))?;
    if !session.has_start() {
        warn_of_pruned(&log, None);
    }
    // There are neither backups nor a workspace beside a copy of a log.
    let contents = match (args.no_diff, &args.log.at.dir) {
        (false, None) => Some((backup_store(&args.log.at)?, args.log.at.files(&log, &bar)?)),
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
fn tell(args: &Args, log: &Log, bar: &ScanProgress, id: &str) -> Result<ExitCode, Failure> {
    let told = SessionSummary::find(log, id);
    bar.finish();
    let told = told.map_err(|error| failure(args, error))?;
    if !told.has_start() {
        warn_of_pruned(log, None);
    }
    if args.json {
        session_summary::print_json(&told);
    } else {
        session_summary::print(&told);
    }
    damaged(&told.scanned)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the last session, that of an agent if there is one.
fn last(args: &Args, log: &Log) -> Result<String, Failure> {
    last_session(log, |_| true)
        .map_err(|error| args.log.unreadable(&error))?
        .ok_or_else(|| Failure::new("the log has no session yet"))
}

fn named(args: &Args, log: &Log, name: &str) -> Result<String, Failure> {
    let found = named_sessions(log, name).map_err(|error| args.log.unreadable(&error))?;
    let list = format!("portcullis audit session {}", args.log.at.options());
    session_name::one(log, found, name, &list)
}

fn failure(args: &Args, error: SessionError) -> Failure {
    match error {
        SessionError::Log(error) => args.log.unreadable(&error),
        error => Failure::new(error),
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
            let line = format!("{time}  {id}  {:>7} records  {agent}", group.records);
            outln!("{}", fitted(&line, false));
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
            let target = change.target.as_ref().map(|target| format!(" -> {}", Quoted(target)));
            let to = to.or(target).unwrap_or_default();
            let line = format!(
                "{:>8}  {}  {:<9} {}{to}  {}",
                change.seq,
                clock(&change.t),
                change.operation.to_string(),
                change.path.quoted(),
                ended(change),
            );
            outln!("{}", fitted(line.trim_end(), false));
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
                let (method, reason) = (fact("method"), fact("reason"));
                match &other.rule {
                    Some(rule) => line += &format!("  denied by {}", Quoted(rule)),
                    None if method.is_empty() => line += "  denied",
                    None => line += &format!("  denied {method}"),
                }
                let reason = other.reason.as_ref().map_or(reason, |why| Quoted(why).to_string());
                if !reason.is_empty() {
                    line += &format!(": {reason}");
                }
            } else if what == "repeats" {
                let more = |name: &str, thing| {
                    counted(other.facts.get(name).and_then(Value::as_u64).unwrap_or(0), thing)
                };
                line += &more("opens", "more open");
                line += &format!(", {}", more("denials", "more denial"));
            } else if what == "unstored" {
                line += &format!("{} writes were not stored", fact("writes"));
            } else if let Some(sent) = other.counts.get("bytesOut") {
                let came = other.counts.get("bytesIn").map(u64::to_string);
                let came = came.unwrap_or_else(|| "unknown".to_owned());
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
            outln!("{}", fitted(line.trim_end(), false));
        }
    }
    let note = match patch {
        Patch::None => return,
        Patch::Text(text) => {
            let lines = diff_lines(text, colours());
            return lines.iter().for_each(|line| outln!("          {line}"));
        }
        Patch::Binary => "binary contents differ".to_owned(),
        Patch::TooLarge => "the contents are too large to be compared here".to_owned(),
        Patch::Unavailable(side) => {
            format!("no backup and no file has the content {side} the change")
        }
        Patch::NotChecked(side) => {
            format!("no backup has the content {side} the change, and the files were not checked")
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
            "to": change.to.as_ref().map(crate::model::WorkspacePath::as_str), "target": change.target,
            "wouldDeny": change.would_deny.then_some(true), "rule": change.rule, "before": change.before, "after": change.after,
            "backup": change.backup.map(|id| id.to_string()), "outcome": change.outcome, "result": change.result,
        }),
        Event::Other(other) => json!({
            "record": other.seq, "t": other.t, "kind": other.kind, "op": other.op,
            "path": other.path, "to": other.to, "decision": other.decision,
            "wouldDeny": other.would_deny.then_some(true), "rule": other.rule,
            "reason": other.reason, "outcome": other.outcome, "result": other.result, "bytes": other.bytes,
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
            Patch::TooLarge => ("tooLarge", None),
            Patch::Unavailable(_) => ("unavailable", None),
            Patch::NotChecked(_) => ("notChecked", None),
        };
        fields.insert("content".to_owned(), state.into());
        if let Some(text) = text {
            fields.insert("diff".to_owned(), text.clone().into());
        }
    }
    object
}
