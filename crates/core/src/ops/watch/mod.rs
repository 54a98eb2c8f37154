//! Subscriptions to changes.
//!
//! One [`Watcher`] serves a gateway. `portcullis-search` finds the changes and their subscribers,
//! over the directories that `system` opens and watches; each change is decided on once more when a
//! [`Subscription`] takes it. Links are not followed, other file systems not entered; inotify does
//! not report changes through mapped memory, so neither does this module.

mod subscription;
mod system;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use portcullis_search::watch::{EndedSubscription, Extent, Hub, Queue, Refusal};
pub use subscription::{Event, Subscription};

use super::{Context, Error, Facts, Sealed, Start};
use crate::{
    model::{AgentName, Session, WatchQuery, WorkspacePath},
    policy::{ObjectKind, Policy},
    workspace::{self, WatchError, Workspace},
};
use subscription::InForce;
use system::System;

/// Maximum number of subscriptions of one gateway.
const MAX_WATCHES: usize = 4096;
/// Maximum number of subscriptions of one session.
const MAX_WATCHES_OF_SESSION: usize = 256;

/// Watches the workspace for subscribers. Costs nothing before the first one.
#[derive(Default)]
pub(crate) struct Watcher(Mutex<Option<Running>>);

struct Running {
    hub: Arc<Hub<System>>,
    policy: Arc<InForce>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Subscribes to the path of `query`, which is canonical and decided on.
    ///
    /// # Errors
    /// When there are too many subscriptions, when the system does not watch as many directories,
    /// and [`workspace::Error::Moved`] when another policy is in force now.
    fn subscribe(
        &self,
        workspace: &Workspace,
        policy: &Arc<Policy>,
        session: &Session,
        query: &WatchQuery,
    ) -> Result<Sealed<Subscription>, Error> {
        let (hub, in_force) = self.hub(workspace, policy)?;
        let (all, own) = hub.count(&session.id);
        if all >= MAX_WATCHES || own >= MAX_WATCHES_OF_SESSION {
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

    /// Returns the number of subscriptions of an agent.
    pub(crate) fn of_agent(&self, agent: &AgentName) -> usize {
        self.lock().as_ref().map_or(0, |running| running.hub.of_agent(agent))
    }

    /// Decides by another policy from now on. All subscribers have to look again, and the
    /// subscriptions that it denies end.
    pub(crate) fn set_policy(&self, policy: &Arc<Policy>) {
        if let Some(running) = &*self.lock() {
            running.policy.set(policy);
            running.hub.set_policy(Arc::clone(policy));
        }
    }

    /// Ends the subscriptions of a session, because nothing is disclosed to it any more.
    pub(crate) fn end_session(&self, session: &str) {
        if let Some(running) = &*self.lock() {
            running.hub.end_session(session);
        }
    }

    /// Returns the subscriptions that have ended since the last call.
    pub(crate) fn ended(&self) -> Vec<EndedSubscription> {
        self.lock().as_ref().map(|running| running.hub.ended()).unwrap_or_default()
    }

    /// Ends all subscriptions; returns those that [`Self::ended`] has not returned.
    pub(crate) fn stop(&self) -> Vec<EndedSubscription> {
        let Some(running) = self.lock().take() else { return Vec::new() };
        running.hub.stop();
        // The thread only has to end.
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

/// Subscribes to `query`, from the start that the gateway has decided on. Changes stay sealed until
/// the record is safe.
///
/// # Errors
/// As [`Watcher::subscribe`]; when the start is missing or of a kind that does not change, and when
/// names to ignore are invalid.
pub(crate) fn prepare(
    watcher: &Watcher,
    context: &Context<'_>,
    policy: &Arc<Policy>,
    session: &Session,
    start: &Start,
    query: &WatchQuery,
) -> Result<Sealed<Subscription>, Error> {
    if query.ignore.len() > WatchQuery::MAX_IGNORED {
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
