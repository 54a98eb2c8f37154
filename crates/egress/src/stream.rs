//! Reads from and writes to sockets without a buffer for each.

use std::{
    cell::{Cell, RefCell},
    io,
};

use rustix::net::Shutdown;
use tokio::{io::Interest, net::TcpStream};

/// The maximum of one read, in bytes.
const MAX_CHUNK: usize = 64 * 1024;
/// The size of one read when there are many connections, in bytes.
const MIN_CHUNK: usize = 4 * 1024;
/// The approximate maximum of bytes that all connections together have read and not written.
const MAX_HELD: usize = 16 << 20;

/// The buffer for reads, which all connections share, and their number.
#[derive(Debug)]
pub(crate) struct Scratch {
    bytes: RefCell<Vec<u8>>,
    connections: Cell<usize>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { bytes: RefCell::new(vec![0; MAX_CHUNK]), connections: Cell::new(0) }
    }

    /// Counts a connection as long as the result lives.
    pub(crate) fn enter(&self) -> CountedConnection<'_> {
        self.connections.set(self.connections.get() + 1);
        CountedConnection(self)
    }

    /// Waits for bytes and returns them; none at the end of the stream.
    pub(crate) async fn read(&self, from: &TcpStream) -> io::Result<Vec<u8>> {
        loop {
            from.readable().await?;
            let mut scratch = self.bytes.borrow_mut();
            match from.try_read(self.room(&mut scratch)) {
                Ok(got) => return Ok(scratch.get(..got).unwrap_or_default().to_vec()),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for bytes and passes them on; returns how many, 0 at the end of the stream.
    pub(crate) async fn pass(&self, from: &TcpStream, to: &TcpStream) -> io::Result<usize> {
        let (got, rest) = loop {
            from.readable().await?;
            let mut scratch = self.bytes.borrow_mut();
            match from.try_read(self.room(&mut scratch)) {
                Ok(got) => {
                    let bytes = scratch.get(..got).unwrap_or_default();
                    let written = match to.try_write(bytes) {
                        Ok(written) => written,
                        Err(error) if is_passing(&error) => 0,
                        Err(error) => return Err(error),
                    };
                    break (got, bytes.get(written..).unwrap_or_default().to_vec());
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        };
        write(to, &rest).await?;
        Ok(got)
    }

    fn room<'a>(&self, scratch: &'a mut [u8]) -> &'a mut [u8] {
        let share = MAX_HELD / self.connections.get().max(1);
        scratch.get_mut(..share.clamp(MIN_CHUNK, MAX_CHUNK)).unwrap_or_default()
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct CountedConnection<'a>(&'a Scratch);

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get().saturating_sub(1));
    }
}

/// Writes all bytes.
pub(crate) async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if is_passing(&error) => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the peer sends no more, also if bytes of it are still to be read.
pub(crate) async fn closed(stream: &TcpStream) {
    // The interest of urgent data: it does not end for other bytes.
    let ready = stream.ready(Interest::PRIORITY).await;
    if !ready.is_ok_and(|ready| ready.is_read_closed()) {
        std::future::pending().await
    }
}

/// Shuts the stream down for writing. A peer that is gone does not matter.
pub(crate) fn end(stream: &TcpStream) {
    let _ = rustix::net::shutdown(stream, Shutdown::Write);
}

pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
