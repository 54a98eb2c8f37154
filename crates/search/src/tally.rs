//! Counts and limits of a search.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::{Follower, model::Position};

/// Milliseconds between two reports of progress.
const PROGRESS_INTERVAL_MS: u64 = 200;
/// The value before the first report.
const NO_REPORT_YET: u64 = u64::MAX;

/// Reasons why an entry that the agent may see was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skipped {
    /// A read of it requires an approval.
    Ask,
    /// It may not be read.
    Denied,
    /// It contains a secret, and so is not read.
    Secret,
    /// It exceeds the maximum size of a read.
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
    /// It is deeper than the maximum depth.
    TooDeep,
    /// It was removed or changed meanwhile.
    Changed,
    /// The operating system does not let it be read.
    Unreadable,
    /// A `.gitignore` that cannot be obeyed: too large, or content that may not be read.
    Gitignore,
    /// A `.gitignore` ignores it.
    Ignored,
}

impl Skipped {
    /// All reasons.
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

    /// Returns the name in replies and records.
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

/// Reasons why a search ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It reached the maximum number of results.
    Results,
    /// Its time is over.
    Time,
    /// Its reply would become too large.
    Size,
    /// The client cancelled it.
    Cancelled,
}

impl Stopped {
    const ALL: [Self; 4] = [Self::Results, Self::Time, Self::Size, Self::Cancelled];

    /// Returns the name in replies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Results => "results",
            Self::Time => "time",
            Self::Size => "size",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The result of a search besides the matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Number of files whose content was searched.
    pub searched: u64,
    /// Numbers of entries that the agent may see and that were skipped, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// The reason why it ended early, if it did; the results are then incomplete.
    pub stopped: Option<Stopped>,
    /// The position of the page's last result, if there are more after it.
    pub next: Option<Position>,
}

/// The limits of a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum duration.
    pub(super) time: Duration,
    /// Maximum depth of directories beneath its start.
    pub(super) depth: usize,
    /// Maximum number of results.
    pub(super) results: u64,
    /// Maximum number of bytes of lines in the reply.
    pub(super) bytes: u64,
}

impl Limits {
    const MAX_TIME: Duration = Duration::from_secs(30);
    const MAX_DEPTH: usize = 512;
    const MAX_BYTES: u64 = 8 << 20;

    pub(super) fn new(asked: Option<u64>, default: u64, most: u64) -> Self {
        let results = asked.unwrap_or(default).min(most);
        Self { time: Self::MAX_TIME, depth: Self::MAX_DEPTH, results, bytes: Self::MAX_BYTES }
    }
}

/// The counts of a running search, shared by its threads.
pub(super) struct Tally<'f> {
    limits: Limits,
    follower: &'f dyn Follower,
    begun: Instant,
    end: Instant,
    /// The number of visible entries visited, and the time of the last report in milliseconds after
    /// the start.
    looked: AtomicU64,
    last_report: AtomicU64,
    skipped: [AtomicU64; Skipped::ALL.len()],
    searched: AtomicU64,
    results: AtomicU64,
    bytes: AtomicU64,
    /// Zero, or one more than the index in [`Stopped::ALL`].
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
            last_report: AtomicU64::new(NO_REPORT_YET),
            end: now.checked_add(limits.time).unwrap_or(now),
            skipped: std::array::from_fn(|_| AtomicU64::new(0)),
            searched: AtomicU64::new(0),
            results: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stopped: AtomicU8::new(0),
        }
    }

    /// Counts an entry that was skipped.
    pub(super) fn skip(&self, reason: Skipped) {
        if let Some(count) = self.skipped.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a file that was searched.
    pub(super) fn searched(&self) {
        self.searched.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes space for one result of `bytes` bytes; false if there is none, and then the search
    /// stops.
    pub(super) fn result(&self, bytes: usize) -> bool {
        if self.results.fetch_add(1, Ordering::Relaxed) >= self.limits.results {
            self.stop(Stopped::Results);
            return false;
        }
        self.room(bytes)
    }

    /// Takes space for `bytes` bytes; false if there is none, and then the search stops.
    pub(super) fn room(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) > self.limits.bytes {
            self.stop(Stopped::Size);
            return false;
        }
        true
    }

    /// Returns the maximum depth of directories beneath the start.
    pub(super) fn depth(&self) -> usize {
        self.limits.depth
    }

    /// True if the search may continue; checks the time and the follower.
    pub(super) fn may_continue(&self) -> bool {
        if self.is_stopped() {
            return false;
        }
        let now = Instant::now();
        if !self.follower.is_wanted() {
            self.stop(Stopped::Cancelled);
            return false;
        }
        if now < self.end {
            self.report(now);
            return true;
        }
        self.stop(Stopped::Time);
        false
    }

    /// Counts visited entries that the agent may see.
    pub(super) fn looked(&self, entries: usize) {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.looked.fetch_add(entries, Ordering::Relaxed);
    }

    /// True if the client cancelled the search.
    pub(super) fn is_cancelled(&self) -> bool {
        self.summary().stopped == Some(Stopped::Cancelled)
    }

    /// Reports progress to the follower, at intervals.
    fn report(&self, now: Instant) {
        let passed = now.saturating_duration_since(self.begun).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let last_report = self.last_report.load(Ordering::Relaxed);
        let looked = self.looked.load(Ordering::Relaxed);
        let due = looked > 0
            && (last_report == NO_REPORT_YET
                || passed >= last_report.saturating_add(PROGRESS_INTERVAL_MS));
        if due
            && self
                .last_report
                .compare_exchange(last_report, passed, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.follower.progress(looked);
        }
    }

    /// True if the search is to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    fn stop(&self, reason: Stopped) {
        // The first reason counts.
        let _ = self.stopped.compare_exchange(
            0,
            reason as u8 + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Returns the summary for the agent.
    pub(super) fn summary(&self) -> Summary {
        let stopped = usize::from(self.stopped.load(Ordering::Relaxed)).checked_sub(1);
        Summary {
            searched: self.searched.load(Ordering::Relaxed),
            skipped: Skipped::ALL
                .into_iter()
                .zip(&self.skipped)
                .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            stopped: stopped.and_then(|place| Stopped::ALL.get(place).copied()),
            next: None,
        }
    }
}
