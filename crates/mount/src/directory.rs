//! An open directory: its list, taken when it is read from the beginning.

use portcullis_policy::ObjectKind;

use crate::budget::Taken;

/// What an open directory gives, in one order as long as it is open. The offset of an entry
/// is its index and one more, `.` and `..` included.
#[derive(Debug)]
pub(crate) struct List {
    entries: Vec<(String, ObjectKind)>,
    /// The policy under which it was taken.
    pub(crate) policy: u64,
    _taken: Taken,
}

/// The entries that each directory has.
const DOTS: [&str; 2] = [".", ".."];

impl List {
    pub(crate) fn new(entries: Vec<(String, ObjectKind)>, policy: u64, taken: Taken) -> Self {
        Self { entries, policy, _taken: taken }
    }

    /// The entry at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<(&str, ObjectKind)> {
        let index = usize::try_from(offset).ok()?;
        if let Some(dots) = DOTS.get(index) {
            return Some((dots, ObjectKind::Directory));
        }
        let (name, kind) = self.entries.get(index - DOTS.len())?;
        Some((name, *kind))
    }
}
