//! A service, and clients of it that send a test's messages.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::common::{ALL, World};

/// Timeout of a test that waits for a reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with workspaces, and the configuration of a service of them.
pub(super) struct Site {
    pub(super) world: World,
    /// The contents of `[serve]`.
    pub(super) settings: String,
    pub(super) workspaces: Vec<String>,
    /// Name, token, what else stands there.
    pub(super) agents: Vec<(String, String, String)>,
}

impl Site {
    /// A service with workspaces, and an agent `all` that may use them all.
    pub(super) fn new(workspaces: &[&str]) -> Self {
        let world = World::new();
        let mut site =
            Self { world, settings: String::new(), workspaces: Vec::new(), agents: Vec::new() };
        fs::write(site.base().join("policy.toml"), ALL).unwrap();
        for name in workspaces {
            site.add_workspace(name);
        }
        site.add_agent("all", "workspaces = [\"*\"]\nmetrics = true");
        site
    }

    pub(super) fn base(&self) -> PathBuf {
        self.world.base().to_owned()
    }

    pub(super) fn root(&self, name: &str) -> PathBuf {
        self.base().join("roots").join(name)
    }

    pub(super) fn state(&self, name: &str) -> PathBuf {
        self.base().join("states").join(name)
    }

    pub(super) fn add_workspace(&mut self, name: &str) {
        fs::create_dir_all(self.root(name)).unwrap();
        fs::write(self.root(name).join("file.txt"), format!("of {name}\n")).unwrap();
        self.workspaces.push(name.to_owned());
    }

    /// Adds an agent with a token from the command line; gives the token.
    pub(super) fn add_agent(&mut self, name: &str, more: &str) -> String {
        let made = self.world.run(&["token", "new", "--agent", name, "--json"]).ok().json();
        let token = made["token"].as_str().unwrap().to_owned();
        let hash = made["tokenHash"].as_str().unwrap();
        assert!(token.starts_with("pcl_") && !hash.contains(&token));
        self.agents.push((
            name.to_owned(),
            token.clone(),
            format!("tokenHash = \"{hash}\"\n{more}"),
        ));
        token
    }

    pub(super) fn token(&self, agent: &str) -> &str {
        &self.agents.iter().find(|(name, ..)| name == agent).unwrap().1
    }

    pub(super) fn config(&self) -> PathBuf {
        self.base().join("portcullis.toml")
    }

    /// Writes the configuration.
    pub(super) fn write(&self) {
        let mut text = format!("[serve]\nstate = \"states/serve\"\n{}\n", self.settings);
        for name in &self.workspaces {
            text += &format!(
                "[[workspaces]]\nname = \"{name}\"\nroot = \"roots/{name}\"\n\
                 policy = \"policy.toml\"\nstate = \"states/{name}\"\n"
            );
        }
        for (name, _, more) in &self.agents {
            text += &format!("[[agents]]\nname = \"{name}\"\n{more}\n");
        }
        fs::write(self.config(), text).unwrap();
        let states = self.base().join("states");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(states).unwrap();
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let config = self.config();
        let named = ["serve", "--config", config.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        let mut command = self.world.command(&[&named, args].concat());
        command.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
        command
    }

    /// Starts it.
    pub(super) fn serve(&self) -> Service {
        self.write();
        Service::start(&mut self.command(&[]))
    }

    /// The records of a workspace, or with `serve` those of the service.
    pub(super) fn records(&self, name: &str) -> Vec<Value> {
        let log = self.state(name).join("audit/seg-000000.jsonl");
        let text = fs::read_to_string(log).unwrap_or_default();
        // A last line may be half written.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for a record.
    pub(super) fn await_record(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        wait(|| self.records(name).into_iter().find(&fits))
    }
}

/// Waits until there is something.
pub(super) fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "nothing came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A running service, killed when dropped.
pub(super) struct Service {
    child: Child,
    output: BufReader<ChildStdout>,
    pub(super) port: u16,
    /// Its output until it was ready.
    pub(super) said: String,
}

impl Service {
    pub(super) fn start(command: &mut Command) -> Self {
        Self::start_saying(command, Stdio::null())
    }

    /// Starts it with `stderr` as its standard error.
    pub(super) fn start_saying(command: &mut Command, stderr: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("portcullis: ready\n") {
            assert!(output.read_line(&mut said).unwrap() > 0, "it did not start: {said}");
        }
        let port = said
            .split("://127.0.0.1:")
            .nth(1)
            .map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
        Self { child, output, port, said }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it started, by the word on their command line.
    pub(super) fn processes(&self, word: &str) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = fs::read_to_string(children).unwrap();
        let is = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains(word)
        };
        children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is).collect()
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        kill(self.pid(), signal);
    }

    /// Asks it to stop, and checks that it does, in order.
    pub(super) fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// A connection.
    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a request with these headers besides `Host`; gives status and all.
    pub(super) fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut stream = self.connect();
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let reply = String::from_utf8(reply).unwrap();
        (status(&reply), reply)
    }

    pub(super) fn get_as(&self, token: &str, path: &str) -> (u16, String) {
        self.get(path, &[("Authorization", &format!("Bearer {token}"))])
    }

    /// Calls a tool over HTTP, without a session; returns the reply.
    pub(super) fn call(
        &self,
        token: &str,
        workspace: &str,
        tool: &str,
        arguments: &Value,
    ) -> Value {
        answer(self.post(token, workspace, tool, arguments))
    }

    /// Begins such a call; the reply comes over the connection.
    pub(super) fn post(
        &self,
        token: &str,
        workspace: &str,
        tool: &str,
        arguments: &Value,
    ) -> TcpStream {
        let name = format!("workspace__{workspace}__{tool}");
        let params = json!({ "name": name, "arguments": arguments });
        self.post_message(token, workspace, ("tools/call", Some(&name)), &params)
    }

    /// Puts a request without a session, by its method and the name in it.
    pub(super) fn post_message(
        &self,
        token: &str,
        workspace: &str,
        (method, name): (&str, Option<&str>),
        params: &Value,
    ) -> TcpStream {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut params = params.clone();
        params["_meta"] = meta;
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let body = body.to_string();
        let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /workspaces/{workspace}/mcp HTTP/1.1\r\nHost: localhost\r\n\
             Connection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.connect();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    /// Opens a session of the `files` channel, or gives the status that refuses
    /// it.
    pub(super) fn open(&self, token: &str, workspace: &str) -> Result<Socket, u16> {
        let mut stream = BufReader::new(self.connect());
        let head = format!(
            "GET /workspaces/{workspace}/ws HTTP/1.1\r\nHost: localhost\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.get_mut().write_all(head.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        match status(&head) {
            101 => Ok(Socket { stream, next: 0 }),
            status => Err(status),
        }
    }

    /// A session that was let in.
    pub(super) fn session(&self, token: &str, workspace: &str) -> Socket {
        self.open(token, workspace).unwrap()
    }

    /// Waits until it says that it is ready: a broker that is too busy to answer is not.
    pub(super) fn await_ready(&self) {
        wait(|| (self.get("/readyz", &[]).0 == 200).then_some(()));
    }

    /// The page of numbers.
    pub(super) fn numbers(&self, token: &str) -> String {
        let (status, page) = self.get_as(token, "/metrics");
        assert_eq!(status, 200, "{page}");
        page
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the kernel take hardly anything that the test does not read.
pub(super) fn take_little(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_recv_buffer_size(stream, 4096).unwrap();
}

/// Returns the reply to the message that was sent.
pub(super) fn answer(mut stream: TcpStream) -> Value {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let reply = joined(&reply).unwrap_or(reply);
    let answers = reply.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let mut answers = answers.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    answers.find(|answer| answer["id"] == 1).unwrap_or_else(|| panic!("{reply}"))
}

/// The body of a reply that came in pieces, if it did.
fn joined(reply: &str) -> Option<String> {
    let (head, mut rest) = reply.split_once("\r\n\r\n")?;
    let mut body = String::new();
    while head.contains("transfer-encoding: chunked") {
        let (length, after) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body += after.get(..length)?;
        rest = after.get(length..)?.strip_prefix("\r\n")?;
    }
    None
}

pub(super) fn status(reply: &str) -> u16 {
    let status = reply.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.unwrap_or_else(|| panic!("no reply: {reply:?}")).parse().unwrap()
}

pub(super) fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A session of the `files` channel.
pub(super) struct Socket {
    pub(super) stream: BufReader<TcpStream>,
    next: u64,
}

impl Socket {
    /// Sends a text as one frame, masked with nothing.
    pub(super) fn say(&mut self, text: &[u8]) -> std::io::Result<()> {
        let length = u64::try_from(text.len()).unwrap();
        let mut frame = vec![0x81, 0xff];
        frame.extend(length.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text);
        self.stream.get_mut().write_all(&frame)
    }

    /// The reply to a request; nothing when the session is over.
    pub(super) fn ask(&mut self, kind: &str, fields: Value) -> Option<Value> {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "channel": "files", "type": kind, "requestId": id });
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.say(message.to_string().as_bytes()).ok()?;
        loop {
            let heard = self.hear()?;
            if heard["requestId"] == id {
                return Some(heard);
            }
        }
    }

    /// The next message; nothing when the session is over.
    pub(super) fn hear(&mut self) -> Option<Value> {
        let mut message = Vec::new();
        loop {
            let (first, payload) = match self.frame() {
                Ok(frame) => frame,
                Err(error) => {
                    use std::io::ErrorKind::{TimedOut, WouldBlock};
                    assert!(!matches!(error.kind(), TimedOut | WouldBlock), "nothing came");
                    return None;
                }
            };
            match first & 0x0f {
                0 | 1 => message.extend(payload),
                8 => return None,
                _ => continue,
            }
            if first & 0x80 != 0 {
                return Some(serde_json::from_slice(&message).unwrap());
            }
        }
    }

    /// Returns the number of requests that succeeded until the session ended,
    /// and the code with which it was closed.
    pub(super) fn rest(&mut self) -> (usize, Option<u16>) {
        let mut done = 0;
        while let Ok((first, payload)) = self.frame() {
            match first & 0x0f {
                1 => {
                    let heard: Value = serde_json::from_slice(&payload).unwrap();
                    done += usize::from(
                        heard["requestId"].is_number() && heard["error"] == Value::Null,
                    );
                }
                8 => return (done, payload.first_chunk().map(|code| u16::from_be_bytes(*code))),
                _ => {}
            }
        }
        (done, None)
    }

    fn frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head)?;
        let size = match head[1] {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mut long = [0; 8];
        self.stream.read_exact(&mut long[8 - size..])?;
        let length = if size == 0 { u64::from(head[1]) } else { u64::from_be_bytes(long) };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload)?;
        Ok((head[0], payload))
    }

    pub(super) fn read(&mut self, path: &str) -> Option<String> {
        let reply = self.ask("read", json!({ "path": path }))?;
        Some(reply["data"]["content"].as_str().unwrap_or("refused").to_owned())
    }

    pub(super) fn write(&mut self, path: &str, content: &str) -> Value {
        self.ask("write", json!({ "path": path, "content": content })).unwrap()
    }

    /// Waits for the end of the session; returns true if the service has ended
    /// it.
    pub(super) fn is_over(&mut self) -> bool {
        while let Some(message) = self.hear() {
            assert_eq!(message["type"], "change", "{message}");
        }
        true
    }
}
