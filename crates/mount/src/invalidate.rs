//! What the kernel has to forget: told by a thread that handles no request, since the
//! kernel may wait for one meanwhile.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// More than this at once is everything.
const MOST: usize = 10_000;

/// What the kernel has to forget.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    work: Work,
    ended: bool,
}

/// What there is to forget.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Every node and entry.
    pub(crate) all: bool,
    /// Pages and attributes of nodes.
    pub(crate) contents: BTreeSet<u64>,
    /// Names in directories.
    pub(crate) entries: HashSet<(u64, Arc<str>)>,
}

impl Invalidations {
    /// Everything: another policy is in force.
    pub(crate) fn all(&self) {
        self.add(|work| work.all = true);
    }

    /// Pages and attributes of a node.
    pub(crate) fn content(&self, node: u64) {
        self.add(|work| {
            work.contents.insert(node);
        });
    }

    /// A name in a directory.
    pub(crate) fn entry(&self, parent: u64, name: Arc<str>) {
        self.add(|work| {
            work.entries.insert((parent, name));
        });
    }

    /// Nothing follows.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.more.notify_all();
    }

    /// Waits for work; none after the end.
    pub(crate) fn next(&self) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if queue.ended {
                return None;
            }
            if queue.work != Work::default() {
                return Some(std::mem::take(&mut queue.work));
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, add: impl FnOnce(&mut Work)) {
        let mut queue = self.lock();
        add(&mut queue.work);
        if queue.work.contents.len() + queue.work.entries.len() > MOST {
            queue.work = Work { all: true, ..Work::default() };
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
    use super::*;

    #[test]
    fn too_much_is_everything() {
        let queue = Invalidations::default();
        queue.content(7);
        queue.entry(1, Arc::from("a"));
        let work = queue.next().unwrap();
        assert_eq!((work.all, work.contents.len(), work.entries.len()), (false, 1, 1));
        for node in 0..=10_000 {
            queue.content(node);
        }
        assert_eq!(queue.next(), Some(Work { all: true, ..Work::default() }));
        queue.all();
        queue.end();
        assert_eq!(queue.next(), None);
    }
}
