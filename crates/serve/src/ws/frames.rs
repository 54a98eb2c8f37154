//! Conversion of frames (RFC 6455) to messages and back.
//!
//! Headers are read and written by `tungstenite`. Its sockets are not used: they
//! retain the memory of the largest message while a client is connected, and move
//! the rest of a message at each write. Here memory is reserved as a message arrives
//! and freed with it, and a reply is sent in pieces.

use std::{io, io::Cursor, time::Duration};

use portcullis_rpc::{MemoryBudget, Reservation};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    time::Instant,
};
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

use super::cover;
use crate::buffer;

/// Bytes of a message for which no memory is reserved.
pub(crate) const MAX_UNRESERVED_BYTES: usize = 64 * 1024;
/// The steps in which memory is reserved for the rest, in bytes.
pub(crate) const RESERVATION_STEP: usize = 64 * 1024;
/// Minimum rate of a peer with a large message, in bytes a second.
const MIN_BYTES_PER_SECOND: usize = 256 * 1024;
/// The size of a socket's read buffer, in bytes.
const READ_BUFFER_SIZE: usize = 4 * 1024;
/// Longest header of a frame, in bytes.
const HEADER: usize = 14;
/// Largest payload of a control frame, in bytes.
const MAX_CONTROL_PAYLOAD: u64 = 125;

/// A message or control frame from a client.
pub(super) enum ClientFrame {
    /// A complete message with its memory.
    Text(String, Reservation),
    Ping(Vec<u8>),
    Pong,
    Close,
}

/// The reason why no more can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client is gone.
    Gone,
    TooLarge,
    /// There is no memory for more now.
    Busy,
    /// A message with reserved memory does not arrive in time.
    Slow,
    NotText,
    NotUtf8,
    /// A violation of RFC 6455.
    Protocol,
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Reads messages from frames.
pub(super) struct Reader<R> {
    input: BufReader<R>,
    memory: MemoryBudget,
    /// Largest message, in bytes.
    most: usize,
    /// Timeout for a message to arrive, besides a second for each [`MIN_BYTES_PER_SECOND`] bytes.
    arrive: Duration,
    /// The frames of an incomplete message.
    begun: Option<PartialMessage>,
    /// The deadline for more of it, once memory is reserved for it.
    due: Option<Instant>,
}

struct PartialMessage {
    bytes: Vec<u8>,
    reserved: Reservation,
    /// The time of its first reservation.
    since: Option<Instant>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(input: R, memory: MemoryBudget, most: usize, arrive: Duration) -> Self {
        let input = BufReader::with_capacity(READ_BUFFER_SIZE, input);
        Self { input, memory, most, arrive, begun: None, due: None }
    }

    /// Reads the next message or control frame.
    pub(super) async fn next(&mut self) -> Result<ClientFrame, Fault> {
        loop {
            let (header, length) = in_time(self.due, self.header()).await?;
            let mask = header.mask.ok_or(Fault::Protocol)?;
            if header.rsv1 || header.rsv2 || header.rsv3 {
                return Err(Fault::Protocol);
            }
            match header.opcode {
                OpCode::Control(control) => {
                    if !header.is_final || length > MAX_CONTROL_PAYLOAD {
                        return Err(Fault::Protocol);
                    }
                    let mut payload = PartialMessage::new(&self.memory);
                    in_time(self.due, self.payload(&mut payload, length, mask)).await?;
                    match control {
                        Control::Ping => return Ok(ClientFrame::Ping(payload.bytes)),
                        Control::Pong => return Ok(ClientFrame::Pong),
                        Control::Close => return closing(&payload.bytes),
                        Control::Reserved(_) => return Err(Fault::Protocol),
                    }
                }
                OpCode::Data(data) => {
                    let mut message = match (data, self.begun.take()) {
                        (Data::Text, None) => PartialMessage::new(&self.memory),
                        (Data::Continue, Some(begun)) => begun,
                        (Data::Binary, None) => return Err(Fault::NotText),
                        _ => return Err(Fault::Protocol),
                    };
                    self.payload(&mut message, length, mask).await?;
                    if header.is_final {
                        self.due = None;
                        let text = String::from_utf8(message.bytes).map_err(|_| Fault::NotUtf8)?;
                        return Ok(ClientFrame::Text(text, message.reserved));
                    }
                    self.begun = Some(message);
                }
            }
        }
    }

    async fn header(&mut self) -> Result<(FrameHeader, u64), Fault> {
        let mut bytes = Vec::with_capacity(HEADER);
        loop {
            bytes.push(self.input.read_u8().await?);
            match FrameHeader::parse(&mut Cursor::new(&bytes)) {
                Ok(Some(header)) => return Ok(header),
                Ok(None) if bytes.len() < HEADER => {}
                _ => return Err(Fault::Protocol),
            }
        }
    }

    /// Adds a frame's payload to a message.
    async fn payload(
        &mut self,
        message: &mut PartialMessage,
        length: u64,
        mask: [u8; 4],
    ) -> Result<(), Fault> {
        let start = message.bytes.len();
        let length = usize::try_from(length).map_err(|_| Fault::TooLarge)?;
        let end = start.checked_add(length).filter(|end| *end <= self.most);
        let end = end.ok_or(Fault::TooLarge)?;
        while message.bytes.len() < end {
            if message.grow()? {
                let since = *message.since.get_or_insert_with(Instant::now);
                self.due = Some(since + self.arrive + at_rate(message.bytes.len()));
            }
            let step = end.saturating_sub(message.bytes.len()).min(RESERVATION_STEP);
            if !buffer::grow(&mut message.bytes, step, end) {
                return Err(Fault::Busy);
            }
            let mut input = (&mut self.input).take(step as u64);
            let read = async { Ok(input.read_buf(&mut message.bytes).await?) };
            if in_time(self.due, read).await? == 0 {
                return Err(Fault::Gone);
            }
        }
        let payload = message.bytes.get_mut(start..).unwrap_or_default();
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        Ok(())
    }

    /// Reads and discards input until the client closes.
    pub(super) async fn drain(mut self) {
        let mut waste = [0; READ_BUFFER_SIZE];
        while matches!(self.input.read(&mut waste).await, Ok(1..)) {}
    }
}

impl PartialMessage {
    fn new(memory: &MemoryBudget) -> Self {
        Self { bytes: Vec::new(), reserved: memory.empty(), since: None }
    }

    /// Reserves memory for the next step; returns false if it is reserved already.
    fn grow(&mut self) -> Result<bool, Fault> {
        let before = self.reserved.bytes();
        match cover(&mut self.reserved, self.bytes.len().saturating_add(1)) {
            true => Ok(self.reserved.bytes() > before),
            false => Err(Fault::Busy),
        }
    }
}

/// Checks the payload of a close frame: empty, or a valid code and a reason (RFC
/// 6455, 5.5.1 and 7.4).
fn closing(payload: &[u8]) -> Result<ClientFrame, Fault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(ClientFrame::Close) } else { Err(Fault::Protocol) };
    };
    if !CloseCode::from(u16::from_be_bytes(*code)).is_allowed() {
        return Err(Fault::Protocol);
    }
    std::str::from_utf8(reason).map(|_| ClientFrame::Close).map_err(|_| Fault::NotUtf8)
}

/// Reads with a deadline, if there is one.
async fn in_time<T>(
    due: Option<Instant>,
    read: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    match due {
        None => read.await,
        Some(due) => tokio::time::timeout_at(due, read).await.map_err(|_| Fault::Slow)?,
    }
}

/// Returns the time that so many bytes may take at [`MIN_BYTES_PER_SECOND`].
pub(super) fn at_rate(bytes: usize) -> Duration {
    Duration::from_secs(u64::try_from(bytes / MIN_BYTES_PER_SECOND).unwrap_or(u64::MAX))
}

/// Writes frames, each completely.
pub(super) struct Writer<W> {
    output: W,
    /// Set while a frame is incomplete: after a failed write no frame can be sent.
    torn: bool,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, torn: false }
    }

    /// Sends a message, or a piece of one.
    pub(super) async fn text(&mut self, payload: &[u8], first: bool, last: bool) -> io::Result<()> {
        let data = if first { Data::Text } else { Data::Continue };
        self.frame(OpCode::Data(data), payload, last).await
    }

    pub(super) async fn ping(&mut self) -> io::Result<()> {
        self.frame(OpCode::Control(Control::Ping), &[], true).await
    }

    pub(super) async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(OpCode::Control(Control::Pong), payload, true).await
    }

    /// Sends a close frame with its reason, unless a frame is incomplete; then shuts
    /// down.
    pub(super) async fn close(&mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        let payload = [&u16::from(code).to_be_bytes()[..], reason.as_bytes()].concat();
        if !self.torn {
            self.frame(OpCode::Control(Control::Close), &payload, true).await?;
        }
        self.output.shutdown().await
    }

    async fn frame(&mut self, opcode: OpCode, payload: &[u8], last: bool) -> io::Result<()> {
        let header = FrameHeader { is_final: last, opcode, ..FrameHeader::default() };
        let mut head = Vec::with_capacity(HEADER);
        let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        header.format(length, &mut head).map_err(io::Error::other)?;
        self.torn = true;
        self.output.write_all(&head).await?;
        self.output.write_all(payload).await?;
        self.output.flush().await?;
        self.torn = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a masked frame of a client.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first, 0x80 | u8::try_from(payload.len()).unwrap(), 1, 2, 3, 4];
        bytes.extend(
            payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(byte, mask)| byte ^ mask),
        );
        bytes
    }

    fn next(bytes: &[u8], most: usize, memory: usize) -> Result<String, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut reader = Reader::new(
            bytes,
            MemoryBudget::new(memory * RESERVATION_STEP),
            most,
            Duration::from_secs(3600),
        );
        match runtime.block_on(reader.next())? {
            ClientFrame::Text(text, _) => Ok(text),
            ClientFrame::Ping(_) => Ok("ping".to_owned()),
            ClientFrame::Pong => Ok("pong".to_owned()),
            ClientFrame::Close => Ok("close".to_owned()),
        }
    }

    #[test]
    fn messages_may_come_in_pieces_with_control_frames_between() {
        let pieces = [frame(0x01, b"one "), frame(0x80, b"two")].concat();
        assert_eq!(next(&pieces, 100, 0).as_deref(), Ok("one two"));
        let between = [frame(0x01, b"one "), frame(0x89, b"p"), frame(0x80, b"two")].concat();
        assert_eq!(next(&between, 100, 0).as_deref(), Ok("ping"));
        assert_eq!(next(&frame(0x8a, b""), 100, 0).as_deref(), Ok("pong"));
        for payload in [&b""[..], b"\x03\xe8", b"\x03\xe9going", b"\x0f\xa0"] {
            assert_eq!(next(&frame(0x88, payload), 100, 0).as_deref(), Ok("close"));
        }
    }

    #[test]
    fn what_is_not_as_the_standard_says_is_refused() {
        for (bytes, fault) in [
            // The frame is not masked.
            (vec![0x81, 1, b'x'], Fault::Protocol),
            // Reserved bits, as if extensions had been agreed on.
            (frame(0xc1, b"x"), Fault::Protocol),
            // A continuation without a beginning; a beginning within a message.
            (frame(0x80, b"x"), Fault::Protocol),
            ([frame(0x01, b"x"), frame(0x81, b"y")].concat(), Fault::Protocol),
            (frame(0x83, b"x"), Fault::Protocol),
            (frame(0x8b, b""), Fault::Protocol),
            (frame(0x09, b"p"), Fault::Protocol),
            (vec![0x89, 0x80 | 126, 0, 126, 0, 0, 0, 0], Fault::Protocol),
            // An incomplete code; invalid or reserved codes; a reason that is no
            // text.
            (frame(0x88, b"\x03"), Fault::Protocol),
            (frame(0x88, b"\x00\x00"), Fault::Protocol),
            (frame(0x88, b"\x03\xed"), Fault::Protocol),
            (frame(0x88, b"\x03\xee"), Fault::Protocol),
            (frame(0x88, b"\x08\x00"), Fault::Protocol),
            (frame(0x88, b"\xff\xff"), Fault::Protocol),
            (frame(0x88, b"\x03\xe8\xff"), Fault::NotUtf8),
            (frame(0x82, b"x"), Fault::NotText),
            (frame(0x81, b"\xff"), Fault::NotUtf8),
            (frame(0x81, &[b'x'; 101]), Fault::TooLarge),
            ([frame(0x01, &[b'x'; 60]), frame(0x80, &[b'x'; 60])].concat(), Fault::TooLarge),
            // A length of a gigabyte, and the largest possible one.
            (vec![0x81, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0], Fault::TooLarge),
            ([vec![0x81], vec![0xff; 9], vec![0; 4]].concat(), Fault::TooLarge),
            (frame(0x81, b"xyz")[..7].to_vec(), Fault::Gone),
        ] {
            assert_eq!(next(&bytes, 100, 0), Err(fault), "{bytes:x?}");
        }
    }

    #[test]
    fn a_message_takes_memory_as_it_arrives() {
        let length = 200_000_u32;
        let mut bytes = vec![0x81, 0xff, 0, 0, 0, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.resize(bytes.len() + 200_000, b'x');
        assert_eq!(next(&bytes, 1 << 20, 4).map(|text| text.len()), Ok(200_000));
        assert_eq!(next(&bytes, 1 << 20, 1), Err(Fault::Busy));
    }
}
