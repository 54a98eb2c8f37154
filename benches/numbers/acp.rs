//! Reads of 4 KiB over ACP: a confined agent under the real `portcullis run`
//! asks, and sends each request line through a plain echo process too. Once as
//! the scheduler places them, and once all on one processor.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gateway's back")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::{
    Outcome,
    measure::{Bound, Series, report},
    world::World,
};

const READS: usize = 5000;

pub(crate) fn run() -> Outcome<()> {
    compare("acp")?;
    // The scheduler's choice of processors determines the time to wake a
    // process. The echo is mostly on its client's, the gateway process on
    // another one.
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).ok_or("no processor")?);
    sched_setaffinity(None, &one)?;
    let outcome = compare("acp, one CPU");
    sched_setaffinity(None, &before)?;
    outcome
}

fn compare(name: &str) -> Outcome<()> {
    let world = World::new()?;
    let mut run = Run::start(&world, READS)?;
    let prompt = json!({"sessionId": "s1", "prompt": [{"type": "text", "text": "go"}]});
    let reply = run.ask("session/prompt", &prompt)?;
    run.end()?;
    let times = |name: &str| -> Outcome<Series> {
        let values = reply.pointer(&format!("/result/_meta/{name}")).and_then(Value::as_array);
        let values = values.ok_or_else(|| format!("the agent answered {reply}"))?;
        Ok(Series::new(values.iter().filter_map(Value::as_f64).collect()))
    };
    let (gateway, echo) = (times("gateway")?, times("echo")?);
    let more = (gateway.median() - echo.median()) / 1e3;
    let details = format!(
        "gateway {:.1} µs ({}), echo {:.1} µs ({}), ratio {:.1}",
        gateway.median() / 1e3,
        gateway.quartiles(1e3),
        echo.median() / 1e3,
        echo.quartiles(1e3),
        gateway.median() / echo.median()
    );
    report(name, more, "µs over a plain echo", Bound::AtMost(60.0), &details);
    Ok(())
}

/// `portcullis run` with our agent, and us as its editor.
pub(crate) struct Run {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    asked: u64,
}

impl Run {
    /// Starts it and opens the session `s1`.
    pub(crate) fn start(world: &World, reads: usize) -> Outcome<Self> {
        // The agent sees what it is given alone: a copy of this program.
        let programs = world.base().join("programs");
        std::fs::create_dir_all(&programs)?;
        let program = programs.join("agent");
        std::fs::copy(std::env::current_exe()?, &program)?;
        let mut child = world
            .command(&["run", "--source", "disk", "--agent-read"])
            .arg(&programs)
            .arg("--")
            .arg(&program)
            .arg("agent")
            .arg(world.root())
            .arg(reads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        let mut run = Self { child, input: Some(input), output: BufReader::new(output), asked: 0 };
        run.ask("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))?;
        run.ask("session/new", &json!({"cwd": world.root(), "mcpServers": []}))?;
        Ok(run)
    }

    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Outcome<Value> {
        self.asked += 1;
        let request =
            json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        let input = self.input.as_mut().ok_or("hung up")?;
        input.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("`portcullis run` ended".into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Hangs up and waits.
    pub(crate) fn end(mut self) -> Outcome<()> {
        self.input = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("`portcullis run`: {status}").into()) }
    }
}
