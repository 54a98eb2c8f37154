//! `initialize`, whose parameters `rmcp` keeps as long as the session.

use hyper::body::Bytes;
use portcullis_rpc::response;
use rmcp::model::InitializeRequestParams;

use super::ids::Head;

/// Returns the body for `rmcp` if a request is an `initialize`: without what is not used.
pub(super) fn shorten(head: &Head<'_>) -> Option<Bytes> {
    let Head { id, method, params: Some(params) } = head else { return None };
    if method != "initialize" {
        return None;
    }
    // Other parameters are refused later.
    let mut params = serde_json::from_str::<InitializeRequestParams>(params.get()).ok()?;
    portcullis_mcp::shorten(&mut params);
    Some(response::request(id, method, Some(params)).into())
}
