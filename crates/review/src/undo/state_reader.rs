//! The current state of the paths that an undo's steps would change, and its comparison with a
//! step.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use super::{
    Action, Error, History, Step,
    path_index::PathIndex,
    plan::{Expected, ExpectedMode},
    preview::Status,
    simulate::{SimulatedEntry, Simulation},
    state::{self, CurrentState, Nodes, entry, is_directory, on_disk_at},
};
use crate::{
    change::Change,
    gateway::{
        self, Backup, BackupId, BackupKind, EntryIdentity, Gateway, MovedEntry, SomeAttributes,
        WorkspaceError,
    },
    model::{
        Session, WorkspacePath,
        request::{AsOperation as _, Remove, Rename, Restore, SetAttributes},
    },
    policy::ObjectKind,
};

/// Reads the current state of paths, as it is after the steps that were taken in a simulation.
pub(super) struct StateReader<'a> {
    gateway: &'a Gateway,
    session: &'a Session,
    /// The log's changes, which name the reasons of conflicts; none just before a step is taken.
    history: Option<&'a History>,
    index: PathIndex<'a>,
    pub(super) simulation: Simulation,
    /// The nodes of restored trees, by path and backup.
    trees: RefCell<HashMap<(WorkspacePath, BackupId), Rc<Nodes>>>,
    /// Attributes that earlier steps set on entries of the disk.
    set: HashMap<WorkspacePath, SomeAttributes>,
}

impl<'a> StateReader<'a> {
    pub(super) fn new(
        gateway: &'a Gateway,
        session: &'a Session,
        history: Option<&'a History>,
    ) -> Self {
        Self {
            gateway,
            session,
            history,
            index: history.map(PathIndex::of).unwrap_or_default(),
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
        let nodes = Rc::new(state::nodes(self.gateway.backups(), root, id)?);
        self.trees.borrow_mut().insert(key, Rc::clone(&nodes));
        Ok(nodes)
    }

    /// True if the current state of a path is the one after all steps.
    pub(super) fn is_final(&self, path: &WorkspacePath) -> Result<bool, Error> {
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

    /// Returns the status of a step, which is impossible if something that it needs cannot be read.
    pub(super) fn at(&mut self, step: &Step) -> Status {
        self.status(step).unwrap_or_else(|error| Status::Impossible(error.to_string()))
    }

    fn status(&mut self, step: &Step) -> Result<Status, Error> {
        let status = self.compared(step)?;
        let denied = match status {
            Status::Ready | Status::Conflict(_) => self.denied(step)?,
            _ => None,
        };
        Ok(denied.map_or(status, Status::Impossible))
    }

    /// Compares a step with the current state.
    fn compared(&mut self, step: &Step) -> Result<Status, Error> {
        match &step.action {
            Action::Rename { from } => self.rename(step, from),
            Action::Exchange { with } => self.exchange(step, with),
            Action::RemoveDirectory => self.directory(&step.path),
            Action::SetAttributes(before) => self.attributes(step, before),
            Action::Remove => {
                let there = self.there(&step.path)?;
                if there == CurrentState::Missing {
                    return Ok(Status::Unchanged);
                }
                Ok(self.compare(step, &there))
            }
            Action::Restore(id) => {
                let backup_store = self.gateway.backups();
                let Some(entry) = entry(backup_store, &step.path, *id)? else {
                    return Ok(Status::Impossible(format!("backup {id} is no longer stored")));
                };
                let there = self.there(&step.path)?;
                if self.is_same(&entry, &there)? {
                    return Ok(Status::Unchanged);
                }
                backup_store.verify(&entry)?;
                let status = self.compare(step, &there);
                if status == Status::Ready && self.has_other_mode(step, &entry, &there) {
                    return Ok(Status::Conflict(format!(
                        "its mode was changed since{}",
                        self.who(step)
                    )));
                }
                Ok(status)
            }
        }
    }

    /// True if a content to be replaced has other permission bits than the log says.
    fn has_other_mode(&self, step: &Step, entry: &Backup, there: &CurrentState) -> bool {
        let CurrentState::Content(_, mode @ Some(_)) = there else { return false };
        let expected = match step.mode {
            ExpectedMode::Kept => entry.restored_mode(),
            ExpectedMode::Set(mode) => Some(mode),
            ExpectedMode::Unknown => None,
        };
        // An earlier step sets them, and compares them itself.
        let is_set = match self.simulation.find(&step.path) {
            SimulatedEntry::Disk(on_disk) => self.set.contains_key(&on_disk),
            _ => true,
        };
        !is_set && expected.is_some() && expected != *mode
    }

    /// Returns the reason why a step is denied by its names, and by those of what it restores or
    /// moves.
    fn denied(&self, step: &Step) -> Result<Option<String>, Error> {
        let path = step.path.clone();
        let (gateway, session) = (self.gateway, self.session);
        let decided = match &step.action {
            Action::Restore(id) => {
                let restore = Restore { path, backup: id.to_string(), dry_run: false };
                gateway.decide_undo(session, restore.as_operation(), None)
            }
            Action::Remove | Action::RemoveDirectory => {
                let remove = Remove { path, recursive: true };
                gateway.decide_undo(session, remove.as_operation(), None)
            }
            Action::SetAttributes(_) => {
                let set = SetAttributes { path, mode: None, modified: None };
                gateway.decide_undo(session, set.as_operation(), None)
            }
            Action::Rename { from } => self.decide_move(from, &path)?,
            Action::Exchange { with } => {
                let asks = match self.decide_move(with, &path)? {
                    Ok(asks) => self.decide_move(&path, with)?.map(|other| asks || other),
                    denied => denied,
                };
                if asks == Ok(true) {
                    // Nobody can be asked about both at once.
                    return Ok(Some("denied by rule `exchange`".to_owned()));
                }
                asks
            }
        };
        Ok(decided.err().map(|error| error.to_string()))
    }

    /// Decides on a rename, and on everything that it moves if the disk has that now.
    fn decide_move(
        &self,
        from: &WorkspacePath,
        to: &WorkspacePath,
    ) -> Result<Result<bool, gateway::Error>, Error> {
        let rename = Rename { from: from.clone(), to: to.clone(), replace: false };
        let decide = |moved| self.gateway.decide_undo(self.session, rename.as_operation(), moved);
        let SimulatedEntry::Disk(on_disk) = self.simulation.find(from) else {
            return Ok(decide(None));
        };
        let workspace = self.gateway.workspace();
        let Ok(stat) = workspace.stat(&on_disk) else { return Ok(decide(None)) };
        let mut tree = match stat.kind {
            ObjectKind::Directory => workspace.walk(&on_disk)?,
            _ => Vec::new(),
        };
        tree.retain_mut(|walked| {
            let now = walked.path.rebase(&on_disk, from);
            now.map(|now| walked.path = now).is_some()
        });
        Ok(decide(Some(MovedEntry { object: stat.object(false), on_disk: &on_disk, tree: &tree })))
    }

    fn rename(&self, step: &Step, from: &WorkspacePath) -> Result<Status, Error> {
        let (source, target) = (self.exists(from)?, self.exists(&step.path)?);
        Ok(match (source, target) {
            (true, false) => self.replaced(step)?.map_or(Status::Ready, Status::Conflict),
            (false, true) => Status::Unchanged,
            (true, true) => Status::Conflict(format!("something is there now{}", self.who(step))),
            (false, false) => Status::Impossible(
                self.moved(step)
                    .unwrap_or_else(|| format!("`{from}` is no longer there{}", self.who(step))),
            ),
        })
    }

    /// Compares an exchange. Where the records do not name the entries, their positions are not
    /// checked.
    fn exchange(&self, step: &Step, with: &WorkspacePath) -> Result<Status, Error> {
        for path in [with, &step.path] {
            if !self.exists(path)? {
                let who = self.who(step);
                return Ok(Status::Impossible(format!("`{path}` is no longer there{who}")));
            }
        }
        Ok(self.replaced(step)?.map_or(Status::Ready, Status::Conflict))
    }

    /// Keeps the entries of a step that the disk must still have as the log says: those that no
    /// later change of the same sessions, no other undo and no earlier step of this one replaced or
    /// gave attributes.
    pub(super) fn keep_comparable(&self, step: &mut Step) {
        let newest = step.newest();
        step.entries.retain(|(path, _)| {
            let SimulatedEntry::Disk(on_disk) = self.simulation.find(path) else { return false };
            ![path, &on_disk].into_iter().any(|path| self.index.is_changed(path, newest))
        });
    }

    /// Returns the reason of a conflict if an entry of a step is not the one in the log.
    fn replaced(&self, step: &Step) -> Result<Option<String>, Error> {
        for (path, recorded) in &step.entries {
            let SimulatedEntry::Disk(on_disk) = self.simulation.find(path) else { continue };
            let now = match self.gateway.workspace().identity(&on_disk) {
                Ok(now) => Some(now),
                // A link is on the way now.
                Err(WorkspaceError::Moved) => None,
                Err(error) => return Err(error.into()),
            };
            let who = self.who(step);
            let Some(now) = now.filter(|now| recorded.is_same_object(now)) else {
                return Ok(Some(format!("something else has the name `{path}` now{who}")));
            };
            let is_moved = !matches!(step.action, Action::SetAttributes(_));
            if is_moved && !recorded.is_unchanged(&now) {
                return Ok(Some(format!("`{path}` was changed since{who}")));
            }
        }
        Ok(None)
    }

    /// Compares attributes. Nothing is known beforehand of an entry that is removed or comes from a
    /// backup. A different time is no conflict: earlier steps set it, too.
    fn attributes(&mut self, step: &Step, before: &SomeAttributes) -> Result<Status, Error> {
        let on_disk = match self.simulation.find(&step.path) {
            SimulatedEntry::Missing => return Ok(Status::Unchanged),
            SimulatedEntry::Backup(_) | SimulatedEntry::Inside(..) => return Ok(Status::Ready),
            SimulatedEntry::Disk(on_disk) => on_disk,
        };
        let stat = match self.gateway.workspace().stat(&on_disk) {
            Ok(stat) => stat,
            Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => {
                return Ok(Status::Unchanged);
            }
            Err(_) => return Ok(Status::Impossible("something else is in the way".to_owned())),
        };
        let replaced = self.replaced(step)?;
        let set = self.set.entry(on_disk).or_default();
        // An earlier step may have changed the attributes.
        let there = SomeAttributes {
            mode: before.mode.map(|_| set.mode.unwrap_or(stat.mode)),
            modified: before.modified.map(|_| set.modified.unwrap_or(stat.modified)),
        };
        let is_set = set.mode.is_some();
        *set = before.or(*set);
        if there == *before {
            return Ok(Status::Unchanged);
        }
        if let Some(reason) = replaced {
            return Ok(Status::Conflict(reason));
        }
        Ok(match step.expected {
            Expected::Attributes(after)
                // In the check before a step, earlier steps may have set the mode.
                if self.history.is_some()
                    && !is_set
                    && after.mode.is_some_and(|mode| mode != stat.mode) =>
            {
                Status::Conflict(format!("its mode was changed since{}", self.who(step)))
            }
            _ => Status::Ready,
        })
    }

    /// Compares the removal of a directory, which requires that all its entries are removed.
    fn directory(&self, path: &WorkspacePath) -> Result<Status, Error> {
        let on_disk = match self.simulation.find(path) {
            SimulatedEntry::Missing => return Ok(Status::Unchanged),
            SimulatedEntry::Backup(id) => return self.kept_directory(path, path, id),
            SimulatedEntry::Inside(root, id, inside) => {
                return self.kept_directory(&root, &inside, id);
            }
            SimulatedEntry::Disk(on_disk) => on_disk,
        };
        let listing = match self.gateway.workspace().list(&on_disk) {
            Ok(listing) => listing,
            Err(WorkspaceError::NotFound) => return Ok(Status::Unchanged),
            Err(error @ WorkspaceError::TooLarge) => return Err(error.into()),
            Err(_) => return Ok(Status::Skipped("it is no directory any more".to_owned())),
        };
        if listing.not_utf8 > 0 {
            return Ok(Status::Skipped("something else is in it".to_owned()));
        }
        for (name, _) in &listing.entries {
            let Ok(child) = path.join(name) else { continue };
            if self.exists(&child)? {
                return Ok(Status::Skipped(format!("`{child}` is in it")));
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
            return Ok(Status::Unchanged);
        }
        for child in nodes.keys().filter(|node| node.parent().as_ref() == Some(path)) {
            if self.exists(child)? {
                return Ok(Status::Skipped(format!("`{child}` is in it")));
            }
        }
        Ok(Status::Ready)
    }

    fn compare(&self, step: &Step, there: &CurrentState) -> Status {
        let who = || self.who(step);
        match (&step.expected, there) {
            // A directory remains because of what others put in it.
            (Expected::Missing, CurrentState::AsKept) => {
                Status::Conflict(format!("something is there now{}", who()))
            }
            (Expected::Any | Expected::Attributes(_), _) | (_, CurrentState::AsKept) => {
                Status::Ready
            }
            (Expected::Missing, CurrentState::Missing) => Status::Ready,
            (Expected::Content(hash), CurrentState::Content(found, _)) if hash == found => {
                Status::Ready
            }
            (Expected::Missing, _) => Status::Conflict(format!("something is there now{}", who())),
            (_, CurrentState::Missing) => Status::Conflict(
                self.moved(step).unwrap_or_else(|| format!("it was removed since{}", who())),
            ),
            (_, CurrentState::Odd) => Status::Conflict("something else is in the way".to_owned()),
            _ => Status::Conflict(format!("it was changed since{}", who())),
        }
    }

    /// Returns the other place of the entry that a step is about, if others moved it there.
    pub(super) fn moved(&self, step: &Step) -> Option<String> {
        let last = match &step.action {
            Action::Rename { from } => from,
            _ => &step.path,
        };
        let (path, change) = self.index.follow(last, step.newest())?;
        // The steps before it may have moved it back.
        let is_moved = match self.simulation.find(last) {
            SimulatedEntry::Disk(on_disk) => on_disk != path,
            _ => path != *last,
        };
        // It counts as there if it cannot be looked at.
        let is_there = |found: Result<bool, Error>| found.unwrap_or(true);
        let is_found =
            is_moved && (is_there(self.is_on_disk(&path)) || is_there(self.exists(&path)));
        let Change { seq, session, agent, .. } = change;
        is_found.then(|| {
            format!(
                "it was moved to `{path}`, by record {seq} of session {session} (agent {agent})"
            )
        })
    }

    /// Returns the entry at the path of a rename.
    pub(super) fn in_the_way(&self, step: &Step) -> Option<EntryIdentity> {
        let Action::Rename { .. } = step.action else { return None };
        let SimulatedEntry::Disk(on_disk) = self.simulation.find(&step.path) else { return None };
        self.gateway.workspace().identity(&on_disk).ok()
    }

    /// Names the change that may have affected what a step would replace.
    fn who(&self, step: &Step) -> String {
        if self.history.is_none() {
            return String::new();
        }
        let newest = step.newest();
        match self.index.last_other(step.paths()).filter(|change| change.seq > newest) {
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
        Ok(entry.sha256 == *found && (kept.is_none() || kept == *mode))
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
                let is_set = self.set.get(&on_disk).and_then(|set| set.mode);
                Ok(match on_disk_at(self.gateway, &on_disk)? {
                    CurrentState::Content(hash, Some(mode)) => {
                        CurrentState::Content(hash, Some(is_set.unwrap_or(mode)))
                    }
                    state => state,
                })
            }
            SimulatedEntry::Inside(root, id, inside) => {
                Ok(self.nodes(&root, id)?.get(&inside).cloned().unwrap_or(CurrentState::Missing))
            }
            SimulatedEntry::Backup(id) => Ok(match entry(self.gateway.backups(), path, id)? {
                // An earlier step may have set the mode.
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
            SimulatedEntry::Disk(on_disk) => self.is_on_disk(&on_disk),
        }
    }

    fn is_on_disk(&self, path: &WorkspacePath) -> Result<bool, Error> {
        match self.gateway.workspace().stat(path) {
            // The path of a link that leads elsewhere exists, too.
            Ok(_) | Err(WorkspaceError::Moved) => Ok(true),
            Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
