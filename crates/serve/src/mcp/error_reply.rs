//! Error replies to requests that `rmcp` does not get.

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use rmcp::{ErrorData, model::RequestId};
use serde_json::json;

use crate::reply::{self, Body};

/// Returns the reply with `error` to the request `id`.
pub(super) fn error_reply(id: &RequestId, error: &ErrorData) -> Response<Body> {
    let message = json!({ "jsonrpc": "2.0", "id": id, "error": error });
    let mut refused = reply::text(StatusCode::OK, &message.to_string());
    refused.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    refused
}
