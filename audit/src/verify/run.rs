//! One verification: what was found of the lines, put together in the order of
//! the log.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, Read},
    thread,
};

use super::{
    Position, Progress, Report, SignedPart, Verifier,
    digest::{Digest, Digests, Notice, State},
    flow::{self, Cutter, Piece, Workers},
    marks::Marks,
};
use crate::{
    Damage, DamageKind, FRONTIER, FileEntry, HISTORY, Hash, KEYS, Kind, LineError, MAX_LINE,
    NEWEST, ROOTS, Receipt, SEGMENT_RECORDS, Segment, Source, Warning, WarningKind,
};

/// A verification under way.
pub(super) struct Run<'a, S> {
    source: &'a S,
    report: Report,
    warnings: BTreeMap<WarningKind, Warning>,
    heads: BTreeMap<u64, Vec<Hash>>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    /// No number of damages ends it while the chain is whole.
    thorough: bool,
    marks: Marks,
    total: u64,
    /// The sequence number of the line to come.
    expected: u64,
    /// Its `prev`; unknown after some damages.
    prev: Option<Hash>,
    open: BTreeSet<u64>,
    last_time: Option<[u8; 27]>,
    kinds: [u64; Kind::COUNT],
    /// The segment to come.
    next: Segment,
    /// Segments that are not there and whose roots are, until a record says
    /// that they were pruned.
    pruned: Option<Pruned>,
    /// A record names the key with which checkpoints are signed.
    names_key: bool,
    /// A record names a policy by what is no hash.
    odd_policy: bool,
    at: Place,
    /// A buffer that is done with.
    spare: Vec<u8>,
}

struct Pruned {
    until: Segment,
    /// `prev` of the first record that is there.
    head: Option<Hash>,
}

/// Where in a segment the verification is.
#[derive(Clone, Copy)]
struct Place {
    segment: Segment,
    last: bool,
    line: u64,
    offset: u64,
    /// Damages before it.
    before: usize,
    /// Nothing of the segment counts any more.
    over: bool,
}

/// What comes next, in the order of the log.
enum Step {
    Enter(Segment, bool),
    /// Lines that a thread looks at.
    Lines,
    Long(u64),
    Rest(u64),
    /// What is left of a segment of so many bytes cannot be read, and why.
    Ruin(u64, String),
    /// The end of a segment of so many bytes.
    Leave(u64),
}

impl<'a, S: Source> Run<'a, S> {
    pub(super) fn run(verifier: Verifier<'a, S>) -> io::Result<Report> {
        let Verifier { source, heads, checkpoints, keys, witnesses, threads, thorough, progress } =
            verifier;
        // Before the listing: see `Marks`.
        let marks = Marks::read(source, keys, witnesses, checkpoints)?;
        let mut run = Self::new(source, heads, progress, marks);
        run.thorough = thorough;
        let segments = run.directory(source.list()?);
        // Before the first record, too.
        run.marks.check(source)?;
        run.take_faults();
        let pieces = usize::try_from(run.total / flow::PIECE as u64).unwrap_or(usize::MAX);
        let threads = threads.min(pieces.saturating_add(1));
        thread::scope(|scope| run.read(&segments, Workers::start(scope, threads)))?;
        Ok(run.finish())
    }

    fn new(
        source: &'a S,
        heads: BTreeMap<u64, Vec<Hash>>,
        progress: Option<Box<dyn FnMut(Progress) + 'a>>,
        marks: Marks,
    ) -> Self {
        let start = Position { records: 0, segment: 0, offset: 0 };
        let report = Report {
            records: 0,
            segments: 0,
            bytes: 0,
            head: None,
            first: None,
            last: None,
            kinds: BTreeMap::new(),
            damages: Vec::new(),
            stopped: false,
            warnings: Vec::new(),
            unanswered: Vec::new(),
            whole: start,
            complete: true,
            pruned: 0,
            pruned_by: None,
            roots: BTreeMap::new(),
            signed: SignedPart::default(),
            policies: BTreeMap::new(),
            more_policies: false,
            matched: BTreeSet::new(),
        };
        let segment = Segment(0);
        Self {
            source,
            report,
            warnings: BTreeMap::new(),
            heads,
            progress,
            thorough: false,
            marks,
            total: 0,
            expected: 0,
            prev: Some(Hash::ZERO),
            open: BTreeSet::new(),
            last_time: None,
            kinds: [0; Kind::COUNT],
            next: segment,
            pruned: None,
            names_key: false,
            odd_policy: false,
            at: Place { segment, last: true, line: 0, offset: 0, before: 0, over: false },
            spare: Vec::new(),
        }
    }

    /// Reads all segments; the threads look at lines while this one puts
    /// together what they found of earlier ones.
    fn read(&mut self, segments: &BTreeMap<Segment, u64>, mut workers: Workers) -> io::Result<()> {
        let last = segments.keys().next_back().copied();
        let mut steps = VecDeque::new();
        for (segment, length) in segments {
            steps.push_back(Step::Enter(*segment, Some(*segment) == last));
            let mut cutter = match self.source.open(&segment.to_string()) {
                Ok(file) => Cutter::new(file.take(*length)),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let ruin = Step::Ruin(*length, error.to_string());
                    steps.extend([ruin, Step::Leave(*length)]);
                    continue;
                }
                Err(error) => return Err(error),
            };
            while let Some(piece) = cutter.next()? {
                match piece {
                    Piece::Ruin(detail) => steps.push_back(Step::Ruin(*length, detail)),
                    Piece::Lines(lines) => {
                        while workers.is_full() {
                            self.step(&mut steps, &mut workers)?;
                        }
                        cutter.reuse(std::mem::take(&mut self.spare));
                        workers.give(lines)?;
                        steps.push_back(Step::Lines);
                    }
                    Piece::Long(length) => steps.push_back(Step::Long(length)),
                    Piece::Rest(length) => steps.push_back(Step::Rest(length)),
                }
                if self.stopped() {
                    return Ok(());
                }
                // The rest does not count, however much it is.
                if self.at.over && self.at.segment == *segment {
                    break;
                }
            }
            steps.push_back(Step::Leave(*length));
        }
        while !steps.is_empty() && !self.stopped() {
            self.step(&mut steps, &mut workers)?;
        }
        Ok(())
    }

    fn step(&mut self, steps: &mut VecDeque<Step>, workers: &mut Workers) -> io::Result<()> {
        match steps.pop_front() {
            None => {}
            Some(Step::Enter(segment, last)) => self.enter(segment, last)?,
            Some(Step::Lines) => {
                let mut digests = workers.take()?;
                self.spare = std::mem::take(&mut digests.buffer);
                self.lines(digests)?;
                self.tell();
            }
            Some(Step::Long(length)) => self.long(length),
            Some(Step::Rest(length)) => self.rest(length),
            Some(Step::Ruin(length, detail)) => self.ruin(length, detail),
            Some(Step::Leave(length)) => self.leave(length)?,
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        let many = self.report.damages.len() >= Report::MOST_DAMAGES;
        many && !(self.thorough && self.report.complete)
    }

    fn damage(&mut self, kind: DamageKind, name: &str, place: Option<(u64, u64)>, detail: String) {
        self.report.damages.push(Damage {
            kind,
            segment: name.to_owned(),
            seq: place.map(|(seq, _)| seq),
            line: place.map(|(_, line)| line).filter(|line| *line > 0),
            detail,
        });
    }

    /// Damage after which the chain is no longer whole.
    fn broken(&mut self, kind: DamageKind, detail: String) {
        let name = self.at.segment.to_string();
        self.damage(kind, &name, Some((self.expected, self.at.line)), detail);
        self.report.complete = false;
    }

    fn warn(&mut self, kind: WarningKind, seq: Option<u64>, detail: impl FnOnce() -> String) {
        self.warnings
            .entry(kind)
            .or_insert_with(|| Warning { kind, count: 0, seq, detail: detail() })
            .count += 1;
    }

    /// Sorts what stands in the directory; returns the segments.
    fn directory(&mut self, mut entries: Vec<FileEntry>) -> BTreeMap<Segment, u64> {
        let mut segments = BTreeMap::new();
        entries.sort();
        for FileEntry { name, length, regular } in entries {
            match (Segment::from_name(&name), name.as_str()) {
                (Some(segment), _) if regular => {
                    self.total = self.total.saturating_add(length);
                    segments.insert(segment, length);
                }
                (Some(_), _) => {
                    let detail = "the segment is not a regular file".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                // Where nobody can wait for an append to end.
                (None, "lock") if !regular => {
                    let detail = "the lock is not a regular file".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, "lock" | NEWEST | HISTORY | KEYS | ROOTS | FRONTIER) => {}
                (None, "quarantine") => self.warn(WarningKind::Quarantine, None, || {
                    "`quarantine` holds what a recovery set aside; \
                     a `recovered` record tells of each file"
                        .to_owned()
                }),
                (None, _) if name.starts_with("seg-") => {
                    let detail = "a name like a segment's that no segment has".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, _) if name.starts_with('.') => {}
                (None, _) => self.warn(WarningKind::UnknownFile, None, || {
                    format!("{name:?} does not belong to the log")
                }),
            }
        }
        for name in std::mem::take(&mut self.marks.strangers) {
            self.warn(WarningKind::UnknownFile, None, || {
                format!("{name:?} does not belong to the log")
            });
        }
        if self.marks.unchecked {
            self.warn(WarningKind::UncheckedCheckpoint, None, || {
                "there are checkpoints, but no public key to check them with".to_owned()
            });
        }
        self.take_faults();
        segments
    }

    fn take_faults(&mut self) {
        self.report.damages.extend(self.marks.faults());
    }

    /// Comes to the first line of `segment`.
    fn enter(&mut self, segment: Segment, last: bool) -> io::Result<()> {
        let missing = self.next;
        self.next = segment.next();
        self.report.segments += 1;
        let before = self.report.damages.len();
        let place = Place { segment, last, line: 0, offset: 0, before, over: false };
        if missing < segment {
            if missing.0 == 0 && self.marks.pruned(self.source, segment)? {
                self.pruned = Some(Pruned { until: segment, head: None });
                self.report.pruned = segment.first();
                self.take_faults();
            } else {
                self.expected = missing.first();
                self.at = Place { segment: missing, ..place };
                let detail = match segment.0 - missing.0 {
                    1 => "the segment is missing, but later ones are there".to_owned(),
                    count => format!("{count} segments from this one on are missing"),
                };
                self.broken(DamageKind::MissingSegment, detail);
            }
        }
        if self.expected != segment.first() {
            self.expected = segment.first();
            self.prev = None;
        }
        self.at = Place { before: self.report.damages.len(), ..place };
        Ok(())
    }

    /// Comes to the end of the segment.
    fn leave(&mut self, length: u64) -> io::Result<()> {
        let Place { segment, last, line, before, over, offset } = self.at;
        if offset != length && !over && !self.stopped() {
            return Err(io::Error::other(format!("`{segment}` became shorter while it was read")));
        }
        self.report.bytes += self.at.offset;
        self.at.offset = 0;
        self.tell();
        if !last && !over && line < SEGMENT_RECORDS && self.report.damages.len() == before {
            let detail = format!(
                "the segment ends after {line} of {SEGMENT_RECORDS} records, but is not the last"
            );
            self.broken(DamageKind::ShortSegment, detail);
        }
        Ok(())
    }

    fn tell(&mut self) {
        let bytes = self.report.bytes + self.at.offset;
        if let Some(progress) = &mut self.progress {
            progress(Progress { bytes, total: self.total });
        }
    }

    /// Comes to one more line; `false` when it is not looked at.
    fn line(&mut self, length: u64) -> bool {
        self.at.offset += length;
        if self.at.over || self.stopped() {
            return false;
        }
        self.at.line += 1;
        if self.at.line > SEGMENT_RECORDS {
            self.at.over = true;
            let detail = format!("the segment goes on after {SEGMENT_RECORDS} records");
            self.broken(DamageKind::LongSegment, detail);
            return false;
        }
        true
    }

    fn long(&mut self, length: u64) {
        if self.line(length) {
            let detail = format!("the line is longer than {MAX_LINE} bytes");
            self.broken(DamageKind::LongLine, detail);
            self.skip(None);
            self.at.over = length > flow::ENDLESS;
        }
    }

    fn rest(&mut self, length: u64) {
        if self.line(length) {
            let (kind, words) = if self.at.last {
                (DamageKind::TornTail, "the log")
            } else {
                (DamageKind::UnterminatedLine, "the segment")
            };
            self.broken(kind, format!("{words} ends after {length} bytes of a line"));
            self.skip(None);
        }
    }

    /// Leaves the rest of a segment behind.
    fn ruin(&mut self, length: u64, detail: String) {
        self.at.offset = length;
        if self.at.over || self.stopped() {
            return;
        }
        self.at.over = true;
        let name = self.at.segment.to_string();
        let first = self.at.segment.first();
        self.damage(DamageKind::BadSegment, &name, Some((first, 0)), detail);
        self.report.complete = false;
    }

    /// Leaves a line behind that is no record.
    fn skip(&mut self, prev: Option<Hash>) {
        self.expected = self.expected.saturating_add(1);
        self.prev = prev;
    }

    fn lines(&mut self, mut digests: Digests) -> io::Result<()> {
        self.policies(&mut digests);
        for (number, digest) in digests.lines.iter_mut().enumerate() {
            if digest.state == State::Long {
                self.long(digest.length);
                continue;
            }
            if !self.line(digest.length) {
                continue;
            }
            if digest.state == State::Bad {
                let error = digests.errors.remove(&number);
                let kind = match error {
                    Some(LineError::DuplicateKey { .. }) => DamageKind::DuplicateKey,
                    Some(LineError::Version { .. }) => DamageKind::UnsupportedVersion,
                    _ => DamageKind::MalformedRecord,
                };
                self.broken(kind, error.map(|error| error.to_string()).unwrap_or_default());
                self.skip(Some(digest.leaf));
                continue;
            }
            if number == 0 {
                digest.linked = self.prev == digests.first_prev;
                if let Some(pruned) = &mut self.pruned
                    && self.report.records == 0
                {
                    pruned.head = digests.first_prev;
                }
            }
            if let Some(notice) = digests.notices.remove(&number) {
                self.notice(digest, notice);
            }
            self.record(digest)?;
        }
        Ok(())
    }

    /// Notes the policies that lines name, as many as the report has room for.
    fn policies(&mut self, digests: &mut Digests) {
        let odd =
            digests.odd_policy.take().filter(|_| !std::mem::replace(&mut self.odd_policy, true));
        let hashes = std::mem::take(&mut digests.policies).into_iter();
        for (policy, seq) in hashes.map(|(hash, seq)| (hash.to_string(), seq)).chain(odd) {
            let many = self.report.policies.len() >= Report::MOST_POLICIES;
            if many && !self.report.policies.contains_key(&policy) {
                self.report.more_policies = true;
            } else {
                self.report.policies.entry(policy).or_insert(seq);
            }
        }
    }

    fn notice(&mut self, digest: &Digest, notice: Notice) {
        match notice {
            Notice::Key(key) => {
                self.names_key = true;
                self.marks.key(digest.seq, &key);
            }
            Notice::Pruned { segments, head } => {
                // Where a prune was cut short, less is gone than it says.
                let tells = self.pruned.as_ref().is_some_and(|pruned| {
                    segments > pruned.until.0 || (segments == pruned.until.0 && head == pruned.head)
                });
                if tells {
                    self.report.pruned_by.get_or_insert(self.expected);
                }
                if digest.kind == Kind::Recovered {
                    self.warn(WarningKind::UnaccountedRecords, Some(digest.seq), || {
                        format!(
                            "record {} notes that {segments} segments from the first one on are \
                             missing, and that no record says who had them removed",
                            digest.seq
                        )
                    });
                }
            }
        }
    }

    fn record(&mut self, digest: &Digest) -> io::Result<()> {
        let seq = digest.seq;
        if seq != self.expected {
            let words = if seq > self.expected {
                "records before it are missing"
            } else {
                "it was here before, or is out of order"
            };
            let detail = format!("the line is record {seq}: {words}");
            self.broken(DamageKind::WrongSequence, detail);
        } else if self.prev.is_some() && !digest.linked {
            let detail = match seq.checked_sub(1) {
                Some(before) => {
                    format!("`prev` is not the hash of record {before}: one of the two was changed")
                }
                None => "`prev` of the first record is not zero".to_owned(),
            };
            self.broken(DamageKind::BrokenLink, detail);
        }
        if self.report.complete {
            self.reference(digest);
        }
        let leaf = digest.leaf;
        self.head(seq, leaf);
        self.expected = seq.saturating_add(1);
        self.prev = Some(leaf);
        self.count(digest);
        if self.report.complete {
            self.marks.push(self.source, leaf)?;
            self.take_faults();
            let (segment, offset) = (self.at.segment.0, self.at.offset);
            self.report.whole = Position { records: self.expected, segment, offset };
        }
        Ok(())
    }

    /// Holds the receipts of record `seq` against it.
    fn head(&mut self, seq: u64, leaf: Hash) {
        let Some(heads) = self.heads.remove(&seq) else { return };
        if let Some(head) = heads.iter().find(|head| **head != leaf) {
            let detail = format!("the record's hash is {leaf}, but the receipt says {head}");
            let name = self.at.segment.to_string();
            self.damage(DamageKind::WrongHead, &name, Some((seq, self.at.line)), detail);
        } else {
            self.report.matched.insert(seq);
        }
    }

    /// An outcome answers an earlier intent that nothing has answered yet, and
    /// so does a recovery that names one. Only checked while no record is
    /// known to be missing.
    fn reference(&mut self, digest: &Digest) {
        match (digest.kind, digest.of) {
            (Kind::Intent, _) => {
                self.open.insert(digest.seq);
            }
            (Kind::Outcome | Kind::Recovered, Some(of)) if !self.open.remove(&of) => {
                let detail = format!("record {of} is no earlier intent without an answer");
                self.broken(DamageKind::WrongReference, detail);
            }
            _ => {}
        }
    }

    fn count(&mut self, digest: &Digest) {
        let Digest { seq, kind, t, .. } = digest;
        self.report.records += 1;
        if let Some(count) = self.kinds.get_mut(*kind as usize) {
            *count += 1;
        }
        let text = |t: &[u8; 27]| String::from_utf8_lossy(t).into_owned();
        if *kind == Kind::Unknown {
            self.warn(WarningKind::UnknownKind, Some(*seq), || {
                format!("record {seq} is of a kind that this version does not know")
            });
        }
        if let Some(last) = self.last_time.filter(|last| t < last) {
            self.warn(WarningKind::TimeWentBack, Some(*seq), || {
                format!("record {seq} is of {}, the one before it of {}", text(t), text(&last))
            });
        }
        if self.report.first.is_none() {
            self.report.first = Some(text(t));
        }
        self.last_time = Some(*t);
        self.report.head = Some(Receipt { seq: *seq, leaf: digest.leaf, durable: false });
    }

    /// Says of receipts whose records were not met why.
    fn left_heads(&mut self) {
        let name = Segment::of(self.expected).to_string();
        for (seq, heads) in std::mem::take(&mut self.heads) {
            if seq >= self.report.pruned {
                let detail = format!(
                    "the log ends after {} records, but a receipt proves record {seq}",
                    self.expected
                );
                self.damage(DamageKind::MissingHead, &name, Some((seq, 0)), detail);
            } else if heads.iter().any(|head| Some(head) != heads.first()) {
                let detail = format!("two receipts of record {seq} differ");
                let name = Segment::of(seq).to_string();
                self.damage(DamageKind::WrongHead, &name, Some((seq, 0)), detail);
            } else {
                self.warn(WarningKind::PrunedHead, Some(seq), || {
                    format!("record {seq} was pruned, so its receipt cannot be checked")
                });
            }
        }
    }

    /// Says that no signature was found right though one is to be expected.
    /// Whoever gave a key asked for that.
    fn unsigned(&mut self) {
        let (given, checked) = (self.marks.signed.given, self.marks.signed.checkpoints);
        if checked > 0 || !(given || self.names_key) {
            return;
        }
        let detail = if given {
            "no checkpoint of the log is signed with a key that was given: nothing shows that its \
             owner wrote the log"
        } else {
            "records name a key for checkpoints, but no right checkpoint is there: a gate died \
             before its first one, or they were removed"
        };
        if given && self.expected > 0 && self.report.is_valid() {
            self.damage(DamageKind::MissingCheckpoint, NEWEST, None, detail.to_owned());
        } else {
            self.warn(WarningKind::MissingCheckpoint, None, || detail.to_owned());
        }
    }

    fn finish(mut self) -> Report {
        self.report.stopped = self.stopped();
        let counted = Kind::ALL.iter().zip(self.kinds).filter(|(_, count)| *count > 0);
        self.report.kinds = counted.map(|(kind, count)| (kind.as_str(), count)).collect();
        self.report.last = self.last_time.map(|t| String::from_utf8_lossy(&t).into_owned());
        if let Some(Pruned { until, .. }) = self.pruned
            && self.report.pruned_by.is_none()
            && !self.report.stopped
        {
            let detail = format!(
                "{} segments from this one on are missing, and no record says that they were pruned",
                until.0
            );
            self.damage(DamageKind::MissingSegment, &Segment(0).to_string(), Some((0, 0)), detail);
        }
        if !self.report.stopped {
            self.left_heads();
            for size in self.marks.finish(self.expected, self.report.pruned) {
                self.warn(WarningKind::PrunedHead, size.checked_sub(1), || {
                    format!(
                        "records before record {size} were pruned, so the checkpoint of them \
                         cannot be checked"
                    )
                });
            }
            self.take_faults();
        }
        self.unsigned();
        if self.report.complete {
            self.report.unanswered = self.open.iter().copied().take(100).collect();
            if let Some(first) = self.open.first().copied() {
                self.warn(WarningKind::UnansweredIntent, Some(first), || {
                    format!("the intent {first} has no outcome: it is under way or needs recovery")
                });
                if let Some(warning) = self.warnings.get_mut(&WarningKind::UnansweredIntent) {
                    warning.count = self.open.len() as u64;
                }
            }
        } else {
            self.report.head = None;
        }
        self.report.roots = std::mem::take(&mut self.marks.wrong_roots);
        self.report.signed = self.marks.signed.clone();
        self.report.warnings = self.warnings.into_values().collect();
        self.report
    }
}
