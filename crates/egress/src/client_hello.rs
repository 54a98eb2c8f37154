//! The first message of a TLS client (RFC 8446, 4.1.2), as far as it names the server.
//!
//! The parser extracts only the server's name, and whether one is encrypted. It does not validate
//! the rest of TLS: that is the server's to refuse.

/// The parts of a ClientHello that name the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// The name in `server_name`, if there is one.
    pub(crate) server_name: Option<String>,
    /// True if there is an `encrypted_client_hello`, real or GREASE, or its predecessor ESNI.
    pub(crate) is_encrypted: bool,
}

/// The result of parsing the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedHello {
    /// The message is not complete.
    Incomplete,
    /// The message.
    Complete(ClientHello),
}

/// The error for bytes that are no ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedHello;

/// The type of a record that carries handshake messages.
pub(crate) const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// The extension of ECH (RFC 9849).
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// The extension of ESNI, the predecessor of ECH.
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;
/// The longest fragment of a record that is not encrypted.
const MAX_FRAGMENT: usize = 1 << 14;

/// Parses the bytes that a client sent, from the first one on.
pub(crate) fn parse(bytes: &[u8]) -> Result<ParsedHello, MalformedHello> {
    let Some(message) = handshake(bytes)? else { return Ok(ParsedHello::Incomplete) };
    body(&message).map(ParsedHello::Complete)
}

/// Returns the body of the first handshake message, put together from its records; `None` while it
/// is incomplete.
fn handshake(bytes: &[u8]) -> Result<Option<Vec<u8>>, MalformedHello> {
    let mut rest = Reader(bytes);
    let mut message = Vec::new();
    loop {
        if let Some((header, body)) = message.split_first_chunk::<4>() {
            let [kind, a, b, c] = *header;
            if kind != CLIENT_HELLO {
                return Err(MalformedHello);
            }
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            // Another message in the same record would go unchecked.
            match body.len().cmp(&length) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(body.to_vec())),
                std::cmp::Ordering::Greater => return Err(MalformedHello),
            }
        }
        let Ok([kind, major, _]) = rest.array() else { return Ok(None) };
        if (kind, major) != (HANDSHAKE_RECORD, 3) {
            return Err(MalformedHello);
        }
        let Ok(length) = rest.u16() else { return Ok(None) };
        let length = usize::from(length);
        if length == 0 || length > MAX_FRAGMENT {
            return Err(MalformedHello);
        }
        let Ok(fragment) = rest.take(length) else { return Ok(None) };
        message.extend_from_slice(fragment);
    }
}

fn body(message: &[u8]) -> Result<ClientHello, MalformedHello> {
    let mut rest = Reader(message);
    // The legacy version, and random bytes.
    rest.take(2 + 32)?;
    let _session_id = rest.vector_u8()?;
    let _cipher_suites = rest.vector_u16()?;
    let _compression_methods = rest.vector_u8()?;
    let mut found = ClientHello { server_name: None, is_encrypted: false };
    if rest.0.is_empty() {
        return Ok(found);
    }
    let mut extensions = Reader(rest.vector_u16()?);
    if !rest.0.is_empty() {
        return Err(MalformedHello);
    }
    let mut seen = Vec::new();
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector_u16()?;
        // Of two extensions of one kind the server might use the other one.
        if seen.contains(&kind) {
            return Err(MalformedHello);
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => found.server_name = Some(server_name(data)?),
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => found.is_encrypted = true,
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the only host name of the extension.
fn server_name(data: &[u8]) -> Result<String, MalformedHello> {
    let mut rest = Reader(data);
    let mut list = Reader(rest.vector_u16()?);
    let [kind] = list.array()?;
    let name = list.vector_u16()?;
    if kind != HOST_NAME || !list.0.is_empty() || !rest.0.is_empty() || name.is_empty() {
        return Err(MalformedHello);
    }
    String::from_utf8(name.to_vec()).map_err(|_| MalformedHello)
}

/// A reader of bytes, with those that are still unread.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedHello> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MalformedHello)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedHello> {
        self.take(N)?.try_into().map_err(|_| MalformedHello)
    }

    fn u16(&mut self) -> Result<u16, MalformedHello> {
        self.array().map(u16::from_be_bytes)
    }

    fn vector_u8(&mut self) -> Result<&'a [u8], MalformedHello> {
        let [length] = self.array()?;
        self.take(length.into())
    }

    fn vector_u16(&mut self) -> Result<&'a [u8], MalformedHello> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).unwrap();
        [&kind.to_be_bytes(), &length.to_be_bytes(), data].concat()
    }

    fn name(name: &str) -> Vec<u8> {
        let length = u16::try_from(name.len()).unwrap();
        let list = [&[HOST_NAME], &length.to_be_bytes()[..], name.as_bytes()].concat();
        let length = u16::try_from(list.len()).unwrap();
        extension(SERVER_NAME, &[&length.to_be_bytes(), &list[..]].concat())
    }

    /// A handshake message of these extensions.
    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let extensions = extensions.concat();
        let length = u16::try_from(extensions.len()).unwrap();
        let body =
            [&[3, 3], &[7; 32][..], &[0, 0, 2, 0x13, 1, 1, 0], &length.to_be_bytes(), &extensions]
                .concat();
        let [_, a, b, c] = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO, a, b, c], &body[..]].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |fragment: &[u8]| {
            let length = u16::try_from(fragment.len()).unwrap().to_be_bytes();
            [&[HANDSHAKE_RECORD, 3, 1], &length[..], fragment].concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn a_name_is_found_however_the_message_is_split() {
        let message = hello(&[extension(0x0a0a, &[]), name("a.example"), extension(16, &[0, 0])]);
        for size in [1, 5, 60, message.len()] {
            let bytes = records(&message, size);
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes[..end]), Ok(ParsedHello::Incomplete), "{size} {end}");
            }
            let found =
                ClientHello { server_name: Some("a.example".to_owned()), is_encrypted: false };
            assert_eq!(parse(&bytes), Ok(ParsedHello::Complete(found)), "{size}");
        }
    }

    #[test]
    fn an_encrypted_hello_is_seen() {
        for kind in [ENCRYPTED_CLIENT_HELLO, ENCRYPTED_SERVER_NAME] {
            let message = hello(&[name("a.example"), extension(kind, &[0; 30])]);
            let Ok(ParsedHello::Complete(found)) = parse(&records(&message, 100)) else { panic!() };
            assert!(found.is_encrypted);
        }
    }

    #[test]
    fn what_two_readers_could_take_differently_is_refused() {
        let wrong =
            |message: &[u8]| assert_eq!(parse(&records(message, 4000)), Err(MalformedHello));
        wrong(&hello(&[name("a.example"), name("b.example")]));
        let two = [&name("a.example")[6..], &name("b.example")[6..]].concat();
        let length = u16::try_from(two.len()).unwrap().to_be_bytes();
        wrong(&hello(&[extension(SERVER_NAME, &[&length[..], &two].concat())]));
        let mut trailing = hello(&[name("a.example")]);
        trailing.push(0);
        wrong(&trailing);
        let mut other = hello(&[]);
        other[0] = 2;
        wrong(&other);
        assert_eq!(parse(&[0x80, 0x2e, 1, 3, 1]), Err(MalformedHello));
        assert_eq!(parse(&[HANDSHAKE_RECORD, 3, 1, 0, 0]), Err(MalformedHello));
    }
}
