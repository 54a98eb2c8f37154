//! Error replies to requests that `rmcp` does not get.

use hyper::{Response, StatusCode};
use portcullis_rpc::response;
use rmcp::{ErrorData, model::RequestId};

use crate::reply::{self, Body};

/// Returns the reply with `error` to the request `id`.
pub(super) fn error_reply(id: &RequestId, error: &ErrorData) -> Response<Body> {
    reply::json(StatusCode::OK, response::error(Some(id), error))
}
