//! `policy explain --who AGENT --can OPERATION`: all entries of the workspace for which
//! the agent may use the operation, as a tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    str::FromStr,
};

use serde_json::json;

use crate::{
    app::{
        failure::{Context as _, Failure},
        options::Common,
        policy_loading::{load, warn_of_observing},
        workspace::open_workspace,
    },
    cli::render::unknown_word,
    model::{AgentName, Quoted},
    policy::{Decision, Effect, ObjectKind, Policy},
    policy_tools::{EntryOperation, Tree, decide_entry, is_entered},
};

/// The operation in question.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllowedOperation(EntryOperation);

impl FromStr for AllowedOperation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The second name of a rename and restores are of no interest here.
        let asked = |operation: &EntryOperation| {
            !matches!(operation, EntryOperation::RenameTo | EntryOperation::Restore)
        };
        let known = EntryOperation::ALL.into_iter().filter(asked);
        known
            .clone()
            .find(|operation| operation.as_str() == text)
            .map(Self)
            .ok_or_else(|| unknown_word(text, known.map(EntryOperation::as_str)))
    }
}

impl AllowedOperation {
    /// Returns the equivalent operations: a file counts as readable, too, if only a
    /// search may show its lines.
    fn ways(&self) -> &[EntryOperation] {
        match &self.0 {
            EntryOperation::Read => &[EntryOperation::Read, EntryOperation::Grep],
            operation => std::slice::from_ref(operation),
        }
    }
}

/// A file, or a directory with its entries.
#[derive(Default)]
struct Node {
    children: BTreeMap<String, Node>,
    /// The number of entries beneath it, itself included, to which the operation
    /// applies.
    asked: usize,
    /// The number of those that are allowed.
    allowed: usize,
    /// The number of the allowed ones that need an approval.
    asks: usize,
    /// The number of the allowed ones that only observe mode allows.
    observed: usize,
}

pub(super) fn run(
    common: &Common,
    agent: &AgentName,
    can: AllowedOperation,
    json: bool,
) -> Result<ExitCode, Failure> {
    let policy = load(&common.policy)?;
    let workspace = open_workspace(&common.workspace)?;
    let tree = Tree::of(&workspace).or_fail("cannot look at the workspace")?;
    let AllowedOperation(operation) = can;
    let mut root = Node::default();
    let (mut paths, mut asks, mut observed) = (Vec::new(), Vec::new(), Vec::new());
    // No glob begins at a file, so one is found only where its directory is entered.
    let mut closed = BTreeSet::new();
    for entry in &tree.entries {
        if operation == EntryOperation::Glob
            && entry.object.kind == ObjectKind::Directory
            && !is_entered(&policy, agent, operation, entry)
        {
            closed.insert(entry.path.clone());
        }
        let is_closed = entry.path.parent().is_some_and(|parent| closed.contains(&parent));
        let ways = can.ways().iter();
        let judged = ways
            .filter_map(|way| decide_entry(&policy, agent, *way, entry))
            .map(|decision| if is_closed { decision.denying() } else { decision });
        let can = judged.min_by_key(|decision| (decision.effect(), decision.would_deny()));
        // A directory is removed with its entries, so they count instead of it.
        let counts = can.filter(|_| {
            entry.object.kind != ObjectKind::Directory
                || matches!(operation, EntryOperation::List | EntryOperation::Mkdir)
        });
        root.add(&mut entry.path.components(), counts.as_ref());
        let Some(decision) = counts else { continue };
        match decision.effect() {
            Effect::Allow if decision.would_deny() => observed.push(entry.path.relative()),
            Effect::Allow => paths.push(entry.path.relative()),
            Effect::Ask => asks.push(entry.path.relative()),
            Effect::Deny => {}
        }
    }
    warn_of_observing(&policy);
    if json {
        let report = json!({
            "agent": agent.as_str(),
            "can": operation.as_str(),
            "policy": { "name": policy.name(), "version": policy.version(), "sha256": policy.sha256() },
            "mode": policy.mode().as_str(),
            "paths": paths,
            "asks": asks,
            "observed": observed,
            "of": root.asked,
            "notServed": tree.not_served,
        });
        outjson!(report);
        return Ok(ExitCode::SUCCESS);
    }
    print(&policy, agent, operation, &root, tree.not_served);
    Ok(ExitCode::SUCCESS)
}

impl Node {
    fn add<'p>(&mut self, components: &mut impl Iterator<Item = &'p str>, can: Option<&Decision>) {
        let is = |matches: fn(&Decision) -> bool| usize::from(can.is_some_and(matches));
        self.asked += usize::from(can.is_some());
        self.allowed += is(|can| can.effect() != Effect::Deny);
        self.asks += is(|can| can.effect() == Effect::Ask);
        self.observed += is(Decision::would_deny);
        if let Some(name) = components.next() {
            self.children.entry(name.to_owned()).or_default().add(components, can);
        }
    }

    /// Prints the entries beneath. A directory whose entries are all allowed or all
    /// denied is one line.
    fn print(&self, indent: &str) {
        let shown: Vec<_> = self.children.iter().filter(|(_, node)| node.allowed > 0).collect();
        for (number, (name, node)) in shown.iter().enumerate() {
            let last = number + 1 == shown.len();
            let (branch, deeper) =
                if last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let name = Quoted(name);
            let alike = [node.asks, node.observed].iter().all(|n| [0, node.asked].contains(n));
            let mark = match (node.asks, node.observed) {
                (1.., _) => "  asks",
                (_, 1..) => "  observed",
                _ => "",
            };
            if node.children.is_empty() {
                outln!("{indent}{branch}{name}{mark}");
            } else if node.allowed == node.asked && alike {
                outln!("{indent}{branch}{name}/  all {}{mark}", node.asked);
            } else {
                outln!("{indent}{branch}{name}/  {} of {}", node.allowed, node.asked);
                node.print(&format!("{indent}{deeper}"));
            }
        }
    }
}

fn print(
    policy: &Policy,
    agent: &AgentName,
    operation: EntryOperation,
    root: &Node,
    not_served: u64,
) {
    let what = if matches!(operation, EntryOperation::List | EntryOperation::Mkdir) {
        "directories"
    } else {
        "files"
    };
    outln!(
        "agent `{agent}` can {} {} of {} {what} (policy `{}` version {})",
        operation.as_str(),
        root.allowed,
        root.asked,
        policy.name(),
        policy.version(),
    );
    if root.asks > 0 {
        outln!("{} of them once a person agrees, marked `asks`", root.asks);
    }
    if root.observed > 0 {
        outln!("{} of them while the policy observes, marked `observed`", root.observed);
    }
    if root.allowed > 0 {
        outln!(".");
        root.print("");
    }
    if not_served > 0 {
        outln!("not served and not counted: {not_served}");
    }
}
