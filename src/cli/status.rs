//! `portcullis status`: the state of a workspace at a glance.

mod starts;

use std::{os::fd::AsFd as _, path::PathBuf, process::ExitCode};

use cap_std::fs::Dir;
use indicatif::HumanBytes;
use portcullis_audit::Kind;
use rustix::fs::fstatvfs;
use serde_json::{Value, json};

use self::starts::{Facts, Starts};
use super::{
    gateway_options::log_options,
    render::{counted, time},
    rows::{stdout_width, wrapped},
};
use crate::{
    app::{
        approval_socket::{self, Reply, Request},
        audit_log::{damaged, is_unused, read_log, unreadable},
        failure::{Context as _, Failure},
        options::Common,
        state_directory, state_owner,
    },
    change::is_made,
    gateway::AuditLog,
    model::{Escaped, OperationKind},
    policy::Effect,
    review::{Field, Filter, Group, Scanned, Stats, last_session},
};

/// Width of the column of names.
const NAME_WIDTH: usize = 12;

/// Show policy, enforcement, waiting approvals, the last session, log and space of a workspace
///
/// Policy and enforcement are those of the gateways that run, or of the last start in
/// the log. The last session is that of an agent, if there is one. Changes nothing but the index of the log.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis status\n  \
    portcullis status --workspace ~/project --json")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The summary of the log.
#[derive(Debug)]
struct LogSummary {
    records: u64,
    bytes: u64,
    starts: Starts,
    session: Option<LastSession>,
    /// The unreadable parts of the log.
    scanned: Scanned,
}

#[derive(Debug)]
struct LastSession {
    id: String,
    agent: String,
    first: String,
    last: String,
    records: u64,
    changes: u64,
    denials: u64,
    connections: u64,
}

/// Runs the command.
///
/// # Errors
/// When state directory or log cannot be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.common.adopts_nothing()?;
    let path = args.common.state_directory()?;
    let Some(state) = state_directory::look(&path)? else {
        return Ok(unused(args, &path, "not made yet"));
    };
    if is_unused(&path.join("audit"))? {
        return Ok(unused(args, &path, "without a record: the start that made it failed"));
    }
    let owner = state_owner::of(&state, &path)?;
    // Where the log cannot be locked, such as on a read-only file system, nobody knows.
    let running = AuditLog::running(&state).ok();
    let gateways = running.as_ref().map(Vec::len);
    let recorded = recorded(&path, running.as_deref().unwrap_or_default())?;
    let waiting = waiting(&state)?;
    let backups = state_directory::backup_store(&path)?
        .map(|store| store.size())
        .transpose()
        .or_fail("cannot measure the backups")?
        .unwrap_or(0);
    let facts = fstatvfs(state.as_fd()).or_fail("cannot measure the free space")?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if args.json {
        let session = recorded.session.as_ref().map(|session| {
            json!({
                "session": session.id, "agent": session.agent, "first": session.first,
                "last": session.last, "records": session.records, "changes": session.changes,
                "denials": session.denials, "connections": session.connections,
            })
        });
        outjson!(json!({
            "workspace": owner, "state": path,
            "policy": policy(&recorded.starts.last),
            "enforcement": fact(&recorded.starts.last, "enforcement"),
            "agentNetwork": fact(&recorded.starts.last, "agentNetwork"), "gateways": gateways,
            "running": recorded.starts.running.iter().map(|facts| json!({
                "policy": policy(facts), "enforcement": fact(facts, "enforcement"),
                "agentNetwork": fact(facts, "agentNetwork"),
            })).collect::<Vec<_>>(),
            "waiting": waiting,
            "session": session,
            "log": { "records": recorded.records, "bytes": recorded.bytes },
            "backups": backups, "free": free,
        }));
        damaged(&recorded.scanned)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = log_options(&path, args.common.config.as_deref());
    let text = |facts: &Facts, name: &str| match fact(facts, name) {
        Value::String(text) => Escaped(&text).to_string(),
        Value::Null => "not recorded".to_owned(),
        other => other.to_string(),
    };
    if let Some(owner) = owner {
        line("workspace", Escaped(&owner.display().to_string()).to_string());
    }
    line("state", Escaped(&path.display().to_string()).to_string());
    let starts = match recorded.starts.running.as_slice() {
        [] => std::slice::from_ref(&recorded.starts.last),
        running => running,
    };
    for facts in starts {
        let fact = |name| text(facts, name);
        let (name, version, mode) = (fact("policyName"), fact("policyVersion"), fact("mode"));
        let connections = match facts.get("networkMode").and_then(Value::as_str) {
            Some("observe") => "; observes connections",
            _ => "",
        };
        line("policy", format!("{name}, version {version}, {mode}{connections}"));
        let network = match facts.get("agentNetwork").is_some_and(Value::is_object) {
            true => "; the agent shares the host's network (`--agent-network`), past `[network]`",
            false => "",
        };
        line("enforcement", format!("{}{network}", fact("enforcement")));
    }
    line(
        "gateways",
        gateways.map_or_else(
            || "not known: the log cannot be locked".to_owned(),
            |gateways| format!("{gateways} running"),
        ),
    );
    line(
        "approvals",
        match waiting {
            0 => "none waiting".to_owned(),
            waiting => format!("{waiting} waiting: `portcullis approve {options}`"),
        },
    );
    line(
        "session",
        recorded.session.map_or_else(
            || "none yet".to_owned(),
            |session| {
                format!(
                    "{} of agent {}, {} to {}: {}, {}, {}, {}",
                    Escaped(session.id.get(..12).unwrap_or(&session.id)),
                    Escaped(&session.agent),
                    time(&session.first),
                    time(&session.last),
                    counted(session.records, "record"),
                    counted(session.changes, "change"),
                    counted(session.denials, "denial"),
                    counted(session.connections, "connection"),
                )
            },
        ),
    );
    let (records, bytes) = (recorded.records, HumanBytes(recorded.bytes));
    let records = counted(records, "record");
    line("log", format!("{records}, {bytes}, not verified: `portcullis audit verify {options}`"));
    line("backups", HumanBytes(backups).to_string());
    line("space", format!("{} free", HumanBytes(free)));
    damaged(&recorded.scanned)?;
    Ok(ExitCode::SUCCESS)
}

fn fact(facts: &Facts, name: &str) -> Value {
    facts.get(name).cloned().unwrap_or(Value::Null)
}

fn policy(facts: &Facts) -> Value {
    json!({
        "name": fact(facts, "policyName"), "version": fact(facts, "policyVersion"),
        "mode": fact(facts, "mode"), "networkMode": fact(facts, "networkMode"),
    })
}

fn line(name: &str, text: String) {
    outln!("{}", wrapped(&format!("{name:NAME_WIDTH$}{text}"), 0, NAME_WIDTH, stdout_width()));
}

/// Says that no gateway has used the state directory yet, and what that is like.
fn unused(args: &Args, path: &std::path::Path, condition: &str) -> ExitCode {
    if args.json {
        outjson!(json!({ "workspace": null, "state": path }));
    } else {
        line("state", format!("{} ({condition})", Escaped(&path.display().to_string())));
        outln!(
            "no gateway has served this workspace yet: `portcullis doctor` says what it would enforce"
        );
    }
    ExitCode::SUCCESS
}

fn recorded(state: &std::path::Path, running: &[String]) -> Result<LogSummary, Failure> {
    let directory: PathBuf = state.join("audit");
    let failed = |error| unreadable(&directory, &error);
    let log = read_log(&directory)?.with_index(state.join("index"));
    let session = last_session(&log, |_| true).map_err(failed)?;
    let filter = Filter { sessions: session.iter().cloned().collect(), ..Filter::default() };
    let fields = [Field::Kind, Field::Decision, Field::Agent, Field::Op, Field::Result];
    let counted = Stats::of(&log, &filter, &fields).map_err(failed)?;
    Ok(LogSummary {
        records: log.records().map_err(failed)?,
        bytes: log.bytes(),
        starts: starts::read(&log, running).map_err(failed)?,
        session: session.map(|id| summary(&counted, id)),
        scanned: counted.scanned,
    })
}

/// Sums up the records of the session `id` by kind, decision, agent, operation and result.
fn summary(counted: &Stats, id: String) -> LastSession {
    let value = |values: &[Option<String>], at: usize| values.get(at).cloned().flatten();
    let is =
        |group: &Group, at: usize, text: &str| value(&group.values, at).as_deref() == Some(text);
    let sum = |matches: &dyn Fn(&Group) -> bool| {
        counted.groups.iter().filter(|group| matches(group)).map(|group| group.records).sum()
    };
    let is_connection = |group: &Group| is(group, 3, OperationKind::Connect.as_str());
    let is_intent = |group: &Group| is(group, 0, Kind::Intent.as_str());
    // Not the intents, some of which fail or find nothing to change.
    let is_change = |group: &Group| {
        let ends = [Kind::Outcome, Kind::Recovered].iter().any(|kind| is(group, 0, kind.as_str()));
        ends && is_made(value(&group.values, 4).as_deref()) && !is_connection(group)
    };
    let groups = &counted.groups;
    LastSession {
        agent: groups.iter().find_map(|group| value(&group.values, 2)).unwrap_or_default(),
        first: groups.iter().map(|group| group.first.clone()).min().unwrap_or_default(),
        last: groups.iter().map(|group| group.last.clone()).max().unwrap_or_default(),
        records: groups.iter().map(|group| group.records).sum(),
        changes: sum(&is_change),
        connections: sum(&|group| is_intent(group) && is_connection(group)),
        // A request that was rejected has a record besides the approval's.
        denials: sum(&|group| {
            is(group, 1, Effect::Deny.as_str()) && !is(group, 0, Kind::Approval.as_str())
        }),
        id,
    }
}

/// Counts the requests that wait in the gateways that listen for approvals.
fn waiting(state: &Dir) -> Result<usize, Failure> {
    let mut waiting = 0;
    approval_socket::send(state.as_fd(), &Request::List, |reply| {
        if let Reply::Waiting(items) = reply {
            waiting += items.len();
        }
        true
    })
    .or_fail("cannot ask the gateways")?;
    Ok(waiting)
}
