//! Replies of a server: searched for the key, and passed on to programs or cut off.

use std::{
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    Response, StatusCode, Version,
    body::{Body, Frame, Incoming, SizeHint},
    http::{HeaderName, HeaderValue, header, response::Parts},
};

use super::{
    key_search::{KeyForms, Search},
    upstream::ConnectionCloser,
};
use crate::refused::Refused;

/// Headers that concern the connection to the server, or would give a program a credential of its
/// own.
const NOT_PASSED: [HeaderName; 9] = [
    header::ALT_SVC,
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

const WITH_KEY: &str = "the reply of the server has the credential's key in it";
const ENCODED: &str = "the reply of the server is encoded, so it cannot be searched for the key";
const OTHER_PROTOCOL: &str = "the server wants to speak another protocol";

/// The body of a reply to a program.
pub(super) type ReplyBody = Either<Full<Bytes>, Searched>;

/// Returns a server's reply as the program gets it: without some headers, or a refusal in its
/// place.
pub(super) fn pass(
    reply: Response<Incoming>,
    cut: ConnectionCloser,
    forms: &Rc<KeyForms>,
) -> Response<ReplyBody> {
    let (mut parts, body) = reply.into_parts();
    let Parts { status, headers, .. } = &mut parts;
    let has_key = headers
        .iter()
        .any(|(name, value)| forms.are_in_name(name.as_ref()) || forms.are_in(value.as_bytes()));
    let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let is_encoded = encodings.chain(headers.get_all(header::TRANSFER_ENCODING)).any(|value| {
        !["", "identity", "chunked"]
            .iter()
            .any(|plain| value.as_bytes().eq_ignore_ascii_case(plain.as_bytes()))
    });
    let wrong = match (has_key, is_encoded) {
        (true, _) => Some(WITH_KEY),
        (_, true) => Some(ENCODED),
        _ if *status == StatusCode::SWITCHING_PROTOCOLS => Some(OTHER_PROTOCOL),
        _ => None,
    };
    if let Some(reason) = wrong {
        cut.cut_off(reason);
        return refusal(&Refused::unusable(reason));
    }
    for name in &NOT_PASSED {
        headers.remove(name);
    }
    let is_http2 = parts.version == Version::HTTP_2;
    // The extensions may have the server's own reason phrase.
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    let searched = Searched { body, is_http2, search: Search::new(forms), cut, is_over: false };
    searched.note_end();
    Response::from_parts(parts, Either::Right(searched))
}

/// Returns a refusal as a reply.
pub(super) fn refusal(refused: &Refused) -> Response<ReplyBody> {
    let body = Full::new(Bytes::from(refused.text.clone()));
    let mut reply = Response::new(Either::Left(body));
    *reply.status_mut() = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(header::CONTENT_TYPE, text);
    reply
}

/// A server's body, which ends with an error where the key is in it.
pub(super) struct Searched {
    body: Incoming,
    is_http2: bool,
    search: Search,
    cut: ConnectionCloser,
    is_over: bool,
}

impl Searched {
    /// Notes that the request is answered, once nothing of the body is left.
    fn note_end(&self) {
        if self.is_end_stream() {
            self.cut.answered();
        }
    }
}

/// The reason why a body was broken off.
#[derive(Debug)]
pub(super) enum Broken {
    Key,
    Lost(hyper::Error),
    Reset,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str(WITH_KEY),
            Self::Lost(error) => write!(f, "the server is gone: {error}"),
            Self::Reset => f.write_str("the server broke its reply off"),
        }
    }
}

impl std::error::Error for Broken {}

impl Body for Searched {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let passed = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers are not passed on.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.search.pass(data),
                    Err(_) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(Broken::Lost(error)))),
                // A stream that was reset without an error ends as one that is complete does.
                None if self.is_http2 && !self.body.is_end_stream() => {
                    return Poll::Ready(Some(Err(Broken::Reset)));
                }
                None => {
                    self.is_over = true;
                    Ok(self.search.rest())
                }
            };
            if passed.is_ok() {
                self.note_end();
            }
            match passed {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Err(_) => {
                    self.is_over = true;
                    self.cut.cut_off(WITH_KEY);
                    return Poll::Ready(Some(Err(Broken::Key)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream() && self.search.held() == 0
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, held) = (self.body.size_hint(), self.search.held() as u64);
        let mut all = SizeHint::new();
        all.set_lower(hint.lower().saturating_add(held));
        if let Some(upper) = hint.upper() {
            all.set_upper(upper.saturating_add(held));
        }
        all
    }
}
