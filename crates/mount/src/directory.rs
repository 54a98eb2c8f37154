//! An open directory with its list, which is made when it is read from the beginning.

use portcullis_policy::ObjectKind;

use crate::budget::BudgetPart;

/// The list of an open directory, whose order does not change while it is open. The offset
/// of an entry is its index plus one, `.` and `..` included.
#[derive(Debug)]
pub(crate) struct List {
    entries: Vec<(String, ObjectKind)>,
    /// The policy under which it was made.
    pub(crate) policy: u64,
    _taken: BudgetPart,
}

/// The entries of every directory.
const DOTS: [&str; 2] = [".", ".."];

impl List {
    pub(crate) fn new(entries: Vec<(String, ObjectKind)>, policy: u64, taken: BudgetPart) -> Self {
        Self { entries, policy, _taken: taken }
    }

    /// Returns the entry at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<(&str, ObjectKind)> {
        let index = usize::try_from(offset).ok()?;
        if let Some(dots) = DOTS.get(index) {
            return Some((dots, ObjectKind::Directory));
        }
        let (name, kind) = self.entries.get(index - DOTS.len())?;
        Some((name, *kind))
    }
}
