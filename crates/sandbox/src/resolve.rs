//! Resolution of a path, with every name that was looked up on the way: a
//! process that can change one of these decides what the path leads to.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{FileType, lstat, readlink};

/// Maximum of links in the resolution of one path, as in the kernel
/// (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// A resolved path.
#[derive(Debug, Clone, Default)]
pub(super) struct Resolved {
    /// The path as it was given.
    pub(super) path: PathBuf,
    /// Its canonical path.
    pub(super) target: PathBuf,
    /// The symbolic links on the way, each with its target as written.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// Every name that was looked up, beneath its canonical directory; the last
    /// one is the target, unless the path ends in `..`.
    pub(super) names: Vec<PathBuf>,
}

/// Resolves an absolute path.
///
/// # Errors
/// If a name on the way cannot be looked up.
pub(super) fn resolve(path: &Path) -> io::Result<Resolved> {
    walk(path, |_| false, |_| Ok(()))
}

/// Resolves an absolute path; calls `look` before each name is looked up, and
/// fails if that fails.
///
/// # Errors
/// As [`resolve`], and as `look` returns.
pub(super) fn resolve_seen(
    path: &Path,
    look: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<Resolved> {
    walk(path, |_| false, look)
}

/// Resolves an absolute path of which only the beginning need exist, to the
/// path where it would be made. A file that is no directory, or a directory
/// that this user may not search, counts as an empty directory.
///
/// # Errors
/// If another name on the way cannot be looked up.
pub(super) fn resolve_missing(path: &Path) -> io::Result<Resolved> {
    use rustix::io::Errno;
    let may_be = |error| matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS);
    walk(path, may_be, |_| Ok(()))
}

/// Returns the canonical path of an absolute path of which only the beginning need exist.
///
/// # Errors
/// If a name on the way cannot be looked up.
pub fn canonicalize_missing(path: &Path) -> io::Result<PathBuf> {
    resolve_missing(path).map(|found| found.target)
}

fn walk(
    path: &Path,
    may_be: impl Fn(rustix::io::Errno) -> bool,
    mut look: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<Resolved> {
    let mut found = Resolved { path: path.to_owned(), ..Resolved::default() };
    let mut done = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = parts(path).collect();
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            done.pop();
            continue;
        }
        let here = done.join(&name);
        look(&here)?;
        found.names.push(here.clone());
        let is_link = match lstat(&here) {
            Ok(facts) => FileType::from_raw_mode(facts.st_mode).is_symlink(),
            Err(error) if may_be(error) => false,
            Err(error) => return Err(error.into()),
        };
        if !is_link {
            done = here;
            continue;
        }
        if found.links.len() >= MAX_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let says = readlink(&here, Vec::new())?.into_bytes();
        let says = PathBuf::from(OsString::from_vec(says));
        if says.is_absolute() {
            done = PathBuf::from("/");
        }
        for part in parts(&says).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
        found.links.push((here, says));
    }
    Ok(Resolved { target: done, ..found })
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{Mode, mkdir};

    use super::*;

    #[test]
    fn every_name_on_the_way_is_told_with_where_the_path_would_be_made() {
        let place = tempfile::tempdir().unwrap();
        let base = resolve(place.path()).unwrap().target;
        mkdir(base.join("dir"), Mode::RWXU).unwrap();
        symlink("dir/../missing", base.join("link")).unwrap();
        let path = base.join("link/deep/./file");
        assert_eq!(resolve(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let found = resolve_missing(&path).unwrap();
        assert_eq!(found.target, base.join("missing/deep/file"));
        let names = ["link", "dir", "missing", "missing/deep", "missing/deep/file"];
        assert!(found.names.ends_with(&names.map(|name| base.join(name))), "{found:?}");
        assert_eq!(resolve_missing(Path::new("/dev/null/x")).unwrap().names.len(), 3);
        symlink("loop", base.join("loop")).unwrap();
        assert!(resolve_missing(&base.join("loop/x")).is_err());
        assert_eq!(resolve(&base.join("dir/..")).unwrap().target, base);
    }
}
