//! The workspace's `.gitignore` files, which a search heeds unless it is told not to.
//!
//! They are read as the agent may read them: else what is left out would tell what they
//! say. Files outside the workspace and `.git/info/exclude` are not looked at.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ::ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use crate::{Skipped, View, dialect::patterns, model::WorkspacePath};

/// What git never tracks.
const GIT: &str = ".git";
/// Largest file that is heeded, in bytes.
const LARGEST: u64 = 64 << 10;
/// Most bytes of all that one search heeds: compiled they need many times that.
const MOST: u64 = 256 << 10;

/// How much has been read for one search.
#[derive(Debug, Default)]
pub(super) struct Spent(AtomicU64);

/// The file of one directory, and those of the directories above.
#[derive(Debug)]
pub(super) struct Ignores {
    above: Option<Arc<Self>>,
    /// Length of the directory's path with the slash after it.
    start: usize,
    matcher: Gitignore,
}

impl Ignores {
    /// What applies in `directory`, where `above` applies above it. A file that may be
    /// read and cannot be heeded is a reason to count.
    pub(super) fn within<V: View>(
        above: Option<&Arc<Self>>,
        view: &V,
        directory: &V::Directory,
        spent: &Spent,
    ) -> (Option<Arc<Self>>, Option<Skipped>) {
        let inherited = above.map(Arc::clone);
        let most = if spent.0.load(Ordering::Relaxed) > MOST { 0 } else { LARGEST };
        let text = match view.ignore_file(directory, most) {
            Ok(Some(text)) => text,
            Ok(None) => return (inherited, None),
            Err(why) => return (inherited, Some(why)),
        };
        spent.0.fetch_add(u64::try_from(text.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        // Its paths are given relative to itself.
        let mut builder = GitignoreBuilder::new(".");
        for line in patterns(&String::from_utf8_lossy(&text)) {
            // As git, pass over what is no pattern.
            let _ = builder.add_line(None, &line);
        }
        let Ok(matcher) = builder.build() else { return (inherited, Some(Skipped::Gitignore)) };
        let path = directory.as_ref();
        let start = path.as_str().len() + usize::from(!path.is_root());
        (Some(Arc::new(Self { above: inherited, start, matcher })), None)
    }

    /// Whether the path is ignored by the nearest file that says anything of
    /// it. That of directories above it was asked when they were met.
    pub(super) fn ignore(&self, path: &WorkspacePath, directory: bool) -> bool {
        let mut ignores = Some(self);
        while let Some(here) = ignores {
            match here
                .matcher
                .matched(path.as_str().get(here.start..).unwrap_or_default(), directory)
            {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => ignores = here.above.as_deref(),
            }
        }
        false
    }

    /// Whether the name is git's own.
    pub(super) fn is_git(name: &str) -> bool {
        name == GIT
    }
}
