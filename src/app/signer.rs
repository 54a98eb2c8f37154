//! Signatures for a gateway that must not have the key: it asks the broker, which
//! runs the operator's command, and only for the text of a checkpoint of this log. A
//! command that fails, hangs or prints nonsense costs a checkpoint, never a request.

use std::{
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use portcullis_audit::{MAX_NOTE, Note, PublicKey};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::{
    failure::{Context as _, Failure},
    process::check_children,
    trusted_paths,
};
use crate::{
    config::audit::Audit, gateway::Signer, model::Escaped, operator_files::canonicalize,
    sandbox::Channel,
};

/// Timeout of the command. Less than the broker waits for a gateway that is about to
/// end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(6);
/// Timeout of the gateway for the broker's reply: slightly longer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(7);

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    /// Repeated in the reply, so that a late reply does not count for the next
    /// request.
    number: u64,
    text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct SignerReply {
    number: u64,
    lines: Result<String, String>,
}

/// The broker, as the gateway sees it.
pub(crate) struct RemoteSigner {
    line: Mutex<SignerChannel>,
    public: PublicKey,
}

struct SignerChannel {
    channel: Channel,
    asked: u64,
    /// Set after a timeout; requests before this time fail at once.
    silent: Option<Instant>,
}

impl RemoteSigner {
    pub(crate) fn new(channel: OwnedFd, public: PublicKey) -> Self {
        let line = SignerChannel { channel: Channel::from(channel), asked: 0, silent: None };
        Self { line: Mutex::new(line), public }
    }
}

impl Signer for RemoteSigner {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        // One request at a time; it has its reply before the next.
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.silent.is_some_and(|until| Instant::now() < until) {
            return Err("it did not answer a moment ago".to_owned());
        }
        let start = Instant::now();
        let answer = line.ask(text);
        line.silent =
            (start.elapsed() >= COMMAND_TIMEOUT).then(|| Instant::now() + COMMAND_TIMEOUT);
        answer
    }
}

impl SignerChannel {
    fn ask(&mut self, text: &str) -> Result<String, String> {
        self.asked += 1;
        let ask = Ask { number: self.asked, text: text.to_owned() };
        self.channel.send(&ask, &[]).map_err(|error| error.to_string())?;
        let end = Instant::now() + REPLY_TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.channel.receive_within::<SignerReply>(left);
            let (SignerReply { number, lines }, _) = heard.map_err(|error| error.to_string())?;
            if number == self.asked {
                return lines;
            }
        }
    }
}

/// Replies to a gateway while it lives, on a thread of its own.
pub(crate) fn serve(channel: Channel, program: Program) -> Result<(), Failure> {
    let origin = format!("{}\n", program.public.name());
    let answer = move || {
        let mut failing = false;
        // Ends when the gateway has ended.
        while let Ok((Ask { number, text }, _)) = channel.receive::<Ask>() {
            let lines = if text.starts_with(&origin) && text.lines().count() == 3 {
                program.run(&text).and_then(|lines| signs(&program.public, &text, lines))
            } else {
                Err("that is no checkpoint of this log".to_owned())
            };
            if let Err(reason) = &lines
                && !failing
            {
                errln!(
                    "portcullis: warning: the signer signed no checkpoint of the audit log: {}",
                    Escaped(reason)
                );
            }
            failing = lines.is_err();
            if channel.send(&SignerReply { number, lines }, &[]).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("signer".to_owned())
        .spawn(answer)
        .map(drop)
        .or_fail("cannot start a thread")
}

/// Returns the lines, if they sign the text.
fn signs(public: &PublicKey, text: &str, lines: String) -> Result<String, String> {
    Note::assemble(text, &lines)
        .and_then(|note| note.verify(std::slice::from_ref(public)).map(drop))
        .map_err(|error| format!("what it answered does not sign: {error}"))?;
    Ok(lines)
}

/// A program as signer: it gets the note's text on its standard input and prints
/// signature lines, or the complete note.
pub(crate) struct Program {
    command: Vec<String>,
    public: PublicKey,
    /// The variables that it does not get: those of credentials.
    without: Vec<String>,
    /// Its files, and those to which they led when they were compared with the workspaces.
    files: Vec<(PathBuf, Option<PathBuf>)>,
}

impl Signer for Program {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        self.run(text)
    }
}

impl Program {
    /// Returns the signer of `audit`, whose log has the key `public`.
    ///
    /// # Errors
    /// When a file of it cannot be read.
    pub(crate) fn new(
        audit: &Audit,
        public: PublicKey,
        without: Vec<String>,
    ) -> Result<Self, Failure> {
        let files = trusted_paths::signer(audit)?.into_iter();
        let files = files.map(|(_, path)| (path.clone(), canonicalize(&path).ok())).collect();
        Ok(Self { command: audit.signer.clone(), public, without, files })
    }

    /// Refuses a file that leads elsewhere now: an agent may have made what is there.
    fn check_files(&self) -> Result<(), String> {
        let moved = self.files.iter().find(|(path, led)| canonicalize(path).ok() != *led);
        moved.map_or(Ok(()), |(path, _)| {
            Err(format!(
                "`{}` leads elsewhere than when the gateway started: start it again",
                path.display()
            ))
        })
    }

    /// Runs the signer; kills it with all of its processes after a timeout.
    fn run(&self, text: &str) -> Result<String, String> {
        self.check_files()?;
        let (program, arguments) = self.command.split_first().ok_or("no signer is configured")?;
        check_children().map_err(|failure| failure.message().to_owned())?;
        let failed = |error: io::Error| format!("`{program}`: {error}");
        let mut command = Command::new(program);
        for name in &self.without {
            command.env_remove(name);
        }
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // This process's current directory may be the workspace.
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let answered = converse(&mut child, text);
        // Processes that it left must not hold anything open.
        let _gone = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let status = child.wait().map_err(failed)?;
        let Some(answer) = answered.map_err(failed)? else {
            return Err(format!(
                "`{program}` did not answer within {} s",
                COMMAND_TIMEOUT.as_secs()
            ));
        };
        if !status.success() {
            return Err(format!("`{program}` failed: {status}"));
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        // The complete note is accepted as well as its signatures.
        Ok(answer.strip_prefix(&format!("{text}\n")).unwrap_or(&answer).to_owned())
    }
}

/// Returns the program's output; `None` after a timeout.
fn converse(child: &mut Child, text: &str) -> io::Result<Option<Vec<u8>>> {
    let end = Instant::now() + COMMAND_TIMEOUT;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    // The text fits in a pipe. A program that does not read all of it may still reply.
    let _broken_pipe = input.write_all(text.as_bytes());
    drop(input);
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().name("signer-output".to_owned()).spawn(move || {
        let mut answer = Vec::new();
        let read = output.take(MAX_NOTE as u64 + 1).read_to_end(&mut answer);
        let _nobody_waits = sender.send(read.map(|_bytes| answer));
    })?;
    let Ok(answer) = receiver.recv_timeout(COMMAND_TIMEOUT) else { return Ok(None) };
    let answer = answer?;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(answer))
}
