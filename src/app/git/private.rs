//! The private repositories of an agent, in its scratch directories.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{Bounds, Git, ORDERED, Repository, TemporaryGitDirectories};
use crate::{
    app::{
        failure::{Context as _, Failure},
        scratch,
    },
    git::Format,
    mount::MAX_SLOTS,
    operator_files,
};

/// The maximum of scratch directories that are searched for them.
const MAX_ENTRIES: usize = 65_536;
/// The refs for the commits with which sessions began.
const STARTS: &str = "refs/portcullis/start";
/// The maximum of bytes of a count.
const MAX_COUNT: u64 = 32;
/// The maximum memory for a count, in bytes.
const MAX_COUNT_MEMORY: u64 = 512 << 20;

/// Returns the ref prefix of the branches with which `session` began.
pub(crate) fn starts(session: &str) -> String {
    format!("{STARTS}/{session}")
}

/// Finds the private repositories in `place`, which a `start` record names: at most one for each
/// session at the same time.
///
/// # Errors
/// When `place` is not beneath the directory of all scratch directories, cannot be read, or has
/// more in it than sessions make: not all would be looked at.
pub(crate) fn find(
    place: &Path,
    git: &Git,
    workshop: &TemporaryGitDirectories,
) -> Result<Vec<Repository>, Failure> {
    const DOING: &str = "cannot look for the agent's git repository";
    let base = operator_files::canonicalize(scratch::base()?).or_fail(DOING)?;
    let place = operator_files::canonicalize(place).or_fail(DOING)?;
    if !place.starts_with(&base) {
        return Err(Failure::new(format_args!(
            "the record of the session names `{}` for its scratch directories, which is not beneath `{}`",
            place.display(),
            base.display()
        ))
        .help("set XDG_DATA_HOME to what it was when the session began"));
    }
    let mut found = Vec::new();
    for slot in operator_files::read_dir(&place).or_fail(DOING)? {
        let slot = slot.or_fail(DOING)?.path();
        let Ok(entries) = operator_files::read_dir(&slot) else { continue };
        for (number, entry) in entries.enumerate() {
            if number == MAX_ENTRIES {
                return Err(Failure::new(format_args!(
                    "`{}` has more than {MAX_ENTRIES} entries, so not all were searched for the \
                     agent's git repository",
                    slot.display()
                )));
            }
            let entry = entry.or_fail(DOING)?.path();
            let is_root = operator_files::read_to_string(entry.join("path"));
            let repository = entry.join("d");
            // A file with that name was made by the agent, and may lead elsewhere.
            if is_root.is_ok_and(|path| path == ".git") && is_directory(&repository) {
                found.push(repository);
            }
        }
    }
    if found.len() > MAX_SLOTS {
        return Err(Failure::new(format_args!(
            "`{}` has {} git repositories of the agent, and sessions make at most {MAX_SLOTS}",
            place.display(),
            found.len()
        )));
    }
    found.sort();
    let found = found.into_iter().enumerate();
    found.map(|(at, path)| opened(&path, &format!("theirs-{at}"), git, workshop)).collect()
}

fn is_directory(path: &Path) -> bool {
    operator_files::symlink_metadata(path).is_ok_and(|facts| facts.is_dir())
}

/// Returns what git gets of a repository: its objects and refs.
fn opened(
    path: &Path,
    name: &str,
    git: &Git,
    workshop: &TemporaryGitDirectories,
) -> Result<Repository, Failure> {
    let parts = ["refs", "packed-refs", "reftable"];
    let there =
        parts.into_iter().filter(|part| operator_files::symlink_metadata(path.join(part)).is_ok());
    let links: Vec<(&str, PathBuf)> = there.map(|part| (part, path.join(part))).collect();
    // The format that `agent::repository` creates.
    let directory = workshop.git_directory(name, Format::Sha1, &links)?;
    let (git, objects) = (git.clone(), path.join("objects"));
    Ok(Repository { git, directory, objects, read: vec![path.to_owned()] })
}

/// True if `session` began in the repository, or git does not say.
///
/// # Errors
/// When git cannot be started.
pub(crate) fn may_be_of(repository: &Repository, session: &str) -> Result<bool, Failure> {
    let starts = starts(session);
    let running = repository.start(&["for-each-ref", "--count=1", "--format=x", &starts], &[])?;
    Ok(running.finish(|_| Ok(()), MAX_COUNT).is_none_or(|output| !output.is_empty()))
}

/// Counts the commits of `session` in all repositories of its `place`, within `limit`. `None` if
/// git failed: the repositories belong to the agent, and may have any size or structure.
///
/// # Errors
/// When git cannot be started.
pub(crate) fn count(
    place: &Path,
    session: &str,
    workspace: &Path,
    state: &Path,
    limit: Duration,
) -> Result<Option<u64>, Failure> {
    let (git, workshop) = (Git::find(workspace)?, TemporaryGitDirectories::make(state)?);
    let begun = Instant::now();
    let ask = |repository: &Repository, arguments: &[&str]| {
        let timeout = limit.saturating_sub(begun.elapsed());
        let bounds = Bounds { memory: MAX_COUNT_MEMORY, timeout, ..ORDERED };
        let running = repository.start_within(bounds, arguments, &[])?;
        let output = running.finish(|_| Ok(()), MAX_COUNT);
        Ok::<_, Failure>(output.and_then(|output| String::from_utf8(output).ok()))
    };
    let starts = starts(session);
    let not_begun = format!("--glob={starts}");
    let mut commits = 0;
    for repository in find(place, &git, &workshop)? {
        match ask(&repository, &["for-each-ref", "--count=1", "--format=x", &starts])? {
            None => return Ok(None),
            Some(none) if none.is_empty() => continue,
            Some(_) => {}
        }
        let number = ask(&repository, &["rev-list", "--count", "--branches", "--not", &not_begun])?;
        let number = number.and_then(|number| number.trim().parse::<u64>().ok());
        let Some(number) = number else { return Ok(None) };
        commits += number;
    }
    Ok(Some(commits))
}
