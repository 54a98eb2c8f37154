//! Construction of the sandbox's root directory, by the init in its mount namespace, and the change
//! to it.
//!
//! Every source is first taken as a detached copy, so that no mount made here can cover it; nothing
//! is written to the host.

#![expect(clippy::disallowed_methods, reason = "reads a few small files of the host's `/etc`")]

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, open, openat, symlinkat},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        mount as mount_at, mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    process::{chdir, pivot_root},
};

use super::{
    layout::{Layout, LockedMountOptions, Node},
    mount::{self, NoMount},
    mounts,
};

/// Options of devpts: an instance that shares no terminal with another one. All instances share the
/// kernel's `kernel.pty.max`, so the agent gets a part of it.
const PSEUDO_TERMINALS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=256";

/// A step failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} `{}`: {error}", path.display())]
pub(super) struct RootError {
    step: &'static str,
    path: PathBuf,
    error: io::Error,
    /// True if the machine allows no mounts. An effect of an agent's must never count as that: it
    /// would weaken its own confinement.
    pub(super) no_mounts: bool,
}

/// Makes the error of a step that depends on the file at `path`, which an agent may have changed.
fn at<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> RootError {
    move |error| RootError { step, path: path.to_owned(), error: error.into(), no_mounts: false }
}

/// Makes the error of a mount, which the machine may not allow.
fn mounting<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> RootError {
    move |error| {
        let error = at(step, path)(error);
        let errno = Errno::from_io_error(&error.error);
        let no_mounts = matches!(errno, Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS));
        RootError { no_mounts, ..error }
    }
}

/// Makes the error of a mount that depends on the machine alone.
fn machine<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> RootError {
    move |error| RootError { no_mounts: true, ..at(step, path)(error) }
}

/// Result of entering a root directory.
pub(super) struct EnteredRoot {
    /// True if `/proc` was mounted. A container whose own `/proc` is partly hidden forbids that,
    /// and then the sandbox has an empty one.
    pub(super) proc: bool,
    /// The descriptors of the mounts at the workspaces' paths, if any were requested.
    pub(super) mount: Option<Result<Vec<OwnedFd>, NoMount>>,
}

/// Builds the root directory and moves this process, and every process that shares its mount
/// namespace, into it.
pub(super) fn enter(layout: &Layout) -> Result<EnteredRoot, RootError> {
    let top = Path::new("/");
    mount_change(top, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(machine("make private the mounts beneath", top))?;
    let devices: Vec<_> = layout.mounts.iter().map(|_| mount::open_device()).collect();
    let mut sources = Sources::open(layout)?;
    let base = base();
    mount_at(
        "tmpfs",
        base,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        tmpfs(0o755).as_deref(),
    )
    .map_err(machine("mount the new root directory at", base))?;
    let root = open(base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(at("open", base))?;
    let builder = Builder { base, root };
    let mut proc = false;
    for (path, node) in &layout.nodes {
        match node {
            Node::Proc => proc = builder.proc(path)?,
            _ => builder.make(path, node, &mut sources)?,
        }
    }
    // Only now: entries beneath these needed writable parents.
    for (path, node) in &layout.nodes {
        if let Node::Empty { writable: false, .. } = node {
            builder.remount(path, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV)?;
        }
    }
    builder.remount(top, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV)?;
    // Last: nothing serves the mounts yet, so that an access to a path in one would block.
    let made = layout.mounts.iter().zip(devices).map(|(plan, device)| {
        device.and_then(|device| plan.make(device, &builder.outside(&plan.path)))
    });
    let made = made.collect::<Result<Vec<_>, _>>();
    let mount = (!layout.mounts.is_empty()).then_some(made);
    chdir(base).map_err(at("enter", base))?;
    pivot_root(".", ".").map_err(machine("make the root directory of", base))?;
    unmount(".", UnmountFlags::DETACH).map_err(machine("leave the root directory for", base))?;
    chdir(top).map_err(at("enter", top))?;
    Ok(EnteredRoot { proc, mount })
}

/// Files of the host that must be taken before anything is covered.
struct Sources {
    trees: HashMap<PathBuf, OwnedFd>,
    copies: HashMap<PathBuf, Vec<u8>>,
}

impl Sources {
    fn open(layout: &Layout) -> Result<Self, RootError> {
        let mut sources = Self { trees: HashMap::new(), copies: HashMap::new() };
        for (path, node) in &layout.nodes {
            match node {
                Node::Device(_) => {
                    let tree = open_tree(CWD, path, COPY).map_err(mounting("take", path))?;
                    sources.trees.insert(path.clone(), tree);
                }
                Node::Bind { .. } => {
                    sources.trees.insert(path.clone(), tree(path)?);
                }
                Node::From { source, .. } => {
                    sources.trees.insert(path.clone(), tree(source)?);
                }
                // A file that cannot be read would not help the agent either.
                Node::Copy => {
                    if let Ok(bytes) = std::fs::read(path) {
                        sources.copies.insert(path.clone(), bytes);
                    }
                }
                _ => {}
            }
        }
        Ok(sources)
    }
}

/// Flags that take a tree as a detached copy, with all mounts in it.
const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE);

/// Takes the tree that was resolved and checked under this path. A link in its place would be an
/// agent's choice.
fn tree(path: &Path) -> Result<OwnedFd, RootError> {
    let handle = mounts::without_links(path).map_err(at("take", path))?;
    open_tree(handle, "", COPY | OpenTreeFlags::AT_EMPTY_PATH).map_err(mounting("take", path))
}

struct Builder<'a> {
    base: &'a Path,
    root: OwnedFd,
}

impl Builder<'_> {
    fn make(&self, path: &Path, node: &Node, sources: &mut Sources) -> Result<(), RootError> {
        let inside = inside(path);
        if let Some(parent) = inside.parent() {
            self.directories(parent)?;
        }
        match node {
            Node::Link(says) => {
                symlinkat(says, &self.root, inside).map_err(at("make the link", path))?;
            }
            Node::Text(text) => self.file(path, text.as_bytes())?,
            Node::Copy => {
                if let Some(bytes) = sources.copies.remove(path) {
                    self.file(path, &bytes)?;
                }
            }
            Node::Empty { mode, .. } => {
                self.directories(inside)?;
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                mount_at("tmpfs", self.outside(path), "tmpfs", flags, tmpfs(*mode).as_deref())
                    .map_err(mounting("mount an empty directory at", path))?;
            }
            Node::Device(keep) => {
                self.place(path, sources, false)?;
                self.remount(path, flags(false, *keep) - MountFlags::NODEV)?;
            }
            Node::From { keep, .. } => {
                self.place(path, sources, false)?;
                self.remount(path, flags(false, *keep))?;
            }
            Node::Bind { writable, directory, mounts } => {
                self.place(path, sources, *directory)?;
                for (point, keep) in mounts {
                    self.remount(point, flags(*writable, *keep))?;
                }
            }
            Node::Terminals => {
                self.directories(inside)?;
                // Not `NODEV`: these are devices.
                let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
                mount_at("devpts", self.outside(path), "devpts", flags, Some(PSEUDO_TERMINALS))
                    .map_err(machine("mount pseudo-terminals at", path))?;
            }
            // Mounted by `proc`.
            Node::Proc => {}
        }
        Ok(())
    }

    /// Moves the tree that was taken from `path` to the same path in the new root.
    fn place(&self, path: &Path, sources: &mut Sources, directory: bool) -> Result<(), RootError> {
        if directory {
            self.directories(inside(path))?;
        } else if open_beneath(self.root.as_fd(), path).is_err() {
            self.file(path, b"")?;
        }
        let Some(tree) = sources.trees.remove(path) else {
            return Err(at("find", path)(io::Error::from(io::ErrorKind::NotFound)));
        };
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(tree, "", &self.root, inside(path), flags).map_err(mounting("place", path))
    }

    /// Mounts a private `/proc`; returns `false` if the kernel does not allow one here. It is
    /// read-only: modes of its entries are those of each `/proc` of the machine.
    fn proc(&self, path: &Path) -> Result<bool, RootError> {
        self.directories(inside(path))?;
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        match mount_at("proc", self.outside(path), "proc", flags, None) {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => Ok(false),
            Err(e) => Err(machine("mount", path)(e)),
        }
    }

    fn remount(&self, path: &Path, flags: MountFlags) -> Result<(), RootError> {
        mount_remount(self.outside(path), flags | MountFlags::BIND, "")
            .map_err(mounting("restrict the mount", path))
    }

    fn directories(&self, inside: &Path) -> Result<(), RootError> {
        let mut made = PathBuf::new();
        for part in inside.components() {
            made.push(part);
            match mkdirat(&self.root, &made, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                // A read-only bind above contains it already, or cannot get it.
                Err(Errno::ROFS) => {}
                Err(e) => return Err(at("make the directory", &made)(e)),
            }
        }
        Ok(())
    }

    fn file(&self, path: &Path, bytes: &[u8]) -> Result<(), RootError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.root, inside(path), flags, Mode::from_raw_mode(0o644))
            .map_err(at("make the file", path))?;
        io::Write::write_all(&mut std::fs::File::from(file), bytes)
            .map_err(at("fill the file", path))
    }

    fn outside(&self, path: &Path) -> PathBuf {
        self.base.join(inside(path))
    }
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(root, inside(path), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn flags(writable: bool, keep: LockedMountOptions) -> MountFlags {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if !writable || keep.read_only {
        flags |= MountFlags::RDONLY;
    }
    if keep.noexec {
        flags |= MountFlags::NOEXEC;
    }
    flags
}

/// Returns the options of a tmpfs that takes at most a quarter of the memory: the agent's temporary
/// files lie there.
fn tmpfs(mode: u16) -> Option<CString> {
    CString::new(format!("mode={mode:o},size=25%")).ok()
}

/// Returns a directory to mount the new root on; any will do.
fn base() -> &'static Path {
    ["/tmp", "/mnt", "/run", "/var", "/usr"]
        .map(Path::new)
        .into_iter()
        .find(|path| {
            rustix::fs::lstat(*path)
                .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_dir())
        })
        .unwrap_or(Path::new("/"))
}
