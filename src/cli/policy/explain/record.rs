//! `policy explain --record N`: the recorded decision on a request, and that of the
//! current policy.

use std::{net::IpAddr, process::ExitCode};

use portcullis_audit::{AuditRecord, Directory, Reader, RecordView};
use serde_json::{Value, json};

use super::{
    answer::{describe, explained, print_report, report_json},
    connect,
};
use crate::{
    app::{
        audit_log::{note_unverified, unreadable},
        failure::{Context as _, Failure},
        options::Common,
        policy_loading::load,
        state_directory, state_owner,
        workspace::open_workspace,
    },
    config::credentials::Credential,
    model::{AgentName, Escaped, OperationKind, WorkspacePath},
    policy::{Effect, LabelIds, SourceLocation},
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
    let log = state.join("audit");
    let mut record = find(&log, seq)?;
    // An outcome has the result; the decision is in the intent.
    if let (None, Some(of)) = (&record.draft.decision, record.draft.of) {
        record = find(&log, of)?;
    }
    let seq = record.seq;
    if let Some((agent, target, address)) = connection(&record) {
        if !json {
            outln!(
                "record {seq}, {}: `connect` to `{}` by agent `{agent}`",
                Escaped(&record.t),
                Escaped(&target)
            );
            outln!("it was {}", recorded(&record).unwrap_or_else(|| "not decided".to_owned()));
            for (label, read) in reads(&record) {
                let path = read.get("path").and_then(Value::as_str).unwrap_or_default();
                let number = read.get("record").and_then(Value::as_u64).unwrap_or_default();
                outln!("`{}` was read: record {number}, `{}`", Escaped(label), Escaped(path));
            }
            outln!("what the policy says of it now:\n");
        }
        let read: LabelIds = reads(&record).map(|(label, _)| label.clone()).collect();
        let policy = load(&common.policy)?;
        return connect::run((&policy, credentials), &agent, &target, (address, &read), json);
    }
    let asked = RecordedRequest::of(&record).ok_or_else(|| {
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
    match recorded(&record) {
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

/// The labels because of which a connection was decided on so, each with the read.
fn reads(record: &AuditRecord) -> impl Iterator<Item = (&String, &Value)> {
    let facts = record.draft.facts.as_ref();
    facts.and_then(|facts| facts.get("whenRead")?.as_object()).into_iter().flatten()
}

fn find(log: &std::path::Path, seq: u64) -> Result<AuditRecord, Failure> {
    let directory = Directory::new(log);
    let entry = Reader::new(&directory, seq).next().map_err(|error| unreadable(log, &error))?;
    let entry = entry.ok_or_else(|| {
        Failure::new(format_args!("the log has no record {seq}"))
            .help("`portcullis audit show --last 20` shows the newest")
    })?;
    note_unverified();
    entry.record().or_fail(format_args!("record {seq} cannot be read"))
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
