//! A subscriber's end of its queue of changes, and the last decision before a change is reported.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use portcullis_search::watch::{Change, EventKind, Hub, Queue, WatchEnd};

use super::{super::EntryKind, system::System};
use crate::{
    model::{Access, OperationKind, WorkspacePath},
    policy::{Object, ObjectKind, Policy, Query, Visibility},
};

/// A change, as the subscriber may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of change.
    pub what: EventKind,
    /// The path; of a rename the new one.
    pub path: WorkspacePath,
    /// The kind of the entry, or of the removed one.
    pub kind: EntryKind,
}

/// A subscription to changes. Copies share one queue; the subscription ends when the last is
/// dropped.
#[derive(Clone)]
pub struct Subscription(Arc<Handle>);

struct Handle {
    queue: Arc<Queue>,
    hub: Weak<Hub<System>>,
    policy: Arc<InForce>,
}

/// The policy that decides on reports.
pub(super) struct InForce(Mutex<Arc<Policy>>);

impl InForce {
    pub(super) fn new(policy: &Arc<Policy>) -> Self {
        Self(Mutex::new(Arc::clone(policy)))
    }

    pub(super) fn set(&self, policy: &Arc<Policy>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(policy);
    }

    fn get(&self) -> Arc<Policy> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Subscription {
    pub(super) fn new(queue: Arc<Queue>, hub: Weak<Hub<System>>, policy: Arc<InForce>) -> Self {
        Self(Arc::new(Handle { queue, hub, policy }))
    }

    /// Waits at most `timeout` for the next change; `None` if there was none.
    ///
    /// # Errors
    /// When nothing more will come; queued changes are returned before.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>, WatchEnd> {
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let Some(change) = self.0.queue.next(left)? else { return Ok(None) };
            if self.0.may_hear(&change) {
                let Change { what, path, kind } = change;
                return Ok(Some(Event { what, path, kind: EntryKind::of(Some(kind)) }));
            }
        }
    }

    /// Sets the function that is called, by another thread and often needlessly, when there may be
    /// a change to take. It must not wait.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.0.queue.on_ready(wake);
    }

    /// Returns the canonical path that is watched.
    pub fn path(&self) -> &WorkspacePath {
        self.0.queue.path()
    }

    /// Sets the record of its start; without one its end has no record.
    pub(crate) fn began(&self, seq: u64) {
        self.0.queue.began(seq);
    }

    /// Ends the subscription for all copies.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Handle {
    /// True if the policy lets the subscriber list every entry that a change names. A rescan of the
    /// watched path itself is always reported.
    fn may_hear(&self, change: &Change) -> bool {
        let policy = self.policy.get();
        let shows = |path: &WorkspacePath, kind: ObjectKind| {
            let (operation, access) = (OperationKind::Watch, Access::List);
            let query = Query { agent: &self.queue.session().agent, operation, access, path };
            let object = Object { kind, links: 1, through_symlink: false };
            matches!(policy.visibility(&query, &object), Visibility::Shown { .. })
        };
        match &change.what {
            EventKind::Rescan if change.path == *self.queue.path() => true,
            EventKind::Renamed { from } => {
                shows(from, change.kind) && shows(&change.path, change.kind)
            }
            _ => shows(&change.path, change.kind),
        }
    }

    fn close(&self) {
        self.queue.end(WatchEnd::Closed);
        if let Some(hub) = self.hub.upgrade() {
            hub.over(&self.queue);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Subscription {}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(self.path()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Session, Transport},
        policy::{PolicySource, compile},
    };

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    /// Independently of how the kernel's events were processed.
    #[test]
    fn no_change_is_told_that_names_what_may_not_be_listed() {
        let text = "schema = 1\n[allowedPaths]\nlist = [\"src/**\"]\n[[rules]]\nid = \"no\"\n\
            effect = \"deny\"\npaths = [\"src/no/**\"]\n";
        let policy = Arc::new(compile(&PolicySource::from_text("test", text)).unwrap());
        let agent = "agent".parse().unwrap();
        let session = Session {
            id: "s".into(),
            agent,
            user: "u".into(),
            transport: Transport::Cli,
            acp: None,
        };
        let queue = Arc::new(Queue::new(session, WorkspacePath::root()));
        let handle = Handle { queue, hub: Weak::new(), policy: Arc::new(InForce::new(&policy)) };
        let may_hear = |what: &EventKind, at: &str, kind| {
            handle.may_hear(&Change { what: what.clone(), path: path(at), kind })
        };
        let renamed = |from| EventKind::Renamed { from: path(from) };
        for kind in [ObjectKind::File, ObjectKind::Directory] {
            for what in [EventKind::Created, EventKind::Modified, EventKind::Deleted] {
                assert!(may_hear(&what, "src/a", kind));
                assert!(!may_hear(&what, "src/no/a", kind) && !may_hear(&what, "a", kind));
            }
            assert!(may_hear(&renamed("src/a"), "src/b", kind));
            assert!(!may_hear(&renamed("src/no/a"), "src/b", kind));
            assert!(!may_hear(&renamed("src/a"), "src/no/b", kind));
        }
        // The root, which nothing allows, is the watched path.
        let directory = ObjectKind::Directory;
        assert!(may_hear(&EventKind::Rescan, ".", directory));
        assert!(may_hear(&EventKind::Rescan, "src/a", directory));
        assert!(!may_hear(&EventKind::Rescan, "src/no", directory));
        let stricter = text.replace("src/no/**", "src/**");
        let stricter = compile(&PolicySource::from_text("test", &stricter)).unwrap();
        handle.policy.set(&Arc::new(stricter));
        assert!(!may_hear(&EventKind::Created, "src/a", ObjectKind::File));
    }
}
