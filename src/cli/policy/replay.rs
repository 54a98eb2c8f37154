//! `portcullis policy replay`: decides recorded requests again.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Value, json};

use super::{files::load_with_outline, history::LogArgs, progress::Bar};
use crate::{
    app::{
        audit_log::{damaged, note_unverified, unreadable},
        failure::Failure,
    },
    cli::render::counted,
    model::{Escaped, Quoted},
    policy::Policy,
    policy_tools::{Changed, Replay, StricterConnections, replay},
};

/// Maximum of lines of changes for people.
const MAX_SHOWN: usize = 50;

/// Decide every recorded request again under another policy
///
/// Requests are decided by their names; those that were denied for content,
/// limits or what lay there are counted apart. What observe mode let through
/// counts as denied, then and now. Nothing is changed or recorded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy replay new.toml\n  \
    portcullis policy replay new.toml --since 7d\n  \
    portcullis policy replay new.toml --json")]
pub(super) struct Args {
    /// A policy file, the name of an embedded policy, or `-` for standard input
    #[arg(value_name = "NEW", value_hint = clap::ValueHint::FilePath)]
    new: String,
    #[command(flatten)]
    log: LogArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (policy, outline) = load_with_outline(&args.new)?;
    let policy = policy.enforcing();
    let (path, log) = args.log.open()?;
    let found = replay(&policy, &outline, &log, args.log.since(), &Bar::default())
        .map_err(|error| unreadable(&path, &error))?;
    note_unverified(&path);
    if args.json {
        outjson!(report_json(&policy, &found));
    } else {
        out!("{}", report(&policy, &found));
    }
    damaged(&found.count.scanned)?;
    Ok(ExitCode::SUCCESS)
}

fn report(policy: &Policy, found: &Replay) -> String {
    let count = &found.count;
    let mut text = format!(
        "replayed {} of {} under `{}` version {}\n",
        counted(count.requests, "request"),
        counted(count.records, "record"),
        policy.name(),
        policy.version(),
    );
    let line = |text: &mut String, number: u64, what: &str| {
        let _ = writeln!(text, "{number:>8} {what}");
    };
    line(&mut text, found.same, "decided as before");
    let opened: u64 =
        found.changes.iter().filter(|change| change.opens()).map(|change| change.records).sum();
    line(&mut text, opened, "now allowed");
    line(&mut text, found.changed().saturating_sub(opened), "now denied");
    for (rule, number) in &found.undecided {
        let what = format!("not decided again: denied by `{}`, not by name", Escaped(rule));
        line(&mut text, *number, &what);
    }
    if count.malformed > 0 {
        line(&mut text, count.malformed, "malformed, so never decided");
    }
    for (opens, title) in [(true, "now allowed"), (false, "now denied")] {
        let changes: Vec<_> =
            found.changes.iter().filter(|change| change.opens() == opens).collect();
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{title}:");
        list(&mut text, &changes);
    }
    for (stricter, place) in [
        (&found.carried_to_files, "the files that sandboxes write"),
        (&found.carried_to_sessions, "these files and to later sessions of the agent"),
    ] {
        let Some(stricter) = stricter else { continue };
        let StricterConnections { sandboxes, files, changes } = stricter;
        let _ = writeln!(text, "\nlabels are not carried on; if they were, to {place}:");
        line(&mut text, *files, "files would be labelled");
        line(&mut text, *sandboxes, "sandboxes would carry more labels");
        line(&mut text, stricter.connections(), "connections would be restricted");
        list(&mut text, &changes.iter().collect::<Vec<_>>());
    }
    text
}

/// Adds the lines of requests that are decided differently.
pub(super) fn list(text: &mut String, changes: &[&Changed]) {
    for change in changes.iter().take(MAX_SHOWN) {
        let _ = writeln!(text, "{}", change_line(change));
    }
    if changes.len() > MAX_SHOWN {
        let _ = writeln!(text, "  and {} more; `--json` has them all", changes.len() - MAX_SHOWN);
    }
}

fn change_line(change: &Changed) -> String {
    let to = change.to.as_ref().map(|to| format!(" -> {}", Quoted(to))).unwrap_or_default();
    let location = change
        .location
        .as_ref()
        .map(|location| format!(" ({})", Escaped(&location.to_string())))
        .unwrap_or_default();
    format!(
        "{:>6}x {:<7} {}{to}  agent {}  {} by `{}` -> {} by `{}`{location}  record {}",
        change.records,
        change.operation,
        Quoted(&change.path),
        change.agent,
        Escaped(&change.was),
        Escaped(&change.was_rule),
        change.now,
        change.now_rule,
        change.first,
    )
}

fn report_json(policy: &Policy, found: &Replay) -> Value {
    let carried_on = found.carried_to_files.as_ref().zip(found.carried_to_sessions.as_ref());
    let carried_on = carried_on.map(|(files, sessions)| {
        json!({ "files": stricter_json(files), "sessions": stricter_json(sessions) })
    });
    json!({
        "policy": { "name": policy.name(), "version": policy.version(), "sha256": policy.sha256() },
        "records": found.count.records,
        "requests": found.count.requests,
        "malformed": found.count.malformed,
        "damaged": found.count.scanned.damaged,
        "same": found.same,
        "changed": found.changed(),
        "undecided": found.undecided,
        "changes": changes_json(&found.changes),
        "propagation": carried_on,
    })
}

fn stricter_json(stricter: &StricterConnections) -> Value {
    json!({
        "files": stricter.files,
        "sandboxes": stricter.sandboxes,
        "connections": stricter.connections(),
        "changes": changes_json(&stricter.changes),
    })
}

/// Returns requests that are decided differently as JSON objects.
pub(super) fn changes_json(changes: &[Changed]) -> Vec<Value> {
    changes
        .iter()
        .map(|change| {
            json!({
                "agent": change.agent,
                "operation": change.operation.as_str(),
                "path": change.path,
                "to": change.to,
                "old": { "effect": change.was, "rule": change.was_rule },
                "new": {
                    "effect": change.now,
                    "rule": change.now_rule,
                    "file": change.location.as_ref().map(|location| &location.file),
                    "line": change.location.as_ref().map(|location| location.line),
                },
                "records": change.records,
                "first": change.first,
            })
        })
        .collect()
}
