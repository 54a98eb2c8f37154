//! The agent that the ACP benchmark starts in its sandbox, and the plain echo
//! that it compares the gateway with. Both are this program, started again.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{Outcome, world};

/// Requests before the first that counts.
const WARM_UP: usize = 200;

/// Runs the part that `arguments` name, if they name one.
pub(crate) fn part(arguments: &[String]) -> Option<Outcome<()>> {
    match arguments {
        [part] if part == "echo" => Some(echo()),
        [part, root, count] if part == "agent" => Some(agent(root, count)),
        _ => None,
    }
}

/// Gives every line back.
fn echo() -> Outcome<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        output.write_all(&line)?;
        line.clear();
    }
    Ok(())
}

/// Answers the editor as an ACP agent; a prompt makes it read `count` files
/// through the gateway, each followed by the same line through the echo. The
/// times in nanoseconds are in the reply.
fn agent(root: &str, count: &str) -> Outcome<()> {
    let count: usize = count.parse()?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let message: Value = serde_json::from_str(&line)?;
        line.clear();
        let result = match message.get("method").and_then(Value::as_str) {
            Some("initialize") => json!({"protocolVersion": 1, "agentCapabilities": {}}),
            Some("session/new") => json!({"sessionId": "s1"}),
            Some("session/prompt") => {
                let (gateway, echo) = measure(root, count, &mut input, &mut output)?;
                json!({"stopReason": "end_turn", "_meta": {"gateway": gateway, "echo": echo}})
            }
            _ => continue,
        };
        let reply = json!({"jsonrpc": "2.0", "id": message.get("id"), "result": result});
        output.write_all(format!("{reply}\n").as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

fn measure(
    root: &str,
    count: usize,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Outcome<(Vec<u64>, Vec<u64>)> {
    let program = std::env::args().next().ok_or("no program name")?;
    let mut child =
        Command::new(program).arg("echo").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut to_echo, from_echo) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
    let mut from_echo = BufReader::new(from_echo);
    let (mut gateway, mut echo) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for number in 0..WARM_UP + count {
        let path = format!("{root}/{}", world::file(number % world::FILES));
        let params = json!({"sessionId": "s1", "path": path});
        let request = json!({"jsonrpc": "2.0", "id": number, "method": "fs/read_text_file", "params": params});
        let line = format!("{request}\n");
        let (one, answer) = exchange(&line, output, input)?;
        let (other, _line) = exchange(&line, &mut to_echo, &mut from_echo)?;
        // A denied or failed read would be quicker.
        if !answer.contains("\"result\"") || answer.len() < world::CONTENT {
            return Err(format!("the gateway answered: {answer}").into());
        }
        if number >= WARM_UP {
            gateway.push(one);
            echo.push(other);
        }
    }
    drop(to_echo);
    child.wait()?;
    Ok((gateway, echo))
}

/// Sends a line and waits for the next; how long that took.
fn exchange(
    line: &str,
    output: &mut impl Write,
    input: &mut impl BufRead,
) -> Outcome<(u64, String)> {
    let mut answer = String::with_capacity(8192);
    let start = Instant::now();
    output.write_all(line.as_bytes())?;
    output.flush()?;
    input.read_line(&mut answer)?;
    Ok((u64::try_from(start.elapsed().as_nanos())?, answer))
}
