//! `subscriptions/listen`: the acknowledgement carries what the worker grants.
//!
//! `rmcp` acknowledges before its handler can ask the worker. So the worker is asked
//! before `rmcp` sees the request, and the relay for that request takes the reply.

use std::cell::RefCell;

use hyper::Response;
use rmcp::{ErrorData, model::SubscriptionFilter, service::SubscriptionContext};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    error_reply::error_reply,
    ids::Head,
    in_transit::InTransit,
    link::{self, Link, RequestInFlight},
    shared::Shared,
};
use crate::{
    Peer,
    reply::{self, Body},
};

/// The name of the method.
const METHOD: &str = "subscriptions/listen";

tokio::task_local! {
    /// The subscription of the request that is handled.
    static BEGUN: RefCell<Option<GrantedSubscription>>;
}

/// A granted subscription with its notifications.
pub(super) struct GrantedSubscription {
    pub(super) granted: SubscriptionFilter,
    asked: RequestInFlight,
}

#[derive(Deserialize)]
struct ListenParams {
    #[serde(rename = "_meta", default)]
    meta: Map<String, Value>,
    notifications: SubscriptionFilter,
}

/// Subscribes at the worker, if the request with this head is a subscription; `rmcp`
/// handles any other.
///
/// # Errors
/// The reply that gives the reason.
pub(super) async fn begin(
    shared: &Shared,
    peer: &Peer,
    head: Option<&Head<'_>>,
    transit: &InTransit,
) -> Result<Option<GrantedSubscription>, Box<Response<Body>>> {
    let Some(Head { id, method, params: Some(params) }) = head else {
        return Ok(None);
    };
    let params = if method == METHOD { serde_json::from_str(params.get()).ok() } else { None };
    let Some(params) = params else { return Ok(None) };
    let link = shared.common(peer).await.map_err(|error| Box::new(reply::refused(&error)))?;
    ask(&link, params, transit).await.map(Some).map_err(|error| Box::new(error_reply(id, &error)))
}

async fn ask(
    link: &Link,
    params: ListenParams,
    transit: &InTransit,
) -> Result<GrantedSubscription, ErrorData> {
    let ListenParams { meta, notifications } = params;
    let params = json!({ "notifications": notifications });
    let mut asked = link.ask(METHOD, Some(params), Some(meta), None, Some(transit)).await?;
    let granted = tokio::select! {
        biased;
        Ok(granted) = &mut asked.granted => granted,
        answer = &mut asked.answer => {
            let ended = answer.unwrap_or_else(|_| Err(link::over()));
            return Err(ended.err().unwrap_or_else(link::over));
        }
    };
    Ok(GrantedSubscription { granted, asked })
}

/// Handles a request together with its subscription.
pub(super) async fn with<T>(
    begun: Option<GrantedSubscription>,
    handle: impl Future<Output = T>,
) -> T {
    BEGUN.scope(RefCell::new(begun), handle).await
}

/// Takes the subscription of the request that is handled.
pub(super) fn take() -> Option<GrantedSubscription> {
    BEGUN.try_with(|begun| begun.borrow_mut().take()).ok().flatten()
}

/// Forwards notifications until either side ends.
pub(super) async fn pass_on(
    mut begun: GrantedSubscription,
    context: &SubscriptionContext,
) -> Result<(), ErrorData> {
    let asked = &mut begun.asked;
    loop {
        tokio::select! {
            answer = &mut asked.answer => {
                return answer.unwrap_or_else(|_| Err(link::over())).map(drop);
            }
            () = context.cancelled() => return Ok(()),
            event = asked.events.next() => {
                if context.sink().send(event).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}
