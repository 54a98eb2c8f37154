//! The replay of commits of one repository onto a commit of another one.

mod one_commit;

use std::collections::{BTreeSet, HashMap, HashSet};

use self::one_commit::{CommitReplay, Side};
use super::{
    Commit, Error, Object, ObjectId, Source, ancestry::Ancestry, commit::with_trailers, diff,
    update::Overlay,
};

/// Maximum number of refusals that are reported for one commit.
const MAX_REFUSALS: usize = 20;
/// Number of refusals of all commits after which one is reported for each.
const MAX_ALL_REFUSALS: usize = 2000;
/// Maximum number of paths that all commits of an import change. Each is a decision and a record.
const MAX_PATHS: usize = 200_000;
/// Maximum number of bytes of those paths.
const MAX_PATH_BYTES: usize = 64 << 20;
/// The reason for a commit of which a parent was refused.
const REFUSED_PARENT: &str = "it builds on a commit that is refused";
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
    /// The target of the symbolic link that the commit replaces.
    pub link: Option<&'a str>,
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

    /// Returns true if a character is not displayed.
    fn is_invisible(&self, c: char) -> bool;

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
    /// The commit of which each replayed one has the operator's files, in the source repository. All
    /// that it changes since then was decided.
    roots: HashMap<ObjectId, ObjectId>,
    ancestry: Ancestry,
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
        let (names, roots, added) = (HashMap::new(), HashMap::new(), HashMap::new());
        let ancestry = Ancestry::new(begin.known.values().cloned().collect());
        let (left, paths_left) = ((MAX_NEW_OBJECTS, MAX_NEW), (MAX_PATHS, MAX_PATH_BYTES));
        Ok(Self {
            from,
            onto,
            begin,
            trailers,
            names,
            roots,
            ancestry,
            added,
            left,
            paths_left,
            refusals: 0,
        })
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
        if commit.has_reserved_trailers(|c| decide.is_invisible(c)) {
            return refused("its message has a line like the trailers of an import".to_owned());
        }
        let start = self.begin.start.as_slice();
        // If the source repository has the target's history, the base is the parent of the start.
        let is_first = commit.parents.is_empty() || commit.parents == [self.begin.base.clone()];
        let old = if is_first { start.to_vec() } else { commit.parents.clone() };
        let names: Option<Vec<_>> = old.iter().map(|parent| self.new_name(parent)).collect();
        let Some(names) = names else {
            return refused(REFUSED_PARENT.to_owned());
        };
        let (reference, is_newest) = self.reference(&old)?;
        let (before, onto) = match &reference {
            Some(at) => (Some(Commit::read(self.from, at)?.tree), self.new_name(at)),
            None => (None, None),
        };
        let onto = onto.unwrap_or_else(|| self.begin.base.clone());
        let root = match &reference {
            Some(reference) if is_newest => self.root(reference),
            _ => id.clone(),
        };
        let mut overlay = Overlay::new(self.onto, &self.added, self.left);
        let mut sides = Vec::new();
        for (parent, name) in
            old.iter().zip(&names).filter(|(at, _)| Some(*at) != reference.as_ref())
        {
            sides.push(Side {
                theirs: Commit::read(self.from, parent)?.tree,
                ours: Commit::read(&mut overlay, name)?.tree,
                has_root: is_newest && self.roots.get(parent).unwrap_or(parent) == &root,
            });
        }
        let tree = Commit::read(&mut overlay, &onto)?.tree;
        let mut replay = CommitReplay {
            from: self.from,
            onto: &mut overlay,
            commit: id,
            decide,
            paths_left: &mut self.paths_left,
            max_refusals: MAX_ALL_REFUSALS.saturating_sub(self.refusals).clamp(1, MAX_REFUSALS),
            paths: BTreeSet::new(),
            refusals: Vec::new(),
        };
        let changes = diff(replay.from, before.as_ref(), Some(&commit.tree))?;
        let tree = replay.apply(&tree, &changes, &sides)?;
        for side in sides.iter().filter(|_| !is_newest) {
            replay.compare(side, (&commit.tree, &tree))?;
        }
        let (paths, refusals) = (replay.paths.len(), replay.refusals);
        if !refusals.is_empty() {
            self.refusals += refusals.len();
            return Ok(Outcome::Refused(refusals));
        }
        let mut parents = Vec::new();
        for name in if names.is_empty() { vec![onto] } else { names } {
            if !parents.contains(&name) {
                parents.push(name);
            }
        }
        let message = with_trailers(&commit.message, &self.trailers);
        let new = Commit { tree, parents: parents.clone(), message, ..commit };
        let new = overlay.add(new.object(self.begin.base.format()))?;
        self.left = overlay.left();
        let made = overlay.made;
        self.added.extend(made);
        self.roots.insert(id.clone(), root);
        self.ancestry.add(new.clone());
        Ok(Outcome::Imported { commit: new, parents, paths })
    }

    fn root(&self, commit: &ObjectId) -> ObjectId {
        self.roots.get(commit).unwrap_or(commit).clone()
    }

    /// Returns the parent with which a commit is compared, and true if it has the newest of the
    /// operator's commits that the parents build on. If none has, it is the first one, and the result
    /// is compared with the others, too: each may have commits of the operator's that the result would
    /// undo.
    fn reference(&mut self, parents: &[ObjectId]) -> Result<(Option<ObjectId>, bool), Error> {
        let roots: Vec<_> = parents.iter().map(|parent| self.root(parent)).collect();
        'parents: for (parent, root) in parents.iter().zip(&roots) {
            for other in roots.iter().filter(|other| *other != root) {
                if !self.includes(root, other)? {
                    continue 'parents;
                }
            }
            return Ok((Some(parent.clone()), true));
        }
        Ok((parents.first().cloned(), parents.is_empty()))
    }

    /// True if what one commit became in the target repository has all commits of the operator's that
    /// another one has.
    fn includes(&mut self, newer: &ObjectId, older: &ObjectId) -> Result<bool, Error> {
        let (Some(newer), Some(older)) = (self.new_name(newer), self.new_name(older)) else {
            return Ok(false);
        };
        let mut target = Overlay::new(self.onto, &self.added, self.left);
        self.ancestry.includes(&mut target, &newer, &older)
    }
}

#[cfg(test)]
mod tests;
