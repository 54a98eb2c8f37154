//! The workspace's `.gitignore` files, which a search heeds unless it is told not to.
//!
//! They are read through descriptors and as the agent may read them: else what is left
//! out would tell what they say. Files outside the workspace and `.git/info/exclude` are
//! not looked at.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ::ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::fs::OFlags;

use super::{
    super::{Context, Findings},
    dialect::patterns,
    tally::Skipped,
};
use crate::{
    model::{Access, OperationKind, WorkspacePath},
    policy::{ObjectKind, Query, Sight},
    workspace::{Stat, read_bounded},
};

const NAME: &str = ".gitignore";
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
    pub(super) fn within(
        above: Option<&Arc<Self>>,
        context: &Context<'_>,
        directory: &WorkspacePath,
        spent: &Spent,
    ) -> (Option<Arc<Self>>, Option<Skipped>) {
        let inherited = above.map(Arc::clone);
        let Some(text) = read(context, directory) else { return (inherited, None) };
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if length > LARGEST || spent.0.fetch_add(length, Ordering::Relaxed) > MOST {
            return (inherited, Some(Skipped::Gitignore));
        }
        let Some(text) = seen(context, directory, text) else {
            return (inherited, Some(Skipped::Gitignore));
        };
        // Its paths are given relative to itself.
        let mut builder = GitignoreBuilder::new(".");
        for line in patterns(&String::from_utf8_lossy(&text)) {
            // As git, pass over what is no pattern.
            let _ = builder.add_line(None, &line);
        }
        let Ok(matcher) = builder.build() else { return (inherited, Some(Skipped::Gitignore)) };
        let start = directory.as_str().len() + usize::from(!directory.is_root());
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

/// The file's content as a reader sees it. Nothing of it goes out, so the log has no
/// findings.
fn seen(context: &Context<'_>, directory: &WorkspacePath, text: Vec<u8>) -> Option<Vec<u8>> {
    let path = directory.join(NAME).ok()?;
    let findings = Findings::default();
    let context = Context { findings: &findings, ..*context };
    Some(context.disclose(&path, text).ok()?.bytes)
}

/// The directory's file, at most one byte more than is heeded.
fn read(context: &Context<'_>, directory: &WorkspacePath) -> Option<Vec<u8>> {
    let path = directory.join(NAME).ok()?;
    // Found by another name, it would ignore something and disclose nothing.
    let file = context.workspace.open_listed(&path, OFlags::RDONLY).ok()?;
    let stat = Stat::of(&file).ok()?;
    if stat.kind != ObjectKind::File {
        return None;
    }
    let (operation, access) = (OperationKind::Read, Access::Read);
    let query = Query { agent: context.agent, operation, access, path: &path };
    match context.policy.sight(&query, &stat.object(false)) {
        Sight::Shown { .. } => read_bounded(&File::from(file), stat.size, LARGEST).ok(),
        _ => None,
    }
}
