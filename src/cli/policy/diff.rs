//! `portcullis policy diff`: lists what becomes allowed or denied.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Value, json};

use super::{
    files::load_with_texts,
    history::LogArgs,
    progress::Bar,
    replay::{changes_json, list},
};
use crate::{
    app::{
        audit_log::{damaged, note_unverified, unreadable},
        failure::{Context as _, Exit, Failure},
        pager::PagerOptions,
        workspace::open_workspace,
    },
    cli::render::counted,
    config::PolicyTexts,
    model::{AgentName, Escaped, WorkspacePath},
    policy::Decision,
    policy_tools::{Change, ComparedPolicy, Diff, PathOrigin, SettingChange, Tree, diff, outline},
};

/// Show what another policy would allow and deny in place of this one
///
/// Both policies are asked about every entry of the workspace, about an example of every pattern in
/// them and, with `--log`, about every recorded request. Changes that make something readable come
/// first. Content is not looked at, but the settings for content are compared. Observe mode is
/// ignored: what it would deny counts as denied.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy diff old.toml new.toml\n  \
    portcullis policy diff coding-agent mine.toml --log --since 7d\n  \
    portcullis policy diff main.toml mine.toml --no-new-access\n  \
    git worktree add ../main main && portcullis policy diff ../main/mine.toml mine.toml")]
pub(super) struct Args {
    /// The policy in force: a file, the name of an embedded policy, or `-` for standard input
    #[arg(value_name = "OLD", value_hint = clap::ValueHint::FilePath)]
    old: String,
    /// The policy that takes its place
    #[arg(value_name = "NEW", value_hint = clap::ValueHint::FilePath)]
    new: String,
    /// Compare recorded requests, too
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    history: LogArgs,
    /// Compare for this agent, besides those that the policies name; may be given several times
    #[arg(long, value_name = "NAME")]
    agent: Vec<AgentName>,
    /// Exit with 4 when anything opens up
    #[arg(long)]
    no_new_access: bool,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (old_texts, old) = load_with_texts(&args.old)?;
    let (new_texts, new) = load_with_texts(&args.new)?;
    note_pipes(args, &[&old_texts, &new_texts])?;
    let (old_outline, new_outline) = (outline(old_texts.source()), outline(new_texts.source()));
    let (old_mode, new_mode) = (old.mode(), new.mode());
    let (old_network, new_network) = (old.network().mode(), new.network().mode());
    let (old, new) = (old.enforcing(), new.enforcing());
    let root = args.history.workspace();
    let workspace = open_workspace(root)?;
    let tree = Tree::of(&workspace).or_fail("cannot look at the workspace")?;
    let log = args.log.then(|| args.history.open()).transpose()?;
    let path = log.as_ref().map(|(path, _)| path);
    let found = diff(
        ComparedPolicy {
            policy: &old,
            mode: old_mode,
            network_mode: old_network,
            outline: &old_outline,
        },
        ComparedPolicy {
            policy: &new,
            mode: new_mode,
            network_mode: new_network,
            outline: &new_outline,
        },
        &tree,
        log.as_ref().map(|(_, log)| (log, args.history.since())),
        &args.agent,
        &Bar::default(),
    )
    .map_err(|error| unreadable(path.map_or(root, |path| path), &error))?;
    if let Some(path) = path {
        note_unverified(path);
    }
    if args.json {
        outjson!(report_json(&found));
    } else {
        args.pager.enable(root);
        out!("{}", report(args, &found));
    }
    // Nobody knows what the records that are missing requested.
    damaged(&found.scanned)?;
    // Paths that were not tried may have become allowed.
    if args.no_new_access && (found.opens() || found.examples_cut) {
        if args.json {
            return Err(Failure::silent(Exit::Policy));
        }
        let reason = if found.opens() {
            "the new policy allows what the old one does not"
        } else {
            "the policies have too many patterns to exclude an opening"
        };
        return Err(Failure::new(reason).exit(Exit::Policy));
    }
    Ok(ExitCode::SUCCESS)
}

/// Notes that a change of a file that both sides read from the current directory is invisible.
fn note_pipes(args: &Args, sides: &[&PolicyTexts]) -> Result<(), Failure> {
    for texts in sides {
        let Some(file) = texts.file_beside_pipe() else { continue };
        let policy = Escaped(texts.reference());
        let found = format!(
            "the policy `{policy}` comes through a pipe, and `{}`, which it extends or names, from \
             the current directory",
            Escaped(&file.to_string_lossy()),
        );
        let help = "compare two files, each beside what it extends: `git worktree add`";
        if args.no_new_access {
            let reason = format!("{found}: what opens there would not show");
            return Err(Failure::new(reason).help(help).exit(Exit::Policy));
        }
        errln!("portcullis: warning: {found}: what changes there does not show; {help}");
    }
    Ok(())
}

fn report(args: &Args, found: &Diff) -> String {
    let entries =
        |count| if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") };
    let mut text = format!(
        "{} -> {}: asked about {}, {} of patterns",
        Escaped(&args.old),
        Escaped(&args.new),
        entries(found.entries as u64),
        counted(found.examples as u64, "example"),
    );
    if args.log {
        let requests = counted(found.requests, "recorded request");
        let connections = counted(found.connections, "recorded connection");
        let _ = write!(text, ", {requests}, {connections}");
    }
    let _ = writeln!(text, "; agents: {}", found.agents.join(", "));
    if found.not_served > 0 {
        let _ = writeln!(text, "left out, as not served: {}", entries(found.not_served));
    }
    if found.examples_cut {
        let _ =
            writeln!(text, "warning: more patterns than can be asked about; some were left out");
    }
    for opens in [true, false] {
        let changes: Vec<_> = found.changes.iter().filter(|change| change.opens == opens).collect();
        let decides = found.settings.iter().filter(|setting| setting.decides);
        let settings: Vec<_> = decides.filter(|setting| setting.opens == opens).collect();
        if changes.is_empty() && settings.is_empty() {
            continue;
        }
        let asks = changes.iter().any(|change| change.old.is_ask() || change.new.is_ask());
        let title = match (opens, asks) {
            (true, false) => "becomes allowed",
            (true, true) => "becomes allowed, or asked about and no longer denied",
            (false, false) => "becomes denied",
            (false, true) => "becomes denied, or asked about and no longer allowed",
        };
        let _ = writeln!(text, "\n{title}:");
        for change in changes {
            let _ = writeln!(text, "{}", change_line(change));
        }
        for setting in settings {
            let _ = writeln!(text, "{}", setting_line(setting));
        }
    }
    let nothing = found.changes.is_empty() && found.connection_changes.is_empty();
    if nothing && found.settings.iter().all(|setting| !setting.decides) {
        text.push_str("nothing is decided differently\n");
    }
    if !found.connection_changes.is_empty() {
        let _ = writeln!(
            text,
            "\n{} of {} would be decided differently:",
            found.changed_connections(),
            counted(found.connections, "recorded connection"),
        );
        list(&mut text, &found.connection_changes.iter().collect::<Vec<_>>());
    }
    let mut beside = found.settings.iter().filter(|setting| !setting.decides).peekable();
    if beside.peek().is_some() {
        text.push_str("\nneither opens nor closes:\n");
    }
    for setting in beside {
        let _ = writeln!(text, "{}", setting_line(setting));
    }
    text
}

fn setting_line(setting: &SettingChange) -> String {
    let (old, new) = (Escaped(&setting.old), Escaped(&setting.new));
    format!("  {:<7} {}: {old} -> {new}", "setting", setting.key)
}

fn change_line(change: &Change) -> String {
    let to = change.to.as_ref().map(|to| format!(" -> {}", to.quoted())).unwrap_or_default();
    let only =
        if change.whole { String::new() } else { format!(" ({})", change.operations.join(", ")) };
    let seen = match change.seen {
        PathOrigin::Tree => String::new(),
        PathOrigin::Example => "  (example, nothing is there)".to_owned(),
        PathOrigin::Log { first, records } => format!("  ({records}x, record {first})"),
    };
    let agents = if change.agents.is_empty() {
        String::new()
    } else {
        format!("  agent {}", change.agents.join(", "))
    };
    format!(
        "  {:<7} {}{to}{only}{seen}{agents}  {} -> {}",
        change.access.as_str(),
        change.path.quoted(),
        rule(&change.old),
        rule(&change.new),
    )
}

/// `ci (policy.toml:12)`
fn rule(decision: &Decision) -> String {
    let asks = if decision.is_ask() { "ask " } else { "" };
    match &decision.location() {
        Some(location) => format!("{asks}{} ({})", decision.rule(), Escaped(&location.to_string())),
        None => format!("{asks}{}", decision.rule()),
    }
}

fn report_json(found: &Diff) -> Value {
    let decision = |decision: &Decision| {
        json!({
            "effect": decision.effect().as_str(),
            "rule": decision.rule(),
            "file": decision.location().map(|location| &location.file),
            "line": decision.location().map(|location| location.line),
        })
    };
    let changes: Vec<_> = found
        .changes
        .iter()
        .map(|change| {
            let (seen, first, records) = match change.seen {
                PathOrigin::Tree => ("tree", None, None),
                PathOrigin::Example => ("example", None, None),
                PathOrigin::Log { first, records } => ("log", Some(first), Some(records)),
            };
            json!({
                "addsAccess": change.opens,
                "access": change.access.as_str(),
                "operations": change.operations,
                "path": change.path.relative(),
                "to": change.to.as_ref().map(WorkspacePath::relative),
                "agents": if change.agents.is_empty() { &found.agents } else { &change.agents },
                "origin": seen,
                "first": first,
                "records": records,
                "old": decision(&change.old),
                "new": decision(&change.new),
            })
        })
        .collect();
    let settings: Vec<_> = found
        .settings
        .iter()
        .map(|setting| {
            json!({
                "key": setting.key,
                "old": setting.old,
                "new": setting.new,
                "addsAccess": setting.opens,
                "decides": setting.decides,
            })
        })
        .collect();
    json!({
        "addsAccess": found.opens(),
        "agents": found.agents,
        "entries": found.entries,
        "notServed": found.not_served,
        "examples": found.examples,
        "examplesCut": found.examples_cut,
        "requests": found.requests,
        "connections": {
            "requests": found.connections,
            "changed": found.changed_connections(),
            "changes": changes_json(&found.connection_changes),
        },
        "changes": changes,
        "settings": settings,
    })
}
