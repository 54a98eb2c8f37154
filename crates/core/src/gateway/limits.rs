//! Use of the policy's `[limits]` by each session.
//!
//! Counts are in memory and live as long as the gateway. Nothing is counted where the policy states
//! no limit. The operator's own operations on backups write and remove without counting: an undo
//! must always be possible.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use super::{leaky_bucket::LeakyBucket, lock::lock};
use crate::policy::{Decision, Limits};

/// Maximum number of sessions that are counted where nothing else bounds them. A further one is
/// refused, because forgetting another would open it again. A transport reports when a session
/// ends.
const MAX_SESSIONS: usize = 4096;

/// The meters of all sessions.
#[derive(Debug)]
pub(super) struct Meters {
    all: Mutex<HashMap<String, Arc<Meter>>>,
    max_sessions: usize,
}

impl Default for Meters {
    fn default() -> Self {
        Self { all: Mutex::default(), max_sessions: MAX_SESSIONS }
    }
}

/// The counts of one session.
#[derive(Debug)]
pub(super) struct Meter {
    /// The session's ID.
    session: String,
    limits: Limits,
    count: Arc<Mutex<Count>>,
}

#[derive(Debug)]
struct Count {
    bytes: u64,
    files: u64,
    denials: u64,
    operations: LeakyBucket,
}

/// The bytes and files of a change, counted against the session's limits; given back when dropped
/// unless [kept](Self::keep).
#[must_use]
#[derive(Debug)]
pub(super) struct LimitReservation {
    meter: Arc<Meter>,
    bytes: u64,
    files: u64,
}

impl Meters {
    /// Counts every session from now on: the caller bounds their number, and a session that it
    /// admitted is not refused here.
    pub(super) fn count_all(&mut self) {
        self.max_sessions = usize::MAX;
    }

    /// Returns the session's meter; `None` where nothing is limited.
    ///
    /// # Errors
    /// A denial when there are too many sessions.
    pub(super) fn of(
        &self,
        session: &str,
        limits: &Limits,
    ) -> Result<Option<Arc<Meter>>, Decision> {
        if !limits.any() {
            return Ok(None);
        }
        let mut meters = lock(&self.all);
        if let Some(meter) = meters.get_mut(session) {
            if meter.limits != *limits {
                // Another policy came into force: the counts stay.
                let count = Arc::clone(&meter.count);
                *meter =
                    Arc::new(Meter { session: session.to_owned(), limits: limits.clone(), count });
            }
            return Ok(Some(Arc::clone(meter)));
        }
        if meters.len() >= self.max_sessions {
            return Err(Decision::built_in_denial(
                "limits.sessions",
                "the gateway serves no more sessions",
            ));
        }
        let meter = Arc::new(Meter::new(session, limits.clone(), Instant::now()));
        meters.insert(session.to_owned(), Arc::clone(&meter));
        Ok(Some(meter))
    }

    /// Forgets the counts of a session that has ended.
    pub(super) fn forget(&self, session: &str) {
        lock(&self.all).remove(session);
    }
}

impl Meter {
    fn new(session: &str, limits: Limits, now: Instant) -> Self {
        let operations = LeakyBucket::new(1, now);
        let count = Count { bytes: 0, files: 0, denials: 0, operations };
        Self { session: session.to_owned(), limits, count: Arc::new(Mutex::new(count)) }
    }

    /// Returns the ID of the session.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// Counts an operation that begins.
    ///
    /// # Errors
    /// A denial when the session is closed or sends too many.
    pub(super) fn begin(&self, now: Instant) -> Result<(), Decision> {
        self.open()?;
        let Some(limit) = &self.limits.operations_per_second else { return Ok(()) };
        let mut count = lock(&self.count);
        // Another policy may have come into force.
        count.operations.set_rate(limit.maximum);
        if count.operations.try_add(1, now) { Ok(()) } else { Err(limit.exceeded()) }
    }

    /// Checks that the session is not closed.
    ///
    /// # Errors
    /// A denial when it is closed.
    pub(super) fn open(&self) -> Result<(), Decision> {
        match &self.limits.denials {
            Some(limit) if lock(&self.count).denials >= limit.maximum => Err(limit.exceeded()),
            _ => Ok(()),
        }
    }

    /// Counts a denial under `rule`; true if it closes the session. Denials of rate limits do not
    /// count: they are no attempt at anything.
    pub(super) fn denied(&self, rule: Option<&str>) -> bool {
        let Some(limit) = &self.limits.denials else { return false };
        let is_rate_limit = |rule: &str| {
            matches!(rule, "limits.operationsPerSecond" | "mount.operationsPerSecond")
                || rule.starts_with("serve.limits.")
        };
        if rule.is_some_and(is_rate_limit) {
            return false;
        }
        let mut count = lock(&self.count);
        count.denials = count.denials.saturating_add(1);
        count.denials == limit.maximum
    }

    /// Counts the bytes and files of a change.
    ///
    /// # Errors
    /// A denial when that is more than is left; nothing is counted then.
    pub(super) fn spend(
        self: &Arc<Self>,
        bytes: u64,
        files: u64,
    ) -> Result<LimitReservation, Decision> {
        let mut count = lock(&self.count);
        let written = count.bytes.saturating_add(bytes);
        let removed = count.files.saturating_add(files);
        for (limit, before, after) in [
            (&self.limits.bytes_written, count.bytes, written),
            (&self.limits.files_removed, count.files, removed),
        ] {
            if let Some(limit) = limit
                && after > limit.maximum
                && after > before
            {
                return Err(limit.exceeded());
            }
        }
        (count.bytes, count.files) = (written, removed);
        Ok(LimitReservation { meter: Arc::clone(self), bytes, files })
    }
}

impl LimitReservation {
    /// Keeps the counts of a change that was made.
    pub(super) fn keep(mut self) {
        (self.bytes, self.files) = (0, 0);
    }
}

impl Drop for LimitReservation {
    fn drop(&mut self) {
        let mut count = lock(&self.meter.count);
        count.bytes = count.bytes.saturating_sub(self.bytes);
        count.files = count.files.saturating_sub(self.files);
    }
}

/// True if a rule is a limit, of the policy or of a service.
pub(super) fn is_limit(rule: &str) -> bool {
    let session = rule.strip_prefix("mount.").is_some_and(|key| {
        matches!(key, "operationsPerSecond" | "bytesWritten" | "filesRemoved" | "denials")
    });
    session || rule.starts_with("limits.") || rule.starts_with("serve.limits.")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        model::Transport,
        policy::{PolicySource, compile},
    };

    fn meter(limits: &str) -> (Arc<Meter>, Instant) {
        let text = format!("schema = 1\n[limits]\n{limits}\n");
        let policy = compile(&PolicySource::from_text("test", &text)).unwrap();
        let now = Instant::now();
        (Arc::new(Meter::new("s", policy.limits(Transport::Cli).clone(), now)), now)
    }

    fn begun(meter: &Meter, now: Instant, tries: usize) -> usize {
        (0..tries).filter(|_| meter.begin(now).is_ok()).count()
    }

    #[test]
    fn a_burst_of_a_second_may_begin_and_then_so_many_a_second() {
        for most in [1, 3, 7, 200, 999_999] {
            let (meter, now) = meter(&format!("operationsPerSecond = {most}"));
            let tries = most + 5;
            assert_eq!(begun(&meter, now, tries), most);
            assert_eq!(begun(&meter, now + Duration::from_secs(100), tries), most);
            let half = Duration::from_secs(100) + Duration::from_millis(500);
            assert!(begun(&meter, now + half, tries).abs_diff(most / 2) <= 1);
        }
    }

    #[test]
    fn what_was_not_done_is_given_back() {
        let (meter, _) = meter("bytesWritten = \"10B\"\nfilesRemoved = 2");
        drop(meter.spend(10, 2).unwrap());
        meter.spend(4, 2).unwrap().keep();
        assert_eq!(meter.spend(7, 0).unwrap_err().rule(), "limits.bytesWritten");
        assert_eq!(meter.spend(0, 1).unwrap_err().rule(), "limits.filesRemoved");
        meter.spend(6, 0).unwrap().keep();
        meter.spend(0, 0).unwrap().keep();
        assert!(meter.spend(u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn denials_close_for_good_and_rate_limits_do_not() {
        let (meter, now) = meter("denials = 2\noperationsPerSecond = 1");
        assert!((0..9).all(|_| !meter.denied(Some("limits.operationsPerSecond"))));
        assert!(!meter.denied(Some("x")));
        meter.begin(now).unwrap();
        assert!(meter.denied(None));
        let later = now + Duration::from_secs(1_000_000);
        assert_eq!(meter.begin(later).unwrap_err().rule(), "limits.denials");
    }

    #[test]
    fn sessions_are_bounded_and_forgotten_when_they_end() {
        let policy = compile(&PolicySource::from_text("t", "schema = 1\n[limits]\ndenials = 1\n"));
        let (policy, meters) = (policy.unwrap(), Meters::default());
        for session in 0..MAX_SESSIONS {
            assert!(
                meters.of(&session.to_string(), policy.limits(Transport::Cli)).unwrap().is_some()
            );
        }
        let refused = meters.of("one more", policy.limits(Transport::Cli)).unwrap_err();
        assert_eq!(refused.rule(), "limits.sessions");
        meters.of("0", policy.limits(Transport::Cli)).unwrap();
        meters.forget("0");
        meters.of("one more", policy.limits(Transport::Cli)).unwrap();
        assert!(Meters::default().of("x", &Limits::default()).unwrap().is_none());
    }
}
