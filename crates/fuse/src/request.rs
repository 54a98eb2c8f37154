//! Requests of the kernel, parsed. Every length and every name is checked.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use rustix::{fs::OFlags, io::Errno};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{
    abi::{
        self, BatchForgetIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn,
        GetattrIn, GetxattrIn, InHeader, InitIn, InterruptIn, LinkIn, LseekIn, MkdirIn, MknodIn,
        OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, WriteIn, fattr,
        opcode,
    },
    types::{Caller, Handle, NodeId, RenameMode, Seek, SetAttributes, SetTime, WriteFrom},
};

/// A request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) unique: u64,
    pub(crate) node: NodeId,
    pub(crate) caller: Caller,
    pub(crate) operation: Operation<'a>,
}

/// The reason why bytes are no valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The header is incomplete, so there is no request to reply to.
    Header,
    /// The error to reply with.
    Request { unique: u64, errno: Errno },
}

/// An operation with its arguments.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u32,
        flags2: u32,
    },
    Destroy,
    /// A signal was sent to the program of the request with this number.
    Interrupt(u64),
    Forget(u64),
    BatchForget(&'a [u8]),
    Lookup(&'a OsStr),
    GetAttributes(Option<Handle>),
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MakeNode {
        name: &'a OsStr,
        mode: u32,
    },
    MakeDirectory {
        name: &'a OsStr,
        mode: u32,
    },
    Unlink(&'a OsStr),
    RemoveDirectory(&'a OsStr),
    Rename {
        name: &'a OsStr,
        to: (NodeId, &'a OsStr),
        mode: RenameMode,
    },
    Link {
        node: NodeId,
        name: &'a OsStr,
    },
    Open(OFlags),
    Create {
        name: &'a OsStr,
        mode: u32,
        flags: OFlags,
    },
    Temporary {
        mode: u32,
        flags: OFlags,
    },
    Read {
        handle: Handle,
        offset: u64,
        size: u32,
    },
    Write {
        handle: Handle,
        offset: u64,
        data: &'a [u8],
        from: WriteFrom,
    },
    Flush(Handle),
    Release(Handle),
    Sync {
        handle: Handle,
        data_only: bool,
    },
    Allocate {
        handle: Handle,
        mode: u32,
        offset: u64,
        length: u64,
    },
    Seek {
        handle: Handle,
        offset: u64,
        to: Seek,
    },
    OpenDirectory(OFlags),
    ReadDirectory {
        handle: Handle,
        offset: u64,
        size: u32,
        is_plus: bool,
    },
    ReleaseDirectory(Handle),
    SyncDirectory(Handle),
    Statistics,
    GetExtended {
        name: &'a OsStr,
        size: u32,
    },
    ListExtended {
        size: u32,
    },
    SetExtended {
        name: &'a OsStr,
        value: &'a [u8],
    },
    RemoveExtended(&'a OsStr),
}

impl<'a> Request<'a> {
    /// Parses a request, which is all of `bytes`.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else {
            return Err(Malformed::Header);
        };
        let unique = header.unique;
        let refused = |errno| Malformed::Request { unique, errno };
        // Extensions follow the arguments; none was negotiated.
        if usize::try_from(header.len) != Ok(bytes.len()) || header.total_extlen != 0 {
            return Err(refused(Errno::INVAL));
        }
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let operation = Arguments(rest).operation(header.opcode).map_err(refused)?;
        Ok(Self { unique, node: NodeId(header.nodeid), caller, operation })
    }
}

/// The bytes after a header.
struct Arguments<'a>(&'a [u8]);

type Parsed<T> = Result<T, Errno>;

impl<'a> Arguments<'a> {
    fn operation(mut self, code: u32) -> Parsed<Operation<'a>> {
        let operation = match code {
            opcode::INIT => return self.init(),
            opcode::DESTROY => Operation::Destroy,
            opcode::INTERRUPT => Operation::Interrupt(self.take::<InterruptIn>()?.unique),
            opcode::FORGET => Operation::Forget(self.take::<ForgetIn>()?.nlookup),
            opcode::BATCH_FORGET => self.batch_forget()?,
            opcode::LOOKUP => Operation::Lookup(self.name()?),
            opcode::GETATTR => {
                let GetattrIn { getattr_flags, fh, .. } = self.take()?;
                let has_handle = getattr_flags & abi::GETATTR_FH != 0;
                Operation::GetAttributes(has_handle.then_some(Handle(fh)))
            }
            opcode::SETATTR => Operation::SetAttributes(set_attributes(&self.take()?)),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => Operation::Symlink { name: self.name()?, target: self.text()? },
            opcode::MKNOD => {
                let MknodIn { mode, umask, .. } = self.take()?;
                Operation::MakeNode { mode: masked(mode, umask), name: self.name()? }
            }
            opcode::MKDIR => {
                let MkdirIn { mode, umask } = self.take()?;
                Operation::MakeDirectory { mode: masked(mode, umask), name: self.name()? }
            }
            opcode::UNLINK => Operation::Unlink(self.name()?),
            opcode::RMDIR => Operation::RemoveDirectory(self.name()?),
            opcode::RENAME => {
                let RenameIn { newdir } = self.take()?;
                self.rename(newdir, 0)?
            }
            opcode::RENAME2 => {
                let Rename2In { newdir, flags, .. } = self.take()?;
                self.rename(newdir, flags)?
            }
            opcode::LINK => {
                let LinkIn { oldnodeid } = self.take()?;
                Operation::Link { node: NodeId(oldnodeid), name: self.name()? }
            }
            opcode::OPEN => Operation::Open(flags(self.take::<OpenIn>()?.flags)),
            opcode::OPENDIR => Operation::OpenDirectory(flags(self.take::<OpenIn>()?.flags)),
            opcode::CREATE | opcode::TMPFILE => {
                let arguments: CreateIn = self.take()?;
                let mode = masked(arguments.mode, arguments.umask);
                let (name, flags) = (self.text()?, flags(arguments.flags));
                match code {
                    opcode::TMPFILE => Operation::Temporary { mode, flags },
                    _ => Operation::Create { name: checked(name)?, mode, flags },
                }
            }
            opcode::READ => {
                let ReadIn { fh, offset, size, .. } = self.take()?;
                Operation::Read { handle: Handle(fh), offset, size }
            }
            opcode::WRITE => {
                let WriteIn { fh, offset, size, write_flags, flags, .. } = self.take()?;
                let data = self.all();
                if usize::try_from(size) != Ok(data.len()) {
                    return Err(Errno::INVAL);
                }
                let from = if write_flags & abi::WRITE_CACHE != 0 {
                    WriteFrom::Mapping
                } else if OFlags::from_bits_retain(flags).contains(OFlags::APPEND) {
                    WriteFrom::Append
                } else {
                    WriteFrom::Call
                };
                Operation::Write { handle: Handle(fh), offset, data, from }
            }
            opcode::FLUSH => Operation::Flush(Handle(self.take::<FlushIn>()?.fh)),
            opcode::RELEASE => Operation::Release(Handle(self.take::<ReleaseIn>()?.fh)),
            opcode::RELEASEDIR => Operation::ReleaseDirectory(Handle(self.take::<ReleaseIn>()?.fh)),
            opcode::FSYNC => {
                let FsyncIn { fh, fsync_flags, .. } = self.take()?;
                let data_only = fsync_flags & abi::FSYNC_FDATASYNC != 0;
                Operation::Sync { handle: Handle(fh), data_only }
            }
            opcode::FSYNCDIR => Operation::SyncDirectory(Handle(self.take::<FsyncIn>()?.fh)),
            opcode::FALLOCATE => {
                let FallocateIn { fh, offset, length, mode, .. } = self.take()?;
                Operation::Allocate { handle: Handle(fh), mode, offset, length }
            }
            opcode::LSEEK => {
                let LseekIn { fh, offset, whence, .. } = self.take()?;
                let to = match whence {
                    3 => Seek::Data,
                    4 => Seek::Hole,
                    _ => return Err(Errno::INVAL),
                };
                Operation::Seek { handle: Handle(fh), offset, to }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let ReadIn { fh, offset, size, .. } = self.take()?;
                let is_plus = code == opcode::READDIRPLUS;
                Operation::ReadDirectory { handle: Handle(fh), offset, size, is_plus }
            }
            opcode::STATFS => Operation::Statistics,
            opcode::GETXATTR => {
                let GetxattrIn { size, .. } = self.take()?;
                Operation::GetExtended { name: self.text()?, size }
            }
            opcode::LISTXATTR => Operation::ListExtended { size: self.take::<GetxattrIn>()?.size },
            opcode::SETXATTR => {
                let SetxattrIn { size, .. } = self.take()?;
                let (name, value) = (self.text()?, self.all());
                if usize::try_from(size) != Ok(value.len()) {
                    return Err(Errno::INVAL);
                }
                Operation::SetExtended { name, value }
            }
            opcode::REMOVEXATTR => Operation::RemoveExtended(self.text()?),
            _ => return Err(Errno::NOSYS),
        };
        if self.0.is_empty() { Ok(operation) } else { Err(Errno::INVAL) }
    }

    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Parsed<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Takes a string that ends with a NUL.
    fn text(&mut self) -> Parsed<&'a OsStr> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (text, rest) = self.0.split_at_checked(end).ok_or(Errno::INVAL)?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(OsStr::from_bytes(text))
    }

    /// Takes a name in a directory.
    fn name(&mut self) -> Parsed<&'a OsStr> {
        checked(self.text()?)
    }

    fn init(&mut self) -> Parsed<Operation<'a>> {
        let InitIn { major, minor, max_readahead, flags } = self.take()?;
        // Newer kernels send a second word, and later ones may add more.
        let flags2 = match flags & abi::init::INIT_EXT {
            0 => 0,
            _ => self.take::<u32>()?,
        };
        Ok(Operation::Init { major, minor, readahead: max_readahead, flags, flags2 })
    }

    fn batch_forget(&mut self) -> Parsed<Operation<'a>> {
        let BatchForgetIn { count, .. } = self.take()?;
        let nodes = self.all();
        let length =
            usize::try_from(count).ok().and_then(|n| n.checked_mul(size_of::<ForgetOne>()));
        if length == Some(nodes.len()) {
            Ok(Operation::BatchForget(nodes))
        } else {
            Err(Errno::INVAL)
        }
    }

    fn rename(&mut self, newdir: u64, flags: u32) -> Parsed<Operation<'a>> {
        let mode = match flags {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let (name, to) = (self.name()?, self.name()?);
        Ok(Operation::Rename { name, to: (NodeId(newdir), to), mode })
    }
}

/// Returns the nodes of a BATCH_FORGET with their counts.
pub(crate) fn forgotten(bytes: &[u8]) -> impl Iterator<Item = (NodeId, u64)> {
    let ones = bytes.chunks_exact(size_of::<ForgetOne>());
    ones.filter_map(|one| ForgetOne::read_from_bytes(one).ok())
        .map(|ForgetOne { nodeid, nlookup }| (NodeId(nodeid), nlookup))
}

fn checked(name: &OsStr) -> Parsed<&OsStr> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL),
        bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
        _ => Ok(name),
    }
}

fn flags(bits: u32) -> OFlags {
    OFlags::from_bits_retain(bits)
}

/// Applies the umask. The kernel has applied it unless told not to; twice is harmless.
fn masked(mode: u32, umask: u32) -> u32 {
    mode & !(umask & 0o777)
}

fn set_attributes(set: &SetattrIn) -> SetAttributes {
    let has = |flag: u32| set.valid & flag != 0;
    let time = |flag, now, at: (i64, u32)| match (has(flag), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(at.0, at.1)),
    };
    SetAttributes {
        handle: has(fattr::FH).then_some(Handle(set.fh)),
        size: has(fattr::SIZE).then_some(set.size),
        mode: has(fattr::MODE).then_some(set.mode & 0o7777),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        accessed: time(fattr::ATIME, fattr::ATIME_NOW, (set.atime, set.atimensec)),
        modified: time(fattr::MTIME, fattr::MTIME_NOW, (set.mtime, set.mtimensec)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(code: u32, arguments: &[u8]) -> Vec<u8> {
        let len = u32::try_from(size_of::<InHeader>() + arguments.len()).unwrap();
        let header = InHeader { len, opcode: code, unique: 7, nodeid: 1, ..InHeader::default() };
        [zerocopy::IntoBytes::as_bytes(&header), arguments].concat()
    }

    fn errno(code: u32, arguments: &[u8]) -> Option<Errno> {
        match Request::parse(&bytes(code, arguments)) {
            Ok(request) => {
                assert_eq!((request.unique, request.node), (7, NodeId::ROOT));
                None
            }
            Err(Malformed::Request { unique: 7, errno }) => Some(errno),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_looked_at() {
        assert_eq!(errno(opcode::LOOKUP, b"a\0"), None);
        for name in [&b""[..], b"a", b"\0", b".\0", b"..\0", b"a/b\0", b"/\0", b"a\0b\0", b"a\0\0"]
        {
            assert_eq!(errno(opcode::LOOKUP, name), Some(Errno::INVAL), "{name:?}");
        }
        assert_eq!(errno(opcode::SYMLINK, b"a\0../to\0"), None);
        assert_eq!(errno(opcode::SYMLINK, b"a\0../to"), Some(Errno::INVAL));
    }

    #[test]
    fn what_is_not_on_the_list_is_not_known() {
        // ACCESS, GETLK, SETLK, SETLKW, BMAP, IOCTL, POLL, COPY_FILE_RANGE, SETUPMAPPING, and
        // unassigned codes.
        for code in [0, 31, 32, 33, 34, 37, 39, 40, 47, 48, 50, 52, 4096, u32::MAX] {
            assert_eq!(errno(code, &[0; 64]), Some(Errno::NOSYS), "{code}");
        }
    }

    #[test]
    fn a_length_that_is_not_so_is_refused() {
        for wrong in [0, 39, 41, 43, u32::MAX] {
            let mut bytes = bytes(opcode::LOOKUP, b"a\0");
            bytes[..4].copy_from_slice(&wrong.to_ne_bytes());
            let refused = Malformed::Request { unique: 7, errno: Errno::INVAL };
            assert_eq!(Request::parse(&bytes).unwrap_err(), refused, "{wrong}");
        }
        let mut write = [0; 40 + 3];
        write[16] = 3;
        assert_eq!(errno(opcode::WRITE, &write), None);
        write[16] = 4;
        assert_eq!(errno(opcode::WRITE, &write), Some(Errno::INVAL));
        let forget = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[1; 16]].concat();
        assert_eq!(errno(opcode::BATCH_FORGET, &forget), None);
        assert_eq!(errno(opcode::BATCH_FORGET, &forget[..23]), Some(Errno::INVAL));
        assert_eq!(errno(opcode::BATCH_FORGET, &[255; 24]), Some(Errno::INVAL));
        assert_eq!(
            errno(
                opcode::RENAME2,
                &[&[1, 0, 0, 0, 0, 0, 0, 0, 4][..], &[0; 7], b"a\0b\0"].concat()
            ),
            Some(Errno::INVAL)
        );
    }
}
