//! Telling subscribers what changes.
//!
//! One [`Watcher`] serves a gate. Events are filtered for each subscriber by
//! the policy, name by name, as a search is: what may not be listed is not
//! seen, and what a subscriber may not be told of comes and goes for it as if
//! it did. When something could be missed, and beneath a directory that got another
//! name, the word is to look again, never silence. Links are not followed, other file systems not
//! entered; changes through mapped memory are no news to inotify and so none here.

mod found;
mod hub;
mod look;
mod notices;
mod queue;
mod scope;
mod subscription;
mod tree;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

pub(crate) use queue::Ended;
pub use queue::{Event, EventKind, WatchEnd};
pub use subscription::Subscription;

use super::{Context, Error, Facts, Sealed, Start};
use crate::{
    model::{AgentName, Session, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
    workspace::{self, Workspace},
};
use hub::{Extent, Shared};
use queue::Queue;

/// Most subscribers of one gate.
const MOST: usize = 4096;
/// Most of one session.
const MOST_OF_SESSION: usize = 256;

/// Watches the workspace for whoever wants to hear of changes. Costs nothing
/// before somebody does.
#[derive(Default)]
pub(crate) struct Watcher(Mutex<Option<Running>>);

struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Subscribes to what `query` names, whose path is canonical and decided
    /// on.
    ///
    /// # Errors
    /// When there are too many subscribers, when the system does not let so
    /// much be watched, and [`workspace::Error::Moved`] when another policy is
    /// in force now.
    fn subscribe(
        &self,
        workspace: &Workspace,
        policy: &Arc<Policy>,
        session: &Session,
        query: &WatchQuery,
    ) -> Result<Sealed<Subscription>, Error> {
        let shared = self.shared(workspace, policy)?;
        let (all, own) = shared.count(&session.id);
        if all >= MOST || own >= MOST_OF_SESSION {
            return Err(Error::Invalid("there are too many subscriptions"));
        }
        let queue = Arc::new(Queue::new(session.clone(), query.path.clone()));
        let extent = shared.subscribe(&session.agent, query, Arc::clone(&queue))?;
        let Extent { directories, unreadable } = extent;
        let mut facts = Facts::default();
        facts.count("directories", directories);
        facts.count("unreadable", unreadable);
        Ok(Sealed::new(Subscription::new(queue, Arc::downgrade(&shared)), facts))
    }

    /// How many subscriptions an agent has.
    pub(crate) fn of_agent(&self, agent: &AgentName) -> usize {
        self.lock().as_ref().map_or(0, |running| running.shared.of_agent(agent))
    }

    /// Judges by another policy from now on. Everybody has to look again, and
    /// whoever may not subscribe any more has come to an end.
    pub(crate) fn set_policy(&self, policy: &Arc<Policy>) {
        if let Some(running) = &*self.lock() {
            running.shared.set_policy(Arc::clone(policy));
        }
    }

    /// Ends what a session subscribed to, because nothing is disclosed to it any
    /// more.
    pub(crate) fn end_session(&self, session: &str) {
        if let Some(running) = &*self.lock() {
            running.shared.end_session(session);
        }
    }

    /// The subscriptions that have ended since this was asked last.
    pub(crate) fn ended(&self) -> Vec<Ended> {
        self.lock().as_ref().map(|running| running.shared.ended()).unwrap_or_default()
    }

    /// Ends all subscriptions; gives those that were not asked for yet.
    pub(crate) fn stop(&self) -> Vec<Ended> {
        let Some(running) = self.lock().take() else { return Vec::new() };
        running.shared.stop();
        // It has nothing left to do but to end.
        let _ = running.thread.join();
        running.shared.ended()
    }

    fn shared(&self, workspace: &Workspace, policy: &Arc<Policy>) -> Result<Arc<Shared>, Error> {
        let mut running = self.lock();
        if let Some(running) = &*running {
            return Ok(Arc::clone(&running.shared));
        }
        let failed = workspace::Error::io("watch for changes");
        let copy = workspace.try_clone().map_err(failed)?;
        let shared = Arc::new(Shared::new(copy, Arc::clone(policy))?);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || theirs.run())
            .map_err(workspace::Error::io("watch for changes"))?;
        *running = Some(Running { shared: Arc::clone(&shared), thread });
        Ok(shared)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// Subscribes to what `query` names, from where the gateway has decided that it
/// may begin. What waits is closed until the record is safe.
///
/// # Errors
/// As [`Watcher::subscribe`]; when nothing is there, or nothing that changes,
/// and when names to ignore are none.
pub(crate) fn prepare(
    watcher: &Watcher,
    context: &Context<'_>,
    policy: &Arc<Policy>,
    session: &Session,
    start: &Start,
    query: &WatchQuery,
) -> Result<Sealed<Subscription>, Error> {
    if query.ignore.len() > WatchQuery::MOST_IGNORED {
        return Err(Error::Invalid("too many names to ignore"));
    }
    if query.ignore.iter().any(|name| WorkspacePath::root().join(name).is_err()) {
        return Err(Error::Invalid("what is ignored are names of directories, not paths"));
    }
    let path = match start {
        Start::At(permit) => match permit.object().kind {
            ObjectKind::Directory | ObjectKind::File => permit.path(),
            ObjectKind::Missing => return Err(workspace::Error::NotFound.into()),
            _ => return Err(Error::Invalid("this is neither a file nor a directory")),
        },
        Start::Beneath(path) => path,
        Start::Asked => return Err(Error::Invalid("a person would have to be asked each time")),
    };
    let query = WatchQuery { path: path.clone(), ..query.clone() };
    watcher.subscribe(context.workspace, policy, session, &query)
}
