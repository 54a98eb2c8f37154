//! Requests in a log. Integrity is the subject of `audit verify`.

use std::{collections::BTreeMap, io, net::IpAddr, ops::ControlFlow};

use portcullis_audit::{AuditRecord, Draft, Kind, RecordView};

use super::{
    carried_labels::{CarriedOn, Carriers},
    progress::{Phase, ProgressObserver},
    session_hosts::SessionNetworks,
};
use crate::{
    model::{AgentName, Connect, Host, OperationKind, Transport, WorkspacePath},
    policy::{Decision, LabelIds, Labels, Policy},
    review::{Filter, Log, ScanOrder, Scanned},
};

/// Number of bytes between two reports of progress.
const REPORT_INTERVAL: u64 = 1 << 20;

/// The result of a decision whose host led to no connection.
const UNREACHABLE: &str = "unreachable";

/// One recorded request.
#[derive(Debug)]
pub struct Recorded<'a> {
    /// The index of its record.
    pub seq: u64,
    /// The agent that sent it.
    pub agent: AgentName,
    /// The operation.
    pub operation: OperationKind,
    /// The path in the request.
    pub path: WorkspacePath,
    /// The new path of a rename.
    pub to: Option<WorkspacePath>,
    /// The canonical path, if links made it a different one.
    pub resolved: Option<WorkspacePath>,
    /// The decision: `allow`, `deny` or `ask`.
    pub decision: &'a str,
    /// True if it was allowed only because the policy was in observe mode.
    pub would_deny: bool,
    /// True if it was allowed because a person approved it.
    pub is_approved: bool,
    /// True if a program sent it by way of a mount, where a name that may not be listed is missing.
    pub is_of_mount: bool,
    /// True if no agent sent it: the private repository of a sandbox was made.
    pub is_setup: bool,
    /// The rule that decided.
    pub rule: &'a str,
    /// The hash of the policy that was in force.
    pub policy: Option<&'a str>,
}

/// Numbers of the records that were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Records of any kind in the period.
    pub records: u64,
    /// Requests among them that a policy can decide again.
    pub requests: u64,
    /// Requests that never became an operation, such as malformed ones.
    pub malformed: u64,
    /// The unreadable parts of the log.
    pub scanned: Scanned,
}

/// Reads the log from its first record, or from the time `since` (in the form of a record's `t`), and
/// passes each request to `visit`. Reports progress to `watch`.
///
/// # Errors
/// If the log cannot be read.
pub(crate) fn read_history(
    log: &Log,
    since: Option<&str>,
    watch: &dyn ProgressObserver,
    mut visit: impl FnMut(&Recorded<'_>),
) -> io::Result<Count> {
    let mut count = Count::default();
    watch.begin(Phase::Reading, log.bytes());
    let mut read = 0;
    let scanned = each_record(log, |record, length| {
        request(&record, since, &mut count, &mut visit);
        read += length;
        if read >= REPORT_INTERVAL {
            watch.done(std::mem::take(&mut read));
        }
    })?;
    Ok(Count { scanned, ..count })
}

/// Calls `each` on the records in their order, with the length of their lines. The threads that read
/// the log parse them.
fn each_record(log: &Log, mut each: impl FnMut(AuditRecord, u64)) -> io::Result<Scanned> {
    let owned = |record: &RecordView<'_>, line: &[u8]| {
        Some((record.clone().into_record(), line.len() as u64 + 1))
    };
    log.scan(&Filter::default(), ScanOrder::Oldest, owned, |(record, length)| {
        each(record, length);
        ControlFlow::Continue(())
    })
}

/// One recorded decision on a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The index of its record.
    pub(crate) seq: u64,
    /// The agent that sent it.
    pub(crate) agent: AgentName,
    /// The host and the port.
    pub(crate) connect: Connect,
    /// The lifetime of its gateway, if the record has it.
    pub(crate) boot: Option<String>,
    /// The address that was decided on; `None` if the decision was on the host.
    pub(crate) address: Option<IpAddr>,
    /// The labels of content of other workspaces that its sandbox had been shown, as far as its
    /// record names them.
    pub(crate) read_elsewhere: LabelIds,
    /// The effect; `deny` also if the connection was allowed only because the policy observed.
    pub(crate) effect: String,
    /// The rule that decided.
    pub(crate) rule: String,
    /// True if the name alone decided: no address, limit or approval.
    pub(crate) is_by_name: bool,
}

impl Connection {
    pub(crate) fn is_denied(&self) -> bool {
        self.effect == "deny"
    }
}

/// A policy as it applies to the connections of a log: with the hosts of presets, and with the labels
/// that sandboxes carry.
pub(crate) struct FollowedPolicy<'p> {
    policy: &'p Policy,
    pub(crate) carriers: Carriers<'p>,
    networks: SessionNetworks<'p>,
}

impl<'p> FollowedPolicy<'p> {
    /// Returns the policy with those of its `labels` that count.
    pub(crate) fn new(policy: &'p Policy, labels: &'p Labels) -> Self {
        let (carriers, networks) = (Carriers::new(labels), SessionNetworks::new(policy));
        Self { policy, carriers, networks }
    }

    /// Decides on the host of a recorded connection, where labels are carried on so.
    pub(crate) fn decide(&self, asked: &Connection, to: CarriedOn) -> Decision {
        let boot = asked.boot.as_deref();
        let agent = asked.agent.as_str();
        let mut carried = self.carriers.carried(to, boot.unwrap_or_default(), agent);
        carried.extend(asked.read_elsewhere.iter().cloned());
        let network = self.networks.of(boot);
        self.policy.evaluate_connect_in(network, &asked.agent, &asked.connect, &carried)
    }
}

/// Reads the decisions on connections as [`read_history`] reads those on paths. `policies` have followed
/// the log as far as the one that is visited.
///
/// # Errors
/// If the log cannot be read.
pub(crate) fn read_connections<const N: usize>(
    log: &Log,
    since: Option<&str>,
    policies: &mut [FollowedPolicy<'_>; N],
    mut visit: impl FnMut(&Connection, &[FollowedPolicy<'_>; N]),
) -> io::Result<()> {
    // The damage was told with the requests.
    let _scanned = each_record(log, |record, _length| {
        let is_early = since.is_some_and(|since| record.t.as_str() < since);
        for policy in &mut *policies {
            policy.carriers.follow(&record, !is_early);
            policy.networks.follow(&record.draft);
        }
        let AuditRecord { seq, kind, draft, .. } = record;
        let is_decision = kind == Kind::Decision && is_connection(draft.op.as_deref());
        if is_early || !is_decision {
            return;
        }
        let (Some(agent), Some(connect)) = (&draft.agent, target(&draft)) else { return };
        let Ok(agent) = agent.parse() else { return };
        let fact = |name| draft.facts.as_ref().and_then(|facts| facts.get(name));
        let effect = draft.decision.as_deref().unwrap_or_default();
        // A connection with an approval was counted when that was asked for, and one that led
        // nowhere when its name was decided on.
        if fact("approval").is_some() || draft.result.as_deref() == Some(UNREACHABLE) {
            return;
        }
        let is_by_name =
            effect != "ask" && fact("address").is_none() && !is_of_gateway(draft.rule.as_deref());
        let address = fact("address").and_then(|address| address.as_str()?.parse().ok());
        let effect = if draft.would_deny == Some(true) { "deny" } else { effect }.to_owned();
        let rule = draft.rule.unwrap_or_default();
        let read_elsewhere = read_elsewhere(draft.facts.as_ref());
        let boot = draft.boot;
        let asked = Connection {
            seq,
            agent,
            connect,
            boot,
            address,
            read_elsewhere,
            effect,
            rule,
            is_by_name,
        };
        visit(&asked, policies);
    })?;
    Ok(())
}

fn is_connection(op: Option<&str>) -> bool {
    op == Some(OperationKind::Connect.as_str())
}

/// Returns the labels because of which a connection was decided on so and whose reads are in the
/// log of another workspace.
fn read_elsewhere(facts: Option<&BTreeMap<String, serde_json::Value>>) -> LabelIds {
    let named = facts.and_then(|facts| facts.get("whenRead")?.as_object());
    let elsewhere = named.into_iter().flatten().filter(|(_, read)| read.get("boot").is_some());
    elsewhere.map(|(id, _)| id.clone()).collect()
}

/// True if the gateway decided by what the policy does not say: a limit, a credential, or what was
/// sent for another host.
fn is_of_gateway(rule: Option<&str>) -> bool {
    matches!(rule, Some("network.credentials" | "network.host"))
        || ["limits.", "mount.", "network.limits."]
            .into_iter()
            .any(|limits| rule.is_some_and(|rule| rule.starts_with(limits)))
}

/// Returns the host and the port that a record names.
fn target(draft: &Draft) -> Option<Connect> {
    let facts = draft.facts.as_ref()?;
    let host = Host::parse(facts.get("host")?.as_str()?).ok()?;
    let port = facts.get("port")?.as_u64()?.try_into().ok()?;
    Some(Connect { host, port })
}

fn request(
    AuditRecord { seq, kind, t, draft, .. }: &AuditRecord,
    since: Option<&str>,
    count: &mut Count,
    visit: &mut impl FnMut(&Recorded<'_>),
) {
    if since.is_some_and(|since| t.as_str() < since) {
        return;
    }
    count.records += 1;
    // An outcome repeats the request of its intent.
    if !matches!(kind, Kind::Decision | Kind::Intent) {
        return;
    }
    if is_connection(draft.op.as_deref()) {
        return;
    }
    let (Some(agent), Some(op), Some(decision)) = (&draft.agent, &draft.op, &draft.decision) else {
        return;
    };
    let (Ok(agent), Ok(operation)) = (agent.parse(), op.parse()) else {
        count.malformed += 1;
        return;
    };
    // A search is decided entry by entry: its own record names only the directory where it began,
    // and the records of the files that it disclosed have the hash of their content. A subscription
    // is decided change by change.
    let entrywise =
        matches!(operation, OperationKind::Glob | OperationKind::Grep | OperationKind::Watch);
    if entrywise && draft.before.is_none() {
        return;
    }
    let parse = |path: &Option<String>| path.as_deref().map(WorkspacePath::parse).transpose();
    let (Ok(Some(path)), Ok(to), Ok(resolved)) =
        (parse(&draft.path), parse(&draft.to), parse(&draft.resolved))
    else {
        count.malformed += 1;
        return;
    };
    // Denials without a rule were never decided, such as a malformed argument.
    if decision == "deny" && draft.rule.is_none() {
        count.malformed += 1;
        return;
    }
    count.requests += 1;
    let has_fact = |name| draft.facts.as_ref().is_some_and(|facts| facts.contains_key(name));
    visit(&Recorded {
        seq: *seq,
        agent,
        operation,
        path,
        to,
        resolved,
        decision,
        would_deny: draft.would_deny.unwrap_or(false),
        is_approved: decision == "allow" && has_fact("approval"),
        is_of_mount: draft.transport.as_deref() == Some(Transport::Mount.as_str()),
        is_setup: has_fact("setup"),
        rule: draft.rule.as_deref().unwrap_or_default(),
        policy: draft.policy_sha256.as_deref(),
    });
}

impl Recorded<'_> {
    /// Returns the decision of `policy` on the names of the request.
    pub fn decide(&self, policy: &Policy) -> Decision {
        let asked = policy.decide(&self.agent, self.operation, &self.path, self.to.as_ref(), None);
        match &self.resolved {
            Some(resolved) if !asked.is_deny() => {
                let to = self.to.as_ref();
                asked.and(policy.decide(&self.agent, self.operation, resolved, to, None))
            }
            _ => asked,
        }
    }

    /// Returns the effect of the policy in force then: `deny` if only observe mode allowed the
    /// request, and `ask` if a person did.
    pub fn effect(&self) -> &str {
        match self.decision {
            _ if self.would_deny => "deny",
            _ if self.is_approved => "ask",
            decision => decision,
        }
    }

    /// True if names alone were enough for the recorded decision. Denials because of content, the
    /// object, a link, a limit or an approval cannot be decided again.
    pub fn by_name(&self) -> bool {
        if self.decision == "allow" {
            // Observe mode changes only denials by default.
            return true;
        }
        let rule = self.rule;
        let start = rule.split('.').next().unwrap_or_default();
        match start {
            "files" | "limits" | "mount" | "approval" | "approvals" => false,
            // A rule of the policy may have such a name.
            "workspace" | "restore" | "serve" => rule == start,
            "names" => rule == "names.hidden",
            "secrets" => rule.starts_with("secrets.names"),
            _ => self.decision != "ask" && !rule.is_empty(),
        }
    }
}
