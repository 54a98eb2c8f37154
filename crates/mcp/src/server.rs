//! The request handlers that `rmcp` calls.
//!
//! All of them run on one thread, which also carries out short operations while no other
//! request is in flight. Other calls of tools run on a few other threads (`work`).

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode,
        Implementation, InitializeRequestParams, InitializeResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
        SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    gateway::{Client, Gateway, Refusal},
    model::{Escaped, OperationKind},
    paths::Roots,
};

use super::{
    approver::CallApprover,
    arguments::Arguments,
    call::Call,
    changes::Changes,
    config::{ClientLocation, Config},
    in_flight::{FrontRefusal, InFlight, REFUSED},
    instructions,
    introduction::short,
    memory::MAX_CALLS,
    resources,
    running::{Reading, Running},
    shared::Shared,
    subscription,
    suspended::SuspendedRequests,
    tool_catalog::ToolCatalog,
    tool_result,
    tools::{ExpectedWait, Tool},
    writer::LineWriter,
};

/// Maximum of calls without a reply.
pub(super) const MAX_PENDING_CALLS: usize = 1024;
/// Maximum of bytes of arguments of calls without a reply; a larger call runs alone.
const MAX_BYTES: usize = 64 << 20;
/// Maximum of bytes of arguments of a short change.
const MAX_SHORT_REPLY: usize = 64 << 10;
/// Longest name of a method or tool that an error repeats, in characters.
const MAX_SHOWN: usize = 128;
/// Methods that exist; a request for one of them as a custom request has wrong parameters.
const KNOWN: [&str; 9] = [
    "initialize",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
];

/// The server of one client.
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    pub(super) config: Config,
    /// Calls of tools suspended for an approval.
    pub(super) calls: SuspendedRequests<Running>,
    /// Reads of resources suspended for an approval.
    pub(super) reads: SuspendedRequests<Reading>,
    /// Requests that the client can cancel.
    pub(super) under_way: Arc<InFlight>,
    /// The client's subscriptions, and the lists that it has asked for.
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
        let catalog = ToolCatalog::new(&config.toolset, &session.agent, config.commands.is_some());
        let closed = Arc::<AtomicBool>::default();
        let gone = Arc::clone(&closed);
        let memory = config.attached.as_ref().map(|client| Arc::clone(client.memory()));
        let gone = move || gone.store(true, Ordering::SeqCst);
        let shared = Shared {
            gateway,
            writer: LineWriter::start(output, memory.clone(), gone)?,
            memory,
            calls_in_line: Arc::new(Semaphore::new(MAX_CALLS)),
            session,
            roots,
            further: config.further.clone(),
            commands: config.commands.clone(),
            catalog,
            attached: config.attached.is_some(),
            alone: config.location == ClientLocation::Host,
            is_behind_front: config.location == ClientLocation::Remote,
            tickets: Arc::default(),
            left: CancellationToken::new(),
            closed,
            revoked: Arc::clone(&config.revoked),
            calls: AtomicUsize::default(),
            bytes: AtomicUsize::default(),
            short: AtomicBool::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            config,
            calls: SuspendedRequests::default(),
            reads: SuspendedRequests::default(),
            under_way: Arc::default(),
            changes: Arc::default(),
            introduced: AtomicBool::default(),
        })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Returns true if a call is short, so that later requests of the client can wait for it.
    fn is_short(&self, tool: usize, arguments: &Arguments) -> bool {
        match self.shared.catalog.tool(tool).map(Tool::waits) {
            Some(ExpectedWait::Nothing) => true,
            // Calls on several threads share their syncs. A change of an attached client may
            // wait for a change of the same file over ACP, and that for an editor.
            Some(ExpectedWait::Syncs) => {
                !self.shared.attached
                    && arguments.weight() <= MAX_SHORT_REPLY
                    && self.shared.syncs_are_short()
                    && self.under_way.is_one()
            }
            Some(ExpectedWait::Long) | None => false,
        }
    }

    /// Refuses a call, on record, with an error of the protocol.
    pub(super) fn refused(&self, op: &str, refusal: &Refusal, message: String) -> ErrorData {
        let error = self.shared.refuse(op, None, refusal);
        ErrorData::new(ErrorCode::INVALID_PARAMS, message, Some(tool_result::describe(&error)))
    }

    /// Refuses a `requestState` without a suspended request of that form, on record.
    fn not_waiting(&self, op: &str) -> ErrorData {
        let reason = "no call with these arguments waits for this `requestState`";
        self.refused(op, &Refusal::Parameters(reason.to_owned()), reason.to_owned())
    }

    /// Returns the request that the front refused, if it reports one. It passes no parameters of
    /// this method on from a client.
    fn refused_by_front(&self, request: &CustomRequest) -> Option<FrontRefusal> {
        let is_report = self.shared.is_behind_front && request.method == REFUSED;
        let params = request.params.clone().filter(|_| is_report)?;
        serde_json::from_value(params).ok()
    }

    /// Refuses an unknown method, on record.
    pub(super) fn no_method(&self, method: &str) -> ErrorData {
        let error = self.shared.refuse_method(method, &Refusal::Method);
        let shown: String = method.chars().take(MAX_SHOWN).collect();
        let message = format!("there is no method `{}`", Escaped(&shown));
        ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, Some(tool_result::describe(&error)))
    }

    /// Records name and version of the client, once.
    pub(super) fn introduce(
        &self,
        client: Option<Implementation>,
        version: Option<ProtocolVersion>,
    ) {
        if self.introduced.swap(true, Ordering::SeqCst) {
            return;
        }
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

/// Returns name and capabilities of the server.
pub fn announced() -> ServerConfig {
    let capabilities = ServerCapabilities::builder()
        .enable_tools()
        .enable_tool_list_changed()
        .enable_resources()
        .enable_resources_subscribe()
        .enable_resources_list_changed()
        .build();
    ServerConfig::new(capabilities).with_server_info(
        Implementation::new("portcullis", env!("CARGO_PKG_VERSION")).with_title("Portcullis"),
    )
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        announced().with_instructions(instructions::text(&self.config, &self.shared))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let result = self.negotiate_initialize(&request)?;
        self.introduce(Some(request.client_info), Some(result.protocol_version.clone()));
        Ok(result)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if let Some(FrontRefusal { method, reason }) = self.refused_by_front(&request) {
            let error = self.shared.refuse_method(&method, &Refusal::Parameters(reason.clone()));
            return Err(ErrorData::invalid_params(reason, Some(tool_result::describe(&error))));
        }
        let method = &*request.method;
        if KNOWN.contains(&method) {
            // `rmcp` takes a request with wrong parameters for a custom one.
            let reason = format!("the parameters of `{method}` are wrong");
            let error = self.shared.refuse_method(method, &Refusal::Parameters(reason.clone()));
            return Err(ErrorData::invalid_params(reason, Some(tool_result::describe(&error))));
        }
        Err(self.no_method(method))
    }

    // Prompts and completions are not offered. Clients that list them nevertheless get an empty
    // list, as in `rmcp` and in the conformance scenarios.

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if self.shared.is_closed() {
            return Err(ErrorData::internal_error("the client is gone", None));
        }
        self.introduce(context.client_info(), context.protocol_version());
        let shown = match has_sessions(&context) {
            // A client that lists the tools is notified of changes.
            true => {
                self.changes.start(&self.shared, &context.peer);
                self.changes.follow_tools(&self.shared)
            }
            false => self.shared.shown(),
        };
        let tools = self.shared.catalog.list(&shown).map(|tool| tool.shown().clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.introduce(context.client_info(), context.protocol_version());
        let shown = self.shared.shown();
        let Some(tool) = self.shared.catalog.find(request.name.as_ref(), &shown) else {
            let shown: String = request.name.chars().take(MAX_SHOWN).collect();
            let message = format!("there is no tool `{}`", Escaped(&shown));
            return Err(self.refused(&format!("tool {}", request.name), &Refusal::Method, message));
        };
        let arguments = Arguments::new(request.arguments);
        if let Some(state) = request.request_state {
            let running = self.calls.take(&state, request.input_responses.as_ref(), |running| {
                running.tool == tool && *running.arguments == arguments
            });
            let running = running.ok_or_else(|| self.not_waiting("tools/call"))?;
            return Ok(self.follow(running, &context).await);
        }
        let entered = self.begin_call(&context).await;
        let calls = self.shared.calls.load(Ordering::SeqCst);
        let bytes = self.shared.bytes.load(Ordering::SeqCst);
        let many = calls >= MAX_PENDING_CALLS
            || (calls > 0 && bytes.saturating_add(arguments.weight()) > MAX_BYTES);
        let too_many = || Refusal::Parameters("too many calls are under way".to_owned());
        if let Some(refusal) = entered.err().or_else(|| many.then(too_many)) {
            let kind = self.shared.catalog.tool(tool).map_or("tool", Tool::word);
            let error = self.shared.refuse(kind, arguments.shown_path(), &refusal);
            return Ok(CallToolResponse::Complete(tool_result::failed(&error, &[])));
        }
        let alone = calls == 0 && self.config.prompt && !shown.asks;
        if alone && self.is_short(tool, &arguments) {
            // No other request waits for this thread, and no thread has to be woken.
            let (asker, follower) = (CallApprover::nobody(), Client::default().follower);
            let result = self.shared.run(tool, (&context.id, &arguments), &asker, follower);
            return Ok(CallToolResponse::Complete(result));
        }
        if self.shared.catalog.tool(tool).is_some_and(|tool| tool.kind().is_none()) {
            // Other calls may run while a command does.
            self.under_way.leave_slot(&context.id);
        }
        let running = self.start(tool, context.id.clone(), arguments);
        Ok(self.follow(running, &context).await)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let list = move |call: &Call<'_>| resources::list(call, request);
        let listed = self.about_resources("resources/list", &context, list).await?;
        if has_sessions(&context) {
            // A client that lists the resources is notified of changes.
            self.changes.start(&self.shared, &context.peer);
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
        let reading = match request.request_state {
            Some(state) => {
                let given = request.input_responses.as_ref();
                let reading = self.reads.take(&state, given, |read| read.uri == request.uri);
                reading.ok_or_else(|| self.not_waiting("resources/read"))?
            }
            None => self.start_reading(request.uri, &context, resources::read).await?,
        };
        self.follow_reading(reading, &context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.changes.start(&self.shared, &context.peer);
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

    fn accepted_subscription_filter(
        &self,
        _requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        subscription::granted()
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        subscription::send_notifications(&self.shared, &context).await;
        Ok(())
    }
}

/// Returns true if a client's revision has sessions, and with them notifications of changes.
fn has_sessions(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_none_or(|version| version.has_initialize())
}

/// Subscribes to the path that a URI names.
pub(super) fn follow(changes: &Changes, call: &Call<'_>, uri: &str) -> Result<(), ErrorData> {
    let path = resources::path(call, OperationKind::Watch, uri)?;
    changes
        .follow(call.gateway, call.session, uri, path)
        .map_err(|error| resources::error(&error, Some(uri)))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.changes.end(&self.shared.gateway);
    }
}
