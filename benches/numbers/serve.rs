//! A client that floods a service, beside eight that do not: how much longer
//! these wait for a read of 4 KiB than without it. All speak MCP over HTTP,
//! each in a session of its own, and have the same token and the same worker.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdout, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    Outcome,
    measure::{Bound, Series, nanoseconds, report},
    world::{FILES, World, file},
};

/// Clients that read one file after the other, with a pause.
const NORMAL: usize = 8;
/// Reads of each in a round, and rounds with and without the flood.
const READS: usize = 100;
const ROUNDS: usize = 10;
/// Requests that the flooding client has under way.
const FLOOD: usize = 64;
/// A client thinks between two reads.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let service = Service::start(&world)?;
    let mut clients: Vec<_> =
        (0..NORMAL).map(|_| service.client(1)).collect::<Outcome<Vec<_>>>()?;
    let mut flooder = service.client(FLOOD)?;
    let (mut calm, mut flooded) = (Vec::new(), Vec::new());
    let mut answered = 0;
    for _ in 0..ROUNDS {
        calm.extend(round(&mut clients)?);
        let stop = AtomicBool::new(false);
        let (times, flood) = thread::scope(|scope| {
            let flood = scope.spawn(|| flooder.flood(&stop));
            let times = round(&mut clients);
            stop.store(true, Ordering::Relaxed);
            (times, flood.join())
        });
        flooded.extend(times?);
        answered += flood.map_err(|_| "the flood ended")??;
    }
    let (calm, flooded) = (Series::new(calm), Series::new(flooded));
    report(
        "fairness",
        flooded.median() / calm.median(),
        "times as long",
        Bound::AtMost(2.0),
        &format!(
            "1 flooding beside {NORMAL}: {:.0} µs instead of {:.0} (99%: {:.0} instead of {:.0}); \
             it got {answered} answers",
            flooded.median() / 1e3,
            calm.median() / 1e3,
            flooded.at(99, 100) / 1e3,
            calm.at(99, 100) / 1e3,
        ),
    );
    Ok(())
}

/// Every client reads; the times in nanoseconds.
fn round(clients: &mut [Client]) -> Outcome<Vec<f64>> {
    thread::scope(|scope| {
        let readers: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    let mut times = Vec::with_capacity(READS);
                    for number in 0..READS {
                        let begun = Instant::now();
                        client.post(0, number)?;
                        client.hear(0)?;
                        times.push(nanoseconds(begun.elapsed()));
                        thread::sleep(PAUSE);
                    }
                    Ok(times)
                })
            })
            .collect();
        let mut all = Vec::new();
        for reader in readers {
            let times: Outcome<Vec<f64>> = reader.join().map_err(|_| "a client ended")?;
            all.extend(times?);
        }
        Ok(all)
    })
}

/// A service of one workspace.
struct Service {
    child: Child,
    _output: BufReader<ChildStdout>,
    address: String,
    token: String,
}

impl Service {
    fn start(world: &World) -> Outcome<Self> {
        let args = ["serve", "--listen", "127.0.0.1:0", "--name", "ws"];
        let mut child =
            world.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (mut address, mut token) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                return Err("the service did not start".into());
            }
            let last = line.trim_end().rsplit(' ').next().unwrap_or_default();
            if let Some(at) = last.strip_prefix("http://") {
                address = at.to_owned();
            } else if last.starts_with("pcl_") {
                token = last.to_owned();
            } else if last == "ready" {
                return Ok(Self { child, _output: output, address, token });
            }
        }
    }

    /// A session with so many connections, for as many requests at once.
    fn client(&self, connections: usize) -> Outcome<Client> {
        let connect = || -> Outcome<_> {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            Ok(BufReader::new(stream))
        };
        let head = format!(
            "POST /workspaces/ws/mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2025-11-25\r\n",
            self.token
        );
        let connections = (0..connections).map(|_| connect()).collect::<Outcome<Vec<_>>>()?;
        let mut client = Client { connections, head, next: 0 };
        client.send(
            0,
            &json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "benchmark", "version": "1" },
            }}),
        )?;
        let answer = client.hear(0)?.to_lowercase();
        let session = answer.split("mcp-session-id: ").nth(1).and_then(|rest| rest.lines().next());
        let session = session.ok_or("the service opened no session")?;
        client.head += &format!("Mcp-Session-Id: {session}\r\n");
        client.send(0, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        client.hear(0)?;
        Ok(client)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session.
struct Client {
    connections: Vec<BufReader<TcpStream>>,
    head: String,
    next: u64,
}

impl Client {
    fn send(&mut self, connection: usize, message: &serde_json::Value) -> Outcome<()> {
        let body = message.to_string();
        let request = format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len());
        let connection = self.connections.get_mut(connection).ok_or("no connection")?;
        Ok(connection.get_mut().write_all(request.as_bytes())?)
    }

    fn post(&mut self, connection: usize, number: usize) -> Outcome<()> {
        // No two under way may have the same.
        self.next += 1;
        let id = self.next;
        self.send(
            connection,
            &json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
                "name": "workspace__ws__read_file",
                "arguments": { "path": file(number % FILES) },
            }}),
        )
    }

    /// Reads a reply: its head and its body, which is complete or in chunks.
    fn hear(&mut self, connection: usize) -> Outcome<String> {
        let stream = self.connections.get_mut(connection).ok_or("no connection")?;
        let mut reply = String::new();
        while !reply.ends_with("\r\n\r\n") {
            if stream.read_line(&mut reply)? == 0 {
                return Err("the session ended".into());
            }
        }
        let head = reply.to_lowercase();
        if !head.starts_with("http/1.1 20") {
            return Err(format!("refused: {head}").into());
        }
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        if let Some(length) = length {
            let mut body = vec![0; length.parse()?];
            stream.read_exact(&mut body)?;
            return Ok(reply + &String::from_utf8(body)?);
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16)?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk)?;
            if size == 0 {
                return Ok(reply);
            }
            reply += &String::from_utf8(chunk)?;
        }
    }

    /// Keeps a request under way on every connection until it is stopped; how
    /// many were answered.
    fn flood(&mut self, stop: &AtomicBool) -> Outcome<usize> {
        let all = self.connections.len();
        for connection in 0..all {
            self.post(connection, connection)?;
        }
        let mut answered = 0;
        while !stop.load(Ordering::Relaxed) {
            let connection = answered % all;
            self.hear(connection)?;
            answered += 1;
            self.post(connection, answered)?;
        }
        for connection in (0..all).map(|next| (answered + next) % all) {
            self.hear(connection)?;
        }
        Ok(answered + all)
    }
}
