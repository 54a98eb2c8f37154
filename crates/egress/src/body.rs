//! The body of a request: where it ends (RFC 9112, 6 and 7.1).
//!
//! Bytes after the body are not passed on: they would be another request, whose `Host` was not
//! checked.

/// The longest line of a chunked body: a size with extensions, or a trailer.
const MAX_LINE: usize = 4096;

/// The framing of a body, as far as the body is still to come.
#[derive(Debug)]
pub(crate) enum Framing {
    /// A body of which this number of bytes is still to come.
    Length(u64),
    /// A chunked body.
    Chunked(Chunks),
}

/// The error for a body that is malformed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedBody;

impl Framing {
    pub(crate) fn length(length: u64) -> Self {
        Self::Length(length)
    }

    pub(crate) fn chunked() -> Self {
        Self::Chunked(Chunks { state: State::Size, line: Vec::new() })
    }

    /// Takes the next bytes, and returns how many of them belong to the body.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, MalformedBody> {
        match self {
            Self::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left = left.saturating_sub(taken as u64);
                Ok(taken)
            }
            Self::Chunked(chunks) => chunks.take(bytes),
        }
    }
}

/// The parser's state in a chunked body.
#[derive(Debug)]
pub(crate) struct Chunks {
    state: State,
    /// The line so far, in states that read one.
    line: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Data {
        left: u64,
    },
    /// The line end behind a chunk's data.
    DataEnd,
    Trailer,
    Over,
}

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> Result<usize, MalformedBody> {
        let mut rest = bytes;
        while let Some(byte) = rest.first() {
            match self.state {
                State::Over => break,
                State::Data { left } => {
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    rest = rest.get(taken..).unwrap_or_default();
                    self.state = match left.saturating_sub(taken as u64) {
                        0 => State::DataEnd,
                        left => State::Data { left },
                    };
                }
                State::Size | State::DataEnd | State::Trailer => {
                    self.line.push(*byte);
                    rest = rest.get(1..).unwrap_or_default();
                    if *byte == b'\n' {
                        self.end_line()?;
                    } else if self.line.len() > MAX_LINE {
                        return Err(MalformedBody);
                    }
                }
            }
        }
        Ok(bytes.len() - rest.len())
    }

    fn end_line(&mut self) -> Result<(), MalformedBody> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r\n").ok_or(MalformedBody)?;
        if line.contains(&b'\r') {
            return Err(MalformedBody);
        }
        self.state = match (self.state, line.is_empty()) {
            (State::Size, _) => match size(line)? {
                0 => State::Trailer,
                left => State::Data { left },
            },
            (State::DataEnd, true) => State::Size,
            (State::Trailer, true) => State::Over,
            (State::Trailer, false) => State::Trailer,
            _ => return Err(MalformedBody),
        };
        Ok(())
    }
}

/// Parses the size of a chunk, in front of extensions. Refuses signs and spaces, which some parsers
/// accept.
fn size(line: &[u8]) -> Result<u64, MalformedBody> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(MalformedBody);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| MalformedBody)?;
    u64::from_str_radix(digits, 16).map_err(|_| MalformedBody)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_ends_where_it_ends_however_it_comes() {
        let body = b"4;a=b\r\nWiki\r\n0A\r\n0123456789\r\n0\r\nX: y\r\n\r\n";
        let all = [&body[..], b"GET / HTTP/1.1"].concat();
        for size in [1, 3, all.len()] {
            let mut framing = Framing::chunked();
            let taken: usize = all.chunks(size).map(|part| framing.take(part).unwrap()).sum();
            assert_eq!(taken, body.len(), "{size}");
            assert_eq!(framing.take(b"G"), Ok(0));
        }
    }

    #[test]
    fn chunks_of_another_form_are_refused() {
        for body in ["4\nWiki", " 4\r\n", "+4\r\n", "0x4\r\n", "\r\n", "4\r\nWikix\r\n", "4\r\r\n"]
        {
            assert_eq!(Framing::chunked().take(body.as_bytes()), Err(MalformedBody), "{body:?}");
        }
        assert_eq!(Framing::chunked().take(&[b'0'; MAX_LINE + 2]), Err(MalformedBody));
    }
}
