//! Opens that repeat recorded ones, counted for summary records.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use portcullis_policy::model::WorkspacePath;
use serde_json::{Value, json};

/// The maximum of bytes of paths between two records; opens of further paths are
/// counted together.
const MAX_PATHS: usize = 1 << 20;
/// The maximum of bytes of paths in one record.
const MAX_PATHS_OF_RECORD: usize = 64 << 10;
/// The cost of a path besides its bytes.
const PATH_OVERHEAD: usize = 32;

/// The number of repeated opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RepeatCount {
    opens: u64,
    denials: u64,
}

impl RepeatCount {
    fn add(&mut self, other: Self) {
        self.opens += other.opens;
        self.denials += other.denials;
    }

    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Counts not yet recorded.
#[derive(Debug, Default)]
struct UnrecordedCounts {
    paths: BTreeMap<WorkspacePath, RepeatCount>,
    bytes: usize,
    /// Opens of paths for which there is no room.
    others: RepeatCount,
}

impl UnrecordedCounts {
    fn count(&mut self, path: &WorkspacePath, times: RepeatCount) {
        if let Some(known) = self.paths.get_mut(path) {
            return known.add(times);
        }
        let size = path.as_str().len() + PATH_OVERHEAD;
        if self.bytes + size > MAX_PATHS {
            return self.others.add(times);
        }
        self.bytes += size;
        self.paths.insert(path.clone(), times);
    }

    /// Returns the facts of each record with these counts.
    fn records(self) -> Vec<BTreeMap<String, Value>> {
        let mut records = Vec::new();
        let (mut paths, mut bytes, mut sum) = (Vec::new(), 0, RepeatCount::default());
        for (path, times) in self.paths {
            let size = path.as_str().len() + PATH_OVERHEAD;
            if bytes + size > MAX_PATHS_OF_RECORD {
                records.push(facts(std::mem::take(&mut paths), sum));
                (bytes, sum) = (0, RepeatCount::default());
            }
            bytes += size;
            sum.add(times);
            let RepeatCount { opens, denials } = times;
            paths.push(json!({ "path": path.as_str(), "opens": opens, "denials": denials }));
        }
        sum.add(self.others);
        if !sum.is_none() {
            records.push(facts(paths, sum));
        }
        records
    }
}

/// Returns the facts of a record: all opens, and those of the paths that it names.
fn facts(
    paths: Vec<Value>,
    RepeatCount { opens, denials }: RepeatCount,
) -> BTreeMap<String, Value> {
    let facts = [("opens", opens.into()), ("denials", denials.into()), ("paths", paths.into())];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The repeated opens of a mount.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    state: Mutex<RepeatState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RepeatState {
    counted: UnrecordedCounts,
    ended: bool,
}

impl Repeats {
    /// Counts an open of a version that was read before.
    pub(crate) fn open(&self, path: &WorkspacePath) {
        self.lock().counted.count(path, RepeatCount { opens: 1, denials: 0 });
    }

    /// Counts an open that was denied as before.
    pub(crate) fn denial(&self, path: &WorkspacePath) {
        self.lock().counted.count(path, RepeatCount { opens: 0, denials: 1 });
    }

    /// Ends the count.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the end, at most for `timeout`; returns true if it has come.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, timeout, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Takes the counts, as the facts of each record.
    pub(crate) fn take(&self) -> Vec<BTreeMap<String, Value>> {
        let counted = std::mem::take(&mut self.lock().counted);
        counted.records()
    }

    fn lock(&self) -> MutexGuard<'_, RepeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_paths_are_several_records_and_more_are_counted_together() {
        let mut counted = UnrecordedCounts::default();
        for number in 0..10_000 {
            let path = WorkspacePath::parse(&format!("{number:0200}")).unwrap();
            counted.count(&path, RepeatCount { opens: 1, denials: 0 });
            counted.count(&path, RepeatCount { opens: 1, denials: 1 });
        }
        let records = counted.records();
        let named: usize =
            records.iter().map(|facts| facts["paths"].as_array().unwrap().len()).sum();
        assert_eq!((records.len(), named), (17, MAX_PATHS / 232));
        let sum = |name: &str| records.iter().map(|facts| facts[name].as_u64().unwrap()).sum();
        assert_eq!((sum("opens"), sum("denials")), (20_000_u64, 10_000_u64));
        assert!(records.iter().all(|facts| json!(facts).to_string().len() < 100_000));
        assert!(UnrecordedCounts::default().records().is_empty());
    }
}
