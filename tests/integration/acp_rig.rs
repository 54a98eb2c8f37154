//! The ACP proxy between a scripted editor and a scripted agent, over real
//! pipes, in front of the real gateway.

use std::{
    io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use cap_std::fs::Dir;
use portcullis::{
    acp::{self, ClosedBy, Config},
    gateway::{AuditLog, Gateway, Workspace},
    model::{Session, Transport},
    policy::{PolicySource, SecretKey, compile},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A peer of the proxy, which the test plays.
pub(crate) struct Side {
    input: Option<PipeWriter>,
    lines: Receiver<Vec<u8>>,
    reading: Arc<AtomicBool>,
}

impl Side {
    fn new(input: PipeWriter, output: PipeReader) -> Self {
        let (sender, lines) = mpsc::channel();
        let reading = Arc::new(AtomicBool::new(true));
        let read_on = Arc::clone(&reading);
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { return };
                while !read_on.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(10));
                }
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { input: Some(input), lines, reading }
    }

    /// Sends one line.
    pub(crate) fn say(&mut self, line: &str) {
        self.bytes(format!("{line}\n").as_bytes());
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.say(&message.to_string());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("still open").write_all(bytes).expect("the gateway reads");
    }

    /// Takes the writing end away, to write from elsewhere.
    pub(crate) fn take_input(&mut self) -> PipeWriter {
        self.input.take().expect("still open")
    }

    /// Reads no more, without closing the stream.
    pub(crate) fn stop_reading(&self) {
        self.reading.store(false, Ordering::SeqCst);
    }

    /// Continues to read.
    pub(crate) fn read_on(&self) {
        self.reading.store(true, Ordering::SeqCst);
    }

    pub(crate) fn hang_up(&mut self) {
        self.input = None;
    }

    /// The next line, exactly.
    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(TIMEOUT).expect("a line comes");
        String::from_utf8(line).expect("UTF-8")
    }

    /// The next line as JSON.
    pub(crate) fn hear(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Checks that no message has come, and none comes for a moment.
    pub(crate) fn hears_nothing(&self) {
        match self.lines.recv_timeout(Duration::from_millis(150)) {
            Err(_) => {}
            Ok(line) => panic!("unexpected: {}", String::from_utf8_lossy(&line)),
        }
    }

    /// Checks that the proxy closes the stream.
    pub(crate) fn hears_the_end(&self) {
        match self.lines.recv_timeout(TIMEOUT) {
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => panic!("still open"),
            Ok(line) => panic!("unexpected: {}", String::from_utf8_lossy(&line)),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) editor: Side,
    pub(crate) agent: Side,
    pub(crate) root: PathBuf,
    served: Option<JoinHandle<ClosedBy>>,
    dir: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// A workspace with `a.txt` and the unreadable `secret/key.txt`.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::under(POLICY, change)
    }

    /// The same under another policy.
    pub(crate) fn under(policy: &str, change: impl FnOnce(&mut Config)) -> Self {
        let (dir, root) = workspace();
        let gateway = Arc::new(gateway_under(policy, &root, dir.path()));
        Self::over(gateway, (dir, root), change)
    }

    /// The same over a gateway that others may have, too.
    pub(crate) fn over(
        gateway: Arc<Gateway>,
        (dir, root): (TempDir, PathBuf),
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::new(connection(), root.clone());
        config.grace = Duration::from_secs(2);
        change(&mut config);
        let (from_editor, editor_in) = pipe().unwrap();
        let (from_agent, agent_in) = pipe().unwrap();
        let (editor_out, to_editor) = pipe().unwrap();
        let (agent_out, to_agent) = pipe().unwrap();
        let served = thread::spawn(move || {
            acp::serve(&gateway, &config, (from_editor, to_editor), (from_agent, to_agent)).unwrap()
        });
        Self {
            editor: Side::new(editor_in, editor_out),
            agent: Side::new(agent_in, agent_out),
            root,
            served: Some(served),
            dir,
        }
    }

    /// A rig after `initialize` and `session/new`, with session `s1`; `fs` is
    /// the editor's capability.
    pub(crate) fn ready(fs: Value, change: impl FnOnce(&mut Config)) -> Self {
        Self::with(change).made_ready(fs)
    }

    /// The same for a rig that was made already.
    pub(crate) fn made_ready(self, fs: Value) -> Self {
        let mut rig = self;
        let params = json!({"protocolVersion": 1, "clientCapabilities": {"fs": fs}});
        rig.editor.send(&request(0, "initialize", params));
        rig.agent.hear();
        rig.agent.send(&result(0, json!({"protocolVersion": 1})));
        rig.editor.hear();
        rig.open_session(1, "s1");
        rig
    }

    pub(crate) fn open_session(&mut self, id: i64, session: &str) {
        let params = json!({"cwd": self.root, "mcpServers": []});
        self.editor.send(&request(id, "session/new", params));
        self.agent.hear();
        self.agent.send(&result(id, json!({"sessionId": session})));
        self.editor.hear();
    }

    /// An absolute path in the workspace.
    pub(crate) fn path(&self, name: &str) -> String {
        self.root.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, id: i64, name: &str) -> Value {
        request(id, "fs/read_text_file", json!({"sessionId": "s1", "path": self.path(name)}))
    }

    pub(crate) fn write(&self, id: i64, name: &str, content: &str) -> Value {
        let params = json!({"sessionId": "s1", "path": self.path(name), "content": content});
        request(id, "fs/write_text_file", params)
    }

    /// Returns the log as text.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(state(self.dir.path()).join("audit/seg-000000.jsonl")).unwrap()
    }

    /// The directory of the log.
    pub(crate) fn log_directory(&self) -> PathBuf {
        state(self.dir.path()).join("audit")
    }

    /// Waits until `serve` returns.
    pub(crate) fn ending(&mut self) -> ClosedBy {
        let served = self.served.take().expect("once");
        let end = std::time::Instant::now() + TIMEOUT;
        while !served.is_finished() {
            assert!(std::time::Instant::now() < end, "`serve` does not return");
            thread::sleep(Duration::from_millis(5));
        }
        served.join().unwrap()
    }
}

/// The session under which events outside of ACP sessions are recorded.
pub(crate) fn connection() -> Session {
    Session {
        id: "c0".repeat(16),
        agent: "tester".parse().unwrap(),
        user: "user".to_owned(),
        transport: Transport::Acp,
        acp: None,
    }
}

pub(crate) fn workspace() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("ws");
    std::fs::create_dir_all(root.join("secret")).unwrap();
    std::fs::write(root.join("a.txt"), "one\ntwo żółć\nthree\n").unwrap();
    std::fs::write(root.join("secret/key.txt"), "TOP-SECRET\n").unwrap();
    (dir, root)
}

/// The policy of these gateways: everything but `secret/**` is allowed.
pub(crate) const POLICY: &str = r#"
schema = 1
name = "test"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[[rules]]
id = "keys"
effect = "deny"
operations = ["read", "write", "list", "stat", "remove", "rename"]
paths = ["secret/**"]
reason = "keys are nobody's business"
"#;

/// A gateway over `root`; its state goes to `base/state`.
pub(crate) fn gateway(root: &Path, base: &Path) -> Gateway {
    gateway_under(POLICY, root, base)
}

/// The same under another policy.
pub(crate) fn gateway_under(policy: &str, root: &Path, base: &Path) -> Gateway {
    let policy = compile(&PolicySource::from_text("test.toml", policy)).unwrap();
    let state = state(base);
    std::fs::create_dir_all(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    let state = Dir::from_std_file(std::fs::File::open(&state).unwrap());
    let audit_log = AuditLog::open(&state).unwrap();
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    Gateway::open(Workspace::open(root).unwrap(), Arc::new(policy), audit_log, &state, key).unwrap()
}

fn state(base: &Path) -> PathBuf {
    base.join("state")
}

pub(crate) fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

pub(crate) fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

pub(crate) fn result(id: impl Into<Value>, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "result": result})
}

pub(crate) fn failure(id: impl Into<Value>, code: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "error": {"code": code, "message": "m"}})
}
