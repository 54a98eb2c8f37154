//! Queries of subscriptions to changes.

use super::WorkspacePath;

/// Directories that subscriptions ignore by default, by name: packages, repositories and build
/// outputs.
pub const IGNORED_DIRECTORIES: [&str; 6] =
    ["node_modules", ".git", ".next", "dist", "build", "__pycache__"];

/// The changes that a subscription reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchQuery {
    /// The directory or the file to watch.
    pub path: WorkspacePath,
    /// True if everything beneath the directory is watched, and not only its own entries.
    pub recursive: bool,
    /// Names of directories beneath it that are left out, with everything in them.
    pub ignore: Vec<String>,
}

impl WatchQuery {
    /// Maximum number of names to leave out.
    pub const MAX_IGNORED: usize = 100;

    /// Watches everything beneath `path` except for [`IGNORED_DIRECTORIES`].
    pub fn new(path: WorkspacePath) -> Self {
        let ignore = IGNORED_DIRECTORIES.map(str::to_owned).to_vec();
        Self { path, recursive: true, ignore }
    }
}
