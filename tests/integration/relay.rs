//! A long-lived `portcullis run` with a confined gateway and, in its sandbox,
//! an agent that sends the test's messages: thousands of requests a second by
//! the public interface.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    acp_rig::{notification, request},
    common::World,
};

/// Longer than any batch takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Relay {
    world: Option<World>,
    gateway: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    root: String,
    next: u64,
}

impl Relay {
    /// A gateway over the world's workspace, with a session.
    pub(crate) fn start(world: World) -> Self {
        let scripts = world.base().join("agent");
        std::fs::create_dir(&scripts).unwrap();
        let script = scripts.join("relay.py");
        std::fs::write(&script, include_str!("relay.py")).unwrap();
        let mut gateway = world
            .command(&["run", "--source", "disk", "--agent", "relay", "--agent-read"])
            .arg(&scripts)
            .args(["--", "/usr/bin/python3"])
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let root = world.root().canonicalize().unwrap().to_str().unwrap().to_owned();
        let input = gateway.stdin.take();
        let output = BufReader::new(gateway.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut relay = Self { world: Some(world), gateway, input, lines, root, next: 10 };
        relay.send(&request(0, "initialize", json!({"protocolVersion": 1})));
        assert_eq!(relay.hear()["result"]["protocolVersion"], 1);
        relay.new_session(1, "s1");
        relay
    }

    fn new_session(&mut self, id: u64, name: &str) {
        let params = json!({"cwd": self.root, "mcpServers": [], "_meta": {"name": name}});
        self.send(&request(id, "session/new", params));
        assert_eq!(self.hear()["result"]["sessionId"], name);
    }

    /// Opens another session, and gives a request of it to read `a.txt`.
    pub(crate) fn open_session(&mut self, name: &str) -> Value {
        self.next += 1;
        self.new_session(self.next, name);
        let path = format!("{}/a.txt", self.root);
        self.request("fs/read_text_file", json!({"sessionId": name, "path": path}))
    }

    /// A request to read; the root is always called by its first name.
    pub(crate) fn read(&mut self, name: &str) -> Value {
        self.read_at(&self.at(name))
    }

    /// A request to write.
    pub(crate) fn write(&mut self, name: &str, content: &str) -> Value {
        self.write_at(&self.at(name), content)
    }

    /// The absolute path of a name.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// A request to read exactly this path.
    pub(crate) fn read_at(&mut self, path: &str) -> Value {
        self.request("fs/read_text_file", json!({"sessionId": "s1", "path": path}))
    }

    /// A request to write to exactly this path.
    pub(crate) fn write_at(&mut self, path: &str, content: &str) -> Value {
        let params = json!({"sessionId": "s1", "path": path, "content": content});
        self.request("fs/write_text_file", params)
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        request(self.next, method, params)
    }

    /// Has the agent send the requests, and returns the replies in their order.
    pub(crate) fn ask(&mut self, requests: &[Value]) -> Vec<Value> {
        self.say(requests);
        let answers = self.heard();
        let ids = |list: &[Value]| list.iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
        assert_eq!(ids(&answers), ids(requests), "each request is answered once");
        answers
    }

    /// Has the agent send the requests.
    pub(crate) fn say(&mut self, requests: &[Value]) {
        let lines: Vec<_> = requests.iter().map(ToString::to_string).collect();
        self.send(&notification("test/say", json!({ "lines": lines })));
    }

    /// Returns the replies that the agent got, by the requests' ids.
    pub(crate) fn heard(&self) -> Vec<Value> {
        let answers = self.hear()["params"]["value"].take();
        let mut answers = parsed(&answers);
        answers.sort_by_key(|answer| answer["id"].as_u64());
        answers
    }

    /// The process id of the broker.
    pub(crate) fn pid(&self) -> u32 {
        self.gateway.id()
    }

    /// Has the agent send one request.
    pub(crate) fn ask_one(&mut self, request: Value) -> Value {
        self.ask(&[request]).remove(0)
    }

    /// Has the agent send the requests one after the other; returns the
    /// nanoseconds that each reply took, and the replies.
    pub(crate) fn time(&mut self, requests: &[Value]) -> (Vec<u64>, Vec<Value>) {
        let lines: Vec<_> = requests.iter().map(ToString::to_string).collect();
        self.send(&notification("test/time", json!({ "lines": lines })));
        let value = self.hear()["params"]["value"].take();
        let times = serde_json::from_value(value["times"].clone()).unwrap();
        (times, parsed(&value["answers"]))
    }

    /// Closes the input, as an editor does; the gateway ends in order and its
    /// log verifies.
    pub(crate) fn end(mut self) -> World {
        self.input = None;
        let status = self.gateway.wait().unwrap();
        assert!(status.success(), "{status}");
        let world = self.world.take().unwrap();
        world.run(&["audit", "verify"]).ok();
        world
    }

    pub(crate) fn world(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Returns the next line that the editor gets.
    pub(crate) fn hear(&self) -> Value {
        let line = self.lines.recv_timeout(TIMEOUT).expect("the gateway answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

fn parsed(lines: &Value) -> Vec<Value> {
    let lines: Vec<String> = serde_json::from_value(lines.clone()).unwrap();
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A test that fails leaves no gateway process behind.
impl Drop for Relay {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.gateway.kill();
        let _ = self.gateway.wait();
    }
}
