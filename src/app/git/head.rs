//! The checked-out commit of a workspace. It is found without git, and nothing in the repository
//! is trusted but this name: objects are verified by their hashes.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::directories::{Directories, open, read};
use crate::{app::failure::Failure, git::ObjectId, operator_files};

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
    /// Returns the commit that is checked out in a workspace; `None` if that has no repository.
    ///
    /// # Errors
    /// When an import could build on no commit of the repository.
    pub(crate) fn of_workspace(root: &Path, writable: &[PathBuf]) -> Result<Option<Self>, Failure> {
        if operator_files::symlink_metadata(root.join(".git")).is_err() {
            return Ok(None);
        }
        let directories = Directories::of(root, writable)?
            .ok_or_else(|| Failure::new("`.git` is neither a git repository nor its file"))?;
        let head = Self::of(&directories)?.ok_or_else(|| {
            Failure::new("HEAD of the workspace's repository names no commit")
                .help("commit before the session")
        })?;
        Ok(Some(head))
    }

    /// Returns the commit that is checked out in the work tree of a repository. `None` if there is
    /// none.
    ///
    /// # Errors
    /// When the repository has its refs in a format that is not read here.
    pub(crate) fn of(directories: &Directories) -> Result<Option<Self>, Failure> {
        match operator_files::symlink_metadata(directories.common.join("reftable")) {
            Ok(_) => Err(Failure::new("the workspace's repository has its refs in a reftable")
                .help(
                    "`git refs migrate --ref-format=files` gives it one file for each; before git \
                     2.48 that needs a repository without reflogs",
                )),
            Err(_) => Ok(Self::in_files(directories)),
        }
    }

    fn in_files(directories: &Directories) -> Option<Self> {
        let common = open(&directories.common).ok()?;
        let mut directory = open(&directories.git).ok()?;
        let (mut name, mut branch) = ("HEAD".to_owned(), None);
        for _ in 0..MAX_DEPTH {
            let text = match read(&directory, &name, MAX_REF) {
                Ok(text) => text,
                Err(Errno::NOENT | Errno::NOTDIR) => packed(&common, &name)?,
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
            directory = common.try_clone().ok()?;
            branch = Some(name.clone());
        }
        None
    }
}

/// Returns the value of a ref in `packed-refs`.
fn packed(repository: &OwnedFd, name: &str) -> Option<String> {
    let all = read(repository, "packed-refs", MAX_PACKED).ok()?;
    let mut lines = all.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, found)| *found == name).map(|(commit, _)| commit.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::operator_files;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    /// Returns the commit of the repository whose directory is `.git`.
    fn of(root: &Path) -> Option<Head> {
        let git = operator_files::canonicalize(root).unwrap().join(".git");
        Head::of(&Directories { common: git.clone(), git }).unwrap()
    }

    #[test]
    fn the_commit_is_found_loose_packed_and_detached() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(".git").join(name);
            operator_files::create_dir_all(path.parent().unwrap()).unwrap();
            operator_files::write(path, text).unwrap();
        };
        let head = || of(place.path()).map(|h| (h.commit.to_string(), h.branch));
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
            assert_eq!(of(place.path()), None, "{head}");
        }
        std::os::unix::fs::symlink(&outside, git.join("refs/link")).unwrap();
        operator_files::write(git.join("HEAD"), "ref: refs/link\n").unwrap();
        assert_eq!(of(place.path()), None);
        operator_files::remove_file(git.join("HEAD")).unwrap();
        std::os::unix::fs::symlink(&outside, git.join("HEAD")).unwrap();
        assert_eq!(of(place.path()), None);
    }
}
