//! Temporary names of changes, beside their objects.

use super::Error;
use crate::{model::WorkspacePath, random::random_hex};

const PREFIX: &str = ".portcullis-";
const SUFFIX: &str = ".tmp";
const BESIDE: &str = ".conflict-";
/// Maximum length of a name in bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// A random name that no agent can guess. Names of this form are reserved: never served, never
/// listed.
///
/// Two more names are derived from it, so that after a crash the name alone shows whether the
/// object may be deleted: one that a gateway was still making, one that may be another process's,
/// and one that is proven to be in the backup store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TempName(String);

impl TempName {
    /// Makes a name with 128 random bits.
    ///
    /// # Errors
    /// When the system returns no random bytes.
    pub(crate) fn new() -> Result<Self, Error> {
        let digits = random_hex::<16>().map_err(Error::os("get random bytes"))?;
        Ok(Self(format!("{PREFIX}{digits}{SUFFIX}")))
    }

    /// Parses the name in an intent; `None` if it has another form.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        is_temporary(name).then(|| Self(name.to_owned()))
    }

    /// Returns the name of a prepared object once it is complete. It is exchanged under this name,
    /// so an object with it may be another process's.
    pub(crate) fn staged(&self) -> Self {
        self.derived(u128::from_be_bytes([0x55; 16]))
    }

    /// Returns the name of an object that was moved aside and is proven to be in the backup store,
    /// so that after a crash a half deleted object is distinguished from one that must not be
    /// deleted.
    pub(crate) fn deletion_name(&self) -> Self {
        self.derived(u128::MAX)
    }

    fn derived(&self, flip: u128) -> Self {
        let random = self.0.get(PREFIX.len()..PREFIX.len() + 32).unwrap_or_default();
        let flipped = u128::from_str_radix(random, 16).map_or(0, |bits| bits ^ flip);
        Self(format!("{PREFIX}{flipped:032x}{SUFFIX}"))
    }

    /// Returns this name and the derived ones.
    pub(crate) fn all(&self) -> [Self; 3] {
        [self.clone(), self.staged(), self.deletion_name()]
    }

    /// Returns the name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a name beside `name` for an object whose own name was taken before its restore: as
    /// much of `name` as fits.
    pub(crate) fn beside(&self, name: &str) -> String {
        let random = self.0.get(PREFIX.len()..PREFIX.len() + 8).unwrap_or_default();
        let most = MAX_NAME.saturating_sub(BESIDE.len() + random.len());
        let (name, _) = name.split_at(name.floor_char_boundary(most));
        format!("{name}{BESIDE}{random}")
    }

    /// True if a component of `path` has a form that is reserved for the gateway and the operator.
    pub(crate) fn is_reserved(path: &WorkspacePath) -> bool {
        path.components().any(Self::is_reserved_name)
    }

    /// True if `name` has such a form.
    pub(crate) fn is_reserved_name(name: &str) -> bool {
        is_temporary(name) || is_beside(name)
    }
}

fn is_temporary(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix(SUFFIX))
        .is_some_and(|random| is_hex(random, 32))
}

/// True if the name is of the form of [`TempName::beside`]. A pattern of the policy that matches
/// the object's own name need not match this one, so it is not served either; it is for the
/// operator.
fn is_beside(name: &str) -> bool {
    // The random part has no dot, so this is the last one.
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

    /// Regression: such a name had no space for the suffix, and the object could not be restored.
    #[test]
    fn a_long_name_has_one_beside_it() {
        for long in ["x".repeat(255), "ö".repeat(127), "x".to_owned() + &"𝄞".repeat(63)] {
            let beside = TempName::new().unwrap().beside(&long);
            assert!(beside.len() <= MAX_NAME && beside.len() > MAX_NAME - 4, "{beside}");
            assert!(TempName::is_reserved_name(&beside));
        }
    }
}
