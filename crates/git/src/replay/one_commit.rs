//! The replay of one commit's changes onto trees of the target repository.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{FileChange, PathAuthorizer};
use crate::{
    Change, Entry, Error, Mode, Object, ObjectId, ObjectKind, Source, Tree, diff,
    name::{MAX_PATH, check_content, check_link, check_path, check_target},
    update::{Node, Overlay},
};

/// Maximum size of a file in a commit, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The reason why a merge is refused that takes back what the agent does not see.
pub(super) const DIFFERS: &str = "the operator's commits that the merge joins have different versions of it, and \
                       the agent's commits do not say which one to take";

/// The trees of a parent of a merge, in both repositories.
pub(super) struct Side {
    pub(super) theirs: ObjectId,
    pub(super) ours: ObjectId,
    /// True if it builds on the same commit of the operator's as the merge.
    pub(super) has_root: bool,
}

/// The replay of one commit.
pub(super) struct CommitReplay<'a, 'o> {
    pub(super) from: &'a mut dyn Source,
    pub(super) onto: &'a mut Overlay<'o>,
    pub(super) commit: &'a ObjectId,
    pub(super) decide: &'a mut dyn PathAuthorizer,
    /// The numbers of paths and of their bytes that may still be changed.
    pub(super) paths_left: &'a mut (usize, usize),
    pub(super) max_refusals: usize,
    /// The paths that were decided on.
    pub(super) paths: BTreeSet<Vec<u8>>,
    /// The reasons for a refusal and the path of each, if any.
    pub(super) refusals: Vec<(Option<String>, String)>,
}

impl CommitReplay<'_, '_> {
    /// Replays changes onto a tree, and returns the resulting one; if a change is refused, the same.
    pub(super) fn apply(
        &mut self,
        tree: &ObjectId,
        changes: &[Change],
        sides: &[Side],
    ) -> Result<ObjectId, Error> {
        self.count(changes)?;
        let mut node = Node::default();
        for change in changes {
            if self.refusals.len() >= self.max_refusals {
                break;
            }
            // The operator's side of a merge may have what the other side changed.
            if !sides.is_empty()
                && self.onto.entry_at(tree, check_path(&change.path)?)? == change.new
            {
                continue;
            }
            match self.merged(tree, change, sides) {
                Ok(entry) => {
                    node.set(check_path(&change.path)?, entry);
                    self.paths.insert(change.path.clone());
                }
                Err(error) => self.refuse(change, error),
            }
        }
        if !self.refusals.is_empty() {
            return Ok(tree.clone());
        }
        match node.apply(self.onto, tree.format(), Some(tree))? {
            Some(tree) => Ok(tree),
            None => self.onto.add(Tree::default().object(tree.format())),
        }
    }

    /// Decides on what differs between a side of a merge and its resulting tree, which `theirs` and
    /// `ours` name in both repositories.
    pub(super) fn compare(
        &mut self,
        side: &Side,
        (theirs, ours): (&ObjectId, &ObjectId),
    ) -> Result<(), Error> {
        if !self.refusals.is_empty() {
            return Ok(());
        }
        let seen = diff(self.from, Some(&side.theirs), Some(theirs))?.into_iter();
        let mut seen: BTreeMap<_, _> = seen.map(|change| (change.path.clone(), change)).collect();
        let mut changes = diff(self.onto, Some(&side.ours), Some(ours))?;
        changes.retain(|change| self.paths.insert(change.path.clone()));
        self.count(&changes)?;
        for change in &changes {
            if self.refusals.len() >= self.max_refusals {
                break;
            }
            let made = match seen.remove(&change.path) {
                Some(seen) => self.entry(&side.ours, &seen).map(Some),
                None => Ok(None),
            };
            match made {
                Ok(Some(entry)) if entry == change.new => {}
                Ok(_) => self.refuse(change, Error::path(&change.path, DIFFERS)),
                Err(error) => self.refuse(change, error),
            }
        }
        Ok(())
    }

    /// Counts paths before the first decision on them, since each one is recorded.
    fn count(&mut self, changes: &[Change]) -> Result<(), Error> {
        let bytes = changes.iter().map(|change| change.path.len()).sum();
        let (paths_left, bytes_left) = *self.paths_left;
        let left = paths_left.checked_sub(changes.len()).zip(bytes_left.checked_sub(bytes));
        *self.paths_left = left.ok_or(Error::ImportChanges)?;
        Ok(())
    }

    /// Adds the reason why a change is refused, with its path.
    fn refuse(&mut self, change: &Change, error: Error) {
        self.refusals.push(match error {
            Error::Path { path, reason } => (Some(path), reason),
            error => (Some(String::from_utf8_lossy(&change.path).into_owned()), error.to_string()),
        });
    }

    /// Returns the entry that a change makes. A file that a merge takes from another parent on the
    /// same commit of the operator's is that parent's, with its secrets: the one it is compared with
    /// has none to put back.
    fn merged(
        &mut self,
        tree: &ObjectId,
        change: &Change,
        sides: &[Side],
    ) -> Result<Option<Entry>, Error> {
        let path = check_path(&change.path)?;
        let is_free = change.old.is_none() && self.onto.entry_at(tree, path)?.is_none();
        for side in sides.iter().filter(|side| is_free && side.has_root) {
            let nothing = HashMap::new();
            let theirs = Overlay::new(self.from, &nothing, (0, 0)).entry_at(&side.theirs, path)?;
            if theirs == change.new && self.onto.entry_at(&side.ours, path)?.is_some() {
                return self.entry(&side.ours, &Change { old: theirs, ..change.clone() });
            }
        }
        self.entry(tree, change)
    }

    /// Returns the entry that a change makes in a tree; `None` removes it.
    fn entry(&mut self, tree: &ObjectId, change: &Change) -> Result<Option<Entry>, Error> {
        let format = tree.format();
        let path = check_path(&change.path)?;
        let refuse = |reason: String| Error::path(&change.path, reason);
        let is_submodule =
            |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.mode == Mode::Submodule);
        let there = self.onto.entry_at(tree, path)?;
        if [&change.old, &change.new, &there].into_iter().any(is_submodule) {
            return Err(refuse("submodules are not imported".to_owned()));
        }
        let is_file = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.mode.is_file());
        // The removed paths show that the commit replaces a directory.
        let there = there.filter(|entry| entry.mode != Mode::Directory);
        let are_files = is_file(&change.old) && is_file(&there);
        // Contents of files are compared by [`PathAuthorizer`], since secrets differ.
        if !are_files && change.old != there {
            return Err(refuse(
                "it is not in the operator's commit as the agent's commit had it: it was not \
                 committed, or is hidden, when the session began"
                    .to_owned(),
            ));
        }
        let (before, original) = match (&change.old, &there) {
            (Some(old), Some(there)) if are_files => (
                Some(self.from.read(&old.id, ObjectKind::Blob, MAX_FILE)?),
                Some(self.onto.read(&there.id, ObjectKind::Blob, MAX_FILE)?),
            ),
            _ => (None, None),
        };
        let (before, original) = (before.as_deref(), original.as_deref());
        let link = match &there {
            Some(there) if there.mode == Mode::Link => {
                Some(self.onto.read(&there.id, ObjectKind::Blob, MAX_FILE)?)
            }
            _ => None,
        };
        let link = link.as_deref().map(String::from_utf8_lossy);
        let mode = match (&change.old, &change.new, &there) {
            // The commit does not change the permission bits.
            (Some(old), Some(new), Some(there)) if are_files && old.mode == new.mode => there.mode,
            (_, Some(new), _) => new.mode,
            (_, None, _) => Mode::File,
        };
        let is_set = mode.is_file() && there.as_ref().is_none_or(|there| there.mode != mode);
        let set = is_set.then(|| mode.permissions());
        let (commit, link) = (self.commit, link.as_deref());
        let file = FileChange { path, commit, before, original, link, mode: set };
        let Some(new) = &change.new else {
            self.decide.remove(&file).map_err(refuse)?;
            return Ok(None);
        };
        if new.mode == Mode::Link {
            let target = self.from.read(&new.id, ObjectKind::Blob, MAX_PATH as u64)?;
            let text = check_target(&target).map_err(|reason| refuse(reason.to_owned()))?;
            check_link(path).map_err(|reason| refuse(reason.to_owned()))?;
            self.decide.link(&file, text).map_err(refuse)?;
            let id = self.onto.add(Object::new(format, ObjectKind::Blob, target))?;
            return Ok(Some(Entry { mode: Mode::Link, id }));
        }
        let content = self.from.read(&new.id, ObjectKind::Blob, MAX_FILE)?;
        let content = self.decide.write(&file, &content).map_err(refuse)?;
        check_content(path, &content).map_err(|reason| refuse(reason.to_owned()))?;
        let id = self.onto.add(Object::new(format, ObjectKind::Blob, content))?;
        Ok(Some(Entry { mode, id }))
    }
}
