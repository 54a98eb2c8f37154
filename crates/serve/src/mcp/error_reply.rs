//! Errors that are answered before `rmcp` sees a request.

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use rmcp::{ErrorData, model::RequestId};
use serde_json::json;

use crate::reply::{self, Body};

/// The reply that says what is wrong with a request.
pub(super) fn error_reply(id: &RequestId, error: &ErrorData) -> Response<Body> {
    let message = json!({ "jsonrpc": "2.0", "id": id, "error": error });
    let mut refused = reply::text(StatusCode::OK, &message.to_string());
    refused.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    refused
}
