//! Destinations of lines.

use std::{
    io::{self, IoSlice, Write},
    os::fd::AsFd,
};

use rustix::io::{ReadWriteFlags, pwritev2};

/// A writer to a peer.
pub trait Output: Write + Send + 'static {
    /// Writes as much as possible without blocking, and returns the number of bytes.
    ///
    /// # Errors
    /// The error of the system, also if nothing can be written without blocking.
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl<T: Write + AsFd + Send + 'static> Output for T {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_now(self, bytes)
    }
}

/// Writes as much to a pipe or socket as possible without blocking.
///
/// # Errors
/// The error of the system, also if nothing can be written without blocking.
pub fn write_now(output: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(pwritev2(output, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT)?)
}
