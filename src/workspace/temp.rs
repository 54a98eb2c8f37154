//! Names under which changes are prepared beside their object.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

use super::Error;
use crate::model::WorkspacePath;

const PREFIX: &str = ".portcullis-";
const SUFFIX: &str = ".tmp";

/// A random name that no agent can guess; names of this form are reserved:
/// never served, never listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TempName(String);

impl TempName {
    /// A new name: 128 random bits.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new() -> Result<Self, Error> {
        let mut bytes = [0_u8; 16];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(Error::os("get random bytes"))?;
        if filled != bytes.len() {
            return Err(Error::Os { action: "get random bytes", errno: Errno::IO });
        }
        Ok(Self(format!("{PREFIX}{:032x}{SUFFIX}", u128::from_be_bytes(bytes))))
    }

    /// The name that an intent recorded, if it is one of ours.
    pub fn parse(name: &str) -> Option<Self> {
        is_reserved_name(name).then(|| Self(name.to_owned()))
    }

    /// The name that an object moved aside gets once it is proven to be in the
    /// vault, so that after a crash what is half deleted is told from what may
    /// not be deleted.
    pub fn condemned(&self) -> Self {
        let random = self.0.get(PREFIX.len()..PREFIX.len() + 32).unwrap_or_default();
        let flipped = u128::from_str_radix(random, 16).map_or(0, |bits| !bits);
        Self(format!("{PREFIX}{flipped:032x}{SUFFIX}"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a component of `path` has the form of such a name.
    pub fn is_reserved(path: &WorkspacePath) -> bool {
        path.components().any(is_reserved_name)
    }
}

fn is_reserved_name(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix(SUFFIX))
        .is_some_and(|random| random.len() == 32 && random.bytes().all(|b| b.is_ascii_hexdigit()))
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
    }
}
