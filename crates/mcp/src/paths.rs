//! Conversion of absolute paths, as ACP uses them, to workspace paths and back.
//!
//! The conversion is lexical: links are resolved by the gateway.

use std::path::Path;

use crate::model::{PathError, WorkspacePath};

/// The workspace root under its canonical and its alias path.
#[derive(Debug, Clone)]
pub struct Roots {
    roots: Vec<Vec<String>>,
}

/// The reason why a text is no path in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideWorkspace {
    /// The text does not start with a slash.
    Relative,
    /// The path does not lie beneath the root.
    Outside,
    /// The gateway does not accept such a path.
    Path(PathError),
}

impl Roots {
    /// Takes the canonical path of the workspace, which the editor sees, and its
    /// `alias`, the path that the user gave if that leads through a link.
    pub fn new(canonical: &Path, alias: Option<&Path>) -> Self {
        let roots = [Some(canonical), alias].into_iter().flatten().filter_map(Path::to_str);
        Self { roots: roots.map(|root| components(root).map(str::to_owned).collect()).collect() }
    }

    /// Returns the workspace path of an absolute path.
    pub fn relative(&self, text: &str) -> Result<WorkspacePath, OutsideWorkspace> {
        if !text.starts_with('/') {
            return Err(OutsideWorkspace::Relative);
        }
        if components(text).any(|component| component == "..") {
            return Err(OutsideWorkspace::Path(PathError::Parent));
        }
        let beneath = |root: &Vec<String>| {
            let mut rest = components(text);
            root.iter().all(|name| rest.next() == Some(name)).then(|| rest.collect::<Vec<_>>())
        };
        let rest = self.roots.iter().find_map(beneath).ok_or(OutsideWorkspace::Outside)?;
        WorkspacePath::parse(&rest.join("/")).map_err(OutsideWorkspace::Path)
    }

    /// Returns the absolute path of a workspace path.
    pub fn absolute(&self, path: &WorkspacePath) -> String {
        let root = self.roots.first().into_iter().flatten().map(String::as_str);
        root.chain(path.components()).fold(String::new(), |text, name| text + "/" + name)
    }
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !matches!(*component, "" | "."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roots() -> Roots {
        Roots::new(Path::new("/home/u/ws"), Some(Path::new("/proj/")))
    }

    fn relative(text: &str) -> Result<String, OutsideWorkspace> {
        roots().relative(text).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn only_what_lies_beneath_the_root_is_inside() {
        assert_eq!(relative("/home/u/ws/a/b.txt"), Ok("a/b.txt".into()));
        assert_eq!(relative("//home/./u//ws/a/"), Ok("a".into()));
        assert_eq!(relative("/proj/a"), Ok("a".into()));
        assert_eq!(relative("/home/u/ws"), Ok(String::new()));
        for outside in [
            "/",
            "/home/u/ws-evil/a",
            "/home/u/w",
            "/home/u",
            "/etc/passwd",
            "/home/u/ws%2fa",
            "/HOME/u/ws/a",
        ] {
            assert_eq!(relative(outside), Err(OutsideWorkspace::Outside), "{outside}");
        }
        for parent in ["/home/u/ws/../ws/a", "/home/u/ws/a/..", "/etc/../home/u/ws/a"] {
            assert_eq!(
                relative(parent),
                Err(OutsideWorkspace::Path(PathError::Parent)),
                "{parent}"
            );
        }
        for bad in ["", "a", "~/a", "./a", "file:///home/u/ws/a"] {
            assert_eq!(relative(bad), Err(OutsideWorkspace::Relative), "{bad}");
        }
        assert_eq!(relative("/home/u/ws/a\0"), Err(OutsideWorkspace::Path(PathError::Nul)));
    }

    #[test]
    fn a_root_that_is_not_utf8_contains_nothing() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let roots = Roots::new(Path::new(OsStr::from_bytes(b"/w\xff")), None);
        assert_eq!(roots.relative("/a"), Err(OutsideWorkspace::Outside));
    }

    proptest! {
        #[test]
        fn absolute_and_relative_are_inverse(path in "([a-z.]{1,5}/){0,4}[a-z]{1,5}") {
            prop_assume!(!path.split('/').any(|name| name == ".."));
            let path = WorkspacePath::parse(&path).unwrap();
            prop_assert_eq!(roots().relative(&roots().absolute(&path)), Ok(path));
        }
    }
}
