//! The demo as an editor: starts `portcullis run` as an editor starts its agent,
//! speaks ACP with it over pipes, and collects the agent's messages.
//!
//! It serves no files and grants nothing itself.

use std::{
    ffi::OsString,
    io::{BufRead as _, BufReader, Read, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    agent,
    directory::{AGENT, DemoDirectory},
    reply_checker::at,
};
use crate::app::failure::{Context as _, Failure};

/// Longer than any step takes on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a command that runs this program with the demo's paths only.
pub(super) fn portcullis(directory: &DemoDirectory, policy: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    for name in ["WORKSPACE", "STATE", "POLICY", "AGENT", "LOG"] {
        command.env_remove(format!("PORTCULLIS_{name}"));
    }
    command
        .env("PORTCULLIS_WORKSPACE", directory.workspace())
        .env("PORTCULLIS_STATE", directory.state())
        .env("PORTCULLIS_POLICY", policy)
        .env("PORTCULLIS_AGENT", AGENT)
        .env("XDG_DATA_HOME", directory.data())
        .stdin(Stdio::null());
    command
}

/// A running gateway with the agent behind it. Dropping it stops both.
pub(super) struct Editor {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    errors: Option<JoinHandle<String>>,
    next: u64,
}

impl Editor {
    /// Starts `portcullis run` with `options`.
    pub(super) fn start(
        directory: &DemoDirectory,
        policy: &str,
        program: &Path,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let grant = if program.starts_with(&directory.root) {
            program.parent().unwrap_or(program)
        } else {
            program
        };
        let words: [OsString; 7] = [
            "--agent-read".into(),
            grant.into(),
            "--".into(),
            program.into(),
            agent::COMMAND.into(),
            directory.workspace().into(),
            directory.state().into(),
        ];
        let mut child = portcullis(directory, policy)
            .args(["run", "--no-mount"])
            .args(options)
            .args(words)
            .arg(directory.policy())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .or_fail("cannot start `portcullis run`")?;
        let input = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let Ok(line) = line else { return };
                    let message = serde_json::from_str(&line).unwrap_or(Value::Null);
                    if sender.send(message).is_err() {
                        return;
                    }
                }
            });
        }
        let errors = child.stderr.take().map(|mut stderr| {
            thread::spawn(move || {
                let mut text = String::new();
                // The text up to an error is used.
                let _ = stderr.read_to_string(&mut text);
                text
            })
        });
        Ok(Self { child, input, lines, errors, next: 0 })
    }

    /// Opens a session and runs one prompt turn; `each` gets every reported tool
    /// call.
    pub(super) fn converse(
        &mut self,
        workspace: &Path,
        mut each: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let client = json!({ "name": "portcullis-demo", "version": env!("CARGO_PKG_VERSION") });
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {}, "clientInfo": client });
        self.call("initialize", &hello, &mut each)?;
        let params = json!({ "cwd": workspace, "mcpServers": [] });
        let session = self.call("session/new", &params, &mut each)?;
        let prompt = json!([{ "type": "text", "text": "tidy this project up, please" }]);
        let params = json!({ "sessionId": at(&session, "/sessionId"), "prompt": prompt });
        self.call("session/prompt", &params, &mut each)?;
        Ok(())
    }

    /// Sends a request; `each` gets the messages before its reply.
    fn call(
        &mut self,
        method: &str,
        params: &Value,
        each: &mut impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        let id = self.next;
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if let Some(input) = &mut self.input {
            // An ended gateway reports the reason on stderr; see below.
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
        loop {
            let message = match self.lines.recv_timeout(STEP_TIMEOUT) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::new(format_args!("`{method}` was not answered in time")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone(method)),
            };
            if at(&message, "/method") == "session/update" {
                each(at(&message, "/params/update"))?;
            } else if at(&message, "/id") == id && at(&message, "/method").is_null() {
                if at(&message, "/error").is_null() {
                    return Ok(at(&message, "/result").clone());
                }
                let error = at(&message, "/error/message");
                return Err(Failure::new(format_args!("the agent answered `{method}`: {error}")));
            }
        }
    }

    /// Returns the failure of a gateway that ended early.
    fn gone(&mut self, method: &str) -> Failure {
        let output = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let output = if output.is_empty() { "no output" } else { output.trim_end() };
        Failure::new(format_args!(
            "`portcullis run` ended before it answered `{method}`:\n{output}"
        ))
    }

    /// Closes the connection and waits until gateway and agent have ended.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.input = None;
        let end = Instant::now() + STEP_TIMEOUT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().or_fail("cannot wait for the gateway")? {
                return match status.code() {
                    Some(0) => Ok(()),
                    _ => Err(self.gone("the end of its input")),
                };
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(Failure::new("`portcullis run` does not end"))
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        // Fails if it was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
