//! What the gate itself says, as lines (without their `\n`).
//!
//! Error codes: ACP v1 `ErrorCode` and JSON-RPC 2.0, and −32001 for a denial,
//! from the range that JSON-RPC leaves to implementations.

use portcullis_audit::Receipt;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::gateway::{self, ErrorKind, Output, Reply};

use super::id::Id;

/// The request was cancelled.
pub(super) const CANCELLED: i64 = -32800;
/// No such method here.
pub(super) const METHOD: i64 = -32601;
/// Something else went wrong.
pub(super) const INTERNAL: i64 = -32603;

const DENIED: i64 = -32001;
const NOT_FOUND: i64 = -32002;
const PARAMS: i64 = -32602;

/// The key of the receipt in `_meta`.
const RECEIPT: &str = "portcullis/receipt";

#[derive(Serialize)]
struct Response<'a, T> {
    jsonrpc: &'static str,
    /// `null` where it is not known.
    id: Option<&'a Id>,
    #[serde(flatten)]
    outcome: Outcome<T>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome<T> {
    Result(T),
    Error(ErrorObject),
}

#[derive(Serialize)]
struct ErrorObject {
    code: i64,
    message: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    data: Value,
}

#[derive(Serialize)]
struct FileResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(rename = "_meta")]
    meta: Map<String, Value>,
}

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Id>,
    method: &'a str,
    params: P,
}

/// The answer to a request that the gateway served.
pub(super) fn reply(id: &Id, reply: Reply) -> Vec<u8> {
    let mut meta = Map::new();
    meta.insert(RECEIPT.into(), receipt(&reply.receipt));
    let content = match reply.output {
        Output::Content(content) => match String::from_utf8(content.bytes) {
            Ok(content) => Some(content),
            // The gateway was asked for text, so it does not come to this.
            Err(_) => {
                return error(id, INTERNAL, "the content is not text", Some(&reply.receipt));
            }
        },
        _ => None,
    };
    result(id, FileResult { content, meta })
}

/// The answer to a request that the gateway refused; `path` as the agent
/// wrote it.
pub(super) fn refusal(id: &Id, error: &gateway::Error, path: Option<&str>) -> Vec<u8> {
    let code = match error.kind() {
        ErrorKind::Denied => DENIED,
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::InvalidInput => PARAMS,
        ErrorKind::Cancelled => CANCELLED,
        _ => INTERNAL,
    };
    coded(id, code, error, path)
}

/// Like [`refusal`], under a code that the door chose.
pub(super) fn coded(id: &Id, code: i64, error: &gateway::Error, path: Option<&str>) -> Vec<u8> {
    let mut data = Map::new();
    match code {
        NOT_FOUND => {
            data.insert("uri".into(), path.unwrap_or_default().into());
        }
        DENIED => {
            data.insert("rule".into(), error.rule().into());
            data.insert("reason".into(), error.reason().into());
        }
        INTERNAL => {
            data.insert("kind".into(), error.kind().as_str().into());
        }
        _ => {}
    }
    if let Some(of) = error.receipt() {
        data.insert("receipt".into(), receipt(of));
    }
    respond(Some(id), ErrorObject { code, message: error.to_string(), data: data.into() })
}

/// An error that the door itself found, with the receipt of its record. There
/// is none only where no record can be written.
pub(super) fn error<'a>(
    id: impl Into<Option<&'a Id>>,
    code: i64,
    message: &str,
    of: Option<&Receipt>,
) -> Vec<u8> {
    let data = of.map_or(Value::Null, |of| json!({ "receipt": receipt(of) }));
    respond(id.into(), ErrorObject { code, message: message.to_owned(), data })
}

/// A request of the gate's own.
pub(super) fn request(id: &Id, method: &str, params: &impl Serialize) -> Vec<u8> {
    line(&Call { jsonrpc: "2.0", id: Some(id), method, params })
}

/// The notice that the gate no longer waits for `id`.
pub(super) fn cancel(id: &Id) -> Vec<u8> {
    let params = json!({ "requestId": id });
    line(&Call { jsonrpc: "2.0", id: None, method: "$/cancel_request", params })
}

fn result(id: &Id, result: impl Serialize) -> Vec<u8> {
    line(&Response { jsonrpc: "2.0", id: Some(id), outcome: Outcome::Result(result) })
}

fn respond(id: Option<&Id>, error: ErrorObject) -> Vec<u8> {
    line(&Response::<()> { jsonrpc: "2.0", id, outcome: Outcome::Error(error) })
}

fn receipt(receipt: &Receipt) -> Value {
    json!({ "seq": receipt.seq, "leaf": receipt.leaf.to_string(), "durable": receipt.durable })
}

/// Texts, numbers and maps with text keys, which is all there is here, always
/// serialize; an empty line would be ignored by the peer.
fn line(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}
