//! Group commit without a thread of its own: one of the waiting threads writes for all of them, and
//! one syncs for all of them.
//!
//! Records that only need to be written never wait for a sync; records that need one gather while
//! another is under way. In a process with one request, its thread does both.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
};

use portcullis_audit::{Prepared, Receipt};

use super::{
    Error,
    log::{Log, UnsyncedSegment},
};

/// Yields of a thread before it leads a group that is smaller than the last one.
const MAX_YIELDS: u32 = 8;

pub(super) struct GroupCommit {
    log: Mutex<Log>,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    /// Records to be written.
    waiting: Vec<(Arc<PendingRecord>, Prepared)>,
    /// Written records to be synced.
    written: Vec<(Arc<PendingRecord>, Receipt)>,
    files: Vec<UnsyncedSegment>,
    /// Number of records of the last sync.
    group: usize,
    /// True while a thread writes, or syncs.
    writing: bool,
    syncing: bool,
    poison: Option<Error>,
}

/// A record whose thread waits.
struct PendingRecord {
    thread: Thread,
    durable: bool,
    /// Changed under the state's lock only.
    is_written: AtomicBool,
    done: OnceLock<Result<Receipt, Error>>,
}

impl PendingRecord {
    fn finish(&self, result: Result<Receipt, Error>) {
        // Each record is in one list, from which it is taken to be finished.
        let _first = self.done.set(result);
        self.thread.unpark();
    }
}

impl GroupState {
    /// Wakes the threads that can write or sync now.
    fn wake(&self) {
        if !self.syncing
            && let Some((slot, _)) = self.written.first()
        {
            slot.thread.unpark();
        }
        let can_write =
            |(slot, _): &&(Arc<PendingRecord>, Prepared)| !(slot.durable && self.syncing);
        if !self.writing
            && let Some((slot, _)) = self.waiting.iter().find(can_write)
        {
            slot.thread.unpark();
        }
    }

    /// Fails all waiting and later records.
    fn fail(&mut self, error: &Error) {
        let error = self.poison.get_or_insert_with(|| error.clone()).clone();
        tracing::error!(%error, "the audit log takes no more records");
        for (slot, _) in mem::take(&mut self.waiting) {
            slot.finish(Err(error.clone()));
        }
        for (slot, _) in mem::take(&mut self.written) {
            slot.finish(Err(error.clone()));
        }
    }
}

impl GroupCommit {
    pub(super) fn new(log: Log) -> Self {
        Self { log: Mutex::new(log), state: Mutex::default() }
    }

    /// Appends one record; with `durable` waits until it is synced.
    pub(super) fn append(&self, record: Prepared, durable: bool) -> Result<Receipt, Error> {
        let state = self.state();
        if !durable && !state.writing && state.waiting.is_empty() {
            return self.write_alone(state, std::slice::from_ref(&record));
        }
        drop(state);
        let slot = Arc::new(PendingRecord {
            thread: thread::current(),
            durable,
            is_written: AtomicBool::new(false),
            done: OnceLock::new(),
        });
        let mut state = self.state();
        if let Some(error) = &state.poison {
            return Err(error.clone());
        }
        state.waiting.push((Arc::clone(&slot), record));
        let mut attempts_left = MAX_YIELDS;
        loop {
            if let Some(result) = slot.done.get() {
                return result.clone();
            }
            let is_written = slot.is_written.load(Ordering::Relaxed);
            let may_write = !state.writing && (!durable || !state.syncing);
            state = if !is_written && may_write {
                if durable && attempts_left > 0 && state.waiting.len() < state.group {
                    // The threads that the last sync released will append soon: without them the
                    // first one would sync for itself alone.
                    attempts_left -= 1;
                    drop(state);
                    thread::yield_now();
                    state = self.state();
                    continue;
                }
                self.write(state)
            } else if is_written && !state.syncing {
                self.sync(state)
            } else {
                drop(state);
                thread::park();
                if let Some(result) = slot.done.get() {
                    return result.clone();
                }
                self.state()
            };
        }
    }

    /// Appends records in this order; with `durable` waits until all are synced. Returns the last
    /// one's receipt, if there is one.
    pub(super) fn append_all(
        &self,
        mut records: Vec<Prepared>,
        durable: bool,
    ) -> Result<Option<Receipt>, Error> {
        // The sync of the last record covers the file of the others too; a segment that became full
        // among them was synced then.
        let last = if durable { records.pop() } else { None };
        let mut receipt = None;
        let state = self.state();
        if !records.is_empty() && !state.writing && state.waiting.is_empty() {
            receipt = Some(self.write_alone(state, &records)?);
        } else {
            drop(state);
            for record in records {
                receipt = Some(self.append(record, false)?);
            }
        }
        match last {
            Some(record) => self.append(record, true).map(Some),
            None => Ok(receipt),
        }
    }

    /// Writes records of the current thread only; returns the last one's receipt.
    fn write_alone(
        &self,
        mut state: MutexGuard<'_, GroupState>,
        records: &[Prepared],
    ) -> Result<Receipt, Error> {
        if let Some(error) = &state.poison {
            return Err(error.clone());
        }
        state.writing = true;
        drop(state);
        let result = self.log().append(records);
        let mut state = self.state();
        state.writing = false;
        // After a failed sync no receipt may be given.
        let result = state.poison.clone().map_or(result, Err).and_then(|(mut receipts, _files)| {
            receipts.pop().ok_or(Error::io("write to the audit log")(rustix::io::Errno::IO))
        });
        if let Err(error) = &result
            && !error.passes()
        {
            state.fail(error);
        }
        state.wake();
        result
    }

    /// Fails every append from now on.
    pub(super) fn fail(&self, error: &Error) {
        self.state().fail(error);
    }

    /// Fails if the log takes no more records.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.state().poison.clone().map_or(Ok(()), Err)
    }

    /// Writes all waiting records.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, GroupState>) -> MutexGuard<'a, GroupState> {
        state.writing = true;
        let (slots, records): (Vec<_>, Vec<_>) = mem::take(&mut state.waiting).into_iter().unzip();
        drop(state);
        let result = self.log().append(&records);
        let mut state = self.state();
        state.writing = false;
        // After a failed sync no receipt may be given.
        let result = state.poison.clone().map_or(result, Err);
        match result {
            Ok((receipts, files)) => {
                let mut to_sync = false;
                for (slot, receipt) in slots.into_iter().zip(receipts) {
                    if slot.durable {
                        to_sync = true;
                        slot.is_written.store(true, Ordering::Relaxed);
                        state.written.push((slot, receipt));
                    } else {
                        slot.finish(Ok(receipt));
                    }
                }
                for file in files.into_iter().filter(|_| to_sync) {
                    if !state.files.iter().any(|known| known.is(&file)) {
                        state.files.push(file);
                    }
                }
            }
            Err(error) => {
                if !error.passes() {
                    state.fail(&error);
                }
                for slot in slots {
                    slot.finish(Err(error.clone()));
                }
            }
        }
        state.wake();
        state
    }

    /// Syncs all written records.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, GroupState>) -> MutexGuard<'a, GroupState> {
        state.syncing = true;
        let written = mem::take(&mut state.written);
        let files = mem::take(&mut state.files);
        state.group = written.len();
        drop(state);
        let result = files.iter().try_for_each(UnsyncedSegment::sync);
        if let Err(error) = &result {
            self.state().fail(error);
        }
        for (slot, receipt) in written {
            slot.finish(match &result {
                Ok(()) => Ok(Receipt { durable: true, ..receipt }),
                Err(error) => Err(error.clone()),
            });
        }
        let mut state = self.state();
        state.syncing = false;
        state.wake();
        state
    }

    fn state(&self) -> MutexGuard<'_, GroupState> {
        // Nothing panics under the lock, and the lists are consistent between any two of the
        // statements above.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mutex of the log, for callers that lock it more than once.
    pub(super) fn mutex(&self) -> &Mutex<Log> {
        &self.log
    }

    /// Locks the log, between two appends of this process.
    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
