//! `portcullis mcp --connect`: copies stdin and stdout to and from a gateway's
//! socket, or its named pipes.
//!
//! An agent starts this in its sandbox, as an MCP server. It does not parse the
//! protocol, and can do nothing that the agent could not do itself.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    process::ExitCode,
    thread,
};

use rustix::fs::{FileType, stat};

use crate::{
    app::failure::{Context as _, Exit, Failure},
    mcp::attach::ATTACH_TOKEN,
};

mod named_pipes;

/// Size of the buffer, in bytes.
const CHUNK: usize = 64 * 1024;

/// Copies until the gateway closes its side.
pub(super) fn run(address: &Path) -> Result<ExitCode, Failure> {
    let token = std::env::var(ATTACH_TOKEN).map_err(|_| {
        let reason = format!("`--connect` needs the token of a session in `{ATTACH_TOKEN}`");
        Failure::new(reason).exit(Exit::Usage)
    })?;
    let token = token.as_str();
    let is_directory = stat(address)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
    match is_directory {
        true => {
            let (mut to_gateway, mut from_gateway) = named_pipes::connect(address)?;
            exchange(token, &mut from_gateway, move |line| {
                // Closed at the end of the input.
                line.pass_to(&mut to_gateway);
            })
        }
        false => {
            let gateway = socket(address)?;
            let to_gateway = gateway.try_clone().or_fail("cannot speak to the gateway")?;
            exchange(token, &mut &gateway, move |line| {
                line.pass_to(&mut &to_gateway);
                let _ = to_gateway.shutdown(Shutdown::Write);
            })
        }
    }
}

fn socket(path: &Path) -> Result<UnixStream, Failure> {
    let gateway = UnixStream::connect(path)
        .or_fail(format_args!("cannot reach the gateway at `{}`", path.display()));
    gateway.map_err(|failure| {
        failure.help("`portcullis run` makes this socket, inside the agent's sandbox")
    })
}

/// The token line, sent before the input.
struct TokenLine(String);

impl TokenLine {
    fn pass_to(self, gateway: &mut impl Write) {
        if gateway.write_all(self.0.as_bytes()).is_ok() {
            // The error is reported by the gateway's side.
            let _ = pass(&mut io::stdin().lock(), gateway);
        }
    }
}

fn exchange(
    word: &str,
    from_gateway: &mut impl Read,
    say: impl FnOnce(TokenLine) + Send + 'static,
) -> Result<ExitCode, Failure> {
    let line = TokenLine(format!("{word}\n"));
    // Abandoned if the gateway closes first.
    thread::Builder::new()
        .name("connect-in".to_owned())
        .spawn(move || say(line))
        .or_fail("cannot start a thread")?;
    match pass(from_gateway, &mut io::stdout().lock()) {
        // The gateway replies to known clients only.
        Ok(0) | Err(Broken::Reading) => Err(Failure::new("the gateway closed the connection")
            .help("the session may be over; the gateway's log says more")),
        // Or the output is closed.
        Ok(_) | Err(Broken::Writing) => Ok(ExitCode::SUCCESS),
    }
}

/// The side that failed.
enum Broken {
    Reading,
    Writing,
}

/// Copies until the end; returns the number of bytes. `io::copy` would make the
/// kernel splice: that locks the pipe while it waits, and a non-blocking reader at
/// the other end would wait, too.
fn pass(from: &mut impl Read, to: &mut impl Write) -> Result<usize, Broken> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0_usize;
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(Broken::Reading),
        };
        total = total.saturating_add(got);
        let read = buffer.get(..got).unwrap_or_default();
        to.write_all(read).and_then(|()| to.flush()).map_err(|_| Broken::Writing)?;
    }
}
