//! Ids of pending requests, of the sessions that clients began.
//!
//! `rmcp` matches replies to requests of a session by the id alone: of two requests
//! with one id, one would get the other's reply. A request without a session is an
//! exchange of its own.

use std::{sync::Arc, time::Duration};

use hyper::{HeaderMap, Response, StatusCode, header::HeaderValue};
use portcullis_mcp::{IN_USE, request_id};
use portcullis_rpc::Message;
use rmcp::{
    ErrorData,
    model::{ProtocolVersion, RequestId},
};
use serde_json::value::RawValue;
use tokio::runtime::Handle;

use super::{
    error_reply::error_reply,
    shared::{Ids, Shared},
};
use crate::{lock, reply::Body};

/// The header that names the revision.
const REVISION: &str = "mcp-protocol-version";
/// Time for which an id stays in use after its client has left, while the reply may
/// still arrive.
const FINAL_TIMEOUT: Duration = Duration::from_millis(100);

/// An id in use until this is dropped.
pub(super) struct UsedId {
    ids: Ids,
    taken: (String, RequestId),
}

/// The part of an id's use that ends when the request has been handled.
#[derive(Clone)]
pub(super) struct Handled {
    _end: Arc<ReleaseIds>,
}

struct ReleaseIds(Option<Arc<UsedId>>);

/// The head of a request.
pub(super) struct Head<'a> {
    pub(super) id: RequestId,
    pub(super) method: String,
    pub(super) params: Option<&'a RawValue>,
}

impl<'a> Head<'a> {
    /// Returns `None` for notifications and replies.
    pub(super) fn of(message: Message<'a>) -> Option<Self> {
        match message {
            Message::Request { id, method, params } => {
                Some(Self { id: request_id(id), method, params })
            }
            Message::Notification { .. } | Message::Reply { .. } => None,
        }
    }
}

/// Returns true if a request is of a revision with sessions.
pub(super) fn has_sessions(headers: &HeaderMap) -> bool {
    let revision = headers.get(REVISION).map(HeaderValue::as_bytes);
    revision < Some(ProtocolVersion::V_2026_07_28.as_str().as_bytes())
}

/// Returns the session of a request that names one. In a revision without sessions it has none,
/// whatever it names.
pub(super) fn session_of<'a>(headers: &HeaderMap, named: Option<&'a str>) -> Option<&'a str> {
    named.filter(|_| has_sessions(headers))
}

/// Takes the id of a request that belongs to a session.
///
/// # Errors
/// The reply that refuses it, when another request of the session uses the id.
pub(super) async fn take(
    shared: &Shared,
    session: Option<&str>,
    headers: &HeaderMap,
    head: Option<&Head<'_>>,
) -> Result<Option<Arc<UsedId>>, Box<Response<Body>>> {
    let Some(session) = session_of(headers, session) else { return Ok(None) };
    let Some(id) = head.map(|head| head.id.clone()) else { return Ok(None) };
    let taken = (session.to_owned(), id);
    if !lock(&shared.ids).insert(taken.clone()) {
        shared.sessions.report_repeated_id(session).await;
        return Err(Box::new(refuse(&taken.1)));
    }
    Ok(Some(Arc::new(UsedId { ids: Arc::clone(&shared.ids), taken })))
}

fn refuse(id: &RequestId) -> Response<Body> {
    let mut refused = error_reply(id, &ErrorData::invalid_request(IN_USE, None));
    *refused.status_mut() = StatusCode::BAD_REQUEST;
    refused
}

impl Handled {
    pub(super) fn new(taken: &Arc<UsedId>) -> Self {
        Self { _end: Arc::new(ReleaseIds(Some(Arc::clone(taken)))) }
    }
}

impl Drop for ReleaseIds {
    fn drop(&mut self) {
        // Where the reply exists, the use ends with it.
        let alone = self.0.take().filter(|taken| Arc::strong_count(taken) == 1);
        if let (Some(taken), Ok(runtime)) = (alone, Handle::try_current()) {
            runtime.spawn(async move {
                tokio::time::sleep(FINAL_TIMEOUT).await;
                drop(taken);
            });
        }
    }
}

impl Drop for UsedId {
    fn drop(&mut self) {
        lock(&self.ids).remove(&self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had a slot of its own, as many as a client invented.
    #[test]
    fn an_invented_session_was_scheduled_as_one() {
        let mut headers = HeaderMap::new();
        assert_eq!(session_of(&headers, Some("x")), Some("x"));
        headers.insert(REVISION, HeaderValue::from_static("2025-11-25"));
        assert_eq!(session_of(&headers, Some("x")), Some("x"));
        headers.insert(REVISION, HeaderValue::from_static("2026-07-28"));
        assert_eq!(session_of(&headers, Some("x")), None);
    }
}
