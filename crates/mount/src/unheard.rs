//! Errors that no call returned, for the next open of the path that they are about. The file of
//! that path may be another one by then, because another program replaced it or a directory above.

use std::{collections::BTreeMap, sync::Arc};

use portcullis_policy::model::WorkspacePath;
use rustix::io::Errno;

/// The maximum of errors: programs may open none of the paths again.
const MAX_ERRORS: usize = 1024;

/// An error that the next open returns, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) error: Errno,
    pub(crate) reason: Option<Arc<str>>,
}

/// The errors by path.
#[derive(Debug, Default)]
pub(crate) struct UnheardErrors(BTreeMap<WorkspacePath, Unheard>);

impl UnheardErrors {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps an error, in place of an older one of the path. If there are too many, it is only in the
    /// log.
    pub(crate) fn keep(&mut self, path: WorkspacePath, unheard: Unheard) {
        if self.0.len() < MAX_ERRORS || self.0.contains_key(&path) {
            self.0.insert(path, unheard);
        }
    }

    /// Takes the error of a path.
    pub(crate) fn take(&mut self, path: &WorkspacePath) -> Option<Unheard> {
        self.0.remove(path)
    }

    /// Removes the errors of a path, and of paths beneath it.
    pub(crate) fn remove(&mut self, path: &WorkspacePath) {
        self.0.retain(|at, _| !at.is_within(path));
    }

    /// Follows a rename, which replaces what `to` named.
    pub(crate) fn rename(&mut self, from: &WorkspacePath, to: &WorkspacePath) {
        self.remove(to);
        self.exchange(from, to);
    }

    /// Follows an exchange of two paths.
    pub(crate) fn exchange(&mut self, one: &WorkspacePath, other: &WorkspacePath) {
        let moved = std::mem::take(&mut self.0).into_iter().filter_map(|(path, unheard)| {
            let to = if path.is_within(one) {
                path.rebase(one, other)
            } else if path.is_within(other) {
                path.rebase(other, one)
            } else {
                Some(path)
            };
            Some((to?, unheard))
        });
        self.0 = moved.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    #[test]
    fn errors_follow_the_names_of_their_files_and_have_a_bound() {
        let error = |error| Unheard { error, reason: None };
        let mut errors = UnheardErrors::default();
        for (name, number) in [("a/f", Errno::IO), ("b/f", Errno::ACCESS), ("bb", Errno::PERM)] {
            errors.keep(path(name), error(number));
        }
        errors.exchange(&path("a"), &path("b"));
        assert_eq!(errors.take(&path("a/f")), Some(error(Errno::ACCESS)));
        errors.rename(&path("b/f"), &path("bb"));
        assert_eq!(errors.take(&path("bb")), Some(error(Errno::IO)));
        assert!(errors.is_empty());
        for number in 0..=MAX_ERRORS {
            errors.keep(path(&format!("d/{number}")), error(Errno::IO));
        }
        assert_eq!(errors.take(&path(&format!("d/{MAX_ERRORS}"))), None);
        errors.remove(&path("d"));
        assert!(errors.is_empty());
    }
}
