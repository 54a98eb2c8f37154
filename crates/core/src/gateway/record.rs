//! Drafts of the records of requests.

use std::collections::BTreeMap;

use portcullis_audit::Draft;
use serde_json::{Value, json};

use super::error::Error;
use crate::{
    backup::Saved,
    model::{AcpSession, Operation, Session, WorkspacePath, complete_words},
    ops::Facts,
    policy::{Decision, Policy, SecretFinding},
};

/// Maximum number of characters of a peer's text that a record repeats: a path's limit, and enough
/// to recognise anything else.
const MAX_TEXT: usize = 4096;
/// The longest method or path of a request to a host, in bytes.
const MAX_REQUEST_NAME: usize = 255;
/// Maximum number of secrets that a record lists one by one.
const MAX_FINDINGS: usize = 100;
/// The fact that names the backup of an editor's unsaved text.
const BUFFER_BACKUP: &str = "bufferBackup";
/// The fact with the SHA-256 of that text.
pub(super) const BUFFER_BEFORE: &str = "bufferBefore";

/// The facts with the attributes that are set, and with those before.
pub(super) const ATTRIBUTES: &str = "attributes";
pub(super) const ATTRIBUTES_BEFORE: &str = "attributesBefore";
/// The fact with the entry that gets another name or attributes.
pub(super) const ENTRY: &str = "entry";

/// The fact with the backup whose secrets were put back in a new file.
const SECRETS_FROM: &str = "secretsFrom";

/// The fact with the target of a link.
pub(super) const TARGET: &str = "target";

/// The fact of a rename that exchanges two names.
pub(super) const EXCHANGE: &str = "exchange";

/// The fact with the ids of the rules that ask, if they are several.
const RULES: &str = "rules";

/// The fact with the ACP session to which a request belongs.
const ACP_SESSION: &str = "acpSession";
/// The fact with the ACP tool call that the agent says is in progress.
const TOOL_CALL: &str = "toolCall";

/// Returns the draft of a request before any decision.
pub(super) fn request(session: &Session, policy: &Policy, op: &str, path: Option<&str>) -> Draft {
    Draft {
        session: Some(session.recorded_id().to_owned()),
        agent: Some(session.agent.to_string()),
        user: Some(session.user.clone()),
        transport: Some(session.transport.as_str().to_owned()),
        op: Some(bounded(op)),
        path: path.map(bounded),
        policy_sha256: Some(policy.sha256().to_owned()),
        facts: session.acp.as_deref().map(acp_facts).filter(|facts| !facts.is_empty()),
        ..Draft::default()
    }
}

/// Returns the facts about an ACP session.
fn acp_facts(acp: &AcpSession) -> BTreeMap<String, Value> {
    let id = acp.id().map(|id| (ACP_SESSION, Value::from(id)));
    let tool_call = acp.tool_call.get().map(|id| (TOOL_CALL, Value::from(&*id)));
    let facts = id.into_iter().chain(tool_call);
    facts.map(|(name, fact)| (name.to_owned(), fact)).collect()
}

/// Adds facts.
pub(super) fn add_facts(draft: &mut Draft, facts: impl IntoIterator<Item = (String, Value)>) {
    for (name, fact) in facts {
        draft.facts.get_or_insert_default().insert(name, fact);
    }
}

/// Returns the facts that name a request to a host, as far as its method and its path without the
/// query are known. They are cut once they were searched for secrets.
pub(super) fn host_request(
    redact: impl Fn(&str) -> Option<String>,
    method: Option<&str>,
    path: Option<&str>,
) -> BTreeMap<String, Value> {
    let texts = [("method", method), ("requestPath", path)].into_iter();
    let recorded = |(name, text): (&str, Option<&str>)| {
        let text = redact(text?)?;
        let text = complete_words(&text, MAX_REQUEST_NAME);
        (!text.is_empty()).then(|| (name.to_owned(), text.into()))
    };
    texts.filter_map(recorded).collect()
}

fn bounded(text: &str) -> String {
    // Most texts need no count of characters: they have no more bytes than that.
    if text.len() <= MAX_TEXT { text.to_owned() } else { text.chars().take(MAX_TEXT).collect() }
}

/// Returns the draft of an operation before any decision.
pub(super) fn operation(session: &Session, policy: &Policy, operation: Operation<'_>) -> Draft {
    let path = shown(operation.path());
    let draft = request(session, policy, operation.kind().as_str(), Some(&path));
    Draft { to: operation.new_path().map(shown), ..draft }
}

/// Returns a path as the log writes it: `.` for the root.
pub(super) fn shown(path: &WorkspacePath) -> String {
    if path.is_root() { ".".to_owned() } else { path.as_str().to_owned() }
}

/// Adds a decision.
pub(super) fn decide(draft: &mut Draft, decision: &Decision) {
    draft.decision = Some(decision.effect().as_str().to_owned());
    draft.rule = Some(decision.rule().to_owned());
    draft.policy = decision.location().map(|place| place.file.clone());
    draft.line = decision.location().map(|place| place.line);
    draft.reason = decision.reason().map(str::to_owned);
}

/// Adds the ids of the rules that ask, if they are several.
pub(super) fn ask(draft: &mut Draft, rules: &[Decision]) {
    if rules.len() > 1 {
        let ids: Vec<_> = rules.iter().map(Decision::rule).collect();
        add_facts(draft, [(RULES.to_owned(), ids.into())]);
    }
}

/// Notes that a person allowed what these rules ask about, by the record `seq`.
pub(super) fn approve(draft: &mut Draft, rules: &[Decision], seq: u64) {
    ask(draft, rules);
    draft.decision = Some("allow".to_owned());
    draft.facts.get_or_insert_default().insert("approval".to_owned(), seq.into());
}

/// Adds the canonical path, if it is another one.
pub(super) fn resolve(draft: &mut Draft, canonical: &WorkspacePath) {
    let canonical = shown(canonical);
    if draft.path.as_ref() != Some(&canonical) {
        draft.resolved = Some(canonical);
    }
}

/// Adds the facts of the operation.
pub(super) fn facts(draft: &mut Draft, facts: &Facts) {
    draft.bytes = facts.bytes;
    draft.before = facts.before;
    draft.after = facts.after;
    draft.temp = facts.temp.as_ref().map(|temp| temp.as_str().to_owned());
    draft.source = facts.editor.then(|| "editor".to_owned());
    if !facts.counts.is_empty() {
        draft.counts = Some(facts.counts.clone());
    }
    for (name, hash) in [("moved", facts.moved), ("shown", facts.shown)] {
        if let Some(hash) = hash {
            draft.facts.get_or_insert_default().insert(name.to_owned(), json!(hash.to_string()));
        }
    }
    let attributes = [(ATTRIBUTES, facts.attributes), (ATTRIBUTES_BEFORE, facts.attributes_before)];
    for (name, attributes) in attributes {
        if let Some(attributes) = attributes {
            draft.facts.get_or_insert_default().insert(name.to_owned(), attributes.to_value());
        }
    }
    for (name, entry) in [(ENTRY, &facts.entry), ("otherEntry", &facts.other_entry)] {
        if let Some(entry) = entry {
            draft.facts.get_or_insert_default().insert(name.to_owned(), entry.to_value());
        }
    }
    if facts.exchange {
        draft.facts.get_or_insert_default().insert(EXCHANGE.to_owned(), json!(true));
    }
    if let Some(backup) = &facts.secrets_from {
        draft
            .facts
            .get_or_insert_default()
            .insert(SECRETS_FROM.to_owned(), json!(backup.to_string()));
    }
    if let Some(target) = &facts.target {
        draft.facts.get_or_insert_default().insert(TARGET.to_owned(), json!(target));
    }
    if let Some(to) = &facts.to {
        draft.to = Some(shown(to));
    }
}

/// Adds the secrets that were found, the first hundred of them; if there are more, `counts` has
/// their number.
pub(super) fn findings(draft: &mut Draft, findings: Vec<SecretFinding>) {
    if findings.is_empty() {
        return;
    }
    if findings.len() > MAX_FINDINGS {
        let total = u64::try_from(findings.len()).unwrap_or(u64::MAX);
        draft.counts.get_or_insert_default().insert("findings".to_owned(), total);
    }
    let object = |finding: SecretFinding| {
        json!({
            "rule": finding.rule,
            "line": finding.line,
            "hash": finding.hash,
            "action": finding.action,
        })
    };
    draft.findings = Some(findings.into_iter().take(MAX_FINDINGS).map(object).collect());
}

/// Adds the backups: first that of the object, then that of the editor's buffer.
pub(super) fn backups(draft: &mut Draft, saved: &[Saved]) {
    let Some((first, rest)) = saved.split_first() else { return };
    draft.before = Some(first.sha256);
    draft.backup = Some(first.id.to_string());
    if let Some(buffer) = rest.first() {
        let facts = draft.facts.get_or_insert_with(BTreeMap::new);
        facts.insert(BUFFER_BACKUP.to_owned(), buffer.id.to_string().into());
        facts.insert(BUFFER_BEFORE.to_owned(), buffer.sha256.to_string().into());
    }
}

/// Removes what exists only if the change is made: backups, and the name of the temporary file.
/// Hashes of what would have been replaced stay.
pub(super) fn give_up(draft: &mut Draft) {
    (draft.backup, draft.temp) = (None, None);
    if let Some(facts) = &mut draft.facts {
        facts.remove(BUFFER_BACKUP);
    }
}

/// Returns the draft of the outcome of `intent`.
pub(super) fn outcome(intent: &Draft) -> Draft {
    Draft {
        session: intent.session.clone(),
        agent: intent.agent.clone(),
        op: intent.op.clone(),
        path: intent.path.clone(),
        ..Draft::default()
    }
}

/// Adds the failure.
pub(super) fn fail(draft: &mut Draft, error: &Error) {
    draft.result = Some(error.kind().as_str().to_owned());
    if draft.reason.is_none() {
        draft.reason = Some(error.to_string());
    }
}
