//! Invalidations of the kernel's caches. A thread that handles no request sends them, since the
//! kernel may wait for a request meanwhile. Only those of attributes alone are sent at once.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use portcullis_fuse::{NodeId, Notifier};

/// The number of pending invalidations beyond which everything is invalidated.
const MAX_PENDING: usize = 10_000;

/// The queue of pending invalidations.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    queue: Mutex<Queue>,
    more: Condvar,
    /// The notifier, once requests are served.
    pub(crate) notifier: OnceLock<Notifier>,
}

#[derive(Debug)]
struct Queue {
    work: PendingInvalidations,
    /// The number of requests to invalidate everything, and of those carried out.
    all: (u64, u64),
    /// True while no request is served: before the begin and after the end.
    is_idle: bool,
    ended: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { work: PendingInvalidations::default(), all: (0, 0), is_idle: true, ended: false }
    }
}

/// Pending invalidations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingInvalidations {
    /// Every node and entry.
    pub(crate) all: bool,
    /// Pages and attributes of nodes.
    pub(crate) contents: BTreeSet<u64>,
    /// Names in directories.
    pub(crate) entries: HashSet<(u64, Arc<str>)>,
}

impl Invalidations {
    /// Invalidates everything.
    pub(crate) fn all(&self) {
        let mut queue = self.lock();
        queue.work.all = true;
        queue.all.0 += 1;
        self.more.notify_all();
    }

    /// Invalidates everything after a policy reload. Waits until that is done, but at most for
    /// `timeout`; returns true if it is.
    pub(crate) fn all_within(&self, timeout: Duration) -> bool {
        self.all();
        let queue = self.lock();
        let mine = queue.all.0;
        let is_waiting = |queue: &mut Queue| queue.all.1 < mine && !queue.is_idle;
        let waited = self.more.wait_timeout_while(queue, timeout, is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Invalidates pages and attributes of a node.
    pub(crate) fn content(&self, node: u64) {
        self.add(|work| {
            work.contents.insert(node);
        });
    }

    /// Invalidates the attributes of a node at once, for a request whose program holds the node, as
    /// an open does.
    pub(crate) fn attributes(&self, node: u64) {
        // This fails once the mount is gone.
        let _ = self.notifier.get().map(|notifier| notifier.invalidate_attributes(NodeId(node)));
    }

    /// Invalidates a name in a directory.
    pub(crate) fn entry(&self, parent: u64, name: Arc<str>) {
        self.add(|work| {
            work.entries.insert((parent, name));
        });
    }

    /// Notes that the kernel may cache from now on.
    pub(crate) fn begin(&self) {
        self.lock().is_idle = false;
    }

    /// Ends the queue.
    pub(crate) fn end(&self) {
        let mut queue = self.lock();
        (queue.ended, queue.is_idle) = (true, true);
        self.more.notify_all();
    }

    /// Passes pending work to `forget`, until the queue ends.
    pub(crate) fn run(&self, mut forget: impl FnMut(PendingInvalidations)) {
        let mut queue = self.lock();
        while !queue.ended {
            if queue.work == PendingInvalidations::default() {
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (work, all) = (std::mem::take(&mut queue.work), queue.all.0);
            drop(queue);
            forget(work);
            queue = self.lock();
            queue.all.1 = all;
            self.more.notify_all();
        }
    }

    fn add(&self, add: impl FnOnce(&mut PendingInvalidations)) {
        let mut queue = self.lock();
        add(&mut queue.work);
        if queue.work.contents.len() + queue.work.entries.len() > MAX_PENDING {
            queue.work = PendingInvalidations { all: true, ..PendingInvalidations::default() };
        }
        drop(queue);
        self.more.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Instant,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns the first work of the queue.
    fn first(queue: &Invalidations) -> PendingInvalidations {
        std::mem::take(&mut queue.lock().work)
    }

    #[test]
    fn too_much_is_everything() {
        let queue = Invalidations::default();
        queue.content(7);
        queue.entry(1, Arc::from("a"));
        let work = first(&queue);
        assert_eq!((work.all, work.contents.len(), work.entries.len()), (false, 1, 1));
        for node in 0..=10_000 {
            queue.content(node);
        }
        assert_eq!(
            first(&queue),
            PendingInvalidations { all: true, ..PendingInvalidations::default() }
        );
    }

    #[test]
    fn who_has_everything_forgotten_waits_for_that_and_no_longer() {
        let queue = Invalidations::default();
        assert!(queue.all_within(LONG), "the kernel knows nothing yet");
        queue.begin();
        assert!(!queue.all_within(Duration::from_millis(10)));
        let (begun, forgotten) = (Instant::now(), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.run(|_| {
                    thread::sleep(Duration::from_millis(20));
                    forgotten.fetch_add(1, Ordering::SeqCst);
                });
            });
            assert!(queue.all_within(LONG));
            // A run in progress at the time of the request does not count.
            assert!(forgotten.load(Ordering::SeqCst) >= 1);
            let waits = scope.spawn(|| queue.all_within(LONG));
            assert!(queue.all_within(LONG) && waits.join().unwrap());
            queue.end();
            assert!(queue.all_within(LONG), "the kernel knows nothing any more");
        });
        assert!(begun.elapsed() < LONG);
    }
}
