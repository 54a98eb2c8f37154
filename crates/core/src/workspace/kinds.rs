//! Names and kinds of a directory's entries, packed: lists of names are requested often, and a
//! directory may have a million.

use std::{
    fmt,
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd},
};

use super::{Error, entry, stream_names, walk::MAX_ENTRIES};
use crate::policy::ObjectKind;

/// The names in one directory with their kinds, sorted by name.
#[derive(Clone, Default)]
pub(crate) struct Kinds {
    /// All names that were read, in one text.
    text: String,
    slots: Vec<PackedName>,
    not_utf8: u64,
}

/// A name and its kind.
#[derive(Clone, Copy)]
struct PackedName {
    /// The first bytes after the common prefix of all names, which nearly always distinguish two
    /// names.
    key: u64,
    start: u32,
    length: u16,
    kind: Option<ObjectKind>,
}

// Names that were not retained do not count, though the text still has them.

impl PartialEq for Kinds {
    fn eq(&self, other: &Self) -> bool {
        self.not_utf8 == other.not_utf8 && self.iter().eq(other.iter())
    }
}

impl Eq for Kinds {}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Kinds {
    /// Reads the names in the directory behind `dir` and the kinds that the directory reports.
    /// Looks only at entries without a reported kind, and at directories, which may be mount
    /// points. Names reserved for the gateway are left out.
    ///
    /// # Errors
    /// [`Error::TooLarge`] past a million entries; errors of the system.
    pub(crate) fn read(dir: impl AsFd) -> Result<Self, Error> {
        Self::read_within(dir, |_| true)
    }

    /// Reads as [`Kinds::read`] as long as `room` returns true, which is called for each name with
    /// its length.
    ///
    /// # Errors
    /// [`Error::TooLarge`] also where `room` returns false.
    pub(crate) fn read_within(
        dir: impl AsFd,
        mut room: impl FnMut(usize) -> bool,
    ) -> Result<Self, Error> {
        let (mut kinds, mut has_room) = (Self::default(), true);
        kinds.not_utf8 = stream_names(&dir, |name, kind| {
            has_room = room(name.len()) && kinds.push(name, kind);
            if has_room { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if !has_room {
            return Err(Error::TooLarge);
        }
        kinds.look(dir.as_fd());
        kinds.sort();
        Ok(kinds)
    }

    /// Returns the names, sorted, with their kinds: `None` for an entry that cannot be looked at.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Option<ObjectKind>)> {
        self.slots.iter().map(|slot| (name(&self.text, slot), slot.kind))
    }

    /// Keeps the names for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str, Option<ObjectKind>) -> bool) {
        let Self { text, slots, .. } = self;
        slots.retain(|slot| keep(name(text, slot), slot.kind));
    }

    /// Returns the number of names that are not UTF-8 and so cannot be served.
    pub(crate) fn not_utf8(&self) -> u64 {
        self.not_utf8
    }

    /// Sets the number of names that are not UTF-8 to zero.
    pub(crate) fn forget_not_utf8(&mut self) {
        self.not_utf8 = 0;
    }

    fn push(&mut self, name: &str, kind: Option<ObjectKind>) -> bool {
        let (start, length) = (u32::try_from(self.text.len()), u16::try_from(name.len()));
        let (Ok(start), Ok(length)) = (start, length) else { return false };
        if self.slots.len() >= MAX_ENTRIES {
            return false;
        }
        self.slots.push(PackedName { key: 0, start, length, kind });
        self.text.push_str(name);
        true
    }

    fn look(&mut self, dir: BorrowedFd<'_>) {
        for slot in &mut self.slots {
            if matches!(slot.kind, None | Some(ObjectKind::Directory)) {
                slot.kind = entry::look(dir, name(&self.text, slot)).map(|stat| stat.kind);
            }
        }
    }

    fn sort(&mut self) {
        let Self { text, slots, .. } = self;
        let Some(first) = slots.first().map(|slot| name(text, slot)) else { return };
        let mut start = first.as_bytes();
        for slot in slots.iter() {
            let name = name(text, slot).as_bytes();
            while let Some((_, shorter)) = start.split_last()
                && !name.starts_with(start)
            {
                start = shorter;
            }
        }
        let common = start.len();
        for slot in slots.iter_mut() {
            slot.key = key(name(text, slot).as_bytes().get(common..).unwrap_or_default());
        }
        // A sort of numbers alone needs no branch for each comparison.
        slots.sort_unstable_by_key(|slot| slot.key);
        for alike in slots.chunk_by_mut(|one, other| one.key == other.key) {
            alike.sort_unstable_by(|one, other| name(text, one).cmp(name(text, other)));
        }
    }
}

fn name<'t>(text: &'t str, slot: &PackedName) -> &'t str {
    let start = slot.start as usize;
    text.get(start..start.saturating_add(slot.length.into())).unwrap_or_default()
}

/// Returns the first bytes as a number of the same order. No name has a NUL, so a shorter name
/// sorts before its continuation.
fn key(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let filled = bytes.iter().chain(std::iter::repeat(&0)).take(8);
            filled.fold(0, |key, byte| key << 8 | u64::from(*byte))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_not_kept_counts_for_nothing() {
        let mut kinds = Kinds::default();
        for name in ["open", "hidden"] {
            assert!(kinds.push(name, Some(ObjectKind::File)));
        }
        kinds.retain(|name, _| name == "open");
        assert_eq!(format!("{kinds:?}"), r#"{"open": Some(File)}"#);
        let mut alone = Kinds::default();
        assert!(alone.push("open", Some(ObjectKind::File)));
        assert_eq!(kinds, alone);
    }

    proptest! {
        #[test]
        fn names_are_sorted_as_texts_are(
            names in prop::collection::vec("(ab|entry-0000){0,1}[a-cż\u{1}\u{10ffff}]{1,12}", 0..40),
        ) {
            let mut kinds = Kinds::default();
            for name in &names {
                prop_assert!(kinds.push(name, Some(ObjectKind::File)));
            }
            kinds.sort();
            let mut sorted = names;
            sorted.sort_unstable();
            prop_assert_eq!(kinds.iter().map(|(name, _)| name).collect::<Vec<_>>(), sorted);
        }
    }
}
