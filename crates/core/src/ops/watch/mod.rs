//! Telling subscribers what changes.
//!
//! One [`Watcher`] serves a gate. What is told of, and to whom, is worked out in
//! `portcullis-search`, over the directories that `system` opens and watches; each change is
//! decided on once more when a [`Subscription`] takes it. Links are not followed, other file
//! systems not entered; changes through mapped memory are no news to inotify and so none here.

mod subscription;
mod system;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use portcullis_search::watch::{Ended, Extent, Hub, Queue, Refusal};
pub use subscription::{Event, Subscription};

use super::{Context, Error, Facts, Sealed, Start};
use crate::{
    model::{AgentName, Session, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
    workspace::{self, WatchError, Workspace},
};
use subscription::InForce;
use system::System;

/// Most subscribers of one gate.
const MOST: usize = 4096;
/// Most of one session.
const MOST_OF_SESSION: usize = 256;

/// Watches the workspace for whoever wants to hear of changes. Costs nothing
/// before somebody does.
#[derive(Default)]
pub(crate) struct Watcher(Mutex<Option<Running>>);

struct Running {
    hub: Arc<Hub<System>>,
    policy: Arc<InForce>,
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
        let (hub, in_force) = self.hub(workspace, policy)?;
        let (all, own) = hub.count(&session.id);
        if all >= MOST || own >= MOST_OF_SESSION {
            return Err(Error::Invalid("there are too many subscriptions"));
        }
        let queue = Arc::new(Queue::new(session.clone(), query.path.clone()));
        let extent = hub.subscribe(&session.agent, query, Arc::clone(&queue));
        let Extent { directories, unreadable } = extent.map_err(|error| match error {
            Refusal::Denied => workspace::Error::Moved.into(),
            Refusal::TooLarge => workspace::Error::TooLarge.into(),
            Refusal::System(error) => Error::from(error),
        })?;
        let mut facts = Facts::default();
        facts.count("directories", directories);
        facts.count("unreadable", unreadable);
        Ok(Sealed::names(Subscription::new(queue, Arc::downgrade(&hub), in_force), facts))
    }

    /// How many subscriptions an agent has.
    pub(crate) fn of_agent(&self, agent: &AgentName) -> usize {
        self.lock().as_ref().map_or(0, |running| running.hub.of_agent(agent))
    }

    /// Judges by another policy from now on. Everybody has to look again, and
    /// whoever may not subscribe any more has come to an end.
    pub(crate) fn set_policy(&self, policy: &Arc<Policy>) {
        if let Some(running) = &*self.lock() {
            running.policy.set(policy);
            running.hub.set_policy(Arc::clone(policy));
        }
    }

    /// Ends what a session subscribed to, because nothing is disclosed to it any
    /// more.
    pub(crate) fn end_session(&self, session: &str) {
        if let Some(running) = &*self.lock() {
            running.hub.end_session(session);
        }
    }

    /// The subscriptions that have ended since this was asked last.
    pub(crate) fn ended(&self) -> Vec<Ended> {
        self.lock().as_ref().map(|running| running.hub.ended()).unwrap_or_default()
    }

    /// Ends all subscriptions; gives those that were not asked for yet.
    pub(crate) fn stop(&self) -> Vec<Ended> {
        let Some(running) = self.lock().take() else { return Vec::new() };
        running.hub.stop();
        // It has nothing left to do but to end.
        let _ = running.thread.join();
        running.hub.ended()
    }

    fn hub(
        &self,
        workspace: &Workspace,
        policy: &Arc<Policy>,
    ) -> Result<(Arc<Hub<System>>, Arc<InForce>), WatchError> {
        let mut running = self.lock();
        if let Some(Running { hub, policy, .. }) = &*running {
            return Ok((Arc::clone(hub), Arc::clone(policy)));
        }
        let failed = |error| workspace::Error::io("watch for changes")(error);
        let copy = workspace.try_clone().map_err(failed)?;
        let hub = Arc::new(Hub::new(System::new(copy)?, Arc::clone(policy)));
        let in_force = Arc::new(InForce::new(policy));
        let theirs = Arc::clone(&hub);
        let spawned = thread::Builder::new().name("watch".to_owned()).spawn(move || theirs.run());
        let thread = spawned.map_err(failed)?;
        let (shared, policy) = (Arc::clone(&hub), Arc::clone(&in_force));
        *running = Some(Running { hub: shared, policy, thread });
        Ok((hub, in_force))
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
