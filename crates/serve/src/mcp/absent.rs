//! Methods that `rmcp` refuses by itself. The worker is asked instead, which refuses
//! them as well and records that.

use hyper::{HeaderMap, Response, StatusCode};
use rmcp::{ErrorData, model::ErrorCode};
use serde_json::{Map, Value};

use super::{
    error_reply::error_reply,
    ids::{self, Head},
    in_transit::InTransit,
    link,
    shared::Shared,
};
use crate::{
    Peer,
    reply::{self, Body},
};

/// Methods absent from every revision.
const ALL: [&str; 6] = [
    "resources/directory/read",
    "skills/get",
    "skills/list",
    "tasks/cancel",
    "tasks/get",
    "tasks/update",
];
/// Methods absent from the revisions with sessions.
const OLD: [&str; 1] = ["subscriptions/listen"];
/// Methods absent from the revisions without sessions.
const NEW: [&str; 3] = ["ping", "resources/subscribe", "resources/unsubscribe"];

/// Returns the reply to a request whose method does not exist; `None` for others.
pub(super) async fn refuse(
    shared: &Shared,
    peer: &Peer,
    session: Option<&str>,
    headers: &HeaderMap,
    head: Option<&Head<'_>>,
    transit: &InTransit,
) -> Option<Response<Body>> {
    let Head { id, method, params } = head?;
    let has_sessions = ids::has_sessions(headers);
    let some = if has_sessions { &OLD[..] } else { &NEW[..] };
    if !ALL.iter().chain(some).any(|absent| absent == method) {
        return None;
    }
    let link = match has_sessions {
        // A request that names no session is refused by `rmcp`.
        true => shared.sessions.link(session?)?,
        false => match shared.common(peer).await {
            Ok(link) => link,
            Err(error) => return Some(reply::refused(&error)),
        },
    };
    let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
    let error = ask(&link, method, params.unwrap_or_default(), transit).await;
    let mut refused = error_reply(id, &error);
    if !has_sessions {
        *refused.status_mut() = StatusCode::NOT_FOUND;
    }
    Some(refused)
}

async fn ask(
    link: &link::Link,
    method: &str,
    mut params: Map<String, Value>,
    transit: &InTransit,
) -> ErrorData {
    let meta = match params.remove("_meta") {
        Some(Value::Object(meta)) => Some(meta),
        _ => None,
    };
    let params = Some(Value::Object(params));
    let answered = match link.ask(method, params, meta, None, Some(transit)).await {
        Ok(mut asked) => (&mut asked.answer).await.unwrap_or_else(|_| Err(link::over())).err(),
        Err(error) => Some(error),
    };
    // As the very first request of a session `rmcp` answers a ping of any revision.
    answered.unwrap_or_else(|| {
        ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method `{method}`"), None)
    })
}
