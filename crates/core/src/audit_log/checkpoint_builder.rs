//! Checkpoints: the signed tree over the durable records.
//!
//! A checkpoint reads only the records after the last one, and those only if this process did not
//! write them itself. It reads the whole log only if the file `frontier` lacks the tree of the last
//! checkpoint, and signs nothing then unless the log still matches that. It never locks the log
//! while it reads, so that no request waits for it.

use std::{
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use portcullis_audit::{
    Checkpoint, FRONTIER, HISTORY, Hash, MAX_LINE, NEWEST, Note, ROOT_LINE, ROOTS, RecordView,
    SEGMENT_RECORDS, Segment, Source as _,
    tree::{Frontier, SEGMENT_LEVEL},
};
use rustix::fs::{OFlags, RenameFlags};
use serde::{Deserialize, Serialize};

use super::{
    Error, Signing, checkpoints,
    disk::{FileLock, Folder},
    last_signed::LastSigned,
    log::{Log, Snapshot},
    roots, signing, small_file,
};

/// Bytes of the log that a gateway reads for a checkpoint when it stops; a larger part is left to
/// one that stays.
const MAX_FINAL_BYTES: u64 = 2 << 20;

/// Makes a log's checkpoints.
pub(super) struct CheckpointBuilder {
    audit: Arc<Folder>,
    /// The directory of the private key, outside the log's.
    keys: Folder,
    pub(super) signing: Signing,
    /// Locked while a checkpoint is made.
    alone: Mutex<()>,
    /// Records that the newest checkpoint covers, as far as this gateway knows.
    pub(super) covered: AtomicU64,
}

/// The occasion on which a checkpoint is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// Time has passed, or records were added.
    Interval,
    /// Somebody wants it, and may give it to a witness: it is stored in the history.
    Request,
    /// The gateway stops: another one is made only if little has to be read.
    End,
}

/// The start of the next checkpoint.
struct LastCheckpoint {
    newest: Option<Checkpoint>,
    /// The tree of that checkpoint, and its line in the file `frontier`; none if the file lacks it.
    edge: Option<(StoredFrontier, String)>,
}

impl LastCheckpoint {
    fn edge(&self) -> Option<&StoredFrontier> {
        self.edge.as_ref().map(|(edge, _)| edge)
    }

    /// Returns the number of signed records.
    fn size(&self) -> u64 {
        self.newest.as_ref().map_or(0, |newest| newest.size)
    }

    /// True if checkpoints were made, but the tree of the newest is not stored.
    fn is_lost(&self) -> bool {
        self.newest.is_some() && self.edge.is_none()
    }
}

/// The tree up to a checkpoint: a line of the file `frontier`. It is trusted only if its root is
/// that of a signed checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredFrontier {
    size: u64,
    hashes: Vec<Hash>,
    /// The position of the next record, and the leaf hash of the one before.
    segment: u64,
    offset: u64,
    leaf: Hash,
    /// The newest checkpoint in the history, and the time when it was stored, in seconds since
    /// 1970.
    kept: u64,
    kept_at: u64,
}

impl StoredFrontier {
    fn tree(&self) -> Option<Frontier> {
        Frontier::from_parts(self.size, self.hashes.clone())
    }

    fn growth(&self) -> TreeBuilder {
        let tree = self.tree().unwrap_or_default();
        TreeBuilder::new(tree, Some(self.leaf), Segment(self.segment), self.offset)
    }
}

/// A growing tree, with the roots that are completed on the way.
struct TreeBuilder {
    tree: Frontier,
    /// The leaf hash of the last record; unknown if that was pruned.
    leaf: Option<Hash>,
    /// The position of the next record.
    segment: Segment,
    offset: u64,
    /// Segments that became full, with their roots.
    segments: Vec<(Segment, Hash)>,
    /// Sizes and roots of trees of full segments only.
    boundaries: Vec<(u64, Hash)>,
}

impl TreeBuilder {
    fn new(tree: Frontier, leaf: Option<Hash>, segment: Segment, offset: u64) -> Self {
        Self { tree, leaf, segment, offset, segments: Vec::new(), boundaries: Vec::new() }
    }

    fn push(&mut self, leaf: Hash) {
        let size = self.tree.size();
        if size % SEGMENT_RECORDS == SEGMENT_RECORDS - 1 {
            let below = self.tree.hashes().iter().rev().take(SEGMENT_LEVEL as usize);
            let root = below.fold(leaf, |right, left| Hash::node(left, &right));
            self.segments.push((Segment::of(size), root));
        }
        self.tree.push(leaf);
        self.leaf = Some(leaf);
        if self.tree.size().is_multiple_of(SEGMENT_RECORDS) {
            self.boundaries.push((self.tree.size(), self.tree.root()));
        }
    }
}

impl CheckpointBuilder {
    pub(super) fn new(audit: Arc<Folder>, keys: Folder, signing: Signing) -> Result<Self, Error> {
        let key = signing.signer.public();
        match signing::keys_of(&audit)?.first() {
            None => signing::publish_in(&audit, key)?,
            Some(known) if known == key => {}
            Some(_other) => return Err(Error::OtherKey),
        }
        Ok(Self::unpublished(audit, keys, signing))
    }

    /// Returns the same without a change of the log's public keys, to look at the log.
    pub(super) fn unpublished(audit: Arc<Folder>, keys: Folder, signing: Signing) -> Self {
        Self { audit, keys, signing, alone: Mutex::default(), covered: AtomicU64::new(0) }
    }

    /// Checks, before anything is served, that the log matches the signed one: that it continues
    /// after the last record that was signed, or, if the file `frontier` does not show which that
    /// is and little has to be read, that these records are the signed ones. A long log is checked
    /// before its next checkpoint.
    pub(super) fn check(&self, log: &Mutex<Log>) -> Result<(), Error> {
        let snapshot = log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        let start = self.start(&snapshot)?;
        match (start.edge(), &start.newest) {
            (Some(edge), _) => self.continues(edge, &snapshot),
            (None, Some(newest)) if !self.far(&start, &snapshot)? => {
                self.signed_part(newest).map(drop)
            }
            (None, _) => Ok(()),
        }
    }

    /// Fails unless the record before the edge is the one that was signed.
    fn continues(&self, edge: &StoredFrontier, snapshot: &Snapshot) -> Result<(), Error> {
        if snapshot.next > edge.size {
            return self.read_until(&mut edge.growth(), edge.size + 1);
        }
        if snapshot.next == edge.size && snapshot.last != edge.leaf {
            let reason = format!("record {} is not the one that was signed", edge.size - 1);
            return Err(Error::Damaged { segment: snapshot.segment, reason });
        }
        Ok(())
    }

    /// True if no checkpoint of the log is left, although gateways that sign stopped in order.
    pub(super) fn lacks_checkpoints(&self, log: &Mutex<Log>) -> Result<bool, Error> {
        let snapshot = log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        if snapshot.next == 0 || self.start(&snapshot)?.newest.is_some() {
            return Ok(false);
        }
        checkpoints::are_expected(&self.audit).map_err(Error::std("read the audit log"))
    }

    /// Makes a checkpoint of all records; false if there is one already.
    pub(super) fn make(&self, log: &Mutex<Log>, occasion: Occasion) -> Result<bool, Error> {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let history = Folder::open(&*self.audit, HISTORY)?;
        // Excludes the other gateways of this log.
        let lock = checkpoints::lock(&history)?;
        let _held = FileLock::wait(&lock, checkpoints::LOCK)?;
        let snapshot = log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        let mut start = self.start(&snapshot)?;
        let size = start.size();
        self.covered.fetch_max(size, Ordering::Relaxed);
        let is_requested = occasion == Occasion::Request;
        if is_requested
            && !checkpoints::roots_reach(&self.audit, Segment::of(size))?
            && self.beginning().is_ok()
        {
            // Without the tree the log is read from its beginning, and all roots are stored anew.
            start.edge = None;
        }
        let is_kept =
            !is_requested || size == 0 || start.edge().is_some_and(|edge| edge.kept == size);
        // A log without a record gets none.
        let is_there = size == 0
            || self.audit.stat(NEWEST).map_err(Error::io("look at the checkpoint"))?.is_some();
        let is_signed = snapshot.next == size
            && is_kept
            && is_there
            && !start.is_lost()
            && !self.is_by_former_key()?;
        if snapshot.next < size || is_signed {
            // Another gateway's checkpoint covers all records that this one knows.
            log.lock().unwrap_or_else(PoisonError::into_inner).forget(size);
            return Ok(false);
        }
        // Without any checkpoint, a log of which a gateway stopped in order would count as damaged.
        if occasion == Occasion::End && start.newest.is_some() && self.far(&start, &snapshot)? {
            return if start.is_lost() { Err(Error::FrontierGone) } else { Ok(false) };
        }
        let growth = self.grow(&start, &snapshot)?;
        let edge = start.edge();
        if let Some(written) = &snapshot.written {
            written.sync()?;
        }
        self.keep_roots(&growth.segments)?;
        for (size, root) in &growth.boundaries {
            write(&history, &size.to_string(), &self.sign(*size, *root)?)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut new = StoredFrontier {
            size: growth.tree.size(),
            hashes: growth.tree.hashes().to_vec(),
            segment: snapshot.segment.0,
            offset: snapshot.length,
            leaf: growth.leaf.unwrap_or(Hash::ZERO),
            kept: match edge {
                Some(edge) => edge.kept,
                None => checkpoints::kept(&self.audit)?.last().copied().unwrap_or(0),
            },
            kept_at: edge.map_or(0, |edge| edge.kept_at),
        };
        let root = growth.tree.root();
        let many = new.size.saturating_sub(new.kept) >= self.signing.records;
        let is_due =
            is_requested || many || now.abs_diff(new.kept_at) >= self.signing.interval.as_secs();
        // One of the same records may be cosigned already.
        let newest = self.stored(&self.audit, NEWEST, new.size, root)?;
        let stored = self.stored(&history, &new.size.to_string(), new.size, root)?;
        let signed = match newest.iter().chain(&stored).max_by_key(|text| text.len()) {
            Some(text) => text.clone(),
            None => self.sign(new.size, root)?,
        };
        if is_due && new.size > new.kept {
            write(&history, &new.size.to_string(), &signed)?;
            (new.kept, new.kept_at) = (new.size, now);
        }
        // The old line is needed if the process dies before the checkpoint has its name.
        let json = serde_json::to_string(&new).unwrap_or_default();
        let old = start.edge.as_ref().map_or("", |(_, line)| line);
        let lines = format!("{json}\n{old}\n");
        small_file::put(&self.audit, FRONTIER, lines.as_bytes(), RenameFlags::empty(), false)?;
        if newest.as_ref() != Some(&signed) {
            write(&self.audit, NEWEST, &signed)?;
        }
        LastSigned::write(&self.keys, &signed)?;
        log.lock().unwrap_or_else(PoisonError::into_inner).forget(new.size);
        self.covered.fetch_max(new.size, Ordering::Relaxed);
        Ok(true)
    }

    /// True if the newest checkpoint is not signed with the log's key, which is a new one then. A
    /// gateway that was started with a former key leaves it as it is.
    fn is_by_former_key(&self) -> Result<bool, Error> {
        let key = self.signing.signer.public();
        if signing::keys_of(&self.audit)?.first() != Some(key) {
            return Ok(false);
        }
        let newest = small_file::read(&self.audit, NEWEST)?;
        let is_own = |text: &String| checkpoints::opened(text, std::slice::from_ref(key)).is_ok();
        Ok(newest.is_some_and(|text| !is_own(&text)))
    }

    /// Returns the checkpoint in the file `name`, if the log's key signed this tree head there.
    fn stored(
        &self,
        folder: &Folder,
        name: &str,
        size: u64,
        root: Hash,
    ) -> Result<Option<String>, Error> {
        let own = std::slice::from_ref(self.signing.signer.public());
        let is_same = |text: &String| {
            let stored = checkpoints::opened(text, own);
            stored.is_ok_and(|stored| (stored.size, stored.root) == (size, root))
        };
        Ok(small_file::read(folder, name)?.filter(is_same))
    }

    /// Signs a tree head; returns the checkpoint.
    fn sign(&self, size: u64, root: Hash) -> Result<String, Error> {
        let key = self.signing.signer.public();
        let text = Checkpoint { origin: key.name().to_owned(), size, root }.to_string();
        let lines = self.signing.signer.sign(&text).map_err(Error::Signer)?;
        Note::assemble(&text, &lines)
            .and_then(|note| note.verify(std::slice::from_ref(key)).map(|_signed| note))
            .map(|note| note.to_string())
            .map_err(|error| Error::Signer(format!("what it answered does not sign: {error}")))
    }

    /// Returns the start of the next checkpoint.
    fn start(&self, snapshot: &Snapshot) -> Result<LastCheckpoint, Error> {
        let noted = LastSigned::read(&self.keys)?;
        let newest = checkpoints::newest_known(&self.audit, &noted, snapshot.segment)?;
        let Some(newest) = newest else {
            return Ok(LastCheckpoint { newest: None, edge: None });
        };
        let text = small_file::read(&self.audit, FRONTIER)?.unwrap_or_default();
        let edge = text.lines().find_map(|line| {
            let edge: StoredFrontier = serde_json::from_str(line).ok()?;
            let tree = edge.tree()?;
            let matches = edge.size == newest.size && tree.root() == newest.root;
            matches.then(|| (edge, line.to_owned()))
        });
        Ok(LastCheckpoint { newest: Some(newest), edge })
    }

    /// True if much of the log must be read for a checkpoint.
    fn far(&self, start: &LastCheckpoint, snapshot: &Snapshot) -> Result<bool, Error> {
        let (size, segment, offset) =
            start.edge().map_or((0, 0, 0), |edge| (edge.size, edge.segment, edge.offset));
        if snapshot.recent.first <= size {
            return Ok(false);
        }
        let between = match snapshot.segment.0.checked_sub(segment) {
            Some(0) => snapshot.length.saturating_sub(offset),
            Some(1) => {
                let stat = self.audit.stat(Segment(segment).to_string());
                let stat = stat.map_err(Error::io("look at the audit log"))?;
                let length = stat.map_or(0, |stat| super::disk::length(&stat));
                length.saturating_sub(offset).saturating_add(snapshot.length)
            }
            _ => u64::MAX,
        };
        Ok(between > MAX_FINAL_BYTES)
    }

    /// Returns the tree up to the snapshot.
    fn grow(&self, start: &LastCheckpoint, snapshot: &Snapshot) -> Result<TreeBuilder, Error> {
        let mut growth = match (start.edge(), &start.newest) {
            (Some(edge), _) => edge.growth(),
            (None, Some(newest)) => self.signed_part(newest)?,
            (None, None) => self.beginning()?,
        };
        let known = snapshot.recent.first.max(growth.tree.size()).min(snapshot.next);
        self.read_until(&mut growth, known)?;
        let skip = growth.tree.size().saturating_sub(snapshot.recent.first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        snapshot.recent.leaves.iter().skip(skip).for_each(|leaf| growth.push(*leaf));
        if growth.tree.size() == snapshot.next { Ok(growth) } else { Err(Error::Changed) }
    }

    /// Computes the tree of `newest` from the log; fails if the log was rewritten, which must not
    /// be signed.
    fn signed_part(&self, newest: &Checkpoint) -> Result<TreeBuilder, Error> {
        let mut growth = self.beginning()?;
        self.read_until(&mut growth, newest.size)?;
        if (growth.tree.size(), growth.tree.root()) != (newest.size, newest.root) {
            let reason = format!(
                "the first {} records are not those that a checkpoint signed: they were changed",
                newest.size
            );
            return Err(Error::Damaged { segment: growth.segment, reason });
        }
        // They were signed when they were reached, and may be cosigned by now.
        growth.boundaries.clear();
        Ok(growth)
    }

    /// Returns the tree of pruned segments, from their stored roots.
    fn beginning(&self) -> Result<TreeBuilder, Error> {
        let names = self.audit.list().map_err(Error::std("read the audit log"))?;
        let first = names.iter().filter_map(|entry| Segment::from_name(&entry.name)).min();
        let Some(first) = first.filter(|first| first.0 > 0) else {
            return Ok(TreeBuilder::new(Frontier::new(), Some(Hash::ZERO), Segment(0), 0));
        };
        let mut tree = Frontier::new();
        for root in roots::read(&self.audit, first.0)? {
            if !tree.push_subtree(SEGMENT_LEVEL, root) {
                break;
            }
        }
        if tree.size() != first.first() {
            let reason = "the segments before it are missing, and so are their roots".to_owned();
            return Err(Error::Damaged { segment: first, reason });
        }
        Ok(TreeBuilder::new(tree, None, first, 0))
    }

    /// Reads up to record number `until`, segment by segment.
    fn read_until(&self, growth: &mut TreeBuilder, until: u64) -> Result<(), Error> {
        while growth.tree.size() < until {
            self.read(growth, until)?;
            if growth.tree.size() < until {
                (growth.segment, growth.offset) = (growth.segment.next(), 0);
            }
        }
        Ok(())
    }

    /// Reads up to record number `until` in one segment.
    fn read(&self, growth: &mut TreeBuilder, until: u64) -> Result<(), Error> {
        let segment = growth.segment;
        let damaged = |reason: String| Error::Damaged { segment, reason };
        let read = Error::std("read the audit log");
        let mut file = portcullis_audit::Source::open(&*self.audit, &segment.to_string())
            .map_err(Error::std("read the audit log"))?;
        file.seek(SeekFrom::Start(growth.offset)).map_err(read)?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        let end = until.min(segment.next().first());
        while growth.tree.size() < end {
            line.clear();
            let length = (&mut reader)
                .take(MAX_LINE as u64 + 1)
                .read_until(b'\n', &mut line)
                .map_err(Error::std("read the audit log"))?;
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                return Err(damaged("it ends before its last record".to_owned()));
            }
            let link = RecordView::parse(&line).map_err(|error| Error::line(segment, &error))?;
            let seq = growth.tree.size();
            if link.seq != seq || growth.leaf.is_some_and(|leaf| link.prev != leaf) {
                return Err(damaged(format!("record {seq} does not follow on the one before")));
            }
            growth.push(Hash::leaf(&line));
            growth.offset += length as u64;
        }
        Ok(())
    }

    /// Stores the roots of full segments, if those before are stored; a requested checkpoint stores
    /// all.
    fn keep_roots(&self, segments: &[(Segment, Hash)]) -> Result<(), Error> {
        let Some((first, _)) = segments.first() else { return Ok(()) };
        if !checkpoints::roots_reach(&self.audit, *first)? {
            return Ok(());
        }
        let file = self
            .audit
            .file(ROOTS, OFlags::RDWR | OFlags::CREATE)
            .map_err(Error::io("open the segments' roots"))?;
        for (segment, root) in segments {
            file.write_all_at(format!("{root}\n").as_bytes(), segment.0 * ROOT_LINE)
                .map_err(Error::std("write the segments' roots"))?;
        }
        Ok(())
    }
}

/// Writes a checkpoint to the file `name`.
fn write(folder: &Folder, name: &str, note: &str) -> Result<(), Error> {
    small_file::write(folder, name, note.as_bytes(), RenameFlags::empty())
}
