//! The sender of a log to one target.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use portcullis_audit::{HISTORY, KEYS, NEWEST, PACKED, Segment};

use super::{
    Shutdown,
    completeness::look,
    destinations::{GONE, begin, existing, within},
    log::{self, CheckpointExtent, LogEnd, SegmentReader},
    progress::{FOLDER, ShipProgress, file_name, known, shortened},
    target::Store,
};
use crate::{
    app::state_directory, config::audit::Target, gateway::random_hex, model::Escaped,
    operator_files,
};

/// Interval of checks of the log.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure: doubled each time, from the first to the second value.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Bytes of the open segment that are sent at once.
const MAX_PIECE: u64 = 4 << 20;

/// Interval of checks, at the end, if another process still sends.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The sender of the records that the newest checkpoint covers.
#[derive(PartialEq, Eq)]
pub(super) enum Sent {
    /// All of them are sent.
    All,
    /// Another process sends, perhaps up to an earlier checkpoint.
    ByAnother,
}

/// Sends a log to one target.
pub(super) struct Shipper {
    log: SegmentReader,
    path: PathBuf,
    state: cap_std::fs::Dir,
    name: String,
    target: Target,
    store: Option<Box<dyn Store>>,
    pub(super) progress: ShipProgress,
    /// The error of reading the progress, if something was sent.
    unknown: Option<String>,
    /// True if each attempt looks for all sealed segments, also where that is expensive.
    pub(super) checks_segments: bool,
}

/// Sends in the background until the end is near. All contact with a target happens on this
/// thread, because it may be slow.
pub(super) fn send_until_end(state: &Path, target: &Target, ending: &Shutdown) {
    let (mut wait, mut seen) = (RETRY_INTERVALS.0, None);
    let (mut shipper, mut last_reason) = (None, None);
    loop {
        let last = ending.is_near();
        if shipper.is_none() {
            shipper = match Shipper::new(state, target) {
                Ok(shipper) => Some(shipper),
                Err(reason) => {
                    warn_once(target, &reason, &mut last_reason);
                    None
                }
            };
        }
        let sent = shipper.as_mut().and_then(|shipper| shipper.send_new(&mut seen).ok());
        let pause = match sent {
            // The other process may have begun before the newest checkpoint.
            Some(Sent::ByAnother) if last => {
                thread::sleep(LOCK_INTERVAL);
                continue;
            }
            _ if last => return,
            Some(_) => {
                wait = RETRY_INTERVALS.0;
                POLL_INTERVAL
            }
            None => {
                let pause = wait;
                wait = (wait * 2).min(RETRY_INTERVALS.1);
                pause
            }
        };
        ending.wait(pause);
    }
}

/// Warns why a copy cannot be begun, once for each reason. Other failures are stored in the
/// target's progress.
fn warn_once(target: &Target, reason: &str, last_reason: &mut Option<String>) {
    if last_reason.as_deref() != Some(reason) {
        errln!(
            "portcullis: warning: the audit log is not copied to {}: {}",
            Escaped(&target.shown()),
            Escaped(reason)
        );
        *last_reason = Some(reason.to_owned());
    }
}

impl Shipper {
    pub(super) fn new(state: &Path, target: &Target) -> Result<Self, String> {
        refuse_overlap(state, target)?;
        let (_, state_dir) = state_directory::open(state).map_err(|f| f.message().to_owned())?;
        state_dir.create_dir_all(FOLDER).map_err(|error| error.to_string())?;
        let name = file_name(target);
        let mut shipper = Self {
            log: SegmentReader::new(state),
            path: state.to_owned(),
            state: state_dir,
            name,
            target: target.clone(),
            store: None,
            progress: ShipProgress::default(),
            unknown: None,
            checks_segments: false,
        };
        shipper.read_progress();
        Ok(shipper)
    }

    /// Reads the stored progress. Records sent without a known progress are sent again, with a
    /// warning.
    fn read_progress(&mut self) {
        let (progress, unknown) = match known(&self.path, &self.target) {
            Ok(progress) => (progress.unwrap_or_default(), None),
            Err(reason) => (ShipProgress::default(), Some(reason)),
        };
        // The open store is that of the former copy.
        if progress.copy != self.progress.copy {
            self.store = None;
        }
        self.progress = ShipProgress { to: self.target.shown(), ..progress };
        self.unknown = unknown;
    }

    /// Takes the lock that keeps other processes from sending to this target; `None` if one has
    /// it.
    fn lock(&self) -> Result<Option<cap_std::fs::File>, String> {
        let mut options = cap_std::fs::OpenOptions::new();
        let options = options.create(true).write(true);
        let file = self.state.open_with(format!("{}.lock", self.name), options);
        let file = file.map_err(|error| error.to_string())?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.to_string()),
        }
    }

    /// Sends if there is another checkpoint than the one `seen`.
    fn send_new(&mut self, seen: &mut Option<(i64, i64, u64)>) -> Result<Sent, String> {
        // Without a new checkpoint there is nothing to read.
        let newest = self.log.mark();
        if newest == *seen {
            return Ok(Sent::All);
        }
        let sent = self.send_alone().inspect_err(|_kept_in_progress| self.store = None)?;
        if sent == Sent::All {
            *seen = newest;
        }
        Ok(sent)
    }

    /// Sends, unless another process does.
    pub(super) fn send_alone(&mut self) -> Result<Sent, String> {
        let Some(_lock) = self.lock()? else { return Ok(Sent::ByAnother) };
        // Another process may have sent meanwhile.
        self.read_progress();
        self.send().map(|()| Sent::All)
    }

    /// Sends the records that the newest checkpoint covers.
    fn send(&mut self) -> Result<(), String> {
        let sent = self.send_all().map_err(|reason| shortened(&reason));
        self.progress.error = sent.as_ref().err().cloned();
        let kept = self.keep();
        sent.and(kept)
    }

    fn send_all(&mut self) -> Result<(), String> {
        let Some(CheckpointExtent { note, size, end }) = self.log.covered()? else {
            return match self.progress.records {
                0 => Ok(()),
                _ => Err(
                    "the log has no checkpoint any more: `portcullis audit verify` says what is \
                     missing"
                        .to_owned(),
                ),
            };
        };
        if self.progress.copy.is_empty() {
            self.begin()?;
            if let Some(reason) = self.unknown.take() {
                let copy = self.place().shown();
                errln!(
                    "portcullis: warning: {}: another copy is begun, {}; former ones stay",
                    Escaped(&reason),
                    Escaped(&copy)
                );
            }
        } else if let Some(reason) = self.obstacle(size, &end)? {
            let former = self.place().shown();
            self.begin()?;
            let copy = self.place().shown();
            errln!(
                "portcullis: warning: {}: {reason}: another copy is begun, {}; the former one stays",
                Escaped(&former),
                Escaped(&copy)
            );
        }
        let begun = log::now();
        let others = self.log.others(self.progress.records, size, self.progress.at)?;
        if size == self.progress.records && others.is_empty() {
            return Ok(());
        }
        // Without the key a part of a copy counts as damaged.
        self.put_own(KEYS)?;
        while self.progress.segment < end.segment {
            self.seal()?;
        }
        while self.progress.offset < end.offset {
            self.piece(end.offset)?;
        }
        for name in others.iter().filter(|name| ![KEYS, NEWEST].contains(&name.as_str())) {
            self.put_own(name)?;
        }
        self.put_newest(note)?;
        let ShipProgress { records, end: last, at, .. } = &mut self.progress;
        (*records, *last, *at) = (size, Some(end), begun);
        Ok(())
    }

    /// Returns the location of the copy.
    pub(super) fn place(&self) -> Target {
        match self.progress.copy.as_str() {
            "" => self.target.clone(),
            copy => within(&self.target, copy),
        }
    }

    /// Opens the copy; `None` if it is gone.
    fn existing(&mut self) -> Result<Option<&mut dyn Store>, String> {
        if self.store.is_none() {
            self.store = existing(&self.place())?;
        }
        Ok(self.store.as_mut().map(|store| store.as_mut() as &mut dyn Store))
    }

    fn store(&mut self) -> Result<&mut dyn Store, String> {
        self.existing()?.ok_or_else(|| GONE.to_owned())
    }

    /// Begins a copy at a new location, apart from other logs and earlier copies of this one.
    fn begin(&mut self) -> Result<(), String> {
        let segment = self.log.first_segment()?;
        let id = random_hex::<4>().map_err(|errno| errno.to_string())?;
        let copy = format!("{}-{id}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
        self.store = Some(begin(&within(&self.target, &copy))?);
        self.progress =
            ShipProgress { to: self.target.shown(), copy, segment, ..ShipProgress::default() };
        self.keep()
    }

    /// Returns the reason why the copy cannot be continued up to `size` records, which end at
    /// `until`, if any.
    fn obstacle(&mut self, size: u64, until: &LogEnd) -> Result<Option<&'static str>, String> {
        let ShipProgress { records, segment, offset, piece, end, .. } = self.progress.clone();
        if segment < self.log.first_segment()? {
            return Ok(Some("records that the copy does not have were pruned"));
        }
        let is_same = match &end {
            Some(sent) => {
                self.log.end(sent.segment, sent.offset)?.is_none_or(|(now, _)| now == *sent)
            }
            None => true,
        };
        let is_beyond = (segment, offset.saturating_add(piece)) > (until.segment, until.offset);
        if size < records || is_beyond || !is_same {
            return Ok(Some("the log does not go on from what was sent"));
        }
        let (progress, checks_segments) = (self.progress.clone(), self.checks_segments);
        let Some(store) = self.existing()? else { return Ok(Some(GONE)) };
        let is_near = store.is_near();
        let sealed = progress.sealed.keys().copied().filter(|_| is_near || checks_segments);
        let found = match look(store, &progress, sealed) {
            // A server that takes records need not return them. A prune relies on none of this.
            Err(_) if !is_near => None,
            found => found?,
        };
        Ok(found.is_some_and(|found| !found.is_whole).then_some(GONE))
    }

    /// Sends the newest checkpoint. A target that loses it at once is no copy: otherwise each
    /// attempt would begin another one.
    fn put_newest(&mut self, note: Vec<u8>) -> Result<(), String> {
        self.put(NEWEST, note)?;
        match self.store()?.checkpoint() {
            Ok(Some(None)) => Err(format!(
                "it accepted `{NEWEST}` and says now that there is none: a target returns what it \
                 was sent, or refuses reads (401, 403, 405 or 501)"
            )),
            _ => Ok(()),
        }
    }

    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        self.store()?.put(name, bytes)
    }

    /// Sends a file of the log that is no segment, if it exists.
    fn put_own(&mut self, name: &str) -> Result<(), String> {
        match self.log.small(name)? {
            Some(bytes) => self.put(name, bytes),
            None => Ok(()),
        }
    }

    /// Sends a full segment, compressed, with the checkpoint of its end.
    fn seal(&mut self) -> Result<(), String> {
        let segment = Segment(self.progress.segment);
        let packed = self.log.compressed(segment)?;
        let length = packed.len() as u64;
        self.put(&format!("{segment}{PACKED}"), packed)?;
        self.store()?.sealed(&segment.to_string())?;
        let next = segment.next();
        (self.progress.segment, self.progress.offset, self.progress.piece) = (next.0, 0, 0);
        self.progress.sealed.insert(segment.0, length);
        let (size, name) = (next.first(), format!("{HISTORY}/{}", next.first()));
        // With that checkpoint the copy is a valid log until the rest is sent.
        if let Some(note) = self.log.small(&name)?.filter(|_| size > self.progress.records) {
            self.put(&name, note.clone())?;
            self.put_newest(note)?;
            self.progress.records = size;
            self.progress.end = self.log.end(next.0, 0)?.map(|(end, _)| end);
        }
        self.keep()
    }

    /// Sends a piece of the open segment.
    fn piece(&mut self, until: u64) -> Result<(), String> {
        let segment = Segment(self.progress.segment);
        let offset = self.progress.offset;
        // A server may finish a failed request after the next one, which sends the same bytes then.
        let length = match self.progress.piece {
            0 => (until - offset).min(MAX_PIECE),
            length => length,
        };
        let bytes = self.log.part(segment, offset, length)?;
        self.progress.piece = length;
        self.keep()?;
        self.store()?.piece(&segment.to_string(), offset, bytes)?;
        (self.progress.offset, self.progress.piece) = (offset + length, 0);
        self.keep()
    }

    /// Stores the progress.
    fn keep(&self) -> Result<(), String> {
        // An unreadable progress is preserved, and reported, until another copy is begun.
        if self.unknown.is_some() && self.progress.copy.is_empty() {
            return Ok(());
        }
        let json = serde_json::to_string(&self.progress).map_err(|error| error.to_string())?;
        let temp = format!("{}.tmp", self.name);
        self.state
            .write(&temp, json)
            .and_then(|()| self.state.rename(&temp, &self.state, format!("{}.json", self.name)))
            .map_err(|error| error.to_string())
    }
}

/// Refuses a target in the state directory: its files would be taken for the log's own.
pub(super) fn refuse_overlap(state: &Path, target: &Target) -> Result<(), String> {
    let (Ok(state), true) = (operator_files::canonicalize(state), target.to.starts_with('/'))
    else {
        return Ok(());
    };
    let path = PathBuf::from(&target.to);
    let real = path.ancestors().find_map(|path| operator_files::canonicalize(path).ok());
    match real.is_some_and(|real| real.starts_with(&state)) {
        true => Err(format!("{} is in the state directory: name a place elsewhere", target.to)),
        false => Ok(()),
    }
}
