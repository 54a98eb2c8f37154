//! One verification, which combines the digests of lines in the order of the log. This file
//! contains its state and the order of its steps.

mod end;
mod records;
mod segments;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, Read},
    thread,
};

use super::{
    Position, Progress, Report, SignedPart, Verifier,
    expected::Expectations,
    parallel::{self, Piece, PieceReader, Workers},
};
use crate::{Damage, DamageKind, Hash, Kind, Segment, Source, Warning, WarningKind, time::Time};

/// A running verification.
pub(super) struct Run<'a, S> {
    source: &'a S,
    report: Report,
    warnings: BTreeMap<WarningKind, Warning>,
    heads: BTreeMap<u64, Vec<Hash>>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    /// True if no number of damages ends it while the chain is intact.
    thorough: bool,
    expectations: Expectations,
    total: u64,
    /// The sequence number of the next line.
    expected: u64,
    /// The expected `prev` of the next line; unknown after some damages.
    prev: Option<Hash>,
    open: BTreeSet<u64>,
    last_time: Option<Time>,
    kinds: [u64; Kind::COUNT],
    /// The next segment.
    next: Segment,
    /// Missing segments whose roots are stored, until a record accounts for them.
    pruned: Option<Pruned>,
    /// True if a record accounts for them, perhaps after a damage.
    recorded_pruned: bool,
    /// True if a record names the key that signs checkpoints.
    names_key: bool,
    /// Gateways that named their keys, by the hash of their `boot`, until one of them stopped in
    /// order.
    signing: BTreeSet<Option<Hash>>,
    /// True if one of them stopped in order, which leaves a checkpoint.
    stopped: bool,
    /// True if a record names a policy by something else than a hash.
    odd_policy: bool,
    at: VerifyPosition,
    /// The end of the intact chain before its last record.
    before: Position,
    /// A buffer for reuse.
    spare: Vec<u8>,
}

struct Pruned {
    until: Segment,
    /// The `prev` of the first existing record.
    head: Option<Hash>,
}

/// The position of the verification in a segment.
#[derive(Clone, Copy)]
struct VerifyPosition {
    segment: Segment,
    last: bool,
    line: u64,
    offset: u64,
    /// Number of damages before it.
    before: usize,
    /// True if the rest of the segment is ignored.
    over: bool,
}

/// The next step, in the order of the log.
enum Step {
    Enter(Segment, bool),
    /// Lines that a thread processes.
    Lines,
    Long(u64),
    Rest(u64),
    /// The rest of a segment of this length cannot be read, with the reason.
    Ruin(u64, String),
    /// The end of a segment of this length.
    Leave(u64),
}

impl<'a, S: Source> Run<'a, S> {
    pub(super) fn run(verifier: Verifier<'a, S>) -> io::Result<Report> {
        let Verifier { source, heads, checkpoints, keys, witnesses, threads, thorough, progress } =
            verifier;
        // `Expectations` must be read before the listing.
        let expectations = Expectations::read(source, keys, witnesses, checkpoints)?;
        let mut run = Self::new(source, heads, progress, expectations);
        run.thorough = thorough;
        let segments = run.directory(source.list()?);
        // Checkpoints of zero records are checked, too.
        run.expectations.check(source)?;
        run.take_faults();
        let pieces = usize::try_from(run.total / parallel::READ_SIZE as u64).unwrap_or(usize::MAX);
        let threads = threads.min(pieces.saturating_add(1));
        thread::scope(|scope| run.read(&segments, Workers::start(scope, threads)))?;
        Ok(run.finish())
    }

    fn new(
        source: &'a S,
        heads: BTreeMap<u64, Vec<Hash>>,
        progress: Option<Box<dyn FnMut(Progress) + 'a>>,
        expectations: Expectations,
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
            missing_outcomes: Vec::new(),
            intact: start,
            sure: start,
            complete: true,
            pruned: 0,
            pruned_by: None,
            unsigned: false,
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
            expectations,
            total: 0,
            expected: 0,
            prev: Some(Hash::ZERO),
            open: BTreeSet::new(),
            last_time: None,
            kinds: [0; Kind::COUNT],
            next: segment,
            pruned: None,
            recorded_pruned: false,
            names_key: false,
            signing: BTreeSet::new(),
            stopped: false,
            odd_policy: false,
            at: VerifyPosition { segment, last: true, line: 0, offset: 0, before: 0, over: false },
            before: start,
            spare: Vec::new(),
        }
    }

    /// Reads all segments. The threads process lines while this one combines the results of earlier
    /// ones.
    fn read(&mut self, segments: &BTreeMap<Segment, u64>, mut workers: Workers) -> io::Result<()> {
        let last = segments.keys().next_back().copied();
        let mut steps = VecDeque::new();
        for (segment, length) in segments {
            steps.push_back(Step::Enter(*segment, Some(*segment) == last));
            let mut cutter = match self.source.open(&segment.to_string()) {
                Ok(file) => PieceReader::new(file.take(*length)),
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
                // The rest is ignored, whatever its length.
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
        let many = self.report.damages.len() >= Report::MAX_DAMAGES;
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

    /// Reports damage after which the chain is no longer intact.
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

    fn take_faults(&mut self) {
        self.report.damages.extend(self.expectations.faults());
    }

    fn tell(&mut self) {
        let bytes = self.report.bytes + self.at.offset;
        if let Some(progress) = &mut self.progress {
            progress(Progress { bytes, total: self.total });
        }
    }
}
