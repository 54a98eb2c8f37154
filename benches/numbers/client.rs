//! A client of an MCP server over stdio, as small as can be, so that what is
//! measured is the server.
#![expect(clippy::disallowed_methods, reason = "reads what the system says of the server")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{Outcome, memory};

/// A running server that was greeted.
pub(crate) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    asked: u64,
    line: String,
}

impl Server {
    pub(crate) fn start(mut command: Command) -> Outcome<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        // The capacity of a pipe, so that no server waits for the client.
        let output = BufReader::with_capacity(64 << 10, output);
        let mut server = Self { child, input, output, asked: 0, line: String::new() };
        let hello = json!({
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": { "name": "numbers", "version": "1" },
            },
        });
        server.send(&format!("{hello}\n"))?;
        server.receive()?;
        server.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(server)
    }

    pub(crate) fn request(&mut self, tool: &str, arguments: &Value) -> String {
        self.asked += 1;
        let params = json!({ "name": tool, "arguments": arguments });
        let request =
            json!({ "jsonrpc": "2.0", "id": self.asked, "method": "tools/call", "params": params });
        format!("{request}\n")
    }

    pub(crate) fn send(&mut self, line: &str) -> Outcome<()> {
        Ok(self.input.write_all(line.as_bytes())?)
    }

    /// Returns the next line that is a reply.
    pub(crate) fn receive(&mut self) -> Outcome<&str> {
        loop {
            self.line.clear();
            if self.output.read_line(&mut self.line)? == 0 {
                return Err("the server ended".into());
            }
            // The start of the line shows its kind; the rest is not the
            // server's time.
            let start = self.line.get(..256).unwrap_or(&self.line);
            if !start.contains("\"method\":") || start.contains("\"result\":") {
                return Ok(&self.line);
            }
        }
    }

    /// Resident memory in MiB.
    pub(crate) fn resident(&self) -> Outcome<f64> {
        memory::resident(self.child.id())
    }

    /// Returns the processor time of its living threads, in nanoseconds: other
    /// work on the machine hardly changes that.
    pub(crate) fn busy(&self) -> Outcome<f64> {
        let mut total = 0.0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end meanwhile.
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
                continue;
            };
            total += text.split(' ').next().unwrap_or_default().parse::<f64>()?;
        }
        Ok(total)
    }

    /// Processor time of all its threads, in nanoseconds and in steps of ten
    /// milliseconds.
    pub(crate) fn spent(&self) -> Outcome<f64> {
        ticks(&format!("/proc/{}/stat", self.child.id()), 11)
    }

    pub(crate) fn end(self) -> Outcome<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait()?;
        Ok(())
    }
}

/// Processor time of the children that this process has waited for, in
/// nanoseconds and in steps of ten milliseconds.
pub(crate) fn children_spent() -> Outcome<f64> {
    ticks("/proc/self/stat", 13)
}

/// Two times of such a file, in user and in system mode: the first one is that
/// many fields behind the command's name (proc(5)), in hundredths of a second.
fn ticks(file: &str, first: usize) -> Outcome<f64> {
    let stat = std::fs::read_to_string(file)?;
    let (_, fields) = stat.rsplit_once(')').ok_or("an odd stat file")?;
    let times = fields.split_whitespace().skip(first).take(2);
    Ok(times.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * 1e7)
}

/// Fails unless a reply has at least so many bytes and is no refusal.
pub(crate) fn check(reply: &str, least: usize) -> Outcome<()> {
    // Some write a space behind the colon.
    let refused = reply.contains("\"isError\":true") || reply.contains("\"isError\": true");
    if reply.len() < least || refused || reply.contains("\"error\":{") {
        return Err(format!("a wrong reply: {reply:.300}").into());
    }
    Ok(())
}
