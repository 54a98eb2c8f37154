//! The mount at the path of each workspace: a FUSE file system (fuse(4)) that a process outside of
//! the sandbox serves.
//!
//! The device is opened in the sandbox's user namespace, which the kernel demands of the process
//! that mounts with it. With that, `allow_other` admits the processes of that namespace and no
//! others. No process in the sandbox keeps the descriptor.
//!
//! A server that is killed while one of its threads invalidates a page keeps the descriptor open, for
//! ever if that page waits for a reply of the server. Then [`abort`] frees the programs.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2, stat},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::fchdir,
};
use serde::{Deserialize, Serialize};

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";
/// The file system's type: FUSE's, with a subtype after the dot.
const TYPE: &str = "fuse.portcullis";
/// The source in the table of mounts, where others have their device.
const SOURCE: &str = "portcullis";

/// Mounts to be served, one for each workspace.
#[derive(Debug)]
pub struct Mount {
    /// Descriptors by which the kernel's requests are read and answered, in the order of the
    /// workspaces. When the last copy of one is closed, accesses to that mount fail with
    /// `ENOTCONN`.
    pub devices: Vec<OwnedFd>,
    /// The sandbox's `/proc`, if it has one; requests name processes by its PIDs.
    pub processes: Option<OwnedFd>,
    /// The agent's user, in the numbers that the mount uses.
    pub user: u32,
    /// The agent's group.
    pub group: u32,
}

/// Reason why a sandbox cannot have a mount here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoMount {
    /// The device or its driver does not exist.
    #[error("this machine has no `/dev/fuse`: {0}")]
    Missing(String),
    /// The device may not be opened.
    #[error("`/dev/fuse`, of mode {mode:04o}, cannot be opened: {error}")]
    Denied {
        /// The device's permission bits.
        mode: u32,
        /// The kernel's error.
        error: String,
    },
    /// The kernel does not let the sandbox mount.
    #[error("the sandbox may not mount a file system of FUSE: {0}")]
    Refused(String),
    /// There is no namespace to mount in.
    #[error("there is no user namespace to mount in: {0}")]
    Namespaces(String),
}

impl NoMount {
    /// Returns advice that helps.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Missing(_) => {
                "load it with `modprobe fuse`; a container gets it with `--device /dev/fuse`"
            }
            Self::Denied { .. } => {
                "let the user that runs `portcullis` open it: `chmod 0666 /dev/fuse`, or for good a \
                 udev rule `KERNEL==\"fuse\", MODE=\"0666\"`; or put the user into the device's group \
                 (`chgrp fuse`, mode 0660)"
            }
            Self::Refused(_) => {
                "a container may forbid it by seccomp or AppArmor: allow `mount`, see docs/containers.md"
            }
            Self::Namespaces(_) => {
                "enable user namespaces: see `namespaces` in what `portcullis doctor` says"
            }
        }
    }
}

/// A mount to be made, and its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkspaceMount {
    pub(super) path: PathBuf,
    user: u32,
    group: u32,
}

impl WorkspaceMount {
    /// Describes a mount at `path` for an agent that sees itself as `user`.
    pub(super) fn new(path: &Path, (user, group): (u32, u32)) -> Self {
        Self { path: path.to_owned(), user, group }
    }

    /// Mounts at `place`, and returns the descriptor by which it is served.
    pub(super) fn make(&self, device: OwnedFd, place: &Path) -> Result<OwnedFd, NoMount> {
        let refused = |error: io::Error| NoMount::Refused(error.to_string());
        let (user, group) = (self.user, self.group);
        let options = format!(
            "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions,allow_other",
            device.as_raw_fd()
        );
        let options = CString::new(options).map_err(|e| refused(e.into()))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(SOURCE, place, TYPE, flags, options.as_c_str()).map_err(|e| refused(e.into()))?;
        Ok(device)
    }
}

/// Fails all requests of the mounts at `paths`, present and future ones. Before Linux 6.15 the kernel
/// may demand a capability for that which no sandbox has.
pub(super) fn abort(paths: &[PathBuf]) {
    for path in paths {
        // A mount that is in use stays, aborted.
        let _ = abort_one(path);
    }
}

/// Aborts a mount. The agent may own the directories on the way and replace them, but cannot move the
/// mount's own.
fn abort_one(path: &Path) -> io::Result<()> {
    let above = path.parent().unwrap_or(path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fchdir(openat2(CWD, above, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)?;
    let name = path.file_name().unwrap_or_default();
    Ok(unmount(name, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW)?)
}

/// Opens `/proc` of a sandbox that has one, from inside.
pub(super) fn open_processes() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open("/proc", flags, Mode::empty())?)
}

/// Opens the device, in the user namespace in which it will be used to mount.
pub(super) fn open_device() -> Result<OwnedFd, NoMount> {
    open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => NoMount::Missing(error.to_string()),
        _ => NoMount::Denied {
            mode: stat(DEVICE).map_or(0, |facts| facts.st_mode & 0o7777),
            error: error.to_string(),
        },
    })
}
