//! What requests and replies are about.

use std::time::{Duration, SystemTime};

use rustix::fs::FileType;

/// A node, by the number that the file system gave it in an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory, by the number that the file system gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The process that asked. Zero for requests that the kernel makes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User, as the mount's user namespace numbers it.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Thread, in the PID namespace of the reader of the descriptor; 0 if it is not there.
    pub pid: u32,
}

/// The facts about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// File type.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Preferred size of reads and writes.
    pub block_size: u32,
    /// Last access: seconds and nanoseconds since the epoch.
    pub accessed: (i64, u32),
    /// Last change of the content.
    pub modified: (i64, u32),
    /// Last change of content or facts.
    pub changed: (i64, u32),
}

/// What a lookup gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node; the kernel refers to it until it forgets it.
    pub node: NodeId,
    /// Differs where the same number names another node than before.
    pub generation: u64,
    /// Facts about it.
    pub attributes: Attributes,
    /// How long the kernel may use the facts without asking.
    pub attribute_timeout: Duration,
    /// How long the kernel may use the name without asking.
    pub entry_timeout: Duration,
}

/// What an open gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle.
    pub handle: Handle,
    /// Pages that the kernel has of the file stay valid.
    pub keep_cache: bool,
    /// Reads and writes pass the page cache by.
    pub direct_io: bool,
    /// Of a directory: the kernel may keep its entries.
    pub cache_directory: bool,
    /// No FLUSH when a descriptor is closed.
    pub no_flush: bool,
}

impl Opened {
    /// An open without any of the flags.
    pub fn new(handle: Handle) -> Self {
        let (keep_cache, direct_io, cache_directory, no_flush) = (false, false, false, false);
        Self { handle, keep_cache, direct_io, cache_directory, no_flush }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the request.
    Now,
    /// Seconds and nanoseconds since the epoch.
    At(i64, u32),
}

impl SetTime {
    /// The time that is meant.
    pub fn resolve(self) -> (i64, u32) {
        match self {
            Self::At(seconds, nanos) => (seconds, nanos),
            Self::Now => match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos()),
                Err(_) => (0, 0),
            },
        }
    }
}

/// What to set of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The handle by which a size is set.
    pub handle: Option<Handle>,
    /// New size.
    pub size: Option<u64>,
    /// New permission bits, with set-id bits and the sticky bit as asked for.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New time of last access.
    pub accessed: Option<SetTime>,
    /// New time of last change.
    pub modified: Option<SetTime>,
}

/// How a rename treats what has the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails with EEXIST.
    NoReplace,
    /// Both exchange their names.
    Exchange,
}

/// Where a WRITE comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFrom {
    /// A system call.
    Call,
    /// A system call on a descriptor with `O_APPEND` now: it goes to the end of the file.
    Append,
    /// A mapping: neither caller nor handle need be those of who wrote.
    Mapping,
}

/// Where a seek leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// To the next data (`SEEK_DATA`).
    Data,
    /// To the next hole (`SEEK_HOLE`).
    Hole,
}

/// Facts about the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Size in blocks.
    pub blocks: u64,
    /// Blocks without content.
    pub blocks_free: u64,
    /// Those that a user without privileges may fill.
    pub blocks_available: u64,
    /// Nodes.
    pub files: u64,
    /// Nodes that may still be made.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name.
    pub name_length: u32,
}

/// Content of a file in a reply.
#[derive(Debug, Clone)]
pub enum Data {
    /// Bytes made for this reply.
    Owned(Vec<u8>),
    /// A part of bytes that others hold too; sent without a copy.
    Shared(std::sync::Arc<[u8]>, std::ops::Range<usize>),
}

impl Data {
    /// The bytes. A range that leads beyond the shared ones gives none.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
        }
    }
}
