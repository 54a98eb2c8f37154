//! Sets of actions: pairs of an operation and one of the accesses that it needs.

use crate::model::{Access, OperationKind};

/// A set of actions, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActionSet(u64);

// An operation has four bits, by its place in `OperationKind`. So the order of its variants matters:
// those that have paths come first, and they are 16 at most.
const _: () = assert!(
    OperationKind::ALL.len() == OperationKind::Connect as usize && OperationKind::ALL.len() <= 16,
    "the actions of an operation that has paths do not fit in 64 bits"
);

impl ActionSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns the set of one action, of an operation that has paths.
    pub fn one(operation: OperationKind, access: Access) -> Self {
        Self(1 << (operation as u64 * 4 + access as u64))
    }

    /// Returns the actions of every operation with `access`.
    pub fn about(access: Access) -> Self {
        let all = OperationKind::ALL.into_iter();
        all.fold(Self::NONE, |set, operation| set | Self::one(operation, access))
    }

    /// Returns the actions that `word` in the `operations` of a rule covers: `read`, `list`,
    /// `write` and `remove` cover that access for every operation that needs it, the finer words
    /// that operation for every access that it needs.
    pub fn of_word(word: OperationKind) -> Self {
        match word {
            OperationKind::Read => Self::about(Access::Read),
            OperationKind::List => Self::about(Access::List),
            OperationKind::Write => Self::about(Access::Write),
            OperationKind::Remove => Self::about(Access::Remove),
            OperationKind::Append
            | OperationKind::Edit
            | OperationKind::Stat
            | OperationKind::Glob
            | OperationKind::Grep
            | OperationKind::Watch
            | OperationKind::Mkdir
            | OperationKind::Rename
            | OperationKind::SetAttributes
            | OperationKind::Symlink
            | OperationKind::Restore => Access::ALL
                .into_iter()
                .fold(Self::NONE, |set, access| set | Self::one(word, access)),
            // They have no path.
            OperationKind::Connect | OperationKind::Command => Self::NONE,
        }
    }

    /// Returns every action.
    pub fn all() -> Self {
        Access::ALL.into_iter().fold(Self::NONE, |set, access| set | Self::about(access))
    }

    /// True if every action of `other` is among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Removes the actions of `others`.
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

impl std::ops::BitOr for ActionSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One value for each access.
#[derive(Debug, Clone, Default)]
pub struct PerAccess<T> {
    read: T,
    list: T,
    write: T,
    remove: T,
}

impl<T> PerAccess<T> {
    /// Makes the values by calling `make` for each access.
    pub fn from_fn(mut make: impl FnMut(Access) -> T) -> Self {
        Self {
            read: make(Access::Read),
            list: make(Access::List),
            write: make(Access::Write),
            remove: make(Access::Remove),
        }
    }

    /// Returns the value for `access`.
    pub fn get(&self, access: Access) -> &T {
        match access {
            Access::Read => &self.read,
            Access::List => &self.list,
            Access::Write => &self.write,
            Access::Remove => &self.remove,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_words_cover_an_access_and_fine_words_an_operation() {
        use Access as A;
        use OperationKind as O;
        let covers = |word, operation, access| {
            ActionSet::of_word(word).contains(ActionSet::one(operation, access))
        };
        for operation in [O::Write, O::Append, O::Edit, O::Mkdir, O::Restore, O::Rename] {
            assert!(covers(O::Write, operation, A::Write), "{operation}");
        }
        assert!(covers(O::Remove, O::Rename, A::Remove));
        assert!(covers(O::Rename, O::Rename, A::Remove) && covers(O::Rename, O::Rename, A::Write));
        assert!(covers(O::List, O::Stat, A::List) && !covers(O::Stat, O::List, A::List));
        assert!(covers(O::Read, O::Edit, A::Read) && !covers(O::Read, O::Edit, A::Write));
        assert!(!covers(O::Append, O::Write, A::Write));
    }
}
