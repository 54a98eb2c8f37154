//! The workspace's `.gitignore` files, which a search obeys by default.
//!
//! They are read as the agent may read them: otherwise the omitted entries would disclose their
//! content. Files outside the workspace and `.git/info/exclude` are not read.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ::ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use crate::{Skipped, View, dialect::patterns, model::WorkspacePath};

/// The directory that git never tracks.
const GIT: &str = ".git";
/// Maximum size of a file that is obeyed, in bytes.
const MAX_IGNORE_FILE: u64 = 64 << 10;
/// Bytes of all files after which a search reads no more.
const MAX_IGNORE_BYTES: u64 = 256 << 10;
/// Bytes of all patterns that a search obeys, each counted with [`PATTERN_OVERHEAD`] more: some
/// 2,000 patterns. Compiled they need several hundred times that.
const MAX_PATTERNS: u64 = 64 << 10;
const PATTERN_OVERHEAD: usize = 16;

/// The files and patterns of one search.
#[derive(Debug, Default)]
pub(super) struct IgnoreUsage {
    read: AtomicU64,
    patterns: AtomicU64,
}

impl IgnoreUsage {
    /// Counts these patterns; returns false, and counts nothing, if they are too many.
    fn take(&self, patterns: &[String]) -> bool {
        let cost: usize = patterns.iter().map(|pattern| pattern.len() + PATTERN_OVERHEAD).sum();
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let add = |spent: u64| spent.checked_add(cost).filter(|sum| *sum <= MAX_PATTERNS);
        self.patterns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// The patterns of one directory, and of the directories above it.
#[derive(Debug)]
pub(super) struct Ignores {
    above: Option<Arc<Self>>,
    /// Length of the directory's path with the slash after it.
    start: usize,
    matcher: Gitignore,
}

impl Ignores {
    /// Returns the patterns that apply in `directory`, where `above` applies above it. A file that
    /// may be read and cannot be obeyed is reported as skipped.
    pub(super) fn within<V: View>(
        above: Option<&Arc<Self>>,
        view: &V,
        directory: &V::Directory,
        spent: &IgnoreUsage,
    ) -> (Option<Arc<Self>>, Option<Skipped>) {
        let inherited = above.map(Arc::clone);
        let most =
            if spent.read.load(Ordering::Relaxed) > MAX_IGNORE_BYTES { 0 } else { MAX_IGNORE_FILE };
        let text = match view.ignore_file(directory, most) {
            Ok(Some(text)) => text,
            Ok(None) => return (inherited, None),
            Err(reason) => return (inherited, Some(reason)),
        };
        spent.read.fetch_add(u64::try_from(text.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let patterns: Vec<_> = patterns(&String::from_utf8_lossy(&text)).collect();
        if !spent.take(&patterns) {
            return (inherited, Some(Skipped::Gitignore));
        }
        // Paths are matched relative to the directory.
        let mut builder = GitignoreBuilder::new(".");
        for line in &patterns {
            // Invalid patterns are skipped, as git does.
            let _ = builder.add_line(None, line);
        }
        let Ok(matcher) = builder.build() else { return (inherited, Some(Skipped::Gitignore)) };
        let path = directory.as_ref();
        let start = path.as_str().len() + usize::from(!path.is_root());
        (Some(Arc::new(Self { above: inherited, start, matcher })), None)
    }

    /// True if the nearest file that mentions the path ignores it. Directories above were checked
    /// when they were visited.
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

    /// True if the name is that of git's directory.
    pub(super) fn is_git(name: &str) -> bool {
        name == GIT
    }
}
