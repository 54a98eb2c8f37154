//! Walks of a directory tree: its fingerprint, and packing it into a backup.
//!
//! A walk goes down and up by one descriptor at a time, without recursion, so depth costs neither
//! stack nor descriptors. It never follows a link, never leaves the file system, and refuses a tree
//! that a backup cannot restore completely.

use std::{
    fs::File,
    io::Write as _,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use portcullis_audit::Hash;
use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2,
        readlinkat, statat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    Error,
    copy::{Sink, content_hash, size_of},
    format::{Attributes, TreeTrailer, bytes},
};
use crate::policy::{Object, ObjectKind};

/// Number of attempts to open an existing object, and the pause between them: a tenth of a second
/// in all.
const MAX_ATTEMPTS: u32 = 200;
const RETRY_INTERVAL: Duration = Duration::from_micros(500);

/// Maximum number of entries of a tree that can be backed up.
pub(crate) const MAX_ENTRIES: u64 = 1_000_000;

/// A node of a tree's backup: a line of the manifest. The root comes first, each directory before
/// its entries, names in byte order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Number of directories above it in the tree; 0 for the root.
    pub depth: u64,
    /// Its name in its directory; empty for the root.
    pub name: String,
    /// Its type.
    pub kind: NodeKind,
    /// Mode, owner, time and access control lists; a link has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// SHA-256 of a file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Hash>,
    /// Bytes of a file's content.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// Offset of a file's content in the backup.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) offset: u64,
    /// A link's target.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "bytes")]
    pub target: Option<Vec<u8>>,
    /// Number of hard links of a file, if more than one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub names: u64,
}

impl Node {
    /// Returns the facts about the backed up object that the policy needs.
    pub(crate) fn object(&self) -> Object {
        Object { links: self.names.max(1), ..self.kind.object() }
    }
}

/// The type of a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum NodeKind {
    Directory,
    File,
    Link,
}

impl NodeKind {
    /// Returns the facts about such an object that the policy needs.
    pub(crate) fn object(self) -> Object {
        let kind = match self {
            Self::Directory => ObjectKind::Directory,
            Self::File => ObjectKind::File,
            Self::Link => ObjectKind::Symlink,
        };
        Object { kind, links: 1, through_symlink: false }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Computes a hash over everything that a backup of the directory restores: names, types, modes,
/// contents and link targets. Equal to [`super::Saved::sha256`] of an unchanged tree.
///
/// # Errors
/// As [`super::BackupStore::save`] for a tree; [`Error::Large`] when its files have more than
/// `most` bytes.
pub(crate) fn fingerprint(dir: BorrowedFd<'_>, most: u64) -> Result<Hash, Error> {
    let mut print = TreeHasher::default();
    let mut left = most;
    walk(dir, &mut |found| {
        let sha256 = match found.content {
            NodeContent::File(file) => {
                let hash = content_hash(file, left)?;
                left = left.saturating_sub(size_of(&found.stat));
                Some(hash)
            }
            _ => None,
        };
        print.add(
            found.depth,
            found.name,
            found.content.kind(),
            found.stat.st_mode & 0o7777,
            sha256.as_ref(),
            found.content.target(),
        );
        Ok(())
    })?;
    Ok(print.finish())
}

/// Computes the hash of [`fingerprint`], node by node.
#[derive(Default)]
pub(super) struct TreeHasher(Sha256);

impl TreeHasher {
    fn add(
        &mut self,
        depth: u64,
        name: &str,
        kind: NodeKind,
        mode: u32,
        sha256: Option<&Hash>,
        target: Option<&[u8]>,
    ) {
        let mut sized = |bytes: &[u8]| {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        };
        sized(&depth.to_le_bytes());
        sized(name.as_bytes());
        match kind {
            NodeKind::Directory => sized(b"directory"),
            NodeKind::File => sized(b"file"),
            NodeKind::Link => sized(b"link"),
        }
        // A link's mode has no meaning.
        sized(&if kind == NodeKind::Link { 0 } else { mode }.to_le_bytes());
        sized(sha256.map_or(&[], |hash| hash.as_bytes().as_slice()));
        sized(target.unwrap_or_default());
    }

    /// Adds a node read from a manifest.
    pub(super) fn add_node(&mut self, node: &Node) {
        let mode = node.attributes.as_ref().map_or(0, |attributes| attributes.mode);
        let (sha256, target) = (node.sha256.as_ref(), node.target.as_deref());
        self.add(node.depth, &node.name, node.kind, mode, sha256, target);
    }

    pub(super) fn finish(self) -> Hash {
        Hash::from_bytes(self.0.finalize().into())
    }
}

/// Packs the tree at `dir` into `sink`: the contents of its files, then the manifest, which is in
/// `spill` meanwhile. Returns fingerprint and bytes of content.
pub(super) fn pack(
    dir: BorrowedFd<'_>,
    sink: &mut Sink<'_>,
    spill: &File,
) -> Result<(Hash, u64, TreeTrailer), Error> {
    const ACTION: &str = "write the backup's manifest";
    sink.reuse_buffer();
    let mut manifest = std::io::BufWriter::new(spill);
    let mut print = TreeHasher::default();
    let mut nodes = 0;
    walk(dir, &mut |found| {
        let offset = sink.position();
        let stored = match found.content {
            NodeContent::File(file) => Some(sink.copy(file, size_of(&found.stat))?),
            _ => None,
        };
        let attributes = match found.content {
            NodeContent::Directory(fd) | NodeContent::File(fd) => {
                Some(Attributes::read(fd, &found.stat)?)
            }
            NodeContent::Link(_) => None,
        };
        let node = Node {
            depth: found.depth,
            name: found.name.to_owned(),
            kind: found.content.kind(),
            attributes,
            sha256: stored.map(|(hash, _)| hash),
            size: stored.map_or(0, |(_, size)| size),
            offset: if stored.is_some() { offset } else { 0 },
            target: found.content.target().map(<[u8]>::to_vec),
            names: match found.content {
                NodeContent::File(_) if found.stat.st_nlink > 1 => found.stat.st_nlink,
                _ => 0,
            },
        };
        print.add_node(&node);
        let mut line = serde_json::to_vec(&node).map_err(|e| Error::io(ACTION)(e.into()))?;
        line.push(b'\n');
        manifest.write_all(&line).map_err(Error::io(ACTION))?;
        nodes += 1;
        Ok(())
    })?;
    manifest.flush().map_err(Error::io(ACTION))?;
    drop(manifest);
    let size = sink.position();
    let (manifest_sha256, manifest) = sink.copy(spill.as_fd(), u64::MAX)?;
    Ok((print.finish(), size, TreeTrailer { nodes, manifest, manifest_sha256 }))
}

/// A node during [`walk`].
struct VisitedNode<'a> {
    depth: u64,
    name: &'a str,
    stat: Stat,
    content: NodeContent<'a>,
}

/// An open directory or file, or a link's target.
#[derive(Clone, Copy)]
enum NodeContent<'a> {
    Directory(BorrowedFd<'a>),
    File(BorrowedFd<'a>),
    Link(&'a [u8]),
}

impl NodeContent<'_> {
    fn kind(&self) -> NodeKind {
        match self {
            Self::Directory(_) => NodeKind::Directory,
            Self::File(_) => NodeKind::File,
            Self::Link(_) => NodeKind::Link,
        }
    }

    fn target(&self) -> Option<&[u8]> {
        if let Self::Link(target) = self { Some(target) } else { None }
    }
}

/// A directory on the way down: its identity and the names that are still to be visited.
struct WalkLevel {
    identity: (u64, u64),
    /// The names in reverse order, so that the next one is the last.
    names: Vec<String>,
}

fn walk(
    root: BorrowedFd<'_>,
    visit: &mut dyn FnMut(VisitedNode<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    // Opened again, because reading names moves a position that the caller shares.
    let mut current = open(root, ".", OFlags::DIRECTORY)?;
    let mut count = 0;
    let mut levels = Vec::new();
    levels.push(enter(&current, 0, "", &mut count, visit)?);
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            if let Some(parent) = levels.last() {
                current = ascend(&current, parent.identity)?;
            }
            continue;
        };
        let depth = levels.len() as u64;
        let stat = statat(&current, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(lost)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let child = open(current.as_fd(), &name, OFlags::DIRECTORY)?;
                levels.push(enter(&child, depth, &name, &mut count, visit)?);
                current = child;
            }
            FileType::RegularFile => {
                let file = open(current.as_fd(), &name, OFlags::empty())?;
                let stat = fstat(&file).map_err(Error::os("look at a file"))?;
                if !FileType::from_raw_mode(stat.st_mode).is_file() {
                    return Err(Error::Changed);
                }
                let content = NodeContent::File(file.as_fd());
                visit(VisitedNode { depth, name: &name, stat, content })?;
            }
            FileType::Symlink => {
                let target = readlinkat(&current, &name, Vec::new()).map_err(lost)?;
                let content = NodeContent::Link(target.as_bytes());
                visit(VisitedNode { depth, name: &name, stat, content })?;
            }
            _ => return Err(Error::Special),
        }
    }
    Ok(())
}

/// Visits a directory and reads its entries.
fn enter(
    directory: &OwnedFd,
    depth: u64,
    name: &str,
    count: &mut u64,
    visit: &mut dyn FnMut(VisitedNode<'_>) -> Result<(), Error>,
) -> Result<WalkLevel, Error> {
    const ACTION: &str = "read a directory";
    let stat = fstat(directory).map_err(Error::os(ACTION))?;
    visit(VisitedNode { depth, name, stat, content: NodeContent::Directory(directory.as_fd()) })?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(Error::os(ACTION))? {
        let entry = entry.map_err(Error::os(ACTION))?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => names.push(name.to_owned()),
            Err(_) => return Err(Error::NotUtf8),
        }
        *count += 1;
        if *count > MAX_ENTRIES {
            return Err(Error::TooLarge);
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(WalkLevel { identity: (stat.st_dev, stat.st_ino), names })
}

fn open(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
    let flags = flags
        | OFlags::RDONLY
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let (mut departures, mut busy) = (0, 0);
    loop {
        return match openat2(dir, name, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(fd),
            Err(Errno::INTR) => continue,
            // An entry was renamed at the same time; or another process has a lease on the file,
            // and some time to give it up.
            Err(Errno::AGAIN) if busy < MAX_ATTEMPTS => {
                busy += 1;
                thread::sleep(RETRY_INTERVAL);
                continue;
            }
            Err(Errno::AGAIN) => Err(Error::Busy),
            // EXDEV is a mount, or an object that was found and then moved out before the walk was
            // complete.
            Err(Errno::XDEV) if departures < 8 => {
                departures += 1;
                continue;
            }
            Err(Errno::XDEV) => Err(Error::Mount),
            Err(errno) => Err(lost(errno)),
        };
    }
}

/// Converts the error of a name that existed a moment ago.
fn lost(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::NXIO => Error::Changed,
        errno => Error::os("read the tree")(errno),
    }
}

/// Goes back up. Another process may have moved the directory meanwhile, so the parent must be the
/// one from which the walk came.
fn ascend(current: &OwnedFd, parent: (u64, u64)) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(current, "..", flags, Mode::empty()).map_err(lost)?;
    let stat = fstat(&fd).map_err(Error::os("read a directory"))?;
    if (stat.st_dev, stat.st_ino) == parent { Ok(fd) } else { Err(Error::Changed) }
}
