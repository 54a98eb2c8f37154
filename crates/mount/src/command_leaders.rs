//! The leading processes of the commands that the gateway has started in the sandbox, each with the
//! number of the command's record. Requests of a command's programs are recorded with that number.

use std::{
    collections::HashMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Timeout of a request for the process of a command that is starting: the request may come from
/// that process.
const START_TIMEOUT: Duration = Duration::from_millis(100);

/// The leading processes of commands.
#[derive(Debug, Default)]
pub struct CommandLeaders {
    all: Mutex<LeaderState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LeaderState {
    /// The numbers of records, by process id.
    records: HashMap<u32, u64>,
    /// The number of commands about to start.
    expected: usize,
}

impl CommandLeaders {
    /// Announces the start of a command.
    pub fn expect(&self) {
        self.lock().expected += 1;
    }

    /// Reports that the command has started, or without a process that it will not.
    pub fn settle(&self, record: u64, process: Option<u32>) {
        let mut all = self.lock();
        all.expected = all.expected.saturating_sub(1);
        all.records.extend(process.map(|process| (process, record)));
        self.changed.notify_all();
    }

    /// Removes a command: its process id may be reused from now on.
    pub fn forget(&self, record: u64) {
        self.lock().records.retain(|_, known| *known != record);
    }

    /// Returns the number of the record of a process's command. `belongs` are its process group and
    /// process id, then those of its parent, and so on.
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

    fn lock(&self) -> MutexGuard<'_, LeaderState> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_nearest_command_until_that_is_released() {
        let leaders = CommandLeaders::default();
        leaders.expect();
        leaders.expect();
        // The lookup waits, because a command may still start.
        assert_eq!(leaders.record_of(&[7]), None);
        leaders.settle(100, Some(7));
        leaders.settle(101, None);
        assert_eq!((leaders.record_of(&[9, 7]), leaders.record_of(&[9])), (Some(100), None));
        leaders.forget(100);
    }
}
