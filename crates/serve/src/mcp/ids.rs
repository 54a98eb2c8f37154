//! The ids of requests that are not answered, of sessions that clients began.
//!
//! `rmcp` finds by its id alone whom in a session an answer is for: of two
//! requests with one id, one would be given the answer to the other. Requests
//! without a session are each an exchange of their own.

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
/// How long the answer to a request whose client is gone may be on its way to
/// nobody.
const LAST: Duration = Duration::from_millis(100);

/// An id that is in use as long as this is there.
pub(super) struct Taken {
    ids: Ids,
    taken: (String, RequestId),
}

/// What a request has of its id until it has come to its end.
#[derive(Clone)]
pub(super) struct Handled {
    _end: Arc<ReleaseIds>,
}

struct ReleaseIds(Option<Arc<Taken>>);

/// The envelope of a request.
pub(super) struct Head<'a> {
    pub(super) id: RequestId,
    pub(super) method: String,
    pub(super) params: Option<&'a RawValue>,
}

impl<'a> Head<'a> {
    /// `None` for notifications and replies.
    pub(super) fn of(message: Message<'a>) -> Option<Self> {
        match message {
            Message::Request { id, method, params } => {
                Some(Self { id: request_id(id), method, params })
            }
            Message::Notification { .. } | Message::Reply { .. } => None,
        }
    }
}

/// Whether a request is one of the revisions that have sessions.
pub(super) fn has_sessions(headers: &HeaderMap) -> bool {
    let revision = headers.get(REVISION).map(HeaderValue::as_bytes);
    revision < Some(ProtocolVersion::V_2026_07_28.as_str().as_bytes())
}

/// Takes the id of a request, if it is one of a session.
///
/// # Errors
/// The reply that refuses it, when another request of the session has it.
pub(super) async fn take(
    shared: &Shared,
    session: Option<&str>,
    headers: &HeaderMap,
    head: Option<&Head<'_>>,
) -> Result<Option<Arc<Taken>>, Box<Response<Body>>> {
    let Some(session) = session.filter(|_| has_sessions(headers)) else { return Ok(None) };
    let Some(id) = head.map(|head| head.id.clone()) else { return Ok(None) };
    let taken = (session.to_owned(), id);
    if !lock(&shared.ids).insert(taken.clone()) {
        shared.sessions.repeated(session).await;
        return Err(Box::new(refuse(&taken.1)));
    }
    Ok(Some(Arc::new(Taken { ids: Arc::clone(&shared.ids), taken })))
}

fn refuse(id: &RequestId) -> Response<Body> {
    let mut refused = error_reply(id, &ErrorData::invalid_request(IN_USE, None));
    *refused.status_mut() = StatusCode::BAD_REQUEST;
    refused
}

impl Handled {
    pub(super) fn new(taken: &Arc<Taken>) -> Self {
        Self { _end: Arc::new(ReleaseIds(Some(Arc::clone(taken)))) }
    }
}

impl Drop for ReleaseIds {
    fn drop(&mut self) {
        // Where the reply is still there, it ends with the answer.
        let alone = self.0.take().filter(|taken| Arc::strong_count(taken) == 1);
        if let (Some(taken), Ok(runtime)) = (alone, Handle::try_current()) {
            runtime.spawn(async move {
                tokio::time::sleep(LAST).await;
                drop(taken);
            });
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.ids).remove(&self.taken);
    }
}
