//! Comparison of an undo's steps with the current state.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use portcullis_audit::Hash;

use super::{
    Action, Error, History, Step,
    plan::Expected,
    simulate::{SimulatedEntry, Simulation},
};
use crate::{
    change::Change,
    gateway::{
        Backup, BackupId, BackupKind, BackupNodeKind, BackupStore, Fingerprint, Gateway,
        SomeAttributes, WorkspaceError,
    },
    model::{Access, OperationKind, Session, WorkspacePath},
    policy::{ObjectKind, Query},
};

/// Maximum number of steps among which those that cancel each other are searched.
const MAX_GROUPED: usize = 5000;

/// The status of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It can be taken.
    Ready,
    /// The state is already the one after the step.
    Done,
    /// Another change affected what it would replace; the text describes it.
    Conflict(String),
    /// It cannot be taken; the text says why.
    Impossible(String),
    /// The directory remains because it is not empty; the text says why.
    Stays(String),
    /// It depends on a step that is not taken.
    Depends,
}

/// The steps of an undo, compared with the current state.
#[derive(Debug, Default)]
pub struct Preview {
    /// The steps with their status.
    pub steps: Vec<(Step, Status)>,
    /// Number of changes that were undone before and need no step.
    pub undone: usize,
    /// The value of [`History::undo_of`].
    pub undo_of: BTreeSet<String>,
    /// The value of [`History::begins`].
    pub begins: Option<u64>,
}

impl Preview {
    /// Compares everything that `steps` would change with the current state. Changes nothing.
    ///
    /// # Errors
    /// If the workspace or the backup store cannot be read.
    pub fn new(
        gateway: &Gateway,
        session: &Session,
        history: &History,
        steps: Vec<Step>,
    ) -> Result<Self, Error> {
        let mut look = StateReader::new(gateway, session);
        let mut preview = Self {
            steps: Vec::new(),
            undone: history.undone,
            undo_of: history.undo_of.clone(),
            begins: history.begins,
        };
        for step in steps {
            let status = look.at(&step, Some(history))?;
            if !matches!(status, Status::Stays(_)) {
                look.simulation.take(&step);
            }
            preview.steps.push((step, status));
        }
        preview.settle(&look)?;
        Ok(preview)
    }

    /// Marks related steps as done if together they lead to the current state: changes that were
    /// undone since, and their undos.
    fn settle(&mut self, look: &StateReader<'_>) -> Result<(), Error> {
        if self.steps.len() > MAX_GROUPED {
            return Ok(());
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (place, (step, _)) in self.steps.iter().enumerate() {
            let mut own = vec![place];
            groups.retain_mut(|group| {
                let related = group
                    .iter()
                    .filter_map(|other| self.steps.get(*other))
                    .any(|(other, _)| step.paths().into_iter().any(|path| other.concerns(path)));
                if related {
                    own.append(group);
                }
                !related
            });
            groups.push(own);
        }
        for group in groups.iter().filter(|group| group.len() > 1) {
            let mut already = true;
            for (step, status) in group.iter().filter_map(|place| self.steps.get(*place)) {
                // Equal paths do not imply equal attributes.
                let is_set = !matches!(step.action, Action::SetAttributes(_));
                already = already && (is_set || *status == Status::Done);
                for path in step.paths() {
                    already = already && look.is_final(path)?;
                }
            }
            for place in group.iter().filter(|_| already) {
                if let Some((_, status)) = self.steps.get_mut(*place) {
                    *status = Status::Done;
                }
            }
        }
        Ok(())
    }

    /// Counts the steps whose status meets a condition.
    pub fn count(&self, what: impl Fn(&Status) -> bool) -> usize {
        self.steps.iter().filter(|(_, status)| what(status)).count()
    }
}

/// Compares one step with the current state, just before it is taken.
pub(super) fn now(gateway: &Gateway, session: &Session, step: &Step) -> Result<Status, Error> {
    StateReader::new(gateway, session).at(step, None)
}

/// Returns the backup that a step restores, if it still exists.
pub(super) fn entry(
    backup_store: &BackupStore,
    path: &WorkspacePath,
    id: BackupId,
) -> Result<Option<Backup>, Error> {
    if let Some(entry) = backup_store.entry_of(path, &id)? {
        return Ok(Some(entry));
    }
    // It is stored under the other path of a rename.
    match backup_store.find(&id.to_string()) {
        Ok(entry) => Ok(Some(entry)),
        Err(crate::gateway::BackupError::Unknown(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

struct StateReader<'a> {
    gateway: &'a Gateway,
    session: &'a Session,
    simulation: Simulation,
    /// The nodes of restored trees, by path and backup.
    trees: RefCell<HashMap<(WorkspacePath, BackupId), Rc<Nodes>>>,
    /// Attributes that earlier steps set on entries of the disk.
    set: HashMap<WorkspacePath, SomeAttributes>,
}

type Nodes = BTreeMap<WorkspacePath, CurrentState>;

/// The state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CurrentState {
    Missing,
    /// A content, with its mode if that can be compared.
    Content(Hash, Option<u32>),
    /// Neither a file, a link nor a directory, or not reachable by this path.
    Odd,
    /// An unchanged entry of a tree from a backup.
    AsKept,
}

impl<'a> StateReader<'a> {
    fn new(gateway: &'a Gateway, session: &'a Session) -> Self {
        Self {
            gateway,
            session,
            simulation: Simulation::default(),
            trees: RefCell::default(),
            set: HashMap::new(),
        }
    }

    /// Returns the nodes of a tree in a backup as they are after it is restored at `root`.
    fn nodes(&self, root: &WorkspacePath, id: BackupId) -> Result<Rc<Nodes>, Error> {
        let key = (root.clone(), id);
        if let Some(nodes) = self.trees.borrow().get(&key) {
            return Ok(Rc::clone(nodes));
        }
        let mut nodes = Nodes::new();
        let entry = entry(self.gateway.backups(), root, id)?;
        if let Some(entry) = entry.filter(|entry| entry.kind == BackupKind::Tree) {
            let mut tree = self.gateway.backups().tree(&entry)?.at(root.clone());
            while let Some(node) = tree.next_node()? {
                let Ok(path) = tree.path(&node) else { continue };
                let mode = node.attributes.as_ref().map(|attributes| attributes.mode & 0o777);
                let there = match (node.kind, node.sha256, &node.target) {
                    (BackupNodeKind::File, Some(sha256), _) => CurrentState::Content(sha256, mode),
                    (BackupNodeKind::Link, _, Some(target)) => {
                        CurrentState::Content(Hash::of(target), None)
                    }
                    _ => CurrentState::AsKept,
                };
                nodes.insert(path, there);
            }
        }
        let nodes = Rc::new(nodes);
        self.trees.borrow_mut().insert(key, Rc::clone(&nodes));
        Ok(nodes)
    }

    /// True if the current state of a path is the one after all steps.
    fn is_final(&self, path: &WorkspacePath) -> Result<bool, Error> {
        let disk = || on_disk_at(self.gateway, path);
        match self.simulation.find(path) {
            SimulatedEntry::Missing => Ok(disk()? == CurrentState::Missing),
            SimulatedEntry::Disk(on_disk) => Ok(on_disk == *path),
            SimulatedEntry::Inside(..) => Ok(false),
            SimulatedEntry::Backup(_) if self.simulation.changed_beneath([path, path]) => Ok(false),
            SimulatedEntry::Backup(id) => match entry(self.gateway.backups(), path, id)? {
                Some(entry) => self.is_same(&entry, &disk()?),
                None => Ok(false),
            },
        }
    }

    fn at(&mut self, step: &Step, history: Option<&History>) -> Result<Status, Error> {
        if let Some(rule) = self.denied(step) {
            return Ok(Status::Impossible(format!("denied by rule `{rule}`")));
        }
        match &step.action {
            Action::Rename { from } => self.rename(step, from, history),
            Action::Exchange { with } => self.exchange(step, with, history),
            Action::RemoveDirectory => self.directory(&step.path),
            Action::SetAttributes(before) => self.attributes(step, before, history),
            Action::Remove => {
                let there = self.there(&step.path)?;
                if there == CurrentState::Missing {
                    return Ok(Status::Done);
                }
                Ok(self.compare(step, &there, history))
            }
            Action::Restore(id) => {
                let entry = match entry(self.gateway.backups(), &step.path, *id) {
                    Ok(Some(entry)) => entry,
                    Ok(None) => {
                        let gone = format!("backup {id} is no longer kept");
                        return Ok(Status::Impossible(gone));
                    }
                    Err(Error::Backups(error @ crate::gateway::BackupError::Damaged(_))) => {
                        return Ok(Status::Impossible(error.to_string()));
                    }
                    Err(error) => return Err(error),
                };
                let there = self.there(&step.path)?;
                if self.is_same(&entry, &there)? {
                    return Ok(Status::Done);
                }
                Ok(self.compare(step, &there, history))
            }
        }
    }

    /// Returns the rule that denies a step by its names.
    fn denied(&self, step: &Step) -> Option<String> {
        let ask = |operation, access, path: &WorkspacePath| {
            let query = Query { agent: &self.session.agent, operation, access, path };
            let decision = self.gateway.policy().evaluate(&query);
            (!decision.is_allow()).then(|| decision.rule().to_owned())
        };
        use OperationKind as O;
        match &step.action {
            Action::Restore(_) => ask(O::Restore, Access::Write, &step.path),
            Action::Remove | Action::RemoveDirectory => ask(O::Remove, Access::Remove, &step.path),
            Action::SetAttributes(_) => ask(O::SetAttributes, Access::Write, &step.path),
            Action::Rename { from } => ask(O::Rename, Access::Remove, from)
                .or_else(|| ask(O::Rename, Access::Write, &step.path))
                .or_else(|| {
                    let policy = self.gateway.policy();
                    let agent = &self.session.agent;
                    let decision = policy.evaluate_move(agent, from, &step.path, None);
                    (!decision.is_allow()).then(|| decision.rule().to_owned())
                }),
            Action::Exchange { with } => [with, &step.path].into_iter().find_map(|path| {
                ask(O::Rename, Access::Remove, path).or_else(|| ask(O::Rename, Access::Write, path))
            }),
        }
    }

    fn rename(
        &self,
        step: &Step,
        from: &WorkspacePath,
        history: Option<&History>,
    ) -> Result<Status, Error> {
        let (source, target) = (self.exists(from)?, self.exists(&step.path)?);
        Ok(match (source, target) {
            (true, false) => Status::Ready,
            (false, true) => Status::Done,
            (true, true) => {
                Status::Conflict(format!("something is there now{}", self.who(step, history)))
            }
            (false, false) => Status::Impossible(format!(
                "`{from}` is no longer there{}",
                self.who(step, history)
            )),
        })
    }

    /// Compares an exchange. The two entries cannot be distinguished, so their positions are not
    /// checked.
    fn exchange(
        &self,
        step: &Step,
        with: &WorkspacePath,
        history: Option<&History>,
    ) -> Result<Status, Error> {
        for path in [with, &step.path] {
            if !self.exists(path)? {
                let who = self.who(step, history);
                return Ok(Status::Impossible(format!("`{path}` is no longer there{who}")));
            }
        }
        Ok(Status::Ready)
    }

    /// Compares attributes. Nothing is known beforehand of an entry that is removed or comes from a
    /// backup. A different time is no conflict: earlier steps set it, too.
    fn attributes(
        &mut self,
        step: &Step,
        before: &SomeAttributes,
        history: Option<&History>,
    ) -> Result<Status, Error> {
        let on_disk = match self.simulation.find(&step.path) {
            SimulatedEntry::Missing => return Ok(Status::Done),
            SimulatedEntry::Backup(_) | SimulatedEntry::Inside(..) => return Ok(Status::Ready),
            SimulatedEntry::Disk(on_disk) => on_disk,
        };
        let stat = match self.gateway.workspace().stat(&on_disk) {
            Ok(stat) => stat,
            Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => {
                return Ok(Status::Done);
            }
            Err(_) => return Ok(Status::Impossible("something else is in the way".to_owned())),
        };
        let set = self.set.entry(on_disk).or_default();
        // An earlier step may have changed the attributes.
        let there = SomeAttributes {
            mode: before.mode.map(|_| set.mode.unwrap_or(stat.mode)),
            modified: before.modified.map(|_| set.modified.unwrap_or(stat.modified)),
        };
        let is_set = set.mode.is_some();
        *set = before.or(*set);
        if there == *before {
            return Ok(Status::Done);
        }
        Ok(match step.expected {
            Expected::Attributes(after)
                // In the check before a step, earlier steps may have set the mode.
                if history.is_some()
                    && !is_set
                    && after.mode.is_some_and(|mode| mode != stat.mode) =>
            {
                Status::Conflict(format!("its mode was changed since{}", self.who(step, history)))
            }
            _ => Status::Ready,
        })
    }

    /// Compares the removal of a directory, which requires that all its entries are removed.
    fn directory(&self, path: &WorkspacePath) -> Result<Status, Error> {
        let on_disk = match self.simulation.find(path) {
            SimulatedEntry::Missing => return Ok(Status::Done),
            SimulatedEntry::Backup(id) => return self.kept_directory(path, path, id),
            SimulatedEntry::Inside(root, id, inside) => {
                return self.kept_directory(&root, &inside, id);
            }
            SimulatedEntry::Disk(on_disk) => on_disk,
        };
        let listing = match self.gateway.workspace().list(&on_disk) {
            Ok(listing) => listing,
            Err(WorkspaceError::NotFound) => return Ok(Status::Done),
            Err(error @ WorkspaceError::TooLarge) => return Err(error.into()),
            Err(_) => return Ok(Status::Stays("it is no directory any more".to_owned())),
        };
        if listing.not_utf8 > 0 {
            return Ok(Status::Stays("something else is in it".to_owned()));
        }
        for (name, _) in &listing.entries {
            let Ok(child) = path.join(name) else { continue };
            if self.exists(&child)? {
                return Ok(Status::Stays(format!("`{child}` is in it")));
            }
        }
        Ok(Status::Ready)
    }

    /// Compares the removal of a directory in a restored tree.
    fn kept_directory(
        &self,
        root: &WorkspacePath,
        path: &WorkspacePath,
        id: BackupId,
    ) -> Result<Status, Error> {
        let nodes = self.nodes(root, id)?;
        if !nodes.contains_key(path) {
            return Ok(Status::Done);
        }
        for child in nodes.keys().filter(|node| node.parent().as_ref() == Some(path)) {
            if self.exists(child)? {
                return Ok(Status::Stays(format!("`{child}` is in it")));
            }
        }
        Ok(Status::Ready)
    }

    fn compare(&self, step: &Step, there: &CurrentState, history: Option<&History>) -> Status {
        let who = || self.who(step, history);
        match (&step.expected, there) {
            (Expected::Any | Expected::Attributes(_), _) | (_, CurrentState::AsKept) => {
                Status::Ready
            }
            (Expected::Missing, CurrentState::Missing) => Status::Ready,
            (Expected::Content(hash), CurrentState::Content(found, _)) if hash == found => {
                Status::Ready
            }
            (Expected::Missing, _) => Status::Conflict(format!("something is there now{}", who())),
            (_, CurrentState::Missing) => {
                Status::Conflict(format!("it was removed since{}", who()))
            }
            (_, CurrentState::Odd) => Status::Conflict("something else is in the way".to_owned()),
            _ => Status::Conflict(format!("it was changed since{}", who())),
        }
    }

    /// Names the change that may have affected what a step would replace.
    fn who(&self, step: &Step, history: Option<&History>) -> String {
        let Some(history) = history else { return String::new() };
        let newest = step.records.first().copied().unwrap_or(0);
        let later = |change: &&Change| {
            change.seq > newest && step.paths().into_iter().any(|path| change.touches(path))
        };
        match history.others.iter().rev().find(later) {
            Some(change) => format!(", by record {} (agent {})", change.seq, change.agent),
            None => ", by something that is not in the log".to_owned(),
        }
    }

    /// True if the current state is the one after restoring the backup.
    fn is_same(&self, entry: &Backup, there: &CurrentState) -> Result<bool, Error> {
        let CurrentState::Content(found, mode) = there else { return Ok(false) };
        if entry.kind == BackupKind::Tree {
            let tree = self.gateway.backups().tree(entry)?;
            return Ok(tree.restored_fingerprint()? == *found);
        }
        let kept = entry.restored_mode();
        Ok(entry.sha256 == *found && (kept.is_none() || mode.is_none() || kept == *mode))
    }

    fn there(&self, path: &WorkspacePath) -> Result<CurrentState, Error> {
        match self.simulation.find(path) {
            SimulatedEntry::Missing => Ok(CurrentState::Missing),
            SimulatedEntry::Disk(on_disk) => {
                // Earlier steps change the tree; it is compared again just before the step.
                if self.simulation.changed_beneath([path, &on_disk])
                    && is_directory(self.gateway, &on_disk)
                {
                    return Ok(CurrentState::AsKept);
                }
                on_disk_at(self.gateway, &on_disk)
            }
            SimulatedEntry::Inside(root, id, inside) => {
                Ok(self.nodes(&root, id)?.get(&inside).cloned().unwrap_or(CurrentState::Missing))
            }
            SimulatedEntry::Backup(id) => Ok(match entry(self.gateway.backups(), path, id)? {
                Some(entry) if entry.kind != BackupKind::Tree => {
                    CurrentState::Content(entry.sha256, None)
                }
                _ => CurrentState::AsKept,
            }),
        }
    }

    fn exists(&self, path: &WorkspacePath) -> Result<bool, Error> {
        match self.simulation.find(path) {
            SimulatedEntry::Missing => Ok(false),
            SimulatedEntry::Backup(_) => Ok(true),
            SimulatedEntry::Inside(root, id, inside) => {
                Ok(self.nodes(&root, id)?.contains_key(&inside))
            }
            SimulatedEntry::Disk(on_disk) => {
                match self.gateway.workspace().stat(&on_disk) {
                    // The path of a link that leads elsewhere exists, too.
                    Ok(_) | Err(WorkspaceError::Moved) => Ok(true),
                    Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

pub(super) fn is_directory(gateway: &Gateway, path: &WorkspacePath) -> bool {
    gateway.workspace().stat(path).is_ok_and(|stat| stat.kind == ObjectKind::Directory)
}

fn on_disk_at(gateway: &Gateway, path: &WorkspacePath) -> Result<CurrentState, Error> {
    // Larger contents were never backed up.
    let most = gateway.backups().retention().size;
    Ok(match gateway.workspace().fingerprint(path, most)? {
        Fingerprint::Missing => CurrentState::Missing,
        Fingerprint::File(hash, mode) => CurrentState::Content(hash, Some(mode)),
        Fingerprint::Other(hash) => CurrentState::Content(hash, None),
        Fingerprint::Unsupported => CurrentState::Odd,
    })
}
