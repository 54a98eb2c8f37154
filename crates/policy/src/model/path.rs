//! A path inside the workspace.

use std::fmt;

use super::text::{Quoted, QuotedName, distinct, has_hidden_characters};

/// A path relative to the workspace root: UTF-8, no `..`, no NUL, bounded.
///
/// `.` components, repeated and trailing slashes are dropped while parsing, so two values are equal
/// exactly if they name the same directory entry lexically. The root itself is the empty path and
/// prints as `.`.
///
/// The only constructors are [`WorkspacePath::parse`] and those derived from an existing value, so
/// code that has one never checks again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(String);

/// Reasons why a text is not a [`WorkspacePath`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path starts with a slash.
    #[error("path is absolute; give it relative to the workspace root")]
    Absolute,
    /// A component is `..`.
    #[error("path contains `..`")]
    Parent,
    /// The path contains a NUL byte.
    #[error("path contains a NUL byte")]
    Nul,
    /// A component is longer than [`WorkspacePath::MAX_COMPONENT`] bytes.
    #[error("a component of the path is longer than 255 bytes")]
    ComponentTooLong,
    /// The path is longer than [`WorkspacePath::MAX_BYTES`] bytes.
    #[error("path is longer than 4095 bytes")]
    TooLong,
}

impl WorkspacePath {
    /// Maximum length of a path in bytes: Linux `PATH_MAX` less the terminating NUL.
    pub const MAX_BYTES: usize = 4095;
    /// Maximum length of a component in bytes: Linux `NAME_MAX`.
    pub const MAX_COMPONENT: usize = 255;

    /// Returns the workspace root.
    pub fn root() -> Self {
        Self(String::new())
    }

    /// Parses a relative path, without access to a disk.
    ///
    /// # Errors
    /// Refuses absolute paths, `..`, NUL bytes and over-long paths.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.starts_with('/') {
            return Err(PathError::Absolute);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(PathError::TooLong);
        }
        let mut parsed = Self(String::with_capacity(text.len()));
        for component in text.split('/') {
            match component {
                "" | "." => {}
                ".." => return Err(PathError::Parent),
                name => parsed.push(name)?,
            }
        }
        Ok(parsed)
    }

    /// Returns the path of the entry `name` in this directory.
    ///
    /// # Errors
    /// Refuses a name that is not exactly one component.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        let mut joined = Self(String::with_capacity(self.0.len() + 1 + name.len()));
        self.join_into(name, &mut joined)?;
        Ok(joined)
    }

    /// Sets `joined` to the path of the entry `name` in this directory, for callers that join many
    /// names in sequence. After an error it is the root.
    ///
    /// # Errors
    /// Refuses a name that is not exactly one component.
    pub fn join_into(&self, name: &str, joined: &mut Self) -> Result<(), PathError> {
        joined.0.clear();
        match name {
            "" | "." | ".." => return Err(PathError::Parent),
            name if has(name, b'/') => return Err(PathError::Absolute),
            _ => {}
        }
        joined.0.push_str(&self.0);
        joined.push(name).inspect_err(|_error| joined.0.clear())
    }

    /// True if the path of the entry `name`, which is one component, is not too long.
    pub fn has_room_for(&self, name: &str) -> bool {
        name.len() <= Self::MAX_COMPONENT && self.0.len() + 1 + name.len() <= Self::MAX_BYTES
    }

    fn push(&mut self, name: &str) -> Result<(), PathError> {
        if has(name, 0) {
            return Err(PathError::Nul);
        }
        if name.len() > Self::MAX_COMPONENT {
            return Err(PathError::ComponentTooLong);
        }
        if !self.0.is_empty() {
            self.0.push('/');
        }
        self.0.push_str(name);
        if self.0.len() > Self::MAX_BYTES { Err(PathError::TooLong) } else { Ok(()) }
    }

    /// Returns the raw text, without a leading slash; empty for the root.
    ///
    /// For people, use [`Display`](fmt::Display), which escapes so that no two paths look alike.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the raw text for programs; `.` for the root.
    pub fn relative(&self) -> &str {
        if self.is_root() { "." } else { &self.0 }
    }

    /// Returns the path as it is shown among other text of a line.
    pub fn quoted(&self) -> Quoted<'_> {
        Quoted(self.relative())
    }

    /// Returns the path as it is shown in a sentence.
    pub fn named(&self) -> QuotedName<'_> {
        QuotedName(self.relative())
    }

    /// True if this is the workspace root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the components, outermost first; none for the root.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|component| !component.is_empty())
    }

    /// Returns the last component, `None` for the root.
    pub fn file_name(&self) -> Option<&str> {
        self.components().next_back()
    }

    /// Returns the directory that contains this entry, `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(Self(self.0.rsplit_once('/').map_or_else(String::new, |(dir, _)| dir.to_owned())))
    }

    /// Returns every directory above this entry, the root first, this entry excluded.
    pub fn ancestors(&self) -> Vec<Self> {
        let mut ancestors: Vec<Self> = std::iter::successors(self.parent(), Self::parent).collect();
        ancestors.reverse();
        ancestors
    }

    /// True if this is `directory` itself or beneath it.
    pub fn is_within(&self, directory: &Self) -> bool {
        match self.0.strip_prefix(&directory.0) {
            Some(rest) => directory.is_root() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }

    /// Returns the path of the entry after its ancestor `from` was renamed to `to`; `None` if it is
    /// not within `from` or the new path is too long.
    pub fn rebase(&self, from: &Self, to: &Self) -> Option<Self> {
        if !self.is_within(from) {
            return None;
        }
        let rest = self.0.strip_prefix(&from.0)?.trim_start_matches('/');
        let mut moved = to.clone();
        for component in rest.split('/').filter(|component| !component.is_empty()) {
            moved.push(component).ok()?;
        }
        Some(moved)
    }

    /// True if a name in this path contains control, bidirectional or zero-width characters; such
    /// names are never created.
    pub fn has_hidden_characters(&self) -> bool {
        has_hidden_characters(&self.0)
    }
}

/// True if a short text contains an ASCII character. Without an early exit several bytes are
/// compared at once.
fn has(text: &str, ascii: u8) -> bool {
    text.bytes().fold(false, |found, byte| found | (byte == ascii))
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&distinct(self.relative(), &[]))
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkspacePath({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    #[test]
    fn drops_dots_and_repeated_slashes() {
        assert_eq!(path("./a//b/./c/").as_str(), "a/b/c");
        assert!(path("").is_root());
        assert!(path(".").is_root());
        assert_eq!(path(".").to_string(), ".");
    }

    #[test]
    fn refuses_what_leaves_the_root_or_is_not_a_path() {
        assert_eq!(WorkspacePath::parse("/etc/passwd"), Err(PathError::Absolute));
        assert_eq!(WorkspacePath::parse("a/../b"), Err(PathError::Parent));
        assert_eq!(WorkspacePath::parse("a\0b"), Err(PathError::Nul));
        assert_eq!(WorkspacePath::parse(&"x".repeat(256)), Err(PathError::ComponentTooLong));
        assert_eq!(WorkspacePath::parse(&"x/".repeat(2048)), Err(PathError::TooLong));
    }

    #[test]
    fn within_respects_component_borders() {
        assert!(path("ws/a").is_within(&path("ws")));
        assert!(path("ws").is_within(&path("ws")));
        assert!(!path("ws-evil").is_within(&path("ws")));
        assert!(path("anything").is_within(&WorkspacePath::root()));
    }

    #[test]
    fn ancestors_are_listed_from_the_root() {
        let names: Vec<_> = path("a/b/c").ancestors().iter().map(ToString::to_string).collect();
        assert_eq!(names, [".", "a", "a/b"]);
        assert!(WorkspacePath::root().ancestors().is_empty());
    }

    #[test]
    fn rebase_moves_descendants_only() {
        assert_eq!(path("a/b/c").rebase(&path("a"), &path("x/y")), Some(path("x/y/b/c")));
        assert_eq!(path("a").rebase(&path("a"), &path("b")), Some(path("b")));
        assert_eq!(path("ab").rebase(&path("a"), &path("b")), None);
    }

    proptest! {
        #[test]
        fn parsed_paths_are_normal_and_stable(text in any::<String>()) {
            if let Ok(parsed) = WorkspacePath::parse(&text) {
                prop_assert!(!parsed.as_str().starts_with('/'));
                prop_assert!(parsed.components().all(|c| !matches!(c, "" | "." | "..")));
                prop_assert!(!parsed.as_str().contains('\0'));
                prop_assert_eq!(WorkspacePath::parse(parsed.as_str()), Ok(parsed));
            }
        }

        #[test]
        fn paths_of_hostile_pieces_never_escape(
            pieces in prop::collection::vec(
                prop::sample::select(vec!["..", ".", "", "a", "b.env", "~", "%2e%2e", "\u{202e}", "x\0"]), 0..12)
        ) {
            let text = pieces.join("/");
            match WorkspacePath::parse(&text) {
                Ok(parsed) => {
                    prop_assert!(!pieces.contains(&".."));
                    let expected: Vec<_> =
                        pieces.iter().copied().filter(|p| !matches!(*p, "" | ".")).collect();
                    prop_assert_eq!(parsed.components().collect::<Vec<_>>(), expected);
                }
                Err(_) => prop_assert!(
                    text.starts_with('/') || pieces.contains(&"..") || text.contains('\0')),
            }
        }

        #[test]
        fn joining_then_taking_the_parent_gives_the_directory_back(
            dir in "([a-z]{1,8}/){0,4}", name in "[a-z.]{1,8}"
        ) {
            let dir = WorkspacePath::parse(&dir).unwrap();
            let mut into = WorkspacePath::parse("some/other").unwrap();
            let result = dir.join_into(&name, &mut into);
            prop_assert_eq!(result.map(|()| into), dir.join(&name));
            if let Ok(joined) = dir.join(&name) {
                prop_assert_eq!(joined.parent(), Some(dir.clone()));
                prop_assert_eq!(joined.file_name(), Some(name.as_str()));
                prop_assert!(joined.is_within(&dir));
            }
        }
    }
}
