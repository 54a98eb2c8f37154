//! `subscriptions/listen`: the client is acknowledged what the worker grants.
//!
//! `rmcp` acknowledges before its handler can ask anybody. So the worker is
//! asked before `rmcp` sees the request, and the relay that is made for it is
//! given the answer.

use std::cell::RefCell;

use hyper::Response;
use rmcp::{ErrorData, model::SubscriptionFilter, service::SubscriptionContext};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    error_reply::error_reply,
    ids::Head,
    link::{self, Asked, Link},
    shared::Shared,
};
use crate::{
    Peer,
    reply::{self, Body},
};

/// The method.
const METHOD: &str = "subscriptions/listen";

tokio::task_local! {
    /// What was begun for the request that is handled.
    static BEGUN: RefCell<Option<Begun>>;
}

/// What the worker granted, and what it tells.
pub(super) struct Begun {
    pub(super) granted: SubscriptionFilter,
    asked: Asked,
}

#[derive(Deserialize)]
struct ListenParams {
    #[serde(rename = "_meta", default)]
    meta: Map<String, Value>,
    notifications: SubscriptionFilter,
}

/// Asks the worker, if the request with this head subscribes; what is no such
/// request is `rmcp`'s to answer.
///
/// # Errors
/// The reply that says why not.
pub(super) async fn begin(
    shared: &Shared,
    peer: &Peer,
    head: Option<&Head<'_>>,
) -> Result<Option<Begun>, Box<Response<Body>>> {
    let Some(Head { id, method, params: Some(params) }) = head else {
        return Ok(None);
    };
    let params = if method == METHOD { serde_json::from_str(params.get()).ok() } else { None };
    let Some(params) = params else { return Ok(None) };
    let link = shared.common(peer).await.map_err(|error| Box::new(reply::refused(&error)))?;
    ask(&link, params).await.map(Some).map_err(|error| Box::new(error_reply(id, &error)))
}

async fn ask(link: &Link, params: ListenParams) -> Result<Begun, ErrorData> {
    let ListenParams { meta, notifications } = params;
    let params = json!({ "notifications": notifications });
    let mut asked = link.ask(METHOD, Some(params), Some(meta), None).await?;
    let granted = tokio::select! {
        biased;
        Ok(granted) = &mut asked.granted => granted,
        answer = &mut asked.answer => {
            let ended = answer.unwrap_or_else(|_| Err(link::over()));
            return Err(ended.err().unwrap_or_else(link::over));
        }
    };
    Ok(Begun { granted, asked })
}

/// Handles a request for which something was begun.
pub(super) async fn with<T>(begun: Option<Begun>, handle: impl Future<Output = T>) -> T {
    BEGUN.scope(RefCell::new(begun), handle).await
}

/// What was begun for the request that is handled; whoever takes it has it.
pub(super) fn take() -> Option<Begun> {
    BEGUN.try_with(|begun| begun.borrow_mut().take()).ok().flatten()
}

/// Passes on what the worker tells until either side ends.
pub(super) async fn pass_on(
    mut begun: Begun,
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
