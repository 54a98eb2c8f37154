//! Messages of the gateway itself, as lines (without their `\n`).
//!
//! Error codes: ACP v1 `ErrorCode` and JSON-RPC 2.0, and −32001 for a denial, from the range that
//! JSON-RPC leaves to implementations.

use portcullis_audit::Receipt;
use portcullis_rpc::{
    Id,
    response::{self, ErrorObject, INTERNAL, INVALID_PARAMS},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::gateway::{self, Content, ErrorKind, Reply};

/// The request was cancelled.
pub(super) const CANCELLED: i64 = -32800;
/// The method does not exist here.
pub(super) const METHOD: i64 = -32601;

const DENIED: i64 = -32001;
const NOT_FOUND: i64 = -32002;

/// The key of the receipt in `_meta`.
const RECEIPT: &str = "portcullis/receipt";

#[derive(Serialize)]
struct FileResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(rename = "_meta")]
    meta: Map<String, Value>,
}

/// Writes the reply to a read that the gateway served.
pub(super) fn content(id: &Id, reply: Reply<Content>) -> Vec<u8> {
    match String::from_utf8(reply.output.bytes) {
        Ok(content) => done(id, Some(content), &reply.receipt),
        // The gateway reads text here, so this does not occur.
        Err(_) => error(id, INTERNAL, "the content is not text", Some(&reply.receipt)),
    }
}

/// Writes the reply to a change that the gateway made.
pub(super) fn changed(id: &Id, receipt: &Receipt) -> Vec<u8> {
    done(id, None, receipt)
}

fn done(id: &Id, content: Option<String>, of: &Receipt) -> Vec<u8> {
    let meta = Map::from_iter([(RECEIPT.to_owned(), receipt(of))]);
    response::result(id, FileResult { content, meta })
}

/// Writes the reply to a request that the gateway refused; `path` is the one in the request.
pub(super) fn refusal(id: &Id, error: &gateway::Error, path: Option<&str>) -> Vec<u8> {
    let code = match error.kind() {
        ErrorKind::Denied => DENIED,
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::InvalidInput => INVALID_PARAMS,
        ErrorKind::Cancelled => CANCELLED,
        _ => INTERNAL,
    };
    coded(id, code, error, path)
}

/// Writes a refusal with another code.
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
    response::error(Some(id), ErrorObject { code, message: error.to_string(), data: data.into() })
}

/// Writes an error with the receipt of its record. The receipt is missing only if no record can be
/// written.
pub(super) fn error<'a>(
    id: impl Into<Option<&'a Id>>,
    code: i64,
    message: &str,
    of: Option<&Receipt>,
) -> Vec<u8> {
    let data = of.map_or(Value::Null, |of| json!({ "receipt": receipt(of) }));
    response::error(id.into(), ErrorObject { code, message: message.to_owned(), data })
}

/// Writes a request of the gateway.
pub(super) fn request(id: &Id, method: &str, params: &impl Serialize) -> Vec<u8> {
    response::request(id, method, Some(params))
}

/// Writes the notification that the gateway no longer waits for `id`.
pub(super) fn cancel(id: &Id) -> Vec<u8> {
    response::notification("$/cancel_request", Some(json!({ "requestId": id })))
}

fn receipt(receipt: &Receipt) -> Value {
    json!({ "seq": receipt.seq, "leaf": receipt.leaf.to_string(), "durable": receipt.durable })
}
