//! The thread that makes checkpoints while a gateway serves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use super::{
    Error,
    checkpoint_builder::{CheckpointBuilder, Occasion},
    group::GroupCommit,
};

/// The thread that makes checkpoints while a gateway serves.
pub(super) struct CheckpointThread {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl CheckpointThread {
    pub(super) fn start(
        maker: Arc<CheckpointBuilder>,
        group: Arc<GroupCommit>,
    ) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = thread::Builder::new().name("checkpoints".to_owned());
        let thread = builder
            .spawn(move || keep(&maker, &group, &stopped))
            .map_err(Error::std("start a thread"))?;
        Ok(Self { thread: Some(thread), stop })
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics only on a defect of this program.
            let _ended = thread.join();
        }
    }
}

fn keep(maker: &CheckpointBuilder, group: &GroupCommit, stop: &AtomicBool) {
    let mut last = Instant::now();
    loop {
        let due = group.log().wake_at(maker.signing.records, thread::current());
        let left = maker.signing.interval.saturating_sub(last.elapsed());
        if !due && !left.is_zero() {
            thread::park_timeout(left);
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        let waited = last.elapsed() >= maker.signing.interval;
        if !waited && !group.log().is_due(maker.signing.records) {
            continue;
        }
        last = Instant::now();
        match maker.make(group.mutex(), Occasion::Interval) {
            Ok(_made) => {}
            Err(error @ (Error::Damaged { .. } | Error::Tampered { .. })) => group.fail(&error),
            Err(error) => {
                // The log itself is intact, and the next attempt may succeed.
                tracing::error!(%error, "no checkpoint of the audit log could be signed");
                group.log().postpone();
            }
        }
    }
}
