//! A parallel reader of the log, one thread per segment, that returns results in the order of the
//! log.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Read as _},
    ops::ControlFlow,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use portcullis_audit::{LineError, MAX_JUNK, MAX_LINE, RecordView, SEGMENT_RECORDS, Source as _};

use super::{
    Filter, Log,
    change::Change,
    index::{Builder, Identity, Index, Line, forget_index, segment_file},
    log::Part,
};

/// Maximum number of records in a batch. Together with the number of waiting batches, not with the
/// log's size, it bounds the memory.
const MAX_BATCH_RECORDS: usize = 256;
/// Maximum number of bytes in a batch: a record may have 1 MiB.
const MAX_BATCH_BYTES: usize = 1 << 20;
const MAX_WAITING_BATCHES: usize = 4;
/// Maximum number of segments that are searched as fast without an index.
const MAX_UNINDEXED_SEGMENTS: usize = 1;
/// Number of bytes between two reports of progress.
const REPORT_INTERVAL: u64 = 1 << 20;

/// Maximum number of bytes of records that a view stores: an untrusted log may be of any size.
pub(super) const MAX_STORED_BYTES: usize = 128 << 20;
/// Estimated bytes that a stored record occupies besides its own.
pub(super) const OVERHEAD: usize = 256;

/// The order of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanOrder {
    /// The oldest record first.
    Oldest,
    /// The newest segment first, and the oldest record of each first.
    NewestSegment,
}

/// The unreadable parts of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Number of records that were read.
    pub records: u64,
    /// Descriptions of damage, which may contain untrusted text; at most
    /// [`Scanned::MAX_DESCRIBED`].
    pub damages: Vec<String>,
    /// Number of damages.
    pub damaged: u64,
    /// Number of those damages that are records of another version of the format.
    pub newer: u64,
}

impl Scanned {
    /// Maximum number of damages that are described.
    pub const MAX_DESCRIBED: usize = 10;

    pub(super) fn damage(&mut self, words: impl FnOnce() -> String) {
        if self.damages.len() < Self::MAX_DESCRIBED {
            self.damages.push(words());
        }
        self.damaged += 1;
    }

    pub(super) fn add(&mut self, other: Self) {
        self.records += other.records;
        self.damaged += other.damaged;
        self.newer += other.newer;
        let room = Self::MAX_DESCRIBED.saturating_sub(self.damages.len());
        self.damages.extend(other.damages.into_iter().take(room));
    }
}

/// A callback for a record and its line. It is not generic, so that the reader of segments is
/// compiled once.
type Visitor<'f> = &'f mut dyn FnMut(&RecordView<'_>, &[u8]) -> ControlFlow<()>;

/// The destination of a thread's results.
struct Sink<'s, T> {
    batch: Vec<T>,
    /// Bytes of the records in it.
    bytes: usize,
    queue: &'s Queue<T>,
    turns: BatchSignals<'s>,
}

/// Batches of one segment that have not been consumed.
type Queue<T> = Mutex<VecDeque<Vec<T>>>;

/// Signals that a batch is ready, and blocks while too many are. It does not depend on the type of
/// items, so that threads and channels are compiled once.
struct BatchSignals<'s> {
    out: SyncSender<()>,
    stop: &'s AtomicBool,
}

impl BatchSignals<'_> {
    fn tell(&self) -> ControlFlow<()> {
        if self.stop.load(Ordering::Relaxed) || self.out.send(()).is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl<T> Sink<'_, T> {
    /// Adds an item made of this number of bytes; `Break` if no more are wanted.
    fn put(&mut self, item: T, bytes: usize) -> ControlFlow<()> {
        self.batch.push(item);
        self.bytes += bytes;
        if self.batch.len() < MAX_BATCH_RECORDS && self.bytes < MAX_BATCH_BYTES {
            ControlFlow::Continue(())
        } else {
            self.flush()
        }
    }

    fn flush(&mut self) -> ControlFlow<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(batch);
        self.turns.tell()
    }
}

impl Log {
    /// Calls `pick` on the records that match `filter`, in several threads, and `each` on its
    /// results, on this thread and in order.
    ///
    /// # Errors
    /// If the log cannot be read. Damage is not an error: it is returned.
    pub fn scan<T: Send>(
        &self,
        filter: &Filter,
        order: ScanOrder,
        pick: impl Fn(&RecordView<'_>, &[u8]) -> Option<T> + Sync,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> io::Result<Scanned> {
        let work = |part: Part, sink: &mut Sink<'_, T>| {
            self.read(part, filter, &mut |record, line| match pick(record, line) {
                Some(item) => sink.put(item, line.len()),
                None => ControlFlow::Continue(()),
            })
        };
        self.run(filter, order, &work, &mut each)
    }

    /// Adds up the records that match `filter`: `add` in several threads, starting from the default
    /// for each segment, and `merge` on this thread in the order of the log.
    ///
    /// # Errors
    /// As [`Log::scan`].
    pub fn fold<A: Default + Send>(
        &self,
        filter: &Filter,
        add: impl Fn(&mut A, &RecordView<'_>, &[u8]) + Sync,
        mut merge: impl FnMut(A),
    ) -> io::Result<Scanned> {
        let work = |part: Part, sink: &mut Sink<'_, A>| {
            let mut sum = A::default();
            let found = self.read(part, filter, &mut |record, line| {
                add(&mut sum, record, line);
                ControlFlow::Continue(())
            });
            let _ = sink.put(sum, 0);
            found
        };
        self.run(filter, ScanOrder::Oldest, &work, &mut |sum| {
            merge(sum);
            ControlFlow::Continue(())
        })
    }

    /// Returns what `pick` makes of the newest record that matches `filter` and of which it makes
    /// something. Reads no older segment than that record's.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn newest<T>(
        &self,
        filter: &Filter,
        mut pick: impl FnMut(&RecordView<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        for part in self.parts.iter().rev() {
            let mut newest = None;
            self.read(*part, filter, &mut |record, _line| {
                newest = pick(record).or(newest.take());
                ControlFlow::Continue(())
            })?;
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }

    /// Runs `work` on every segment and `each` on its results.
    fn run<T: Send>(
        &self,
        filter: &Filter,
        order: ScanOrder,
        work: &(dyn Fn(Part, &mut Sink<'_, T>) -> io::Result<Scanned> + Sync),
        each: &mut dyn FnMut(T) -> ControlFlow<()>,
    ) -> io::Result<Scanned> {
        let mut parts = self.parts.clone();
        if order == ScanOrder::NewestSegment {
            parts.reverse();
        }
        let parts: Vec<(Part, Queue<T>)> =
            parts.into_iter().map(|part| (part, Queue::default())).collect();
        let produce = |at: usize, turns: BatchSignals<'_>| match parts.get(at) {
            Some((part, queue)) => {
                let mut sink = Sink { batch: Vec::new(), bytes: 0, queue, turns };
                let found = work(*part, &mut sink);
                let _ = sink.flush();
                found
            }
            None => Ok(Scanned::default()),
        };
        let mut consume = |at: usize| {
            let batch = parts.get(at).and_then(|(_, queue)| {
                queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
            });
            batch.into_iter().flatten().try_for_each(&mut *each)
        };
        // A scan from a later record on asks for none before it.
        let first = self.parts.first().map_or(0, |part| part.segment.first());
        let mut all = match &filter.records {
            Some(wanted) if *wanted.start() >= first => self.damages_between(),
            _ => self.damages()?,
        };
        all.add(self.in_order(parts.len(), &produce, &mut consume)?);
        Ok(all)
    }

    /// Runs `produce` on the numbers below `count` in several threads, and `consume` on this
    /// thread, in the order of the numbers, for each of its batches.
    fn in_order(
        &self,
        count: usize,
        produce: &(dyn Fn(usize, BatchSignals<'_>) -> io::Result<Scanned> + Sync),
        consume: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> io::Result<Scanned> {
        let (senders, receivers): (Vec<_>, Vec<Receiver<()>>) = (0..count)
            .map(|_| {
                let (sender, receiver) = sync_channel(MAX_WAITING_BATCHES);
                (Mutex::new(Some(sender)), receiver)
            })
            .unzip();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results: Vec<Mutex<Option<io::Result<Scanned>>>> =
            (0..count).map(|_| Mutex::new(None)).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(count);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(sender), Some(result)) = (senders.get(at), results.get(at))
                        else {
                            return;
                        };
                        let out = sender.lock().unwrap_or_else(PoisonError::into_inner).take();
                        let Some(out) = out else { return };
                        if stop.load(Ordering::Relaxed) {
                            continue;
                        }
                        let found = produce(at, BatchSignals { out, stop: &stop });
                        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                    }
                });
            }
            for (at, receiver) in receivers.into_iter().enumerate() {
                if stop.load(Ordering::Relaxed) {
                    // Dropping the receiver wakes a sender that waits.
                    drop(receiver);
                    continue;
                }
                for () in receiver {
                    if consume(at).is_break() {
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
        });
        let mut all = Scanned::default();
        for result in results {
            let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = result {
                all.add(found?);
            }
        }
        Ok(all)
    }

    /// Reads one segment from its first to its last line.
    fn read(&self, part: Part, filter: &Filter, found: Visitor<'_>) -> io::Result<Scanned> {
        let mut scanned = Scanned::default();
        match self.read_part(part, filter, &mut scanned, found) {
            // A damaged compressed segment hides none of the others.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                scanned.damage(|| format!("{} cannot be read to its end: {error}", part.segment));
            }
            read => read?,
        }
        Ok(scanned)
    }

    fn read_part(
        &self,
        part: Part,
        filter: &Filter,
        scanned: &mut Scanned,
        found: Visitor<'_>,
    ) -> io::Result<()> {
        if let Some(wanted) = &filter.records {
            let first = part.segment.first();
            if *wanted.end() < first || *wanted.start() >= part.segment.next().first() {
                return Ok(());
            }
        }
        let Some(directory) = self.index_for(part, filter) else {
            return self.lines(part, scanned, &mut |record, line| {
                if filter.matches(record) { found(record, line) } else { ControlFlow::Continue(()) }
            });
        };
        let path = segment_file(&self.directory, part.segment);
        let index = Identity::of(&path).ok();
        let index = index.and_then(|of| Index::open(directory, part.segment, of));
        if let Some(lines) = index.and_then(|index| index.candidates(filter)) {
            self.tell(part.length);
            return self.some_lines(part, &lines, scanned, filter, found);
        }
        let mut builder = Some(Builder::new(path)?);
        self.lines(part, scanned, &mut |record, line| {
            if let Some(builder) = &mut builder {
                builder.add(record, line);
            }
            let go_on = if filter.matches(record) {
                found(record, line)
            } else {
                ControlFlow::Continue(())
            };
            if go_on.is_break() {
                builder = None;
            }
            go_on
        })?;
        if let Some(builder) = builder.filter(|_| scanned.damaged == 0)
            && let Err(error) = builder.save(directory, part.segment).and_then(|()| {
                let first = self.parts.first().map_or(part.segment, |first| first.segment);
                forget_index(directory, first)
            })
        {
            // The search continues without an index, such as on a full disk.
            tracing::debug!(%error, segment = %part.segment, "the index was not brought up to date");
        }
        Ok(())
    }

    /// Returns the directory of indexes, if an index pays.
    fn index_for(&self, part: Part, filter: &Filter) -> Option<&Path> {
        let pays =
            part.sealed && self.parts.len() > MAX_UNINDEXED_SEGMENTS && filter.asks_for_values();
        self.index.as_deref().filter(|_| pays)
    }

    /// Reads the lines of a segment that an index selected.
    fn some_lines(
        &self,
        part: Part,
        lines: &[Line],
        scanned: &mut Scanned,
        filter: &Filter,
        found: Visitor<'_>,
    ) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let Part { segment, length, .. } = part;
        // Lines are read in order, so that adjacent ones need no seek.
        let mut file = BufReader::with_capacity(1 << 14, self.source.open(&segment.to_string())?);
        let (mut at, mut line) = (0, Vec::new());
        for wanted in lines {
            let end = wanted.offset.saturating_add(wanted.length);
            let forward = wanted.offset.checked_sub(at).and_then(|by| i64::try_from(by).ok());
            let fits = end < length && wanted.length <= MAX_LINE as u64;
            let (Some(forward), true) = (forward, fits) else {
                scanned.damage(|| format!("{segment} is not what its index says"));
                return Ok(());
            };
            file.seek_relative(forward)?;
            line.resize(usize::try_from(wanted.length).unwrap_or(0), 0);
            file.read_exact(&mut line)?;
            at = end;
            match RecordView::parse(&line) {
                Ok(record) if record.seq == segment.first().saturating_add(wanted.number) => {
                    scanned.records += 1;
                    if filter.matches(&record) && found(&record, &line).is_break() {
                        return Ok(());
                    }
                }
                _ => scanned.damage(|| {
                    format!("line {} of {segment} is not what its index says", wanted.number + 1)
                }),
            }
        }
        Ok(())
    }

    /// Calls `each` on every record of a segment and reports lines that are not records. After a
    /// gap the index of the next record counts: missing records hide none of the others, unless
    /// there are more than anyone could read.
    fn lines(&self, part: Part, scanned: &mut Scanned, each: Visitor<'_>) -> io::Result<()> {
        let Part { segment, length, sealed } = part;
        let file = self.source.open(&segment.to_string())?;
        let mut reader = BufReader::with_capacity(1 << 18, file.take(length));
        let mut line = Vec::with_capacity(1024);
        let (mut seq, mut number, mut told) = (segment.first(), 0_u64, 0_u64);
        let mut junk = 0_u64;
        loop {
            if junk > MAX_JUNK {
                scanned.damage(|| {
                    format!("{segment} has {junk} bytes that are no records: its rest was not read")
                });
                self.tell(told);
                return Ok(());
            }
            line.clear();
            let read = (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            told += read as u64;
            if told >= REPORT_INTERVAL {
                self.tell(std::mem::take(&mut told));
            }
            number += 1;
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                if line.len() > MAX_LINE {
                    scanned.damage(|| format!("line {number} of {segment} is too long"));
                    let rest = (&mut reader).take(MAX_JUNK).skip_until(b'\n')? as u64;
                    told += rest;
                    junk += read as u64 + rest;
                    seq = seq.saturating_add(1);
                    continue;
                }
                scanned.damage(|| format!("{segment} ends within its line {number}"));
                break;
            }
            match RecordView::parse(&line) {
                Ok(record) => {
                    if record.seq != seq {
                        scanned.damage(|| {
                            format!(
                                "line {number} of {segment} is record {}, not {seq}",
                                record.seq
                            )
                        });
                        seq = record.seq;
                    }
                    scanned.records += 1;
                    if Change::is_unreadable(&record) {
                        scanned.damage(|| {
                            format!("line {number} of {segment}: no gateway writes its path")
                        });
                    }
                    if each(&record, &line).is_break() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    junk += read as u64;
                    scanned.newer += u64::from(matches!(error, LineError::Version { .. }));
                    scanned.damage(|| format!("line {number} of {segment}: {error}"));
                }
            }
            seq = seq.saturating_add(1);
        }
        self.tell(told);
        if number > SEGMENT_RECORDS || (sealed && number < SEGMENT_RECORDS) {
            scanned.damage(|| format!("{segment} has {number} records, not {SEGMENT_RECORDS}"));
        }
        Ok(())
    }

    fn tell(&self, bytes: u64) {
        if let Some(progress) = &self.progress
            && bytes > 0
        {
            progress(bytes);
        }
    }
}
