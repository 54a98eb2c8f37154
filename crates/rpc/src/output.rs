//! Where lines go.

use std::{
    io::{self, IoSlice, Write},
    os::fd::AsFd,
};

use rustix::io::{ReadWriteFlags, pwritev2};

/// What a peer reads from.
pub trait Output: Write + Send + 'static {
    /// Writes what goes out without waiting, and says how much that was.
    ///
    /// # Errors
    /// As the system says, also when nothing goes out without waiting.
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl<T: Write + AsFd + Send + 'static> Output for T {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_now(self, bytes)
    }
}

/// Writes to a pipe or socket what goes out without waiting.
///
/// # Errors
/// As the system says, also when nothing goes out without waiting.
pub fn write_now(output: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(pwritev2(output, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT)?)
}
