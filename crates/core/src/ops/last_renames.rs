//! The names that sessions gave files by their last renames.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::model::WorkspacePath;

/// Maximum number of renames that a gateway remembers, and of names that a file got by them.
const MAX_RENAMES: usize = 1000;
const MAX_NAMES: usize = 20;

/// The last renames of a gateway's sessions: the session, the old and the new name.
#[derive(Debug, Default)]
pub(crate) struct LastRenames(Mutex<VecDeque<(String, [WorkspacePath; 2])>>);

impl LastRenames {
    /// Adds a rename.
    pub(super) fn add(&self, session: &str, from: &WorkspacePath, to: &WorkspacePath) {
        let mut renames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if renames.len() == MAX_RENAMES {
            renames.pop_front();
        }
        renames.push_back((session.to_owned(), [from.clone(), to.clone()]));
    }

    /// Returns `path` and the names that `session` gave a file from there.
    pub(super) fn names_of(&self, session: &str, path: &WorkspacePath) -> Vec<WorkspacePath> {
        let renames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = vec![path.clone()];
        for (_, [from, to]) in renames.iter().filter(|(by, _)| by == session) {
            let renamed = names.iter().filter_map(|name| name.rebase(from, to));
            let renamed: Vec<_> = renamed.filter(|name| !names.contains(name)).collect();
            names.extend(renamed);
            names.truncate(MAX_NAMES);
        }
        names
    }
}
