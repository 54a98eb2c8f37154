//! The kernel's requests on the workspace.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use portcullis_fuse::{
    Attributes, Caller, Data, Directory, Entry, Errno, FileSystem, FileType, Handle, NodeId,
    Notifier, OFlags, Opened, RenameMode, Seek, Session, SessionError, SetAttributes, SetTime,
    Statistics, WriteFrom,
};
use portcullis_policy::ObjectKind;
use rustix::io::Result;

use crate::{
    attributes::Attr,
    change::AttributeChange,
    invalidate::PendingInvalidations,
    lookup::OpeningDirectory,
    mount::Mount,
    open::{OpenMode, Opening},
    router::Router,
    scratch::Scratch,
};

/// The extended attribute with the reason of a file's last refusal.
const WHY: &str = "user.portcullis.why";
/// The inode number in lists of an entry without a node.
const UNKNOWN_INODE: u64 = u32::MAX as u64;
/// Maximum of bytes of files read for attributes in one reply about a directory: a program that
/// waits for it cannot be killed.
const MAX_READ_IN_LIST: u64 = 4 << 20;
/// Timeout for requests in progress when the mount is stopped, after which repeats are recorded
/// without them.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval of checks for the stop of a mount that is gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// `FALLOC_FL_KEEP_SIZE` of `fallocate(2)`: the size stays.
const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`: the range becomes zeros, and the size stays.
const PUNCH_HOLE: u32 = 2 | KEEP_SIZE;
/// `FALLOC_FL_ZERO_RANGE`: the range becomes zeros.
const ZERO_RANGE: u32 = 16;

impl Mount<'_> {
    /// Serves the programs in the mount until it is gone or `session` is stopped.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn serve(&self, session: &Session) -> std::result::Result<(), SessionError> {
        let stopper = session.stopper();
        let notifier = self.invalidations.notifier.get_or_init(|| session.notifier());
        let ended = thread::scope(|scope| {
            self.invalidations.begin();
            scope.spawn(|| self.invalidations.run(|work| self.invalidate(notifier, work)));
            // An error of the log stops every other request, too.
            scope.spawn(|| self.keep_log());
            scope.spawn(|| {
                stopper.wait();
                // The last writes are committed, unless that takes too long.
                while !stopper.is_ordered() {
                    if self.repeats.wait(CHECK_INTERVAL) {
                        return;
                    }
                }
                // A thread may be blocked for ever.
                if !self.repeats.wait(LAST_REQUESTS_TIMEOUT) {
                    self.repeats.end();
                }
            });
            let ended = session.run(&Router::new(self), self.options.threads.max(2) + 1);
            // The kernel reports the last close of a file after the program has continued.
            let staged = self.lock().nodes.staged();
            for (node, staged) in staged.into_iter().take_while(|_| !stopper.is_ordered()) {
                // A refusal is recorded.
                let _ = self.commit(node, &staged, 0);
            }
            self.is_over.store(true, Ordering::Release);
            self.invalidations.end();
            self.repeats.end();
            // Without a usage, the content is counted anew or removed once this process has ended.
            let _ = self.scratch.as_ref().map(Scratch::end);
            ended
        });
        // Repeats of requests that ended late.
        let _ = self.record_repeats();
        ended
    }

    fn invalidate(&self, notifier: &Notifier, work: PendingInvalidations) {
        let PendingInvalidations { all, contents, entries } = work;
        let (mut nodes, mut names): (Vec<_>, Vec<_>) =
            (contents.into_iter().collect(), entries.into_iter().collect());
        if all {
            let mut state = self.lock();
            state.views.clear();
            nodes = state.nodes.all();
            names = nodes.iter().filter_map(|id| state.nodes.entry(*id)).collect();
        }
        // This fails once the mount is gone.
        for node in nodes {
            let _ = notifier.invalidate_node(NodeId(node));
        }
        for (parent, name) in names {
            let _ = notifier.invalidate_entry(NodeId(parent), OsStr::new(&*name));
        }
    }

    fn known(&self, attr: &Attr) -> Attributes {
        Attributes {
            inode: attr.node,
            kind: file_type(attr.kind),
            mode: attr.mode,
            links: attr.links,
            uid: self.options.uid,
            gid: self.options.gid,
            size: attr.size,
            block_size: 4096,
            accessed: attr.modified,
            modified: attr.modified,
            changed: attr.changed,
        }
    }

    fn entry(&self, attr: &Attr) -> Entry {
        Entry {
            node: NodeId(attr.node),
            generation: 0,
            attributes: self.known(attr),
            attribute_timeout: self.options.timeout,
            entry_timeout: self.options.timeout,
        }
    }

    /// Adds the entries of an open directory from `offset` on; `look` looks them up, and reads at
    /// most as many bytes of files as are left.
    pub(crate) fn give_list(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
        look: impl Fn(&OsStr, &mut u64) -> Result<Option<Entry>>,
    ) -> Result<()> {
        let mut room = MAX_READ_IN_LIST;
        self.read_list(handle.0, offset, |next, name, kind| {
            let file = OsStr::new(name);
            if !directory.is_plus() || matches!(name, "." | "..") {
                let inode = self.lock().nodes.child(node.0, name).unwrap_or(UNKNOWN_INODE);
                return directory.add(file, inode, file_type(kind), next);
            }
            // A listed name is left out only if it is gone. An entry without attributes is looked
            // up when a program needs them.
            let mut is_bare = false;
            let has_room = directory.add_entry(file, next, || {
                let found = look(file, &mut room);
                is_bare = found.is_err();
                found.ok().flatten()
            });
            if is_bare {
                directory.add(file, UNKNOWN_INODE, file_type(kind), next)
            } else {
                has_room
            }
        })
    }

    /// Looks up a name; reads at most `room` bytes of a file for its size.
    pub(crate) fn find(
        &self,
        parent: NodeId,
        name: &OsStr,
        room: &mut u64,
    ) -> Result<Option<Entry>> {
        match self.look_up_within(parent.0, text(name, Errno::NOENT)?, room) {
            Ok(attr) => Ok(Some(self.entry(&attr))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn timed(&self, attr: Attr) -> (Attributes, Duration) {
        (self.known(&attr), self.options.timeout)
    }
}

fn file_type(kind: ObjectKind) -> FileType {
    match kind {
        ObjectKind::File => FileType::RegularFile,
        ObjectKind::Directory => FileType::Directory,
        ObjectKind::Symlink => FileType::Symlink,
        // Not shown: see `is_served`.
        ObjectKind::Fifo | ObjectKind::Socket | ObjectKind::Device | ObjectKind::Missing => {
            FileType::Unknown
        }
    }
}

/// Returns a name as text: the workspace has names in UTF-8 only.
fn text(name: &OsStr, else_error: Errno) -> Result<&str> {
    name.to_str().ok_or(else_error)
}

fn how(flags: OFlags) -> OpenMode {
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    OpenMode { writes, truncates: flags.contains(OFlags::TRUNC) }
}

fn opened(opening: Opening, how: OpenMode) -> Opened {
    Opened {
        keep_cache: opening.keeps_pages,
        no_flush: !how.writes && !how.truncates,
        ..Opened::new(Handle(opening.handle))
    }
}

impl FileSystem for Mount<'_> {
    fn lookup(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        let mut room = u64::MAX;
        self.find(parent, name, &mut room)
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.forget_node(node.0, count);
    }

    fn attributes(
        &self,
        _: Caller,
        node: NodeId,
        _: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        self.attributes(node.0).map(|attr| self.timed(attr))
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, Duration)> {
        let SetAttributes { handle, size, mode, uid, gid, modified, .. } = set;
        // A new file has the current time anyway, and each attempt of a program should be the same
        // request.
        let is_implied = modified == Some(SetTime::Now) && self.asks_about_new(node.0);
        if is_implied {
            self.commit_touched(node.0, caller.pid)?;
        }
        let modified = modified.filter(|_| !is_implied).map(SetTime::resolve);
        let wanted = AttributeChange { size, mode, modified, uid, gid };
        let handle = handle.map(|handle| handle.0);
        let attr = self.set_attributes(node.0, handle, wanted, caller.pid)?;
        Ok(self.timed(attr))
    }

    fn read_link(&self, caller: Caller, node: NodeId) -> Result<OsString> {
        self.link_target(node.0, caller.pid).map(OsString::from)
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        let (name, target) = (text(name, Errno::ILSEQ)?, text(target, Errno::ILSEQ)?);
        self.make_link(parent.0, name, target, caller.pid).map(|attr| self.entry(&attr))
    }

    fn make_file(&self, caller: Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        let name = text(name, Errno::ILSEQ)?;
        let how = OpenMode { writes: true, ..OpenMode::default() };
        let (attr, opening) = self.create_file(parent.0, name, mode, (how, true), caller.pid)?;
        let done = self.commit_handle(opening.handle, caller.pid);
        self.release(opening.handle);
        done.inspect_err(|_| self.forget_node(attr.node, 1))?;
        Ok(self.entry(&attr))
    }

    fn make_directory(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
    ) -> Result<Entry> {
        let name = text(name, Errno::ILSEQ)?;
        self.make_directory(parent.0, name, mode, caller.pid).map(|attr| self.entry(&attr))
    }

    fn unlink(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        self.remove(parent.0, text(name, Errno::NOENT)?, false, caller.pid)
    }

    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        self.remove(parent.0, text(name, Errno::NOENT)?, true, caller.pid)
    }

    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        let old = (from.0.0, text(from.1, Errno::NOENT)?);
        let new = (to.0.0, text(to.1, Errno::ILSEQ)?);
        match mode {
            RenameMode::Replace => self.rename_entry(old, new, true, caller.pid),
            RenameMode::NoReplace => self.rename_entry(old, new, false, caller.pid),
            RenameMode::Exchange => self.exchange_entries(old, new, caller.pid),
        }
    }

    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let name = text(name, Errno::ILSEQ)?;
        self.name_file(node.0, (parent.0, name), caller.pid).map(|attr| self.entry(&attr))
    }

    fn open(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        let how = how(flags);
        let opening = self.open_file(node.0, how, caller.pid)?;
        self.send_size(node.0);
        Ok(opened(opening, how))
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        if mode & 0o6000 != 0 {
            return Err(Errno::PERM);
        }
        let (name, how) = (text(name, Errno::ILSEQ)?, how(flags));
        let exclusive = flags.contains(OFlags::EXCL);
        let (attr, opening) =
            self.create_file(parent.0, name, mode, (how, exclusive), caller.pid)?;
        // A file that is only read has to be created as well.
        Ok((self.entry(&attr), Opened { no_flush: false, ..opened(opening, how) }))
    }

    fn temporary(&self, _: Caller, _: NodeId, mode: u32, _: OFlags) -> Result<(Entry, Opened)> {
        if mode & 0o6000 != 0 {
            return Err(Errno::PERM);
        }
        let (attr, opening) = self.create_unnamed(mode & 0o777)?;
        Ok((self.entry(&attr), Opened::new(Handle(opening.handle))))
    }

    fn read(
        &self,
        caller: Caller,
        _: NodeId,
        handle: Handle,
        offset: u64,
        size: u32,
    ) -> Result<Data> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        self.read_file(handle.0, offset, size, caller.pid)
    }

    fn write(
        &self,
        caller: Caller,
        _: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        from: WriteFrom,
    ) -> Result<u32> {
        self.write_file(handle.0, offset, data, (from, caller.pid))?;
        u32::try_from(data.len()).map_err(|_| Errno::INVAL)
    }

    fn flush(&self, caller: Caller, _: NodeId, handle: Handle) -> Result<()> {
        self.flush_handle(handle.0, caller.pid)
    }

    fn release(&self, _: NodeId, handle: Handle) {
        self.release(handle.0);
    }

    fn sync(&self, caller: Caller, _: NodeId, handle: Handle, _: bool) -> Result<()> {
        self.commit_handle(handle.0, caller.pid)
    }

    fn allocate(
        &self,
        caller: Caller,
        _: NodeId,
        handle: Handle,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let size = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let (_, staged) = self.writable(handle.0, caller.pid)?;
        match mode {
            0 => staged.grow(size),
            // There is no space to reserve.
            KEEP_SIZE => staged.live(),
            PUNCH_HOLE => staged.clear(offset, length),
            _ if mode & !KEEP_SIZE == ZERO_RANGE => {
                if mode == ZERO_RANGE {
                    staged.grow(size)?;
                }
                staged.clear(offset, length)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn seek(&self, node: NodeId, _: Handle, offset: u64, to: Seek) -> Result<u64> {
        let size = self.attributes(node.0)?.size;
        match to {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn open_directory(&self, _: Caller, node: NodeId, _: OFlags) -> Result<Opened> {
        let OpeningDirectory { handle, caches, keeps } = self.open_directory(node.0)?;
        let opened = Opened::new(Handle(handle));
        Ok(Opened { cache_directory: caches, keep_cache: keeps, ..opened })
    }

    fn read_directory(
        &self,
        _: Caller,
        node: NodeId,
        handle: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        let look = |name: &OsStr, room: &mut u64| self.find(node, name, room);
        self.give_list(node, handle, offset, directory, look)
    }

    fn release_directory(&self, _: NodeId, handle: Handle) {
        self.release(handle.0);
    }

    fn sync_directory(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        // Each change of a name was durable before its reply.
        Ok(())
    }

    fn statistics(&self, _: NodeId) -> Result<Statistics> {
        let blocks = 1 << 28;
        Ok(Statistics {
            blocks,
            blocks_free: blocks / 2,
            blocks_available: blocks / 2,
            files: 1 << 32,
            files_free: 1 << 31,
            block_size: 4096,
            name_length: 255,
        })
    }

    fn extended(&self, _: Caller, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        if name.as_bytes() != WHY.as_bytes() {
            return Err(Errno::OPNOTSUPP);
        }
        let state = self.lock();
        let reason = state.nodes.get(node.0).and_then(|node| node.reason.as_ref());
        reason.map(|reason| reason.as_bytes().to_vec()).ok_or(Errno::NODATA)
    }

    fn extended_names(&self, _: Caller, node: NodeId) -> Result<Vec<OsString>> {
        let state = self.lock();
        let has_why = state.nodes.get(node.0).is_some_and(|node| node.reason.is_some());
        Ok(if has_why { vec![OsString::from(WHY)] } else { Vec::new() })
    }

    fn set_extended(&self, _: Caller, _: NodeId, _: &OsStr, _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn remove_extended(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
