//! `serve --ready`: asks the running service if it is ready, for probes in
//! environments without another HTTP client.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

use super::{args::Args, plan::load};
use crate::{
    app::failure::{Context as _, Failure},
    config::{
        Operator,
        serve::{Listen, Service},
    },
    model::Escaped,
};

/// Timeout of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum of bytes read of a reply.
const MAX_REPLY: u64 = 16 * 1024;

/// Asks; fails unless the service is ready.
pub(super) fn ask(args: &Args) -> Result<ExitCode, Failure> {
    let at = place(args)?;
    let reply = match &at {
        Listen::Tcp(address) => over_tcp(near(*address)),
        Listen::Unix(path) => UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(STEP_TIMEOUT))?;
            exchange(stream, "localhost")
        }),
    };
    let reply = reply.or_fail(format_args!("cannot ask the service at `{at}`"))?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    if head.starts_with("HTTP/1.1 200 ") {
        outln!("portcullis: ready");
        return Ok(ExitCode::SUCCESS);
    }
    let detail = if body.is_empty() { head } else { body };
    Err(Failure::new(format_args!("the service is not ready: {}", Escaped(detail.trim()))))
}

/// Returns an address where it listens without TLS.
fn place(args: &Args) -> Result<Listen, Failure> {
    let operator = Operator::load(args.common.config.as_deref()).map_err(Failure::new)?;
    let service = operator.path.as_deref().map(load).transpose()?;
    let Service { listen, tls, .. } = service.unwrap_or_default();
    let listen = if args.listen.is_empty() { listen } else { args.listen.clone() };
    let plain = |at: &Listen| tls.is_none() || matches!(at, Listen::Unix(_));
    listen.into_iter().find(plain).ok_or_else(|| {
        Failure::new("the service speaks TLS wherever it listens")
            .help("let it listen at a UNIX socket, too")
    })
}

/// Replaces an unspecified address by that of this machine.
fn near(address: SocketAddr) -> SocketAddr {
    let own: IpAddr = match address {
        _ if !address.ip().is_unspecified() => address.ip(),
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(own, address.port())
}

fn over_tcp(address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, STEP_TIMEOUT)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    exchange(stream, &address.to_string())
}

fn exchange(mut stream: impl Read + Write, host: &str) -> io::Result<String> {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(MAX_REPLY).read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
