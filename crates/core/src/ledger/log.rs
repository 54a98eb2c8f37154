//! The log's files: where the chain ends, and appending to it.
//!
//! Every look at the end and every append happens under the lock on
//! `audit/lock`, which all gates share.

use std::{
    fs::File,
    io::Cursor,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::Thread,
};

use portcullis_audit::{
    Chain, Draft, Hash, Kind, MAX_SEGMENT, PACKED, Prepared, Receipt, RecordView, Segment, Tail,
};
use rustix::{
    fs::{AtFlags, OFlags},
    io::Errno,
};

use super::{
    Error, checkpoints,
    clock::Clock,
    disk::{self, FileLock, Folder, Id},
    looked::Looked,
    noted::Noted,
    quarantine, signing,
    unpack::unpack,
};

/// The log's directory, and its lock, in the state directory.
const AUDIT: &str = "audit";
pub(super) const LOCK: &str = "audit/lock";
const LOCK_FILE: &str = "lock";

/// Bytes of the end of the log whose links are checked when it is opened, and
/// after another gate appended.
const OPENING: u64 = 1 << 16;
const CATCHING_UP: u64 = 1 << 12;

const SEGMENT: OFlags = OFlags::RDWR.union(OFlags::APPEND);

pub(super) struct Log {
    state: OwnedFd,
    pub(super) audit: Arc<Folder>,
    audit_id: Id,
    lock: Arc<File>,
    lock_id: Id,
    boot: String,
    /// The operator who has the log repaired, if one does.
    pub(super) operator: Option<String>,
    clock: Clock,
    end: ChainEnd,
    fresh: Fresh,
    /// The size of the last checkpoint as far as this process knows, and the
    /// thread that makes the next one.
    checked: u64,
    /// Records that a signed checkpoint covered when the log was opened.
    signed: u64,
    waker: Option<(u64, Thread)>,
}

/// Leaf hashes of the last records, so that a checkpoint need not read them
/// again.
#[derive(Debug, Clone, Default)]
pub(super) struct Fresh {
    /// The first one's sequence number.
    pub(super) first: u64,
    pub(super) leaves: Vec<Hash>,
}

impl Fresh {
    /// More than a checkpoint waits for; beyond that it reads.
    const MOST: usize = 1 << 16;

    fn push(&mut self, leaf: Hash) {
        if self.leaves.len() == Self::MOST {
            self.first += self.leaves.len() as u64;
            self.leaves.clear();
        }
        self.leaves.push(leaf);
    }
}

/// The end of the log at one moment.
pub(super) struct Snapshot {
    /// How many records there are.
    pub(super) next: u64,
    pub(super) segment: Segment,
    /// Bytes of the open segment.
    pub(super) length: u64,
    pub(super) written: Option<Written>,
    pub(super) fresh: Fresh,
}

/// Where the chain ends, as this process knows it.
struct ChainEnd {
    chain: Chain,
    segment: Segment,
    /// The open segment and its length; none before a log's first record.
    file: Option<(Arc<File>, Id)>,
    length: u64,
}

/// A segment with records that are not known to be on stable storage.
#[derive(Clone)]
pub(super) struct Written {
    audit: Arc<Folder>,
    segment: Segment,
    file: Arc<File>,
    id: Id,
}

impl Written {
    pub(super) fn is(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Brings the records to stable storage, and makes sure that it is the log
    /// that they are in.
    pub(super) fn sync(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(&self.file).map_err(Error::io("sync the audit log"))?;
        linked(&self.audit, self.segment, self.id).map(drop)
    }
}

/// The length of the segment, which must still be the file `id`.
fn linked(audit: &Folder, segment: Segment, id: Id) -> Result<u64, Error> {
    let stat = audit.stat(segment.to_string()).map_err(Error::io("look at the audit log"))?;
    match stat {
        None => Err(Error::Tampered { what: "deleted" }),
        Some(stat) if Id::of(&stat) != id => Err(Error::Tampered { what: "replaced" }),
        Some(stat) => Ok(disk::length(&stat)),
    }
}

impl Log {
    /// Opens the files without looking at the chain: [`Log::load`] does.
    pub(super) fn attach(state: impl AsFd, boot: String) -> Result<Self, Error> {
        let state =
            state.as_fd().try_clone_to_owned().map_err(Error::std("open the state directory"))?;
        let audit = Folder::open(&state, AUDIT)?;
        let audit_id = audit.id().map_err(Error::io("look at the audit log"))?;
        let lock = audit
            .file(LOCK_FILE, OFlags::RDWR | OFlags::CREATE)
            .map_err(audit.opening("open the log's lock", LOCK_FILE))?;
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
            fresh: Fresh::default(),
            checked: 0,
            signed: 0,
            waker: None,
        })
    }

    /// The directory of the private key, beside the log's.
    pub(super) fn keys(&self) -> Result<Folder, Error> {
        Folder::open(&self.state, signing::PRIVATE)
    }

    /// What a checkpoint can cover now.
    pub(super) fn snapshot(&self) -> Snapshot {
        let written = self.end.file.clone().map(|(file, id)| Written {
            audit: Arc::clone(&self.audit),
            segment: self.end.segment,
            file,
            id,
        });
        let (next, segment, length) = (self.next(), self.end.segment, self.end.length);
        Snapshot { next, segment, length, written, fresh: self.fresh.clone() }
    }

    /// A checkpoint covers the first `size` records now.
    pub(super) fn forget(&mut self, size: u64) {
        self.checked = self.checked.max(size);
        let old = usize::try_from(size.saturating_sub(self.fresh.first)).unwrap_or(usize::MAX);
        let old = old.min(self.fresh.leaves.len());
        self.fresh.leaves.drain(..old);
        self.fresh.first += old as u64;
    }

    /// Whether `records` came since the last checkpoint.
    pub(super) fn is_due(&self, records: u64) -> bool {
        self.next().saturating_sub(self.checked) >= records
    }

    /// Wakes `thread` when so many have come; says whether they have.
    pub(super) fn wake_at(&mut self, records: u64, thread: Thread) -> bool {
        let due = self.is_due(records);
        self.waker = (!due).then(|| (self.checked.saturating_add(records), thread));
        due
    }

    /// Lets the thread that makes checkpoints wait anew after a failure.
    pub(super) fn postpone(&mut self) {
        self.checked = self.next();
    }

    /// The lock that [`FileLock::wait`] takes for what follows.
    pub(super) fn lock(&self) -> Arc<File> {
        Arc::clone(&self.lock)
    }

    /// The sequence number of the next record, as far as this process knows.
    pub(super) fn next(&self) -> u64 {
        self.end.chain.next()
    }

    /// Finds the end of the chain, repairs a torn one and writes the records
    /// that a repair before could not. Under the lock.
    pub(super) fn load(&mut self) -> Result<(), Error> {
        let noted = Noted::read(&self.keys()?)?;
        if let Some(segment) = self.last(&noted)? {
            // What a repair left may end with one that was full and old.
            unpack(&self.audit, segment)?;
            self.enter(segment, None)?;
            self.read_tail(OPENING)?;
            if self.end.length == 0 {
                // Its maker may have died before the name was safe.
                self.audit.sync().map_err(Error::io("sync the audit log"))?;
                if segment.0 > 0 {
                    self.end.chain = self.chain_before(segment)?;
                }
            }
        }
        self.fresh = Fresh { first: self.next(), leaves: Vec::new() };
        self.reaches()?;
        for pending in quarantine::pending(&self.audit)? {
            self.tell(&pending)?;
        }
        Ok(())
    }

    /// Finds the end of the chain as [`Log::load`] does, and repairs and unpacks
    /// nothing.
    pub(super) fn look(&mut self, noted: &Noted) -> Result<Looked, Error> {
        let Some(segment) = self.last(noted)? else {
            return self.reaches().map(|()| Looked { records: Some(self.next()), torn: 0 });
        };
        let is_plain = |segment: Segment| {
            let stat = self.audit.stat(segment.to_string());
            stat.map(|stat| stat.is_some()).map_err(Error::io("look at the audit log"))
        };
        let before = Segment(segment.0.saturating_sub(1));
        let (plain, before_is_plain) = (is_plain(segment)?, is_plain(before)?);
        if !plain {
            return Ok(Looked { records: None, torn: 0 });
        }
        self.enter(segment, None)?;
        let torn = self.read_new(OPENING)?.map_or(0, |(_, tail)| tail.torn.len());
        if self.end.length == 0 && segment.0 > 0 {
            if !before_is_plain {
                return Ok(Looked { records: None, torn });
            }
            self.end.chain = self.chain_before(segment)?;
        }
        self.fresh = Fresh { first: self.next(), leaves: Vec::new() };
        self.reaches().map(|()| Looked { records: Some(self.next()), torn })
    }

    /// The last segment, if there is any, where none before it is missing.
    fn last(&mut self, noted: &Noted) -> Result<Option<Segment>, Error> {
        if let Some(newest) = checkpoints::last_signed(&self.audit, noted)? {
            (self.signed, self.checked) = (newest.size, newest.size);
        }
        let names = self.audit.names().map_err(Error::io("read the audit log"))?;
        let segments = names
            .iter()
            .filter_map(|name| Segment::from_name(name.strip_suffix(PACKED).unwrap_or(name)))
            .collect::<std::collections::BTreeSet<_>>();
        let last = segments.iter().max().copied();
        let first = segments.iter().min().copied().unwrap_or(Segment(0));
        let count = segments.len() as u64;
        if let Some(segment) = last {
            // The oldest ones may have been pruned; their roots are kept then.
            let pruned = if first.0 == 0 || checkpoints::roots_reach(&self.audit, first)? {
                first.0
            } else {
                0
            };
            if segment.next().0 != count + pruned {
                let missing = (pruned..).map(Segment).find(|segment| !segments.contains(segment));
                return Err(Error::Damaged {
                    segment: missing.unwrap_or(segment),
                    reason: "the segment is missing".to_owned(),
                });
            }
        }
        Ok(last)
    }

    /// Makes `segment` the open one, of which nothing is known yet but where
    /// the chain ends before it.
    fn enter(&mut self, segment: Segment, chain: Option<Chain>) -> Result<(), Error> {
        let name = segment.to_string();
        let open = self.audit.opening("open the last segment of the audit log", &name);
        let file = self.audit.file(&name, SEGMENT).map_err(open)?;
        let stat = rustix::fs::fstat(&file).map_err(Error::io("look at the audit log"))?;
        let chain = chain.unwrap_or_default();
        self.end =
            ChainEnd { chain, segment, file: Some((Arc::new(file), Id::of(&stat))), length: 0 };
        Ok(())
    }

    /// Reads what is in the open segment after the known length, and repairs its end.
    fn read_tail(&mut self, window: u64) -> Result<(), Error> {
        let Some((file, tail)) = self.read_new(window)? else { return Ok(()) };
        if !tail.torn.is_empty() {
            let segment = self.end.segment;
            // A segment that was empty does not say where the chain is.
            if tail.end == 0 && segment.0 > 0 && self.end.chain.next() != segment.first() {
                self.end.chain = self.chain_before(segment)?;
            }
            self.repair(&file, &tail)?;
        }
        Ok(())
    }

    /// The same without repairing it.
    fn read_new(&mut self, window: u64) -> Result<Option<(Arc<File>, Tail)>, Error> {
        let Some((file, id)) = self.end.file.clone() else { return Ok(None) };
        let segment = self.end.segment;
        let damaged = |reason: &str| Error::Damaged { segment, reason: reason.to_owned() };
        let length = linked(&self.audit, segment, id)?;
        if length > MAX_SEGMENT {
            return Err(damaged("it is longer than a segment can be"));
        }
        let from = self.end.length;
        let tail =
            Tail::read(&mut &*file, from, length, window).map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidData => damaged("it does not end with a record"),
                _ => Error::std("read the audit log")(error),
            })?;
        // Read from the known end on, the lines must continue the known chain.
        let known = tail.end - tail.lines.len() as u64 == from
            && (from > 0 || self.end.chain.next() == segment.first());
        if let Some(lines) = tail.lines.strip_suffix(b"\n") {
            let (chain, leaves) =
                follow(known.then_some(self.end.chain), lines).map_err(|r| damaged(&r))?;
            if chain.next() <= segment.first() || chain.next() > segment.next().first() {
                return Err(damaged("its last record belongs to another segment"));
            }
            if chain.next() < self.end.chain.next() {
                return Err(damaged("its records are out of order"));
            }
            self.end.chain = chain;
            if known {
                leaves.into_iter().for_each(|leaf| self.fresh.push(leaf));
            } else {
                self.fresh = Fresh { first: chain.next(), leaves: Vec::new() };
            }
        }
        self.end.length = tail.end;
        Ok(Some((file, tail)))
    }

    /// The end of the chain before the first record of `segment`.
    fn chain_before(&self, segment: Segment) -> Result<Chain, Error> {
        let before = Segment(segment.0.saturating_sub(1));
        let damaged = |reason: String| Error::Damaged { segment: before, reason };
        let name = before.to_string();
        // It may be compressed: where the end of the log was lost, or after a restore.
        unpack(&self.audit, before)?;
        let open = self.audit.opening("open a segment of the audit log", &name);
        let mut file = self.audit.file(&name, OFlags::RDONLY).map_err(open)?;
        let length = file.metadata().map_err(Error::std("read the audit log"))?.len();
        let tail = Tail::read(&mut file, 0, length, CATCHING_UP)
            .map_err(|_read| damaged("it does not end with a record".to_owned()))?;
        let chain = match tail.last() {
            Some(line) if tail.torn.is_empty() => {
                Chain::after(line).map_err(|error| damaged(error.to_string()))?
            }
            _ => return Err(damaged("it does not end with a record".to_owned())),
        };
        if chain.next() != segment.first() {
            return Err(damaged("the segment is not full, but a later one is there".to_owned()));
        }
        Ok(chain)
    }

    /// A log that is shorter than its checkpoint was cut.
    fn reaches(&self) -> Result<(), Error> {
        let next = self.next();
        if next < self.signed {
            return Err(checkpoints::shorter(self.end.segment, next, self.signed));
        }
        Ok(())
    }

    /// Sets the bytes after the last newline aside. Nothing else: whatever is
    /// before it stays as it is.
    fn repair(&mut self, file: &File, tail: &Tail) -> Result<(), Error> {
        self.reaches()?;
        let pending = quarantine::keep(&self.audit, "torn", Cursor::new(&tail.torn))?;
        rustix::fs::ftruncate(file, tail.end)
            .and_then(|()| rustix::fs::fsync(file))
            .map_err(Error::io("cut a torn line off the audit log"))?;
        self.tell(&pending)
    }

    /// Writes the record of a file in quarantine.
    fn tell(&mut self, pending: &quarantine::Pending) -> Result<(), Error> {
        self.recovered(&pending.draft())?;
        pending.settle(&self.audit)
    }

    /// Writes what a repair did, on stable storage on return. Under the lock.
    pub(super) fn recovered(&mut self, draft: &Draft) -> Result<(), Error> {
        let (boot, user) = (Some(self.boot.clone()), self.operator.clone());
        let draft = Draft { boot, user, ..draft.clone() };
        let record = Prepared::new(Kind::Recovered, &draft, disk::random()?)?;
        self.write(&[record])?.1.iter().try_for_each(Written::sync)
    }

    /// Takes in what other gates appended. Under the lock.
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        // Under another lock than the other gates, nothing would be locked; and
        // where another directory has the log's name, so has another lock.
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
                        self.read_tail(CATCHING_UP)?;
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
            // Another gate made it, and may have died before its name was safe.
            self.audit.sync().map_err(Error::io("sync the audit log"))?;
            self.enter(next, Some(self.end.chain))?;
        }
    }

    /// Whether the log's directory still has its name.
    fn in_place(&self) -> Result<(), Error> {
        match rustix::fs::statat(&self.state, AUDIT, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Id::of(&stat) == self.audit_id => Ok(()),
            Ok(_other) => Err(Error::Tampered { what: "replaced" }),
            Err(Errno::NOENT) => Err(Error::Tampered { what: "deleted" }),
            Err(errno) => Err(Error::io("look at the audit log")(errno)),
        }
    }

    /// Records that the open segment can still take.
    fn room(&self) -> u64 {
        self.end.segment.next().first().saturating_sub(self.end.chain.next())
    }

    /// Appends `records`, whatever other gates did meanwhile. Takes the lock.
    pub(super) fn append(
        &mut self,
        records: &[Prepared],
    ) -> Result<(Vec<Receipt>, Vec<Written>), Error> {
        let lock = self.lock();
        let _held = FileLock::wait(&lock, LOCK)?;
        self.catch_up()?;
        self.write(records)
    }

    /// Writes `records` at the end that is known to be the end. Under the lock.
    fn write(&mut self, records: &[Prepared]) -> Result<(Vec<Receipt>, Vec<Written>), Error> {
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
            // Its name was looked at under the same lock a moment ago.
            let stat = rustix::fs::fstat(&file).map_err(Error::io("look at the audit log"))?;
            if stat.st_nlink == 0 {
                return Err(Error::Tampered { what: "deleted" });
            }
            if disk::length(&stat) != length {
                return Err(Error::Tampered { what: "changed by another program" });
            }
            (self.end.chain, self.end.length) = (chain, length);
            let new = receipts.len().saturating_sub(now.len());
            receipts.iter().skip(new).for_each(|receipt| self.fresh.push(receipt.leaf));
            let (audit, segment) = (Arc::clone(&self.audit), self.end.segment);
            written.push(Written { audit, segment, file, id });
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
                    // What is in the file of these records was promised to
                    // nobody. Where it stays, the next gate sets it aside.
                    let _cut = rustix::fs::ftruncate(file, self.end.length);
                    return Err(Error::io("write to the audit log")(errno));
                }
            }
        }
        Ok(())
    }

    /// Makes the next segment: the full one is on stable storage before, the
    /// new one's name before its first record.
    fn rotate(&mut self) -> Result<(Arc<File>, Id), Error> {
        let segment = match &self.end.file {
            None => self.end.segment,
            Some((full, _)) => {
                // Another directory may hold links to the same files.
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

/// Where the chain is after `lines`, which must link, and continue `known`
/// when that is given; and their leaf hashes.
fn follow(known: Option<Chain>, lines: &[u8]) -> Result<(Chain, Vec<Hash>), String> {
    let mut leaves = Vec::new();
    let mut end = known.map(|chain| (chain.next(), chain.prev()));
    for line in lines.split(|byte| *byte == b'\n') {
        let record = RecordView::parse(line).map_err(|error| error.to_string())?;
        if let Some((seq, prev)) = end
            && (record.seq, record.prev) != (seq, prev)
        {
            return Err(format!("record {seq} does not follow on the one before"));
        }
        let next = record.seq.checked_add(1).ok_or("a sequence number is too large")?;
        let leaf = Hash::leaf(line);
        leaves.push(leaf);
        end = Some((next, leaf));
    }
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let chain = Chain::after(last).map_err(|error| error.to_string())?;
    Ok((chain, leaves))
}
