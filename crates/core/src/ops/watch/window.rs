//! When what was looked up cannot be trusted.
//!
//! A notice says that something happened to a name. What the name means, and
//! what lies beneath it, is looked up afterwards, when more may have happened
//! already. That does no harm where each later change is told of in its turn:
//! made, removed and made anew, an entry is told of as often, and what was seen
//! last is true. It does harm where a directory has changed its name and took
//! along what was told of before; there, one more change of the same name, or
//! beneath the directory, leaves doubt. Changes belong together until it is
//! quiet: until a look at the kernel's queue after the last of them finds
//! nothing.

use std::collections::{HashMap, HashSet};

use crate::workspace::WatchId;

/// Most names that are kept; whoever changes more without a pause leaves doubt
/// with the next directory that moves.
const MOST: usize = 65_536;

/// A watch and a name in its directory.
pub(super) type Raw<'n> = (WatchId, &'n str);

/// What a change leaves of what was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It is true.
    None,
    /// It may be wrong about these names, and about what lies beneath them.
    Here,
    /// It may be wrong anywhere.
    Anywhere,
}

/// The changes since it was quiet.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Names that were changed, and whether a directory came or went by that.
    names: HashMap<WatchId, HashMap<String, bool>>,
    count: usize,
    /// Whether any directory moved.
    any_moved: bool,
    /// Directories that changed their names with all that was known of them.
    moved: HashSet<WatchId>,
    /// Whether any directory that moves leaves doubt.
    shaken: bool,
}

impl Window {
    /// One change of these names, by which a directory moved or not, and the doubt
    /// that it leaves.
    #[must_use]
    pub(super) fn change(&mut self, names: &[Raw<'_>], moved: bool) -> Doubt {
        let mut doubt = moved && self.shaken;
        self.any_moved |= moved;
        for (watch, name) in names {
            doubt |= self.moved.contains(watch);
            let known = self.names.entry(*watch).or_default();
            match known.get_mut(*name) {
                Some(before) => {
                    doubt |= moved || *before;
                    *before |= moved;
                }
                None => {
                    known.insert((*name).to_owned(), moved);
                    self.count += 1;
                }
            }
        }
        if self.count > MOST {
            let any_moved = self.any_moved;
            self.looked();
            if any_moved {
                return Doubt::Anywhere;
            }
        }
        if doubt { Doubt::Here } else { Doubt::None }
    }

    /// These directories have other names now; true when that leaves doubt
    /// about what happened in them.
    #[must_use]
    pub(super) fn moved(&mut self, watches: Vec<WatchId>) -> bool {
        let doubt = watches.iter().any(|watch| self.names.contains_key(watch));
        self.moved.extend(watches);
        doubt
    }

    /// Everything was looked at, whatever the notices that wait are about.
    pub(super) fn looked(&mut self) {
        *self = Self { shaken: true, ..Self::default() };
    }

    /// Nothing happened since the last look.
    pub(super) fn quiet(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_leave_no_doubt() {
        let mut window = Window::default();
        for _ in 0..3 {
            assert_eq!(window.change(&[(1, "a")], false), Doubt::None);
            assert_eq!(window.change(&[(1, "a"), (1, "b")], false), Doubt::None);
        }
    }

    #[test]
    fn a_directory_that_moves_leaves_doubt_with_another_change_of_its_names_only() {
        let mut window = Window::default();
        assert_eq!(window.change(&[(1, "other")], false), Doubt::None);
        assert_eq!(window.change(&[(1, "a"), (2, "b")], true), Doubt::None);
        assert_eq!(window.change(&[(2, "a")], false), Doubt::None);
        assert_eq!(window.change(&[(2, "b")], false), Doubt::Here);
        window.quiet();
        assert_eq!(window.change(&[(2, "b")], false), Doubt::None);
        assert_eq!(window.change(&[(1, "a"), (2, "b")], true), Doubt::Here);
    }

    #[test]
    fn what_happens_in_a_directory_before_and_after_it_moves_leaves_doubt() {
        let mut window = Window::default();
        assert_eq!(window.change(&[(7, "x")], false), Doubt::None);
        assert!(!window.moved(vec![8, 9]));
        assert_eq!(window.change(&[(9, "y")], false), Doubt::Here);
        assert!(window.moved(vec![7]));
    }

    #[test]
    fn after_a_look_at_everything_any_directory_that_moves_leaves_doubt() {
        let mut window = Window::default();
        window.looked();
        assert_eq!(window.change(&[(1, "a")], false), Doubt::None);
        assert_eq!(window.change(&[(1, "b"), (1, "c")], true), Doubt::Here);
    }

    #[test]
    fn names_are_not_kept_without_bound() {
        let mut window = Window::default();
        for n in 0..=MOST {
            assert_eq!(window.change(&[(1, &n.to_string())], false), Doubt::None);
        }
        assert_eq!(window.count, 0);
        assert_eq!(window.change(&[(2, "a"), (2, "b")], true), Doubt::Here);
        for n in 0..MOST {
            let doubt = window.change(&[(1, &n.to_string())], false);
            assert_eq!(doubt == Doubt::Anywhere, window.count == 0);
        }
        assert_eq!(window.count, 1);
    }
}
