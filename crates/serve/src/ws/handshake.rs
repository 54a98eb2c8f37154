//! The handshake (RFC 6455, 4.2).

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use tungstenite::handshake::derive_accept_key;

use crate::reply::{self, Body};

/// Checks the handshake, and returns the value of `Sec-WebSocket-Accept`.
pub(super) fn accept<B>(request: &Request<B>) -> Result<HeaderValue, Box<Response<Body>>> {
    let refuse = |status, reason| Err(Box::new(reply::text(status, reason)));
    if request.method() != Method::GET {
        return Err(Box::new(reply::not_so("GET")));
    }
    let headers = request.headers();
    if !has_word(headers, &UPGRADE, "websocket") || !has_word(headers, &CONNECTION, "upgrade") {
        let mut refused = reply::text(StatusCode::UPGRADE_REQUIRED, "expected a WebSocket");
        refused.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return Err(Box::new(refused));
    }
    if !has_word(headers, &SEC_WEBSOCKET_VERSION, "13") {
        let mut refused = reply::text(StatusCode::UPGRADE_REQUIRED, "only version 13 is spoken");
        refused.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(Box::new(refused));
    }
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).into_iter();
    // 16 bytes in base64.
    let key = keys.next().filter(|key| key.len() == 24 && keys.next().is_none());
    let accept = key.and_then(|key| HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok());
    match accept {
        Some(accept) => Ok(accept),
        None => refuse(StatusCode::BAD_REQUEST, "`Sec-WebSocket-Key` is missing or wrong"),
    }
}

fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Returns the subprotocol before the token, as the client wrote it.
fn protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    let mut words =
        values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let word = words.find(|word| word.trim().eq_ignore_ascii_case("bearer"))?;
    HeaderValue::from_str(word.trim()).ok()
}

/// Returns the reply that completes the handshake: `accept` is the result of
/// [`accept`] for the request with these `headers`.
pub(super) fn accepted(accept: HeaderValue, headers: &HeaderMap) -> Response<Body> {
    let mut reply = Response::new(reply::whole(""));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let response_headers = reply.headers_mut();
    response_headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response_headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    response_headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    // A browser that offers subprotocols requires one of them in the reply.
    response_headers.extend(protocol(headers).map(|word| (SEC_WEBSOCKET_PROTOCOL, word)));
    reply
}
