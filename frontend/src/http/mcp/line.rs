//! Lines of a worker, and the memory that they take.
//!
//! A reply is as large as a content, so it counts as every large message does,
//! from its first bytes until the client has it. A line for which there is no
//! room is passed over; whoever waits for it is told.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::{
    buffer,
    http::ws::{SMALL, STEP, Taken},
    lock,
};

/// Longest line, in bytes: a content in base64 and as a text, and both of them
/// again for models.
const LONGEST: usize = 1 << 30;
/// How often a line is in memory while it is passed on: itself, and what becomes
/// of it.
const SHARE: usize = 2;

/// What came.
pub(super) enum Line {
    /// A whole line with its end, and the memory that it takes.
    Whole(Vec<u8>, Option<OwnedSemaphorePermit>),
    /// The beginning of one that found no room.
    Lost(Vec<u8>),
}

/// The next line; nothing at the end, or when a line is longer than any.
pub(super) async fn next(
    reader: &mut (impl AsyncBufRead + Unpin),
    memory: &Arc<Semaphore>,
) -> io::Result<Option<Line>> {
    let (mut line, mut held, mut lost) = (Vec::new(), None, false);
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
        if length > LONGEST {
            return Ok(None);
        }
        let has_room =
            lost || (hold(&mut held, length, memory) && buffer::grow(&mut line, taken, LONGEST));
        if !has_room {
            // Given back at once, for whoever has more luck.
            lost = true;
            held = None;
            line.truncate(SMALL);
            line.shrink_to_fit();
        }
        if !lost {
            line.extend_from_slice(piece);
        }
        reader.consume(taken);
        if end.is_some() {
            let whole = if lost { Line::Lost(line) } else { Line::Whole(line, held) };
            return Ok(Some(whole));
        }
    }
}

/// Takes memory for a line of `length` bytes so far. Not waited for: those that
/// wait for each other would wait for ever.
fn hold(held: &mut Option<OwnedSemaphorePermit>, length: usize, memory: &Arc<Semaphore>) -> bool {
    let steps = match length > SMALL {
        true => length.saturating_mul(SHARE).div_ceil(STEP),
        false => 0,
    };
    let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let Ok(more @ 1..) = u32::try_from(steps.saturating_sub(has)) else { return true };
    let Ok(more) = Arc::clone(memory).try_acquire_many_owned(more) else { return false };
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
    true
}

/// The id of a line that was lost, as far as its beginning tells: a worker
/// writes `jsonrpc` and `id` first.
pub(super) fn id(begin: &[u8]) -> Option<u64> {
    let rest = begin.strip_prefix(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

/// The memory that replies to one HTTP request take until the client has them.
#[derive(Clone, Default)]
pub(super) struct Room(Arc<Mutex<Vec<OwnedSemaphorePermit>>>);

impl Room {
    pub(super) fn keep(&self, held: Option<OwnedSemaphorePermit>) {
        lock(&self.0).extend(held);
    }
}

/// The memory that a request takes until it is on its way to the worker.
#[derive(Clone)]
pub(super) struct Load(Arc<Mutex<Option<Taken>>>);

impl Load {
    pub(super) fn new(held: Taken) -> Self {
        Self(Arc::new(Mutex::new(Some(held))))
    }

    /// Gives it back: who waits for the answer holds nothing that others need.
    pub(super) fn free(&self) {
        lock(&self.0).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_memory_until_it_is_dropped_and_one_without_room_is_passed_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let memory = Arc::new(Semaphore::new(8));
            let reply = |id: u32, size: usize| {
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"{}\"}}\n", "x".repeat(size))
            };
            let all = [reply(1, 10), reply(2, 200_000), reply(3, 300_000), reply(4, 10)].concat();
            let mut reader = tokio::io::BufReader::with_capacity(4096, all.as_bytes());
            let mut next = async || next(&mut reader, &memory).await.unwrap();
            assert!(matches!(next().await, Some(Line::Whole(line, None)) if line.len() < 100));
            let Some(Line::Whole(line, held)) = next().await else { panic!() };
            assert_eq!((line.last(), memory.available_permits()), (Some(&b'\n'), 1));
            let Some(Line::Lost(begin)) = next().await else { panic!() };
            assert_eq!((id(&begin), memory.available_permits()), (Some(3), 1));
            assert!(matches!(next().await, Some(Line::Whole(..))));
            drop(held);
            assert_eq!(memory.available_permits(), 8);
            assert!(next().await.is_none());
        });
    }
}
