//! Operations on other threads: waiting for their end, and for approvals by the
//! client's user meanwhile.

use std::sync::{Arc, atomic::Ordering};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CallToolResult, ElicitRequestParams, ReadResourceResponse,
        ReadResourceResult, RequestId,
    },
    service::RequestContext,
};
use tokio::{sync::mpsc, task::JoinError};

use crate::gateway::{Refusal, Ticket};

use super::{
    approver::{self, CallApprover, Cancel},
    arguments::Arguments,
    call::Call,
    elicit::elicit,
    progress::{Followed, Progress},
    running::{Reading, Running, RunningOperation},
    server::{MAX_PENDING_CALLS, Server},
    shared::Shared,
    tool_result,
};

/// The state of an operation.
enum Step<T> {
    /// The operation has ended.
    Done(Result<T, JoinError>),
    /// The operation continues when the client repeats the request with an answer to this
    /// question.
    Asks(Arc<Ticket>, ElicitRequestParams),
}

/// The way to ask the client's user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AskMethod {
    /// The client cannot ask.
    None,
    /// A request to the client.
    Request,
    /// The reply to the call.
    Result,
}

impl Server {
    /// Starts a call in another thread.
    pub(super) fn start(&self, tool: usize, id: RequestId, arguments: Arguments) -> Running {
        let arguments = Arc::new(arguments);
        let given = Arc::clone(&arguments);
        let weight = arguments.weight();
        let work = self.begin(weight, move |shared, asker, follower| {
            shared.run(tool, (&id, &given), asker, follower)
        });
        Running { tool, arguments, work }
    }

    /// Runs a function on another thread; its arguments occupy `weight` bytes.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        weight: usize,
        act: impl FnOnce(&Shared, &CallApprover, &Followed) -> T + Send + 'static,
    ) -> RunningOperation<T> {
        let (sender, asked) = mpsc::unbounded_channel();
        let cancel = Arc::new(Cancel::default());
        let tickets = Arc::clone(&self.shared.tickets);
        let asker = CallApprover { cancel: Arc::clone(&cancel), asked: sender, tickets };
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
        RunningOperation { done, asked, cancel, entries }
    }

    /// Runs an operation on resources on another thread, and waits for it.
    pub(super) async fn about_resources<T: Send + 'static>(
        &self,
        op: &str,
        context: &RequestContext<RoleServer>,
        act: impl FnOnce(&Call<'_>) -> Result<T, ErrorData> + Send + 'static,
    ) -> Result<T, ErrorData> {
        let mut work = self.begin_about(op, context, act).await?;
        // Only calls of tools and reads may reply that they need input.
        let way = Some(self.way(context))
            .filter(|way| *way != AskMethod::Result)
            .unwrap_or(AskMethod::None);
        match self.step(&mut work, way, context).await {
            Step::Done(done) => ended(done),
            Step::Asks(..) => ended(work.give_up().await),
        }
    }

    /// Starts to read a resource in another thread.
    pub(super) async fn start_reading(
        &self,
        uri: String,
        context: &RequestContext<RoleServer>,
        read: impl FnOnce(&Call<'_>, &str) -> Result<ReadResourceResult, ErrorData> + Send + 'static,
    ) -> Result<Reading, ErrorData> {
        let named = uri.clone();
        let work =
            self.begin_about("resources/read", context, move |call| read(call, &named)).await?;
        Ok(Reading { uri, work })
    }

    async fn begin_about<T: Send + 'static>(
        &self,
        op: &str,
        context: &RequestContext<RoleServer>,
        act: impl FnOnce(&Call<'_>) -> Result<T, ErrorData> + Send + 'static,
    ) -> Result<RunningOperation<Result<T, ErrorData>>, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        if self.shared.calls.load(Ordering::SeqCst) >= MAX_PENDING_CALLS {
            let reason = "too many calls are under way".to_owned();
            return Err(self.refused(op, &Refusal::Parameters(reason.clone()), reason));
        }
        if let Err(refusal) = self.begin_call(context).await {
            return Err(self.refused(op, &refusal, "too many calls are under way".to_owned()));
        }
        Ok(self.begin(0, move |shared, asker, follower| act(&shared.call(asker, follower))))
    }

    /// Waits until a call has ended or needs an answer through its reply.
    pub(super) async fn follow(
        &self,
        mut running: Running,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        match self.step(&mut running.work, self.way(context), context).await {
            Step::Done(done) => complete(done),
            Step::Asks(ticket, form) => match self.calls.keep(running, ticket, form) {
                Ok(needed) => needed.into(),
                Err(running) => complete(running.work.give_up().await),
            },
        }
    }

    /// Waits until a read of a resource has ended or needs an answer through its
    /// reply.
    pub(super) async fn follow_reading(
        &self,
        mut reading: Reading,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match self.step(&mut reading.work, self.way(context), context).await {
            Step::Done(done) => ended(done).map(Into::into),
            Step::Asks(ticket, form) => match self.reads.keep(reading, ticket, form) {
                Ok(needed) => Ok(needed.into()),
                Err(reading) => ended(reading.work.give_up().await).map(Into::into),
            },
        }
    }

    /// Waits until an operation has ended or needs an answer through its reply.
    async fn step<T>(
        &self,
        work: &mut RunningOperation<T>,
        way: AskMethod,
        context: &RequestContext<RoleServer>,
    ) -> Step<T> {
        let mut _asked = None;
        let mut progress = Progress::new(context, work.entries.clone());
        loop {
            let ticket = tokio::select! {
                biased;
                done = &mut work.done => return Step::Done(done),
                Some(ticket) = work.asked.recv() => ticket,
                () = context.ct.cancelled() => {
                    work.cancel.cancel();
                    return Step::Done((&mut work.done).await);
                }
                entries = progress.made() => {
                    progress.notify(context, entries).await;
                    continue;
                }
            };
            if self.shared.left.is_cancelled() {
                ticket.withdraw();
                continue;
            }
            self.announce(&ticket, context);
            // Withdrawn when the next question comes or the operation ends.
            _asked = self.config.attached.as_ref().and_then(|client| client.ask(&ticket));
            match way {
                AskMethod::None => {}
                AskMethod::Request => {
                    tokio::select! {
                        biased;
                        done = &mut work.done => return Step::Done(done),
                        () = context.ct.cancelled() => work.cancel.cancel(),
                        () = elicit(context, &ticket) => {}
                    }
                }
                AskMethod::Result => {
                    if let Some(form) = approver::form(ticket.question()) {
                        return Step::Asks(ticket, form);
                    }
                }
            }
        }
    }

    /// Announces an approval, and frees the request's slot meanwhile.
    fn announce(&self, ticket: &Ticket, context: &RequestContext<RoleServer>) {
        self.under_way.leave_slot(&context.id);
        let question = ticket.question();
        let mut further = self.config.further.iter();
        let asks = further.find(|one| one.gateway.workspace().root() == question.workspace);
        let options = asks.map_or(&self.config.options, |further| &further.options);
        (self.config.announce)(&question.for_sender(), options);
    }

    fn way(&self, context: &RequestContext<RoleServer>) -> AskMethod {
        let capabilities = context.client_capabilities();
        let elicits = capabilities.and_then(|capabilities| capabilities.elicitation);
        // A client that names no mode supports forms.
        let elicits = elicits.is_some_and(|how| how.form.is_some() || how.url.is_none());
        if !elicits || !self.config.elicit || self.config.attached.is_some() {
            return AskMethod::None;
        }
        match context.protocol_version() {
            Some(version) if version.has_initialize() => AskMethod::Request,
            Some(_) => AskMethod::Result,
            None => AskMethod::None,
        }
    }
}

fn ended<T>(done: Result<Result<T, ErrorData>, JoinError>) -> Result<T, ErrorData> {
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "the thread of a request ended without a result");
        Err(ErrorData::internal_error("the gateway failed", None))
    })
}

fn complete(done: Result<CallToolResult, JoinError>) -> CallToolResponse {
    let result = done.unwrap_or_else(|error| {
        tracing::error!(%error, "the thread of a call ended without a result");
        tool_result::failure("the gateway failed", &[])
    });
    CallToolResponse::Complete(result)
}
