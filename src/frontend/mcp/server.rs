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
        InputRequiredResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion, RequestId,
        ServerCapabilities, ServerConfig, ServerRequest,
    },
    service::{PeerRequestOptions, RequestContext, ServiceError},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    frontend::paths::Roots,
    gateway::{Gateway, Refusal, Ticket},
    model::{Escaped, Session},
};

use super::{
    Config,
    answer::{self, Trouble},
    arguments::Arguments,
    asking::{self, Asker, Cancel},
    call::Call,
    outlet::Outlet,
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
            if ticket.question().session.id == self.session.id {
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
        self.gateway.end_session(&self.session);
    }

    fn refuse(&self, op: &str, path: Option<&str>, refusal: &Refusal) -> crate::gateway::Error {
        self.gateway.refuse(&self.session, op, path, refusal)
    }

    /// Carries a call out.
    fn run(&self, tool: usize, arguments: &Arguments, asker: &Asker) -> CallToolResult {
        let Some(tool) = self.tools.get(tool) else {
            return answer::said("no such tool", &[]);
        };
        // A client that does not read keeps nothing in memory but what has begun.
        self.outlet.wait_room();
        let cancelled = || asker.cancel.is_cancelled();
        let call = Call {
            gateway: &self.gateway,
            session: &self.session,
            roots: &self.roots,
            approver: asker,
            cancelled: &cancelled,
            receipts: Default::default(),
        };
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
    done: JoinHandle<CallToolResult>,
    asked: mpsc::UnboundedReceiver<Arc<Ticket>>,
    cancel: Arc<Cancel>,
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
            introduced: AtomicBool::default(),
        })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Starts a call in another thread.
    fn start(&self, tool: usize, arguments: Arguments) -> Running {
        let (sender, asked) = mpsc::unbounded_channel();
        let cancel = Arc::new(Cancel::default());
        let asker = Asker { cancel: Arc::clone(&cancel), asked: sender };
        let (shared, arguments) = (Arc::clone(&self.shared), Arc::new(arguments));
        let given = Arc::clone(&arguments);
        let weight = arguments.weight();
        shared.calls.fetch_add(1, Ordering::SeqCst);
        shared.bytes.fetch_add(weight, Ordering::SeqCst);
        let done = tokio::task::spawn_blocking(move || {
            let result = shared.run(tool, &given, &asker);
            shared.calls.fetch_sub(1, Ordering::SeqCst);
            shared.bytes.fetch_sub(weight, Ordering::SeqCst);
            result
        });
        Running { tool, arguments, done, asked, cancel }
    }

    /// Follows a call until it is done or has to ask through its result.
    async fn follow(
        &self,
        mut running: Running,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let way = self.way(context);
        loop {
            let ticket = tokio::select! {
                biased;
                done = &mut running.done => return complete(done),
                Some(ticket) = running.asked.recv() => ticket,
                () = context.ct.cancelled() => {
                    running.cancel.cancel();
                    return complete(running.done.await);
                }
            };
            if self.shared.left.load(Ordering::SeqCst) {
                ticket.withdraw();
                continue;
            }
            announce(&ticket);
            match way {
                Way::None => {}
                Way::Request => {
                    tokio::select! {
                        biased;
                        done = &mut running.done => return complete(done),
                        () = context.ct.cancelled() => running.cancel.cancel(),
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
                            open.running.cancel.cancel();
                            complete(open.running.done.await)
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
        if !elicits || !self.config.elicit {
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
        let capabilities = ServerCapabilities::builder().enable_tools().build();
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
            let result = self.shared.run(tool, &arguments, &asker);
            return Ok(CallToolResponse::Complete(result));
        }
        let running = self.start(tool, arguments);
        Ok(self.follow(running, &context).await)
    }
}
