//! Heads of requests (RFC 9110, RFC 9112): parsed as programs send them, and written for the
//! server.
//!
//! A head is written anew, never passed on as it came. Forms that a proxy and a server could parse
//! differently are refused.

use std::borrow::Cow;

use portcullis_policy::model::Host;

use crate::{
    body::Framing,
    messages::{MAX_HOST, NamedRequest, RefusedRequest, without_user},
};

/// The longest head, in bytes.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
const MAX_FIELDS: usize = 100;
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// The longest method that is repeated, in bytes.
const MAX_METHOD: usize = 32;

/// Fields that are about one connection, not the request (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Fields that no `Connection` may name: they say where a request goes and where it ends.
const END_TO_END: [&str; 3] = ["content-length", "host", "transfer-encoding"];

/// The reason why a head is refused, as a text.
pub(crate) type HeadError = &'static str;

/// The reasons for a request that names a second host.
const OTHER_HOST: HeadError = "`Host` is not the requested host";
const SEVERAL_HOSTS: HeadError = "there are several `Host` fields";

/// The reason for bytes of another protocol.
pub(crate) const NO_HTTP: HeadError = "this is no HTTP/1 request";

/// A host and a port as a program wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Authority {
    /// Splits the port off at the last colon that is not an address's. The host is left to the
    /// parser of hosts.
    fn parse(text: &str, default: Option<u16>) -> Result<Self, HeadError> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|port| *port > 0)
            }
            Some(_) => None,
            None => default,
        };
        let port = port.ok_or("the target is no host and port")?;
        let host = match host.strip_prefix('[') {
            Some(address) => address.strip_suffix(']').filter(|host| host.contains(':')),
            None => Some(host).filter(|host| !host.contains(':')),
        };
        let host = host.ok_or("the target is no host and port")?.to_owned();
        Ok(Self { host, port })
    }
}

/// The host that a refused target or `Host` names, without user information.
enum Named {
    Authority(Authority),
    /// A text that is no host and port.
    Malformed(String),
}

impl Named {
    /// Returns the host that a text names; `None` if a part of a password may be taken for it.
    /// `is_followed` says that the text may be the beginning of one with user information.
    fn of(text: &str, is_followed: bool) -> Option<Self> {
        let (rest, default) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => {
                (rest, Some(HTTPS_PORT))
            }
            Some((_, rest)) => (rest, Some(HTTP_PORT)),
            None => (text, None),
        };
        // User information, the path and what follows may have secrets.
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let more = rest.get(authority.len()..).unwrap_or_default();
        let is_followed = is_followed || more.contains('@');
        // What follows these characters may be a password with a slash, a space or the like.
        if is_followed && (authority.contains([':', '@']) || more.starts_with(['#', '\\'])) {
            return None;
        }
        let authority = without_user(authority);
        match Authority::parse(authority, default) {
            Ok(authority) => Some(Self::Authority(authority)),
            Err(_) if is_followed => None,
            Err(_) => Some(Self::Malformed(authority.to_owned())),
        }
    }
}

/// A request of a program to the proxy.
#[derive(Debug)]
pub(crate) enum ProxyRequest {
    /// A tunnel.
    Tunnel(Authority),
    /// One request, to be passed on.
    Forward(Authority, Request),
}

/// A request that goes on to the server.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its head, as it is sent.
    pub(crate) head: Vec<u8>,
    /// The framing of its body.
    pub(crate) framing: Framing,
}

/// A parsed head and its length in bytes; `None` while the head is incomplete.
pub(crate) type Parsed<T> = Result<Option<(T, usize)>, HeadError>;

/// Parses the head of a request to the proxy.
pub(crate) fn to_proxy(bytes: &[u8]) -> Parsed<ProxyRequest> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let Some((head, length)) = parse(bytes, &mut fields)? else { return Ok(None) };
    if head.method == "CONNECT" {
        let to = Authority::parse(head.target, None)?;
        // The gateway refuses what is no host.
        if let Ok(host) = Host::parse(&to.host) {
            head.check_host(&host, to.port)?;
        }
        return Ok(Some((ProxyRequest::Tunnel(to), length)));
    }
    let scheme = head.target.split_at_checked("http://".len());
    let Some((_, rest)) = scheme.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http://"))
    else {
        return Err(match head.target.split_once("://") {
            Some(_) => "only `http://` is passed on; for `https://` use CONNECT",
            None => "this is a proxy: the target must be a whole URL",
        });
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let authority = Authority::parse(authority, Some(HTTP_PORT))?;
    let path: Cow<'_, str> = match path.starts_with('/') {
        true => path.into(),
        false => format!("/{path}").into(),
    };
    let host = Host::parse(&authority.host).map_err(|_| "the target names no host")?;
    let request = head.onward(&path, &host, authority.port)?;
    Ok(Some((ProxyRequest::Forward(authority, request), length)))
}

/// Parses the head of a request to a server, in a tunnel to it.
pub(crate) fn in_tunnel(bytes: &[u8], host: &Host, port: u16) -> Parsed<Request> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let Some((head, length)) = parse(bytes, &mut fields)? else { return Ok(None) };
    let is_whole = head.method == "OPTIONS" && head.target == "*";
    if head.method == "CONNECT" || !(is_whole || head.target.starts_with('/')) {
        return Err("the target of a request in a tunnel must be a path");
    }
    if !head.fields.iter().any(|field| field.name.eq_ignore_ascii_case("host")) {
        return Err("the request has no `Host`");
    }
    Ok(Some((head.onward(head.target, host, port)?, length)))
}

/// Returns the host that a refused request is for, as written: that of an absolute URL, else that
/// of `Host`.
pub(crate) fn named_host(bytes: &[u8]) -> Option<String> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let (head, _) = parse(bytes, &mut fields).ok()??;
    let field = || {
        let field = head.fields.iter().find(|field| field.name.eq_ignore_ascii_case("host"))?;
        Some(String::from_utf8_lossy(field.value).into_owned())
    };
    let is_target = head.target.contains("://") || head.method == "CONNECT";
    let named = if is_target { head.target.to_owned() } else { field()? };
    Some(match Named::of(&named, false)? {
        Named::Authority(authority) => authority.host,
        Named::Malformed(text) => text,
    })
}

/// Returns the refusal of a request to the proxy whose head begins with these bytes.
pub(crate) fn refused(bytes: &[u8], why: HeadError) -> RefusedRequest {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has_no_end = line.len() == bytes.len();
    // A carriage return elsewhere ends no line: it may be in a password.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_followed = has_no_end || words.any(|word| word.contains(&b'@'));
    let target = String::from_utf8_lossy(target);
    let has_other_host = [OTHER_HOST, SEVERAL_HOSTS].contains(&why);
    let target = match has_other_host {
        // The target is well-formed: its path has the sign.
        true => target.split('@').next().unwrap_or_default(),
        false => &target,
    };
    let shown = match Named::of(target, is_followed && !has_other_host) {
        Some(Named::Authority(Authority { host, port })) if host.contains(':') => {
            format!("[{host}]:{port}")
        }
        Some(Named::Authority(Authority { host, port })) => format!("{host}:{port}"),
        Some(Named::Malformed(text)) => text,
        None => String::new(),
    };
    let is_method =
        (1..=MAX_METHOD).contains(&method.len()) && method.iter().all(u8::is_ascii_alphabetic);
    let method = is_method.then(|| String::from_utf8_lossy(method).into_owned());
    RefusedRequest {
        status: 400,
        reason: why.to_owned(),
        // Half of a longer one could be half a secret.
        target: Some(shown).filter(|shown| shown.len() <= MAX_HOST).unwrap_or_default(),
        has_other_host,
        named: NamedRequest { method, path: None },
    }
}

fn parse<'b, 'f>(bytes: &'b [u8], fields: &'f mut [httparse::Header<'b>]) -> Parsed<Head<'b, 'f>> {
    let mut request = httparse::Request::new(fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err("the head of the request is too long");
        }
        Err(_) => return Err(NO_HTTP),
    };
    let method = request.method.ok_or(NO_HTTP)?;
    let target = request.path.ok_or(NO_HTTP)?;
    let minor = request.version.ok_or(NO_HTTP)?;
    if target.contains(['#', '\\']) || !target.is_ascii() {
        return Err("the target has characters that no URL has");
    }
    Ok(Some((Head { method, target, minor, fields: request.headers }, length)))
}

struct Head<'b, 'f> {
    method: &'b str,
    target: &'b str,
    minor: u8,
    fields: &'f [httparse::Header<'b>],
}

impl Head<'_, '_> {
    /// Writes the request for the server.
    fn onward(&self, target: &str, host: &Host, port: u16) -> Result<Request, HeadError> {
        self.check_host(host, port)?;
        let nominated = self.nominated()?;
        let framing = self.framing()?;
        let Self { method, minor, .. } = self;
        let shown = match host {
            Host::Address(std::net::IpAddr::V6(address)) => format!("[{address}]"),
            host => host.to_string(),
        };
        let shown = if port == HTTP_PORT { shown } else { format!("{shown}:{port}") };
        let mut head =
            format!("{method} {target} HTTP/1.{minor}\r\nHost: {shown}\r\n").into_bytes();
        for field in self.fields {
            let name = field.name.to_ascii_lowercase();
            let is_dropped = name == "host" || HOP_BY_HOP.contains(&&*name);
            if is_dropped || nominated.contains(&name) {
                continue;
            }
            head.extend_from_slice(field.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(field.value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"Connection: close\r\n\r\n");
        Ok(Request { head, framing })
    }

    /// Returns the values of a field, which must be ASCII.
    fn values(&self, name: &str) -> Result<Vec<&str>, HeadError> {
        let named = self.fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let values = named.map(|field| std::str::from_utf8(field.value).ok());
        let values = values.collect::<Option<Vec<_>>>();
        values
            .filter(|values| values.iter().all(|value| value.is_ascii()))
            .ok_or("a field is no text")
    }

    fn check_host(&self, host: &Host, port: u16) -> Result<(), HeadError> {
        match *self.values("host")? {
            [] => Ok(()),
            [value] => {
                let named = Authority::parse(value, Some(port)).map_err(|_| OTHER_HOST)?;
                let is_same = named.port == port
                    && Host::parse(&named.host).is_ok_and(|named| named == *host);
                if is_same { Ok(()) } else { Err(OTHER_HOST) }
            }
            _ => Err(SEVERAL_HOSTS),
        }
    }

    /// Returns the names that `Connection` and `Proxy-Connection` list: fields that concern this
    /// connection.
    fn nominated(&self) -> Result<Vec<String>, HeadError> {
        let values = self.values("connection")?.into_iter().chain(self.values("proxy-connection")?);
        let names = values.flat_map(|value| value.split(','));
        let names: Vec<_> = names.map(|name| name.trim().to_ascii_lowercase()).collect();
        match names.iter().any(|name| END_TO_END.contains(&&**name)) {
            true => Err("`Connection` names a field that a request needs"),
            false => Ok(names),
        }
    }

    fn framing(&self) -> Result<Framing, HeadError> {
        let (lengths, codings) =
            (self.values("content-length")?, self.values("transfer-encoding")?);
        match (&*lengths, &*codings) {
            ([], []) => Ok(Framing::length(0)),
            ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().map(Framing::length).map_err(|_| "`Content-Length` is no length")
            }
            ([], [coding]) if self.minor == 1 && coding.eq_ignore_ascii_case("chunked") => {
                Ok(Framing::chunked())
            }
            _ => Err("`Content-Length` and `Transfer-Encoding` do not say where the request ends"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a password that looks like a port was recorded.
    #[test]
    fn what_is_recorded_of_a_refused_target_has_no_part_of_a_password() {
        let recorded = |line: &str| refused(line.as_bytes(), NO_HTTP).target;
        for target in
            ["user:12/34", "user:12?34", "user:12#34", "user:12\\34", "user:12 34", "u:x y"]
        {
            for target in [format!("{target}@a.example:443"), format!("http://{target}@a.example/")]
            {
                let head = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
                assert_eq!(recorded(&head), "", "{head}");
            }
        }
        assert_eq!(recorded("CONNECT user:12/3"), "");
        let long = format!("CONNECT {}:443 HTTP/1.1\r\n", "x".repeat(MAX_HOST));
        assert_eq!(recorded(&long), "");
        for (target, shown) in [
            ("user:12@a.example:443", "a.example:443"),
            ("a.example:443/path", "a.example:443"),
            ("a.example:0", "a.example:0"),
            ("https://a.example/@scope/x", "a.example:443"),
        ] {
            assert_eq!(recorded(&format!("CONNECT {target} HTTP/1.1\r\n\r\n")), shown);
        }
    }

    /// The beginning of a password was recorded as the other host, or as the host of the target.
    #[test]
    fn what_is_named_has_no_part_of_a_password() {
        let recorded = |line: &str| refused(line.as_bytes(), NO_HTTP).target;
        for target in ["user:PW\rPW", "PW@PW#PW", "PW#PW", "user:PW@PW\0/PW", "PW@PW\\PW"] {
            for target in [format!("{target}@a.example:443"), format!("http://{target}@a.example/")]
            {
                let target = recorded(&format!("GET {target} HTTP/1.1\r\n\r\n"));
                assert!(!target.contains("PW"), "{target}");
            }
        }
        let fields = "HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for head in [
            format!("GET http://user:PW/PW@b.example/ {fields}"),
            format!("GET http://user:PW?PW@b.example/ {fields}"),
            format!("CONNECT user:PW/PW@b.example:443 {fields}"),
            "GET / HTTP/1.1\r\nHost: user:PW/PW@b.example\r\n\r\n".to_owned(),
        ] {
            assert_eq!(named_host(head.as_bytes()), None, "{head}");
        }
        for target in ["http://b.example/@scope/x", "http://user:PW@b.example/"] {
            let head = format!("GET {target} {fields}");
            assert_eq!(named_host(head.as_bytes()).as_deref(), Some("b.example"), "{head}");
        }
        // The target was parsed, and has no user information.
        let shown = refused(b"GET http://a.example:81/x@y HTTP/1.1\r\n\r\n", OTHER_HOST).target;
        assert_eq!(shown, "a.example:81");
    }

    fn forwarded(head: &str) -> Result<String, HeadError> {
        match to_proxy(head.as_bytes())? {
            Some((ProxyRequest::Forward(_, request), length)) => {
                assert_eq!(length, head.len());
                Ok(String::from_utf8(request.head).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_goes_on_without_what_is_about_the_proxy() {
        let head = "POST HTTP://A.example?q HTTP/1.1\r\nHost: a.example:80\r\nX-One: 1\r\nUpgrade: h2c\r\n\
            Connection: keep-alive, x-ONE\r\nProxy-Authorization: Basic x\r\nContent-Length: 5\r\n\r\n";
        let expected = "POST /?q HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\
            Connection: close\r\n\r\n";
        assert_eq!(forwarded(head).unwrap(), expected);
    }

    #[test]
    fn what_proxy_and_server_could_read_differently_is_refused() {
        for fields in [
            "Host: b.example",
            "Host: a.example\r\nHost: a.example",
            "Host: a.example@b.example",
            "Host: a.example:81",
            "Host: a.example.",
            "Content-Length: 1\r\nContent-Length: 1",
            "Content-Length: +1",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: gzip",
            "Connection: Host",
            "Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
            "X: 1\r\n folded",
            "X : 1",
        ] {
            let head = format!("POST http://a.example/ HTTP/1.1\r\n{fields}\r\n\r\n");
            assert!(to_proxy(head.as_bytes()).is_err(), "{fields}");
        }
    }

    #[test]
    fn a_target_is_a_host_and_a_port() {
        let tunnel = |target: &str| {
            let head = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
            match to_proxy(head.as_bytes()) {
                Ok(Some((ProxyRequest::Tunnel(Authority { host, port }), _))) => Some((host, port)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => None,
            }
        };
        assert_eq!(tunnel("a.example:443"), Some(("a.example".to_owned(), 443)));
        assert_eq!(tunnel("[::1]:443"), Some(("::1".to_owned(), 443)));
        for target in [
            "a.example",
            "a.example:",
            "a.example:0",
            "a.example:+443",
            "a.example:65536",
            "::1:443",
            "[a]:443",
            "a.example:443@b.example:443",
            "a.example:443/",
            "a.example:443#",
            "[::1]",
        ] {
            assert_eq!(tunnel(target), None, "{target}");
        }
    }
}
