//! Damage beyond a torn tail, when the operator asks for it: everything from
//! the first damage on is set aside, and the chain goes on before it.
//!
//! Nothing is thrown away, and nothing is made to look whole: the `recovered`
//! record names the file in quarantine, its hash and its size.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use cap_std::fs::Dir;
use portcullis_audit::{Damage, DamageKind, Position, Segment, Source, Verifier};
use rustix::fs::OFlags;

use super::{
    Error,
    disk::{self, Folder, Held},
    life,
    log::Log,
    quarantine,
};

/// What a repair would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The damages, in the order of the log.
    pub damages: Vec<Damage>,
    /// The chain is kept up to here.
    pub keep: Position,
    /// The parts of segments that are set aside: name, first byte, length.
    pub aside: Vec<(Segment, u64, u64)>,
    /// Files that are set aside because they do not belong to the log.
    pub strangers: Vec<String>,
}

impl Plan {
    /// Whether there is nothing to repair.
    pub fn is_empty(&self) -> bool {
        self.damages.is_empty()
    }

    /// Bytes of the log that are set aside.
    pub fn bytes(&self) -> u64 {
        self.aside.iter().map(|(_, _, bytes)| bytes).sum()
    }
}

/// Verifies the log in the state directory `state` and says what
/// [`recover`] would do.
///
/// # Errors
///
/// When the log cannot be read, or gates use it.
pub fn plan(state: &Dir) -> Result<Plan, Error> {
    let log = Log::attach(state, String::new())?;
    let lock = log.lock();
    let _held = Held::wait(&lock)?;
    plan_locked(state, &log.audit)
}

fn plan_locked(state: &Dir, audit: &Folder) -> Result<Plan, Error> {
    let (_, alive) = life::census(&Folder::open(state, "gates")?, None)?;
    if alive > 0 {
        return Err(Error::InUse(alive));
    }
    let report = Verifier::new(audit).run().map_err(Error::std("read the audit log"))?;
    let keep = report.whole;
    let mut aside = Vec::new();
    if !report.complete {
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
    let strangers = report
        .damages
        .iter()
        .filter(|damage| damage.kind == DamageKind::UnexpectedFile)
        .map(|damage| damage.segment.clone())
        .collect();
    Ok(Plan { damages: report.damages, keep, aside, strangers })
}

/// Does what `agreed` says, if that is still what there is to do.
///
/// # Errors
///
/// When the log changed since the plan was made, gates use it, or it cannot
/// be written; asking again goes on where it stopped.
pub fn recover(state: &Dir, agreed: &Plan) -> Result<(), Error> {
    let mut log = Log::attach(state, disk::random_hex()?)?;
    let lock = log.lock();
    let _held = Held::wait(&lock)?;
    if plan_locked(state, &log.audit)? != *agreed {
        return Err(Error::Changed);
    }
    for name in &agreed.strangers {
        let file = log.audit.file(name, OFlags::RDONLY).map_err(|errno| Error::Io {
            action: "open a file that does not belong to the log",
            errno,
        })?;
        quarantine::keep(&log.audit, "stranger", file)?;
        log.audit.remove(name).map_err(Error::io("remove what was set aside"))?;
    }
    if !agreed.aside.is_empty() {
        quarantine::keep(&log.audit, "damaged", Rest::new(&log.audit, &agreed.aside))?;
        // From the end on, so that what stands at any moment is again a log
        // with the same damage.
        for (segment, first, _) in agreed.aside.iter().rev() {
            let name = segment.to_string();
            if *first == 0 {
                log.audit.remove(&name).map_err(Error::io("remove what was set aside"))?;
            } else {
                let file = log.audit.file(&name, OFlags::RDWR).map_err(cut_error)?;
                rustix::fs::ftruncate(&file, *first)
                    .and_then(|()| rustix::fs::fsync(&file))
                    .map_err(cut_error)?;
            }
        }
    }
    log.audit.sync().map_err(cut_error)?;
    log.load()
}

fn cut_error(errno: rustix::io::Errno) -> Error {
    Error::io("set a part of the audit log aside")(errno)
}

/// The parts of segments, one after another.
struct Rest<'a> {
    audit: &'a Folder,
    parts: std::slice::Iter<'a, (Segment, u64, u64)>,
    open: Option<io::Take<File>>,
}

impl<'a> Rest<'a> {
    fn new(audit: &'a Folder, parts: &'a [(Segment, u64, u64)]) -> Self {
        Self { audit, parts: parts.iter(), open: None }
    }
}

impl Read for Rest<'_> {
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
