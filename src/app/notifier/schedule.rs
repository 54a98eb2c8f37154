//! The times at which notifications are due.

use std::time::{Duration, Instant};

/// The least time between two notifications.
const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Length of an id: 4 bytes in hex.
const ID_LENGTH: usize = 8;
/// Maximum of waiting requests of a gateway.
const MAX_WAITING: usize = 16;

/// The requests that wait, and what was sent about them.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    waiting: Vec<String>,
    /// The waiting requests that a notification has counted.
    notified: Vec<String>,
    last: Option<Instant>,
}

impl Schedule {
    /// Sets the requests that wait, the oldest first. Text that is not an id is discarded: nothing
    /// else goes out.
    pub(super) fn set_waiting(&mut self, ids: Vec<String>) {
        let is_id =
            |id: &String| id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.waiting = ids.into_iter().filter(is_id).take(MAX_WAITING).collect();
        self.notified.retain(|id| self.waiting.contains(id));
    }

    /// Returns how long after `now` the next notification is due, if a request waits that none has
    /// counted.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        let is_new = self.waiting.iter().any(|id| !self.notified.contains(id));
        let wait = |last: Instant| (last + MIN_INTERVAL).saturating_duration_since(now);
        is_new.then(|| self.last.map_or(Duration::ZERO, wait))
    }

    /// Takes the notification that is due: the newest request and the number of all that wait.
    pub(super) fn take(&mut self, now: Instant) -> Option<(String, usize)> {
        let newest = self.waiting.last()?.clone();
        if !self.due_in(now)?.is_zero() {
            return None;
        }
        self.last = Some(now);
        self.notified.clone_from(&self.waiting);
        Some((newest, self.waiting.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn at_most_one_a_minute_and_the_rest_are_counted_then() {
        let mut schedule = Schedule::default();
        let begin = Instant::now();
        assert_eq!(schedule.take(begin), None);
        schedule.set_waiting(ids(&["aaaaaaaa"]));
        assert_eq!(schedule.take(begin), Some(("aaaaaaaa".into(), 1)));
        assert_eq!((schedule.take(begin), schedule.due_in(begin)), (None, None));
        schedule.set_waiting(ids(&["aaaaaaaa", "bbbbbbbb", "cccccccc"]));
        assert_eq!(schedule.take(begin + MIN_INTERVAL / 2), None);
        assert_eq!(schedule.due_in(begin + MIN_INTERVAL / 2), Some(MIN_INTERVAL / 2));
        assert_eq!(schedule.take(begin + MIN_INTERVAL), Some(("cccccccc".into(), 3)));
    }

    #[test]
    fn nothing_is_sent_about_what_was_answered_meanwhile() {
        let mut schedule = Schedule::default();
        let begin = Instant::now();
        schedule.set_waiting(ids(&["aaaaaaaa"]));
        schedule.take(begin).unwrap();
        schedule.set_waiting(ids(&["aaaaaaaa", "bbbbbbbb"]));
        schedule.set_waiting(ids(&["aaaaaaaa"]));
        assert_eq!(schedule.take(begin + MIN_INTERVAL), None);
    }

    #[test]
    fn nothing_but_an_id_goes_out() {
        let mut schedule = Schedule::default();
        schedule.set_waiting(ids(&["src/secret", "12345678 ", "1234567g", "deadbeef"]));
        assert_eq!(schedule.take(Instant::now()), Some(("deadbeef".into(), 1)));
    }
}
