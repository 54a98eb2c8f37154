//! The verifier: reads a log once, from the first byte to the last, and says
//! whether it is one chain.
//!
//! It trusts nothing that it reads and repairs nothing. What it cannot see is
//! a log cut, or written anew, by someone who holds the disk: only a receipt
//! kept elsewhere shows that, see [`Verifier::expect`].

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, Read},
};

use serde::Serialize;

use crate::{
    Damage, DamageKind, FileEntry, Hash, Kind, LineError, Link, MAX_LINE, Receipt, SEGMENT_RECORDS,
    Segment, Source, Warning, WarningKind,
};

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that the log has.
    pub total: u64,
}

/// A place in the log: what is before it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Records before it.
    pub records: u64,
    /// Number of the segment that it is in.
    pub segment: u64,
    /// Offset in the segment.
    pub offset: u64,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Report {
    /// Lines read that are records.
    pub records: u64,
    /// Segment files read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The last record of the log, when the log is whole.
    pub head: Option<Receipt>,
    /// Time of the first record.
    pub first: Option<String>,
    /// Time of the last record.
    pub last: Option<String>,
    /// Records of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Everything wrong, in the order of the log; at most
    /// [`Report::MOST_DAMAGES`].
    pub damages: Vec<Damage>,
    /// Whether the verification stopped because there were so many.
    pub stopped: bool,
    /// What a person should look at.
    pub warnings: Vec<Warning>,
    /// Intents without outcome, the first hundred.
    pub unanswered: Vec<u64>,
    /// How far the chain is whole.
    pub whole: Position,
    /// Whether it is whole to the end.
    pub complete: bool,
}

impl Report {
    /// After so many damages a verification stops.
    pub const MOST_DAMAGES: usize = 100;

    /// Whether the log is valid.
    pub fn is_valid(&self) -> bool {
        self.damages.is_empty()
    }
}

/// Verifies a log, see the module.
pub struct Verifier<'a, S> {
    source: &'a S,
    heads: BTreeMap<u64, Hash>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
}

impl<'a, S: Source> Verifier<'a, S> {
    /// A verifier of the log in `source`.
    pub fn new(source: &'a S) -> Self {
        Self { source, heads: BTreeMap::new(), progress: None }
    }

    /// Also demands that record `seq` has the leaf hash `leaf`, as a receipt
    /// kept outside the log says.
    #[must_use]
    pub fn expect(mut self, seq: u64, leaf: Hash) -> Self {
        self.heads.insert(seq, leaf);
        self
    }

    /// Calls `progress` now and then.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Reads the log as it is at this moment, whatever is appended meanwhile.
    ///
    /// # Errors
    ///
    /// When the log cannot be read. Damage is no error but in the report.
    pub fn run(self) -> io::Result<Report> {
        let mut run = Run::new(self.heads, self.progress);
        let segments = run.directory(self.source.list()?);
        let last = segments.keys().next_back().copied();
        for (segment, length) in segments {
            if run.stopped() {
                break;
            }
            let file = self.source.open(&segment.to_string())?;
            run.segment(segment, file, length, Some(segment) == last)?;
        }
        Ok(run.finish())
    }
}

/// What a line turned out to be.
enum Line {
    Whole,
    Long,
    Torn,
}

/// A verification under way.
struct Run<'a> {
    report: Report,
    warnings: BTreeMap<WarningKind, Warning>,
    heads: BTreeMap<u64, Hash>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    total: u64,
    /// The sequence number of the line to come.
    expected: u64,
    /// Its `prev`; unknown after some damages.
    prev: Option<Hash>,
    open: BTreeSet<u64>,
    /// The segment to come.
    next: Segment,
}

impl<'a> Run<'a> {
    fn new(heads: BTreeMap<u64, Hash>, progress: Option<Box<dyn FnMut(Progress) + 'a>>) -> Self {
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
        };
        Self {
            report,
            warnings: BTreeMap::new(),
            heads,
            progress,
            total: 0,
            expected: 0,
            prev: Some(Hash::ZERO),
            open: BTreeSet::new(),
            next: Segment(0),
        }
    }

    fn stopped(&self) -> bool {
        self.report.damages.len() >= Report::MOST_DAMAGES
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
    fn broken(&mut self, kind: DamageKind, segment: Segment, line: u64, detail: String) {
        self.damage(kind, &segment.to_string(), Some((self.expected, line)), detail);
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
                (None, "lock") => {}
                (None, "checkpoint" | "checkpoints" | "key.vkey") => {
                    self.warn(WarningKind::UncheckedCheckpoint, None, || {
                        format!("`{name}` is there, but this version checks no signed checkpoints")
                    });
                }
                (None, "quarantine") => self.warn(WarningKind::Quarantine, None, || {
                    "`quarantine` holds what a recovery set aside; \
                     a `recovered` record tells of each file"
                        .to_owned()
                }),
                (None, _) if name.starts_with("seg-") => {
                    let detail = "a name like a segment's that no segment has".to_owned();
                    self.damage(DamageKind::UnexpectedFile, &name, None, detail);
                }
                (None, _) => self.warn(WarningKind::UnknownFile, None, || {
                    format!("{name:?} does not belong to the log")
                }),
            }
        }
        segments
    }

    /// Reads one segment.
    fn segment<F: Read>(
        &mut self,
        segment: Segment,
        file: F,
        length: u64,
        last: bool,
    ) -> io::Result<()> {
        self.enter(segment);
        self.report.segments += 1;
        let before = self.report.damages.len();
        let mut reader = BufReader::with_capacity(1 << 20, file.take(length));
        let mut bytes = Vec::with_capacity(1024);
        let mut line = 0;
        let mut offset = 0;
        while !self.stopped() {
            bytes.clear();
            (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut bytes)?;
            if bytes.is_empty() {
                break;
            }
            let found = match bytes.pop_if(|byte| *byte == b'\n') {
                Some(_) => Line::Whole,
                None if bytes.len() > MAX_LINE => Line::Long,
                None => Line::Torn,
            };
            offset += bytes.len() as u64 + u64::from(matches!(found, Line::Whole));
            if matches!(found, Line::Long) {
                offset += reader.skip_until(b'\n')? as u64;
            }
            line += 1;
            if line > SEGMENT_RECORDS {
                self.broken(
                    DamageKind::LongSegment,
                    segment,
                    line,
                    format!("the segment goes on after {SEGMENT_RECORDS} records"),
                );
                self.report.bytes += offset;
                return Ok(());
            }
            self.line(segment, line, &bytes, &found, last);
            if self.report.complete {
                self.report.whole = Position { records: self.expected, segment: segment.0, offset };
            }
            if line % 4096 == 0 {
                self.tell(offset);
            }
        }
        self.report.bytes += offset;
        self.tell(0);
        if offset != length && !self.stopped() {
            return Err(io::Error::other(format!("`{segment}` became shorter while it was read")));
        }
        if !last && line < SEGMENT_RECORDS && self.report.damages.len() == before {
            let detail = format!(
                "the segment ends after {line} of {SEGMENT_RECORDS} records, but is not the last"
            );
            self.broken(DamageKind::ShortSegment, segment, line, detail);
        }
        Ok(())
    }

    /// Comes to the first line of `segment`.
    fn enter(&mut self, segment: Segment) {
        let missing = self.next;
        self.next = segment.next();
        if missing < segment {
            self.expected = missing.first();
            let detail = match segment.0 - missing.0 {
                1 => "the segment is missing, but later ones are there".to_owned(),
                count => format!("{count} segments from this one on are missing"),
            };
            self.broken(DamageKind::MissingSegment, missing, 0, detail);
        }
        if self.expected != segment.first() {
            self.expected = segment.first();
            self.prev = None;
        }
    }

    fn tell(&mut self, offset: u64) {
        let bytes = self.report.bytes + offset;
        if let Some(progress) = &mut self.progress {
            progress(Progress { bytes, total: self.total });
        }
    }

    fn line(&mut self, segment: Segment, line: u64, bytes: &[u8], found: &Line, last: bool) {
        let skip = |run: &mut Self, prev| {
            run.expected = run.expected.saturating_add(1);
            run.prev = prev;
        };
        match found {
            Line::Whole => {}
            Line::Long => {
                let detail = format!("the line is longer than {MAX_LINE} bytes");
                self.broken(DamageKind::LongLine, segment, line, detail);
                return skip(self, None);
            }
            Line::Torn => {
                let (kind, words) = if last {
                    (DamageKind::TornTail, "the log")
                } else {
                    (DamageKind::UnterminatedLine, "the segment")
                };
                let detail = format!("{words} ends after {} bytes of a line", bytes.len());
                self.broken(kind, segment, line, detail);
                return skip(self, None);
            }
        }
        let leaf = Hash::leaf(bytes);
        let link = match Link::parse(bytes) {
            Ok(link) => link,
            Err(error) => {
                let kind = match error {
                    LineError::DuplicateKey { .. } => DamageKind::DuplicateKey,
                    LineError::Version { .. } => DamageKind::UnsupportedVersion,
                    _ => DamageKind::MalformedRecord,
                };
                self.broken(kind, segment, line, error.to_string());
                return skip(self, Some(leaf));
            }
        };
        self.record(segment, line, link, leaf);
    }

    fn record(&mut self, segment: Segment, line: u64, link: Link, leaf: Hash) {
        let seq = link.seq;
        if seq != self.expected {
            let words = if seq > self.expected {
                "records before it are missing"
            } else {
                "it was here before, or is out of order"
            };
            let detail = format!("the line is record {seq}: {words}");
            self.broken(DamageKind::WrongSequence, segment, line, detail);
        } else if let Some(prev) = self.prev
            && prev != link.prev
        {
            let detail = match seq.checked_sub(1) {
                Some(before) => {
                    format!("`prev` is not the hash of record {before}: one of the two was changed")
                }
                None => "`prev` of the first record is not zero".to_owned(),
            };
            self.broken(DamageKind::BrokenLink, segment, line, detail);
        }
        if self.report.complete {
            self.reference(segment, line, &link);
        }
        if let Some(head) = self.heads.remove(&seq)
            && head != leaf
        {
            let detail = format!("the record's hash is {leaf}, but the receipt says {head}");
            self.damage(DamageKind::WrongHead, &segment.to_string(), Some((seq, line)), detail);
        }
        self.expected = seq.saturating_add(1);
        self.prev = Some(leaf);
        self.count(link, leaf);
    }

    /// An outcome answers an earlier intent that nothing has answered yet, and
    /// so does a recovery that names one. Only checked while no record is
    /// known to be missing.
    fn reference(&mut self, segment: Segment, line: u64, link: &Link) {
        match (link.kind, link.of) {
            (Kind::Intent, _) => {
                self.open.insert(link.seq);
            }
            (Kind::Outcome | Kind::Recovered, Some(of)) if !self.open.remove(&of) => {
                let detail = format!("record {of} is no earlier intent without an answer");
                self.broken(DamageKind::WrongReference, segment, line, detail);
            }
            _ => {}
        }
    }

    fn count(&mut self, link: Link, leaf: Hash) {
        let Link { seq, kind, t, .. } = link;
        self.report.records += 1;
        *self.report.kinds.entry(kind.as_str()).or_default() += 1;
        if kind == Kind::Unknown {
            self.warn(WarningKind::UnknownKind, Some(seq), || {
                format!("record {seq} is of a kind that this version does not know")
            });
        }
        if let Some(last) = self.report.last.take()
            && t < last
        {
            self.warn(WarningKind::TimeWentBack, Some(seq), || {
                format!("record {seq} is of {t}, the one before it of {last}")
            });
        }
        if self.report.first.is_none() {
            self.report.first = Some(t.clone());
        }
        self.report.last = Some(t);
        self.report.head = Some(Receipt { seq, leaf, durable: false });
    }

    fn finish(mut self) -> Report {
        self.report.stopped = self.stopped();
        if !self.report.stopped {
            let name = Segment::of(self.expected).to_string();
            for (seq, _) in std::mem::take(&mut self.heads) {
                let detail = format!(
                    "the log ends after {} records, but a receipt proves record {seq}",
                    self.expected
                );
                self.damage(DamageKind::MissingHead, &name, Some((seq, 0)), detail);
            }
        }
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
        self.report.warnings = self.warnings.into_values().collect();
        self.report
    }
}
