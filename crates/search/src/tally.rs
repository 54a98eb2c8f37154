//! What a search counts on its way, and what makes it stop.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::{Follower, model::Position};

/// Milliseconds between two words of how far a search is.
const BETWEEN: u64 = 200;
/// Nothing was told so far.
const NEVER: u64 = u64::MAX;

/// Why something that the agent may see was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skipped {
    /// A person would have to be asked before it may be read.
    Ask,
    /// It may not be read.
    Denied,
    /// It holds a secret and is not read for that.
    Secret,
    /// It is larger than what may be read.
    TooLarge,
    /// It is not text.
    Binary,
    /// It is a link, which a search does not follow.
    Symlink,
    /// It is a FIFO, a socket or a device.
    Special,
    /// Another file system is mounted there.
    Mount,
    /// Its name is not UTF-8.
    NotUtf8,
    /// It lies deeper than a search looks.
    TooDeep,
    /// It went or changed while it was looked at.
    Changed,
    /// The operating system does not let it be read.
    Unreadable,
    /// A `.gitignore` that cannot be heeded: too large, or content that may not be read.
    Gitignore,
    /// A `.gitignore` ignores it.
    Ignored,
}

impl Skipped {
    /// Every reason.
    pub const ALL: [Self; 14] = [
        Self::Ask,
        Self::Denied,
        Self::Secret,
        Self::TooLarge,
        Self::Binary,
        Self::Symlink,
        Self::Special,
        Self::Mount,
        Self::NotUtf8,
        Self::TooDeep,
        Self::Changed,
        Self::Unreadable,
        Self::Gitignore,
        Self::Ignored,
    ];

    /// The word in replies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Denied => "denied",
            Self::Secret => "secret",
            Self::TooLarge => "tooLarge",
            Self::Binary => "binary",
            Self::Symlink => "symlink",
            Self::Special => "special",
            Self::Mount => "mount",
            Self::NotUtf8 => "notUtf8",
            Self::TooDeep => "tooDeep",
            Self::Changed => "changed",
            Self::Unreadable => "unreadable",
            Self::Gitignore => "gitignore",
            Self::Ignored => "ignored",
        }
    }
}

/// Why a search ended before it had looked everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It found as many results as it may.
    Results,
    /// Its time was over.
    Time,
    /// Its answer would become too large.
    Size,
    /// Whoever asked gave it up.
    Cancelled,
}

impl Stopped {
    const ALL: [Self; 4] = [Self::Results, Self::Time, Self::Size, Self::Cancelled];

    /// The word in replies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Results => "results",
            Self::Time => "time",
            Self::Size => "size",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a search tells of itself besides its results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files whose content was searched.
    pub searched: u64,
    /// What the agent may see and was passed over, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// Why it ended early, if it did; the results are some of those there are.
    pub stopped: Option<Stopped>,
    /// The last result of the page, if there are more after it.
    pub next: Option<Position>,
}

/// What bounds a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long it may take.
    pub(super) time: Duration,
    /// How many directories deep beneath its start it looks.
    pub(super) depth: usize,
    /// Most results.
    pub(super) results: u64,
    /// Most bytes of lines in the answer.
    pub(super) bytes: u64,
}

impl Limits {
    const TIME: Duration = Duration::from_secs(30);
    const DEPTH: usize = 512;
    const BYTES: u64 = 8 << 20;

    pub(super) fn new(asked: Option<u64>, default: u64, most: u64) -> Self {
        let results = asked.unwrap_or(default).min(most);
        Self { time: Self::TIME, depth: Self::DEPTH, results, bytes: Self::BYTES }
    }
}

/// The counts of a search under way, shared by its threads.
pub(super) struct Tally<'f> {
    limits: Limits,
    follower: &'f dyn Follower,
    begun: Instant,
    end: Instant,
    /// Entries that may be seen and were looked at, and milliseconds after the
    /// beginning when that was told.
    looked: AtomicU64,
    told: AtomicU64,
    skipped: [AtomicU64; Skipped::ALL.len()],
    searched: AtomicU64,
    results: AtomicU64,
    bytes: AtomicU64,
    /// Zero, or one more than the place in [`Stopped::ALL`].
    stopped: AtomicU8,
}

impl<'f> Tally<'f> {
    pub(super) fn new(limits: Limits, follower: &'f dyn Follower) -> Self {
        let now = Instant::now();
        Self {
            limits,
            follower,
            begun: now,
            looked: AtomicU64::new(0),
            told: AtomicU64::new(NEVER),
            end: now.checked_add(limits.time).unwrap_or(now),
            skipped: std::array::from_fn(|_| AtomicU64::new(0)),
            searched: AtomicU64::new(0),
            results: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stopped: AtomicU8::new(0),
        }
    }

    /// Counts something that was passed over.
    pub(super) fn skip(&self, why: Skipped) {
        if let Some(count) = self.skipped.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a file that was searched.
    pub(super) fn searched(&self) {
        self.searched.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes room for one result of `bytes` bytes; false, and the search stops,
    /// when there is none.
    pub(super) fn result(&self, bytes: usize) -> bool {
        if self.results.fetch_add(1, Ordering::Relaxed) >= self.limits.results {
            self.stop(Stopped::Results);
            return false;
        }
        self.room(bytes)
    }

    /// Takes room for `bytes` bytes; false, and the search stops, when there is
    /// none.
    pub(super) fn room(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) > self.limits.bytes {
            self.stop(Stopped::Size);
            return false;
        }
        true
    }

    /// Directories deeper than this beneath the start are not entered.
    pub(super) fn depth(&self) -> usize {
        self.limits.depth
    }

    /// Whether the search is to go on; looks at the clock.
    pub(super) fn goes_on(&self) -> bool {
        if self.is_stopped() {
            return false;
        }
        let now = Instant::now();
        if !self.follower.is_wanted() {
            self.stop(Stopped::Cancelled);
            return false;
        }
        if now < self.end {
            self.tell(now);
            return true;
        }
        self.stop(Stopped::Time);
        false
    }

    /// Counts entries that were looked at, of which the agent may know.
    pub(super) fn looked(&self, entries: usize) {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.looked.fetch_add(entries, Ordering::Relaxed);
    }

    /// Whether whoever asked gave it up.
    pub(super) fn is_cancelled(&self) -> bool {
        self.summary().stopped == Some(Stopped::Cancelled)
    }

    /// Tells the follower how far it is, now and then.
    fn tell(&self, now: Instant) {
        let passed = now.saturating_duration_since(self.begun).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let told = self.told.load(Ordering::Relaxed);
        let looked = self.looked.load(Ordering::Relaxed);
        let due = looked > 0 && (told == NEVER || passed >= told.saturating_add(BETWEEN));
        if due
            && self
                .told
                .compare_exchange(told, passed, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.follower.progress(looked);
        }
    }

    /// Whether the search is to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    fn stop(&self, why: Stopped) {
        // Whatever came first is the reason.
        let _ =
            self.stopped.compare_exchange(0, why as u8 + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// What the agent is told.
    pub(super) fn summary(&self) -> Summary {
        let stopped = usize::from(self.stopped.load(Ordering::Relaxed)).checked_sub(1);
        Summary {
            searched: self.searched.load(Ordering::Relaxed),
            skipped: Skipped::ALL
                .into_iter()
                .zip(&self.skipped)
                .map(|(why, count)| (why, count.load(Ordering::Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            stopped: stopped.and_then(|place| Stopped::ALL.get(place).copied()),
            next: None,
        }
    }
}
