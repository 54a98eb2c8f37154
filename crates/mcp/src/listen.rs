//! `subscriptions/listen`: acknowledges only subscriptions that exist.
//!
//! `rmcp` acknowledges before its handler can wait for anything. So all allowed
//! subscriptions are made before `rmcp` sees the request; the handler finds them in
//! a task-local value.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
};

use rmcp::{
    ErrorData, RoleServer, Service,
    model::{
        ClientNotification, ClientRequest, ErrorCode, ProtocolVersion, ServerConfig, ServerResult,
        SubscriptionFilter,
    },
    service::{NotificationContext, RequestContext},
};

use crate::{
    model::{Access, OperationKind},
    policy::Query,
};

use super::{
    call::Call,
    changes::Changes,
    resources,
    server::{Server, follow},
    shared::Shared,
    subscription::{BEGUN, LinkDecisions, RequestSubscriptions},
};

/// A server whose subscriptions begin before they are acknowledged.
pub(super) struct Listening {
    pub(super) server: Server,
}

impl Service<RoleServer> for Listening {
    async fn handle_request(
        &self,
        request: ClientRequest,
        mut context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        let Some(taken_back) = self.server.under_way.token(&context.id) else {
            return self.handle(request, context).await;
        };
        let over = std::mem::replace(&mut context.ct, taken_back.clone());
        let mut handled = pin!(self.handle(request, context));
        tokio::select! {
            biased;
            done = &mut handled => done,
            () = over.cancelled() => {
                taken_back.cancel();
                handled.await
            }
        }
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.server.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ServerConfig {
        Service::get_info(&self.server)
    }

    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [ProtocolVersion]> {
        Service::supported_protocol_versions(&self.server)
    }
}

impl Listening {
    async fn handle(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        let method = request.method().to_owned();
        self.serve(request, context).await.map_err(|error| {
            // An error of `rmcp` itself, some of which depend on the revision.
            let bare = error.code == ErrorCode::METHOD_NOT_FOUND && error.data.is_none();
            if bare {
                self.server.no_method(&method)
            } else {
                self.server.shared.on_record(&method, error)
            }
        })
    }

    async fn serve(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        // The older revisions do not have this method, and `rmcp` refuses it.
        let has_none = context.protocol_version().is_none_or(|version| version.has_initialize());
        let begun = match &request {
            ClientRequest::SubscriptionsListenRequest(listen) if !has_none => {
                self.begin(&listen.params.notifications, &context).await?
            }
            _ => return self.server.handle_request(request, context).await,
        };
        BEGUN.scope(begun, self.server.handle_request(request, context)).await
    }

    /// Makes the subscriptions that are allowed.
    async fn begin(
        &self,
        requested: &SubscriptionFilter,
        context: &RequestContext<RoleServer>,
    ) -> Result<RequestSubscriptions, ErrorData> {
        let (changes, shared) = (Arc::<Changes>::default(), Arc::clone(&self.server.shared));
        let following =
            LinkDecisions { changes: Arc::clone(&changes), shared: Arc::clone(&shared) };
        let requested = requested.clone();
        let begin = move |call: &Call<'_>| {
            let uris = requested.resource_subscriptions.iter().flatten();
            // A refusal is recorded.
            let followed = uris
                .filter(|uri| shared.may_be_followed(uri) && follow(&changes, call, uri).is_ok())
                .cloned()
                .collect::<Vec<_>>();
            let mut granted = SubscriptionFilter::new();
            granted.resource_subscriptions = (!followed.is_empty()).then_some(followed);
            let list = requested.resources_list_changed == Some(true)
                && changes.follow_list(call.gateway, call.session).is_ok();
            granted.resources_list_changed = list.then_some(true);
            if requested.tools_list_changed == Some(true) {
                changes.follow_tools(&shared);
                granted.tools_list_changed = Some(true);
            }
            Ok(granted)
        };
        let granted = self.server.about_resources("subscriptions/listen", context, begin).await?;
        Ok(RequestSubscriptions { granted, following: Mutex::new(Some(following)) })
    }
}

impl Shared {
    /// Returns true if the policy may allow a subscription to a URI.
    fn may_be_followed(&self, uri: &str) -> bool {
        let Ok(path) = resources::parse(&self.roots, uri) else { return false };
        let (agent, path) = (&self.session.agent, &path);
        let (operation, access) = (OperationKind::Watch, Access::List);
        self.gateway.policy().evaluate(&Query { agent, operation, access, path }).is_allow()
    }
}
