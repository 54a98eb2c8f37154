//! What a subscription to changes is about.

use super::WorkspacePath;

/// Directories whose changes are of no interest to anybody, by name: packages,
/// repositories and what builds leave.
pub const IGNORED_DIRECTORIES: [&str; 6] =
    ["node_modules", ".git", ".next", "dist", "build", "__pycache__"];

/// Which changes to tell of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchQuery {
    /// The directory or the file to watch.
    pub path: WorkspacePath,
    /// Whether everything beneath the directory is watched, and not only what
    /// lies directly in it.
    pub recursive: bool,
    /// Names of directories beneath it that are left out, with all in them.
    pub ignore: Vec<String>,
}

impl WatchQuery {
    /// Most names to leave out.
    pub const MOST_IGNORED: usize = 100;

    /// Everything beneath `path` but what lies in
    /// [`IGNORED_DIRECTORIES`].
    pub fn new(path: WorkspacePath) -> Self {
        let ignore = IGNORED_DIRECTORIES.map(str::to_owned).to_vec();
        Self { path, recursive: true, ignore }
    }
}
