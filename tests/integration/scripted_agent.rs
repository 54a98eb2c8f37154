//! A long-lived gateway under `portcullis run`, with an agent in its sandbox
//! that sends the test's requests.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::common::World;

/// Longer than anything here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code of `run` if its agent has not ended two seconds after its editor left, as on a busy
/// machine: it is ended by `SIGTERM` then.
pub(crate) const TERMINATED: i32 = 143;

/// The editor's side of it.
pub(crate) struct ScriptedAgent {
    pub(crate) broker: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    root: PathBuf,
    next: u64,
    /// Standard error of the broker and the gateway.
    complaints: Option<thread::JoinHandle<String>>,
}

/// `portcullis run -- AGENT…` with its streams in the test's hands.
pub(crate) fn run(world: &World, options: &[&str], agent: &[&str]) -> Child {
    let mut command = world.command(&[&["run", "--source", "disk"], options, &["--"]].concat());
    command
        .args(agent)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

impl ScriptedAgent {
    pub(crate) fn start(world: &World) -> Self {
        Self::try_start(world).unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// Starts it, or returns the message of `run` that refuses.
    pub(crate) fn try_start(world: &World) -> Result<Self, String> {
        Self::try_with(world, &[])
    }

    /// The same with options of `run`.
    pub(crate) fn with(world: &World, options: &[&str]) -> Self {
        Self::try_with(world, options).unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    pub(crate) fn try_with(world: &World, options: &[&str]) -> Result<Self, String> {
        let agent = ["/usr/bin/python3", "-S", "-c", include_str!("scripted_agent.py")];
        let mut broker = run(world, options, &agent);
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(broker.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut errors = broker.stderr.take().unwrap();
        let complaints = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = std::io::Read::read_to_end(&mut errors, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut scripted_agent = Self {
            input: broker.stdin.take(),
            broker,
            lines,
            root: world.root().canonicalize().unwrap(),
            next: 0,
            complaints: Some(complaints),
        };
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
        if scripted_agent.call("initialize", params).is_none() {
            assert!(!scripted_agent.wait().success());
            return Err(scripted_agent.complaints.take().unwrap().join().unwrap());
        }
        let params = json!({"cwd": scripted_agent.root, "mcpServers": []});
        let session = scripted_agent.call("session/new", params).unwrap();
        assert_eq!(session["sessionId"], "s1");
        Ok(scripted_agent)
    }

    pub(crate) fn read(&self, name: &str) -> Value {
        let path = self.root.join(name);
        json!({"method": "fs/read_text_file", "params": {"sessionId": "s1", "path": path}})
    }

    pub(crate) fn write(&self, name: &str, content: &str) -> Value {
        let path = self.root.join(name);
        let params = json!({"sessionId": "s1", "path": path, "content": content});
        json!({"method": "fs/write_text_file", "params": params})
    }

    /// Returns the reply to one request of the agent.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: Value) -> Value {
        self.ask_all(&[request]).remove(0)
    }

    /// Returns the replies to requests that the agent sends at once.
    #[track_caller]
    pub(crate) fn ask_all(&mut self, requests: &[Value]) -> Vec<Value> {
        let id = self.prompt(requests).expect("the gateway reads");
        let result = self.result(id).expect("the gateway answers");
        result["_meta"]["answers"].as_array().unwrap().clone()
    }

    /// Has the agent make requests and does not wait.
    pub(crate) fn prompt(&mut self, requests: &[Value]) -> std::io::Result<u64> {
        let text = Value::from(requests.to_vec()).to_string();
        let prompt = json!([{"type": "text", "text": text}]);
        self.send("session/prompt", json!({"sessionId": "s1", "prompt": prompt}))
    }

    fn send(&mut self, method: &str, params: Value) -> std::io::Result<u64> {
        let id = self.next;
        self.next += 1;
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.input.as_mut().unwrap().write_all(format!("{line}\n").as_bytes())?;
        Ok(id)
    }

    fn call(&mut self, method: &str, params: Value) -> Option<Value> {
        let id = self.send(method, params).ok()?;
        self.result(id)
    }

    fn result(&self, id: u64) -> Option<Value> {
        loop {
            let message = self.hear()?;
            if message["id"] == id {
                assert!(message["error"].is_null(), "{message}");
                return Some(message["result"].clone());
            }
        }
    }

    /// The next message, or `None` when the gateway has closed the stream.
    pub(crate) fn hear(&self) -> Option<Value> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(serde_json::from_str(&line).unwrap()),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the gateway says nothing"),
        }
    }

    pub(crate) fn gateway(&self) -> i32 {
        gateway_of(i32::try_from(self.broker.id()).unwrap())
    }

    /// Hangs up, as an editor does, and waits.
    pub(crate) fn hang_up(&mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    /// Closes the input; returns the exit status and the text on stderr.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = self.hang_up();
        (status, self.complaints.take().unwrap().join().unwrap())
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        ended(&mut self.broker)
    }
}

impl Drop for ScriptedAgent {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

/// Waits for a process, not for ever.
#[track_caller]
pub(crate) fn ended(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "it does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the receipt of a reply with success.
#[track_caller]
pub(crate) fn receipt(answer: &Value) -> Value {
    let receipt = &answer["result"]["_meta"]["portcullis/receipt"];
    assert!(receipt.is_object(), "{answer}");
    receipt.clone()
}

/// Returns the kind of failure in a reply.
#[track_caller]
pub(crate) fn failure(answer: &Value) -> (String, String) {
    let error = &answer["error"];
    let kind = error["data"]["kind"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (kind.to_owned(), error["message"].as_str().unwrap().to_owned())
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    text.unwrap_or_default().split_whitespace().map(|n| n.parse().unwrap()).collect()
}

/// All processes beneath one.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    children(pid).into_iter().flat_map(|pid| [vec![pid], descendants(pid)].concat()).collect()
}

/// Returns the PID of the gateway process that a broker started.
#[track_caller]
pub(crate) fn gateway_of(broker: i32) -> i32 {
    find_gateway(broker).expect("the broker's gateway")
}

/// Returns the same; `None` if the broker has not started it yet.
pub(crate) fn find_gateway(broker: i32) -> Option<i32> {
    let is_gateway = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("gateway-process")
    };
    children(broker).into_iter().find(is_gateway)
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
}

/// True if the processes are gone within a while.
pub(crate) fn gone(processes: &[i32]) -> bool {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        let alive = |pid: &&i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| !status.contains("State:\tZ"))
        };
        if processes.iter().find(alive).is_none() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

/// The most memory that a process ever had resident, in KiB.
pub(crate) fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
