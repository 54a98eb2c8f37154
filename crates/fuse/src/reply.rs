//! Replies and notifications in the kernel's format.

use std::{io::IoSlice, os::fd::AsFd, time::Duration};

use rustix::{
    fs::FileType,
    io::{Errno, writev},
};
use zerocopy::IntoBytes as _;

use crate::{
    abi::{Attr, AttrOut, EntryOut, OpenOut, OutHeader, fopen},
    types::{Attributes, Entry, Opened},
};

/// Splits a timeout into seconds and nanoseconds.
fn split(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

pub(crate) fn attributes(of: &Attributes) -> Attr {
    Attr {
        ino: of.inode,
        size: of.size,
        blocks: of.size.div_ceil(512),
        atime: of.accessed.0,
        mtime: of.modified.0,
        ctime: of.changed.0,
        atimensec: of.accessed.1,
        mtimensec: of.modified.1,
        ctimensec: of.changed.1,
        mode: of.kind.as_raw_mode() | (of.mode & 0o7777),
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        rdev: 0,
        blksize: of.block_size,
        flags: 0,
    }
}

pub(crate) fn attributes_for(of: &Attributes, timeout: Duration) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = split(timeout);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attributes(of) }
}

pub(crate) fn entry(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = split(entry.entry_timeout);
    let (attr_valid, attr_valid_nsec) = split(entry.attribute_timeout);
    EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attributes(&entry.attributes),
    }
}

/// Returns the entry of a missing name: node id 0.
pub(crate) fn missing(timeout: Duration) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = split(timeout);
    EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() }
}

pub(crate) fn opened(opened: &Opened) -> OpenOut {
    let flags = [
        (opened.direct_io, fopen::DIRECT_IO),
        (opened.keep_cache, fopen::KEEP_CACHE),
        (opened.cache_directory, fopen::CACHE_DIR),
        (opened.no_flush, fopen::NOFLUSH),
    ];
    let open_flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
    OpenOut { fh: opened.handle.0, open_flags, backing_id: 0 }
}

/// Returns true if the kernel accepts nodes of this type.
pub(crate) fn is_served(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

/// Sends the reply to the request `unique`, in one write.
pub(crate) fn send(
    device: impl AsFd,
    unique: u64,
    reply: Result<&[&[u8]], Errno>,
) -> rustix::io::Result<()> {
    let (error, parts) = match reply {
        Ok(parts) => (0, parts),
        Err(errno) => (-errno_number(errno), &[][..]),
    };
    write(device, unique, error, parts)
}

/// Sends a notification.
pub(crate) fn notify(device: impl AsFd, code: i32, parts: &[&[u8]]) -> rustix::io::Result<()> {
    write(device, 0, code, parts)
}

fn write(device: impl AsFd, unique: u64, error: i32, parts: &[&[u8]]) -> rustix::io::Result<()> {
    let length = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let len = u32::try_from(length).map_err(|_| Errno::TOOBIG)?;
    let header = OutHeader { len, error, unique };
    let mut slices = vec![IoSlice::new(header.as_bytes())];
    slices.extend(parts.iter().map(|part| IoSlice::new(part)));
    writev(device, &slices).map(drop)
}

/// Returns a valid error number: the kernel accepts 1 to 511 and aborts on any
/// other.
fn errno_number(errno: Errno) -> i32 {
    match errno.raw_os_error() {
        number @ 1..=511 => number,
        _ => Errno::IO.raw_os_error(),
    }
}
