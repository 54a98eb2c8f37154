//! Dispatch of a request to the file system, and its reply.

use std::{ffi::OsStr, os::fd::BorrowedFd, os::unix::ffi::OsStrExt as _, time::Duration};

use rustix::{
    fs::OFlags,
    io::{Errno, Result},
};
use zerocopy::IntoBytes as _;

use crate::{
    abi::{GetxattrOut, LseekOut, StatfsOut, WriteOut},
    deadline::{Serving, Slot, Slots},
    directory::Directory,
    file_system::FileSystem,
    reply,
    request::{Malformed, Operation, Request, forgotten},
    types::{Data, Entry, Handle, NodeId, Opened, Statistics},
};

/// The body of a reply.
enum Output {
    Empty,
    /// The bytes of a structure, or of two.
    Bytes(Vec<u8>),
    Data(Data, usize),
}

/// References and a handle that the kernel gets with the reply.
#[derive(Default)]
struct ReplyReferences {
    nodes: Vec<NodeId>,
    handle: Option<Handle>,
    is_directory: bool,
}

impl ReplyReferences {
    /// Releases them, because the kernel did not get the reply.
    fn take_back(self, fs: &impl FileSystem, node: NodeId) {
        match (self.handle, self.nodes.first()) {
            (Some(handle), _) if self.is_directory => fs.release_directory(node, handle),
            // A created file is the node of its handle.
            (Some(handle), made) => fs.release(made.copied().unwrap_or(node), handle),
            (None, _) => {}
        }
        self.nodes.into_iter().for_each(|node| fs.forget(node, 1));
    }

    fn entry(&mut self, entry: &Entry) -> Result<Output> {
        self.nodes.push(entry.node);
        checked(entry).map(|()| bytes(&reply::entry(entry)))
    }

    /// Returns `EIO` for `ENOSYS`, which the kernel would take for success, and never open
    /// again.
    fn opened(&mut self, result: Result<Opened>) -> Result<Output> {
        let opened = must_be_known(result)?;
        self.handle = Some(opened.handle);
        Ok(bytes(&reply::opened(&opened)))
    }

    fn created(&mut self, result: Result<(Entry, Opened)>) -> Result<Output> {
        let (entry, opened) = result?;
        (self.nodes, self.handle) = (vec![entry.node], Some(opened.handle));
        checked(&entry)?;
        let mut bytes = reply::entry(&entry).as_bytes().to_vec();
        bytes.extend_from_slice(reply::opened(&opened).as_bytes());
        Ok(Output::Bytes(bytes))
    }
}

/// Serves a request and sends the reply; `slot`, one of all `slots`, holds it meanwhile. A change
/// may be left to another thread; after one, this thread serves those that wait.
///
/// # Errors
/// The error of the descriptor: `ENODEV` once the mount is gone.
pub(crate) fn serve(
    device: BorrowedFd<'_>,
    fs: &impl FileSystem,
    bytes: &[u8],
    (slot, slots): (&Slot, &Slots),
) -> Result<()> {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(Malformed::Request { unique, errno }) => {
            return send(device, unique, &Err(errno)).map(drop);
        }
        Err(Malformed::Header) => return Ok(()),
    };
    if let Operation::Interrupt(of) = request.operation {
        return slots.interrupt(device, fs, (request.unique, of));
    }
    let is_change = is_change(fs, &request);
    if is_change && !slots.changes.begin(&request, bytes) {
        return Ok(());
    }
    slot.begin(Serving::new(request.unique, request.caller));
    let mut sent = answer(device, fs, request, slot);
    // Also once the mount is gone: these were read.
    while is_change && let Some((serving, bytes)) = slots.changes.next() {
        slot.begin(serving);
        if let Ok(request) = Request::parse(&bytes) {
            sent = sent.and(answer(device, fs, request, slot));
        }
    }
    sent
}

/// Carries out the request that `slot` has, and sends the reply.
fn answer(
    device: BorrowedFd<'_>,
    fs: &impl FileSystem,
    request: Request<'_>,
    slot: &Slot,
) -> Result<()> {
    let (unique, node, mut given) = (request.unique, request.node, ReplyReferences::default());
    let output = carry_out(fs, request, &mut given);
    let is_in_time = slot.end();
    let Some(output) = output else { return Ok(()) };
    let is_given = is_in_time && send(device, unique, &output)?;
    if !is_given {
        given.take_back(fs, node);
    }
    Ok(())
}

/// Returns true for a request that stores something, or waits for one that does.
fn is_change(fs: &impl FileSystem, request: &Request<'_>) -> bool {
    let handle = match request.operation {
        Operation::Flush(handle) | Operation::Sync { handle, .. } => Some(handle),
        Operation::Open(flags)
            if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) =>
        {
            None
        }
        Operation::SetAttributes(_)
        | Operation::Symlink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Unlink(_)
        | Operation::RemoveDirectory(_)
        | Operation::Rename { .. }
        | Operation::Link { .. } => None,
        _ => return false,
    };
    fs.stores(request.node, handle)
}

/// Sends a reply; returns true if the kernel has its references and handle.
fn send(device: BorrowedFd<'_>, unique: u64, output: &Result<Output>) -> Result<bool> {
    let sent = match output {
        Err(errno) => reply::send(device, unique, Err(*errno)),
        Ok(Output::Empty) => reply::send(device, unique, Ok(&[])),
        Ok(Output::Bytes(bytes)) => reply::send(device, unique, Ok(&[bytes])),
        Ok(Output::Data(data, most)) => {
            let bytes = data.bytes();
            reply::send(device, unique, Ok(&[bytes.get(..*most).unwrap_or(bytes)]))
        }
    };
    match sent {
        Ok(()) => Ok(output.is_ok()),
        // The request was aborted meanwhile.
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::NODEV) => Err(Errno::NODEV),
        // The kernel refuses such a reply; the program must not wait for ever.
        Err(_) => match reply::send(device, unique, Err(Errno::IO)) {
            Err(Errno::NODEV) => Err(Errno::NODEV),
            _ => Ok(false),
        },
    }
}

/// Returns the result of a request; `None` where the kernel expects no reply.
fn carry_out(
    fs: &impl FileSystem,
    request: Request<'_>,
    given: &mut ReplyReferences,
) -> Option<Result<Output>> {
    let Request { node, caller, operation, .. } = request;
    let output = match operation {
        Operation::Forget(count) => {
            fs.forget(node, count);
            return None;
        }
        Operation::BatchForget(nodes) => {
            forgotten(nodes).for_each(|(node, count)| fs.forget(node, count));
            return None;
        }
        // The session is initialized already.
        Operation::Init { .. } => Err(Errno::IO),
        // Handled by the caller.
        Operation::Interrupt(_) => return None,
        Operation::Destroy => Ok(Output::Empty),
        Operation::Lookup(name) => match fs.lookup(caller, node, name) {
            Ok(Some(found)) => given.entry(&found),
            Ok(None) => match fs.missing_timeout(node) {
                Duration::ZERO => Err(Errno::NOENT),
                timeout => Ok(bytes(&reply::missing(timeout))),
            },
            Err(errno) => Err(errno),
        },
        Operation::GetAttributes(handle) => fs
            .attributes(caller, node, handle)
            .map(|(of, timeout)| bytes(&reply::attributes_for(&of, timeout))),
        Operation::SetAttributes(set) => fs
            .set_attributes(caller, node, set)
            .map(|(of, timeout)| bytes(&reply::attributes_for(&of, timeout))),
        Operation::ReadLink => {
            fs.read_link(caller, node).map(|target| Output::Bytes(target.into_encoded_bytes()))
        }
        Operation::Symlink { name, target } => {
            fs.symlink(caller, node, name, target).and_then(|made| given.entry(&made))
        }
        Operation::MakeNode { name, mode } => make_node(mode)
            .and_then(|mode| fs.make_file(caller, node, name, mode))
            .and_then(|made| given.entry(&made)),
        Operation::MakeDirectory { name, mode } => {
            fs.make_directory(caller, node, name, mode & 0o7777).and_then(|made| given.entry(&made))
        }
        Operation::Unlink(name) => done(fs.unlink(caller, node, name)),
        Operation::RemoveDirectory(name) => done(fs.remove_directory(caller, node, name)),
        Operation::Rename { name, to, mode } => done(fs.rename(caller, (node, name), to, mode)),
        Operation::Link { node: of, name } => {
            fs.link(caller, of, node, name).and_then(|made| given.entry(&made))
        }
        Operation::Open(flags) => given.opened(fs.open(caller, node, flags)),
        Operation::OpenDirectory(flags) => {
            given.is_directory = true;
            given.opened(fs.open_directory(caller, node, flags))
        }
        Operation::Create { name, mode, flags } => {
            given.created(fs.create(caller, node, name, mode & 0o7777, flags))
        }
        Operation::Temporary { mode, flags } => {
            given.created(fs.temporary(caller, node, mode & 0o7777, flags))
        }
        Operation::Read { handle, offset, size } => fs
            .read(caller, node, handle, offset, size)
            .map(|data| Output::Data(data, usize::try_from(size).unwrap_or(usize::MAX))),
        Operation::Write { handle, offset, data, from } => fs
            .write(caller, node, handle, offset, data, from)
            .map(|size| bytes(&WriteOut { size, padding: 0 })),
        Operation::Flush(handle) => done(must_be_known(fs.flush(caller, node, handle))),
        Operation::Release(handle) => {
            fs.release(node, handle);
            Ok(Output::Empty)
        }
        Operation::Sync { handle, data_only } => {
            done(must_be_known(fs.sync(caller, node, handle, data_only)))
        }
        Operation::Allocate { handle, mode, offset, length } => {
            done(fs.allocate(caller, node, handle, mode, offset, length))
        }
        Operation::Seek { handle, offset, to } => {
            fs.seek(node, handle, offset, to).map(|offset| bytes(&LseekOut { offset }))
        }
        Operation::ReadDirectory { handle, offset, size, is_plus } => {
            let mut entries = Vec::new();
            let size = usize::try_from(size).unwrap_or(0).min(crate::session::MAX_READ);
            let mut directory = Directory::new(&mut entries, size, is_plus);
            let read = fs.read_directory(caller, node, handle, offset, &mut directory);
            given.nodes = directory.into_references();
            match read {
                // The entries are references that the kernel has to get; it asks for the
                // rest again, and gets the error then.
                Err(errno) if entries.is_empty() => Err(errno),
                _ => Ok(Output::Bytes(entries)),
            }
        }
        Operation::ReleaseDirectory(handle) => {
            fs.release_directory(node, handle);
            Ok(Output::Empty)
        }
        Operation::SyncDirectory(handle) => {
            done(must_be_known(fs.sync_directory(caller, node, handle)))
        }
        Operation::Statistics => fs.statistics(node).map(|of| bytes(&statistics(&of))),
        Operation::GetExtended { name, size } => {
            fs.extended(caller, node, name).and_then(|value| sized(value, size))
        }
        Operation::ListExtended { size } => fs.extended_names(caller, node).and_then(|names| {
            let names = names.iter().flat_map(|name| [name.as_os_str(), OsStr::new("\0")]);
            sized(names.flat_map(OsStr::as_bytes).copied().collect(), size)
        }),
        Operation::SetExtended { name, value } => done(fs.set_extended(caller, node, name, value)),
        Operation::RemoveExtended(name) => done(fs.remove_extended(caller, node, name)),
    };
    Some(output)
}

fn done(result: Result<()>) -> Result<Output> {
    result.map(|()| Output::Empty)
}

fn bytes(structure: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) -> Output {
    Output::Bytes(structure.as_bytes().to_vec())
}

/// Refuses an entry that the kernel does not accept.
fn checked(entry: &Entry) -> Result<()> {
    let is_node = entry.node.0 != 0 && entry.node != NodeId::ROOT;
    if is_node && reply::is_served(entry.attributes.kind) { Ok(()) } else { Err(Errno::IO) }
}

/// Returns `EIO` for `ENOSYS`, which the kernel would take for success.
fn must_be_known<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::NOSYS { Errno::IO } else { errno })
}

/// Returns the permission bits of a regular file; no other kind is created.
fn make_node(mode: u32) -> Result<u32> {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Ok(mode & 0o7777),
        _ => Err(Errno::PERM),
    }
}

/// Returns a value if it fits, or its size if `room` is 0.
fn sized(value: Vec<u8>, room: u32) -> Result<Output> {
    let size = u32::try_from(value.len()).map_err(|_| Errno::RANGE)?;
    match room {
        0 => Ok(bytes(&GetxattrOut { size, padding: 0 })),
        room if size <= room => Ok(Output::Bytes(value)),
        _ => Err(Errno::RANGE),
    }
}

fn statistics(of: &Statistics) -> StatfsOut {
    StatfsOut {
        blocks: of.blocks,
        bfree: of.blocks_free,
        bavail: of.blocks_available,
        files: of.files,
        ffree: of.files_free,
        bsize: of.block_size,
        namelen: of.name_length,
        frsize: of.block_size,
        ..StatfsOut::default()
    }
}
