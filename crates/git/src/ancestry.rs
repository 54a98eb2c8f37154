//! The order of commits in the target repository.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Error, ObjectId, Source, commit};

/// Maximum number of commits that are visited to find out which commits contain which.
const MAX_VISITED: usize = 200_000;
/// Maximum number of commits that one of them is searched among.
const MAX_HISTORY: usize = 10_000;

/// The part of a commit's history that was visited, the nearest commits first.
#[derive(Debug)]
struct History {
    seen: HashSet<ObjectId>,
    open: VecDeque<ObjectId>,
}

/// The order of commits, by their parents.
#[derive(Debug)]
pub(super) struct Ancestry {
    /// The commits that imports made; all others are the operator's.
    made: HashSet<ObjectId>,
    histories: HashMap<ObjectId, History>,
    /// The number of commits that may still be visited.
    left: usize,
}

impl Ancestry {
    /// Takes `made` as the commits of earlier imports.
    pub(super) fn new(made: HashSet<ObjectId>) -> Self {
        Self { made, histories: HashMap::new(), left: MAX_VISITED }
    }

    /// Adds a commit of this import.
    pub(super) fn add(&mut self, made: ObjectId) {
        self.made.insert(made);
    }

    /// True if the history of `newer` has all commits of the operator's in the history of `older`;
    /// false also if that takes too long to find out.
    ///
    /// # Errors
    /// If a commit cannot be read.
    pub(super) fn includes(
        &mut self,
        source: &mut dyn Source,
        newer: &ObjectId,
        older: &ObjectId,
    ) -> Result<bool, Error> {
        let (mut open, mut seen) = (vec![older.clone()], HashSet::new());
        while let Some(commit) = open.pop() {
            if self.has(source, newer, &commit)? {
                continue;
            }
            if !self.made.contains(&commit) {
                return Ok(false);
            }
            for parent in commit::parents(source, &commit)? {
                if seen.insert(parent.clone()) {
                    let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
                    self.left = left;
                    open.push(parent);
                }
            }
        }
        Ok(true)
    }

    /// True if `wanted` was found in the history of `commit`, of which it may be the newest. A missing
    /// commit has no parents: the history of a shallow repository ends there.
    fn has(
        &mut self,
        source: &mut dyn Source,
        commit: &ObjectId,
        wanted: &ObjectId,
    ) -> Result<bool, Error> {
        let begin = || History {
            seen: HashSet::from([commit.clone()]),
            open: VecDeque::from([commit.clone()]),
        };
        let history = self.histories.entry(commit.clone()).or_insert_with(begin);
        while !history.seen.contains(wanted) {
            let is_long = history.seen.len() > MAX_HISTORY;
            let Some(next) = history.open.pop_front().filter(|_| !is_long) else {
                return Ok(false);
            };
            let parents = match commit::parents(source, &next) {
                Err(Error::Missing(_)) => Vec::new(),
                parents => parents?,
            };
            for parent in parents {
                if history.seen.insert(parent.clone()) {
                    let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
                    self.left = left;
                    history.open.push_back(parent);
                }
            }
        }
        Ok(true)
    }
}
