//! Names of directories that are still to be searched, packed: a directory may have a million.

/// The byte before a name without a mark, and before one with it.
const MARKS: [u8; 2] = *b"-+";

/// A stack of names, each with or without a mark.
#[derive(Debug, Default)]
pub(super) struct PendingNames {
    packed: Vec<u8>,
    count: usize,
}

impl PendingNames {
    /// Adds a name, which has no NUL.
    pub(super) fn push(&mut self, name: &str, marked: bool) {
        let [plain, mark] = MARKS;
        self.packed.push(if marked { mark } else { plain });
        self.packed.extend_from_slice(name.as_bytes());
        self.packed.push(0);
        self.count += 1;
    }

    /// Takes the name that was added last; true if it has a mark.
    pub(super) fn pop(&mut self) -> Option<(String, bool)> {
        self.packed.pop()?;
        let start = self.packed.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1);
        let bytes = self.packed.split_off(start);
        self.count = self.count.saturating_sub(1);
        let (mark, name) = bytes.split_first()?;
        let [_, marked] = MARKS;
        Some((String::from_utf8(name.to_vec()).ok()?, *mark == marked))
    }

    /// Returns the number of names.
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_backwards() {
        let mut names = PendingNames::default();
        let added = [("+", false), ("a\n", true), ("-x", true), ("żółć", false)];
        added.iter().for_each(|(name, mark)| names.push(name, *mark));
        assert_eq!(names.len(), 4);
        for (name, mark) in added.iter().rev() {
            assert_eq!(names.pop(), Some(((*name).to_owned(), *mark)));
        }
        assert_eq!((names.pop(), names.len()), (None, 0));
    }
}
