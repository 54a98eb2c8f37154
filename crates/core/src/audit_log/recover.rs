//! Recovery of damage beyond a torn tail, on the operator's request: everything from the first
//! damage on is set aside, and the chain continues before it.
//!
//! Nothing is deleted, and no damage is hidden: the `recovered` record has the quarantined file's
//! name, hash and size.

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom},
};

use cap_std::fs::Dir;
use portcullis_audit::{
    Checkpoint, Damage, DamageKind, Draft, FRONTIER, HISTORY, Hash, LogFile, NEWEST, Note, PACKED,
    Position, PublicKey, Reader, RecordView, SEGMENT_RECORDS, Segment, Source, Verifier,
};
use rustix::fs::{OFlags, RenameFlags};

use super::{
    AuditLog, Error, checkpoints,
    disk::{self, FileLock, Folder},
    keys,
    last_signed::{LastSigned, SIGNED},
    lifetime,
    log::{LOCK, Log},
    orphans,
    pack::Exclusive,
    quarantine, roots, small_file,
    unpack::unpack,
};

/// The effect of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The damages, in the order of the log.
    pub damages: Vec<Damage>,
    /// The position up to which the chain is kept.
    pub keep: Position,
    /// True if the record after it does not match the one that follows: one of the two was changed,
    /// and it is unknown which.
    pub in_doubt: bool,
    /// The parts of segments that are set aside: name, first byte, length.
    pub aside: Vec<(Segment, u64, u64)>,
    /// Files that are set aside because they do not belong to the log.
    pub unexpected: Vec<String>,
    /// Checkpoints that are set aside because the log does not match them.
    pub checkpoints: Vec<String>,
    /// Roots of segments, by number, that replace the stored ones.
    pub roots: BTreeMap<u64, Hash>,
    /// Number of segments missing from the first one on without a record of their removal: a record
    /// of that is written.
    pub unaccounted: u64,
    /// The log's public keys, the one in use first, if they are restored.
    pub keys: Vec<PublicKey>,
    /// True if no checkpoint is left of a log that was signed: a record states that.
    pub unsigned: bool,
    /// True if the last signed checkpoint, stored beside the key, is set aside because the log does
    /// not match it: gateways sign the log as if it were new.
    pub sign_again: bool,
}

impl RecoveryPlan {
    /// True if there is nothing to repair.
    pub fn is_empty(&self) -> bool {
        self.damages.is_empty() && self.keys.is_empty() && !self.sign_again
    }

    /// Returns the bytes of the log that are set aside.
    pub fn bytes(&self) -> u64 {
        self.aside.iter().map(|(_, _, bytes)| bytes).sum()
    }
}

impl AuditLog {
    /// Verifies the log in the state directory `state` and returns what [`recover`] would do.
    ///
    /// # Errors
    ///
    /// When the log cannot be read, a part of it cannot be set aside, or gateways use it.
    pub fn plan_recovery(state: &Dir) -> Result<RecoveryPlan, Error> {
        let log = Log::attach(state, String::new())?;
        let lock = log.lock();
        let _held = FileLock::wait(&lock, LOCK)?;
        plan_locked(state, &log)
    }
}

fn plan_locked(state: &Dir, log: &Log) -> Result<RecoveryPlan, Error> {
    let audit = &*log.audit;
    let (_, alive) = lifetime::census(&Folder::open(state, "gateways")?, None)?;
    if !alive.is_empty() {
        return Err(Error::InUse(alive.len()));
    }
    let noted = LastSigned::read(&log.keys()?)?;
    let keys = keys::lost(log)?;
    let verifier = Verifier::new(audit).trust(keys.clone());
    let verifier = match noted.head() {
        Some(head) => verifier.expect_checkpoint(head.clone()),
        None => verifier,
    };
    let report = verifier.thorough().run().map_err(Error::std("read the audit log"))?;
    let keep = report.sure;
    let in_doubt = keep != report.intact;
    let mut aside = Vec::new();
    // A pruned log without any record has nothing to continue.
    if !report.complete || (report.pruned > 0 && keep.records == 0) {
        for entry in audit.list().map_err(Error::std("read the audit log"))? {
            let Some(segment) = Segment::from_name(&entry.name).filter(|_| entry.regular) else {
                continue;
            };
            let first = match segment.0.cmp(&keep.segment) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => keep.offset,
                std::cmp::Ordering::Greater => 0,
            };
            if first < entry.length || first == 0 {
                aside.push((segment, first, entry.length.saturating_sub(first)));
            }
        }
        aside.sort();
    }
    for (segment, ..) in &aside {
        readable(audit, *segment)?;
    }
    let unexpected = report.damages.iter();
    let unexpected = unexpected.filter(|damage| damage.kind == DamageKind::UnexpectedFile);
    let mut unexpected: Vec<_> = unexpected.map(|damage| damage.segment.clone()).collect();
    let hidden = hidden(audit, &aside, &unexpected)?;
    unexpected.extend(hidden);
    let checkpoints = contradicted(audit, keep.records, &report.damages)?;
    for name in unexpected.iter().chain(&checkpoints) {
        quarantine::movable(audit, name)?;
    }
    let sign_again = match &noted {
        LastSigned::Nothing => false,
        LastSigned::Unclear => none_left(audit, &checkpoints)?,
        LastSigned::Head(head) => {
            let is_other = |damage: &Damage| damage.kind == DamageKind::WrongHead;
            head.size > keep.records || report.damages.iter().any(is_other)
        }
    };
    let mut roots = report.roots;
    roots.retain(|segment, _root| *segment < keep.records / SEGMENT_RECORDS);
    let accounted = report.pruned_by.is_some_and(|record| record < keep.records);
    let unaccounted =
        if accounted || keep.records == 0 { 0 } else { report.pruned / SEGMENT_RECORDS };
    let unsigned = report.unsigned;
    let mut damages = report.damages;
    // Otherwise the restored keys are the reason for the missing checkpoint, and the next gateway
    // makes one.
    damages.retain(|damage| damage.kind != DamageKind::MissingCheckpoint || unsigned);
    Ok(RecoveryPlan {
        damages,
        keep,
        in_doubt,
        aside,
        unexpected,
        checkpoints,
        roots,
        unaccounted,
        keys,
        unsigned,
        sign_again,
    })
}

/// Returns the name of the file that `segment` is read from.
fn file_of(audit: &Folder, segment: Segment) -> Result<String, Error> {
    let name = segment.to_string();
    let plain = audit.stat(&name).map_err(Error::io("look at the audit log"))?;
    Ok(if plain.is_some() { name } else { format!("{name}{PACKED}") })
}

/// Fails if `segment` cannot be read, and so not be copied. A compressed one can show that only at
/// its end, which no verifier reaches that stops after many damages.
fn readable(audit: &Folder, segment: Segment) -> Result<(), Error> {
    let file = file_of(audit, segment)?;
    let read = audit.open(&segment.to_string()).and_then(|mut lines| {
        if file.ends_with(PACKED) { io::copy(&mut lines, &mut io::sink()) } else { Ok(0) }
    });
    match read {
        Ok(_bytes) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(Error::Unreadable(file)),
        Err(error) => Err(Error::std("read the audit log")(error).of(&file)),
    }
}

/// Returns compressed segments that would replace a plain one that is set aside. While both exist
/// only the plain one counts, and the other was not verified.
fn hidden(
    audit: &Folder,
    aside: &[(Segment, u64, u64)],
    unexpected: &[String],
) -> Result<Vec<String>, Error> {
    let segments = aside.iter().map(|(segment, ..)| segment.to_string());
    let irregular = unexpected.iter().filter(|name| Segment::from_name(name).is_some());
    let mut found = Vec::new();
    for name in segments.chain(irregular.cloned()) {
        let is_there = |name: &str| {
            audit.stat(name).map_err(Error::io("look at the audit log")).map(|stat| stat.is_some())
        };
        let packed = format!("{name}{PACKED}");
        if is_there(&name)? && is_there(&packed)? && !unexpected.contains(&packed) {
            found.push(packed);
        }
    }
    Ok(found)
}

/// True if there are no other checkpoints than those that are set `aside`.
fn none_left(audit: &Folder, aside: &[String]) -> Result<bool, Error> {
    for name in checkpoints::files(audit)?.chain([NEWEST.to_owned()]) {
        let stat = audit.stat(&name).map_err(Error::io("look at the log's checkpoints"))?;
        if stat.is_some() && !aside.contains(&name) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the checkpoints of more records than will be kept, and damaged ones.
fn contradicted(audit: &Folder, records: u64, damages: &[Damage]) -> Result<Vec<String>, Error> {
    // A verifier takes files with other names for no checkpoints.
    let is_size = |name: &String| name.parse().is_ok_and(|size: u64| size.to_string() == *name);
    let kept = checkpoints::names(audit)?.into_iter().filter(is_size);
    let kept = kept.map(|name| format!("{HISTORY}/{name}"));
    let mut found = Vec::new();
    if damages.iter().any(|damage| damage.segment == HISTORY) {
        found.push(HISTORY.to_owned());
    }
    for name in kept.chain([NEWEST.to_owned()]) {
        let (damaged, text) = match small_file::read(audit, &name) {
            Err(Error::Irregular(..)) => (true, String::new()),
            text => match text? {
                Some(text) => (damages.iter().any(|damage| damage.segment == name), text),
                None => continue,
            },
        };
        // Checkpoints that the verifier did not reach have their size in the name.
        let size_in_name =
            name.strip_prefix(HISTORY).and_then(|name| name.strip_prefix('/')?.parse().ok());
        let note = Note::parse(text.as_bytes()).and_then(|note| Checkpoint::of(&note));
        let size = note.ok().map(|checkpoint| checkpoint.size);
        if damaged || size.is_none_or(|size| size.max(size_in_name.unwrap_or(0)) > records) {
            found.push(name);
        }
    }
    Ok(found)
}

/// Sets checkpoints aside; the largest that is left becomes the newest, and stored parts of the
/// tree beyond the log are removed.
fn set_checkpoints_aside(audit: &Folder, agreed: &RecoveryPlan) -> Result<(), Error> {
    let open = || Error::io("set a checkpoint aside");
    for name in &agreed.checkpoints {
        quarantine::take(audit, "checkpoint", name)?;
    }
    if audit.stat(FRONTIER).map_err(open())?.is_some() {
        let remove = audit.opening("set a checkpoint aside", FRONTIER);
        audit.remove(FRONTIER).map_err(remove)?;
    }
    roots::mend(audit, &agreed.roots, agreed.keep.records / SEGMENT_RECORDS)?;
    if agreed.checkpoints.iter().any(|name| name == NEWEST)
        && let Some(text) = checkpoints::largest_kept(audit)?
    {
        small_file::write(audit, NEWEST, text.as_bytes(), RenameFlags::empty())?;
    }
    Ok(())
}

impl AuditLog {
    /// Repairs the log as `agreed` for the operator `user`, if the plan is still the same.
    ///
    /// # Errors
    ///
    /// When the log changed since the plan was made, gateways use it, it cannot be written, or it
    /// is still damaged; another call continues.
    pub fn recover(state: &Dir, agreed: &RecoveryPlan, user: &str) -> Result<(), Error> {
        let mut log = Log::attach(state, disk::random_id()?)?;
        log.operator = Some(user.to_owned());
        let lock = log.lock();
        let _held = FileLock::wait(&lock, LOCK)?;
        // A segment that is being compressed would reappear.
        let _alone = Exclusive::begin(&log.audit)?;
        if plan_locked(state, &log)? != *agreed {
            return Err(Error::Changed);
        }
        // First what has to read the log, and may fail: nothing has left its place then.
        if let Some((segment, first, _)) = agreed.aside.first() {
            leave_traces(state, &log.audit, agreed.keep.records)?;
            if *first > 0 {
                unpack(&log.audit, *segment)?;
            }
            quarantine::keep(&log.audit, "damaged", PartReader::new(&log.audit, &agreed.aside))?;
        }
        for name in &agreed.unexpected {
            quarantine::take(&log.audit, "unexpected", name)?;
        }
        if !agreed.keys.is_empty() {
            keys::put_back(&log.audit, &agreed.keys)?;
        }
        if !agreed.damages.is_empty() || agreed.sign_again {
            set_checkpoints_aside(&log.audit, agreed)?;
        }
        // From the end on, so that at any moment the rest is a log with the same damage.
        for (segment, first, _) in agreed.aside.iter().rev() {
            let name = file_of(&log.audit, *segment)?;
            if *first == 0 {
                log.audit.remove(&name).map_err(Error::io("remove what was set aside"))?;
            } else {
                let file = log.audit.file(&name, OFlags::RDWR).map_err(cut_error)?;
                rustix::fs::ftruncate(&file, *first)
                    .and_then(|()| rustix::fs::fsync(&file))
                    .map_err(cut_error)?;
            }
        }
        log.audit.sync().map_err(cut_error)?;
        if agreed.sign_again {
            forget_signed(&log)?;
        }
        log.load()?;
        if agreed.unaccounted > 0 {
            log.recovered(&unaccounted(&log.audit, agreed.unaccounted)?)?;
        }
        if let Some(key) = agreed.keys.first() {
            log.recovered(&put_back(key))?;
        }
        if agreed.unsigned {
            log.recovered(&checkpoints::lack("an operator had the log go on"))?;
        }
        // A repair succeeds only if gateways can start again afterwards.
        let left = plan_locked(state, &log)?;
        match left.damages.first() {
            Some(damage) => Err(Error::StillDamaged(damage.to_string())),
            None if left.is_empty() => Ok(()),
            None => Err(Error::StillDamaged("what was signed last is not known".to_owned())),
        }
    }
}

/// Lets the next gateway settle the intents that are kept and whose outcomes are not. Runs before
/// the log is cut, which removes the information.
fn leave_traces(state: &Dir, audit: &Folder, records: u64) -> Result<(), Error> {
    let gateways = Folder::open(state, "gateways")?;
    for (boot, first) in orphans::without_outcome(audit, records)? {
        lifetime::leave(&gateways, &boot, first)?;
    }
    gateways.sync().map_err(Error::io("sync the gateways' locks"))
}

/// Returns the record of restored public keys.
fn put_back(key: &PublicKey) -> Draft {
    let facts = [("what".to_owned(), "key".into()), ("key".to_owned(), key.to_string().into())];
    let reason = "an operator had the log's public keys, which were gone, put back";
    Draft { reason: Some(reason.to_owned()), facts: Some(facts.into()), ..Draft::default() }
}

/// Returns the record of missing segments, in place of the one that was lost.
fn unaccounted(audit: &Folder, segments: u64) -> Result<Draft, Error> {
    let first = Reader::new(audit, 0).next().map_err(Error::std("read the audit log"))?;
    let segment = Segment(segments);
    let damaged = |reason: String| Error::Damaged { segment, reason };
    let first = first.ok_or_else(|| damaged("it holds no record".to_owned()))?;
    let record = RecordView::parse(&first.bytes).map_err(|error| Error::line(segment, &error))?;
    let facts = [
        ("what".to_owned(), "unaccounted".into()),
        ("segments".to_owned(), segments.into()),
        ("records".to_owned(), segment.first().into()),
        ("head".to_owned(), record.prev.to_string().into()),
    ];
    let reason = "an operator had the log go on though records before its first one are missing \
                  and no record says any more who had them removed";
    Ok(Draft { reason: Some(reason.to_owned()), facts: Some(facts.into()), ..Draft::default() })
}

/// Sets aside the file that shows that the log was signed. Its record shows that later records are
/// not bound to the signed ones.
fn forget_signed(log: &Log) -> Result<(), Error> {
    let open = || Error::io("set aside that the log was signed");
    let keys = log.keys()?;
    let file = keys.file(SIGNED, OFlags::RDONLY).map_err(open())?;
    quarantine::keep(&log.audit, "signed", file)?;
    keys.remove(SIGNED).and_then(|()| keys.sync()).map_err(open())
}

fn cut_error(errno: rustix::io::Errno) -> Error {
    Error::io("set a part of the audit log aside")(errno)
}

/// Reads parts of segments, one after another.
struct PartReader<'a> {
    audit: &'a Folder,
    parts: std::slice::Iter<'a, (Segment, u64, u64)>,
    open: Option<io::Take<LogFile>>,
}

impl<'a> PartReader<'a> {
    fn new(audit: &'a Folder, parts: &'a [(Segment, u64, u64)]) -> Self {
        Self { audit, parts: parts.iter(), open: None }
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = &mut self.open {
                let count = file.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
            }
            let Some((segment, first, length)) = self.parts.next() else { return Ok(0) };
            let mut file = self.audit.open(&segment.to_string())?;
            file.seek(SeekFrom::Start(*first))?;
            self.open = Some(file.take(*length));
        }
    }
}
