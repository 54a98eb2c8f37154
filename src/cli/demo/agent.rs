//! The badly behaved agent: a program that speaks ACP, executed in the sandbox like
//! any other agent.
//!
//! It knows the paths of workspace, state directory and policy, tries everything in
//! [`ATTEMPTS`] at the first prompt, and reports the replies. It does not judge, and
//! its reports are not trusted: the demo compares them with log and disk.

use std::{
    io::{self, BufRead, Write},
    process::{Command, ExitCode, Stdio},
};

use serde_json::{Value, json};

use super::attempts::{ATTEMPTS, Action, Attempt, EDITED};

/// The hidden first argument that makes this process the agent.
pub(super) const COMMAND: &str = "demo-agent";

/// The locations, in the order of the command line.
struct Targets {
    workspace: String,
    state: String,
    policy: String,
}

/// Runs the agent, if this process was started as one.
pub(crate) fn run_if_agent() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != COMMAND {
        return None;
    }
    let targets = Targets {
        workspace: arguments.next()?,
        state: arguments.next()?,
        policy: arguments.next()?,
    };
    let mut agent = DemoAgent {
        targets,
        input: io::stdin().lock(),
        output: io::stdout().lock(),
        next: 0,
        session: "demo".to_owned(),
    };
    Some(match agent.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("the agent gives up: {error}");
            ExitCode::FAILURE
        }
    })
}

struct DemoAgent<I, O> {
    targets: Targets,
    input: I,
    output: O,
    next: u64,
    session: String,
}

impl<I: BufRead, O: Write> DemoAgent<I, O> {
    fn serve(&mut self) -> io::Result<()> {
        while let Some(message) = self.hear()? {
            let id = message.get("id").cloned().unwrap_or_default();
            let result = match message.get("method").and_then(Value::as_str) {
                Some("initialize") => json!({ "protocolVersion": 1, "agentCapabilities": {} }),
                Some("session/new") => json!({ "sessionId": self.session }),
                Some("session/prompt") => {
                    self.misbehave()?;
                    json!({ "stopReason": "end_turn" })
                }
                _ => continue,
            };
            self.say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
        }
        Ok(())
    }

    fn misbehave(&mut self) -> io::Result<()> {
        for attempt in ATTEMPTS {
            let got = match attempt.action {
                Action::Read => self.ask("fs/read_text_file", &attempt, json!({}))?,
                Action::Write => {
                    self.ask("fs/write_text_file", &attempt, json!({ "content": EDITED }))?
                }
                Action::Shell(script) => self.shell(script),
                Action::Remove => continue,
            };
            let update = json!({
                "sessionUpdate": "tool_call",
                "toolCallId": attempt.id,
                "title": format!("{} {}", attempt.operation(), attempt.path),
                "rawOutput": got,
            });
            let params = json!({ "sessionId": self.session, "update": update });
            self.say(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))?;
        }
        Ok(())
    }

    /// Sends an `fs/*` request about a file, and returns the reply unchanged.
    fn ask(&mut self, method: &str, attempt: &Attempt, mut params: Value) -> io::Result<Value> {
        self.next += 1;
        let id = self.next;
        if let Some(params) = params.as_object_mut() {
            let path = format!("{}/{}", self.targets.workspace, attempt.path);
            params.insert("sessionId".to_owned(), self.session.clone().into());
            params.insert("path".to_owned(), path.into());
        }
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = self.hear()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if message.get("method").is_none() && message.get("id") == Some(&id.into()) {
                return Ok(message);
            }
        }
    }

    fn shell(&self, script: &str) -> Value {
        let run = Command::new("/bin/sh")
            .args(["-c", script])
            .env("LC_ALL", "C")
            .env("W", &self.targets.workspace)
            .env("S", &self.targets.state)
            .env("P", &self.targets.policy)
            .stdin(Stdio::null())
            .output();
        match run {
            Ok(done) => json!({
                "code": done.status.code(),
                "stdout": String::from_utf8_lossy(&done.stdout),
                "stderr": String::from_utf8_lossy(&done.stderr),
            }),
            Err(error) => json!({ "noShell": error.to_string() }),
        }
    }

    fn hear(&mut self) -> io::Result<Option<Value>> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    fn say(&mut self, message: &Value) -> io::Result<()> {
        writeln!(self.output, "{message}")?;
        self.output.flush()
    }
}
