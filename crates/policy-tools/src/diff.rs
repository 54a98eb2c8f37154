//! `policy diff`: the decisions that change when one policy replaces another.
//!
//! Both policies decide every action on every entry of the tree, about an example of every
//! pattern of either, and about recorded requests. Examples are needed since a pattern may open
//! paths that do not exist yet; where they show no opening, more of them are tried. Settings are
//! compared value by value.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    carried_labels::CarriedOn,
    compared_paths::{examples, unproven, unproven_for_extending, variants},
    entry_operation::{ENTERING, EntryOperation, decide_entering, decide_entry},
    examples::{agent_variants, agents, letters},
    history::{FollowedPolicy, read_connections, read_history},
    lost_bounds::lost_bounds,
    progress::{Phase, ProgressObserver},
    replay::{Changed, ChangedRequests, records},
    tree::{Tree, TreeEntry},
};
use crate::{
    compare::{SettingChange, compare_modes, compare_settings},
    model::{Access, AgentName, WorkspacePath},
    outline::OutlineFile,
    policy::{Decision, Mode, Object, ObjectKind, Policy},
    review::{Log, Scanned},
};

/// Number of entries between two reports of progress.
const REPORT_INTERVAL: usize = 1024;

/// A policy and the outline of its files.
#[derive(Debug, Clone, Copy)]
pub struct ComparedPolicy<'a> {
    /// The policy as it enforces: requests that only observe mode allows are no difference between
    /// two policies.
    pub policy: &'a Policy,
    /// Its mode.
    pub mode: Mode,
    /// The mode of its `[network]`.
    pub network_mode: Mode,
    /// Its files.
    pub outline: &'a [OutlineFile],
}

/// The differences between two policies.
#[derive(Debug, Clone, Default)]
pub struct Diff {
    /// The paths that are decided differently: openings first, reading before other accesses.
    pub changes: Vec<Change>,
    /// The settings that differ, and bounds that policies which extend this one lose. Where nothing
    /// else opens, also the patterns that are not certain to open nothing, under the keys `denials`,
    /// `exceptions` and `allowances`.
    pub settings: Vec<SettingChange>,
    /// The agents that were compared: each one that either policy names, and one that neither
    /// names.
    pub agents: Vec<String>,
    /// Number of entries of the tree that were compared.
    pub entries: usize,
    /// Number of entries of the tree that no gateway serves.
    pub not_served: u64,
    /// Number of example paths that were compared.
    pub examples: usize,
    /// True if there were more example paths than the maximum.
    pub examples_cut: bool,
    /// Number of recorded requests for paths that were compared.
    pub requests: u64,
    /// Number of recorded connections that were compared.
    pub connections: u64,
    /// The recorded connections that are decided differently.
    pub connection_changes: Vec<Changed>,
    /// The unreadable parts of the log.
    pub scanned: Scanned,
}

/// One path that is decided differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// True if it becomes allowed.
    pub opens: bool,
    /// The access that is decided differently.
    pub access: Access,
    /// The operations with this access that change.
    pub operations: Vec<&'static str>,
    /// True if these are all operations that exist for such an entry.
    pub whole: bool,
    /// The path.
    pub path: WorkspacePath,
    /// The new path of a recorded rename.
    pub to: Option<WorkspacePath>,
    /// The agents concerned, some of [`Diff::agents`]; empty for all of them.
    pub agents: Vec<String>,
    /// The origin of the path.
    pub seen: PathOrigin,
    /// The old decision.
    pub old: Decision,
    /// The new decision.
    pub new: Decision,
}

/// Origins of a compared path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathOrigin {
    /// An entry of the tree.
    Tree,
    /// Requests in the log.
    Log {
        /// The index of the first record.
        first: u64,
        /// The number of records.
        records: u64,
    },
    /// An example of a pattern; no such entry exists.
    Example,
}

impl Diff {
    /// True if anything opens.
    pub fn opens(&self) -> bool {
        self.changes.iter().any(|change| change.opens)
            || self.settings.iter().any(|setting| setting.opens)
            || self.connection_changes.iter().any(|change| change.adds_access())
    }

    /// Returns the number of recorded connections that are decided differently.
    pub fn changed_connections(&self) -> u64 {
        records(&self.connection_changes)
    }
}

/// Compares two policies over `tree` and over the requests of `log`.
///
/// # Errors
/// If the log cannot be read.
pub fn diff(
    old: ComparedPolicy<'_>,
    new: ComparedPolicy<'_>,
    tree: &Tree,
    log: Option<(&Log, Option<&str>)>,
    more_agents: &[AgentName],
    watch: &dyn ProgressObserver,
) -> io::Result<Diff> {
    let outlines = || old.outline.iter().chain(new.outline);
    let mut agents = agents(outlines());
    agents.extend(more_agents.iter().cloned());
    let mut found = Diff {
        settings: compare_modes("mode", old.mode, new.mode)
            .into_iter()
            .chain(compare_modes("network.mode", old.network_mode, new.network_mode))
            .chain(compare_settings(old.policy, new.policy))
            .collect(),
        agents: agents.iter().map(ToString::to_string).collect(),
        entries: tree.entries.len(),
        not_served: tree.not_served,
        ..Diff::default()
    };
    let mut collected = Collected::default();
    let known: BTreeSet<_> = tree.entries.iter().map(|entry| &entry.path).collect();
    let (examples, cut) = examples(old.outline, new.outline);
    watch.begin(Phase::Asking, ((tree.entries.len() + examples.len()) * agents.len()) as u64);
    for agent in &agents {
        for entries in tree.entries.chunks(REPORT_INTERVAL) {
            for entry in entries {
                collected.entry(old.policy, new.policy, agent, entry, PathOrigin::Tree);
            }
            watch.done(entries.len() as u64);
        }
    }
    found.examples_cut = cut;
    for path in &examples {
        watch.done(agents.len() as u64);
        if known.contains(path) {
            continue;
        }
        found.examples += 1;
        for agent in &agents {
            collected.example(old.policy, new.policy, agent, path);
        }
    }
    if !collected.opens() && !found.settings.iter().any(|setting| setting.opens) {
        // Different patterns may have the same examples.
        let letters = letters(outlines());
        let (more, cut) = variants(old.outline, new.outline, &letters);
        found.examples_cut |= cut;
        let new_agents = agent_variants(outlines(), &letters);
        let mut closer = Collected::default();
        let more: BTreeSet<_> = more
            .into_iter()
            .filter(|path| !known.contains(path) && !examples.contains(path))
            .collect();
        found.examples += more.len();
        // The examples have been compared for the first agents already.
        let asks = agents.iter().map(|agent| (agent, None));
        let asks = asks.chain(new_agents.iter().map(|agent| (agent, Some(&examples))));
        watch.begin(
            Phase::Asking,
            (more.len() * agents.len() + (more.len() + examples.len()) * new_agents.len()) as u64,
        );
        for (agent, examples) in asks {
            for path in more.iter().chain(examples.into_iter().flatten()) {
                watch.done(1);
                if !known.contains(path) {
                    closer.example(old.policy, new.policy, agent, path);
                }
            }
        }
        closer.0.retain(|_, change| change.opens);
        if !closer.opens() {
            // Examples prove nothing about other paths.
            found.settings.extend(unproven(old.outline, new.outline));
        }
        collected.0.extend(closer.0);
    }
    if let Some((log, since)) = log {
        let count = read_history(log, since, watch, |request| {
            collected.request(old.policy, new.policy, request, &known);
        })?;
        (found.requests, found.scanned) = (count.requests, count.scanned);
        let mut connections = ChangedRequests::default();
        let mut both =
            [old.policy, new.policy].map(|policy| FollowedPolicy::new(policy, policy.labels()));
        read_connections(log, since, &mut both, |asked, both| {
            // Its name has a record of its own, or no policy decides.
            if asked.address.is_some() || (asked.is_denied() && !asked.is_by_name) {
                return;
            }
            found.connections += 1;
            let [was, now] = both.each_ref().map(|one| one.decide(asked, CarriedOn::Nowhere));
            if was.effect() != now.effect() {
                connections.connection(asked, (was.effect().as_str(), was.rule()), &now);
            }
        })?;
        found.connection_changes = connections.into_list();
    }
    let known = |key| found.settings.iter().any(|change| change.key == key && change.opens);
    let lost = lost_bounds(old.outline, new.outline).into_iter();
    let lost: Vec<_> = lost.filter(|change| !known(change.key)).collect();
    found.settings.extend(lost);
    for change in unproven_for_extending(old.outline, new.outline) {
        if !found.settings.contains(&change) {
            found.settings.push(change);
        }
    }
    found.changes = collected.changes(&found.agents);
    Ok(found)
}

/// The properties by which changes are distinguished.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ChangeKey {
    closes: bool,
    access: Access,
    path: WorkspacePath,
    to: Option<WorkspacePath>,
    rules: (String, String),
    operations: Vec<&'static str>,
}

#[derive(Default)]
struct Collected(BTreeMap<ChangeKey, Change>);

impl Collected {
    fn opens(&self) -> bool {
        self.0.values().any(|change| change.opens)
    }

    /// Compares the decisions on a path as a file and as a directory.
    fn example(&mut self, old: &Policy, new: &Policy, agent: &AgentName, path: &WorkspacePath) {
        for kind in [ObjectKind::File, ObjectKind::Directory] {
            let object = Object { kind, links: 1, through_symlink: false };
            let entry = TreeEntry { path: path.clone(), object, target: None };
            self.entry(old, new, agent, &entry, PathOrigin::Example);
        }
    }

    fn entry(
        &mut self,
        old: &Policy,
        new: &Policy,
        agent: &AgentName,
        entry: &TreeEntry,
        seen: PathOrigin,
    ) {
        for access in Access::ALL {
            let operations = || {
                EntryOperation::ALL
                    .into_iter()
                    .filter(|entry_operation| entry_operation.access() == access)
            };
            let mut changed = Vec::new();
            let mut asked = 0;
            for entry_operation in operations() {
                let (Some(was), Some(now)) = (
                    decide_entry(old, agent, entry_operation, entry),
                    decide_entry(new, agent, entry_operation, entry),
                ) else {
                    continue;
                };
                asked += 1;
                if was.effect() != now.effect() {
                    changed.push((entry_operation.as_str(), was, now));
                }
            }
            self.entry_changes(agent, access, entry, seen, (&changed, asked));
        }
        if entry.object.kind == ObjectKind::Directory {
            let entered = ENTERING.into_iter().filter_map(|(operation, word)| {
                let decide = |policy| decide_entering(policy, agent, operation, entry);
                let (was, now) = (decide(old)?, decide(new)?);
                // Searches and the mount pass what nothing allows if something is allowed beneath it.
                let is_kept_out =
                    |decision: &Decision| !decision.is_allow() && !decision.is_default_deny();
                let is_changed =
                    is_kept_out(&was) && now.is_allow() || was.is_allow() && is_kept_out(&now);
                is_changed.then_some((word, was, now))
            });
            let entered: Vec<_> = entered.collect();
            self.entry_changes(agent, Access::List, entry, seen, (&entered, usize::MAX));
        }
    }

    /// Adds the operations on an entry that are decided differently, of as many as were `asked`
    /// about: one change for those that open, and one for the others.
    fn entry_changes(
        &mut self,
        agent: &AgentName,
        access: Access,
        entry: &TreeEntry,
        seen: PathOrigin,
        (changed, asked): (&[(&'static str, Decision, Decision)], usize),
    ) {
        for opens in [true, false] {
            let here =
                changed.iter().filter(|(_, was, now)| (now.effect() < was.effect()) == opens);
            let here: Vec<_> = here.collect();
            let Some((_, was, now)) = here.first() else { continue };
            let change = Change {
                opens,
                access,
                operations: here.iter().map(|(word, ..)| *word).collect(),
                whole: here.len() == asked,
                path: entry.path.clone(),
                to: None,
                agents: Vec::new(),
                seen,
                old: was.clone(),
                new: now.clone(),
            };
            self.add(agent, change);
        }
    }

    fn request(
        &mut self,
        old: &Policy,
        new: &Policy,
        request: &super::history::Recorded<'_>,
        known: &BTreeSet<&WorkspacePath>,
    ) {
        // Existing entries were compared with the tree, except for renames, which have two paths.
        if request.to.is_none() && known.contains(&request.path) {
            return;
        }
        let (was, now) = (request.decide(old), request.decide(new));
        if was.effect() == now.effect() {
            return;
        }
        let accesses = request.operation.accesses();
        let change = Change {
            opens: now.effect() < was.effect(),
            access: accesses.last().copied().unwrap_or(Access::Read),
            operations: vec![request.operation.as_str()],
            whole: false,
            path: request.path.clone(),
            to: request.to.clone(),
            agents: Vec::new(),
            seen: PathOrigin::Log { first: request.seq, records: 1 },
            old: was,
            new: now,
        };
        self.add(&request.agent, change);
    }

    fn add(&mut self, agent: &AgentName, change: Change) {
        let key = ChangeKey {
            closes: !change.opens,
            access: change.access,
            path: change.path.clone(),
            to: change.to.clone(),
            rules: (change.old.rule().to_owned(), change.new.rule().to_owned()),
            // An example is compared as a file and as a directory.
            operations: match change.seen {
                PathOrigin::Example => Vec::new(),
                _ => change.operations.clone(),
            },
        };
        let entry = self.0.entry(key).or_insert_with(|| change.clone());
        if change.seen == PathOrigin::Example {
            entry.whole &= change.whole;
            let more: Vec<_> =
                change.operations.iter().filter(|word| !entry.operations.contains(word)).collect();
            entry.operations.extend(more);
        }
        if let (PathOrigin::Log { first, records }, PathOrigin::Log { .. }) =
            (&mut entry.seen, change.seen)
            && !entry.agents.is_empty()
        {
            *records += 1;
            *first = (*first).min(match change.seen {
                PathOrigin::Log { first, .. } => first,
                _ => *first,
            });
        }
        if !entry.agents.iter().any(|known| known == agent.as_str()) {
            entry.agents.push(agent.to_string());
        }
    }

    fn changes(self, all: &[String]) -> Vec<Change> {
        let mut changes: Vec<_> = self.0.into_values().collect();
        for change in &mut changes {
            if all.iter().all(|agent| change.agents.contains(agent)) {
                change.agents.clear();
            }
        }
        changes
    }
}
