//! The token of a request.

use std::fmt;

use hyper::{
    HeaderMap, Request,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
};
use sha2::{Digest as _, Sha256};

/// Longest token, in bytes.
const MAX_TOKEN: usize = 512;

/// SHA-256 of a token. The token itself stays in this file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Returns the hash of `token`.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// Returns the hash of a request's token: `Authorization: Bearer TOKEN`; with
/// `socket`, since a browser that opens a WebSocket can set no such header, also
/// `Sec-WebSocket-Protocol: Bearer, TOKEN` or `?token=TOKEN`. Returns `None` for two
/// different tokens.
pub(super) fn of<B>(request: &Request<B>, socket: bool) -> Option<TokenHash> {
    let mut shown = Vec::new();
    for value in request.headers().get_all(AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            shown.push(token.trim());
        }
    }
    if socket {
        shown.extend(protocol(request.headers()));
        let query = request.uri().query().unwrap_or_default();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        shown.extend(pairs.filter(|(key, _)| *key == "token").map(|(_, token)| token));
    }
    let (first, rest) = shown.split_first()?;
    let good =
        !first.is_empty() && first.len() <= MAX_TOKEN && rest.iter().all(|next| next == first);
    good.then(|| TokenHash::of(first))
}

/// Returns the token among the subprotocols of a WebSocket.
fn protocol(headers: &HeaderMap) -> Option<&str> {
    let mut words = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    words.find(|word| word.eq_ignore_ascii_case("bearer"))?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_token_is_found_where_it_may_stand_and_nowhere_else() {
        let hash = Some(TokenHash::of("t"));
        let header = request("/", &[("authorization", "bearer t")]);
        assert_eq!(of(&header, false), hash);
        let socket = request("/", &[("sec-websocket-protocol", "x, Bearer, t")]);
        assert_eq!((of(&socket, true), of(&socket, false)), (hash, None));
        let query = request("/?a=b&token=t", &[]);
        assert_eq!((of(&query, true), of(&query, false)), (hash, None));
        for bad in ["Basic t", "Bearer", "Bearer ", "t"] {
            assert_eq!(of(&request("/", &[("authorization", bad)]), false), None, "{bad}");
        }
    }

    #[test]
    fn two_different_tokens_are_none() {
        let two = request("/?token=u", &[("authorization", "Bearer t")]);
        assert_eq!(of(&two, true), None);
        let same = request("/?token=t", &[("authorization", "Bearer t")]);
        assert!(of(&same, true).is_some());
    }

    #[test]
    fn a_hash_does_not_show_in_logs() {
        assert_eq!(format!("{:?}", TokenHash::of("t")), "TokenHash(…)");
    }
}
