//! The server as `rmcp` calls it.
//!
//! Everything here runs on one thread and never waits for a disk but to record
//! what was refused; calls of tools are carried out by a few other threads.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use portcullis_audit::Receipt;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotification,
        CancelledNotificationParam, ClientResult, CustomRequest, CustomResult, ElicitRequest,
        ErrorCode, Implementation, InitializeRequestParams, InitializeResult, InputRequest,
        InputRequiredResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
        RequestId, ServerCapabilities, ServerConfig, ServerRequest, SubscribeRequestParams,
        SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{PeerRequestOptions, RequestContext, ServiceError, SubscriptionContext},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    frontend::paths::Roots,
    gateway::{Gateway, Refusal, Ticket},
    model::{Access, Escaped, OperationKind, Session},
    ops::{Follower, Unfollowed},
    policy::Query,
};

use super::{
    Config,
    answer::{self, Trouble},
    arguments::Arguments,
    asking::{self, Asker, Cancel},
    call::Call,
    changes::{Changes, Sink},
    follow::{Followed, Progress},
    outlet::Outlet,
    resources,
    tools::{self, Tool},
};

/// Most calls that are not answered yet.
const MOST_CALLS: usize = 1024;
/// Most bytes of arguments of calls that are not answered yet; a larger call
/// goes alone.
const MOST_BYTES: usize = 64 << 20;
/// Most calls that wait for a client to come back with an answer.
const MOST_OPEN: usize = 64;
/// The question's name where a call says that it needs input.
const QUESTION: &str = "approval";

/// What the threads share.
pub(super) struct Shared {
    pub(super) gateway: Arc<Gateway>,
    pub(super) outlet: Arc<Outlet>,
    session: Session,
    roots: Roots,
    tools: Vec<Tool>,
    /// Whether the session is another door's.
    guest: bool,
    left: AtomicBool,
    closed: Arc<AtomicBool>,
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

impl Shared {
    /// Records what was no request.
    pub(super) fn report(&self, event: &str, facts: BTreeMap<String, Value>) -> Option<Receipt> {
        // Without its log the gateway refuses every file by itself.
        self.gateway
            .report(&self.session, event, facts)
            .inspect_err(|error| tracing::error!(%error, "cannot record"))
            .ok()
    }

    /// The client says no more: nobody is there to be asked.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        for ticket in self.gateway.approvals().waiting() {
            // Another door's requests of the same session are not the client's.
            if ticket.question().session == self.session {
                ticket.withdraw();
            }
        }
    }

    /// The client hears no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.leave();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Lets what is left go out, and forgets what the session did.
    pub(super) fn end(&self, grace: Duration) {
        self.outlet.close(grace);
        if self.outlet.failed() {
            let why = json!("the client did not take all answers");
            self.report("mcp.dropped", BTreeMap::from([("why".to_owned(), why)]));
        }
        if !self.guest {
            self.gateway.end_session(&self.session);
        }
    }

    fn refuse(&self, op: &str, path: Option<&str>, refusal: &Refusal) -> crate::gateway::Error {
        self.gateway.refuse(&self.session, op, path, refusal)
    }

    fn call<'a>(&'a self, asker: &'a Asker, follower: &'a dyn Follower) -> Call<'a> {
        // A client that does not read keeps nothing in memory but what has begun.
        self.outlet.wait_room();
        Call {
            gateway: &self.gateway,
            session: &self.session,
            roots: &self.roots,
            approver: asker,
            follower,
            receipts: Default::default(),
        }
    }

    /// Carries a call out.
    fn run(
        &self,
        tool: usize,
        arguments: &Arguments,
        asker: &Asker,
        follower: &dyn Follower,
    ) -> CallToolResult {
        let Some(tool) = self.tools.get(tool) else {
            return answer::said("no such tool", &[]);
        };
        let call = self.call(asker, follower);
        let result = tool.run(&call, arguments);
        let receipts = call.receipts.into_inner();
        match result {
            Ok(answer) => answer::done(answer, &receipts),
            Err(Trouble::Gate(error)) => answer::failed(&error, &receipts),
            Err(Trouble::Said(message)) => answer::said(&message, &receipts),
            Err(Trouble::Arguments(why)) => {
                let refusal = Refusal::Parameters(why);
                let kind = tool.kind().as_str();
                let error = self.refuse(kind, arguments.shown_path(), &refusal);
                answer::failed(&error, &receipts)
            }
        }
    }
}

/// A call under way.
struct Running {
    tool: usize,
    arguments: Arc<Arguments>,
    work: Work<CallToolResult>,
}

/// Something that another thread carries out.
struct Work<T> {
    done: JoinHandle<T>,
    asked: mpsc::UnboundedReceiver<Arc<Ticket>>,
    cancel: Arc<Cancel>,
    entries: watch::Receiver<u64>,
}

/// A call that waits for the client to come back.
struct Open {
    running: Running,
    ticket: Arc<Ticket>,
    until: Instant,
}

/// How the client's user can be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By nobody here.
    None,
    /// By a request to the client.
    Request,
    /// By the call's own result.
    Result,
}

/// The server of one client.
pub(super) struct Server {
    shared: Arc<Shared>,
    config: Config,
    by_name: HashMap<String, usize>,
    open: Mutex<HashMap<String, Open>>,
    /// What the client subscribed to.
    changes: Arc<Changes>,
    introduced: AtomicBool,
}

impl Server {
    pub(super) fn new(
        gateway: Arc<Gateway>,
        config: Config,
        roots: Roots,
        output: File,
    ) -> io::Result<Self> {
        let session = config.session.clone();
        let tools = tools::tools(&config.toolset, &gateway.policy(), &session.agent);
        let names = tools.iter().map(|tool| tool.shown().name.to_string());
        let by_name = names.zip(0..).collect();
        let closed = Arc::<AtomicBool>::default();
        let gone = Arc::clone(&closed);
        let shared = Shared {
            gateway,
            outlet: Outlet::start(output, move || gone.store(true, Ordering::SeqCst))?,
            session,
            roots,
            tools,
            guest: config.guest.is_some(),
            left: AtomicBool::default(),
            closed,
            calls: AtomicUsize::default(),
            bytes: AtomicUsize::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            config,
            by_name,
            open: Mutex::default(),
            changes: Arc::default(),
            introduced: AtomicBool::default(),
        })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Starts a call in another thread.
    fn start(&self, tool: usize, arguments: Arguments) -> Running {
        let arguments = Arc::new(arguments);
        let given = Arc::clone(&arguments);
        let weight = arguments.weight();
        let work = self.begin(weight, move |shared, asker, follower| {
            shared.run(tool, &given, asker, follower)
        });
        Running { tool, arguments, work }
    }

    /// Has another thread do something that keeps `weight` bytes.
    fn begin<T: Send + 'static>(
        &self,
        weight: usize,
        act: impl FnOnce(&Shared, &Asker, &Followed) -> T + Send + 'static,
    ) -> Work<T> {
        let (sender, asked) = mpsc::unbounded_channel();
        let cancel = Arc::new(Cancel::default());
        let asker = Asker { cancel: Arc::clone(&cancel), asked: sender };
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
    async fn about_resources<T: Send + 'static>(
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
    async fn follow(
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
            if self.shared.left.load(Ordering::SeqCst) {
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

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a call, on record, in the protocol's own way.
    fn refused(&self, op: &str, refusal: &Refusal, message: String) -> ErrorData {
        let error = self.shared.refuse(op, None, refusal);
        ErrorData::new(ErrorCode::INVALID_PARAMS, message, Some(answer::describe(&error)))
    }

    /// Records once who the client says it is.
    fn introduce(&self, client: Option<Implementation>, version: Option<ProtocolVersion>) {
        if self.introduced.swap(true, Ordering::SeqCst) {
            return;
        }
        let short = |text: &str| text.chars().take(200).collect::<String>();
        let mut facts = BTreeMap::new();
        if let Some(client) = client {
            facts.insert("client".to_owned(), json!(short(&client.name)));
            facts.insert("clientVersion".to_owned(), json!(short(&client.version)));
        }
        let version = version.map(|version| json!(short(version.as_str())));
        facts.extend(version.map(|version| ("protocolVersion".to_owned(), version)));
        if let Err(error) = self.shared.gateway.note(&self.shared.session, "mcp.client", facts) {
            tracing::error!(%error, "cannot record");
        }
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
    eprintln!(
        "portcullis: waiting up to {} s for approval of {}; in a shell, `portcullis approve {}` \
         or `portcullis approve --reject {}`",
        question.timeout.as_secs(),
        Escaped(&crate::frontend::question::what(question)),
        question.id,
        question.id,
    );
}

/// Asks the client's user by a request of the gate's own.
async fn elicit(context: &RequestContext<RoleServer>, ticket: &Arc<Ticket>) {
    let Some(form) = asking::form(ticket.question()) else { return };
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
    let options = PeerRequestOptions::no_options();
    let handle = match context.peer.send_cancellable_request(request, options).await {
        Ok(handle) => handle,
        Err(error) => {
            tracing::warn!(%error, "the client cannot be asked for approval");
            return;
        }
    };
    let mut withdrawal = Withdrawal { context, id: Some(handle.id.clone()) };
    let answered = handle.await_response().await;
    withdrawal.id = None;
    match answered {
        Ok(ClientResult::ElicitResult(result)) => asking::take(ticket, &result),
        Ok(_) => {
            let _ = ticket.answer(crate::gateway::Answer::Reject, "an answer that cannot be read");
        }
        // A client that cannot ask has not answered.
        Err(ServiceError::McpError(error)) => {
            tracing::warn!(code = error.code.0, "the client did not ask its user");
        }
        Err(error) => tracing::warn!(%error, "the client did not answer"),
    }
}

/// Takes a question back that nobody waits for any more.
struct Withdrawal<'a> {
    context: &'a RequestContext<RoleServer>,
    id: Option<RequestId>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let peer = self.context.peer.clone();
        let params = CancelledNotificationParam::new(Some(id), Some("answered".to_owned()));
        tokio::spawn(async move {
            // Only a courtesy.
            let _ = peer.send_notification(CancelledNotification::new(params).into()).await;
        });
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("portcullis", env!("CARGO_PKG_VERSION"))
                    .with_title("Portcullis"),
            )
            .with_instructions(
                "Files of one workspace, through a gate: a policy decides about every call, what \
                 is changed is kept in a backup, and everything is recorded. What is denied stays \
                 denied; the result says by which rule.",
            )
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let result = self.negotiate_initialize(&request)?;
        self.introduce(Some(request.client_info), Some(result.protocol_version.clone()));
        Ok(result)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method: String = request.method.chars().take(128).collect();
        let error = self.shared.refuse(&method, None, &Refusal::Method);
        let message = format!("there is no method `{}`", Escaped(&method));
        let details = Some(answer::describe(&error));
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, details))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        let tools = self.shared.tools.iter().map(|tool| tool.shown().clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        let Some(tool) = self.by_name.get(request.name.as_ref()).copied() else {
            let name: String = request.name.chars().take(128).collect();
            let message = format!("there is no tool `{}`", Escaped(&name));
            return Err(self.refused(&format!("tool {name}"), &Refusal::Method, message));
        };
        let arguments = Arguments::new(request.arguments);
        if let Some(state) = request.request_state {
            let open = self.lock().remove(&state);
            let Some(open) = open
                .filter(|open| open.running.tool == tool && *open.running.arguments == arguments)
            else {
                let message = "no call with these arguments waits for this `requestState`";
                let refusal = Refusal::Parameters(message.to_owned());
                return Err(self.refused("tools/call", &refusal, message.to_owned()));
            };
            let given = request.input_responses.as_ref().and_then(|given| given.get(QUESTION));
            asking::take_value(&open.ticket, given);
            return Ok(self.follow(open.running, &context).await);
        }
        let calls = self.shared.calls.load(Ordering::SeqCst);
        let bytes = self.shared.bytes.load(Ordering::SeqCst);
        if calls >= MOST_CALLS
            || (calls > 0 && bytes.saturating_add(arguments.weight()) > MOST_BYTES)
        {
            let refusal = Refusal::Parameters("too many calls are under way".to_owned());
            let kind = self.shared.tools.get(tool).map_or("tool", |tool| tool.kind().as_str());
            let error = self.shared.refuse(kind, arguments.shown_path(), &refusal);
            return Ok(CallToolResponse::Complete(answer::failed(&error, &[])));
        }
        let quick = self.shared.tools.get(tool).is_some_and(Tool::is_quick);
        if calls == 0 && quick && self.config.prompt {
            // Nobody waits for this thread, and no other has to be woken.
            let asker = Asker::nobody();
            let result = self.shared.run(tool, &arguments, &asker, &Unfollowed);
            return Ok(CallToolResponse::Complete(result));
        }
        let running = self.start(tool, arguments);
        Ok(self.follow(running, &context).await)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let list = move |call: &Call<'_>| resources::list(call, request);
        let listed = self.about_resources("resources/list", &context, list).await?;
        if context.protocol_version().is_none_or(|version| version.has_initialize()) {
            // Who asks for the list wants to hear when it changes.
            self.changes.start(&self.shared.outlet, &context.peer);
            let changes = Arc::clone(&self.changes);
            drop(self.begin(0, move |shared, _, _| {
                if let Err(error) = changes.follow_list(&shared.gateway, &shared.session) {
                    tracing::warn!(%error, "changes of the list of resources are not told");
                }
            }));
        }
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        Ok(resources::templates(&self.shared.roots))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = move |call: &Call<'_>| resources::read(call, &request.uri);
        self.about_resources("resources/read", &context, read).await.map(Into::into)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.changes.start(&self.shared.outlet, &context.peer);
        let changes = Arc::clone(&self.changes);
        let follow = move |call: &Call<'_>| follow(&changes, call, &request.uri);
        self.about_resources("resources/subscribe", &context, follow).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let changes = Arc::clone(&self.changes);
        let leave = move |call: &Call<'_>| {
            changes.leave(call.gateway, &request.uri);
            Ok(())
        };
        self.about_resources("resources/unsubscribe", &context, leave).await
    }

    /// Those URIs that a subscription may be about at all.
    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let policy = self.shared.gateway.policy();
        let possible = |uri: &&String| {
            let Some(Ok(path)) = resources::parse(&self.shared.roots, uri) else { return false };
            let (agent, path) = (&self.shared.session.agent, &path);
            let (operation, access) = (OperationKind::Watch, Access::List);
            policy.evaluate(&Query { agent, operation, access, path }).is_allow()
        };
        let mut accepted = SubscriptionFilter::new();
        accepted.resources_list_changed = requested.resources_list_changed;
        let uris = requested.resource_subscriptions.as_ref();
        accepted.resource_subscriptions =
            uris.map(|uris| uris.iter().filter(possible).cloned().collect());
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let accepted = context.accepted().clone();
        // What it follows ends with it.
        let changes = Ending { changes: Arc::default(), shared: Arc::clone(&self.shared) };
        let followed = Arc::clone(&changes.changes);
        let request = context.request_context();
        let begin = move |call: &Call<'_>| {
            for uri in accepted.resource_subscriptions.iter().flatten() {
                follow(&followed, call, uri)?;
            }
            match accepted.resources_list_changed {
                Some(true) => followed
                    .follow_list(call.gateway, call.session)
                    .map_err(|error| resources::error(&error, None)),
                _ => Ok(()),
            }
        };
        self.about_resources("subscriptions/listen", request, begin).await?;
        let sink = Sink::Stream(context.sink().clone());
        tokio::select! {
            () = context.cancelled() => {}
            () = changes.changes.tell(&self.shared.outlet, &sink) => {}
        }
        Ok(())
    }
}

/// Follows what a URI names.
fn follow(changes: &Changes, call: &Call<'_>, uri: &str) -> Result<(), ErrorData> {
    let path = resources::path(call, OperationKind::Watch, uri)?;
    changes
        .follow(call.gateway, call.session, uri, path)
        .map_err(|error| resources::error(&error, Some(uri)))
}

/// What a stream follows, which ends with the stream.
struct Ending {
    changes: Arc<Changes>,
    shared: Arc<Shared>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.changes.end(&self.shared.gateway);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.changes.end(&self.shared.gateway);
    }
}
