//! The repository of a workspace. Git may read its objects only: no configuration, hooks, grafts,
//! or borrowed objects of another repository.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Bounds, Git, ORDERED, Piped, Repository, TemporaryGitDirectories, directories::Directories,
    head::Head,
};
use crate::{
    app::failure::{Context as _, Failure},
    git::Format,
    model::WorkspacePath,
};

/// The maximum of bytes of the names of tracked files.
const MAX_NAMES: u64 = 256 << 20;

/// Timeout of the list of tracked files, without which a lint goes on.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns its objects, for processes that read.
///
/// # Errors
/// When a file that git would open is no regular one, or the git directory cannot be made.
pub(crate) fn objects(
    directories: &Directories,
    format: Format,
    git: &Git,
    workshop: &TemporaryGitDirectories,
) -> Result<Repository, Failure> {
    directories.check_files()?;
    let objects = directories.common.join("objects");
    let directory = workshop.git_directory("ours", format, &[])?;
    Ok(Repository { git: git.clone(), directory, objects, read: Vec::new() })
}

/// A commit with its history, as a pack.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) commit: String,
    pub(crate) pack: Piped,
    _workshop: TemporaryGitDirectories,
}

impl History {
    /// Starts to pack the checked-out commit; `None` if there is none.
    ///
    /// # Errors
    /// When the repository is not accepted, a private one, which uses SHA-1, cannot contain the
    /// commit, or git cannot be started.
    pub(crate) fn pack(
        root: &Path,
        writable: &[PathBuf],
        state: &Path,
    ) -> Result<Option<Self>, Failure> {
        let Some(directories) = Directories::of(root, writable)? else { return Ok(None) };
        let Some(head) = Head::of(&directories)? else { return Ok(None) };
        if head.commit.format() != Format::Sha1 {
            return Err(Failure::new(
                "the objects of the workspace's repository have SHA-256 names",
            ));
        }
        let (git, workshop) = (Git::find(root)?, TemporaryGitDirectories::make(state)?);
        // Existing deltas are reused, and no others are computed.
        let arguments = [
            "-c",
            "pack.threads=1",
            "pack-objects",
            "-q",
            "--revs",
            "--stdout",
            "--window=0",
            "--delta-base-offset",
            "--no-use-bitmap-index",
        ];
        let commit = head.commit.to_string();
        let repository = objects(&directories, Format::Sha1, &git, &workshop)?;
        let pack = repository.start(&arguments, &[])?.piped(&format!("{commit}\n"));
        let pack = pack.or_fail("git took no commit to pack")?;
        Ok(Some(Self { commit, pack, _workshop: workshop }))
    }
}

/// Returns the files of the checked-out commit, except those whose names are no workspace paths;
/// `None` if there is no commit.
///
/// # Errors
/// When the repository is not accepted, or git cannot read them.
pub(crate) fn tracked(root: &Path, place: &Path) -> Result<Option<Vec<WorkspacePath>>, Failure> {
    let Some(directories) = Directories::of(root, &[])? else { return Ok(None) };
    let Some(head) = Head::of(&directories)? else { return Ok(None) };
    let (git, workshop) = (Git::find(root)?, TemporaryGitDirectories::make(place)?);
    let repository = objects(&directories, head.commit.format(), &git, &workshop)?;
    let commit = head.commit.to_string();
    let list = ["ls-tree", "-r", "-z", "--name-only", &commit];
    let bounds = Bounds { timeout: LIST_TIMEOUT, ..ORDERED };
    let begun = Instant::now();
    let names = repository.start_within(bounds, &list, &[])?.finish(|_| Ok(()), MAX_NAMES);
    let names = names.ok_or_else(|| match begun.elapsed() >= LIST_TIMEOUT {
        true => Failure::new(format_args!(
            "git did not list the files of the commit within {} s; an object of the repository may \
             be no regular file",
            LIST_TIMEOUT.as_secs()
        )),
        false => Failure::new("git did not list the files of the commit"),
    })?;
    // Each name ends with a NUL: an empty one after the last would be the root.
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names = names.filter_map(|name| str::from_utf8(name).ok());
    Ok(Some(names.filter_map(|name| WorkspacePath::parse(name).ok()).collect()))
}
