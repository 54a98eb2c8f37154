//! Requests that `rmcp` refuses itself because of their headers or `_meta`. The worker records
//! them, and slows the client down by its reply.

use http_body_util::BodyExt as _;
use hyper::{Response, body::Bytes, header::CONTENT_LENGTH};
use portcullis_mcp::{FrontRefusal, REFUSED};
use rmcp::model::{ErrorCode, ProtocolVersion};
use serde_json::{Map, Value, json};

use super::{
    link,
    shared::{REFUSAL_TIMEOUT, Shared},
};
use crate::{
    Peer,
    model::complete_words,
    reply::{self, Body},
};

/// The longest method or reason that is reported, in bytes. They repeat what the client sent, and the
/// worker redacts secrets in them before it shortens them for the record. A message to the worker
/// has room for both, also where each of their characters is escaped.
const MAX_TEXT: usize = 4 * 1024;

/// Returns the beginning of a method or a reason, for a report.
pub(super) fn beginning(text: &str) -> String {
    complete_words(text, MAX_TEXT).to_owned()
}

/// Has the worker record that a request was refused with `reply`, and returns the reply with the
/// receipt if it is an error of JSON-RPC.
pub(super) async fn record(
    shared: &Shared,
    peer: &Peer,
    session: Option<&str>,
    method: &str,
    reply: Response<Body>,
) -> Response<Body> {
    let (mut parts, body) = reply.into_parts();
    // A reply of `rmcp` without a handler is complete.
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut message = serde_json::from_slice::<Value>(&bytes).ok();
    let reason =
        match message.as_ref().and_then(|message| message.pointer("/error/message")?.as_str()) {
            Some(reason) => reason.to_owned(),
            None => String::from_utf8_lossy(&bytes).into_owned(),
        };
    let reason = beginning(reason.trim());
    let report = report(shared, peer, session, FrontRefusal { method: method.to_owned(), reason });
    let Ok(Some(receipt)) = tokio::time::timeout(REFUSAL_TIMEOUT, report).await else {
        return Response::from_parts(parts, reply::whole(bytes));
    };
    let error = message.as_mut().and_then(|message| message.get_mut("error")?.as_object_mut());
    let bytes = match error {
        Some(error) => {
            let data = error.entry("data").or_insert_with(|| Map::new().into());
            if let Some(data) = data.as_object_mut() {
                data.insert("receipt".to_owned(), receipt);
            }
            message.map_or_else(Bytes::new, |message| message.to_string().into())
        }
        None => bytes,
    };
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, reply::whole(bytes))
}

/// Returns the receipt of the worker's record.
async fn report(
    shared: &Shared,
    peer: &Peer,
    session: Option<&str>,
    refused: FrontRefusal,
) -> Option<Value> {
    let link = match session.and_then(|session| shared.sessions.link(session)) {
        Some(link) => link,
        None => shared.common(peer).await.ok()?,
    };
    let params = serde_json::to_value(refused).ok();
    let mut asked = link.ask(REFUSED, params, Some(meta()), None, None).await.ok()?;
    let refused = (&mut asked.answer).await.unwrap_or_else(|_| Err(link::over())).err()?;
    let is_report = refused.code == ErrorCode::INVALID_PARAMS;
    refused.data.filter(|_| is_report)?.get_mut("receipt").map(Value::take)
}

/// Returns the metadata that a request of a client without sessions needs.
fn meta() -> Map<String, Value> {
    let of = |name: &str, value: Value| (format!("io.modelcontextprotocol/{name}"), value);
    Map::from_iter([
        of("protocolVersion", json!(ProtocolVersion::V_2026_07_28)),
        of("clientInfo", json!({ "name": "portcullis", "version": env!("CARGO_PKG_VERSION") })),
        of("clientCapabilities", json!({})),
    ])
}
