//! Bodies that are no valid message: the worker says why, and records it.
//!
//! `rmcp` would read repeated keys as if only the last one existed, and the worker
//! sees only what `rmcp` has parsed.

use hyper::{Response, StatusCode};
use portcullis_mcp::message;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::shared::{REFUSAL_TIMEOUT, Shared};
use crate::{
    OpenError, Peer,
    reply::{self, Body},
};

/// Longest reply, in bytes.
const MAX_BODY: u64 = 64 * 1024;

/// Refuses `body` with the worker's error.
pub(super) async fn refuse(shared: &Shared, peer: &Peer, body: &[u8]) -> Response<Body> {
    let told = tokio::time::timeout(REFUSAL_TIMEOUT, send(shared, peer, body)).await;
    match told.unwrap_or(Err(OpenError::Unavailable)) {
        Ok(answer) => reply::json(StatusCode::BAD_REQUEST, answer.trim_end()),
        Err(error) => reply::refused(&error),
    }
}

/// Sends the body to the worker in a session of its own.
async fn send(shared: &Shared, peer: &Peer, body: &[u8]) -> Result<String, OpenError> {
    let gone = |_error| OpenError::Unavailable;
    let (reader, mut writer) = shared.session(peer).await?.into_split();
    writer.write_all(&line(body)).await.map_err(gone)?;
    let mut answer = String::new();
    BufReader::new(reader.take(MAX_BODY)).read_line(&mut answer).await.map_err(gone)?;
    if answer.is_empty() { Err(OpenError::Unavailable) } else { Ok(answer) }
}

/// Returns an invalid body as a line that is invalid, too.
fn line(body: &[u8]) -> Vec<u8> {
    let with = |space: u8| {
        let bytes = body.iter().map(|byte| if b"\r\n".contains(byte) { space } else { *byte });
        bytes.chain([b'\n']).collect::<Vec<u8>>()
    };
    let spaced = with(b' ');
    if body.trim_ascii().is_empty() {
        // The worker ignores a blank line.
        return vec![0, b'\n'];
    }
    // A line end within a string was the only defect.
    if message(&spaced).is_some() { with(0) } else { spaced }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loose_stays_so_as_a_line() {
        let good = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert!(message(good.as_bytes()).is_some());
        assert!(message(good.replace(',', ",\r\n  ").as_bytes()).is_some());
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}"#.to_owned(),
            good.replace("ping", "pi\nng"),
            good.replace("ping", "pi\rng"),
            format!("[{good}]"),
            format!("{good}\n{good}"),
            format!("\u{feff}{good}"),
            "{".to_owned(),
            String::new(),
            " \r\n".to_owned(),
        ] {
            assert!(message(body.as_bytes()).is_none(), "{body}");
            let line = line(body.as_bytes());
            let (end, line) = line.split_last().unwrap();
            assert!(*end == b'\n' && !line.contains(&b'\n') && message(line).is_none(), "{body}");
            assert!(!line.trim_ascii().is_empty(), "{body:?}");
        }
    }
}
