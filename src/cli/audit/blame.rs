//! `portcullis audit blame`: the changes of a file, and whether it is unchanged since.

use std::{path::Path, process::ExitCode};

use portcullis_audit::Hash;
use serde_json::{Value, json};

use super::{
    files::LogWorkspace,
    select::{Indexed, backup_store, warn_of_pruned, warn_of_unknown},
};
use crate::{
    app::{
        audit_log::{damaged, unreadable},
        failure::{Exit, Failure},
        pager::PagerOptions,
        path_argument,
    },
    change::Change,
    cli::{render::time, rows::prose},
    gateway::Workspace,
    model::{Escaped, WorkspacePath, for_shell},
    review::{Blame, BlameError, Field, State, Version, blame},
};

/// Report who last changed a file, under which rule, and whether it is unchanged since
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit blame src/main.rs\n  \
    portcullis audit blame src/main.rs --history\n  \
    portcullis audit blame src/main.rs --json\n\n\
    Follows the file through renames, also of directories above it. `backup` is that of the content\n\
    that a change replaced: `portcullis backup show` prints it, `backup restore` puts it back. A\n\
    link at the path itself is not followed.")]
pub(super) struct Args {
    #[command(flatten)]
    log: Indexed,
    /// The file or directory, also one that was removed
    path: String,
    /// Print every change, not only the last
    #[arg(long)]
    history: bool,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.json {
        args.log.at.enable(args.pager);
    }
    let (log, bar) = args.log.open()?;
    let files = args.log.at.files(&log, &bar)?;
    let path = path_argument::parse(&files.root, &args.path).map_err(|_| {
        Failure::new(format_args!("`{}` is no path in the workspace", Escaped(&args.path)))
            .exit(Exit::Usage)
    })?;
    let workspace = files.workspace();
    let backup_store = backup_store(&args.log.at)?;
    let found = blame(&log, backup_store.as_ref(), workspace, &path).map_err(|error| match error {
        BlameError::Log(error) => match args.log.at.directory() {
            Ok(directory) => unreadable(&directory, &error),
            Err(failure) => failure,
        },
        error @ BlameError::TooMany(_) => Failure::new(error).help(format_args!(
            "`portcullis audit query --path {} {}` shows each of them",
            for_shell(Path::new(&args.path)),
            args.log.at.options()
        )),
        other => Failure::new(other),
    });
    drop(bar);
    let found = found?;
    // The last change is enough, unless it does not have the content.
    let is_unknown = matches!(found.state, State::NotRecorded | State::Unknown);
    if args.history || found.versions.is_empty() || is_unknown {
        warn_of_pruned(&log, None);
    }
    if found.versions.is_empty() {
        warn_of_unknown(&log, Field::Path, std::iter::once(found.path.as_str()));
    }
    let shown = if args.history { found.versions.len() } else { 1 };
    let versions = found.versions.get(..shown.min(found.versions.len())).unwrap_or_default();
    if args.json {
        let begins = log.begins().map(|first| first.seq);
        outjson!(object(&found, &path, versions, &files, (begins, backup_store.is_some())));
    } else {
        lines(&found, &path, versions, (backup_store.is_some(), &args.log.at.options()))
            .iter()
            .for_each(|line| outln!("{}", prose(line, 13)));
    }
    damaged(&found.scanned)?;
    Ok(ExitCode::SUCCESS)
}

fn lines(
    found: &Blame,
    requested: &WorkspacePath,
    versions: &[Version],
    (has_backups, options): (bool, &str),
) -> Vec<String> {
    let mut lines = vec![found.path.quoted().to_string()];
    if found.path != *requested {
        lines.push(format!(
            "  requested as {}, of which a directory is a link: these are the changes of what it \
             leads to now, and `portcullis audit query --path {} {options}` shows what was requested \
             by that name",
            requested.quoted(),
            for_shell(Path::new(requested.as_str()))
        ));
    }
    if versions.is_empty() {
        lines.push("  no recorded change".to_owned());
    }
    for version in versions {
        lines.extend(describe(version, has_backups));
    }
    let why = found.not_checked.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    lines.push(format!("  on disk  {}{why}", state(&found.state)));
    lines
}

/// Describes a change for people. Without backups beside the log, such as a copy, none is gone.
fn describe(Version { change, name, kept }: &Version, has_backups: bool) -> Vec<String> {
    let time = time(&change.t);
    let what = match &change.to {
        Some(to) => format!("{} {} to {}", change.operation, change.path.quoted(), to.quoted()),
        None => format!("{} {}", change.operation, change.path.quoted()),
    };
    let mut lines =
        vec![format!("  record {}  {time}  {what}  by {}", change.seq, Escaped(&change.agent))];
    let mut more = |name: &str, value: String| lines.push(format!("    {name:<8} {value}"));
    if let Some(name) = name {
        more("name", format!("the file was {} then", name.quoted()));
    }
    more("session", Escaped(&change.session).to_string());
    if let Some(rule) = &change.rule {
        let location = match (&change.policy, change.line) {
            (Some(policy), Some(line)) => format!("  ({}:{line})", Escaped(policy)),
            _ => String::new(),
        };
        let observed = if change.would_deny { "  observed: it would be denied" } else { "" };
        more("rule", format!("{}{location}{observed}", Escaped(rule)));
    }
    more("result", result(change));
    let hash = |hash: &Option<Hash>| hash.map_or_else(|| "-".to_owned(), |hash| hash.to_string());
    if change.before.is_some() || change.after.is_some() {
        more("before", hash(&change.before));
        more("after", hash(&change.after));
    }
    match (kept, &change.backup) {
        (Some(kept), _) => {
            let (id, kind, bytes) = (&kept.id, kept.kind.as_str(), kept.bytes);
            more("backup", format!("{id}, a {kind} of {bytes} bytes"));
        }
        (None, Some(backup)) if has_backups => {
            more("backup", format!("{backup}, which is deleted"));
        }
        (None, Some(backup)) => {
            let reason = "not checked, as no backups are beside the log";
            more("backup", format!("{backup} ({reason})"));
        }
        (None, None) => {}
    }
    lines
}

fn result(change: &Change) -> String {
    let word = change.result.as_deref().map_or_else(|| "-".to_owned(), |r| Escaped(r).to_string());
    let mut text = match change.outcome {
        Some(outcome) => format!("{word}  (record {outcome})"),
        None => "not known: under way, or its gateway died and none has settled it yet".to_owned(),
    };
    if change.editor {
        text += ", in an editor's buffer";
    }
    text
}

fn state(state: &State) -> String {
    match state {
        State::Same(hash) => format!("the recorded bytes ({hash})"),
        State::Differs { recorded, found } => {
            format!("not the recorded content: {found}, not {recorded}")
        }
        State::Missing => "missing; no record of its removal".to_owned(),
        State::Removed => "gone, as recorded".to_owned(),
        State::Recreated => "there again; no record of its creation".to_owned(),
        State::NotRecorded => "content of which there is no record".to_owned(),
        State::Unknown => "nothing, and no record names it".to_owned(),
        State::NotChecked => "not checked".to_owned(),
        State::NotAFile => "not a regular file, so there are no bytes to compare".to_owned(),
    }
}

fn object(
    found: &Blame,
    requested: &WorkspacePath,
    versions: &[Version],
    files: &LogWorkspace,
    (begins, has_backups): (Option<u64>, bool),
) -> Value {
    let (recorded, disk) = match &found.state {
        State::Same(hash) => (Some(*hash), Some(*hash)),
        State::Differs { recorded, found } => (Some(*recorded), Some(*found)),
        _ => (None, None),
    };
    json!({
        "path": found.path.as_str(),
        "requested": requested.as_str(),
        "state": found.state.as_str(),
        "workspace": files.workspace.as_ref().ok().map(Workspace::root),
        "notChecked": files.workspace.as_ref().err().or(found.not_checked.as_ref()),
        "recorded": recorded,
        "found": disk,
        "logBegins": begins,
        "backupsChecked": has_backups,
        "changes": versions.iter().map(change_json).collect::<Vec<_>>(),
    })
}

fn change_json(Version { change, name, kept }: &Version) -> Value {
    json!({
        "record": change.seq,
        "t": change.t,
        "agent": change.agent,
        "session": change.session,
        "user": change.user,
        "transport": change.transport,
        "op": change.operation.as_str(),
        "path": change.path.as_str(),
        "to": change.to.as_ref().map(WorkspacePath::as_str),
        "name": name.as_ref().map(WorkspacePath::as_str),
        "wouldDeny": change.would_deny,
        "rule": change.rule,
        "policy": change.policy,
        "line": change.line,
        "policySha256": change.policy_sha256,
        "before": change.before,
        "after": change.after,
        "backup": change.backup.map(|id| id.to_string()),
        "stored": kept.as_ref().map(|kept| json!({
            "type": kept.kind.as_str(),
            "bytes": kept.bytes,
        })),
        "outcome": change.outcome,
        "result": change.result,
    })
}
