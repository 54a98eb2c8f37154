//! Copies of the log elsewhere: what a signed checkpoint covers, in order, at
//! least once.
//!
//! Runs in the broker's threads, one for each target, and knows no gate: it
//! reads files. So a slow or dead target delays nothing but its own copy.
//! What it has sent is in `STATE/ship/`.

mod directory;
mod lag;
#[cfg(feature = "full")]
mod store;
mod target;

use std::{
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cap_std::fs::Dir;
use portcullis_audit::{
    Checkpoint, Directory, FRONTIER, HISTORY, Hash, KEYS, MAX_LINE, NEWEST, Note, PACKED, ROOTS,
    Segment, Source as _,
};
use serde::{Deserialize, Serialize};

use crate::{
    app::{
        failure::{Context as _, Failure},
        state_directory,
    },
    config::audit::Target,
    gateway::{AuditLog, random_hex},
    review::open_kept_in,
};

use target::{Seen, Store};

pub(crate) use lag::{Lag, lag};

/// How often the log is looked at.
const POLL: Duration = Duration::from_secs(1);
/// How long to wait after a failure: doubled each time, up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// How long a broker that is about to end waits for what came last to arrive.
const LAST: Duration = Duration::from_secs(3);
/// Bytes of the open segment that are sent at once.
const PIECE: u64 = 4 << 20;
/// Bytes of the largest file that is no segment: the roots of a million.
const MOST_SMALL: u64 = 64 << 20;

/// Opens the place of a copy. `is_new`: the copy begins.
fn open(place: &Target, is_new: bool) -> Result<Box<dyn Store>, String> {
    if place.to.starts_with('/') {
        let path = Path::new(&place.to);
        return Ok(Box::new(match is_new {
            true => directory::Copy::begin(path)?,
            false => directory::Copy::open(path),
        }));
    }
    #[cfg(feature = "full")]
    return Ok(Box::new(store::Remote::open(place)?));
    #[cfg(not(feature = "full"))]
    Err(format!(
        "this build of portcullis copies to directories only, not to {}: build it with `--features \
         full`",
        place.shown()
    ))
}

/// How far a target has everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Progress {
    /// The target.
    pub(crate) to: String,
    /// The place of the copy beneath the target.
    pub(crate) copy: String,
    /// The open segment, and the bytes of it that were sent.
    segment: u64,
    offset: u64,
    /// Records that the last checkpoint sent covers.
    pub(crate) records: u64,
    /// The last of these records.
    last: Option<Last>,
    /// When that was, in seconds since 1970.
    pub(crate) at: u64,
    /// Why the last attempt failed.
    pub(crate) error: Option<String>,
}

/// The end of what was sent, in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    segment: u64,
    offset: u64,
    leaf: Hash,
}

/// Where the records of a checkpoint end: a part of a line of `frontier`.
#[derive(Deserialize)]
struct Edge {
    size: u64,
    segment: u64,
    offset: u64,
}

/// Sends a log to one target.
struct Shipper {
    log: PathBuf,
    state: cap_std::fs::Dir,
    name: String,
    target: Target,
    store: Option<Box<dyn Store>>,
    progress: Progress,
}

/// The directory of what was sent, in the state directory.
const FOLDER: &str = "ship";

/// What is known of a target is in files of this name there.
fn file_name(target: &Target) -> String {
    let hash = Hash::of(target.to.as_bytes()).to_string();
    format!("{FOLDER}/{}", hash.get(..16).unwrap_or(&hash))
}

/// What is sent in the background, as long as this lives.
pub(crate) struct Shipping(Arc<Ending>);

/// Tells those who send that this is the end, and waits for them.
#[derive(Default)]
struct Ending {
    state: Mutex<Ends>,
    changed: Condvar,
}

#[derive(Default)]
struct Ends {
    near: bool,
    sending: usize,
}

impl Ending {
    /// Waits so long, or until the end is near: then `true`.
    fn wait(&self, patience: Duration) -> bool {
        let ends = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ends, patience, |ends| !ends.near);
        waited.unwrap_or_else(PoisonError::into_inner).0.near
    }

    fn is_near(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    fn change(&self, change: impl FnOnce(&mut Ends)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Shipping {
    /// Sends in the background.
    ///
    /// # Errors
    /// When this build cannot, or there can be no thread.
    pub(crate) fn start(state: &Path, targets: &[Target]) -> Result<Self, Failure> {
        let ending = Arc::new(Ending::default());
        for target in targets {
            // What this build cannot do is said before anything runs.
            if !target.to.starts_with('/') && !cfg!(feature = "full") {
                return Err(Failure::new(open(target, true).err().unwrap_or_default()));
            }
            let mut shipper = Shipper::new(state, target).or_fail("cannot copy the audit log")?;
            let ends = Arc::clone(&ending);
            ending.change(|ends| ends.sending += 1);
            thread::Builder::new()
                .name("ship".to_owned())
                .spawn(move || {
                    shipper.go_on(&ends);
                    ends.change(|ends| ends.sending -= 1);
                })
                .or_fail("cannot start a thread")?;
        }
        Ok(Self(ending))
    }

    /// Sends what the last checkpoint covers, and waits for that a moment; what
    /// a target does not take so soon, the next broker sends.
    pub(crate) fn finish(self) {
        self.finish_within(LAST);
    }

    /// The same for whoever has less time than a moment.
    pub(crate) fn finish_within(self, patience: Duration) {
        let end = Instant::now() + patience.min(LAST);
        self.0.change(|ends| ends.near = true);
        let mut ends = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        while ends.sending > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.changed.wait_timeout(ends, left);
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The targets for one of several logs: each has a place of its own there.
pub(crate) fn beneath(targets: &[Target], name: &str) -> Vec<Target> {
    targets.iter().map(|target| within(target, name)).collect()
}

/// A place of this name beneath a target.
fn within(target: &Target, name: &str) -> Target {
    Target { to: format!("{}/{name}", target.to.trim_end_matches('/')), ..target.clone() }
}

/// Sends what there is to every target: the place of each copy, and the records that it
/// has or why that failed.
pub(crate) fn once(state: &Path, targets: &[Target]) -> Vec<(String, Result<u64, String>)> {
    let send = |target: &Target| {
        let mut shipper = match Shipper::new(state, target) {
            Ok(shipper) => shipper,
            Err(error) => return (target.shown(), Err(error)),
        };
        let sent = match shipper.lock() {
            Ok(Some(_lock)) => shipper.send(),
            Ok(None) => Err("another process sends to it at the moment".to_owned()),
            Err(error) => Err(error),
        };
        (shipper.place().shown(), sent.map(|()| shipper.progress.records))
    };
    targets.iter().map(send).collect()
}

/// Records that a checkpoint covers.
fn records_of(note: &[u8]) -> Option<u64> {
    Checkpoint::of(&Note::parse(note).ok()?).ok().map(|checkpoint| checkpoint.size)
}

/// How far it was when that was last noted.
fn known(state: &Dir, name: &str) -> Option<Progress> {
    let mut bytes = Vec::new();
    let file = open_kept_in(state, &format!("{name}.json")).ok()?;
    file.take(MOST_SMALL).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

impl Shipper {
    fn new(state: &Path, target: &Target) -> Result<Self, String> {
        let (_, state_dir) = state_directory::open(state).map_err(|f| f.message().to_owned())?;
        state_dir.create_dir_all(FOLDER).map_err(|error| error.to_string())?;
        let name = file_name(target);
        // What cannot be read is sent again.
        let progress = known(&state_dir, &name).unwrap_or_default();
        Ok(Self {
            log: state.join("audit"),
            state: state_dir,
            name,
            target: target.clone(),
            store: None,
            progress: Progress { to: target.shown(), ..progress },
        })
    }

    /// Nobody else sends to this target while the file is open.
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

    fn go_on(&mut self, ending: &Ending) {
        let mut wait = BACK_OFF.0;
        let mut seen = None;
        loop {
            let last = ending.is_near();
            // Unchanged, there is nothing to read either.
            let newest = rustix::fs::stat(self.log.join(NEWEST))
                .ok()
                .map(|s| (s.st_mtime, s.st_mtime_nsec, s.st_ino));
            let sent = if newest == seen { Ok(()) } else { self.send_alone() };
            if last {
                return;
            }
            let pause = match sent {
                Ok(()) => {
                    (wait, seen) = (BACK_OFF.0, newest);
                    POLL
                }
                Err(_kept_in_progress) => {
                    self.store = None;
                    let pause = wait;
                    wait = (wait * 2).min(BACK_OFF.1);
                    pause
                }
            };
            ending.wait(pause);
        }
    }

    /// Sends, unless another process does.
    fn send_alone(&mut self) -> Result<(), String> {
        let Some(_lock) = self.lock()? else { return Ok(()) };
        // Another process may have gone on meanwhile.
        if let Some(known) = known(&self.state, &self.name) {
            self.progress = Progress { to: self.target.shown(), ..known };
        }
        self.send()
    }

    /// Sends what the newest checkpoint covers.
    fn send(&mut self) -> Result<(), String> {
        let sent = self.send_all();
        self.progress.error = sent.as_ref().err().cloned();
        let kept = self.keep();
        sent.and(kept)
    }

    fn send_all(&mut self) -> Result<(), String> {
        let Some((note, Edge { size, segment, offset })) = self.covered()? else { return Ok(()) };
        if self.progress.copy.is_empty() {
            self.begin()?;
        } else if let Some(why) = self.obstacle(size)? {
            let former = self.place().shown();
            self.begin()?;
            let copy = self.place().shown();
            tracing::warn!(former, copy, "{why}: another copy is begun, the former one stays");
        }
        if size == self.progress.records {
            return Ok(());
        }
        while self.progress.segment < segment {
            self.seal()?;
        }
        while self.progress.offset < offset {
            self.piece(offset)?;
        }
        let names = Directory::new(&self.log).history().map_err(|error| error.to_string())?;
        let sizes = names.iter().filter_map(|name| name.parse::<u64>().ok());
        let mut sizes: Vec<_> =
            sizes.filter(|at| *at > self.progress.records && *at <= size).collect();
        sizes.sort_unstable();
        let kept = sizes.iter().map(|size| format!("{HISTORY}/{size}"));
        for name in [KEYS.to_owned(), ROOTS.to_owned()].into_iter().chain(kept) {
            if let Some(bytes) = self.small(&name)? {
                self.put(&name, bytes)?;
            }
        }
        let last = self.last(segment, offset)?;
        self.put(NEWEST, note)?;
        self.progress.records = size;
        self.progress.last = last;
        self.progress.at =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(())
    }

    /// The place of the copy.
    fn place(&self) -> Target {
        match self.progress.copy.as_str() {
            "" => self.target.clone(),
            copy => within(&self.target, copy),
        }
    }

    fn store(&mut self) -> Result<&mut dyn Store, String> {
        let store = match self.store.take() {
            Some(store) => store,
            None => open(&self.place(), false)?,
        };
        Ok(self.store.insert(store).as_mut())
    }

    /// Begins a copy in a place that no other log has, nor what was sent of this one before.
    fn begin(&mut self) -> Result<(), String> {
        let id = random_hex::<4>().map_err(|errno| errno.to_string())?;
        let copy = format!("{}-{id}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
        self.store = Some(open(&within(&self.target, &copy), true)?);
        self.progress = Progress { to: self.target.shown(), copy, ..Progress::default() };
        self.keep()
    }

    /// Why the copy cannot be continued up to `size` records.
    fn obstacle(&mut self, size: u64) -> Result<Option<&'static str>, String> {
        let Progress { records, segment, offset, last, .. } = self.progress.clone();
        let is_same = match &last {
            Some(last) => self.last(last.segment, last.offset)?.is_none_or(|now| now == *last),
            None => true,
        };
        if size < records || !is_same {
            return Ok(Some("the log does not go on from what was sent"));
        }
        let seen = self.store()?.look(&Segment(segment).to_string(), offset)?;
        let Some(Seen { checkpoint, has_open_segment }) = seen else { return Ok(None) };
        let arrived = checkpoint.as_deref().and_then(records_of).unwrap_or(0);
        let is_there = has_open_segment && arrived >= records;
        Ok((!is_there).then_some("the copy is not there any more, or not whole"))
    }

    /// The record of the log that ends at `offset`; nothing where its segment is not there any more.
    fn last(&self, segment: u64, offset: u64) -> Result<Option<Last>, String> {
        // A segment without a record yet: the last one is in the one before.
        let (of, end) =
            if offset == 0 { (segment.saturating_sub(1), u64::MAX) } else { (segment, offset) };
        let mut file = match Directory::new(&self.log).open(&Segment(of).to_string()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut read = || {
            let end = end.min(file.seek(SeekFrom::End(0))?);
            let begin = end.saturating_sub(MAX_LINE as u64 + 1);
            file.seek(SeekFrom::Start(begin))?;
            let mut bytes = Vec::new();
            file.by_ref().take(end - begin).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        let bytes = read().map_err(|error| error.to_string())?;
        let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(Some(Last { segment, offset, leaf: Hash::leaf(line) }))
    }

    /// The newest checkpoint, its size and where that many records end.
    fn covered(&self) -> Result<Option<(Vec<u8>, Edge)>, String> {
        let Some(note) = self.small(NEWEST)? else { return Ok(None) };
        let checkpoint = Note::parse(&note).and_then(|note| Checkpoint::of(&note));
        let size = checkpoint.map_err(|error| error.to_string())?.size;
        let lines = self.small(FRONTIER)?.unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        let edges = lines.lines().filter_map(|line| serde_json::from_str::<Edge>(line).ok());
        // One that is being made: the next look finds it.
        let edge = edges.into_iter().find(|edge| edge.size == size);
        Ok(edge.map(|edge| (note, edge)))
    }

    fn small(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        match Directory::new(&self.log).open(name) {
            Ok(file) => {
                let mut bytes = Vec::new();
                let read = file.take(MOST_SMALL + 1).read_to_end(&mut bytes);
                read.map_err(|error| error.to_string())?;
                match bytes.len() as u64 {
                    0..=MOST_SMALL => Ok(Some(bytes)),
                    _ => Err(format!("`{name}` is damaged: it has more than {MOST_SMALL} bytes")),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        self.store()?.put(name, bytes)
    }

    /// Sends a full segment, compressed.
    fn seal(&mut self) -> Result<(), String> {
        let segment = Segment(self.progress.segment).to_string();
        let log = Directory::new(&self.log);
        let entries = log.list().map_err(|error| error.to_string())?;
        if let Some(entry) = entries.iter().find(|entry| entry.name == segment) {
            let file = log.open(&segment).map_err(|error| error.to_string())?;
            let mut packed = Vec::new();
            AuditLog::compress_segment(file, &mut packed, entry.length)
                .map_err(|error| error.to_string())?;
            self.put(&format!("{segment}{PACKED}"), packed)?;
            self.store()?.sealed(&segment)?;
        }
        // One that is not there was pruned.
        (self.progress.segment, self.progress.offset) = (self.progress.segment + 1, 0);
        self.keep()
    }

    /// Sends a piece of the open segment.
    fn piece(&mut self, until: u64) -> Result<(), String> {
        let segment = Segment(self.progress.segment).to_string();
        let offset = self.progress.offset;
        let length = (until - offset).min(PIECE);
        let mut bytes = Vec::new();
        let mut file =
            Directory::new(&self.log).open(&segment).map_err(|error| error.to_string())?;
        file.seek(SeekFrom::Start(offset))
            .and_then(|_at| file.take(length).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        if bytes.len() as u64 != length {
            return Err(format!("`{segment}` is shorter than its checkpoint says"));
        }
        self.store()?.piece(&segment, offset, bytes)?;
        self.progress.offset = offset + length;
        self.keep()
    }

    /// Remembers how far it is.
    fn keep(&self) -> Result<(), String> {
        let json = serde_json::to_string(&self.progress).map_err(|error| error.to_string())?;
        let temp = format!("{}.tmp", self.name);
        self.state
            .write(&temp, json)
            .and_then(|()| self.state.rename(&temp, &self.state, format!("{}.json", self.name)))
            .map_err(|error| error.to_string())
    }
}
