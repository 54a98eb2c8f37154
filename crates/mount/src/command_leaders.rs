//! The processes that lead the commands which the gateway has started in the sandbox, each with the
//! number of its command's record: what a program does is recorded as its command's.

use std::{
    collections::HashMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The longest time that a request waits for the process of a command that starts: it may come from
/// there.
const START_TIMEOUT: Duration = Duration::from_millis(100);

/// The leaders of commands.
#[derive(Debug, Default)]
pub struct CommandLeaders {
    all: Mutex<Leaders>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Leaders {
    /// The numbers of records, by process.
    records: HashMap<u32, u64>,
    /// Commands that are about to start.
    expected: usize,
}

impl CommandLeaders {
    /// A command is about to start.
    pub fn expect(&self) {
        self.lock().expected += 1;
    }

    /// It has started, or if there is no process will not.
    pub fn settle(&self, record: u64, process: Option<u32>) {
        let mut all = self.lock();
        all.expected = all.expected.saturating_sub(1);
        all.records.extend(process.map(|process| (process, record)));
        self.changed.notify_all();
    }

    /// A command is released: its process may be another one from now on.
    pub fn forget(&self, record: u64) {
        self.lock().records.retain(|_, known| *known != record);
    }

    /// True if there are none, and none are about to start.
    pub(crate) fn are_none(&self) -> bool {
        let all = self.lock();
        all.records.is_empty() && all.expected == 0
    }

    /// The record of the command to which a process belongs that belongs to these: its group and
    /// itself, then those of its parent, and so on.
    pub(crate) fn record_of(&self, belongs: &[u32]) -> Option<u64> {
        let (mut all, end) = (self.lock(), Instant::now() + START_TIMEOUT);
        loop {
            let found = belongs.iter().find_map(|process| all.records.get(process)).copied();
            let left = end.saturating_duration_since(Instant::now());
            if found.is_some() || all.expected == 0 || left.is_zero() {
                return found;
            }
            (all, _) = self.changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Leaders> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_nearest_command_until_that_is_released() {
        let leaders = CommandLeaders::default();
        assert!(leaders.are_none());
        leaders.expect();
        leaders.expect();
        assert!(!leaders.are_none());
        // It waits for one that may still come.
        assert_eq!(leaders.record_of(&[7]), None);
        leaders.settle(100, Some(7));
        leaders.settle(101, None);
        assert_eq!((leaders.record_of(&[9, 7]), leaders.record_of(&[9])), (Some(100), None));
        leaders.forget(100);
        assert!(leaders.are_none());
    }
}
