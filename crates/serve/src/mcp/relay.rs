//! The `rmcp` handler of a client's session: forwards requests and notifications to
//! the worker, and the worker's requests to the client.

use std::{
    borrow::Cow,
    mem,
    sync::{Arc, Mutex},
};

use hyper::http::request::Parts;
use portcullis_mcp::{REFUSED, REPEATED, announced};
#[expect(deprecated, reason = "the older revisions have it")]
use rmcp::model::SetLevelRequestParams;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotification,
        CancelledNotificationParam, ClientResult, CompleteRequestParams, CompleteResult,
        CustomNotification, CustomRequest, CustomResult, DiscoverResult, GetPromptRequestParams,
        GetPromptResponse, GetPromptResult, InitializeRequestParams, InitializeResult,
        InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
        ReadResourceResponse, ReadResourceResult, ServerConfig, ServerRequest,
        SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{
        NotificationContext, PeerRequestOptions, RequestContext, ServiceError, SubscriptionContext,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    super::{self as http, OpenError},
    in_transit::InTransit,
    line::ReplyMemory,
    link::{self, Link, Question, WorkerReply},
    listen::{self, GrantedSubscription},
    sessions::NewSessionLink,
    shared::{Refusal, Shared},
};
use crate::lock;

/// A session of a client, or a request of a client without sessions.
pub(super) struct Relay {
    shared: Arc<Shared>,
    /// The session with the worker that `initialize` opened.
    own: OnceCell<Arc<Link>>,
    /// The subscription of the request, if it is one.
    begun: Mutex<Option<GrantedSubscription>>,
}

impl Relay {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, own: OnceCell::new(), begun: Mutex::new(listen::take()) }
    }

    async fn link(&self, context: &RequestContext<RoleServer>) -> Result<Arc<Link>, ErrorData> {
        match self.own.get() {
            Some(link) => Ok(Arc::clone(link)),
            None => {
                let opened = async { self.shared.common(&peer(context)?).await }.await;
                opened.map_err(|error| unopened(error, context))
            }
        }
    }

    /// Sends a request and waits for its reply; forwards the worker's requests
    /// meanwhile.
    async fn send(
        &self,
        method: &str,
        params: impl Serialize,
        mut context: RequestContext<RoleServer>,
    ) -> Result<WorkerReply, ErrorData> {
        let link = self.link(&context).await?;
        let params = serde_json::to_value(params).map_err(unreadable)?;
        let meta = serde_json::to_value(mem::take(&mut context.meta)).map_err(unreadable)?;
        let Value::Object(meta) = meta else { return Err(unreadable("no object")) };
        // Not the head of the HTTP request, which would take memory until the reply.
        let http = context.extensions.remove::<Parts>().map(|parts| parts.extensions);
        let http = http.unwrap_or_default();
        let mut answered = self.follow(&link, method, params, meta, &context, http.get()).await;
        // The memory is held until the client has the reply.
        if let Ok(answer) = &mut answered {
            let memory = http.get::<ReplyMemory>().filter(|memory| memory.is_shared()).cloned();
            memory.unwrap_or_else(|| link.resumed.get()).keep(answer.held.take());
        }
        answered
    }

    async fn follow(
        &self,
        link: &Link,
        method: &str,
        params: Value,
        meta: serde_json::Map<String, Value>,
        context: &RequestContext<RoleServer>,
        transit: Option<&InTransit>,
    ) -> Result<WorkerReply, ErrorData> {
        let mut asked = link.ask(method, Some(params), Some(meta), Some(context), transit).await?;
        loop {
            let question = tokio::select! {
                biased;
                answer = &mut asked.answer => return answer.unwrap_or_else(|_| Err(link::over())),
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("cancelled", None));
                }
                Some(question) = asked.questions.recv() => question,
            };
            let (id, outcome) = {
                let forwarded = forward(question, context);
                tokio::pin!(forwarded);
                tokio::select! {
                    biased;
                    answer = &mut asked.answer => {
                        return answer.unwrap_or_else(|_| Err(link::over()));
                    }
                    () = context.ct.cancelled() => {
                        return Err(ErrorData::internal_error("cancelled", None));
                    }
                    outcome = &mut forwarded => outcome,
                }
            };
            if let Some(outcome) = outcome {
                link.answer(&id, outcome).await;
            }
        }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize,
        context: RequestContext<RoleServer>,
    ) -> Result<T, ErrorData> {
        link::typed(&self.send(method, params, context).await?.value)
    }

    /// Sends a request to which the worker may reply that it requires input.
    async fn request_or_input<T, R>(
        &self,
        method: &str,
        params: impl Serialize,
        context: RequestContext<RoleServer>,
    ) -> Result<R, ErrorData>
    where
        T: DeserializeOwned + Into<R>,
        R: From<InputRequiredResult>,
    {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind<'a> {
            #[serde(borrow)]
            result_type: Option<Cow<'a, str>>,
        }
        let WorkerReply { value: answer, held: _held } = self.send(method, params, context).await?;
        let kind = serde_json::from_str::<Kind<'_>>(answer.get()).ok();
        match kind.and_then(|kind| kind.result_type).as_deref() {
            Some("input_required") => Ok(link::typed::<InputRequiredResult>(&answer)?.into()),
            _ => Ok(link::typed::<T>(&answer)?.into()),
        }
    }

    /// Forwards a notification. Its slot and memory are those of its handler's context, which
    /// ends after this.
    async fn notify(&self, method: &str, params: impl Serialize) {
        // A client without sessions has no link of its own.
        if let (Some(link), Ok(params)) = (self.own.get(), serde_json::to_value(params)) {
            link.notify(method, Some(params)).await;
        }
    }
}

/// Returns an extension of the HTTP request that a message came with.
fn extension<T: Clone + Send + Sync + 'static>(context: &RequestContext<RoleServer>) -> Option<T> {
    context.extensions.get::<Parts>()?.extensions.get().cloned()
}

/// Returns the origin of the HTTP request.
fn peer(context: &RequestContext<RoleServer>) -> Result<http::Peer, OpenError> {
    // Every request has this extension.
    extension(context).ok_or(OpenError::Unavailable)
}

/// Forwards a request of the worker to the client; `None` if it was withdrawn.
async fn forward(
    question: Question,
    context: &RequestContext<RoleServer>,
) -> (Value, Option<Result<Value, ErrorData>>) {
    let (id, message, withdrawn) = question.into_parts();
    let request = match serde_json::from_value::<ServerRequest>(message) {
        Ok(request) => request,
        Err(error) => return (id, Some(Err(unreadable(error)))),
    };
    let options = PeerRequestOptions::no_options();
    let handle = match context.peer.send_cancellable_request(request, options).await {
        Ok(handle) => handle,
        Err(error) => return (id, Some(Err(unreadable(error)))),
    };
    let client_id = handle.id.clone();
    tokio::select! {
        answered = handle.await_response() => {
            let outcome = match answered {
                Ok(result) => to_value(&result),
                Err(ServiceError::McpError(error)) => Err(error),
                Err(error) => Err(unreadable(error)),
            };
            (id, Some(outcome))
        }
        _ = withdrawn => {
            let params = CancelledNotificationParam::new(Some(client_id), Some("answered".to_owned()));
            let note = CancelledNotification::new(params).into();
            let _ = context.peer.send_notification(note).await;
            (id, None)
        }
    }
}

fn to_value(result: &ClientResult) -> Result<Value, ErrorData> {
    serde_json::to_value(result).map_err(unreadable)
}

fn unreadable(error: impl std::fmt::Display) -> ErrorData {
    tracing::warn!(%error, "a message cannot be passed on");
    ErrorData::internal_error("the message cannot be passed on", None)
}

/// Records why there is no session, for the HTTP reply.
fn unopened(error: OpenError, context: &RequestContext<RoleServer>) -> ErrorData {
    let reply = ErrorData::internal_error(error.to_string(), None);
    // A request sets it once at most.
    let _ = extension::<Refusal>(context).map(|refusal| refusal.set(error));
    reply
}

impl ServerHandler for Relay {
    fn get_info(&self) -> ServerConfig {
        // A placeholder: clients get the worker's own reply to `initialize`.
        announced()
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let open = || async {
            let opened = async { self.shared.open(&peer(&context)?).await }.await;
            opened.map_err(|error| unopened(error, &context))
        };
        let link = self.own.get_or_try_init(open).await?;
        let _ = extension::<NewSessionLink>(&context)
            .map(|new_link| new_link.set(Arc::downgrade(link)));
        link.set_host(context.peer.clone());
        let result: InitializeResult = self.request("initialize", request, context).await?;
        link.set_revision(result.protocol_version.clone());
        Ok(result)
    }

    async fn ping(&self, context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.send("ping", json!({}), context).await.map(drop)
    }

    async fn discover(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        self.request("server/discover", json!({}), context).await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.request("completion/complete", request, context).await
    }

    #[expect(deprecated, reason = "the older revisions have it")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.send("logging/setLevel", request, context).await.map(drop)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.request_or_input::<GetPromptResult, _>("prompts/get", request, context).await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.request("prompts/list", request, context).await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.request("resources/list", request, context).await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.request("resources/templates/list", request, context).await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.request_or_input::<ReadResourceResult, _>("resources/read", request, context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.send("resources/subscribe", request, context).await.map(drop)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.send("resources/unsubscribe", request, context).await.map(drop)
    }

    fn accepted_subscription_filter(
        &self,
        _requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let begun = lock(&self.begun);
        begun.as_ref().map(|begun| begun.granted.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let begun = lock(&self.begun).take();
        match begun {
            Some(begun) => listen::pass_on(begun, &context).await,
            None => Ok(()),
        }
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.request("tools/list", request, context).await
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.request_or_input::<CallToolResult, _>("tools/call", request, context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // This method is the front's own.
        let params = request.params.filter(|_| request.method != REFUSED);
        self.request(&request.method, params, context).await.map(CustomResult::new)
    }

    async fn on_initialized(&self, _context: NotificationContext<RoleServer>) {
        self.notify("notifications/initialized", json!({})).await;
    }

    async fn on_roots_list_changed(&self, _context: NotificationContext<RoleServer>) {
        self.notify("notifications/roots/list_changed", json!({})).await;
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _context: NotificationContext<RoleServer>,
    ) {
        // This notification is the front's own; one from a client is marked as such.
        let own = (notification.method == REPEATED).then(|| json!({ "of": "the client" }));
        self.notify(&notification.method, own.or(notification.params)).await;
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }
}
