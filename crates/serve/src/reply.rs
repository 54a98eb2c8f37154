//! HTTP replies used by all parts of the front.

use std::{convert::Infallible, time::Duration};

use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};

use super::OpenError;
use crate::buffer;

/// A reply's body.
pub(super) type Body = BoxBody<Bytes, Infallible>;

/// Returns a body of one frame.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// Returns a reply of one line of text, not to be cached.
pub(super) fn text(status: StatusCode, line: &str) -> Response<Body> {
    one_line(status, "text/plain; charset=utf-8", line.into())
}

/// Returns a reply of one line of JSON, not to be cached.
pub(super) fn json(status: StatusCode, line: impl Into<Vec<u8>>) -> Response<Body> {
    one_line(status, "application/json", line.into())
}

fn one_line(status: StatusCode, kind: &'static str, mut line: Vec<u8>) -> Response<Body> {
    line.push(b'\n');
    let mut reply = Response::new(whole(line));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// Returns the reply to a message that needs no other one.
pub(super) fn accepted() -> Response<Body> {
    let mut reply = Response::new(whole(Bytes::new()));
    *reply.status_mut() = StatusCode::ACCEPTED;
    reply
}

/// Returns the reply to a method that is not in `allowed`.
pub(super) fn not_so(allowed: &'static str) -> Response<Body> {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "not with this method");
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    reply
}

/// The reason for the refusal of a request without a token.
pub(super) const TOKEN_MISSING: &str = "no token was sent: add the header `Authorization: Bearer TOKEN`; `portcullis token new` makes a token";

/// Returns the reply to a request without a valid token.
pub(super) fn unauthorised(reason: &str) -> Response<Body> {
    let mut reply = text(StatusCode::UNAUTHORIZED, reason);
    reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    reply
}

/// Returns the reply that says why there is no session.
pub(super) fn refused(error: &OpenError) -> Response<Body> {
    let reason = error.to_string();
    let (status, wait) = match error {
        OpenError::Unauthorised => return unauthorised(&reason),
        OpenError::UnknownWorkspace => return text(StatusCode::NOT_FOUND, &reason),
        OpenError::Throttled(wait) => {
            (StatusCode::TOO_MANY_REQUESTS, wait.as_secs().saturating_add(1))
        }
        OpenError::Busy => (StatusCode::TOO_MANY_REQUESTS, 1),
        OpenError::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, 1),
    };
    let mut reply = text(status, &reason);
    reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait));
    reply
}

/// Reads the body of a request, at most `most` bytes within `time`. Before it stores
/// more, it asks `holds` for memory for the new total.
///
/// # Errors
/// The reply that gives the reason.
pub(super) async fn body(
    mut body: Incoming,
    most: usize,
    time: Duration,
    mut holds: impl FnMut(usize) -> bool,
) -> Result<Bytes, Box<Response<Body>>> {
    let refuse = |status, reason| Box::new(text(status, reason));
    let mut bytes = Vec::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(refuse(StatusCode::BAD_REQUEST, "the body broke off"));
            };
            let Ok(piece) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(piece.len());
            if length > most {
                return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"));
            }
            if !holds(length) || !buffer::grow(&mut bytes, piece.len(), most) {
                return Err(Box::new(full()));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(())
    };
    match tokio::time::timeout(time, read).await {
        Ok(read) => read.map(|()| Bytes::from(bytes)),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

/// Returns the reply to a body for which there is no memory now.
pub(super) fn full() -> Response<Body> {
    later(StatusCode::TOO_MANY_REQUESTS, "too much is under way; try again later")
}

/// Returns the reply to a request for which there is room later.
pub(super) fn later(status: StatusCode, reason: &str) -> Response<Body> {
    let mut reply = text(status, reason);
    reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
    reply
}

/// Returns the reply to a request whose connection may not be, and closes that.
pub(super) fn not_admitted(status: StatusCode, reason: &str) -> Response<Body> {
    let mut reply = later(status, reason);
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}
