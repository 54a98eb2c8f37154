//! The structures and constants of `include/uapi/linux/fuse.h`, with the kernel's
//! names.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest supported minor version; a newer kernel falls back to it.
pub(crate) const MINOR: u32 = 45;
/// The oldest supported minor version (Linux 5.4).
pub(crate) const MIN_MINOR: u32 = 31;

/// Operation codes of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Flags of INIT.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u32 = 1;
    pub(crate) const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub(crate) const BIG_WRITES: u32 = 1 << 5;
    pub(crate) const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u32 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub(crate) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(crate) const MAX_PAGES: u32 = 1 << 22;
    /// The file system clears set-id bits and capabilities itself when a file changes.
    pub(crate) const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
    pub(crate) const INIT_EXT: u32 = 1 << 30;
    /// A flag of the second word: files with direct I/O may be mapped.
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u32 = 1 << 4;
}

/// Flags of a reply to OPEN.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
}

/// Flags of the attributes that SETATTR sets.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// The flag of a GETATTR with a handle.
pub(crate) const GETATTR_FH: u32 = 1;
/// The flag of a WRITE from the page cache: its handle and caller are not the
/// writer's.
pub(crate) const WRITE_CACHE: u32 = 1;
/// The flag of an FSYNC without metadata.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;

/// Notification codes, sent in the field of the error.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
}

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

structures! {
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64,
        uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    OutHeader: 16 { len: u32, error: i32, unique: u64, }
    Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    InterruptIn: 8 { unique: u64, }
    GetattrIn: 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn: 8 { mode: u32, umask: u32, }
    RenameIn: 8 { newdir: u64, }
    Rename2In: 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn: 8 { oldnodeid: u64, }
    OpenIn: 8 { flags: u32, open_flags: u32, }
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn: 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn: 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    WriteOut: 8 { size: u32, padding: u32, }
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32, }
    GetxattrIn: 8 { size: u32, padding: u32, }
    GetxattrOut: 8 { size: u32, padding: u32, }
    SetxattrIn: 8 { size: u32, flags: u32, }
    /// The part of INIT that every kernel sends.
    InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut: 8 { offset: u64, }
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    ForgetIn: 8 { nlookup: u64, }
    BatchForgetIn: 8 { count: u32, dummy: u32, }
    ForgetOne: 16 { nodeid: u64, nlookup: u64, }
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    InvalInodeOut: 24 { ino: u64, off: i64, len: i64, }
    InvalEntryOut: 16 { parent: u64, namelen: u32, flags: u32, }
}
