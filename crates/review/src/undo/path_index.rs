//! An index of the changes in a history by their paths, so that each step of an undo finds the later
//! ones without a search of all.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{History, related::related};
use crate::{
    change::Change,
    model::{OperationKind, WorkspacePath},
};

/// The changes of a history by each of their paths.
#[derive(Default)]
pub(super) struct PathIndex<'a> {
    /// The last change of a path; true if it is of a session with selected changes, or of an undo.
    last: HashMap<&'a WorkspacePath, (u64, bool)>,
    /// The last change of a path by others.
    others: BTreeMap<WorkspacePath, &'a Change>,
    /// Renames, and removals by others, oldest first; true for those by others.
    moves: HashMap<&'a WorkspacePath, Vec<(&'a Change, bool)>>,
}

impl<'a> PathIndex<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let selected = history.selected.iter().map(|change| (change, false));
        let others = history.others.iter().map(|change| (change, true));
        let mut changes: Vec<_> = selected.chain(others).collect();
        changes.sort_by_key(|(change, _)| change.seq);
        let sessions: HashSet<_> =
            history.selected.iter().map(|change| change.session.as_str()).collect();
        let mut index = Self::default();
        for (change, is_other) in changes {
            let is_removed = is_other && change.operation == OperationKind::Remove;
            for path in [Some(&change.path), change.to.as_ref()].into_iter().flatten() {
                // What an undo put back is what was there; anything else of others is a conflict.
                let is_own = sessions.contains(change.session.as_str()) || change.undoes.is_some();
                index.last.insert(path, (change.seq, is_own));
                if is_other {
                    index.others.insert(path.clone(), change);
                }
                if is_removed || change.to.is_some() {
                    index.moves.entry(path).or_default().push((change, is_other));
                }
            }
        }
        index
    }

    /// True if the last change of the path, or of a directory above it, is later than the record
    /// `since`, and of a session with selected changes or of an undo.
    pub(super) fn is_changed(&self, path: &WorkspacePath, since: u64) -> bool {
        let later = |path| self.last.get(path).filter(|(seq, _)| *seq > since);
        match later(path) {
            Some((_, is_own)) => *is_own,
            None => path.ancestors().iter().filter_map(later).any(|(_, is_own)| *is_own),
        }
    }

    /// Returns the last change by others that touches one of the paths.
    pub(super) fn last_other(&self, paths: Vec<&WorkspacePath>) -> Option<&'a Change> {
        let touching = paths.into_iter().flat_map(|path| related(&self.others, path));
        touching.map(|(_, change)| *change).max_by_key(|change| change.seq)
    }

    /// Follows the entry that was at a path after the record `since`. Returns its last path and the
    /// last change by others that moved it; `None` if there is none, if others moved it back to where
    /// the selected changes had left it, or if the entry was removed or replaced.
    pub(super) fn follow(
        &self,
        path: &WorkspacePath,
        mut since: u64,
    ) -> Option<(WorkspacePath, &'a Change)> {
        let (mut path, mut left_at, mut by) = (path.clone(), path.clone(), None);
        // The names in a record are those after all changes before it.
        while let Some((change, is_other)) = self.next_move(&path, since) {
            path = match &change.to {
                Some(to) if path.is_within(&change.path) => path.rebase(&change.path, to)?,
                Some(to) if change.exchange => path.rebase(to, &change.path)?,
                _ => return None,
            };
            since = change.seq;
            if is_other {
                by = (path != left_at).then_some(change);
            } else if by.is_none() {
                left_at.clone_from(&path);
            }
        }
        Some((path, by?))
    }

    fn next_move(&self, path: &WorkspacePath, since: u64) -> Option<(&'a Change, bool)> {
        let next = |path| {
            let moves = self.moves.get(path)?;
            moves.get(moves.partition_point(|(change, _)| change.seq <= since)).copied()
        };
        let above = path.ancestors();
        above.iter().chain([path]).filter_map(next).min_by_key(|(change, _)| change.seq)
    }
}
