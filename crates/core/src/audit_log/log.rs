//! The log's files: the known end of the chain, and appending to it. `end` finds the end.
//!
//! Every look at the end and every append needs the lock on `audit/lock`, which all gateways share.

mod end;

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::Thread,
};

use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared, Receipt, Segment};
use rustix::{
    fs::{AtFlags, OFlags},
    io::Errno,
};

use super::{
    Error,
    clock::Clock,
    disk::{self, FileLock, Folder, Id},
    signing,
};

/// The log's directory in the state directory, and its lock.
pub(super) const AUDIT: &str = "audit";
pub(super) const LOCK: &str = "audit/lock";
const LOCK_FILE: &str = "lock";

/// Bytes of the end of the log whose links are checked when it is opened, and after another gateway
/// appended.
const MAX_OPENING_BYTES: u64 = 1 << 16;
const MAX_CATCH_UP_BYTES: u64 = 1 << 12;

const SEGMENT: OFlags = OFlags::RDWR.union(OFlags::APPEND);

pub(super) struct Log {
    state: OwnedFd,
    pub(super) audit: Arc<Folder>,
    audit_id: Id,
    lock: Arc<File>,
    lock_id: Id,
    boot: String,
    /// The operator who repairs the log, in a repair.
    pub(super) operator: Option<String>,
    clock: Clock,
    end: ChainEnd,
    recent: RecentLeaves,
    /// The size of the last checkpoint as far as this process knows.
    checked: u64,
    /// Records that a signed checkpoint covered when the log was opened.
    signed: u64,
    waker: Option<(u64, Thread)>,
}

/// Leaf hashes of the last records, so that a checkpoint need not read them
/// again.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentLeaves {
    /// Sequence number of the first one.
    pub(super) first: u64,
    pub(super) leaves: Vec<Hash>,
}

impl RecentLeaves {
    /// Number of leaves, more than a checkpoint waits for; past it the checkpoint reads the log.
    const MAX_RECENT: usize = 1 << 16;

    fn push(&mut self, leaf: Hash) {
        if self.leaves.len() == Self::MAX_RECENT {
            self.first += self.leaves.len() as u64;
            self.leaves.clear();
        }
        self.leaves.push(leaf);
    }
}

/// The end of the log at one moment.
pub(super) struct Snapshot {
    /// Number of records.
    pub(super) next: u64,
    /// The leaf hash of the last one.
    pub(super) last: Hash,
    pub(super) segment: Segment,
    /// Bytes of the open segment.
    pub(super) length: u64,
    pub(super) written: Option<UnsyncedSegment>,
    pub(super) recent: RecentLeaves,
}

/// The end of the chain, as this process knows it.
struct ChainEnd {
    chain: Chain,
    segment: Segment,
    /// The open segment; none before a log's first record.
    file: Option<(Arc<File>, Id)>,
    length: u64,
}

/// A segment with records that may not be synced.
#[derive(Clone)]
pub(super) struct UnsyncedSegment {
    audit: Arc<Folder>,
    segment: Segment,
    file: Arc<File>,
    id: Id,
}

impl UnsyncedSegment {
    pub(super) fn is(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Syncs the records, and checks that the file still is the log's.
    pub(super) fn sync(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(&self.file).map_err(Error::io("sync the audit log"))?;
        linked(&self.audit, self.segment, self.id).map(drop)
    }
}

/// Returns the length of the segment, which must still be the file `id`.
fn linked(audit: &Folder, segment: Segment, id: Id) -> Result<u64, Error> {
    let stat = audit.stat(segment.to_string()).map_err(Error::io("look at the audit log"))?;
    match stat {
        None => Err(Error::Tampered { what: "deleted" }),
        Some(stat) if Id::of(&stat) != id => Err(Error::Tampered { what: "replaced" }),
        Some(stat) => Ok(disk::length(&stat)),
    }
}

impl Log {
    /// Opens the files without reading the chain, as [`Log::load`] does.
    pub(super) fn attach(state: impl AsFd, boot: String) -> Result<Self, Error> {
        Self::with_lock(state, boot, |audit| {
            let lock = audit.file(LOCK_FILE, OFlags::RDWR | OFlags::CREATE);
            lock.map_err(audit.opening("open the log's lock", LOCK_FILE))
        })
    }

    /// Opens the files to look at them, and makes none: the directory stands for a lock that is
    /// missing.
    pub(super) fn attach_to_look(state: impl AsFd) -> Result<Self, Error> {
        Self::with_lock(state, String::new(), |audit| match audit.file(LOCK_FILE, OFlags::RDWR) {
            Err(Errno::NOENT) => {
                let directory = audit.as_fd().try_clone_to_owned();
                directory.map(File::from).map_err(Error::std("open the audit log"))
            }
            lock => lock.map_err(audit.opening("open the log's lock", LOCK_FILE)),
        })
    }

    fn with_lock(
        state: impl AsFd,
        boot: String,
        lock: impl FnOnce(&Folder) -> Result<File, Error>,
    ) -> Result<Self, Error> {
        let state =
            state.as_fd().try_clone_to_owned().map_err(Error::std("open the state directory"))?;
        let audit = Folder::open(&state, AUDIT)?;
        let audit_id = audit.id().map_err(Error::io("look at the audit log"))?;
        let lock = lock(&audit)?;
        let stat = rustix::fs::fstat(&lock).map_err(Error::io("look at the log's lock"))?;
        Ok(Self {
            state,
            audit: Arc::new(audit),
            audit_id,
            lock: Arc::new(lock),
            lock_id: Id::of(&stat),
            boot,
            operator: None,
            clock: Clock::default(),
            end: ChainEnd { chain: Chain::new(), segment: Segment(0), file: None, length: 0 },
            recent: RecentLeaves::default(),
            checked: 0,
            signed: 0,
            waker: None,
        })
    }

    /// Opens the directory of the private key, beside the log's.
    pub(super) fn keys(&self) -> Result<Folder, Error> {
        Folder::open(&self.state, signing::PRIVATE)
    }

    /// Returns the end of the log, for a checkpoint.
    pub(super) fn snapshot(&self) -> Snapshot {
        let written = self.end.file.clone().map(|(file, id)| UnsyncedSegment {
            audit: Arc::clone(&self.audit),
            segment: self.end.segment,
            file,
            id,
        });
        let (next, segment, length) = (self.next(), self.end.segment, self.end.length);
        let (last, recent) = (self.end.chain.prev(), self.recent.clone());
        Snapshot { next, last, segment, length, written, recent }
    }

    /// Drops the leaf hashes that a checkpoint of `size` records covers.
    pub(super) fn forget(&mut self, size: u64) {
        self.checked = self.checked.max(size);
        let old = usize::try_from(size.saturating_sub(self.recent.first)).unwrap_or(usize::MAX);
        let old = old.min(self.recent.leaves.len());
        self.recent.leaves.drain(..old);
        self.recent.first += old as u64;
    }

    /// True if `records` were added since the last checkpoint.
    pub(super) fn is_due(&self, records: u64) -> bool {
        self.next().saturating_sub(self.checked) >= records
    }

    /// Wakes `thread` when `records` are added; true if they are already.
    pub(super) fn wake_at(&mut self, records: u64, thread: Thread) -> bool {
        let due = self.is_due(records);
        self.waker = (!due).then(|| (self.checked.saturating_add(records), thread));
        due
    }

    /// Lets the thread that makes checkpoints wait again after a failure.
    pub(super) fn postpone(&mut self) {
        self.checked = self.next();
    }

    /// Returns the file that [`FileLock::wait`] locks.
    pub(super) fn lock(&self) -> Arc<File> {
        Arc::clone(&self.lock)
    }

    /// Returns the sequence number of the next record, as far as this process knows.
    pub(super) fn next(&self) -> u64 {
        self.end.chain.next()
    }

    /// Writes and syncs the record of a repair. Requires the lock.
    pub(super) fn recovered(&mut self, draft: &Draft) -> Result<(), Error> {
        let (boot, user) = (Some(self.boot.clone()), self.operator.clone());
        let draft = Draft { boot, user, ..draft.clone() };
        let record = Prepared::new(Kind::Recovered, &draft, disk::random()?)?;
        self.write(&[record])?.1.iter().try_for_each(UnsyncedSegment::sync)
    }

    /// Reads what other gateways appended. Requires the lock.
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        // Another file would not lock out the other gateways; and if the log's directory was
        // replaced, so was its lock.
        let lock = rustix::fs::statat(&self.state, LOCK, AtFlags::SYMLINK_NOFOLLOW);
        match lock {
            Ok(stat) if Id::of(&stat) == self.lock_id => {}
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {
                self.in_place()?;
                return Err(Error::Tampered { what: "robbed of its lock" });
            }
            Err(errno) => return Err(Error::io("look at the log's lock")(errno)),
        }
        loop {
            let next = match &self.end.file {
                None => self.end.segment,
                Some((_, id)) => {
                    let length = linked(&self.audit, self.end.segment, *id)?;
                    if length < self.end.length {
                        return Err(Error::Tampered { what: "cut short" });
                    }
                    if length > self.end.length {
                        self.read_tail(MAX_CATCH_UP_BYTES)?;
                    }
                    if self.room() > 0 {
                        return Ok(());
                    }
                    self.end.segment.next()
                }
            };
            let stat = self.audit.stat(next.to_string());
            if stat.map_err(Error::io("look at the audit log"))?.is_none() {
                return Ok(());
            }
            // Another gateway made it, and may have died before its name was synced.
            self.audit.sync().map_err(Error::io("sync the audit log"))?;
            self.enter(next, Some(self.end.chain))?;
        }
    }

    /// Checks that the log's directory still has its name.
    fn in_place(&self) -> Result<(), Error> {
        match rustix::fs::statat(&self.state, AUDIT, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Id::of(&stat) == self.audit_id => Ok(()),
            Ok(_other) => Err(Error::Tampered { what: "replaced" }),
            Err(Errno::NOENT) => Err(Error::Tampered { what: "deleted" }),
            Err(errno) => Err(Error::io("look at the audit log")(errno)),
        }
    }

    /// Returns the number of records that still fit into the open segment.
    fn room(&self) -> u64 {
        self.end.segment.next().first().saturating_sub(self.end.chain.next())
    }

    /// Appends `records` after those of other gateways. Takes the lock.
    pub(super) fn append(
        &mut self,
        records: &[Prepared],
    ) -> Result<(Vec<Receipt>, Vec<UnsyncedSegment>), Error> {
        let lock = self.lock();
        let _held = FileLock::wait(&lock, LOCK)?;
        self.catch_up()?;
        self.write(records)
    }

    /// Writes `records` at the known end, after [`Log::catch_up`]. Requires the lock.
    fn write(
        &mut self,
        records: &[Prepared],
    ) -> Result<(Vec<Receipt>, Vec<UnsyncedSegment>), Error> {
        let time = self.clock.now();
        let mut receipts = Vec::with_capacity(records.len());
        let mut written = Vec::new();
        let mut rest = records;
        while !rest.is_empty() {
            let (file, id) = match &self.end.file {
                Some((file, id)) if self.room() > 0 => (Arc::clone(file), *id),
                _ => self.rotate()?,
            };
            let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            let mut chain = self.end.chain;
            let mut lines = Vec::with_capacity(now.iter().map(Prepared::max_len).sum());
            receipts.extend(now.iter().map(|record| chain.append(record, &time, &mut lines)));
            self.write_lines(&file, &lines)?;
            let length = self.end.length + lines.len() as u64;
            // Its name was checked under the same lock a moment ago.
            let stat = rustix::fs::fstat(&file).map_err(Error::io("look at the audit log"))?;
            if stat.st_nlink == 0 {
                return Err(Error::Tampered { what: "deleted" });
            }
            if disk::length(&stat) != length {
                return Err(Error::Tampered { what: "changed by another program" });
            }
            (self.end.chain, self.end.length) = (chain, length);
            let new = receipts.len().saturating_sub(now.len());
            receipts.iter().skip(new).for_each(|receipt| self.recent.push(receipt.leaf));
            let (audit, segment) = (Arc::clone(&self.audit), self.end.segment);
            written.push(UnsyncedSegment { audit, segment, file, id });
            rest = later;
        }
        if let Some((_, thread)) = self.waker.take_if(|(at, _)| self.end.chain.next() >= *at) {
            thread.unpark();
        }
        Ok((receipts, written))
    }

    fn write_lines(&self, file: &File, lines: &[u8]) -> Result<(), Error> {
        let mut rest = lines;
        while !rest.is_empty() {
            match rustix::io::write(file, rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // No receipt was given for these records. If the file is not cut, the next
                    // gateway sets their bytes aside.
                    let _cut = rustix::fs::ftruncate(file, self.end.length);
                    return Err(Error::io("write to the audit log")(errno));
                }
            }
        }
        Ok(())
    }

    /// Makes the next segment: the full one is synced before, and the new name before its first
    /// record.
    fn rotate(&mut self) -> Result<(Arc<File>, Id), Error> {
        let segment = match &self.end.file {
            None => self.end.segment,
            Some((full, _)) => {
                // Another directory may have links to the same files.
                self.in_place()?;
                rustix::fs::fdatasync(full).map_err(Error::io("sync the audit log"))?;
                self.end.segment.next()
            }
        };
        let file = self
            .audit
            .file(segment.to_string(), SEGMENT | OFlags::CREATE | OFlags::EXCL)
            .map_err(Error::io("make a segment of the audit log"))?;
        self.audit.sync().map_err(Error::io("sync the audit log"))?;
        let stat = rustix::fs::fstat(&file).map_err(Error::io("look at the audit log"))?;
        let open = (Arc::new(file), Id::of(&stat));
        self.end = ChainEnd { chain: self.end.chain, segment, file: Some(open.clone()), length: 0 };
        Ok(open)
    }
}
