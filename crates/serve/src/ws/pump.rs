//! The pump between a client's socket and a worker.

use std::{
    io,
    pin::pin,
    sync::Mutex,
    time::{Duration, Instant},
};

use portcullis_rpc::MemoryBudget;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tungstenite::protocol::frame::coding::CloseCode;

use super::{
    bounds::{Bounds, Sockets},
    frames::{ClientFrame, Fault, Reader, Writer, at_rate},
};
use crate::{WORKER_REPLY_TIMEOUT, lock};

/// Size of the pieces in which a message is sent to a client, in bytes.
const MAX_PIECE: usize = 64 * 1024;
/// The reason of a close when the service stops.
const STOPS: &str = "the service is stopping";
/// Time for which messages of a client are still forwarded when the service stops;
/// requests forwarded by then get replies.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Time to wait for the stop of the service, once a worker has stopped.
const SERVICE_STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for a client to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a connection is closed.
#[derive(Debug, PartialEq, Eq)]
enum Closing {
    /// The client closed or is gone; no close is sent.
    Gone,
    /// The service closes, with a close frame.
    Close(CloseCode, &'static str),
}

/// Pumps between a client and a worker, until either has ended or the service stops,
/// for which `stopping` waits. Messages that a client sent before it closed, broke
/// off or violated the protocol get replies before the connection ends.
pub(super) async fn pump<S, F>(
    sockets: &Sockets,
    memory: MemoryBudget,
    client: S,
    worker: (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    stopping: impl Fn() -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()>,
{
    let (input, output) = tokio::io::split(client);
    let Bounds { message, arrive, .. } = sockets.bounds;
    let mut reader = Reader::new(input, memory, message, arrive);
    let writer = tokio::sync::Mutex::new(Writer::new(output));
    let heard = Mutex::new(Instant::now());
    let link = Connection { bounds: &sockets.bounds, writer: &writer, heard: &heard };
    let stopped = async |after: Duration| {
        stopping().await;
        tokio::time::sleep(after).await;
        Closing::Close(CloseCode::Away, STOPS)
    };
    let end = tokio::select! {
        end = link.both(&mut reader, worker, stopped(DRAIN_TIMEOUT)) => end,
        // A slow worker does not delay the stop.
        end = stopped(WORKER_REPLY_TIMEOUT) => end,
    };
    let end = match end {
        // When the service stops, a worker may learn that before the front.
        Closing::Close(CloseCode::Error, _)
            if tokio::time::timeout(SERVICE_STOP_TIMEOUT, stopping()).await.is_ok() =>
        {
            Closing::Close(CloseCode::Away, STOPS)
        }
        end => end,
    };
    if let Closing::Close(code, reason) = end {
        let close = async {
            if writer.into_inner().close(code, reason).await.is_ok() {
                // Closing with unread input could reset the connection, and the
                // close frame would be lost.
                reader.drain().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
    }
}

/// A connection between client and worker.
struct Connection<'a, W> {
    bounds: &'a Bounds,
    writer: &'a tokio::sync::Mutex<Writer<W>>,
    heard: &'a Mutex<Instant>,
}

impl<W: AsyncWrite + Unpin> Connection<'_, W> {
    /// Pumps both ways. Once the client is not read any more, at the latest when
    /// `stopped` completes, the worker may still reply to earlier messages.
    async fn both(
        &self,
        reader: &mut Reader<impl AsyncRead + Unpin>,
        worker: (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
        stopped: impl Future<Output = Closing>,
    ) -> Closing {
        let mut outward = pin!(self.outward(worker.0));
        let end = tokio::select! {
            end = self.inward(reader, worker.1, stopped) => end,
            end = &mut outward => return end,
        };
        // It ends by itself then. A worker that is cut off counts the requests not
        // begun.
        let _ = tokio::time::timeout(WORKER_REPLY_TIMEOUT, outward).await;
        end
    }

    /// Forwards messages from client to worker, then shuts down the worker's input.
    async fn inward(
        &self,
        reader: &mut Reader<impl AsyncRead + Unpin>,
        mut worker: impl AsyncWrite + Unpin,
        stopped: impl Future<Output = Closing>,
    ) -> Closing {
        let end = self.pass_on(reader, &mut worker, stopped).await;
        // A worker that is gone cannot be shut down.
        let _ = worker.shutdown().await;
        end
    }

    async fn pass_on(
        &self,
        reader: &mut Reader<impl AsyncRead + Unpin>,
        worker: &mut (impl AsyncWrite + Unpin),
        stopped: impl Future<Output = Closing>,
    ) -> Closing {
        let mut stopped = pin!(stopped);
        loop {
            let frame = tokio::select! {
                // Otherwise a client that sends without end would be read for ever.
                biased;
                end = &mut stopped => return end,
                frame = reader.next() => frame,
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(fault) => return ended(fault),
            };
            *lock(self.heard) = Instant::now();
            // The memory is freed once the message is forwarded.
            let (text, _reserved) = match frame {
                ClientFrame::Text(text, reserved) => (text, reserved),
                ClientFrame::Ping(payload) => {
                    match self.in_time(OutgoingFrame::Pong(&payload)).await {
                        Ok(()) => continue,
                        Err(end) => return end,
                    }
                }
                ClientFrame::Pong => continue,
                ClientFrame::Close => return Closing::Close(CloseCode::Normal, ""),
            };
            let Ok(length) = u32::try_from(text.len()) else { return ended(Fault::TooLarge) };
            let sent = async {
                worker.write_all(&length.to_be_bytes()).await?;
                worker.write_all(text.as_bytes()).await
            };
            if sent.await.is_err() {
                return Closing::Close(CloseCode::Error, "the session has ended");
            }
        }
    }

    /// Forwards messages from worker to client, and sends pings.
    async fn outward(&self, mut worker: impl AsyncRead + Unpin) -> Closing {
        let mut next_ping = tokio::time::Instant::now() + self.bounds.ping;
        let mut coming = IncomingMessage::default();
        loop {
            let silent = *lock(self.heard) + self.bounds.silence;
            let mut max_wait = self.bounds.write;
            let piece = tokio::select! {
                // Continues where it was when a ping came between.
                read = coming.read(&mut worker) => match read {
                    Ok(Some((first, last))) => {
                        max_wait = coming.max_wait(self.bounds.write);
                        OutgoingFrame::Text(&coming.piece, first, last)
                    }
                    Ok(None) => return Closing::Close(CloseCode::Error, "the session has ended"),
                    Err(error) => {
                        tracing::warn!(%error, "a worker's message cannot be read");
                        return Closing::Close(CloseCode::Error, "the session broke off");
                    }
                },
                () = tokio::time::sleep_until(next_ping.min(silent.into())) => {
                    if *lock(self.heard) + self.bounds.silence <= Instant::now() {
                        return Closing::Close(CloseCode::Away, "no answer to pings");
                    }
                    if tokio::time::Instant::now() < next_ping {
                        continue;
                    }
                    next_ping += self.bounds.ping;
                    OutgoingFrame::Ping
                }
            };
            if let Err(end) = self.within(max_wait, piece).await {
                return end;
            }
            coming.sent();
        }
    }

    /// Sends one frame, which the client must take in time.
    async fn in_time(&self, piece: OutgoingFrame<'_>) -> Result<(), Closing> {
        self.within(self.bounds.write, piece).await
    }

    async fn within(&self, max_wait: Duration, piece: OutgoingFrame<'_>) -> Result<(), Closing> {
        let sent = async {
            let mut writer = self.writer.lock().await;
            match piece {
                OutgoingFrame::Text(bytes, first, last) => writer.text(bytes, first, last).await,
                OutgoingFrame::Ping => writer.ping().await,
                OutgoingFrame::Pong(payload) => writer.pong(payload).await,
            }
        };
        match tokio::time::timeout(max_wait, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Closing::Gone),
            Err(_) => Err(Closing::Close(CloseCode::Away, "messages are not read")),
        }
    }
}

/// A frame to a client.
enum OutgoingFrame<'a> {
    Text(&'a [u8], bool, bool),
    Ping,
    Pong(&'a [u8]),
}

/// Returns the close for a fault.
fn ended(fault: Fault) -> Closing {
    let (code, reason) = match fault {
        Fault::Gone => return Closing::Gone,
        Fault::TooLarge => (CloseCode::Size, "the message is too large"),
        Fault::Slow => (CloseCode::Policy, "the message comes too slowly"),
        Fault::Busy => (CloseCode::Again, "too much is under way; try again later"),
        Fault::NotText => (CloseCode::Unsupported, "only text messages are understood"),
        Fault::NotUtf8 => (CloseCode::Invalid, "the message is not UTF-8"),
        Fault::Protocol => (CloseCode::Protocol, "not as RFC 6455 says"),
    };
    Closing::Close(code, reason)
}

/// A worker's message as it arrives: a length and as many bytes, which are forwarded
/// in pieces.
#[derive(Default)]
struct IncomingMessage {
    length: [u8; 4],
    have: usize,
    /// The time at which its first piece was sent.
    since: Option<Instant>,
    /// The number of bytes sent.
    gone: usize,
    piece: Vec<u8>,
}

impl IncomingMessage {
    /// Fills the next piece, and returns if it is the first and the last of its
    /// message; `None` at the end. Cancel safe.
    async fn read(
        &mut self,
        worker: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Option<(bool, bool)>> {
        while let Some(rest) = self.length.get_mut(self.have..).filter(|rest| !rest.is_empty()) {
            match worker.read(rest).await? {
                0 if self.have == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => self.have += more,
            }
        }
        let left = self.length().saturating_sub(self.gone);
        let size = left.min(MAX_PIECE);
        self.piece.reserve_exact(size.saturating_sub(self.piece.len()));
        while self.piece.len() < size {
            let more = u64::try_from(size.saturating_sub(self.piece.len())).unwrap_or(u64::MAX);
            if (&mut *worker).take(more).read_buf(&mut self.piece).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Some((self.gone == 0, size == left)))
    }

    /// Returns the client's timeout for the next piece: at most `write`, and for all
    /// pieces together no more than their rate allows.
    fn max_wait(&mut self, write: Duration) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        let due = since + write + at_rate(self.gone);
        due.saturating_duration_since(Instant::now()).min(write)
    }

    fn length(&self) -> usize {
        usize::try_from(u32::from_be_bytes(self.length)).unwrap_or(usize::MAX)
    }

    /// Notes that the piece, if there was one, is sent.
    fn sent(&mut self) {
        let whole = self.length().saturating_sub(self.gone).min(MAX_PIECE);
        if self.have < self.length.len() || self.piece.len() < whole {
            return;
        }
        self.gone = self.gone.saturating_add(whole);
        if self.gone >= self.length() {
            // The memory of the piece is freed as well.
            *self = Self::default();
        } else {
            self.piece.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex, split};

    use super::*;
    use crate::TokenHash;

    fn bounds(ping: u64, silence: u64, write: u64) -> Sockets {
        let millis = Duration::from_millis;
        let (ping, silence, write) = (millis(ping), millis(silence), millis(write));
        Sockets::new(Bounds { ping, silence, write, ..Bounds::default() })
    }

    /// Runs the pump with `client`, which gets the client's and the worker's ends.
    fn with<T, F>(sockets: &Sockets, client: impl FnOnce(DuplexStream, DuplexStream) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ((theirs, ours), (worker, front)) = (duplex(256), duplex(256));
            let share = sockets.share(TokenHash::of("one"));
            let pumped = pump(sockets, share, ours, split(front), std::future::pending);
            tokio::join!(pumped, client(theirs, worker)).1
        })
    }

    /// Reads all input of a worker, then ends.
    async fn hears_all(mut worker: DuplexStream) -> Vec<u8> {
        let mut heard = Vec::new();
        worker.read_to_end(&mut heard).await.unwrap();
        heard
    }

    #[test]
    fn a_silent_client_is_asked_and_then_told_to_go() {
        let heard = with(&bounds(1, 1000, 60_000), |mut client, worker| async move {
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.unwrap();
            drop(worker);
            heard
        });
        assert_eq!(heard.get(..2), Some(&[0x89, 0][..]), "a ping comes first: {heard:x?}");
        let reason = b"no answer to pings";
        let close = [&[0x88, 20, 0x03, 0xe9][..], reason].concat();
        assert!(heard.ends_with(&close), "{heard:x?}");
    }

    #[test]
    fn a_client_that_does_not_read_holds_nobody_up() {
        let left = with(&bounds(60_000, 60_000, 100), |client, mut worker| async move {
            // More than the pipes hold; the pump ends and closes its side.
            let sent = async {
                worker.write_all(&1_000_000_u32.to_be_bytes()).await?;
                worker.write_all(&[b'x'; 1_000_000]).await
            };
            let sent = sent.await;
            drop(client);
            sent
        });
        assert!(left.is_err());
    }

    #[test]
    fn a_large_message_that_comes_slowly_is_cut_off_and_leaves_its_memory() {
        let sockets = bounds(60_000, 60_000, 60_000);
        let arrive = Duration::from_millis(100);
        let sockets = Sockets::new(Bounds { arrive, ..sockets.bounds });
        let heard = with(&sockets, |mut client, worker| async move {
            let ended = tokio::spawn(hears_all(worker));
            // Of a frame of 200,000 bytes so much comes that memory is reserved;
            // then pongs between the next frames would keep it alive for ever.
            let mut begun = vec![0x01, 0xff];
            begun.extend(150_000_u64.to_be_bytes());
            begun.extend([0; 4]);
            begun.resize(begun.len() + 150_000, b'x');
            client.write_all(&begun).await.unwrap();
            let (mut input, mut output) = split(client);
            let alive = async {
                while output.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let mut heard = Vec::new();
            tokio::select! {
                () = alive => {}
                read = input.read_to_end(&mut heard) => assert!(read.is_ok()),
            }
            ended.await.unwrap();
            heard
        });
        let close = [&[0x88, 30, 0x03, 0xf0][..], b"the message comes too slowly"].concat();
        assert!(heard.ends_with(&close), "{heard:x?}");
        assert_eq!(sockets.memory().free(), sockets.bounds.memory);
    }

    #[test]
    fn large_messages_leave_in_pieces_and_come_as_one() {
        let whole = with(&bounds(60_000, 60_000, 60_000), |client, mut worker| async move {
            let (mut input, output) = split(client);
            let sent = tokio::spawn(async move {
                worker.write_all(&150_000_u32.to_be_bytes()).await.unwrap();
                worker.write_all(&[b'x'; 150_000]).await.unwrap();
            });
            let mut sizes = Vec::new();
            loop {
                let first = input.read_u8().await.unwrap();
                let size = match input.read_u8().await.unwrap() {
                    126 => usize::from(input.read_u16().await.unwrap()),
                    127 => usize::try_from(input.read_u64().await.unwrap()).unwrap(),
                    short => usize::from(short),
                };
                let mut piece = vec![0; size];
                input.read_exact(&mut piece).await.unwrap();
                sizes.push((first, size));
                if first & 0x80 != 0 {
                    break;
                }
            }
            sent.await.unwrap();
            drop((input, output));
            sizes
        });
        assert_eq!(whole, [(0x01, 65_536), (0x00, 65_536), (0x80, 18_928)]);
    }
}
