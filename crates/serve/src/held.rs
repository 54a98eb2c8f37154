//! A connection's stream: it holds its place as long as it is open, and a peer
//! that does not read loses it.
//!
//! What is on its way to a peer is in our memory, so a peer may not take it as
//! slowly as it likes, whatever is spoken over the stream.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};

/// How long a peer may take to take [`ENOUGH`], while more waits for it. More
/// than a WebSocket has for a piece: its close has a reason.
const STALL: Duration = Duration::from_secs(60);
/// In bytes.
const ENOUGH: usize = 1 << 20;

/// A stream that holds its place.
pub(super) struct Held<S> {
    stream: S,
    stall: Duration,
    /// Since the peer did not take everything at once: the end of its time, and
    /// what it took since.
    behind: Option<(Pin<Box<Sleep>>, usize)>,
    _place: OwnedSemaphorePermit,
}

impl<S> Held<S> {
    pub(super) fn new(stream: S, place: OwnedSemaphorePermit) -> Self {
        Self { stream, stall: STALL, behind: None, _place: place }
    }

    /// What a try to write gave, unless the peer's time is over.
    fn in_time(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(length)) => {
                if let Some((_, taken)) = &mut self.behind {
                    *taken = taken.saturating_add(length);
                    if *taken >= ENOUGH {
                        self.behind = None;
                    }
                }
                Poll::Ready(Ok(length))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let stall = self.stall;
                let begin = || (Box::pin(sleep(stall)), 0);
                let (end, _) = self.behind.get_or_insert_with(begin);
                ready!(end.as_mut().poll(context));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        // Nothing waits any more.
        self.behind = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        sync::Semaphore,
    };

    use super::*;

    #[test]
    fn a_peer_that_does_not_read_loses_its_place_and_a_slow_one_keeps_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let places = Arc::new(Semaphore::new(1));
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let (ours, mut theirs) = duplex(1024);
            let mut held = Held { stall: Duration::from_secs(20), ..Held::new(ours, place) };
            let reads = tokio::spawn(async move {
                let mut some = vec![0; 4 * ENOUGH];
                theirs.read_exact(&mut some).await.unwrap();
                theirs
            });
            held.write_all(&vec![0; 4 * ENOUGH]).await.unwrap();
            held.flush().await.unwrap();
            let theirs = reads.await.unwrap();
            held.stall = Duration::from_millis(10);
            let error = held.write_all(&[0; 4096]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(places.available_permits(), 0);
            drop((held, theirs));
            assert_eq!(places.available_permits(), 1);
        });
    }
}
