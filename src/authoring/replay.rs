//! `policy replay`: recorded requests decided again under another policy.
//!
//! By name, as the first thing that the gate does. What was denied for content,
//! for what lay there or by a limit is counted and not decided again.

use std::{collections::BTreeMap, io};

use portcullis_audit::Directory;

use super::{
    history::{Count, Recorded, read_history},
    progress::Watch,
};
use crate::{
    model::OperationKind,
    policy::{Place, Policy},
};

/// What a replay found.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// What was read.
    pub count: Count,
    /// Requests that are decided as they were.
    pub same: u64,
    /// Requests whose denial depended on more than names, by its rule; a new
    /// policy that denies them by name is no change.
    pub undecided: BTreeMap<String, u64>,
    /// The others, those that are newly allowed first, the most frequent first.
    pub changes: Vec<Changed>,
}

/// Requests that are decided differently, of one agent about one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Who asked.
    pub agent: String,
    /// What for.
    pub operation: OperationKind,
    /// The path.
    pub path: String,
    /// The new path of a rename.
    pub to: Option<String>,
    /// What was decided.
    pub was: String,
    /// By which rule.
    pub was_rule: String,
    /// What would be decided.
    pub now: String,
    /// By which rule.
    pub now_rule: String,
    /// Where that rule is written.
    pub place: Option<Place>,
    /// How many records there are of it.
    pub records: u64,
    /// The first of them.
    pub first: u64,
}

impl Changed {
    /// Whether the new policy lets through what was not.
    pub fn opens(&self) -> bool {
        self.now == "allow"
    }
}

impl Replay {
    /// How many requests are decided differently.
    pub fn changed(&self) -> u64 {
        self.changes.iter().map(|change| change.records).sum()
    }
}

type Key = (String, OperationKind, String, Option<String>, String, String, String, String);

/// Decides the requests of the log in `directory` again under `policy`.
///
/// # Errors
/// When the log cannot be read.
pub fn replay(
    policy: &Policy,
    directory: &Directory,
    since: Option<&str>,
    watch: &dyn Watch,
) -> io::Result<Replay> {
    let mut replay = Replay::default();
    let mut changes: BTreeMap<Key, (Option<Place>, u64, u64)> = BTreeMap::new();
    let count = read_history(directory, since, watch, |request| {
        let decision = request.decide(policy);
        let now = decision.effect.as_str();
        if request.effect() == now {
            replay.same += 1;
        } else if !request.by_name() {
            let rule = request.rule.clone().into_owned();
            *replay.undecided.entry(rule).or_default() += 1;
        } else {
            let key = key(request, now, decision.rule);
            let change = changes.entry(key).or_insert((decision.place, 0, request.seq));
            change.1 += 1;
        }
    })?;
    replay.count = count;
    replay.changes = changes
        .into_iter()
        .map(
            |(
                (agent, operation, path, to, was, was_rule, now, now_rule),
                (place, records, first),
            )| {
                Changed {
                    agent,
                    operation,
                    path,
                    to,
                    was,
                    was_rule,
                    now,
                    now_rule,
                    place,
                    records,
                    first,
                }
            },
        )
        .collect();
    replay.changes.sort_by_key(|change| (!change.opens(), std::cmp::Reverse(change.records)));
    Ok(replay)
}

fn key(request: &Recorded<'_>, now: &str, rule: String) -> Key {
    (
        request.agent.to_string(),
        request.operation,
        request.path.to_string(),
        request.to.as_ref().map(ToString::to_string),
        request.effect().to_owned(),
        request.rule.clone().into_owned(),
        now.to_owned(),
        rule,
    )
}
