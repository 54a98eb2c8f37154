//! The relay: a process that copies between named pipes and a socket for each connection, which it
//! hands to the gateway.
//!
//! The gateway process cannot make sockets, and need not parse what an agent writes to pipes. The
//! relay opens no file, runs no program, signals no process, and does not parse what it copies. It
//! ends with the gateway process or with the broker.

use std::{
    io,
    ops::{ControlFlow, Range},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, write},
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};

use super::{
    channel::{Channel, stream_pair},
    confine::restrict_relay,
    named_pipes::{Directory, END, MAX_CLIENTS, NONCE, NamedPipes},
    process::{self, Running},
    stage::{Stage, StageError, failed},
};

/// Timeout of the start of the process.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a connection that are buffered in each direction.
const BUFFER_SIZE: usize = 64 * 1024;
/// Bytes of announcements that are read at once.
const ANNOUNCEMENT_BUFFER_SIZE: usize = 4096;
/// Maximum length of a partial announcement in bytes: more than the longest one.
const MAX_ANNOUNCEMENT: usize = 64;

/// The process and the pipes' directory; both are removed on drop.
#[derive(Debug)]
pub(super) struct Relay {
    _process: Running,
    _directory: Directory,
}

impl Relay {
    /// Starts the process. Returns the descriptor on which the gateway receives a socket for each
    /// connection.
    pub(super) fn start(pipes: NamedPipes) -> Result<(Self, OwnedFd), String> {
        let start = |error: io::Error| format!("cannot start the relay: {error}");
        let start_channel = |error| format!("cannot start the relay: {error}");
        let (control, theirs) = Channel::pair().map_err(start_channel)?;
        let (gateway, relayed) = Channel::pair().map_err(start_channel)?;
        let process = Stage::Relay.command(theirs.into()).process_group(0).spawn();
        let process = Running(process.map_err(start)?);
        let confined = (|| {
            control.send(&(), &[relayed.as_fd(), pipes.announcements.as_fd()])?;
            for (input, output) in &pipes.slots {
                control.send(&(), &[input.as_fd(), output.as_fd()])?;
            }
            control.receive_within::<Result<(), String>>(STEP_TIMEOUT)
        })();
        confined.map_err(start_channel)?.0.map_err(|reason| start(io::Error::other(reason)))?;
        Ok((Self { _process: process, _directory: pipes.directory }, gateway.into()))
    }
}

/// Runs the process.
pub(super) fn run(parent: u32) -> Result<u8, StageError> {
    process::close_inherited().map_err(failed("close inherited descriptors"))?;
    let control = Channel::from_stdin()?;
    process::die_with(parent).map_err(failed("follow the broker"))?;
    let [gateway, announcements] = receive(&control)?;
    let mut slots = Vec::new();
    for _ in 0..MAX_CLIENTS {
        let [input, output] = receive(&control)?;
        slots.push(Slot { input, output, connection: None });
    }
    let confined = restrict_relay().map(drop).map_err(|error| error.to_string());
    control.send(&confined, &[])?;
    if confined.is_err() {
        return Ok(1);
    }
    drop(control);
    let announcements = Announcements { pipe: announcements, buffered: Vec::new() };
    Pipes { gateway: gateway.into(), announcements, slots }.relay().map_err(failed("relay"))?;
    Ok(0)
}

fn receive(control: &Channel) -> Result<[OwnedFd; 2], StageError> {
    let ((), descriptors) = control.receive()?;
    let wrong = |_| failed("receive a pipe")(io::Error::from(io::ErrorKind::InvalidData));
    descriptors.try_into().map_err(wrong)
}

struct Pipes {
    gateway: Channel,
    announcements: Announcements,
    slots: Vec<Slot>,
}

impl Pipes {
    /// Relays until the gateway takes no more connections.
    fn relay(mut self) -> io::Result<()> {
        while self.wait()? {
            for (slot, nonce) in self.announcements.read()? {
                if let Some(slot) = self.slots.get_mut(slot) {
                    slot.connect(&nonce, &self.gateway)?;
                }
            }
            self.slots.iter_mut().for_each(Slot::pass_on);
        }
        Ok(())
    }

    /// Waits until there is something to do; returns false when the gateway is gone.
    fn wait(&mut self) -> io::Result<bool> {
        let mut wanted = vec![
            PollFd::new(&self.gateway, PollFlags::empty()),
            PollFd::new(&self.announcements.pipe, PollFlags::IN),
        ];
        wanted.extend(self.slots.iter().flat_map(Slot::wanted));
        match poll(&mut wanted, None) {
            Ok(_) => Ok(wanted.first().is_some_and(|gateway| gateway.revents().is_empty())),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// The pipe in which clients announce connections: lines, and between them any bytes that an agent
/// writes there.
struct Announcements {
    pipe: OwnedFd,
    buffered: Vec<u8>,
}

impl Announcements {
    /// Reads the announcements, each as slot and nonce.
    fn read(&mut self) -> io::Result<Vec<(usize, String)>> {
        let mut chunk = [0; ANNOUNCEMENT_BUFFER_SIZE];
        let got = match read(&self.pipe, &mut chunk) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        self.buffered.extend_from_slice(chunk.get(..got).unwrap_or_default());
        let mut lines: Vec<_> = self.buffered.split(|byte| *byte == b'\n').collect();
        let rest =
            lines.pop().filter(|rest| rest.len() < MAX_ANNOUNCEMENT).unwrap_or_default().to_vec();
        let came = lines.into_iter().filter_map(message).collect();
        self.buffered = rest;
        Ok(came)
    }
}

fn message(line: &[u8]) -> Option<(usize, String)> {
    let (slot, nonce) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let is_nonce = nonce.len() == NONCE && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_nonce.then_some((slot.parse().ok()?, nonce.to_owned()))
}

/// Two pipes, and the connection by them.
struct Slot {
    input: OwnedFd,
    output: OwnedFd,
    connection: Option<Connection>,
}

impl Slot {
    /// Ends the previous connection, and hands the gateway a socket for the new one.
    fn connect(&mut self, nonce: &str, gateway: &Channel) -> io::Result<()> {
        self.connection = None;
        self.drain();
        let (socket, theirs) = stream_pair()?;
        gateway.send(&(), &[theirs.as_fd()]).map_err(io::Error::other)?;
        let mut to_client = PendingBytes::new();
        // The nonce is a line of its own, whatever was left of the previous connection.
        to_client.hold(format!("\n{nonce}\n").as_bytes());
        let to_gateway = PendingBytes::new();
        self.connection = Some(Connection {
            socket,
            to_gateway,
            to_client,
            client_ended: false,
            gateway_ended: false,
        });
        Ok(())
    }

    /// Discards unread bytes of an earlier client; a new one waits for its nonce before it writes.
    fn drain(&self) {
        let mut chunk = [0; ANNOUNCEMENT_BUFFER_SIZE];
        // The capacity of a pipe (pipe(7)); only other writers could add more.
        for _ in 0..(1 << 20) / ANNOUNCEMENT_BUFFER_SIZE {
            if !matches!(read(&self.input, &mut chunk), Ok(1..)) {
                return;
            }
        }
    }

    /// Returns the descriptors to wait for. One that has hung up is left out unless it is needed,
    /// since it would be ready all the time.
    fn wanted(&self) -> impl Iterator<Item = PollFd<'_>> {
        let wanted = self.connection.as_ref().map(|connection| {
            let Connection { socket, to_gateway, to_client, client_ended, gateway_ended } =
                connection;
            let mut of_socket = PollFlags::empty();
            of_socket.set(PollFlags::IN, to_client.is_empty() && !gateway_ended);
            of_socket.set(PollFlags::OUT, !to_gateway.is_empty());
            let hears = to_gateway.is_empty() && !client_ended;
            // Always: it reports when the client is gone.
            let of_output = if to_client.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            [
                Some(PollFd::new(&self.output, of_output)),
                hears.then(|| PollFd::new(&self.input, PollFlags::IN)),
                (!of_socket.is_empty()).then(|| PollFd::new(socket, of_socket)),
            ]
        });
        wanted.into_iter().flatten().flatten()
    }

    /// Copies as far as possible without waiting.
    fn pass_on(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if is_left(&self.output) || connection.pass_on(&self.input, &self.output).is_break() {
            self.connection = None;
        }
    }
}

/// True if a pipe has no reader any more.
fn is_left(output: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(output, PollFlags::empty())];
    let looked = poll(&mut wanted, Some(&rustix::event::Timespec::default()));
    looked.is_ok() && wanted.iter().any(|output| output.revents().contains(PollFlags::ERR))
}

struct Connection {
    socket: OwnedFd,
    to_gateway: PendingBytes,
    to_client: PendingBytes,
    /// The client sends no more.
    client_ended: bool,
    /// The gateway sends no more.
    gateway_ended: bool,
}

impl Connection {
    fn pass_on(&mut self, input: &OwnedFd, output: &OwnedFd) -> ControlFlow<()> {
        if self.to_gateway.is_empty() && !self.client_ended {
            match self.to_gateway.fill(|held| read(input, held)) {
                Ok(0) => {
                    self.client_ended = true;
                    let _ = shutdown(&self.socket, Shutdown::Write);
                }
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return ControlFlow::Break(()),
            }
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if self.to_gateway.drain(|held| send(&self.socket, held, flags)).is_err() {
            // The gateway reads no more; it may still send.
            self.to_gateway = PendingBytes::new();
            self.client_ended = true;
        }
        if self.to_client.is_empty() && !self.gateway_ended {
            let socket = &self.socket;
            match self.to_client.fill(|held| Ok(recv(socket, held, RecvFlags::DONTWAIT)?.0)) {
                Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(0) | Err(_) => {
                    self.gateway_ended = true;
                    self.to_client.hold(&[END]);
                }
            }
        }
        match self.to_client.drain(|held| write(output, held)) {
            Err(_) => ControlFlow::Break(()),
            Ok(()) if self.gateway_ended && self.to_client.is_empty() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
        }
    }
}

/// Bytes that were read and not written yet.
struct PendingBytes {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl PendingBytes {
    fn new() -> Self {
        Self { bytes: vec![0; BUFFER_SIZE], range: 0..0 }
    }

    fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Sets the buffer to `words`, if it is empty.
    fn hold(&mut self, words: &[u8]) {
        if let Some(start) = self.bytes.get_mut(..words.len()) {
            start.copy_from_slice(words);
            self.range = 0..words.len();
        }
    }

    /// Reads once, if the buffer is empty.
    fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let got = read(&mut self.bytes)?;
        self.range = 0..got;
        Ok(got)
    }

    /// Writes once, unless the buffer is empty.
    fn drain(&mut self, write: impl FnOnce(&[u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        let held = self.bytes.get(self.range.clone()).unwrap_or_default();
        if held.is_empty() {
            return Ok(());
        }
        match write(held) {
            Ok(written) => self.range.start += written,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        path::Path,
        thread,
    };

    use rustix::fs::{Mode, OFlags, fcntl_setfl, open};

    use super::*;
    use crate::named_pipes::{ANNOUNCEMENTS, input, output};

    /// A relay in a thread, and the test's ends of its pipes.
    struct Rig {
        pipes: std::path::PathBuf,
        gateway: Channel,
        _directory: Directory,
    }

    /// A client of slot 0.
    struct Client {
        input: File,
        output: File,
    }

    impl Rig {
        fn new() -> Self {
            let pipes = NamedPipes::make(None).unwrap();
            let path = pipes.path().to_owned();
            let slots = pipes.slots.into_iter();
            let slots = slots.map(|(input, output)| Slot { input, output, connection: None });
            let (gateway, theirs) = Channel::pair().unwrap();
            let announcements = Announcements { pipe: pipes.announcements, buffered: Vec::new() };
            let relay = Pipes { gateway: theirs, announcements, slots: slots.collect() };
            thread::spawn(move || relay.relay().unwrap());
            Self { pipes: path, gateway, _directory: pipes.directory }
        }

        fn open(&self) -> Client {
            Client {
                output: opened(&self.pipes.join(output(0)), OFlags::RDONLY),
                input: opened(&self.pipes.join(input(0)), OFlags::WRONLY),
            }
        }

        /// Announces a connection on slot 0; returns the gateway's end.
        fn ring(&self, nonce: &str) -> File {
            let mut announcements = opened(&self.pipes.join(ANNOUNCEMENTS), OFlags::WRONLY);
            announcements.write_all(format!("\n0 {nonce}\n").as_bytes()).unwrap();
            let ((), mut sockets) = self.gateway.receive().unwrap();
            sockets.remove(0).into()
        }
    }

    fn opened(path: &Path, flags: OFlags) -> File {
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = open(path, flags, Mode::empty()).unwrap();
        fcntl_setfl(&pipe, OFlags::empty()).unwrap();
        pipe.into()
    }

    fn nonce(digit: u8) -> String {
        char::from(digit).to_string().repeat(NONCE)
    }

    fn read_to(file: &mut File, end: &str) -> String {
        let (mut buffered, mut byte) = (Vec::new(), [0]);
        while !buffered.ends_with(end.as_bytes()) {
            file.read_exact(&mut byte).unwrap();
            buffered.extend(byte);
        }
        String::from_utf8(buffered).unwrap()
    }

    #[test]
    fn nothing_of_a_client_that_is_gone_reaches_the_gateway_or_follows_the_nonce() {
        let rig = Rig::new();
        let mut gone = rig.open();
        let mut gateway = rig.ring(&nonce(b'a'));
        read_to(&mut gone.output, &nonce(b'a'));
        gateway.write_all(b"half a li").unwrap();
        read_to(&mut gone.output, "half");
        gone.input.write_all(b"never heard").unwrap();
        let mut next = rig.open();
        drop(gone);
        next.input.write_all(b"of nobody").unwrap();
        let mut second = rig.ring(&nonce(b'b'));
        let before = read_to(&mut next.output, &format!("\n{}\n", nonce(b'b')));
        assert!(before.starts_with(" a li"), "{before:?}");
        // The first connection was closed, and its bytes in the pipe were discarded.
        gateway.read_to_end(&mut Vec::new()).unwrap();
        next.input.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        second.read_exact(&mut heard).unwrap();
        assert_eq!(heard, *b"hello");
        second.write_all(b"bye").unwrap();
        drop(second);
        assert_eq!(read_to(&mut next.output, "\0"), "bye\0");
    }

    #[test]
    fn a_client_that_is_gone_is_hung_up_on_though_another_holds_its_pipe() {
        let rig = Rig::new();
        let Client { input, output } = rig.open();
        let mut gateway = rig.ring(&nonce(b'a'));
        drop(output);
        assert_eq!(gateway.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(gateway.write_all(b"x").is_err());
        drop(input);
    }

    #[test]
    fn a_client_that_has_said_all_still_hears() {
        let rig = Rig::new();
        let Client { mut input, mut output } = rig.open();
        let mut gateway = rig.ring(&nonce(b'a'));
        input.write_all(&[b'x'; 200_000]).unwrap();
        drop(input);
        let mut heard = Vec::new();
        gateway.read_to_end(&mut heard).unwrap();
        assert_eq!(heard.len(), 200_000);
        gateway.write_all(b"answer").unwrap();
        drop(gateway);
        assert!(read_to(&mut output, "\0").ends_with("\nanswer\0"));
    }

    #[test]
    fn only_messages_are_taken_for_messages() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        let mut announcements = Announcements { pipe: pipe.into(), buffered: Vec::new() };
        let (a, b) = (nonce(b'a'), nonce(b'b'));
        writer.write_all(&[b'x'; 3 * ANNOUNCEMENT_BUFFER_SIZE]).unwrap();
        for _ in 0..3 {
            assert!(
                announcements.read().unwrap().is_empty()
                    && announcements.buffered.len() < MAX_ANNOUNCEMENT
            );
        }
        let buffered =
            format!("\n3 {a}\n4  {a}\n-1 {a}\n5 {a}0\n6 {}\n\u{e4}\n7 {b}\n8 ", nonce(b'g'));
        writer.write_all(buffered.as_bytes()).unwrap();
        assert_eq!(announcements.read().unwrap(), [(3, a), (7, b.clone())]);
        writer.write_all(format!("{b}\n").as_bytes()).unwrap();
        assert_eq!(announcements.read().unwrap(), [(8, b)]);
    }
}
