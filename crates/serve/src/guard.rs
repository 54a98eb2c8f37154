//! The check of the hosts and origins that a request may name.
//!
//! A page that a browser shows can make requests to this machine, under a name that
//! its owner points here (DNS rebinding). So the `Host` must be one of the
//! gateway's, and an `Origin`, which browsers add, must be one that the operator
//! named. Other origins get no CORS headers.

use std::net::IpAddr;

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST,
        HeaderValue, ORIGIN, VARY,
    },
};

use super::{
    Peer,
    reply::{self, Body},
};

/// The headers that a page may send. There is no `mcp-param-*`: those are for
/// parameters that a tool's schema marks, and no tool here marks any.
const HEADERS: &str = "authorization, content-type, last-event-id, mcp-method, mcp-name, \
                       mcp-protocol-version, mcp-session-id";

/// The names and origins that requests may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// Host names, in lower case, besides the listening addresses.
    pub hosts: Vec<String>,
    /// The listening addresses, without ports.
    pub addresses: Vec<IpAddr>,
    /// Origins of pages that may send requests, as browsers write them.
    pub origins: Vec<String>,
}

impl Guard {
    /// Checks the host and origin of a request that came from `peer`.
    ///
    /// # Errors
    /// The reply that refuses it.
    pub(super) fn check<B>(
        &self,
        peer: &Peer,
        request: &Request<B>,
    ) -> Result<(), Box<Response<Body>>> {
        let refuse = |status, reason| Err(Box::new(reply::text(status, reason)));
        let mut hosts = request.headers().get_all(HOST).into_iter();
        let (host, more) = (hosts.next(), hosts.next());
        let Some(host) = host.and_then(|host| host.to_str().ok()).filter(|_| more.is_none()) else {
            return refuse(StatusCode::BAD_REQUEST, "a request needs one `Host`");
        };
        // The request line may name a host as well.
        let named = request.uri().authority().map(|authority| authority.as_str());
        let is_ours = |host: &str| self.is_ours(host, matches!(peer, Peer::User(_)));
        if !is_ours(host) || !named.is_none_or(is_ours) {
            return refuse(StatusCode::MISDIRECTED_REQUEST, "this host is not served here");
        }
        if request.headers().contains_key(ORIGIN) && self.origin(request.headers()).is_none() {
            return refuse(StatusCode::FORBIDDEN, "this origin may not call");
        }
        Ok(())
    }

    /// Returns the request's origin, if the operator allows it.
    pub(super) fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut origins = headers.get_all(ORIGIN).into_iter();
        let (origin, more) = (origins.next()?, origins.next());
        let known = self.origins.iter().any(|known| known.as_bytes() == origin.as_bytes());
        (known && more.is_none()).then(|| origin.clone())
    }

    /// Returns the reply to a CORS preflight request of an allowed origin.
    pub(super) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        self.origin(request.headers()).filter(|_| asks)?;
        let mut reply = Response::new(reply::whole(""));
        *reply.status_mut() = StatusCode::NO_CONTENT;
        let headers = reply.headers_mut();
        let methods = HeaderValue::from_static("GET, POST, DELETE");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        Some(reply)
    }

    /// Adds to a reply that a page of `origin` may read it.
    pub(super) fn mark(origin: Option<HeaderValue>, reply: &mut Response<Body>) {
        let Some(origin) = origin else { return };
        let headers = reply.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("mcp-session-id, retry-after"),
        );
        headers.append(VARY, HeaderValue::from_static("origin"));
    }

    /// Returns true if a request may name this host. `local` is set if it came over
    /// a UNIX socket, to which no name can lead a browser.
    fn is_ours(&self, host: &str, local: bool) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        match bare.unwrap_or(&name).parse::<IpAddr>() {
            Ok(address) => {
                // At a wildcard address any address of the machine is valid; a page
                // cannot make a browser name an address other than the one it
                // connects to.
                let wild = self.addresses.iter().any(IpAddr::is_unspecified);
                wild || self.addresses.contains(&address)
            }
            Err(_) => {
                let here = local
                    || self.addresses.iter().any(|at| at.is_loopback() || at.is_unspecified());
                (here && name == "localhost") || self.hosts.contains(&name)
            }
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(guard: &Guard, uri: &str, headers: &[(&str, &str)]) -> u16 {
        from(&Peer::Address("127.0.0.1".parse().unwrap()), guard, uri, headers)
    }

    fn from(peer: &Peer, guard: &Guard, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let checked = guard.check(peer, &request.body(()).unwrap());
        checked.map_or_else(|reply| reply.status().as_u16(), |()| 0)
    }

    #[test]
    fn only_our_own_hosts_are_served() {
        let guard = Guard {
            hosts: vec!["files.example.com".to_owned()],
            addresses: vec!["127.0.0.1".parse().unwrap()],
            origins: Vec::new(),
        };
        for good in ["127.0.0.1", "127.0.0.1:8750", "localhost:1", "LOCALHOST", "Files.Example.com"]
        {
            assert_eq!(status(&guard, "/", &[("host", good)]), 0, "{good}");
        }
        for bad in [
            "evil.example",
            "127.0.0.2",
            "localhost.evil.example",
            "[::1]",
            "",
            "files.example.com:x",
        ] {
            assert_eq!(status(&guard, "/", &[("host", bad)]), 421, "{bad}");
        }
        assert_eq!(status(&guard, "/", &[]), 400);
        assert_eq!(status(&guard, "/", &[("host", "localhost"), ("host", "evil")]), 400);
        assert_eq!(status(&guard, "http://evil.example/", &[("host", "localhost")]), 421);
    }

    #[test]
    fn over_a_unix_socket_localhost_is_ours_wherever_else_it_listens() {
        let addresses = vec!["192.0.2.2".parse().unwrap()];
        let guard = Guard { addresses, ..Guard::default() };
        let local = |host| from(&Peer::User(1000), &guard, "/", &[("host", host)]);
        assert_eq!((local("localhost"), local("evil.example")), (0, 421));
        // Over TCP that name could have led a page here.
        assert_eq!(status(&guard, "/", &[("host", "localhost")]), 421);
    }

    /// The headers that each request of revision 2026-07-28 must have.
    #[test]
    fn a_page_may_send_what_mcp_asks_for_in_every_revision() {
        let origins = vec!["https://app.example".to_owned()];
        let guard = Guard { origins, ..Guard::default() };
        let asks = Request::options("/mcp")
            .header(ORIGIN, "https://app.example")
            .header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
        let reply = guard.preflight(&asks.body(()).unwrap()).unwrap();
        let allowed = reply.headers()[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        let allowed: Vec<_> = allowed.split(", ").collect();
        for name in ["mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"] {
            assert!(allowed.contains(&name), "{name}: {allowed:?}");
        }
        assert!(allowed.iter().all(|name| !name.contains([' ', '*'])), "{allowed:?}");
    }

    #[test]
    fn a_page_needs_a_named_origin() {
        let origins = vec!["https://app.example".to_owned()];
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let guard = Guard { origins, addresses, ..Guard::default() };
        let from = |origin| status(&guard, "/", &[("host", "localhost"), ("origin", origin)]);
        assert_eq!(from("https://app.example"), 0);
        for bad in ["null", "https://app.example.evil", "http://app.example", "http://localhost"] {
            assert_eq!(from(bad), 403, "{bad}");
        }
    }
}
