//! The types of requests and replies.

use std::time::{Duration, SystemTime};

use rustix::fs::FileType;

/// A node, identified by the number that the file system gave it in an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory, identified by the number that the file system gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The requesting process. Zero for requests of the kernel itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id in the mount's user namespace.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
    /// Thread id in the PID namespace of the descriptor's reader; 0 if the thread is not
    /// in it.
    pub pid: u32,
}

/// The attributes of a node.
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
    /// Size in bytes.
    pub size: u64,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
    /// Last access: seconds and nanoseconds since the epoch.
    pub accessed: (i64, u32),
    /// Last change of the content.
    pub modified: (i64, u32),
    /// Last change of content or attributes.
    pub changed: (i64, u32),
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node; the kernel has a reference to it until it forgets it.
    pub node: NodeId,
    /// Differs where the same number denotes another node than before.
    pub generation: u64,
    /// The attributes of the node.
    pub attributes: Attributes,
    /// Time for which the kernel may cache the attributes.
    pub attribute_timeout: Duration,
    /// Time for which the kernel may cache the name.
    pub entry_timeout: Duration,
}

/// The result of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle.
    pub handle: Handle,
    /// The kernel's pages of the file stay valid.
    pub keep_cache: bool,
    /// Reads and writes bypass the page cache.
    pub direct_io: bool,
    /// The kernel may cache the entries of the directory.
    pub cache_directory: bool,
    /// The kernel sends no FLUSH when a descriptor is closed.
    pub no_flush: bool,
}

impl Opened {
    /// Returns the result of an open without any of the flags.
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
    /// Returns the time.
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

/// The attributes to set on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The handle through which a size is set.
    pub handle: Option<Handle>,
    /// New size.
    pub size: Option<u64>,
    /// New permission bits, with set-ID bits and the sticky bit as requested.
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

/// The treatment of an existing entry with the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// The entry is replaced.
    Replace,
    /// The rename fails with EEXIST.
    NoReplace,
    /// Both entries exchange their names.
    Exchange,
}

/// The origin of a WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFrom {
    /// A system call.
    Call,
    /// A system call on a descriptor with `O_APPEND` now: the data go to the end of the
    /// file.
    Append,
    /// A mapping: caller and handle may differ from the writer's.
    Mapping,
}

/// The target of a seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}

/// Statistics of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Size in blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users without privileges.
    pub blocks_available: u64,
    /// Nodes.
    pub files: u64,
    /// Free nodes.
    pub files_free: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_length: u32,
}

/// The content of a file in a reply.
#[derive(Debug, Clone)]
pub enum Data {
    /// Bytes owned by this reply.
    Owned(Vec<u8>),
    /// A part of shared bytes; sent without a copy.
    Shared(std::sync::Arc<[u8]>, std::ops::Range<usize>),
}

impl Data {
    /// Returns the bytes. A range beyond the shared ones is empty.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
        }
    }
}
