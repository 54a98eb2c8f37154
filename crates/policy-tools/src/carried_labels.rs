//! Labels that sandboxes carry, followed through a log: as gateways enforce them, and as they would
//! if they carried labels on.
//!
//! The labels are those of the policy that is tried. A log names no file of which a search in a
//! directory found nothing, and nothing in an agent's home or repository.

use std::collections::{BTreeMap, HashMap};

use portcullis_audit::{AuditRecord, Draft, Kind};
use serde_json::Value;

use crate::{
    model::{OperationKind, WorkspacePath},
    policy::{LabelIds, Labels},
};

/// The places to which a label is carried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarriedOn {
    /// None, as enforced: a label is carried by the sandbox that was shown its content.
    Nowhere,
    /// The files that such a sandbox writes.
    Files,
    /// These, and all sandboxes of the same agent, which share its home.
    Sessions,
}

/// The carriers in a log, for each extent to which labels are carried on.
#[derive(Debug)]
pub(crate) struct Carriers<'p> {
    labels: &'p Labels,
    extents: [Extent; 3],
}

/// Boot and agent. In `serve` agents share a gateway, and each carries for itself.
type SandboxKey = (String, String);

#[derive(Debug)]
struct Extent {
    to: CarriedOn,
    sandboxes: HashMap<SandboxKey, Carrier>,
    agents: HashMap<String, LabelIds>,
    files: BTreeMap<WorkspacePath, LabelIds>,
}

#[derive(Debug, Default)]
struct Carrier {
    labels: LabelIds,
    /// True if it has a record in the period.
    counts: bool,
}

impl<'p> Carriers<'p> {
    pub(crate) fn new(labels: &'p Labels) -> Self {
        let extents = [CarriedOn::Nowhere, CarriedOn::Files, CarriedOn::Sessions].map(Extent::new);
        Self { labels, extents }
    }

    /// Takes the next record of the log; `counts` says that it is in the period.
    pub(crate) fn follow(&mut self, record: &AuditRecord, counts: bool) {
        let AuditRecord { kind, draft, .. } = record;
        let is_request = matches!(kind, Kind::Decision | Kind::Intent);
        let (Some(boot), Some(agent)) = (&draft.boot, &draft.agent) else { return };
        if self.labels.is_empty() || !is_request {
            return;
        }
        let sandbox = (boot.clone(), agent.clone());
        for extent in &mut self.extents {
            extent.begin(&sandbox, counts);
            if draft.decision.as_deref() != Some("deny") {
                extent.follow(self.labels, &sandbox, (*kind == Kind::Intent, draft));
            }
        }
    }

    /// Returns the labels that the sandbox of a record carries.
    pub(crate) fn carried(&self, to: CarriedOn, boot: &str, agent: &str) -> LabelIds {
        let sandbox = (boot.to_owned(), agent.to_owned());
        let carrier = self.extent(to).sandboxes.get(&sandbox);
        carrier.map(|carrier| carrier.labels.clone()).unwrap_or_default()
    }

    /// Returns the number of sandboxes that carry more labels than those of content that they were
    /// shown.
    pub(crate) fn further_sandboxes(&self, to: CarriedOn) -> u64 {
        let enforced = &self.extent(CarriedOn::Nowhere).sandboxes;
        let more = self.extent(to).sandboxes.iter().filter(|(sandbox, carrier)| {
            let shown = enforced.get(*sandbox).map(|carrier| &carrier.labels);
            carrier.counts && shown != Some(&carrier.labels)
        });
        more.count() as u64
    }

    /// Returns the number of files that have a label which their path does not have.
    pub(crate) fn labelled_files(&self, to: CarriedOn) -> u64 {
        self.extent(to).files.len() as u64
    }

    fn extent(&self, to: CarriedOn) -> &Extent {
        let [nowhere, files, sessions] = &self.extents;
        match to {
            CarriedOn::Nowhere => nowhere,
            CarriedOn::Files => files,
            CarriedOn::Sessions => sessions,
        }
    }
}

impl Extent {
    fn new(to: CarriedOn) -> Self {
        Self { to, sandboxes: HashMap::new(), agents: HashMap::new(), files: BTreeMap::new() }
    }

    /// Has a sandbox carry what others of its agent carry, if they do.
    fn begin(&mut self, sandbox: &SandboxKey, counts: bool) {
        let carrier = self.sandboxes.entry(sandbox.clone()).or_default();
        carrier.counts |= counts;
        carrier.labels.extend(self.agents.get(&sandbox.1).into_iter().flatten().cloned());
    }

    fn follow(
        &mut self,
        labels: &Labels,
        sandbox: &SandboxKey,
        (is_change, record): (bool, &Draft),
    ) {
        use OperationKind as O;
        let parse = |path: Option<&str>| WorkspacePath::parse(path?).ok();
        let path = parse(record.resolved.as_deref().or(record.path.as_deref()));
        if record.op.as_deref() == Some("label") {
            let named = record.facts.as_ref().and_then(|facts| facts.get("labels")?.as_object());
            for path in named.into_iter().flat_map(|named| named.values()).filter_map(Value::as_str)
            {
                self.shown(labels, sandbox, parse(Some(path)));
            }
        }
        let Some(operation) = record.op.as_ref().and_then(|op| op.parse().ok()) else { return };
        match operation {
            O::Read => {
                self.shown(
                    labels,
                    sandbox,
                    path.filter(|_| record.result.as_deref() == Some("ok")),
                );
            }
            O::Grep => self.shown(labels, sandbox, path.filter(|_| record.before.is_some())),
            O::Edit => {
                self.shown(labels, sandbox, path.clone());
                self.wrote(labels, sandbox, path.filter(|_| is_change));
            }
            O::Write | O::Append => self.wrote(labels, sandbox, path.filter(|_| is_change)),
            O::Rename => {
                if let (true, Some(from), Some(to)) = (is_change, path, parse(record.to.as_deref()))
                {
                    let facts = record.facts.as_ref();
                    let is_exchange = facts.is_some_and(|facts| facts.contains_key("exchange"));
                    self.renamed(labels, sandbox, [&from, &to], is_exchange);
                }
            }
            O::Remove => {
                if let Some(path) = path.filter(|_| is_change) {
                    self.files.retain(|file, _| !file.is_within(&path));
                }
            }
            O::List | O::Stat | O::Glob | O::Watch | O::Mkdir | O::SetAttributes => {}
            O::Symlink | O::Restore | O::Connect | O::Command => {}
        }
    }

    /// Has a sandbox carry the labels of content that it was shown.
    fn shown(&mut self, labels: &Labels, sandbox: &SandboxKey, path: Option<WorkspacePath>) {
        let Some(path) = path else { return };
        let mut found: LabelIds = labels.of(&path).ids().map(str::to_owned).collect();
        found.extend(self.files.get(&path).into_iter().flatten().cloned());
        self.carry(sandbox, found);
    }

    fn carry(&mut self, sandbox: &SandboxKey, found: LabelIds) {
        if found.is_empty() {
            return;
        }
        if self.to == CarriedOn::Sessions {
            self.agents.entry(sandbox.1.clone()).or_default().extend(found.iter().cloned());
        }
        self.sandboxes.entry(sandbox.clone()).or_default().labels.extend(found);
    }

    /// Gives a file what the sandbox that wrote it carries. It keeps what it had, since a record
    /// does not say whether all of it was replaced.
    fn wrote(&mut self, labels: &Labels, sandbox: &SandboxKey, path: Option<WorkspacePath>) {
        let Some(path) = path.filter(|_| self.to != CarriedOn::Nowhere) else { return };
        let carried = self.sandboxes.get(sandbox).map(|carrier| &carrier.labels);
        let own = labels.of(&path);
        let is_new = |id: &&String| !own.ids().any(|own| own == *id);
        let new: LabelIds = carried.into_iter().flatten().filter(is_new).cloned().collect();
        if !new.is_empty() {
            self.files.entry(path).or_default().extend(new);
        }
    }

    /// A rename that takes content away from its label counts as a read of it; what a file has
    /// goes with it.
    fn renamed(
        &mut self,
        labels: &Labels,
        sandbox: &SandboxKey,
        [from, to]: [&WorkspacePath; 2],
        is_exchange: bool,
    ) {
        for (path, new) in std::iter::once((from, to)).chain(is_exchange.then_some((to, from))) {
            let kept = labels.of(new);
            let lost = labels.of(path).filtered(|id| !kept.ids().any(|kept| kept == id));
            self.carry(sandbox, lost.ids().map(str::to_owned).collect());
        }
        let one = self.take_within(from);
        let other = self.take_within(to);
        // What a rename replaces is gone.
        let other = other.into_iter().filter(|_| is_exchange);
        let other = other.filter_map(|(file, ids)| Some((file.rebase(to, from)?, ids)));
        self.files
            .extend(one.into_iter().filter_map(|(file, ids)| Some((file.rebase(from, to)?, ids))));
        self.files.extend(other);
    }

    fn take_within(&mut self, directory: &WorkspacePath) -> BTreeMap<WorkspacePath, LabelIds> {
        self.files.extract_if(.., |file, _| file.is_within(directory)).collect()
    }
}
