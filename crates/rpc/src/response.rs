//! JSON-RPC messages that the gateway itself writes, as lines without `\n`.

use serde::Serialize;
use serde_json::Value;

/// The input is not JSON, or JSON that parsers read differently.
pub const PARSE_ERROR: i64 = -32700;
/// The input is not one JSON-RPC message.
pub const INVALID_REQUEST: i64 = -32600;
/// The parameters do not fit the method.
pub const INVALID_PARAMS: i64 = -32602;
/// Any other failure.
pub const INTERNAL: i64 = -32603;

/// The error of a reply.
#[derive(Debug, Serialize)]
pub struct ErrorObject {
    /// The code of the kind of error.
    pub code: i64,
    /// A sentence about the error.
    pub message: String,
    /// Further data; omitted if null.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

#[derive(Serialize)]
struct Response<I, T, E> {
    jsonrpc: &'static str,
    /// The ID of the request, or `null` if it is unknown.
    id: Option<I>,
    #[serde(flatten)]
    outcome: ResponseMember<T, E>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ResponseMember<T, E> {
    Result(T),
    Error(E),
}

#[derive(Serialize)]
struct Call<'a, I, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<I>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

/// Writes a reply with a result.
pub fn result(id: impl Serialize, result: impl Serialize) -> Vec<u8> {
    let outcome = ResponseMember::<_, ()>::Result(result);
    line(&Response { jsonrpc: "2.0", id: Some(id), outcome })
}

/// Writes a reply with an error; JSON-RPC has `null` for an unknown ID.
pub fn error(id: Option<impl Serialize>, error: impl Serialize) -> Vec<u8> {
    let outcome = ResponseMember::<(), _>::Error(error);
    line(&Response { jsonrpc: "2.0", id, outcome })
}

/// Writes a request.
pub fn request(id: impl Serialize, method: &str, params: Option<impl Serialize>) -> Vec<u8> {
    line(&Call { jsonrpc: "2.0", id: Some(id), method, params })
}

/// Writes a notification.
pub fn notification(method: &str, params: Option<impl Serialize>) -> Vec<u8> {
    line(&Call { jsonrpc: "2.0", id: None::<()>, method, params })
}

/// Serializes a message. Replies consist of texts, numbers and maps with text keys, which always
/// serialize; a peer would ignore an empty line.
fn line(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}
