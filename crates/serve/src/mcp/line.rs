//! Lines from a worker, and the memory reserved for them.
//!
//! A reply is as large as a content, so memory is reserved for it from its first
//! bytes until the client has it. A line for which there is no memory is skipped, and
//! its request gets an error.

use std::{
    io,
    sync::{Arc, Mutex, Weak},
};

use portcullis_rpc::{MemoryBudget, Reservation};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use crate::{buffer, lock, ws::MAX_UNRESERVED_BYTES};

/// Longest line, in bytes: a content in base64 and as a text, and both of them again
/// for models.
const MAX_LINE: usize = 1 << 30;
/// Copies of a line in memory while it is forwarded: the line and the reply.
const COPIES: usize = 2;

/// A line from a worker.
pub(super) enum Line {
    /// A line with its line end, and its memory.
    Whole(Vec<u8>, Reservation),
    /// The beginning of a line for which there was no memory.
    Skipped(Vec<u8>),
}

/// Reads the next line; `None` at the end, or when a line exceeds [`MAX_LINE`].
pub(super) async fn next(
    reader: &mut (impl AsyncBufRead + Unpin),
    memory: &MemoryBudget,
) -> io::Result<Option<Line>> {
    let (mut line, mut held, mut lost) = (Vec::new(), memory.empty(), false);
    let mut length = 0_usize;
    loop {
        let some = reader.fill_buf().await?;
        if some.is_empty() {
            return Ok(None);
        }
        let end = some.iter().position(|byte| *byte == b'\n').map(|at| at.saturating_add(1));
        let piece = some.get(..end.unwrap_or(some.len())).unwrap_or(some);
        let taken = piece.len();
        length = length.saturating_add(taken);
        if length > MAX_LINE {
            return Ok(None);
        }
        let has_room =
            lost || (cover(&mut held, length) && buffer::grow(&mut line, taken, MAX_LINE));
        if !has_room {
            // Freed at once, for other lines.
            lost = true;
            held = memory.empty();
            line.truncate(MAX_UNRESERVED_BYTES);
            line.shrink_to_fit();
        }
        if !lost {
            line.extend_from_slice(piece);
        }
        reader.consume(taken);
        if end.is_some() {
            let whole = if lost { Line::Skipped(line) } else { Line::Whole(line, held) };
            return Ok(Some(whole));
        }
    }
}

/// Reserves memory for a line of which `length` bytes have arrived. Returns false
/// where there is none: waiting for it could deadlock lines that wait for each other.
fn cover(held: &mut Reservation, length: usize) -> bool {
    length <= MAX_UNRESERVED_BYTES || held.try_grow(length.saturating_mul(COPIES))
}

/// Returns the id of a skipped line, read from its beginning: a worker writes
/// `jsonrpc` and `id` first.
pub(super) fn id(begin: &[u8]) -> Option<u64> {
    let rest = begin.strip_prefix(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

/// The memory of the replies to one HTTP request, until the client has them.
#[derive(Clone, Default)]
pub(super) struct ReplyMemory(Arc<Mutex<Vec<Reservation>>>);

impl ReplyMemory {
    pub(super) fn keep(&self, held: Option<Reservation>) {
        lock(&self.0).extend(held);
    }

    /// Returns true if another part of the HTTP request has it, too: its client is there.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The memory of the replies of a session whose streams were resumed: a reply then comes over
/// another HTTP request than that which asked, and counts while any such request is there.
#[derive(Default)]
pub(super) struct ResumedMemory(Mutex<Weak<Mutex<Vec<Reservation>>>>);

impl ResumedMemory {
    pub(super) fn get(&self) -> ReplyMemory {
        let mut known = lock(&self.0);
        let memory = ReplyMemory(known.upgrade().unwrap_or_default());
        *known = Arc::downgrade(&memory.0);
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_memory_until_it_is_dropped_and_one_without_is_skipped() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let memory = MemoryBudget::new(500_000);
            let reply = |id: u32, size: usize| {
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"{}\"}}\n", "x".repeat(size))
            };
            let all = [reply(1, 10), reply(2, 200_000), reply(3, 300_000), reply(4, 10)].concat();
            let mut reader = tokio::io::BufReader::with_capacity(4096, all.as_bytes());
            let mut next = async || next(&mut reader, &memory).await.unwrap();
            assert!(matches!(next().await, Some(Line::Whole(line, held)) if line.len() < 100 && held.bytes() == 0));
            let Some(Line::Whole(line, held)) = next().await else { panic!() };
            assert_eq!((line.last(), memory.free()), (Some(&b'\n'), 500_000 - 2 * line.len()));
            let Some(Line::Skipped(begin)) = next().await else { panic!() };
            assert_eq!((id(&begin), memory.free()), (Some(3), 500_000 - 2 * line.len()));
            assert!(matches!(next().await, Some(Line::Whole(..))));
            drop(held);
            assert_eq!(memory.free(), 500_000);
            assert!(next().await.is_none());
        });
    }
}
