//! Numbers for a report, counted segment by segment.

mod connection;
mod hours;
mod labels;
mod merge;
mod network;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use portcullis_audit::RecordView;
use serde_json::Value;

use self::{
    hours::Hours,
    network::{agent_network, is_of_name},
};
use super::{
    PolicyInForce,
    bounded_list::{BoundedList, GroupedDenials, MAX_LISTED},
    items::{
        Agent, Approval, Connected, Decided, Denied, FileChange, Finding, GatewayStart, LabelUse,
        Operation, PolicyChange, SetAside,
    },
};
use crate::{
    change::Change,
    field::verdict,
    scan::{MAX_STORED_BYTES, OVERHEAD},
};

/// The numbers so far.
#[derive(Debug, Default)]
pub(super) struct Digest {
    pub(super) records: u64,
    pub(super) first: Option<String>,
    pub(super) last: Option<String>,
    pub(super) kinds: BTreeMap<String, u64>,
    pub(super) workspaces: BTreeSet<String>,
    pub(super) hours: Hours,
    pub(super) agents: BTreeMap<String, Agent>,
    pub(super) rules: BTreeMap<(String, String), Decided>,
    pub(super) operations: BTreeMap<String, Operation>,
    pub(super) hosts: BTreeMap<String, Connected>,
    pub(super) label_uses: BTreeMap<String, LabelUse>,
    pub(super) denied: GroupedDenials,
    pub(super) observed: GroupedDenials,
    pub(super) secrets: BoundedList<Finding>,
    pub(super) files: BTreeMap<String, FileChange>,
    pub(super) policies: BTreeMap<String, PolicyInForce>,
    pub(super) policy_changes: BoundedList<PolicyChange>,
    pub(super) approvals: BoundedList<Approval>,
    pub(super) gateways: BoundedList<GatewayStart>,
    stopped: BTreeSet<String>,
    /// Enforcement and network of sandboxes by gateway, as records after their starts report them.
    confined: BTreeMap<String, (Option<String>, Option<Value>)>,
    pub(super) set_aside: Vec<SetAside>,
    /// Changes without an outcome yet, and outcomes without their change yet.
    open: HashMap<u64, Change>,
    outcomes: Vec<(u64, String)>,
    /// Number of sessions of all agents.
    sessions: usize,
    /// Bytes of the lines that added an entry, and of `open`.
    bytes: usize,
    open_bytes: usize,
    /// Number of records beyond the memory bound.
    pub(super) left_out: u64,
}

impl Digest {
    /// Adds a record, unless the memory bound is reached: a log may name any number of things.
    pub(super) fn add(&mut self, record: &RecordView<'_>, line: &[u8]) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let before = self.entries();
        self.take(record);
        if self.entries() > before {
            self.bytes += line.len() + OVERHEAD;
        }
    }

    fn is_full(&self) -> bool {
        self.bytes + self.open_bytes > MAX_STORED_BYTES
    }

    /// Returns the number of stored entries, without changes that have no outcome yet.
    fn entries(&self) -> usize {
        let maps = self.kinds.len()
            + self.workspaces.len()
            + self.hours.len()
            + self.agents.len()
            + self.rules.len()
            + self.operations.len()
            + self.hosts.len()
            + self.label_uses.len()
            + self.files.len()
            + self.policies.len()
            + self.stopped.len()
            + self.confined.len();
        let firsts = self.denied.len()
            + self.observed.len()
            + self.secrets.kept.len()
            + self.policy_changes.kept.len()
            + self.approvals.kept.len()
            + self.gateways.kept.len();
        maps + firsts + self.sessions + self.set_aside.len() + self.outcomes.len()
    }

    fn take(&mut self, record: &RecordView<'_>) {
        self.records += 1;
        let t = record.t.as_str();
        if self.first.is_none() {
            self.first = Some(t.to_owned());
        }
        self.last = Some(t.to_owned());
        count(&mut self.kinds, record.kind_name());
        self.policy(record);
        match record.kind_name() {
            "decision" if record.op() == Some("sandbox") => {
                let boot = record.boot().unwrap_or_default().to_owned();
                let how = (owned(record.fact("enforcement")), agent_network(record));
                self.confined.insert(boot, how);
            }
            "decision" | "intent" => self.request(record),
            "outcome" | "recovered" if record.op() == Some("connect") => self.connection(record),
            "outcome" => self.outcome(record),
            "recovered" if record.of.is_some() => self.outcome(record),
            "recovered" => {
                self.set_aside.push(SetAside {
                    seq: record.seq,
                    t: t.to_owned(),
                    facts: record.facts.clone().unwrap_or_default(),
                });
            }
            "approval" => self.approvals.push(|| Approval {
                seq: record.seq,
                t: t.to_owned(),
                agent: owned(record.agent()),
                op: owned(record.op()),
                path: record.subject().map(Cow::into_owned),
                decision: owned(record.decision()),
                result: owned(record.result()),
                reason: owned(record.reason()),
                facts: record.facts.clone().unwrap_or_default(),
            }),
            "start" => self.start(record),
            "policy" => self.policy_change(record),
            "stop" => {
                self.stopped.insert(record.boot().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    fn policy(&mut self, record: &RecordView<'_>) {
        let Some(sha256) = record.policy_sha256() else { return };
        if let Some(policy) = self.policies.get_mut(sha256) {
            policy.records += 1;
            record.t.as_str().clone_into(&mut policy.last);
            return;
        }
        let policy = PolicyInForce {
            sha256: sha256.to_owned(),
            name: None,
            version: None,
            records: 1,
            first: record.t.as_str().to_owned(),
            last: record.t.as_str().to_owned(),
            text: None,
            text_is_stored: false,
            text_is_genuine: false,
        };
        self.policies.insert(sha256.to_owned(), policy);
    }

    fn policy_change(&mut self, record: &RecordView<'_>) {
        let facts = record.facts.clone().unwrap_or_default();
        let taken = record.result() == Some("ok");
        if taken && let Some(policy) = record.policy_sha256().and_then(|h| self.policies.get_mut(h))
        {
            policy.name = facts.get("name").and_then(Value::as_str).map(str::to_owned);
            policy.version = facts.get("version").and_then(Value::as_u64);
        }
        let refused = facts.get("refusedSha256").and_then(Value::as_str).map(str::to_owned);
        self.policy_changes.push(|| PolicyChange {
            seq: record.seq,
            t: record.t.as_str().to_owned(),
            agent: owned(record.agent()),
            result: owned(record.result()),
            reason: owned(record.reason()),
            sha256: if taken { owned(record.policy_sha256()) } else { refused },
            facts,
        });
    }

    fn start(&mut self, record: &RecordView<'_>) {
        let text = |name: &str| owned(record.fact(name));
        self.workspaces.extend(text("workspace"));
        if let Some(policy) =
            record.policy_sha256().and_then(|sha256| self.policies.get_mut(sha256))
        {
            policy.name = text("policyName").or(policy.name.take());
            let version =
                record.facts.as_ref().and_then(|facts| facts.get("policyVersion")?.as_u64());
            policy.version = version.or(policy.version);
        }
        self.gateways.push(|| GatewayStart {
            seq: record.seq,
            t: record.t.as_str().to_owned(),
            agent: owned(record.agent()),
            enforcement: text("enforcement"),
            mode: text("mode"),
            network_mode: text("networkMode"),
            agent_network: agent_network(record),
            stopped: false,
            boot: record.boot().unwrap_or_default().to_owned(),
        });
    }

    /// Counts a decided request, or the denial of a connection that was under way.
    fn request(&mut self, record: &RecordView<'_>) {
        self.labels(record);
        if is_of_name(record) {
            self.agent(record);
            return;
        }
        let denied = record.decision() == Some("deny");
        // A question counts as neither: its approval has a record of its own.
        let decision = record.decision().filter(|decision| *decision != "ask");
        let agent = self.agent(record);
        let bytes = record.bytes.unwrap_or(0);
        if decision.is_some() {
            if denied {
                agent.denied += 1;
            } else {
                agent.allowed += 1;
            }
        }
        if record.kind_name() == "decision"
            && record.result() == Some("ok")
            && record.op() == Some("read")
        {
            agent.bytes_read = agent.bytes_read.saturating_add(bytes);
        }
        if let (Some("ask"), Some(rule)) = (record.decision(), record.rule()) {
            self.rule(record, rule, "ask");
        }
        if let Some(decision) = decision {
            self.hours.count(record.t.as_str(), denied);
            if let Some(rule) = record.rule() {
                self.rule(record, rule, verdict(record).unwrap_or(decision));
            }
            let op = record.op().unwrap_or_default();
            let operation = self
                .operations
                .entry(op.to_owned())
                .or_insert_with(|| Operation { op: op.to_owned(), ..Operation::default() });
            if denied {
                operation.denied += 1;
            } else {
                operation.allowed += 1;
            }
        }
        let list = match verdict(record) {
            Some("deny") => Some(&mut self.denied),
            Some("observed") => Some(&mut self.observed),
            _ => None,
        };
        if let Some(list) = list {
            list.push(Denied {
                seq: record.seq,
                t: record.t.as_str().to_owned(),
                last: record.t.as_str().to_owned(),
                times: 1,
                agent: owned(record.agent()),
                op: owned(record.op()),
                path: record.subject().map(Cow::into_owned),
                to: owned(record.to()),
                rule: owned(record.rule()),
                reason: owned(record.reason()),
            });
        }
        let rules = findings(record);
        if !rules.is_empty() {
            self.secrets.push(|| Finding {
                seq: record.seq,
                t: record.t.as_str().to_owned(),
                agent: owned(record.agent()),
                op: owned(record.op()),
                path: record.subject().map(Cow::into_owned),
                decision: owned(verdict(record)),
                rules,
            });
        }
        if let Some(change) = Change::of(record) {
            self.open_bytes += cost(&change);
            self.open.insert(record.seq, change);
        }
    }

    fn rule(&mut self, record: &RecordView<'_>, rule: &str, decision: &str) {
        self.rules
            .entry((rule.to_owned(), decision.to_owned()))
            .or_insert_with(|| Decided {
                rule: rule.to_owned(),
                decision: decision.to_owned(),
                policy: record.policy().map(file_name),
                records: 0,
            })
            .records += 1;
    }

    fn agent(&mut self, record: &RecordView<'_>) -> &mut Agent {
        let name = record.agent().unwrap_or_default();
        let agent = self.agents.entry(name.to_owned()).or_insert_with(|| Agent {
            name: name.to_owned(),
            first: record.t.as_str().to_owned(),
            ..Agent::default()
        });
        record.t.as_str().clone_into(&mut agent.last);
        if let Some(session) = record.session()
            && !agent.ids.contains(session)
        {
            self.sessions += 1;
            agent.ids.insert(session.to_owned());
            agent.sessions = agent.ids.len() as u64;
        }
        agent
    }

    /// Matches an outcome with its change.
    fn outcome(&mut self, record: &RecordView<'_>) {
        let (Some(of), result) = (record.of, record.result().unwrap_or_default().to_owned()) else {
            return;
        };
        self.answered(of, result);
    }

    fn answered(&mut self, of: u64, result: String) {
        match self.open.remove(&of) {
            Some(change) => {
                self.open_bytes = self.open_bytes.saturating_sub(cost(&change));
                self.settle(change, result);
            }
            None => self.outcomes.push((of, result)),
        }
    }

    fn settle(&mut self, mut change: Change, result: String) {
        change.result = Some(result);
        if !change.is_made() {
            return;
        }
        if let Some(agent) = self.agents.get_mut(&change.agent) {
            agent.changes += 1;
            agent.bytes_written = agent.bytes_written.saturating_add(change.bytes.unwrap_or(0));
        }
        let text = |hash: Option<portcullis_audit::Hash>| hash.map(|hash| hash.to_string());
        let path = change.path.as_str().to_owned();
        self.file(FileChange {
            path,
            changes: 1,
            before: text(change.before),
            after: text(change.after),
            op: change.operation.as_str().to_owned(),
            to: change.to.map(|to| to.as_str().to_owned()),
            agent: change.agent,
            seq: change.seq,
            first: change.seq,
        });
    }

    fn file(&mut self, next: FileChange) {
        let Some(file) = self.files.get_mut(&next.path) else {
            self.files.insert(next.path.clone(), next);
            return;
        };
        let changes = file.changes + next.changes;
        let (early, late) =
            if file.seq < next.seq { (file.clone(), next) } else { (next, file.clone()) };
        // Attributes leave the content unchanged.
        let late = match late.op.as_str() {
            "setattr" => FileChange { op: early.op.clone(), after: early.after.clone(), ..late },
            _ => late,
        };
        let begin = if early.first < late.first { &early } else { &late };
        let (before, first) = (begin.before.clone(), begin.first);
        *file = FileChange { changes, before, first, ..late };
    }

    /// Returns the changes without an outcome.
    pub(super) fn missing_outcomes(&self) -> Vec<u64> {
        let mut open = Vec::from_iter(self.open.keys().copied());
        open.sort_unstable();
        open.truncate(MAX_LISTED);
        open
    }
}

/// Estimates the bytes that a change occupies.
fn cost(change: &Change) -> usize {
    let Change { session, agent, user, transport, path, to, rule, policy, policy_sha256, .. } =
        change;
    let texts =
        [user, transport, rule, policy, policy_sha256, &change.target].into_iter().flatten();
    let paths = [Some(path), to.as_ref()].into_iter().flatten();
    texts.chain([session, agent]).map(String::len).sum::<usize>()
        + paths.map(|path| path.as_str().len()).sum::<usize>()
        + OVERHEAD
}

/// Returns the name of a policy's file without its directory: records have the path as it was given,
/// and one file has several.
fn file_name(policy: &str) -> String {
    policy.rsplit('/').next().unwrap_or(policy).to_owned()
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}

/// Counts the findings by rule.
pub(crate) fn findings(record: &RecordView<'_>) -> BTreeMap<String, u64> {
    let mut rules = BTreeMap::new();
    for one in record.findings.iter().flatten() {
        let name = one.get("rule").or_else(|| one.get("id")).and_then(Value::as_str);
        count(&mut rules, name.unwrap_or("?"));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory use grew with the number of names in the log.
    #[test]
    fn what_a_report_keeps_is_bounded() {
        let line = |seq: u64, kind: &str| {
            format!(
                r#"{{"v":1,"seq":{seq},"kind":"{kind}","t":"2026-11-21T08:00:00.000000Z","agent":"{seq}-{}","op":"write","path":"a","decision":"allow","nonce":"{:032}","prev":"{:064}"}}"#,
                "x".repeat(1 << 20),
                0,
                0
            )
        };
        for kind in ["decision", "intent"] {
            let mut digest = Digest::default();
            for seq in 0..140 {
                let line = line(seq, kind);
                digest.add(&RecordView::parse(line.as_bytes()).unwrap(), line.as_bytes());
            }
            assert!(digest.left_out > 0 && digest.records + digest.left_out == 140, "{kind}");
            assert!(digest.bytes + digest.open_bytes < MAX_STORED_BYTES + (4 << 20), "{kind}");
            let mut later = Digest::default();
            later.add(&RecordView::parse(line(7, kind).as_bytes()).unwrap(), b"");
            let before = digest.left_out;
            digest.merge(later);
            assert_eq!((digest.left_out, digest.agents.len() < 140), (before + 1, true));
        }
    }

    #[test]
    fn changes_that_were_answered_take_no_room() {
        let mut digest = Digest::default();
        for seq in 0..1000 {
            for (seq, rest) in
                [(2 * seq, String::new()), (2 * seq + 1, format!(r#""of":{},"#, 2 * seq))]
            {
                let kind = if rest.is_empty() { "intent" } else { "outcome" };
                let line = format!(
                    r#"{{"v":1,"seq":{seq},"kind":"{kind}","t":"2026-11-21T08:00:00.000000Z","agent":"a","op":"write","path":"a","decision":"allow",{rest}"result":"ok","nonce":"{:032}","prev":"{:064}"}}"#,
                    0, 0
                );
                digest.add(&RecordView::parse(line.as_bytes()).unwrap(), line.as_bytes());
            }
        }
        assert_eq!((digest.open_bytes, digest.records, digest.left_out), (0, 2000, 0));
        assert!(digest.bytes < 10_000, "{}", digest.bytes);
    }
}
