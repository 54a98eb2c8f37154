//! `policy explain --record N`: the recorded decision on a request, and that of the
//! current policy.

use std::{net::IpAddr, ops::ControlFlow, path::Path, process::ExitCode};

use portcullis_audit::{AuditRecord, RecordView};
use serde_json::{Value, json};

use super::{
    answer::{describe, explained, print_report, report_json},
    connect,
};
use crate::{
    app::{
        audit_log::{complete_log, damaged, note_unverified, undamaged, unreadable},
        failure::Failure,
        options::Common,
        policy_loading::load,
        state_directory, state_owner,
        workspace::open_workspace,
    },
    config::credentials::Credential,
    gateway::Workspace,
    model::{AgentName, Connect, Escaped, OperationKind, WorkspacePath},
    policy::{Effect, LabelIds, SessionHosts, SourceLocation},
    policy_tools::hosts_of_session,
    review::{Filter, Log, ScanOrder, Scanned},
};

/// Explains the record `seq`; a connection also by the operator's credentials.
pub(super) fn run(
    common: &Common,
    credentials: &[Credential],
    seq: u64,
    json: bool,
) -> Result<ExitCode, Failure> {
    let workspace = open_workspace(&common.workspace)?;
    let state = common.state_directory()?;
    if let Some(opened) = state_directory::look(&state)? {
        state_owner::check(&opened, &state, workspace.root(), None)?;
    }
    let path = state.join("audit");
    let log = complete_log(&path)?;
    let (mut record, mut scanned) = find(&log, &path, seq)?;
    // An outcome has the result; the decision is in the intent.
    if let (None, Some(of)) = (&record.draft.decision, record.draft.of) {
        (record, scanned) = find(&log, &path, of)?;
    }
    note_unverified(&path);
    let hosts = |boot: &str| {
        hosts_of_session(&log, boot, record.seq).map_err(|error| unreadable(&path, &error))
    };
    let explained = explain(common, (&workspace, credentials), &record, hosts, json);
    match explained {
        Ok(_) => damaged(&scanned)?,
        Err(_) => undamaged(&scanned)?,
    }
    explained
}

/// Explains a record; `hosts` are those that a preset gave to a session.
fn explain(
    common: &Common,
    (workspace, credentials): (&Workspace, &[Credential]),
    record: &AuditRecord,
    hosts: impl FnOnce(&str) -> Result<Option<SessionHosts>, Failure>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let seq = record.seq;
    if let Some((agent, target, address)) = connection(record) {
        if !json {
            outln!(
                "record {seq}, {}: `connect` to `{}` by agent `{agent}`",
                Escaped(&record.t),
                Escaped(&target)
            );
            let reason = record.draft.reason.as_deref().map(|why| format!(": {}", Escaped(why)));
            let not_decided = || format!("not decided{}", reason.unwrap_or_default());
            outln!("it was {}", recorded(record).unwrap_or_else(not_decided));
            for (label, read) in reads(record) {
                let path = read.get("path").and_then(Value::as_str).unwrap_or_default();
                let number = read.get("record").and_then(Value::as_u64).unwrap_or_default();
                outln!("`{}` was read: record {number}, `{}`", Escaped(label), Escaped(path));
            }
        }
        // A request that names no host was refused before a policy was asked.
        if !json && Connect::parse(&target).is_err() {
            outln!("no policy decides it");
            return Ok(ExitCode::SUCCESS);
        }
        if !json {
            outln!("what the policy says of it now:\n");
        }
        let read: LabelIds = reads(record).map(|(label, _)| label.clone()).collect();
        let mut policy = load(&common.policy)?;
        if let Some(boot) = &record.draft.boot {
            hosts(boot)?.into_iter().for_each(|hosts| policy.give_hosts(hosts));
        }
        return connect::run((&policy, credentials), &agent, &target, (address, &read), json);
    }
    let asked = RecordedRequest::of(record).ok_or_else(|| {
        Failure::new(format_args!(
            "record {seq} is about no operation (it is of the kind `{}`)",
            record.kind
        ))
        .help("`portcullis audit show` shows which records are")
    })?;
    let policy = load(&common.policy)?;
    let (now, answers, notes) = explained(
        &policy,
        workspace.view(),
        &asked.agent,
        asked.operation,
        &asked.path,
        asked.to.as_ref(),
    )?;
    let same = record.draft.policy_sha256.as_deref() == Some(policy.sha256());
    if json {
        let mut report =
            report_json(&policy, &asked.agent, asked.operation, &now, &answers, &notes);
        if let Some(report) = report.as_object_mut() {
            report.insert("record".to_owned(), json!(record));
            report.insert("samePolicy".to_owned(), json!(same));
        }
        outjson!(report);
        return Ok(ExitCode::SUCCESS);
    }
    outln!(
        "record {seq}, {}: `{}` of `{}`{} by agent `{}`",
        Escaped(&record.t),
        asked.operation,
        asked.path,
        asked.to.as_ref().map(|to| format!(" to `{to}`")).unwrap_or_default(),
        asked.agent,
    );
    match recorded(record) {
        Some(sentence) => outln!("it was {sentence}"),
        None => outln!("nothing was decided about it"),
    }
    if record.draft.would_deny == Some(true) {
        outln!("the policy only observed; enforced, it would have been denied");
    }
    if same {
        outln!("the policy is the same as then; what it says of the workspace as it is now:\n");
    } else {
        let sha256 = record.draft.policy_sha256.as_deref().unwrap_or("unknown");
        outln!(
            "another policy was in force then ({}); its text is in the state directory: \
             policies/{}.toml",
            Escaped(sha256.get(..12).unwrap_or(sha256)),
            Escaped(sha256)
        );
        outln!("what this policy says of it now:\n");
    }
    print_report(&policy, &asked.agent, asked.operation, &now, &answers, &notes);
    Ok(ExitCode::SUCCESS)
}

/// Returns the labels that led to the decision on a connection, each with its read.
fn reads(record: &AuditRecord) -> impl Iterator<Item = (&String, &Value)> {
    let facts = record.draft.facts.as_ref();
    facts.and_then(|facts| facts.get("whenRead")?.as_object()).into_iter().flatten()
}

/// Returns the record `seq` of the log at `path`, and the damage of its segment.
fn find(log: &Log, path: &Path, seq: u64) -> Result<(AuditRecord, Scanned), Failure> {
    if let Some(first) = log.begins().filter(|first| seq < first.seq) {
        return Err(Failure::new(format_args!(
            "the log begins with record {}: record {seq} and others before it {}",
            first.seq,
            first.reason()
        )));
    }
    let filter = Filter { records: Some(seq..=seq), ..Filter::default() };
    let owned = |record: &RecordView<'_>, _line: &[u8]| Some(record.clone().into_record());
    let mut found = None;
    let scanned = log
        .scan(&filter, ScanOrder::Oldest, owned, |record| {
            found.get_or_insert(record);
            ControlFlow::Continue(())
        })
        .map_err(|error| unreadable(path, &error))?;
    if let Some(record) = found {
        return Ok((record, scanned));
    }
    undamaged(&scanned)?;
    Err(Failure::new(format_args!("the log has no record {seq}"))
        .help("`portcullis audit show --last 20` shows the newest"))
}

/// The request of a record.
struct RecordedRequest {
    agent: AgentName,
    operation: OperationKind,
    path: WorkspacePath,
    to: Option<WorkspacePath>,
}

impl RecordedRequest {
    fn of(record: &AuditRecord) -> Option<Self> {
        let draft = &record.draft;
        Some(Self {
            agent: draft.agent.as_deref()?.parse().ok()?,
            operation: draft.op.as_deref()?.parse().ok()?,
            path: WorkspacePath::parse(draft.path.as_deref()?).ok()?,
            to: draft.to.as_deref().and_then(|to| WorkspacePath::parse(to).ok()),
        })
    }
}

/// Returns the agent, the host with port, and the address, if there is one, of a
/// connection.
fn connection(record: &AuditRecord) -> Option<(AgentName, String, Option<IpAddr>)> {
    let line = serde_json::to_vec(record).ok()?;
    let view = RecordView::parse(&line).ok()?;
    let is_connection = view.op() == Some(OperationKind::Connect.as_str());
    let target = view.subject().filter(|_| is_connection)?.into_owned();
    let address = view.fact("address").and_then(|address| address.parse().ok());
    Some((view.agent()?.parse().ok()?, target, address))
}

/// Describes the decision of a record.
fn recorded(record: &AuditRecord) -> Option<String> {
    let draft = &record.draft;
    let effect = match draft.decision.as_deref()? {
        "allow" => Effect::Allow,
        "ask" => Effect::Ask,
        _ => Effect::Deny,
    };
    let rule = Escaped(draft.rule.as_deref()?).to_string();
    let location =
        draft.policy.clone().zip(draft.line).map(|(file, line)| SourceLocation { file, line });
    let reason = draft.reason.as_deref().map(|reason| Escaped(reason).to_string());
    let would_deny = draft.would_deny.unwrap_or_default();
    Some(describe(effect, would_deny, &rule, location.as_ref(), reason.as_deref()))
}
