//! The stream of a connection. It is counted while it is open; a peer that
//! does not read is disconnected.
//!
//! Bytes on their way to a peer occupy memory, so a peer has to take them at a
//! minimum rate, with every protocol.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::admission::AdmissionGuard;

/// Time within which a peer must take [`MIN_PROGRESS`] bytes, while more wait for it.
/// Longer than a WebSocket's limit for a piece, whose close has a reason.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that count as progress.
const MIN_PROGRESS: usize = 1 << 20;

/// A stream with the admission of its connection.
pub(super) struct SlotStream<S> {
    stream: S,
    stall: Duration,
    /// Set since the peer did not take everything at once: its deadline, and the
    /// bytes taken since.
    behind: Option<(Pin<Box<Sleep>>, usize)>,
    _admitted: Arc<AdmissionGuard>,
}

impl<S> SlotStream<S> {
    pub(super) fn new(stream: S, admitted: Arc<AdmissionGuard>) -> Self {
        Self { stream, stall: STALL_TIMEOUT, behind: None, _admitted: admitted }
    }

    /// Returns the result of a write, or an error once the peer's deadline has
    /// passed.
    fn in_time(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(length)) => {
                if let Some((_, taken)) = &mut self.behind {
                    *taken = taken.saturating_add(length);
                    if *taken >= MIN_PROGRESS {
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

impl<S: AsyncRead + Unpin> AsyncRead for SlotStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SlotStream<S> {
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
        // Nothing waits for the peer any more.
        self.behind = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::{super::admission::Admission, *};

    #[test]
    fn a_peer_that_does_not_read_is_cut_off_and_a_slow_one_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let admission = Admission::new(1);
            let admitted = admission.admit().await;
            let (ours, mut theirs) = duplex(1024);
            let mut held =
                SlotStream { stall: Duration::from_secs(60), ..SlotStream::new(ours, admitted) };
            let reads = tokio::spawn(async move {
                let mut some = vec![0; 4 * MIN_PROGRESS];
                theirs.read_exact(&mut some).await.unwrap();
                theirs
            });
            held.write_all(&vec![0; 4 * MIN_PROGRESS]).await.unwrap();
            held.flush().await.unwrap();
            let theirs = reads.await.unwrap();
            held.stall = Duration::from_millis(10);
            let error = held.write_all(&[0; 4096]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(admission.admitted(), 1);
            drop((held, theirs));
            assert_eq!(admission.admitted(), 0);
        });
    }
}
