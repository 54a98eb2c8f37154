//! A server's socket, on which every byte is counted before it is sent.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{link::ServerConnection, stream};

type ApprovalNeeded = Pin<Box<dyn Future<Output = usize>>>;

/// The socket of an open connection.
pub(super) struct Wire {
    open: Rc<ServerConnection>,
    /// Bytes that were counted and not sent yet.
    counted: usize,
    asking: Option<ApprovalNeeded>,
}

impl Wire {
    pub(super) fn new(open: Rc<ServerConnection>) -> Self {
        Self { open, counted: 0, asking: None }
    }

    /// Waits until bytes may be sent; returns how many.
    fn poll_counted(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<usize> {
        if self.counted == 0 {
            let asking = self.asking.get_or_insert_with(|| {
                let open = Rc::clone(&self.open);
                Box::pin(async move {
                    open.sending(wanted).await;
                    wanted
                })
            });
            self.counted = ready!(asking.as_mut().poll(cx));
            self.asking = None;
        }
        Poll::Ready(self.counted)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.open.server.poll_read_ready(cx))?;
            match self.open.server.try_read(buffer.initialize_unfilled()) {
                Ok(got) => {
                    buffer.advance(got);
                    self.open.received(got);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if stream::is_passing(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = parts.iter().map(|part| part.len()).sum();
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut left = ready!(self.poll_counted(cx, wanted));
        let mut allowed = Vec::with_capacity(parts.len());
        for part in parts {
            let part = part.get(..left.min(part.len())).unwrap_or_default();
            left -= part.len();
            allowed.push(IoSlice::new(part));
        }
        loop {
            ready!(self.open.server.poll_write_ready(cx))?;
            match self.open.server.try_write_vectored(&allowed) {
                Ok(sent) => {
                    self.counted = self.counted.saturating_sub(sent);
                    return Poll::Ready(Ok(sent));
                }
                Err(error) if stream::is_passing(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream::end(&self.open.server);
        Poll::Ready(Ok(()))
    }
}
