//! The HTTP client for copies in object storage and behind HTTP.
//!
//! Redirects are not followed: that would send the target's headers to another host and trust
//! its replies. The length of replies is bounded.

use std::{error::Error, io, ops::RangeInclusive, pin::Pin, time::Duration};

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use jiff::SignedDuration;
use object_store::{
    ClientConfigKey as Key, ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    },
};
use reqwest::{
    Certificate, Client, ClientBuilder, NoProxy, Proxy, Url,
    header::{AUTHORIZATION, HeaderValue, LOCATION},
    redirect::Policy,
};

use crate::config::audit::shown;

/// Maximum of bytes of a reply: a list of a thousand objects is shorter.
const MAX_REPLY: usize = 4 << 20;
/// Maximum of bytes read of an error reply.
const MAX_ERROR_REPLY: usize = 4 << 10;

/// The lengths that a frame of HTTP/2 may be allowed (RFC 9113, 6.5.2).
const FRAME_SIZES: RangeInclusive<u32> = (1 << 14)..=((1 << 24) - 1);

/// Splits user and password off an address, and returns them as a header, so that errors that
/// contain the address do not disclose them.
pub(super) fn without_credentials(address: &str) -> Result<(Url, Option<HeaderValue>), String> {
    let wrong = |_| "it is not an HTTP address".to_owned();
    let url = Url::parse(address).map_err(|error| format!("it is not an address: {error}"))?;
    // The client builds the header from the address.
    // It sends nothing, and needs no certificates of the system, which may have none.
    let client = Client::builder().tls_certs_only([]).build();
    let client = client.map_err(|error| error.without_url().to_string())?;
    let request = client.get(url).build().map_err(|_error| wrong(()))?;
    Ok((request.url().clone(), request.headers().get(AUTHORIZATION).cloned()))
}

/// Returns the innermost reason: the outer ones name parts of the library.
pub(super) fn reason(error: &dyn Error) -> String {
    let mut inner = error;
    let mut words = vec![inner.to_string()];
    while let Some(source) = inner.source() {
        inner = source;
        words.push(inner.to_string());
    }
    let last = words.pop().unwrap_or_default();
    match words.pop() {
        // An inner error that repeats the outer one adds nothing.
        Some(before) if !before.contains(&last) && !last.is_empty() => format!("{before}: {last}"),
        Some(before) => before,
        None => last,
    }
}

/// Builds the client from the settings.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = client(options).map_err(|reason| object_store::Error::Generic {
            store: "HTTP",
            source: reason.into(),
        })?;
        Ok(HttpClient::new(BlockingService(client)))
    }
}

type SetTime = fn(ClientBuilder, Duration) -> ClientBuilder;

fn client(options: &ClientOptions) -> Result<Client, String> {
    let text = |key| options.get_config_value(&key);
    let is_on = |key| text(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let time = |key: Key| {
        let Some(value) = text(key) else { return Ok(None) };
        let time = value.parse::<SignedDuration>().ok();
        let time = time.and_then(|time| Duration::try_from(time).ok());
        time.map(Some).ok_or_else(|| format!("`{value}` is no duration such as `30s`"))
    };
    let number = |key: Key| {
        let Some(value) = text(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_wrong| format!("`{value}` is no number"))
    };
    let frame_size = number(Key::Http2MaxFrameSize)?.map(|size| {
        let size = u32::try_from(size).ok().filter(|size| FRAME_SIZES.contains(size));
        size.ok_or_else(|| {
            let (least, most) = FRAME_SIZES.into_inner();
            format!("the maximum of a frame of HTTP/2 is from {least} to {most} bytes")
        })
    });
    let frame_size = frame_size.transpose()?;
    let wrong = |error: reqwest::Error| reason(&error.without_url());
    let agent = text(Key::UserAgent);
    let agent =
        agent.unwrap_or_else(|| concat!("portcullis/", env!("CARGO_PKG_VERSION")).to_owned());
    let mut builder = ClientBuilder::new()
        .redirect(Policy::none())
        .user_agent(agent)
        .default_headers(options.get_default_headers().cloned().unwrap_or_default())
        .https_only(!is_on(Key::AllowHttp))
        .danger_accept_invalid_certs(is_on(Key::AllowInvalidCertificates))
        .http2_keep_alive_while_idle(is_on(Key::Http2KeepAliveWhileIdle))
        .http2_keep_alive_interval(time(Key::Http2KeepAliveInterval)?)
        .pool_max_idle_per_host(number(Key::PoolMaxIdlePerHost)?.unwrap_or(usize::MAX))
        .http2_max_frame_size(frame_size);
    let times: [(Key, SetTime); 5] = [
        (Key::Timeout, ClientBuilder::timeout),
        (Key::ConnectTimeout, ClientBuilder::connect_timeout),
        (Key::ReadTimeout, ClientBuilder::read_timeout),
        (Key::PoolIdleTimeout, |builder, time| builder.pool_idle_timeout(time)),
        (Key::Http2KeepAliveTimeout, ClientBuilder::http2_keep_alive_timeout),
    ];
    for (key, set) in times {
        if let Some(time) = time(key)? {
            builder = set(builder, time);
        }
    }
    if is_on(Key::NoSystemCertificates) {
        builder = builder.tls_certs_only([]);
    }
    if is_on(Key::Http1Only) {
        builder = builder.http1_only();
    }
    if is_on(Key::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    if let Some(proxy) = text(Key::ProxyUrl) {
        let mut proxy = Proxy::all(proxy).map_err(wrong)?;
        if let Some(excluded) = text(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&excluded));
        }
        if let Some(certificate) = text(Key::ProxyCaCertificate) {
            let certificate = Certificate::from_pem(certificate.as_bytes()).map_err(wrong)?;
            builder = builder.tls_certs_merge([certificate]);
        }
        builder = builder.proxy(proxy);
    }
    builder.build().map_err(wrong)
}

#[derive(Debug)]
struct BlockingService(Client);

/// The type that `async_trait` makes of a result.
type Answered<'r> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'r>>;

impl HttpService for BlockingService {
    fn call<'a, 'r>(&'a self, request: HttpRequest) -> Answered<'r>
    where
        'a: 'r,
        Self: 'r,
    {
        Box::pin(answer(&self.0, request))
    }
}

/// Sends a request, and reads the complete reply.
async fn answer(client: &Client, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let wrong = |kind, words: String| HttpError::new(kind, io::Error::other(words));
    let from = request.uri().to_string();
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let (mut parts, mut rest) = client.call(request).await?.into_parts();
    // The library takes 405 for a missing file, and 501 for a passing error.
    let has_no_reads = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    if is_read && has_no_reads.contains(&parts.status) {
        parts.status = StatusCode::FORBIDDEN;
    }
    let status = parts.status;
    if let Some(to) = parts.headers.get(LOCATION).filter(|_| status.is_redirection()) {
        let to = String::from_utf8_lossy(to.as_bytes());
        let whole = Url::parse(&from).and_then(|from| from.join(&to));
        let to = whole.map_or_else(|_| shown(&to), |to| shown(to.as_str()));
        let words = format!("it answers `{status}`, which leads to {to} and is not followed");
        return Err(wrong(HttpErrorKind::Unknown, words));
    }
    let most = if status.is_success() { MAX_REPLY } else { MAX_ERROR_REPLY };
    let mut body = Vec::new();
    while let Some(frame) = rest.frame().await {
        let frame = frame?;
        let Some(part) = frame.data_ref() else { continue };
        let room = most - body.len();
        body.extend_from_slice(part.get(..room).unwrap_or(part));
        if part.len() > room {
            if status.is_success() {
                let words = format!("its answer has more than {most} bytes");
                return Err(wrong(HttpErrorKind::Decode, words));
            }
            break;
        }
    }
    // The reader expects UTF-8, and the cut may have split a character.
    if !status.is_success() {
        body = String::from_utf8_lossy(&body).into_owned().into_bytes();
    }
    Ok(HttpResponse::from_parts(parts, body.into()))
}
