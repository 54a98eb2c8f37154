//! The options of a mount.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use portcullis_policy::model::ClaimedToolCall;

use crate::{command_leaders::CommandLeaders, scratch::Scratch};

/// The options of a [`Mount`](crate::Mount).
#[derive(Debug)]
pub struct Options {
    /// The owner of all files: the user id of the programs, as the user namespace of the
    /// mount numbers it.
    pub uid: u32,
    /// The group of all files, in the same numbering.
    pub gid: u32,
    /// `/proc` of the PID namespace in which the file system was mounted: records name the
    /// requesting programs through it. Without it they contain the process id only.
    pub processes: Option<OwnedFd>,
    /// The leading processes of commands that the gateway starts in the sandbox, if it does.
    pub leaders: Option<Arc<CommandLeaders>>,
    /// The tool call that the agent says is in progress.
    pub tool_call: Arc<ClaimedToolCall>,
    /// True as long as only the sandbox's setup runs, which makes the private repository: its requests
    /// are recorded as the setup's, and count as no one's first open.
    pub setup: Arc<AtomicBool>,
    /// The absolute paths at which programs see the workspace.
    pub roots: Vec<PathBuf>,
    /// The scratch directories, if the policy names any.
    pub scratch: Option<Scratch>,
    /// Time for which the kernel may cache names and attributes.
    pub timeout: Duration,
    /// The number of serving threads besides one. Half of them carry out changes, and the others
    /// should exceed the number of other requests that occupy a thread for long, or other programs
    /// wait for these. Threads that sleep cost next to nothing.
    pub threads: usize,
    /// The maximum of bytes of all staged versions together.
    pub staged: u64,
    /// The maximum of bytes of one written file.
    pub file: u64,
    /// The maximum of bytes of commits in progress together, unless a single one is larger.
    pub commits: u64,
    /// The maximum of bytes of cached views.
    pub views: usize,
    /// The maximum of bytes of files open for reading, together.
    pub open: u64,
    /// The maximum of bytes of lists of open directories.
    pub lists: u64,
    /// The maximum of open handles.
    pub handles: usize,
    /// The maximum of known nodes.
    pub nodes: usize,
    /// True if each open is read and recorded, also of a version that was read before.
    pub records_each_open: bool,
    /// The interval of records about repeated opens.
    pub repeats: Duration,
}

impl Options {
    /// Returns the defaults, for files that belong to this user.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            processes: None,
            leaders: None,
            tool_call: Arc::default(),
            setup: Arc::default(),
            roots: Vec::new(),
            scratch: None,
            timeout: Duration::from_secs(1),
            threads: 63,
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
