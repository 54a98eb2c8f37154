//! Replies that every part of the front gives.

use std::{convert::Infallible, time::Duration};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};

use super::OpenError;

/// A reply's body.
pub(super) type Body = BoxBody<Bytes, Infallible>;

/// A body that is there as a whole.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// A reply of one line of text, which nobody may keep.
pub(super) fn text(status: StatusCode, line: &str) -> Response<Body> {
    let mut reply = Response::new(whole(format!("{line}\n")));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// To a method that there is not; `allowed` are those that there are.
pub(super) fn not_so(allowed: &'static str) -> Response<Body> {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "not with this method");
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    reply
}

/// Why there is no session.
pub(super) fn refused(error: &OpenError) -> Response<Body> {
    let status = match error {
        OpenError::Unauthorised => StatusCode::UNAUTHORIZED,
        OpenError::UnknownWorkspace => StatusCode::NOT_FOUND,
        OpenError::Busy | OpenError::Throttled(_) => StatusCode::TOO_MANY_REQUESTS,
        OpenError::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut reply = text(status, &error.to_string());
    let headers = reply.headers_mut();
    let wait = match error {
        OpenError::Unauthorised => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return reply;
        }
        OpenError::Throttled(wait) => wait.as_secs().saturating_add(1),
        OpenError::Busy | OpenError::Unavailable => 1,
        OpenError::UnknownWorkspace => return reply,
    };
    headers.insert(RETRY_AFTER, HeaderValue::from(wait));
    reply
}

/// The body of a request, at most `most` bytes within `time`.
///
/// # Errors
/// The reply that says why not.
pub(super) async fn body(
    request: Request<Incoming>,
    most: usize,
    time: Duration,
) -> Result<Bytes, Box<Response<Body>>> {
    let read = Limited::new(request.into_body(), most).collect();
    match tokio::time::timeout(time, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Box::new(text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large")))
        }
        Ok(Err(_)) => Err(Box::new(text(StatusCode::BAD_REQUEST, "the body broke off"))),
        Err(_) => Err(Box::new(text(StatusCode::REQUEST_TIMEOUT, "the body took too long"))),
    }
}
