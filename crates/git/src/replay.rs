//! The replay of commits of one repository onto a commit of another one.

use std::collections::{HashMap, HashSet};

use super::{
    Change, Commit, Entry, Error, Format, Mode, Object, ObjectId, ObjectKind, Source, Tree,
    check_path,
    commit::with_trailers,
    diff,
    name::{check_content, check_link},
    update::{Node, Overlay},
};

/// Maximum size of a file in a commit, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Maximum length of a link's target, in bytes.
const MAX_TARGET: u64 = 4096;
/// Maximum number of refusals that are reported for one commit.
const MAX_REFUSALS: usize = 20;
/// Number of refusals of all commits after which one is reported for each.
const MAX_ALL_REFUSALS: usize = 2000;
/// Maximum number of paths that all commits of an import change. Each is a decision and a record.
const MAX_PATHS: usize = 200_000;
/// Maximum number of bytes of those paths.
const MAX_PATH_BYTES: usize = 64 << 20;
/// Maximum number of bytes of a subject that is reported.
const MAX_SUBJECT: usize = 4096;
/// Maximum number of bytes of all new objects together.
const MAX_NEW: usize = 256 << 20;
/// Maximum number of new objects, which is below that of objects read from one repository.
const MAX_NEW_OBJECTS: usize = 400_000;

/// A file that a commit changes.
#[derive(Debug, Clone, Copy)]
pub struct FileChange<'a> {
    /// Its path from the root.
    pub path: &'a str,
    /// The replayed commit, by its name in the source repository.
    pub commit: &'a ObjectId,
    /// The content that the commit replaces, in the source repository.
    pub before: Option<&'a [u8]>,
    /// The content that it replaces in the target repository.
    pub original: Option<&'a [u8]>,
    /// The permission bits that it gets in the target repository, if they differ from those there.
    pub mode: Option<u32>,
}

/// The decisions on each path. An error is the reason why a path may not be changed.
pub trait PathAuthorizer {
    /// Decides on a text of a commit that is imported verbatim.
    ///
    /// # Errors
    /// The reason for a refusal.
    fn text(&mut self, text: &str) -> Result<(), String>;

    /// Returns the content that is stored in place of `content`.
    ///
    /// # Errors
    /// The reason for a refusal, such as that `before` does not correspond to `original`.
    fn write(&mut self, change: &FileChange<'_>, content: &[u8]) -> Result<Vec<u8>, String>;

    /// Decides on a symbolic link.
    ///
    /// # Errors
    /// The reason for a refusal.
    fn link(&mut self, change: &FileChange<'_>, target: &str) -> Result<(), String>;

    /// Decides on a removal.
    ///
    /// # Errors
    /// The reason for a refusal, such as that `before` does not correspond to `original`.
    fn remove(&mut self, change: &FileChange<'_>) -> Result<(), String>;
}

/// Outcomes of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was replayed.
    Imported {
        /// Its new name.
        commit: ObjectId,
        /// Its new parents.
        parents: Vec<ObjectId>,
        /// The number of paths that it changes.
        paths: usize,
    },
    /// It was replayed earlier.
    Known {
        /// Its new name.
        commit: ObjectId,
    },
    /// It was refused, with the reasons and the path of each, if any.
    Refused(Vec<(Option<String>, String)>),
}

/// A commit with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its name in the source repository.
    pub from: ObjectId,
    /// The first line of its message, cut off after 4,096 bytes.
    pub subject: String,
    /// Its first parent there.
    pub parent: Option<ObjectId>,
    /// The outcome.
    pub outcome: Outcome,
}

/// The starting point of a replay.
#[derive(Debug)]
pub struct Begin {
    /// The commit onto which all commits without a replayed parent are replayed.
    pub base: ObjectId,
    /// The commit that corresponds to the base in the source repository. A commit without a parent,
    /// or on the base itself, is compared with it.
    pub start: Option<ObjectId>,
    /// The commits to replay.
    pub listed: HashSet<ObjectId>,
    /// The new names of commits that were replayed earlier. A commit that the target repository no
    /// longer has is replayed again.
    pub known: HashMap<ObjectId, ObjectId>,
}

/// A replay of commits, parents first.
pub struct Replay<'a> {
    from: &'a mut dyn Source,
    onto: &'a mut dyn Source,
    begin: Begin,
    trailers: Vec<String>,
    /// The new names of commits; `None` for refused ones.
    names: HashMap<ObjectId, Option<ObjectId>>,
    added: HashMap<ObjectId, Object>,
    /// The numbers of objects and of their bytes that may still be added.
    left: (usize, usize),
    /// The numbers of paths and of their bytes that may still be changed.
    paths_left: (usize, usize),
    /// The number of refusals so far.
    refusals: usize,
}

impl<'a> Replay<'a> {
    /// Prepares a replay from one repository to another, which adds `trailers` to the messages.
    ///
    /// # Errors
    /// If the base cannot be read.
    pub fn new(
        (from, onto): (&'a mut dyn Source, &'a mut dyn Source),
        begin: Begin,
        trailers: Vec<String>,
    ) -> Result<Self, Error> {
        Commit::read(onto, &begin.base)?;
        let (names, added) = (HashMap::new(), HashMap::new());
        let (left, paths_left) = ((MAX_NEW_OBJECTS, MAX_NEW), (MAX_PATHS, MAX_PATH_BYTES));
        Ok(Self { from, onto, begin, trailers, names, added, left, paths_left, refusals: 0 })
    }

    /// Replays one commit whose parents were replayed. If an object of either repository cannot be
    /// read, only this commit is refused.
    pub fn commit(&mut self, id: &ObjectId, decide: &mut dyn PathAuthorizer) -> Replayed {
        let (mut subject, mut parent) = (String::new(), None);
        let outcome = match self.try_commit(id, decide, (&mut subject, &mut parent)) {
            Ok(outcome) => outcome,
            Err(Error::Path { path, reason }) => Outcome::Refused(vec![(Some(path), reason)]),
            Err(error) => Outcome::Refused(vec![(None, error.to_string())]),
        };
        let name = match &outcome {
            Outcome::Imported { commit, .. } | Outcome::Known { commit } => Some(commit.clone()),
            Outcome::Refused(_) => None,
        };
        self.names.insert(id.clone(), name);
        Replayed { from: id.clone(), subject, parent, outcome }
    }

    /// Returns the new name of a commit, if it has one. A commit that is neither listed nor
    /// replayed earlier is the base.
    pub fn new_name(&mut self, id: &ObjectId) -> Option<ObjectId> {
        if let Some(name) = self.names.get(id) {
            return name.clone();
        }
        let is_listed = self.begin.listed.contains(id);
        let name = self.known(id).or_else(|| (!is_listed).then(|| self.begin.base.clone()));
        self.names.insert(id.clone(), name.clone());
        name
    }

    /// Returns the name that a commit got in an earlier replay.
    fn known(&mut self, id: &ObjectId) -> Option<ObjectId> {
        let known = self.begin.known.get(id)?;
        Commit::read(self.onto, known).is_ok().then(|| known.clone())
    }

    /// Returns the objects that the target repository needs.
    pub fn into_objects(self) -> Vec<Object> {
        let mut objects: Vec<_> = self.added.into_values().collect();
        objects.sort_by(|one, other| one.id.cmp(&other.id));
        objects
    }

    fn format(&self) -> Format {
        self.begin.base.format()
    }

    fn try_commit(
        &mut self,
        id: &ObjectId,
        decide: &mut dyn PathAuthorizer,
        (subject, first_parent): (&mut String, &mut Option<ObjectId>),
    ) -> Result<Outcome, Error> {
        let refused = |reason: String| Ok(Outcome::Refused(vec![(None, reason)]));
        let commit = Commit::read(self.from, id)?;
        let first = commit.message.lines().next().unwrap_or_default();
        first.get(..first.floor_char_boundary(MAX_SUBJECT)).unwrap_or(first).clone_into(subject);
        *first_parent = commit.parents.first().cloned();
        if let Some(commit) = self.known(id) {
            return Ok(Outcome::Known { commit });
        }
        if let Err(reason) = commit.texts().into_iter().try_for_each(|text| decide.text(text)) {
            return refused(reason);
        }
        if commit.has_reserved_trailers() {
            return refused("its message has a line like the trailers of an import".to_owned());
        }
        let start = self.begin.start.as_slice();
        // If the source repository has the target's history, the base is the parent of the start.
        let is_first = commit.parents.is_empty() || commit.parents == [self.begin.base.clone()];
        let old = if is_first { start.to_vec() } else { commit.parents.clone() };
        let mut parents = Vec::new();
        for parent in &old {
            match self.new_name(parent) {
                Some(parent) if parents.contains(&parent) => {}
                Some(parent) => parents.push(parent),
                None => return refused("it builds on a commit that is refused".to_owned()),
            }
        }
        let before = match old.first() {
            Some(first) => Some(Commit::read(self.from, first)?.tree),
            None => None,
        };
        let changes = diff(self.from, before.as_ref(), Some(&commit.tree))?;
        // Before the first decision, since each one is recorded.
        let bytes = changes.iter().map(|change| change.path.len()).sum();
        let (paths_left, bytes_left) = self.paths_left;
        let left = paths_left.checked_sub(changes.len()).zip(bytes_left.checked_sub(bytes));
        self.paths_left = left.ok_or(Error::ImportChanges)?;
        let first = parents.first().unwrap_or(&self.begin.base).clone();
        if parents.is_empty() {
            parents.push(first.clone());
        }
        let format = self.format();
        let mut overlay = Overlay::new(self.onto, &self.added, self.left);
        let tree = Commit::read(&mut overlay, &first)?.tree;
        let (mut root, mut refusals) = (Node::default(), Vec::new());
        let mut one =
            CommitReplay { from: self.from, onto: &mut overlay, tree: &tree, commit: id, decide };
        let most = MAX_ALL_REFUSALS.saturating_sub(self.refusals).clamp(1, MAX_REFUSALS);
        for change in &changes {
            if refusals.len() >= most {
                break;
            }
            match one.entry(change, format) {
                Ok(entry) => root.set(check_path(&change.path)?, entry),
                Err(Error::Path { path, reason }) => refusals.push((Some(path), reason)),
                Err(error) => {
                    let path = String::from_utf8_lossy(&change.path).into_owned();
                    refusals.push((Some(path), error.to_string()));
                }
            }
        }
        if !refusals.is_empty() {
            self.refusals += refusals.len();
            return Ok(Outcome::Refused(refusals));
        }
        let tree = match root.apply(&mut overlay, format, Some(&tree))? {
            Some(tree) => tree,
            None => overlay.add(Tree::default().object(format))?,
        };
        let message = with_trailers(&commit.message, &self.trailers);
        let new = Commit { tree, parents: parents.clone(), message, ..commit };
        let new = overlay.add(new.object(format))?;
        self.left = overlay.left();
        let made = overlay.made;
        self.added.extend(made);
        Ok(Outcome::Imported { commit: new, parents, paths: changes.len() })
    }
}

/// The replay of one commit.
struct CommitReplay<'a, 'o> {
    from: &'a mut dyn Source,
    onto: &'a mut Overlay<'o>,
    /// The tree onto which the commit is replayed.
    tree: &'a ObjectId,
    commit: &'a ObjectId,
    decide: &'a mut dyn PathAuthorizer,
}

impl CommitReplay<'_, '_> {
    /// Returns the entry that a change makes; `None` removes it.
    fn entry(&mut self, change: &Change, format: Format) -> Result<Option<Entry>, Error> {
        let path = check_path(&change.path)?;
        let refuse = |reason: String| Error::path(&change.path, reason);
        let is_submodule =
            |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.mode == Mode::Submodule);
        let there = self.onto.entry_at(self.tree, path)?;
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
        let mode = match (&change.old, &change.new, &there) {
            // The commit does not change the permission bits.
            (Some(old), Some(new), Some(there)) if are_files && old.mode == new.mode => there.mode,
            (_, Some(new), _) => new.mode,
            (_, None, _) => Mode::File,
        };
        let is_set = mode.is_file() && there.as_ref().is_none_or(|there| there.mode != mode);
        let set = is_set.then(|| mode.permissions());
        let file = FileChange { path, commit: self.commit, before, original, mode: set };
        let Some(new) = &change.new else {
            self.decide.remove(&file).map_err(refuse)?;
            return Ok(None);
        };
        if new.mode == Mode::Link {
            let target = self.from.read(&new.id, ObjectKind::Blob, MAX_TARGET)?;
            let text = str::from_utf8(&target);
            let text =
                text.map_err(|_| refuse("the target of the link is not UTF-8".to_owned()))?;
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

#[cfg(test)]
mod tests;
