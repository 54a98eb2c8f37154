//! The checked-out commit of a workspace. It is found without git, and nothing in the repository
//! is trusted but this name: objects are verified by their hashes.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

use crate::git::ObjectId;

/// The maximum size of a file with one ref, and of `packed-refs`.
const MAX_REF: u64 = 4096;
const MAX_PACKED: u64 = 64 << 20;
/// The maximum of symbolic refs followed.
const MAX_DEPTH: usize = 5;

/// A commit with its branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) commit: ObjectId,
    pub(crate) branch: Option<String>,
}

impl Head {
    /// Returns the commit of the repository whose directory is `.git` in the workspace root.
    /// `None` if there is none, or no commit, or the repository has an unsupported format.
    pub(crate) fn of(root: &Path) -> Option<Self> {
        let repository = directory(root).ok()?;
        let (mut name, mut branch) = ("HEAD".to_owned(), None);
        for _ in 0..MAX_DEPTH {
            let text = match read(&repository, &name, MAX_REF) {
                Ok(text) => text,
                Err(Errno::NOENT | Errno::NOTDIR) => packed(&repository, &name)?,
                Err(_) => return None,
            };
            let text = text.trim_end();
            let Some(target) = text.strip_prefix("ref: ") else {
                return Some(Self { commit: ObjectId::parse(text)?, branch });
            };
            if !target.starts_with("refs/") {
                return None;
            }
            target.clone_into(&mut name);
            branch = Some(name.clone());
        }
        None
    }
}

/// Opens the directory `.git`. A file with that name belongs to another repository.
fn directory(root: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat2(CWD, root.join(".git"), flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Reads a regular file beneath a directory, without following links.
fn read(directory: impl AsFd, name: &str, most: u64) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(directory, name, flags, Mode::empty(), resolve)?;
    let facts = fstat(&file)?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    let mut text = String::new();
    let read = File::from(file).take(most + 1).read_to_string(&mut text);
    match read.map(|read| u64::try_from(read).is_ok_and(|read| read <= most)) {
        Ok(true) => Ok(text),
        Ok(false) => Err(Errno::FBIG),
        Err(error) => Err(errno(&error)),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Returns the value of a ref in `packed-refs`.
fn packed(repository: &OwnedFd, name: &str) -> Option<String> {
    let all = read(repository, "packed-refs", MAX_PACKED).ok()?;
    let mut lines = all.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, found)| *found == name).map(|(commit, _)| commit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    #[test]
    fn the_commit_is_found_loose_packed_and_detached() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(".git").join(name);
            operator_files::create_dir_all(path.parent().unwrap()).unwrap();
            operator_files::write(path, text).unwrap();
        };
        let head = || Head::of(place.path()).map(|h| (h.commit.to_string(), h.branch));
        assert_eq!(head(), None);
        write("HEAD", "ref: refs/heads/a/b\n");
        assert_eq!(head(), None);
        write("packed-refs", &format!("# pack-refs\n{TWO} refs/heads/a/b\n^{ONE}\n"));
        assert_eq!(head(), Some((TWO.to_owned(), Some("refs/heads/a/b".to_owned()))));
        write("refs/heads/a/b", &format!("{ONE}\n"));
        assert_eq!(head(), Some((ONE.to_owned(), Some("refs/heads/a/b".to_owned()))));
        write("HEAD", &format!("{TWO}\n"));
        assert_eq!(head(), Some((TWO.to_owned(), None)));
    }

    #[test]
    fn nothing_leads_out_of_the_repository() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        operator_files::write(&outside, ONE).unwrap();
        let git = place.path().join(".git");
        operator_files::create_dir_all(git.join("refs")).unwrap();
        for head in ["ref: refs/../../outside\n", "ref: /etc/passwd\n", "ref: HEAD\n", "x\n"] {
            operator_files::write(git.join("HEAD"), head).unwrap();
            assert_eq!(Head::of(place.path()), None, "{head}");
        }
        std::os::unix::fs::symlink(&outside, git.join("refs/link")).unwrap();
        operator_files::write(git.join("HEAD"), "ref: refs/link\n").unwrap();
        assert_eq!(Head::of(place.path()), None);
        operator_files::remove_file(git.join("HEAD")).unwrap();
        std::os::unix::fs::symlink(&outside, git.join("HEAD")).unwrap();
        assert_eq!(Head::of(place.path()), None);
    }
}
