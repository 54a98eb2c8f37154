//! `policy replay`: recorded requests, decided again under another policy.
//!
//! Requests are decided by name, which is also the first step of the gateway. Denials for content,
//! an object, an address or a limit are counted and not decided again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    carried_labels::CarriedOn,
    examples::examples_in,
    history::{Connection, Count, FollowedPolicy, Recorded, read_connections, read_history},
    progress::ProgressObserver,
};
use crate::{
    model::{OperationKind, WorkspacePath},
    outline::{OutlineFile, PathPattern, StatementKind},
    policy::{Decision, Effect, Policy, SourceLocation},
    review::Log,
};

/// The result of a replay.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Numbers of the records that were read.
    pub count: Count,
    /// Number of requests with the same decision.
    pub same: u64,
    /// Numbers of requests whose denial depended on more than names, by its rule. A new policy that
    /// denies them by name is no change.
    pub undecided: BTreeMap<String, u64>,
    /// The other requests: newly allowed ones first, then by descending number.
    pub changes: Vec<Changed>,
    /// The effect of carrying labels on to files that sandboxes write once they carry them, which
    /// no gateway does. `None` if the policy has no labels.
    pub carried_to_files: Option<StricterConnections>,
    /// The effect of carrying labels on to all sandboxes of the same agent, too.
    pub carried_to_sessions: Option<StricterConnections>,
}

/// The connections that carrying labels on would restrict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StricterConnections {
    /// The number of sandboxes that would carry more labels.
    pub sandboxes: u64,
    /// The number of files that would have a label that their path does not have, at the end.
    pub files: u64,
    /// The connections, with the decision without and with it.
    pub changes: Vec<Changed>,
}

impl StricterConnections {
    /// Returns the number of connections.
    pub fn connections(&self) -> u64 {
        records(&self.changes)
    }
}

/// Requests of one agent about one path that are decided differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The agent that sent them.
    pub agent: String,
    /// The operation.
    pub operation: OperationKind,
    /// The path, or the host and the port.
    pub path: String,
    /// The new path of a rename.
    pub to: Option<String>,
    /// The recorded decision.
    pub was: String,
    /// The rule of the recorded decision.
    pub was_rule: String,
    /// The new decision.
    pub now: String,
    /// The rule of the new decision.
    pub now_rule: String,
    /// The place of the new rule in its file.
    pub location: Option<SourceLocation>,
    /// The number of records.
    pub records: u64,
    /// The index of the first record.
    pub first: u64,
}

impl Changed {
    /// True if the new policy allows requests that were not allowed.
    pub fn opens(&self) -> bool {
        self.now == "allow"
    }

    /// True if the new policy allows these requests, or asks about them and does not deny them any
    /// more.
    pub fn adds_access(&self) -> bool {
        self.opens() || self.was == "deny"
    }
}

impl Replay {
    /// Returns the number of requests that are decided differently.
    pub fn changed(&self) -> u64 {
        records(&self.changes)
    }
}

/// Returns the number of recorded requests that changed.
pub(super) fn records(changes: &[Changed]) -> u64 {
    changes.iter().map(|change| change.records).sum()
}

type RequestKey = (String, OperationKind, String, Option<String>, String, String, String, String);

/// Decides the requests of the log again under `policy`, whose files are `outline`. The
/// hosts that a preset gave to a session count as they would in that session.
///
/// # Errors
/// If the log cannot be read.
pub fn replay(
    policy: &Policy,
    outline: &[OutlineFile],
    log: &Log,
    since: Option<&str>,
    watch: &dyn ProgressObserver,
) -> io::Result<Replay> {
    let mut replay = Replay::default();
    let mut changes = ChangedRequests::default();
    let beside = OtherPathDenials::new(policy, outline);
    let mut count = read_history(log, since, watch, |request| {
        let decision = request.decide(policy);
        let now = decision.effect().as_str();
        if request.effect() == now {
            replay.same += 1;
        } else if !request.by_name() || (!decision.is_deny() && beside.denied(request)) {
            let rule = request.rule.to_owned();
            *replay.undecided.entry(rule).or_default() += 1;
        } else {
            let key = key(request, now, decision.rule().to_owned());
            changes.add(key, &decision, request.seq);
        }
    })?;
    let extents = [CarriedOn::Files, CarriedOn::Sessions];
    let mut stricter = extents.map(|to| (to, ChangedRequests::default()));
    let mut followed = [FollowedPolicy::new(policy, policy.labels())];
    read_connections(log, since, &mut followed, |asked, [followed]| {
        count.requests += 1;
        let decision = followed.decide(asked, CarriedOn::Nowhere);
        let now = decision.effect().as_str();
        if asked.effect == now {
            replay.same += 1;
        } else if !asked.is_by_name {
            *replay.undecided.entry(asked.rule.clone()).or_default() += 1;
        } else {
            changes.connection(asked, (&asked.effect, &asked.rule), &decision);
        }
        // What was denied for more than its name stays denied.
        let can_be_stricter = !decision.is_deny() && (asked.is_by_name || asked.effect != "deny");
        for (to, changes) in stricter.iter_mut().filter(|_| can_be_stricter) {
            let with = followed.decide(asked, *to);
            if with.effect() != decision.effect() {
                changes.connection(asked, (now, decision.rule()), &with);
            }
        }
    })?;
    replay.count = count;
    replay.changes = changes.into_list();
    let [FollowedPolicy { carriers, .. }] = followed;
    let [files, sessions] = stricter.map(|(to, changes)| {
        (!policy.labels().is_empty()).then(|| StricterConnections {
            sandboxes: carriers.further_sandboxes(to),
            files: carriers.labelled_files(to),
            changes: changes.into_list(),
        })
    });
    (replay.carried_to_files, replay.carried_to_sessions) = (files, sessions);
    Ok(replay)
}

/// Requests that are decided differently: the place of the new rule, their number and the index of
/// the first record.
#[derive(Debug, Default)]
pub(super) struct ChangedRequests(BTreeMap<RequestKey, (Option<SourceLocation>, u64, u64)>);

impl ChangedRequests {
    fn add(&mut self, key: RequestKey, now: &Decision, seq: u64) {
        let change = self.0.entry(key).or_insert_with(|| (now.location().cloned(), 0, seq));
        change.1 += 1;
    }

    /// Adds a connection, with the effect and the rule of the decision that it had.
    pub(super) fn connection(&mut self, asked: &Connection, was: (&str, &str), now: &Decision) {
        let key = (
            asked.agent.to_string(),
            OperationKind::Connect,
            asked.connect.to_string(),
            None,
            was.0.to_owned(),
            was.1.to_owned(),
            now.effect().as_str().to_owned(),
            now.rule().to_owned(),
        );
        self.add(key, now, asked.seq);
    }

    /// Returns newly allowed ones first, then by descending number.
    pub(super) fn into_list(self) -> Vec<Changed> {
        let all = self.0.into_iter();
        let mut list: Vec<_> = all
            .map(|(key, (location, records, first))| {
                let (agent, operation, path, to, was, was_rule, now, now_rule) = key;
                Changed {
                    agent,
                    operation,
                    path,
                    to,
                    was,
                    was_rule,
                    now,
                    now_rule,
                    location,
                    records,
                    first,
                }
            })
            .collect();
        list.sort_by_key(|change| (!change.opens(), std::cmp::Reverse(change.records)));
        list
    }
}

/// Recognizes denials about other paths than the requested one: an entry beneath a directory that
/// was to be removed, or a parent directory that was to be made.
pub(super) struct OtherPathDenials<'a> {
    policy: &'a Policy,
    /// The patterns of denials.
    patterns: Vec<&'a PathPattern>,
}

impl<'a> OtherPathDenials<'a> {
    pub(super) fn new(policy: &'a Policy, outline: &'a [OutlineFile]) -> Self {
        let statements = outline.iter().flat_map(|file| &file.statements);
        let denials = statements.filter(|statement| {
            matches!(statement.kind, StatementKind::SecretName | StatementKind::Rule(Effect::Deny))
        });
        Self { policy, patterns: denials.flat_map(|statement| &statement.patterns).collect() }
    }

    /// True if the recorded denial may have been about another path than the requested one.
    pub(super) fn denied(&self, request: &Recorded<'_>) -> bool {
        if request.effect() != "deny" {
            return false;
        }
        // The same policy did not deny the requested path at that time either.
        request.policy == Some(self.policy.sha256())
            || self.denied_ancestor(request)
            || self.beneath(request)
    }

    fn denied_ancestor(&self, request: &Recorded<'_>) -> bool {
        use OperationKind as O;
        let made = match request.operation {
            O::Write | O::Append | O::Mkdir | O::Symlink | O::Restore => Some(&request.path),
            O::Rename => request.to.as_ref(),
            O::Read | O::Edit | O::List | O::Stat | O::Glob | O::Grep | O::Watch => None,
            O::Remove | O::SetAttributes | O::Connect | O::Command => None,
        };
        let ancestors = made.into_iter().flat_map(WorkspacePath::ancestors);
        ancestors.filter(|path| !path.is_root()).any(|path| {
            let made = self.policy.decide(&request.agent, O::Mkdir, &path, None, None);
            !made.is_default_deny() && by_its_rule(request, &made)
        })
    }

    fn beneath(&self, request: &Recorded<'_>) -> bool {
        let Recorded { agent, operation, path, to, .. } = request;
        let goes_with_all = matches!(
            operation,
            OperationKind::Remove | OperationKind::Rename | OperationKind::Restore
        );
        let location = BTreeSet::from([path.clone()]);
        let examples =
            self.patterns.iter().flat_map(|pattern| examples_in(pattern, "x", &location));
        goes_with_all
            && examples.filter(|example| example != path && example.is_within(path)).any(|old| {
                let new = to.as_ref().and_then(|to| old.rebase(path, to));
                let decision = self.policy.decide(agent, *operation, &old, new.as_ref(), None);
                by_its_rule(request, &decision)
            })
    }
}

fn by_its_rule(request: &Recorded<'_>, decision: &Decision) -> bool {
    decision.is_deny() && decision.rule() == request.rule
}

fn key(request: &Recorded<'_>, now: &str, rule: String) -> RequestKey {
    (
        request.agent.to_string(),
        request.operation,
        request.path.relative().to_owned(),
        request.to.as_ref().map(|to| to.relative().to_owned()),
        request.effect().to_owned(),
        request.rule.to_owned(),
        now.to_owned(),
        rule,
    )
}
