//! The filter of a credential's process: decides which requests are passed on, and with which
//! headers.
//!
//! A request is written anew, never passed on as it came. The filter alone sets its host and its
//! credential.

use hyper::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header,
    request::{Builder, Parts},
};
use portcullis_policy::model::{QuotedName, complete_words};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::{CredentialOrder, query};
use crate::messages::NamedRequest;

/// Headers that concern one connection or the framing of a body, or that are written anew, by their
/// [letters](query::letters).
const NOT_PASSED: [&str; 17] = [
    "acceptencoding",
    "connection",
    "contentlength",
    "expect",
    "forwarded",
    "host",
    // A key could be read in ranges, none of which contains all of it.
    "ifrange",
    "keepalive",
    "proxyauthenticate",
    "proxyauthorization",
    "proxyconnection",
    "range",
    "requestrange",
    "te",
    "trailer",
    "transferencoding",
    "upgrade",
];

/// The longest method or path that a reason repeats, in bytes: more than its record has, because
/// the gateway process searches it for secrets before it is cut.
const MAX_SHOWN: usize = 800;

/// Tokens of `Connection` that are admitted: they concern no header that is passed on.
const CONNECTION_TOKENS: [&str; 3] = ["close", "keep-alive", "te"];

/// The requests that one credential is for, and the headers that they get.
pub(super) struct Filter {
    authority: String,
    header: HeaderName,
    /// The value that programs must send in that header: prefix and phantom.
    expected: String,
    /// The value that the server gets in that header: prefix and key.
    value: HeaderValue,
    methods: Vec<Method>,
    paths: Vec<String>,
}

/// The reason why a request is not passed on: an HTTP status and a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RejectedRequest(pub(super) u16, pub(super) String);

/// A request that is passed on.
#[derive(Debug)]
pub(super) struct FilteredRequest {
    method: Method,
    target: String,
    headers: HeaderMap,
}

fn malformed(reason: &str) -> RejectedRequest {
    RejectedRequest(400, reason.to_owned())
}

impl Filter {
    /// Returns the filter of a credential; `None` if its header, a method or the key is malformed.
    pub(super) fn new(order: &CredentialOrder, key: &str) -> Option<Self> {
        let CredentialOrder { host, port, header, prefix, phantom, methods, paths, .. } = order;
        let value = Zeroizing::new(format!("{prefix}{key}"));
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        let bare = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let authority = if *port == 443 { bare } else { format!("{bare}:{port}") };
        let methods = methods.iter().map(|method| method.parse().ok());
        Some(Self {
            authority,
            header: header.parse().ok()?,
            expected: format!("{prefix}{phantom}"),
            value,
            methods: methods.collect::<Option<_>>()?,
            paths: paths.clone(),
        })
    }

    /// Checks a request, removes the headers that are not passed on, and puts the key in the
    /// phantom's place.
    pub(super) fn admit(&self, parts: &Parts) -> Result<FilteredRequest, RejectedRequest> {
        let (method, headers) = (&parts.method, &parts.headers);
        if [Method::CONNECT, Method::TRACE].contains(method) {
            return Err(RejectedRequest(405, format!("the method {method} is never passed on")));
        }
        if parts.uri.scheme().is_some() || parts.uri.authority().is_some() {
            return Err(malformed("the target of the request is to be a path"));
        }
        check_connection(headers)?;
        self.check_phantom(headers)?;
        let target = self.check_target(&parts.uri)?;
        if !self.methods.contains(method) {
            let named = match complete_words(method.as_str(), MAX_SHOWN) {
                "" => "of the request (too long to be shown)".to_owned(),
                method => format!("`{method}`"),
            };
            let reason = format!(
                "the credential is not for the method {named}, which its `methods` do not have"
            );
            return Err(RejectedRequest(403, reason));
        }
        let mut onward = HeaderMap::new();
        for (name, value) in headers {
            if self.is_passed(name.as_str()) {
                onward.append(name, value.clone());
            }
        }
        onward.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        onward.insert(&self.header, self.value.clone());
        Ok(FilteredRequest { method: method.clone(), target, headers: onward })
    }

    /// True if a header is passed on as it came.
    fn is_passed(&self, name: &str) -> bool {
        let letters = query::letters(name);
        // Servers that take `_` for `-` would find a header that was taken out or set.
        !name.contains('_')
            && letters != query::letters(self.header.as_str())
            && !NOT_PASSED.contains(&&*letters)
            && !letters.contains("xamz")
            && !query::is_override(name)
            && !query::is_credential(name)
    }

    fn check_phantom(&self, headers: &HeaderMap) -> Result<(), RejectedRequest> {
        let mut values = headers.get_all(&self.header).iter();
        let (value, more) = (values.next(), values.next());
        if more.is_some() {
            return Err(malformed("the credential's header is there twice"));
        }
        let is_phantom =
            |value: &HeaderValue| bool::from(value.as_bytes().ct_eq(self.expected.as_bytes()));
        if value.is_some_and(is_phantom) {
            return Ok(());
        }
        let reason = format!(
            "the header `{}` does not have the value that this session's environment has for it",
            self.header
        );
        Err(RejectedRequest(401, reason))
    }

    fn check_target(&self, target: &Uri) -> Result<String, RejectedRequest> {
        let path = target.path();
        if !query::is_plain(path) {
            let reason =
                "the path has escapes, empty parts, or characters that can be read in two ways";
            return Err(malformed(reason));
        }
        if !query::is_listed(path, &self.paths) {
            let reason = format!(
                "the credential is not for the path {}, which its `paths` do not have",
                QuotedName(complete_words(path, MAX_SHOWN))
            );
            return Err(RejectedRequest(403, reason));
        }
        let Some(query) = target.query() else { return Ok(path.to_owned()) };
        if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(malformed("the query has characters that no URL has"));
        }
        if query::is_refused(query) {
            return Err(malformed(
                "the query has a parameter that servers take for a credential or another method",
            ));
        }
        Ok(format!("{path}?{query}"))
    }
}

impl FilteredRequest {
    /// Returns the names of the request in records.
    pub(super) fn named(&self) -> NamedRequest {
        let path = self.target.split('?').next().unwrap_or_default();
        NamedRequest::new(self.method.as_str(), path)
    }

    /// Builds the request without its body, for that version of HTTP.
    pub(super) fn onward(&self, filter: &Filter, version: Version) -> Builder {
        let Self { method, target, headers } = self;
        let Filter { authority, .. } = filter;
        let mut request = Builder::new().method(method).version(version);
        request = match version {
            Version::HTTP_2 => request.uri(format!("https://{authority}{target}")),
            _ => request.uri(target).header(header::HOST, authority),
        };
        if let Some(onward) = request.headers_mut() {
            onward.extend(headers.clone());
        }
        request
    }
}

/// Refuses upgrades to another protocol, and `Connection` fields that name further headers.
fn check_connection(headers: &HeaderMap) -> Result<(), RejectedRequest> {
    if headers.contains_key(header::UPGRADE) {
        return Err(malformed("a connection with a credential stays HTTP/1.1"));
    }
    let named = [header::CONNECTION, HeaderName::from_static("proxy-connection")];
    for value in named.iter().flat_map(|name| headers.get_all(name)) {
        let tokens = value.to_str().map_err(|_| malformed("`Connection` is no text"))?;
        let mut tokens = tokens.split(',').map(|token| token.trim().to_ascii_lowercase());
        if !tokens.all(|token| token.is_empty() || CONNECTION_TOKENS.contains(&&*token)) {
            return Err(malformed("`Connection` names a header"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::http::Request;

    use super::*;

    fn filter() -> Filter {
        let order = CredentialOrder {
            host: "api.example".to_owned(),
            port: 8443,
            header: "x-api-key".to_owned(),
            prefix: String::new(),
            phantom: "phantom".to_owned(),
            methods: vec!["POST".to_owned()],
            paths: vec!["/v1/messages".to_owned()],
            roots: Vec::new(),
        };
        Filter::new(&order, "the-real-key").unwrap()
    }

    fn admitted(request: Builder) -> Result<FilteredRequest, RejectedRequest> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        filter().admit(&parts)
    }

    fn post(target: &str) -> Builder {
        Request::post(target).header("x-api-key", "phantom")
    }

    fn refused(request: Builder) -> u16 {
        admitted(request).unwrap_err().0
    }

    #[test]
    fn the_key_takes_the_phantoms_place_and_other_credentials_go() {
        let request = post("/v1/messages?beta=true")
            .header("host", "127.0.0.1:3129")
            .header("authorization", "Bearer other")
            .header("cookie", "a=b")
            .header("x-goog-api-key", "other")
            .header("accept-encoding", "gzip")
            .header("range", "bytes=0-3")
            .header("connection", "keep-alive")
            .header("content-type", "application/json");
        let onward = |version| {
            let filter = filter();
            let request = admitted(post("/v1/messages")).unwrap().onward(&filter, version);
            request.body(()).unwrap()
        };
        let headers = admitted(request).unwrap().headers;
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "content-type", "x-api-key"]);
        assert_eq!(
            (&headers["x-api-key"], &headers["accept-encoding"]),
            (&HeaderValue::from_static("the-real-key"), &HeaderValue::from_static("identity"))
        );
        assert!(!format!("{headers:?}").contains("real"));
        assert_eq!(onward(Version::HTTP_2).uri(), "https://api.example:8443/v1/messages");
        let http1 = onward(Version::HTTP_11);
        assert_eq!(
            (http1.uri().to_string(), &http1.headers()["host"]),
            ("/v1/messages".to_owned(), &HeaderValue::from_static("api.example:8443"))
        );
    }

    #[test]
    fn a_header_is_taken_out_however_its_name_is_written() {
        let taken = [
            "x_api_key",
            "x-api_key",
            "X-ApiKey",
            "x.api.key",
            "x-api-key-",
            "Api_Key",
            "x-auth.token",
            "se-cret",
            "accept_encoding",
            "content_length",
            "transfer.encoding",
            "x-http-method-override",
            "x-method-override",
            "x-original-url",
            "x-rewrite-url",
            "x-forwarded-for",
            "x-forwarded-host",
            "forwarded",
            "anything_else",
            "ocp-apim-subscription-key",
            "x-access-key",
            "x-jwt-assertion",
            "x-pat",
            "x-sso-ticket",
            "remote-user",
            "x-impersonate-user",
            "x-host",
            "session",
            "request-range",
        ];
        let request = |name: &str| post("/v1/messages").header(name, "mine");
        for name in taken {
            let headers = admitted(request(name)).unwrap().headers;
            let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
            assert_eq!(names, ["accept-encoding", "x-api-key"], "{name}");
            assert_eq!(headers["x-api-key"], "the-real-key");
        }
        for name in [
            "anthropic-version",
            "anthropic-beta",
            "x-stainless-os",
            "x-stainless-retry-count",
            "idempotency-key",
            "openai-organization",
            "openai-beta",
            "x-goog-api-client",
            "x-session-id",
            "x-claude-code-session-id",
            "x-client-request-id",
            "user-agent",
            "traceparent",
        ] {
            assert!(admitted(request(name)).unwrap().headers.contains_key(name), "{name}");
        }
    }

    /// The reason named the method `` instead.
    #[test]
    fn a_method_that_is_too_long_is_not_shown() {
        let method = "M".repeat(5000);
        let RejectedRequest(status, reason) =
            admitted(post("/v1/messages").method(&*method)).unwrap_err();
        assert!(reason.contains("too long to be shown"), "{status} {reason}");
    }

    #[test]
    fn what_is_not_the_session_s_or_not_listed_is_refused() {
        for (request, status) in [
            (Request::post("/v1/messages"), 401),
            (Request::post("/v1/messages").header("x-api-key", "phantom2"), 401),
            (Request::post("/v1/messages").header("authorization", "Bearer phantom"), 401),
            (post("/v1/messages").header("x-api-key", "phantom"), 400),
            (post("/v1/messages").header("connection", "x-api-key"), 400),
            (post("/v1/messages").header("connection", "close, content-length"), 400),
            (post("/v1/messages").header("proxy-connection", "x"), 400),
            (post("/v1/messages").header("upgrade", "websocket"), 400),
            (post("/v1/messages?key=mine"), 400),
            (post("/v1/models"), 403),
            (post("/v1/../v1/messages"), 400),
            (post("/v1/messages%2f"), 400),
            (post("//v1/messages"), 400),
            (post("http://evil.example/v1/messages"), 400),
            (post("*"), 400),
            (post("/v1/messages").method("GET"), 403),
            (post("/v1/messages").method("TRACE"), 405),
            (post("evil.example:443").method("CONNECT"), 405),
        ] {
            let shown = format!("{request:?}");
            assert_eq!(refused(request), status, "{shown}");
        }
    }
}
