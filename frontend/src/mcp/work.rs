//! Calls while they are carried out by other threads: following one until it is
//! done, asking the client's user on the way, and keeping those that wait for
//! the client to come back with an answer.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write as _},
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolResponse, CallToolResult, ElicitRequest, InputRequest, InputRequiredResult},
    service::RequestContext,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    gateway::{Refusal, Ticket},
    lock,
    model::Escaped,
};

use super::{
    answer,
    arguments::Arguments,
    asking::{self, Asker, Cancel},
    call::Call,
    elicit::elicit,
    follow::{Followed, Progress},
    server::{MOST_CALLS, QUESTION, Server},
    shared::Shared,
};

/// Most calls that wait for a client to come back with an answer.
const MOST_OPEN: usize = 64;

/// A call under way.
pub(super) struct Running {
    pub(super) tool: usize,
    pub(super) arguments: Arc<Arguments>,
    pub(super) work: Work<CallToolResult>,
}

/// Something that another thread carries out.
pub(super) struct Work<T> {
    done: JoinHandle<T>,
    asked: mpsc::UnboundedReceiver<Arc<Ticket>>,
    cancel: Arc<Cancel>,
    entries: watch::Receiver<u64>,
}

/// A call that waits for the client to come back.
pub(super) struct Open {
    pub(super) running: Running,
    pub(super) ticket: Arc<Ticket>,
    until: Instant,
}

/// How the client's user can be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By nobody here.
    None,
    /// By a request to the client.
    Request,
    /// By the call's own result.
    Result,
}

impl Server {
    /// Starts a call in another thread.
    pub(super) fn start(&self, tool: usize, arguments: Arguments) -> Running {
        let arguments = Arc::new(arguments);
        let given = Arc::clone(&arguments);
        let weight = arguments.weight();
        let work = self.begin(weight, move |shared, asker, follower| {
            shared.run(tool, &given, asker, follower)
        });
        Running { tool, arguments, work }
    }

    /// Has another thread do something that keeps `weight` bytes.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        weight: usize,
        act: impl FnOnce(&Shared, &Asker, &Followed) -> T + Send + 'static,
    ) -> Work<T> {
        let (sender, asked) = mpsc::unbounded_channel();
        let cancel = Arc::new(Cancel::default());
        let tickets = Arc::clone(&self.shared.tickets);
        let asker = Asker { cancel: Arc::clone(&cancel), asked: sender, tickets };
        let (follower, entries) = Followed::new(&cancel, &self.shared.closed);
        let shared = Arc::clone(&self.shared);
        shared.calls.fetch_add(1, Ordering::SeqCst);
        shared.bytes.fetch_add(weight, Ordering::SeqCst);
        let done = tokio::task::spawn_blocking(move || {
            let result = act(&shared, &asker, &follower);
            shared.calls.fetch_sub(1, Ordering::SeqCst);
            shared.bytes.fetch_sub(weight, Ordering::SeqCst);
            result
        });
        Work { done, asked, cancel, entries }
    }

    /// Does something about resources in another thread, and waits for it.
    pub(super) async fn about_resources<T: Send + 'static>(
        &self,
        op: &str,
        context: &RequestContext<RoleServer>,
        act: impl FnOnce(&Call<'_>) -> Result<T, ErrorData> + Send + 'static,
    ) -> Result<T, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        if self.shared.calls.load(Ordering::SeqCst) >= MOST_CALLS {
            let why = "too many calls are under way".to_owned();
            return Err(self.refused(op, &Refusal::Parameters(why.clone()), why));
        }
        let mut work =
            self.begin(0, move |shared, asker, follower| act(&shared.call(asker, follower)));
        let mut progress = Progress::new(context, work.entries);
        loop {
            tokio::select! {
                biased;
                done = &mut work.done => return done.unwrap_or_else(|error| {
                    tracing::error!(%error, "a request came to no end");
                    Err(ErrorData::internal_error("the gate failed", None))
                }),
                Some(ticket) = work.asked.recv() => {
                    announce(&ticket);
                    if self.way(context) == Way::Request {
                        elicit(context, &ticket).await;
                    }
                }
                () = context.ct.cancelled(), if !work.cancel.is_cancelled() => work.cancel.cancel(),
                entries = progress.made() => progress.tell(context, entries).await,
            }
        }
    }

    /// Follows a call until it is done or has to ask through its result.
    pub(super) async fn follow(
        &self,
        mut running: Running,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let way = self.way(context);
        let mut _asked = None;
        let mut progress = Progress::new(context, running.work.entries.clone());
        loop {
            let work = &mut running.work;
            let ticket = tokio::select! {
                biased;
                done = &mut work.done => return complete(done),
                Some(ticket) = work.asked.recv() => ticket,
                () = context.ct.cancelled() => {
                    work.cancel.cancel();
                    return complete((&mut work.done).await);
                }
                entries = progress.made() => {
                    progress.tell(context, entries).await;
                    continue;
                }
            };
            if self.shared.left.is_cancelled() {
                ticket.withdraw();
                continue;
            }
            announce(&ticket);
            // Taken back when the next one comes or the call is over.
            _asked = self.config.guest.as_ref().and_then(|guest| guest.ask(&ticket));
            match way {
                Way::None => {}
                Way::Request => {
                    tokio::select! {
                        biased;
                        done = &mut work.done => return complete(done),
                        () = context.ct.cancelled() => work.cancel.cancel(),
                        () = elicit(context, &ticket) => {}
                    }
                }
                Way::Result => {
                    let Some(form) = asking::form(ticket.question()) else { continue };
                    let request = InputRequest::Elicitation(ElicitRequest::new(form));
                    let requests = BTreeMap::from([(QUESTION.to_owned(), request)]);
                    let until = ticket.question().since + ticket.question().timeout;
                    let open = Open { running, ticket, until };
                    return match self.keep(open) {
                        Ok(state) => InputRequiredResult::new(Some(requests), Some(state)).into(),
                        Err(open) => {
                            open.running.work.cancel.cancel();
                            complete(open.running.work.done.await)
                        }
                    };
                }
            }
        }
    }

    fn way(&self, context: &RequestContext<RoleServer>) -> Way {
        let capabilities = context.client_capabilities();
        let elicits = capabilities.and_then(|capabilities| capabilities.elicitation);
        // A client that does not say which form it takes takes forms.
        let elicits = elicits.is_some_and(|how| how.form.is_some() || how.url.is_none());
        if !elicits || !self.config.elicit || self.config.guest.is_some() {
            return Way::None;
        }
        match context.protocol_version() {
            Some(version) if version.has_initialize() => Way::Request,
            Some(_) => Way::Result,
            None => Way::None,
        }
    }

    /// Keeps a call until the client comes back with the state that this gives.
    fn keep(&self, open: Open) -> Result<String, Box<Open>> {
        let mut bytes = [0_u8; 16];
        let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let mut all = self.lock();
        let now = Instant::now();
        // Those to which nobody came back have had their answer from the clock.
        all.retain(|_, open| open.until + Duration::from_secs(60) > now);
        if all.len() >= MOST_OPEN || random.ok() != Some(bytes.len()) {
            return Err(Box::new(open));
        }
        let state = format!("{:032x}", u128::from_be_bytes(bytes));
        all.insert(state.clone(), open);
        Ok(state)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        lock(&self.open)
    }
}

fn complete(done: Result<CallToolResult, tokio::task::JoinError>) -> CallToolResponse {
    let result = done.unwrap_or_else(|error| {
        tracing::error!(%error, "a call came to no end");
        answer::said("the gate failed", &[])
    });
    CallToolResponse::Complete(result)
}

/// Tells whoever looks at the gate's stderr how to answer.
fn announce(ticket: &Ticket) {
    let question = ticket.question();
    // Nobody may be there to read it, which is no reason to stop.
    let _ = writeln!(
        io::stderr(),
        "portcullis: waiting up to {} s for approval of {}; in a shell, `portcullis approve {}` \
         or `portcullis approve --reject {}`",
        question.timeout.as_secs(),
        Escaped(&crate::question::what(&question.for_sender())),
        question.id,
        question.id,
    );
}
