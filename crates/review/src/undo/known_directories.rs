//! The directories that the log proves to be there, so that each counts as made once.
//!
//! An intent counts the parent directories that are missing when its request is decided. Before it
//! is written, a request that runs at the same time may make one of them, and count it as well. An
//! undo that removes the directory with the later change takes what the earlier one put there as
//! removed.

use std::collections::BTreeMap;

use super::related::beneath;
use crate::{
    change::Change,
    model::{OperationKind, WorkspacePath},
};

/// The directories that are there after changes: those of its keys, and all above them.
#[derive(Debug, Default)]
pub(super) struct KnownDirectories(BTreeMap<WorkspacePath, ()>);

impl KnownDirectories {
    /// Follows the next change, and takes the directories that are known to be there out of those
    /// that it made. Returns false if it is a `mkdir` that made none.
    pub(super) fn take(&mut self, change: &mut Change) -> bool {
        use OperationKind as O;
        if change.directories > 0 {
            let made = change.made_directories().take_while(|directory| !self.has(directory));
            change.directories = made.count();
        }
        let path = &change.path;
        match (change.operation, &change.to) {
            (O::Rename, Some(to)) => {
                let (moved, replaced) = (self.remove(path), self.remove(to));
                self.insert(moved, path, to);
                if change.exchange {
                    self.insert(replaced, to, path);
                }
            }
            (O::Mkdir, _) if self.has(path) => return false,
            (O::Mkdir, _) => drop(self.0.insert(path.clone(), ())),
            // Something else is at the path afterwards, or nothing.
            (O::Write | O::Append | O::Edit | O::Remove | O::Symlink | O::Restore, _) => {
                drop(self.remove(path));
            }
            (O::SetAttributes, _) => {}
            _ => return true,
        }
        let paths = [Some(path), change.to.as_ref()].into_iter().flatten();
        self.0.extend(paths.filter_map(WorkspacePath::parent).map(|parent| (parent, ())));
        true
    }

    fn has(&self, directory: &WorkspacePath) -> bool {
        beneath(&self.0, directory).next().is_some()
    }

    /// Takes out the directory at a path and all beneath it.
    fn remove(&mut self, path: &WorkspacePath) -> Vec<WorkspacePath> {
        let removed: Vec<_> = beneath(&self.0, path).map(|(own, ())| own.clone()).collect();
        for own in &removed {
            self.0.remove(own);
        }
        removed
    }

    /// Inserts them as they are after `from` got the name `to`.
    fn insert(&mut self, moved: Vec<WorkspacePath>, from: &WorkspacePath, to: &WorkspacePath) {
        self.0.extend(moved.iter().filter_map(|own| Some((own.rebase(from, to)?, ()))));
    }
}

#[cfg(test)]
mod tests {
    use portcullis_audit::RecordView;

    use super::*;

    /// Follows changes, each the fields of its intent and the number of directories in it. Returns
    /// the directories that each of them made; `None` is a `mkdir` that made nothing.
    fn made(changes: &[(&str, u64)]) -> Vec<Option<Vec<String>>> {
        let mut known = KnownDirectories::default();
        let take = |(fields, directories): &(&str, u64)| {
            let line = format!(
                r#"{{"v":1,"seq":0,"kind":"intent","t":"2026-11-21T08:00:00.000000Z",{fields},"counts":{{"directories":{directories}}},"nonce":"{:032}","prev":"{:064}"}}"#,
                0, 0
            );
            let mut change = Change::of(&RecordView::parse(line.as_bytes()).unwrap()).unwrap();
            let path = |path: WorkspacePath| path.as_str().to_owned();
            known.take(&mut change).then(|| change.made_directories().map(path).collect())
        };
        changes.iter().map(take).collect()
    }

    #[track_caller]
    fn assert_made(changes: &[(&str, u64)], last: Option<&[&str]>) {
        let last = last.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect());
        assert_eq!(made(changes).pop().unwrap(), last, "{changes:?}");
    }

    const WRITE: (&str, u64) = (r#""op":"write","path":"d/a""#, 1);
    const MKDIR: (&str, u64) = (r#""op":"mkdir","path":"d/b""#, 1);

    #[test]
    fn a_directory_that_two_records_count_was_made_twice() {
        assert_made(&[WRITE], Some(&["d"]));
        assert_made(&[WRITE, MKDIR], Some(&[]));
        assert_made(&[WRITE, (r#""op":"mkdir","path":"d""#, 0)], None);
        assert_made(&[MKDIR, (r#""op":"write","path":"d/x/y/f""#, 3)], Some(&["d/x/y", "d/x"]));
        assert_made(&[(r#""op":"write","path":"d/x/f""#, 2), MKDIR], Some(&[]));
        // What is in it proves that it was there.
        let rename = (r#""op":"rename","path":"d/a","to":"z""#, 0);
        assert_made(&[rename, MKDIR], Some(&[]));
        assert_made(&[WRITE, (r#""op":"remove","path":"d/a""#, 0), MKDIR], Some(&[]));
    }

    #[test]
    fn a_directory_that_went_is_made_anew() {
        assert_made(&[WRITE, (r#""op":"remove","path":"d""#, 0), MKDIR], Some(&["d"]));
        let rename = (r#""op":"rename","path":"d","to":"e""#, 0);
        assert_made(&[WRITE, rename, MKDIR], Some(&["d"]));
        assert_made(&[WRITE, rename, (r#""op":"mkdir","path":"e/b""#, 1)], Some(&[]));
        let exchange = (r#""op":"rename","path":"d","to":"e","facts":{"exchange":true}"#, 0);
        let other = (r#""op":"write","path":"e/x/f""#, 2);
        let inner = (r#""op":"mkdir","path":"d/x/b""#, 2);
        assert_made(&[WRITE, other, exchange, inner], Some(&[]));
        let inner = (r#""op":"mkdir","path":"e/x/b""#, 2);
        assert_made(&[WRITE, other, exchange, inner], Some(&["e/x"]));
        // A file has its name, which something that is not in the log removed.
        assert_made(&[WRITE, (r#""op":"write","path":"d""#, 0), MKDIR], Some(&["d"]));
        assert_made(&[WRITE, (r#""op":"mkdir","path":"da""#, 0)], Some(&[]));
    }
}
