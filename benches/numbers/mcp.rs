//! MCP over stdio, beside other servers in the same rounds: reads of 4 KiB one
//! by one and 16 in flight, a list of a thousand entries, start to first reply,
//! and memory afterwards.
//!
//! `PORTCULLIS_MCP_PEERS` names the others, as `NAME=COMMAND {root}` separated
//! by `;`, with the tools of the reference filesystem server. Without it only
//! our own times are printed.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gate's back")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    Outcome,
    measure::{Series, nanoseconds},
    world::{CONTENT, FILES, World, file},
};

/// Rounds in which all take turns, and reads in each.
const ROUNDS: usize = 20;
const READS: usize = 200;
/// Requests in flight.
const WINDOW: usize = 16;
/// Starts that are timed.
const STARTS: usize = 10;

/// No rules about content, as the others have none.
pub(crate) const PLAIN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
    write = [\"**\"]\nremove = [\"**\"]\n";

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let many = world.root().join("many");
    std::fs::create_dir_all(&many)?;
    for number in 0..1000 {
        std::fs::write(many.join(format!("entry-{number:04}.txt")), "x")?;
    }
    let plain = world.base().join("plain.toml");
    std::fs::write(&plain, PLAIN)?;
    let plain = plain.to_string_lossy().into_owned();
    let root = world.root().to_string_lossy().into_owned();

    let ours = |policy: &str| {
        let mut command = world.command(&["mcp", "--tools", "reference"]);
        command.args(["--policy", policy]);
        command
    };
    let mut contenders: Vec<(String, Box<dyn Fn() -> Command + '_>)> = vec![
        ("portcullis".into(), Box::new(|| ours(&plain))),
        ("with 49 rules".into(), Box::new(|| ours("default"))),
    ];
    let peers = std::env::var("PORTCULLIS_MCP_PEERS").unwrap_or_default();
    for peer in peers.split(';').filter(|peer| !peer.trim().is_empty()) {
        let (name, command) = peer.split_once('=').ok_or("a peer is NAME=COMMAND")?;
        let words: Vec<String> =
            command.split_whitespace().map(|word| word.replace("{root}", &root)).collect();
        contenders.push((
            name.trim().to_owned(),
            Box::new(move || {
                let mut command = Command::new(words.first().map_or("", String::as_str));
                command.args(words.iter().skip(1));
                command
            }),
        ));
    }

    let mut results = Vec::new();
    for (name, command) in &contenders {
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            let begun = Instant::now();
            let server = Server::start(command())?;
            starts.push(nanoseconds(begun.elapsed()));
            server.end()?;
        }
        let server = Server::start(command())?;
        results.push(Contender {
            name: name.clone(),
            starts,
            server: Some(server),
            ..Contender::default()
        });
    }
    for round in 0..ROUNDS {
        let count = results.len();
        for turn in 0..count {
            // Whoever goes first goes last in the next round.
            let index = if round % 2 == 0 { turn } else { count - 1 - turn };
            let Some(contender) = results.get_mut(index) else { continue };
            contender.round(&root)?;
        }
    }
    print(results)
}

/// One server and its times in nanoseconds.
#[derive(Default)]
struct Contender {
    name: String,
    server: Option<Server>,
    starts: Vec<f64>,
    reads: Vec<f64>,
    /// A read of 16 in flight, each round one value.
    windows: Vec<f64>,
    lists: Vec<f64>,
}

impl Contender {
    fn round(&mut self, root: &str) -> Outcome<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let read = |number: usize| json!({ "path": format!("{root}/{}", file(number % FILES)) });
        for number in 0..READS {
            let request = server.request("read_text_file", &read(number));
            let begun = Instant::now();
            server.send(&request)?;
            let reply = server.receive()?;
            self.reads.push(nanoseconds(begun.elapsed()));
            check(&reply, CONTENT)?;
        }
        let requests: Vec<_> =
            (0..READS).map(|number| server.request("read_text_file", &read(number))).collect();
        let begun = Instant::now();
        let mut sent = requests.iter();
        for request in sent.by_ref().take(WINDOW) {
            server.send(request)?;
        }
        for _ in 0..READS {
            let reply = server.receive()?;
            if let Some(request) = sent.next() {
                server.send(request)?;
            }
            check(&reply, CONTENT)?;
        }
        self.windows.push(nanoseconds(begun.elapsed()) / READS as f64);
        for _ in 0..10 {
            let list = json!({ "path": format!("{root}/many") });
            let request = server.request("list_directory", &list);
            let begun = Instant::now();
            server.send(&request)?;
            let reply = server.receive()?;
            self.lists.push(nanoseconds(begun.elapsed()));
            check(&reply, 1000 * "entry-0000.txt".len())?;
        }
        Ok(())
    }
}

fn print(results: Vec<Contender>) -> Outcome<()> {
    println!(
        "mcp        {:<16} {:>10} {:>10} {:>14} {:>12} {:>10} {:>10}",
        "", "read p50", "read p99", "16 in flight", "list 1,000", "start", "resident"
    );
    for contender in results {
        let (reads, windows) = (Series::new(contender.reads), Series::new(contender.windows));
        let (lists, starts) = (Series::new(contender.lists), Series::new(contender.starts));
        let memory = match contender.server {
            Some(server) => {
                let memory = server.resident()?;
                server.end()?;
                memory
            }
            None => f64::NAN,
        };
        println!(
            "mcp        {:<16} {:>7.0} µs {:>7.0} µs {:>10.0} µs/1 {:>9.0} µs {:>7.1} ms {:>6.1} MiB",
            contender.name,
            reads.median() / 1e3,
            reads.at(99, 100) / 1e3,
            windows.median() / 1e3,
            lists.median() / 1e3,
            starts.median() / 1e6,
            memory,
        );
    }
    Ok(())
}

fn check(reply: &str, least: usize) -> Outcome<()> {
    if reply.len() < least || reply.contains("\"isError\":true") {
        let start: String = reply.chars().take(300).collect();
        return Err(format!("a wrong reply: {start}").into());
    }
    Ok(())
}

/// A running server that was greeted.
pub(crate) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    asked: u64,
}

impl Server {
    pub(crate) fn start(mut command: Command) -> Outcome<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        let mut server = Self { child, input, output: BufReader::new(output), asked: 0 };
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

    /// The next line that answers something.
    pub(crate) fn receive(&mut self) -> Outcome<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("the server ended".into());
            }
            if !line.contains("\"method\":") || line.contains("\"result\":") {
                return Ok(line);
            }
        }
    }

    /// Resident memory in MiB.
    fn resident(&self) -> Outcome<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib / 1024.0)
    }

    pub(crate) fn end(self) -> Outcome<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait()?;
        Ok(())
    }
}
