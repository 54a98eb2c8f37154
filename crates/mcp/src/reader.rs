//! The reader of the client's lines. It runs on the protocol's thread: a thread of
//! its own would have to be woken for each line.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, IoSliceMut, Read as _},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use portcullis_rpc::{
    Reservation,
    framing::{CHUNK, Frame, Framer},
};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

use super::memory::{self, ClientMemory, LineMemory};
use crate::{
    hangup,
    spin_wait::{SpinWait, Wait},
};

/// The client's input.
#[derive(Debug)]
pub struct Input {
    /// The stream of lines.
    pub stream: File,
    /// Ends the stream when readable, for example by a signal.
    pub stop: Option<OwnedFd>,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct LineReader {
    stream: Stream,
    stop: Option<AsyncFd<OwnedFd>>,
    framer: Option<Framer>,
    chunk: Vec<u8>,
    /// The part of the chunk that is not framed yet.
    rest: std::ops::Range<usize>,
    spin_wait: SpinWait,
    /// The memory shared with other clients, if bounded.
    memory: Option<LineMemory>,
    /// A complete line that waits for memory.
    whole: Option<Vec<u8>>,
    /// The bytes of memory of the last complete line, if memory is bounded.
    cost: usize,
}

#[derive(Debug)]
enum Stream {
    /// A stream with readiness events.
    Told(AsyncFd<File>),
    /// A regular file, which is always ready.
    Ready(File),
}

impl LineReader {
    /// The caller runs within a runtime with I/O.
    pub(super) fn new(
        input: Input,
        max_line: usize,
        memory: Option<&Arc<ClientMemory>>,
    ) -> io::Result<Self> {
        // epoll refuses files that are always ready.
        let stream = match told(input.stream) {
            Ok(told) => Stream::Told(told),
            Err((file, error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                Stream::Ready(file)
            }
            Err((_, error)) => return Err(error),
        };
        let stop = input.stop.map(|stop| told(stop).map_err(|(_, error)| error));
        Ok(Self {
            stream,
            stop: stop.transpose()?,
            framer: Some(Framer::new(max_line)),
            chunk: vec![0; CHUNK],
            rest: 0..0,
            spin_wait: SpinWait::default(),
            memory: memory.map(|memory| LineMemory::new(Arc::clone(memory))),
            whole: None,
            cost: 0,
        })
    }

    /// Reads the next line; `None` when the stream has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        // Yields to other tasks after some lines. This comes before a line is
        // framed, since a cancelled read would lose it.
        tokio::task::consume_budget().await;
        loop {
            if let Some(frame) = self.deliver().await {
                return Some(frame);
            }
            let piece = self.chunk.get(self.rest.clone()).unwrap_or_default();
            let framer = self.framer.as_mut()?;
            if let Some(memory) = &mut self.memory
                && !framer.is_skipping()
                && !memory.grow(framer.length().saturating_add(piece.len())).await
            {
                return Some(framer.give_up());
            }
            let mut piece = piece;
            let frame = framer.next_frame(&mut piece);
            self.rest.start = self.rest.end - piece.len();
            match frame {
                Some(Frame::Line(line)) => {
                    self.cost = self.memory.as_ref().map_or(0, |_| memory::cost_of(&line));
                    self.whole = Some(line);
                    continue;
                }
                Some(frame) => {
                    self.clear();
                    return Some(frame);
                }
                None if framer.is_skipping() => self.clear(),
                None => {}
            }
            // A reset ends the stream as well.
            match self.fill().await {
                Ok(Some(count)) if count > 0 => self.rest = 0..count,
                Ok(None) => {
                    self.clear();
                    return self.framer.as_mut().map(Framer::give_up);
                }
                _ => return self.framer.take().and_then(Framer::end),
            }
        }
    }

    /// Returns the complete line, once its memory is reserved.
    async fn deliver(&mut self) -> Option<Frame> {
        self.whole.as_ref()?;
        let is_covered = match &mut self.memory {
            Some(memory) => memory.cover(self.cost).await,
            None => true,
        };
        let line = self.whole.take()?;
        Some(if is_covered { Frame::Line(line) } else { Frame::given_up(line) })
    }

    /// Takes the memory of the last line.
    pub(super) fn take_memory(&mut self) -> Option<Reservation> {
        self.memory.as_mut()?.take(self.cost)
    }

    fn clear(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.clear();
        }
    }

    /// Returns true if no more input will arrive.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stream, Stream::Ready(_)) || self.is_left()
    }

    /// Returns true if the client hung up, or the reader was stopped.
    pub(super) fn is_left(&self) -> bool {
        let stream = match &self.stream {
            Stream::Told(stream) => stream.as_fd(),
            Stream::Ready(stream) => stream.as_fd(),
        };
        hangup::is_over(stream, self.stop.as_ref().map(AsFd::as_fd))
    }

    /// Reads more input; `None` when an incomplete line has taken too long.
    async fn fill(&mut self) -> io::Result<Option<usize>> {
        let stop = async {
            match &self.stop {
                Some(stop) => drop(stop.readable().await),
                None => std::future::pending().await,
            }
        };
        let late = async {
            match &self.memory {
                Some(memory) => memory.late().await,
                None => std::future::pending().await,
            }
        };
        let wait = self.spin_wait.wait();
        let count = tokio::select! {
            biased;
            () = stop => Ok(Some(0)),
            count = self.stream.read(&mut self.chunk) => count.map(Some),
            () = late => Ok(None),
            never = awake(&wait) => match never {},
        };
        self.spin_wait.line_arrived(&wait);
        count
    }
}

/// Keeps this thread awake while that is worthwhile.
async fn awake(wait: &Wait) -> Infallible {
    while wait.is_awake() {
        tokio::task::yield_now().await;
    }
    std::future::pending().await
}

impl Stream {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Ready(file) => file.read(buffer),
            Self::Told(told) => loop {
                let mut guard = told.readable_mut().await?;
                match read_now(guard.get_inner_mut(), buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(count) => {
                        // A short read empties the stream; a new event announces
                        // more.
                        if (1..buffer.len()).contains(&count) {
                            guard.clear_ready();
                        }
                        return Ok(count);
                    }
                    error => return error,
                }
            },
        }
    }
}

#[expect(deprecated, reason = "the other one is unsafe, lest `T` close its descriptor: none does")]
fn told<T: Into<OwnedFd> + AsRawFd>(fd: T) -> Result<AsyncFd<T>, (T, io::Error)> {
    AsyncFd::try_with_interest(fd, Interest::READABLE).map_err(AsyncFdRegisterError::into_parts)
}

/// Reads the available input. The descriptor itself may block, because it is shared
/// with the parent process; another reader of it must not block this one.
fn read_now(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = ReadWriteFlags::NOWAIT;
    match preadv2(file.as_fd(), &mut [IoSliceMut::new(buffer)], u64::MAX, flags) {
        // A terminal does not support this; it has a line ready, as the event says.
        Err(Errno::OPNOTSUPP) => file.read(buffer),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        io::{Seek as _, Write as _},
        os::unix::net::UnixStream,
        pin::pin,
        task::Poll,
        thread,
        time::Duration,
    };

    use super::*;

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    fn input(stream: impl Into<OwnedFd>) -> Input {
        Input { stream: File::from(stream.into()), stop: None }
    }

    async fn all(input: Input) -> Vec<Frame> {
        let (mut reader, mut frames) = (LineReader::new(input, 100_000, None).unwrap(), Vec::new());
        while let Some(frame) = reader.next().await {
            frames.push(frame);
        }
        assert!(reader.next().await.is_none());
        frames
    }

    fn lines() -> (Vec<u8>, Vec<Frame>) {
        let lines: Vec<_> = (0..200).map(|n| vec![b'a' + n as u8 % 26; n * 400]).collect();
        let mut bytes = lines.join(&b'\n');
        bytes.extend_from_slice(b"\ntorn");
        let torn = Frame::Incomplete { head: b"torn".to_vec(), length: 4 };
        (bytes, lines.into_iter().map(Frame::Line).chain([torn]).collect())
    }

    #[test]
    fn lines_come_whole_from_a_pipe_a_socket_and_a_file() {
        let (bytes, frames) = lines();
        let (reader, mut writer) = io::pipe().unwrap();
        let (socket, mut other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        let written = bytes.clone();
        let sender = thread::spawn(move || {
            for piece in written.chunks(70_001) {
                writer.write_all(piece).unwrap();
                other.write_all(piece).unwrap();
            }
        });
        let (piped, sent, stored) = block_on(async {
            tokio::join!(all(input(reader)), all(input(socket)), all(input(file)))
        });
        sender.join().unwrap();
        assert!(piped == frames && sent == frames && stored == frames);
    }

    #[test]
    fn nothing_is_lost_when_nobody_waits_for_a_line_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        block_on(async {
            let mut reader = LineReader::new(input(reader), 100, None).unwrap();
            for piece in ["fi", "rst\nsec", "ond\nthird\n"] {
                let waited = tokio::time::timeout(Duration::from_millis(1), reader.next()).await;
                assert!(waited.is_err());
                writer.write_all(piece.as_bytes()).unwrap();
                if piece.contains("third") {
                    break;
                }
                if piece.contains('\n') {
                    assert_eq!(reader.next().await, Some(Frame::Line(b"first".to_vec())));
                }
            }
            for line in [&b"second"[..], b"third"] {
                assert_eq!(reader.next().await, Some(Frame::Line(line.to_vec())));
            }
        });
    }

    #[test]
    fn no_line_is_lost_when_its_turn_is_over() {
        const LINES: usize = 1000;
        let (reader, mut writer) = io::pipe().unwrap();
        let expected: Vec<_> = (0..LINES).map(|n| n.to_string().into_bytes()).collect();
        let sent = expected.clone();
        writer.write_all(&[sent.join(&b'\n'), b"\n".to_vec()].concat()).unwrap();
        drop(writer);
        let heard = block_on(async {
            let (mut reader, mut heard) =
                (LineReader::new(input(reader), 100, None).unwrap(), Vec::new());
            let mut others = 0;
            loop {
                let waited = {
                    let mut next = pin!(reader.next());
                    poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await
                };
                match waited {
                    Poll::Ready(Some(Frame::Line(line))) => heard.push(line),
                    Poll::Ready(_) => break,
                    // The reader was dropped; another task runs.
                    Poll::Pending => {
                        others += 1;
                        tokio::task::yield_now().await;
                    }
                }
            }
            assert!(others > 0, "nobody else had a turn");
            heard
        });
        assert_eq!(heard, expected);
    }

    #[test]
    fn who_reads_the_other_copy_of_the_stream_makes_nobody_wait() {
        let (mut other, mut writer) = io::pipe().unwrap();
        let input = input(other.try_clone().unwrap());
        block_on(async {
            let mut reader = LineReader::new(input, 100, None).unwrap();
            writer.write_all(b"taken\n").unwrap();
            other.read_exact(&mut [0; 6]).unwrap();
            let waited = tokio::time::timeout(Duration::from_millis(10), reader.next()).await;
            assert!(waited.is_err());
        });
    }

    #[test]
    fn a_stop_ends_a_stream_on_which_nothing_comes() {
        let (reader, writer) = io::pipe().unwrap();
        let (stop, mut stopping) = io::pipe().unwrap();
        let input = Input { stop: Some(stop.into()), ..input(reader) };
        let stopper = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            stopping.write_all(b"x").unwrap();
            stopping
        });
        assert_eq!(block_on(all(input)), []);
        drop((stopper.join().unwrap(), writer));
    }
}
