//! `portcullis mcp --connect`: stdin and stdout passed on to a gate's socket.
//!
//! An agent starts this in its cell, as an MCP server. It knows nothing of the
//! protocol and can do nothing that the agent could not do itself.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    process::ExitCode,
    thread,
};

use super::failure::{Context as _, Failure};

/// How much is passed on at once, in bytes.
const CHUNK: usize = 64 * 1024;

/// Passes on until the gate closes its side.
pub(super) fn run(socket: &Path, word: &str) -> Result<ExitCode, Failure> {
    let gate = UnixStream::connect(socket)
        .or_fail(format_args!("cannot reach the gate at `{}`", socket.display()))
        .map_err(|failure| {
            failure.help("`portcullis run` makes this socket, inside the agent's cell")
        })?;
    let to_gate = gate.try_clone().or_fail("cannot speak to the gate")?;
    let word = format!("{word}\n");
    // Left behind when the gate closes first.
    thread::Builder::new()
        .name("connect-in".to_owned())
        .spawn(move || {
            let mut gate = &to_gate;
            if gate.write_all(word.as_bytes()).is_ok() {
                // The gate's side says how it ended.
                let _ = pass(&mut io::stdin().lock(), &mut gate);
            }
            let _ = to_gate.shutdown(Shutdown::Write);
        })
        .or_fail("cannot start a thread")?;
    match pass(&mut &gate, &mut io::stdout().lock()) {
        // It answers whoever it knows.
        Ok(0) | Err(Broken::Reading) => Err(Failure::new("the gate closed the connection")
            .help("the session may be over; the gate's log says more")),
        // Or nobody hears it any more.
        Ok(_) | Err(Broken::Writing) => Ok(ExitCode::SUCCESS),
    }
}

/// Why passing on ended early.
enum Broken {
    Reading,
    Writing,
}

/// Passes on until the end; gives how much. Not by `io::copy`, which has the
/// kernel splice: that locks the pipe while it waits, and whoever reads the
/// other end without wanting to wait waits then, too.
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
        let said = buffer.get(..got).unwrap_or_default();
        to.write_all(said).and_then(|()| to.flush()).map_err(|_| Broken::Writing)?;
    }
}
