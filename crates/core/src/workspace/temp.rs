//! Names under which changes are prepared beside their object.

use super::Error;
use crate::{model::WorkspacePath, random::random_hex};

const PREFIX: &str = ".portcullis-";
const SUFFIX: &str = ".tmp";
const BESIDE: &str = ".conflict-";
/// Most bytes of a name (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// A random name that no agent can guess; names of this form are reserved:
/// never served, never listed.
///
/// Two more names follow from it, so that after a crash the name alone tells
/// what may be deleted: an object that a gate was still making, one that may
/// be another process's, and one that is proven to be in the vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TempName(String);

impl TempName {
    /// A new name: 128 random bits.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub(crate) fn new() -> Result<Self, Error> {
        let digits = random_hex::<16>().map_err(Error::os("get random bytes"))?;
        Ok(Self(format!("{PREFIX}{digits}{SUFFIX}")))
    }

    /// The name that an intent recorded, if it is one of ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        is_temporary(name).then(|| Self(name.to_owned()))
    }

    /// The name that a prepared object gets once it is whole. It is exchanged
    /// under this one, so what has it may be another process's.
    pub(crate) fn staged(&self) -> Self {
        self.derived(u128::from_be_bytes([0x55; 16]))
    }

    /// The name that an object moved aside gets once it is proven to be in the
    /// vault, so that after a crash what is half deleted is told from what may
    /// not be deleted.
    pub(crate) fn condemned(&self) -> Self {
        self.derived(u128::MAX)
    }

    fn derived(&self, flip: u128) -> Self {
        let random = self.0.get(PREFIX.len()..PREFIX.len() + 32).unwrap_or_default();
        let flipped = u128::from_str_radix(random, 16).map_or(0, |bits| bits ^ flip);
        Self(format!("{PREFIX}{flipped:032x}{SUFFIX}"))
    }

    /// This name and those that follow from it.
    pub(crate) fn all(&self) -> [Self; 3] {
        [self.clone(), self.staged(), self.condemned()]
    }

    /// The name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name beside `name` for an object that found its own name taken when
    /// it was to be put back: as much of `name` as there is room for.
    pub(crate) fn beside(&self, name: &str) -> String {
        let random = self.0.get(PREFIX.len()..PREFIX.len() + 8).unwrap_or_default();
        let most = MAX_NAME.saturating_sub(BESIDE.len() + random.len());
        let (name, _) = name.split_at(name.floor_char_boundary(most));
        format!("{name}{BESIDE}{random}")
    }

    /// Whether a component of `path` has a form that is kept for the gate and
    /// the operator.
    pub(crate) fn is_reserved(path: &WorkspacePath) -> bool {
        path.components().any(Self::is_reserved_name)
    }

    /// The same for one name.
    pub(crate) fn is_reserved_name(name: &str) -> bool {
        is_temporary(name) || is_beside(name)
    }
}

fn is_temporary(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix(SUFFIX))
        .is_some_and(|random| is_hex(random, 32))
}

/// Whether the name is one that [`TempName::beside`] makes. A pattern of the
/// policy that fits the object's own name need not fit this one, so it is not
/// served either; it is for the operator.
fn is_beside(name: &str) -> bool {
    // What follows has no dot, so this is the last one there is.
    name.split_at_checked(name.len().saturating_sub(8))
        .is_some_and(|(start, random)| is_hex(random, 8) && start.ends_with(BESIDE))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_names_are_reserved_and_differ() {
        let (one, other) = (TempName::new().unwrap(), TempName::new().unwrap());
        assert_ne!(one, other);
        let inside = WorkspacePath::parse(&format!("a/{}/b", one.as_str())).unwrap();
        assert!(TempName::is_reserved(&inside));
        assert!(!TempName::is_reserved(&WorkspacePath::parse("a/.portcullis-x.tmp").unwrap()));
        assert!(TempName::is_reserved_name(&one.beside("key.pem")));
        assert!(!TempName::is_reserved_name("merge.conflict-notes"));
    }

    /// It had no room for one, and could not be put back.
    #[test]
    fn a_long_name_has_one_beside_it() {
        for long in ["x".repeat(255), "ö".repeat(127), "x".to_owned() + &"𝄞".repeat(63)] {
            let beside = TempName::new().unwrap().beside(&long);
            assert!(beside.len() <= MAX_NAME && beside.len() > MAX_NAME - 4, "{beside}");
            assert!(TempName::is_reserved_name(&beside));
        }
    }
}
