//! What whoever starts a mount may choose.

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use crate::{command_leaders::CommandLeaders, scratch::Scratch};

/// The options of a [`Mount`](crate::Mount).
#[derive(Debug)]
pub struct Options {
    /// The user to whom all files belong: the one that the programs run as, by its number in
    /// the user namespace of the mount.
    pub uid: u32,
    /// The group, alike.
    pub gid: u32,
    /// `/proc` of the PID namespace in which the file system was mounted: records name the
    /// programs that ask by it. Without it they have the process id alone.
    pub processes: Option<OwnedFd>,
    /// The commands that the gateway has started in the sandbox, if it does.
    pub leaders: Option<Arc<CommandLeaders>>,
    /// The absolute paths at which programs see the workspace.
    pub roots: Vec<PathBuf>,
    /// Directories that are not the workspace's, if the policy names any.
    pub scratch: Option<Scratch>,
    /// How long the kernel may answer from what it was told of names and attributes.
    pub timeout: Duration,
    /// Threads that serve, beside one. There are more than programs that keep one busy for
    /// long, with a commit each, or others would wait for them.
    pub threads: usize,
    /// The most bytes that are staged together.
    pub staged: u64,
    /// The most bytes that one file may have when it is written.
    pub file: u64,
    /// The most bytes that commits under way store together, unless one alone has more.
    pub commits: u64,
    /// The most bytes of views that are remembered.
    pub views: usize,
    /// The most bytes of files that are open for reading, together.
    pub open: u64,
    /// The most bytes of lists of open directories.
    pub lists: u64,
    /// The most open handles.
    pub handles: usize,
    /// The most known nodes.
    pub nodes: usize,
    /// Whether each open is read and recorded, also that of a version that was shown before.
    pub records_each_open: bool,
    /// How often the log is told of opens that are counted.
    pub repeats: Duration,
}

impl Options {
    /// The defaults, for files that belong to this user.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            processes: None,
            leaders: None,
            roots: Vec::new(),
            scratch: None,
            timeout: Duration::from_secs(1),
            threads: 15,
            staged: 1 << 30,
            file: 256 << 20,
            commits: 512 << 20,
            views: 256 << 20,
            open: 2 << 30,
            lists: 256 << 20,
            handles: 65_536,
            nodes: 1 << 20,
            records_each_open: false,
            repeats: Duration::from_secs(60),
        }
    }
}
