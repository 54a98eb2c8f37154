//! Making checkpoints: the tree over the records that are on stable storage,
//! signed.
//!
//! Never reads more of the log than what came after the last checkpoint, and
//! that only where this process did not write it itself. Never holds the log's
//! lock while it works, so that no request waits for it.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
    os::fd::AsFd as _,
    os::unix::fs::FileExt as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use portcullis_audit::{
    Checkpoint, FRONTIER, HISTORY, Hash, Link, MAX_LINE, NEWEST, Note, PublicKey, ROOTS,
    SEGMENT_RECORDS, Segment,
    tree::{Frontier, SEGMENT_LEVEL},
};
use rustix::fs::{OFlags, RenameFlags};
use serde::{Deserialize, Serialize};

use super::{
    Error, Signing,
    disk::{Folder, Held},
    group::Group,
    log::{Log, Snapshot},
    signing,
};

/// Bytes of the log that a gate which is about to end reads for a checkpoint;
/// where more is missing, one that stays makes it.
const AT_THE_END: u64 = 2 << 20;
/// Characters of a line of the segments' roots.
const ROOT_LINE: u64 = 65;

/// Makes a log's checkpoints.
pub(super) struct Maker {
    audit: Arc<Folder>,
    pub(super) signing: Signing,
    /// Held while one is made.
    alone: Mutex<()>,
    /// Records that the newest one covers, as far as this gate knows.
    pub(super) covered: AtomicU64,
}

/// How far the tree is known: a line of the file `frontier`. It is trusted only
/// where its root is that of a signed checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edge {
    size: u64,
    hashes: Vec<Hash>,
    /// Where the next record is, and the leaf hash of the one before.
    segment: u64,
    offset: u64,
    leaf: Hash,
    /// The newest checkpoint in the history, and when it was put there, in
    /// seconds since 1970.
    kept: u64,
    kept_at: u64,
}

impl Edge {
    fn tree(&self) -> Option<Frontier> {
        Frontier::from_parts(self.size, self.hashes.clone())
    }
}

/// The tree while leaves are added, and what falls off on the way.
struct Growth {
    tree: Frontier,
    leaf: Hash,
    /// Segments that became full, with their roots.
    segments: Vec<(Segment, Hash)>,
    /// Trees of whole segments only.
    boundaries: Vec<(u64, Hash)>,
}

impl Growth {
    fn push(&mut self, leaf: Hash) {
        let size = self.tree.size();
        if size % SEGMENT_RECORDS == SEGMENT_RECORDS - 1 {
            let below = self.tree.hashes().iter().rev().take(SEGMENT_LEVEL as usize);
            let root = below.fold(leaf, |right, left| Hash::node(left, &right));
            self.segments.push((Segment::of(size), root));
        }
        self.tree.push(leaf);
        self.leaf = leaf;
        if self.tree.size().is_multiple_of(SEGMENT_RECORDS) {
            self.boundaries.push((self.tree.size(), self.tree.root()));
        }
    }
}

/// The newest checkpoint, if there is one.
pub(super) fn newest(audit: &Folder) -> Result<Option<Checkpoint>, Error> {
    let Some(text) = signing::read(audit, NEWEST)? else { return Ok(None) };
    let note = Note::parse(text.as_bytes())?;
    let signed = note.verify(&signing::keys_of(audit)?)?;
    let checkpoint = Checkpoint::of(&note)?;
    if checkpoint.origin != signed.by.name() {
        return Err(Error::Note(portcullis_audit::NoteError::Checkpoint));
    }
    Ok(Some(checkpoint))
}

/// Segments before `first` may be missing where their roots are kept.
pub(super) fn roots_reach(audit: &Folder, first: Segment) -> Result<bool, Error> {
    let stat = audit.stat(ROOTS).map_err(Error::io("look at the segments' roots"))?;
    let lines = stat.map_or(0, |stat| super::disk::length(&stat) / ROOT_LINE);
    Ok(lines >= first.0)
}

/// Adds the signatures of `cosigned` to the kept checkpoints with the same
/// text; says how many are new. Those by `witnesses` must be right.
///
/// # Errors
///
/// When there is no such checkpoint, a signature is wrong, or the file cannot
/// be written.
pub fn cosign(
    state: &cap_std::fs::Dir,
    cosigned: &Note,
    witnesses: &[PublicKey],
) -> Result<usize, Error> {
    let audit = Folder::open(state, "audit")?;
    let history = Folder::open(&audit, HISTORY)?;
    let lock =
        File::from(history.as_fd().try_clone_to_owned().map_err(Error::std("lock checkpoints"))?);
    let _held = Held::wait(&lock)?;
    let keys: Vec<_> =
        signing::keys_of(&audit)?.into_iter().chain(witnesses.iter().cloned()).collect();
    let _signed = cosigned.verify(&keys)?;
    let size = Checkpoint::of(cosigned)?.size.to_string();
    let mut most = None;
    for (folder, name) in [(&audit, NEWEST), (&history, size.as_str())] {
        let Some(text) = signing::read(folder, name)? else { continue };
        let Ok((merged, added)) = Note::parse(text.as_bytes())?.merge(cosigned) else { continue };
        if added > 0 {
            signing::write(folder, name, merged.to_string().as_bytes(), RenameFlags::empty())?;
        }
        most = most.max(Some(added));
    }
    // One that was the newest and is not kept by its size yet.
    if most.is_some() && history.stat(&size).is_ok_and(|stat| stat.is_none()) {
        signing::write(&history, &size, cosigned.to_string().as_bytes(), RenameFlags::empty())?;
    }
    most.ok_or(Error::Note(portcullis_audit::NoteError::Checkpoint))
}

impl Maker {
    pub(super) fn new(audit: Arc<Folder>, signing: Signing) -> Result<Self, Error> {
        let key = signing.signer.public();
        match signing::keys_of(&audit)?.first() {
            None => signing::publish_in(&audit, key)?,
            Some(known) if known == key => {}
            Some(_other) => return Err(Error::OtherKey),
        }
        Ok(Self { audit, signing, alone: Mutex::default(), covered: AtomicU64::new(0) })
    }

    /// Makes a checkpoint of all records, unless there is one: `false`.
    /// `ending`: only where little is to be read for it.
    pub(super) fn make(&self, log: &Mutex<Log>, ending: bool) -> Result<bool, Error> {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let history = Folder::open(&*self.audit, HISTORY)?;
        let lock = File::from(
            history
                .as_fd()
                .try_clone_to_owned()
                .map_err(Error::std("lock the log's checkpoints"))?,
        );
        // Among the gates of this log. A descriptor made anew, so that closing
        // it releases the lock.
        let _held = Held::wait(&lock)?;
        let (edge, line) = self.edge()?;
        let snapshot = log.lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        let size = edge.as_ref().map_or(0, |edge| edge.size);
        self.covered.fetch_max(size, Ordering::Relaxed);
        if snapshot.next <= size {
            // Another gate's checkpoint covers all that this one knows of.
            log.lock().unwrap_or_else(PoisonError::into_inner).forget(size);
            return Ok(false);
        }
        if ending && self.far(edge.as_ref(), &snapshot)? {
            return Ok(false);
        }
        let growth = self.grow(edge.as_ref(), &snapshot)?;
        if let Some(written) = &snapshot.written {
            written.sync()?;
        }
        self.keep_roots(&growth.segments)?;
        for (size, root) in &growth.boundaries {
            self.put(&history, &size.to_string(), *size, *root)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut new = Edge {
            size: growth.tree.size(),
            hashes: growth.tree.hashes().to_vec(),
            segment: snapshot.segment.0,
            offset: snapshot.length,
            leaf: growth.leaf,
            kept: edge.as_ref().map_or(0, |edge| edge.kept),
            kept_at: edge.as_ref().map_or(0, |edge| edge.kept_at),
        };
        let root = growth.tree.root();
        let many = new.size.saturating_sub(new.kept) >= self.signing.records;
        if many || now.abs_diff(new.kept_at) >= self.signing.interval.as_secs() {
            self.put(&history, &new.size.to_string(), new.size, root)?;
            (new.kept, new.kept_at) = (new.size, now);
        }
        // The old line stays for who dies before the checkpoint has its name.
        let json = serde_json::to_string(&new).unwrap_or_default();
        let lines = format!("{json}\n{}\n", line.unwrap_or_default());
        signing::put(&self.audit, FRONTIER, lines.as_bytes(), RenameFlags::empty(), false)?;
        self.put(&self.audit, NEWEST, new.size, root)?;
        log.lock().unwrap_or_else(PoisonError::into_inner).forget(new.size);
        self.covered.fetch_max(new.size, Ordering::Relaxed);
        Ok(true)
    }

    /// Signs a tree head and writes it to `name`.
    fn put(&self, folder: &Folder, name: &str, size: u64, root: Hash) -> Result<(), Error> {
        let key = self.signing.signer.public();
        let text = Checkpoint { origin: key.name().to_owned(), size, root }.to_string();
        let lines = self.signing.signer.sign(&text).map_err(Error::Signer)?;
        let note = Note::assemble(&text, &lines)
            .and_then(|note| note.verify(std::slice::from_ref(key)).map(|_signed| note))
            .map_err(|error| Error::Signer(format!("what it answered does not sign: {error}")))?;
        signing::write(folder, name, note.to_string().as_bytes(), RenameFlags::empty())
    }

    /// Where the newest checkpoint left off, and its line.
    fn edge(&self) -> Result<(Option<Edge>, Option<String>), Error> {
        let Some(newest) = newest(&self.audit)? else { return Ok((None, None)) };
        let text = signing::read(&self.audit, FRONTIER)?.unwrap_or_default();
        let found = text.lines().find_map(|line| {
            let edge: Edge = serde_json::from_str(line).ok()?;
            let tree = edge.tree()?;
            let matches = edge.size == newest.size && tree.root() == newest.root;
            matches.then(|| (edge, line.to_owned()))
        });
        Ok(found.map_or((None, None), |(edge, line)| (Some(edge), Some(line))))
    }

    /// Whether much of the log must be read for a checkpoint.
    fn far(&self, edge: Option<&Edge>, snapshot: &Snapshot) -> Result<bool, Error> {
        let (size, segment, offset) =
            edge.map_or((0, 0, 0), |edge| (edge.size, edge.segment, edge.offset));
        if snapshot.fresh.first <= size {
            return Ok(false);
        }
        let between = match snapshot.segment.0.checked_sub(segment) {
            Some(0) => snapshot.length.saturating_sub(offset),
            Some(1) => {
                let stat = self.audit.stat(&Segment(segment).to_string());
                let stat = stat.map_err(Error::io("look at the audit log"))?;
                let length = stat.map_or(0, |stat| super::disk::length(&stat));
                length.saturating_sub(offset).saturating_add(snapshot.length)
            }
            _ => u64::MAX,
        };
        Ok(between > AT_THE_END)
    }

    /// The tree up to the snapshot.
    fn grow(&self, edge: Option<&Edge>, snapshot: &Snapshot) -> Result<Growth, Error> {
        let tree = edge.and_then(Edge::tree).unwrap_or_default();
        let leaf = edge.map_or(Hash::ZERO, |edge| edge.leaf);
        let (mut segment, offset) =
            edge.map_or((Segment(0), 0), |edge| (Segment(edge.segment), edge.offset));
        let mut growth = Growth { tree, leaf, segments: Vec::new(), boundaries: Vec::new() };
        let known = snapshot.fresh.first.max(growth.tree.size()).min(snapshot.next);
        let mut at = offset;
        while growth.tree.size() < known {
            self.read(&mut growth, segment, at, known)?;
            (segment, at) = (segment.next(), 0);
        }
        let skip = growth.tree.size().saturating_sub(snapshot.fresh.first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        snapshot.fresh.leaves.iter().skip(skip).for_each(|leaf| growth.push(*leaf));
        if growth.tree.size() == snapshot.next { Ok(growth) } else { Err(Error::Changed) }
    }

    /// Reads the records of one segment up to number `until`.
    fn read(
        &self,
        growth: &mut Growth,
        segment: Segment,
        offset: u64,
        until: u64,
    ) -> Result<(), Error> {
        let damaged = |reason: String| Error::Damaged { segment, reason };
        let read = Error::std("read the audit log");
        let mut file = portcullis_audit::Source::open(&*self.audit, &segment.to_string())
            .map_err(Error::std("read the audit log"))?;
        file.seek(SeekFrom::Start(offset)).map_err(read)?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        let end = until.min(segment.next().first());
        while growth.tree.size() < end {
            line.clear();
            (&mut reader)
                .take(MAX_LINE as u64 + 1)
                .read_until(b'\n', &mut line)
                .map_err(Error::std("read the audit log"))?;
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                return Err(damaged("it ends before its last record".to_owned()));
            }
            let link = Link::parse(&line).map_err(|error| damaged(error.to_string()))?;
            if (link.seq, link.prev) != (growth.tree.size(), growth.leaf) {
                let seq = growth.tree.size();
                return Err(damaged(format!("record {seq} does not follow on the one before")));
            }
            growth.push(Hash::leaf(&line));
        }
        Ok(())
    }

    /// Keeps the roots of full segments, where those before are kept.
    fn keep_roots(&self, segments: &[(Segment, Hash)]) -> Result<(), Error> {
        let Some((first, _)) = segments.first() else { return Ok(()) };
        if !roots_reach(&self.audit, *first)? {
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

/// Says that a log is shorter than a checkpoint of it.
pub(super) fn shorter(segment: Segment, records: u64, size: u64) -> Error {
    let reason = format!(
        "the log ends after {records} records, but a checkpoint of {size} was signed: its end was \
         cut off"
    );
    Error::Damaged { segment, reason }
}

/// The thread that makes checkpoints as long as a gate serves.
pub(super) struct Keeper {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Keeper {
    pub(super) fn start(maker: Arc<Maker>, group: Arc<Group>) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = thread::Builder::new().name("checkpoints".to_owned());
        let thread = builder
            .spawn(move || keep(&maker, &group, &stopped))
            .map_err(Error::std("start a thread"))?;
        Ok(Self { thread: Some(thread), stop })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics only where something is wrong with this program.
            let _ended = thread.join();
        }
    }
}

fn keep(maker: &Maker, group: &Group, stop: &AtomicBool) {
    let mut last = Instant::now();
    loop {
        let due = group.log().wake_at(maker.signing.records, thread::current());
        let left = maker.signing.interval.saturating_sub(last.elapsed());
        if !due && !left.is_zero() {
            thread::park_timeout(left);
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        let waited = last.elapsed() >= maker.signing.interval;
        if !waited && !group.log().is_due(maker.signing.records) {
            continue;
        }
        last = Instant::now();
        match maker.make(group.mutex(), false) {
            Ok(_made) => {}
            Err(error @ (Error::Damaged { .. } | Error::Tampered { .. })) => group.fail(&error),
            Err(error) => {
                // The log itself is whole and goes on; the next time may do.
                tracing::error!(%error, "no checkpoint of the audit log could be signed");
                group.log().postpone();
            }
        }
    }
}
