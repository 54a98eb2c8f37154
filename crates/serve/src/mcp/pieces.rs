//! Reply bodies in pieces. The HTTP library buffers a frame until the client has taken it,
//! whatever its size, and only then polls the next one: of a body given as one frame the
//! memory would be released at once.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::body::{Body, Bytes, Frame};

/// Longest piece, in bytes. The HTTP library polls up to 16 of them ahead.
const MAX_PIECE: usize = 64 * 1024;

/// A body in pieces, with a value that is dropped after the last piece.
pub(super) struct Pieces<B, H> {
    body: B,
    /// The remainder of the current frame.
    rest: Bytes,
    _held: H,
}

impl<B, H> Pieces<B, H> {
    pub(super) fn new(body: B, held: H) -> Self {
        Self { body, rest: Bytes::new(), _held: held }
    }
}

impl<B: Body<Data = Bytes> + Unpin, H: Unpin> Body for Pieces<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) if data.len() > MAX_PIECE => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let length = self.rest.len().min(MAX_PIECE);
        // A copy, since a slice would keep the memory of the whole reply.
        let piece = Bytes::copy_from_slice(&self.rest.split_to(length));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[test]
    fn what_is_held_goes_with_the_last_piece() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for (length, pieces) in
                [(0, 0), (10, 1), (MAX_PIECE, 1), (MAX_PIECE + 1, 2), (3 * MAX_PIECE, 3)]
            {
                let whole: Vec<u8> = (0..length).map(|n| n.to_le_bytes()[0]).collect();
                let held = Arc::new(());
                let mut body = Pieces::new(Full::new(Bytes::from(whole.clone())), held.clone());
                let mut given = Vec::new();
                for _ in 0..pieces {
                    assert!(!body.is_end_stream());
                    given.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
                }
                assert!(body.is_end_stream() && body.frame().await.is_none());
                assert_eq!((given, Arc::strong_count(&held)), (whole, 2));
            }
        });
    }
}
