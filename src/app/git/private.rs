//! The private repositories of an agent, in its scratch place.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{Bounds, Git, ORDERED, Repository, Workshop};
use crate::{
    app::{
        failure::{Context as _, Failure},
        scratch,
    },
    git::Format,
    operator_files,
};

/// The most that are looked at: one for each session that ran at the same time.
const MAX_REPOSITORIES: usize = 8;
/// The most scratch directories that are looked through for them.
const MAX_ENTRIES: usize = 65_536;
/// Where a repository has the commits with which a session began.
const STARTS: &str = "refs/portcullis/start";
/// The most bytes of a count.
const MAX_COUNT: u64 = 32;
/// The most memory for one, in bytes.
const MAX_COUNT_MEMORY: u64 = 512 << 20;

/// Where the repository has the branches with which `session` began.
pub(crate) fn starts(session: &str) -> String {
    format!("{STARTS}/{session}")
}

/// The private repositories in `place`, that a `start` record names.
///
/// # Errors
/// When the place is not beneath the one of all scratch directories, or cannot be read.
pub(crate) fn find(
    place: &Path,
    git: &Git,
    workshop: &Workshop,
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
        for entry in entries.take(MAX_ENTRIES) {
            let entry = entry.or_fail(DOING)?.path();
            let is_root = operator_files::read_to_string(entry.join("path"));
            let repository = entry.join("d");
            // A file in its place was made by the agent, and leads elsewhere.
            if is_root.is_ok_and(|path| path == ".git") && is_directory(&repository) {
                found.push(repository);
            }
        }
    }
    found.sort();
    let found = found.into_iter().take(MAX_REPOSITORIES).enumerate();
    found.map(|(at, path)| opened(&path, &format!("theirs-{at}"), git, workshop)).collect()
}

fn is_directory(path: &Path) -> bool {
    operator_files::symlink_metadata(path).is_ok_and(|facts| facts.is_dir())
}

/// What git gets of the repository: its objects and refs.
fn opened(path: &Path, name: &str, git: &Git, workshop: &Workshop) -> Result<Repository, Failure> {
    let parts = ["refs", "packed-refs", "reftable"];
    let there =
        parts.into_iter().filter(|part| operator_files::symlink_metadata(path.join(part)).is_ok());
    let links: Vec<(&str, PathBuf)> = there.map(|part| (part, path.join(part))).collect();
    // The one that `agent::repository` makes.
    let directory = workshop.git_directory(name, Format::Sha1, &links)?;
    let (git, objects) = (git.clone(), path.join("objects"));
    Ok(Repository { git, directory, objects, read: vec![path.to_owned()] })
}

/// Counts the commits that `session` made, in any of the repositories of its `place`, within
/// `limit`. `None` if git could not: the repositories are the agent's, and may be of any size or
/// shape.
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
    let (git, workshop) = (Git::find(workspace)?, Workshop::make(state)?);
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
