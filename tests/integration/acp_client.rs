//! An ACP client: drives a real agent, as an editor would.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// A real agent takes a while to start.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Time in which the end of a tool call comes, at the latest.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The editor's capabilities and buffers.
#[derive(Debug, Default)]
pub(crate) struct Editor {
    /// Offers `fs/read_text_file`.
    pub(crate) reads: bool,
    /// Offers `fs/write_text_file`.
    pub(crate) writes: bool,
    /// Stores writes on the disk; else it keeps them in the buffer.
    pub(crate) saves: bool,
    /// Buffers by absolute path.
    pub(crate) buffers: BTreeMap<String, String>,
    /// The kinds of permission to pick next (`cancelled` picks none, `error` is no answer); once
    /// they are used up, `allow_once`.
    pub(crate) permissions: VecDeque<&'static str>,
}

/// A client that grants every permission by default, and serves `fs/*` from its
/// buffers where it offers to.
pub(crate) struct Client {
    input: Box<dyn Write + Send>,
    lines: Receiver<String>,
    next: i64,
    pub(crate) editor: Editor,
    /// The `session/update`s of the last prompt turn.
    pub(crate) updates: Vec<Value>,
    /// The requests that the agent made of this client, ever.
    pub(crate) asked: Vec<Value>,
    /// The result of `initialize`.
    pub(crate) agent: Value,
}

/// The end of a prompt turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) stop_reason: String,
    /// All text that the agent sent in the turn.
    pub(crate) said: String,
    /// The states that tool calls went through.
    pub(crate) states: Vec<String>,
}

impl Client {
    /// Shakes hands with the agent at the other end of the streams; without
    /// buffers the client offers no `fs`.
    pub(crate) fn start(
        output: impl Read + Send + 'static,
        input: impl Write + Send + 'static,
        buffers: Option<BTreeMap<String, String>>,
    ) -> Self {
        let fs = buffers.is_some();
        let buffers = buffers.unwrap_or_default();
        let editor =
            Editor { reads: fs, writes: fs, saves: true, buffers, permissions: VecDeque::new() };
        Self::with(output, input, editor)
    }

    /// The same as this editor.
    pub(crate) fn with(
        output: impl Read + Send + 'static,
        input: impl Write + Send + 'static,
        editor: Editor,
    ) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut client = Self {
            input: Box::new(input),
            lines,
            next: 0,
            editor,
            updates: Vec::new(),
            asked: Vec::new(),
            agent: Value::Null,
        };
        let fs = json!({
            "readTextFile": client.editor.reads, "writeTextFile": client.editor.writes
        });
        client.agent = client.call(
            "initialize",
            json!({
                "protocolVersion": 1,
                "clientCapabilities": {"fs": fs, "terminal": true},
                "clientInfo": {"name": "portcullis-tests", "version": "0"}
            }),
        );
        assert_eq!(client.agent["protocolVersion"], 1);
        client
    }

    /// Opens a session and gives its id.
    pub(crate) fn session(&mut self, cwd: &Path) -> String {
        self.session_in(&json!({"cwd": cwd, "mcpServers": []}))
    }

    /// The same with other parameters.
    pub(crate) fn session_in(&mut self, params: &Value) -> String {
        let reply = self.call("session/new", params.clone());
        reply["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// Has the `passthrough` model call a tool.
    pub(crate) fn tool(&mut self, session: &str, tool: &str, arguments: &Value) -> Turn {
        self.turn(session, &format!("***CALL_TOOL {tool} {arguments}"), true)
    }

    /// Runs one prompt turn.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> Turn {
        self.turn(session, text, false)
    }

    /// The same; `is_awaited` if each tool call that begins in it also ends.
    fn turn(&mut self, session: &str, text: &str, is_awaited: bool) -> Turn {
        self.updates.clear();
        let prompt = json!([{"type": "text", "text": text}]);
        let reply = self.call("session/prompt", json!({"sessionId": session, "prompt": prompt}));
        // Updates may come behind the reply.
        loop {
            let is_open = is_awaited && self.has_open_call();
            let limit = if is_open { CALL_TIMEOUT } else { Duration::from_millis(300) };
            let Ok(line) = self.lines.recv_timeout(limit) else { break };
            self.heard(&line);
        }
        let updates = self.updates.iter().map(|update| &update["update"]);
        let states = updates.filter_map(|update| update["status"].as_str().map(str::to_owned));
        Turn {
            stop_reason: reply["stopReason"].as_str().unwrap_or_default().to_owned(),
            said: Value::from(self.updates.clone()).to_string(),
            states: states.collect(),
        }
    }

    /// True if a tool call of the turn has begun and not ended.
    fn has_open_call(&self) -> bool {
        let mut last = BTreeMap::new();
        for update in self.updates.iter().map(|update| &update["update"]) {
            if let (Some(id), Some(status)) =
                (update["toolCallId"].as_str(), update["status"].as_str())
            {
                last.insert(id, status);
            }
        }
        last.values().any(|status| ["pending", "in_progress"].contains(status))
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let line = self.lines.recv_timeout(TIMEOUT).expect("the agent answers");
            if let Some(reply) = self.heard(&line)
                && reply["id"] == id
            {
                assert!(reply["error"].is_null(), "`{method}` failed: {reply}");
                return reply["result"].clone();
            }
        }
    }

    /// Deals with a line; gives it back when it is a reply.
    fn heard(&mut self, line: &str) -> Option<Value> {
        let message: Value = serde_json::from_str(line).expect("the agent's output is JSON only");
        let Some(method) = message["method"].as_str() else { return Some(message) };
        if method == "session/update" {
            self.updates.push(message["params"].clone());
        }
        if !message["id"].is_null() {
            self.asked.push(message.clone());
            let mut answer = self.answer(method, &message["params"]);
            answer["jsonrpc"] = "2.0".into();
            answer["id"] = message["id"].clone();
            self.send(&answer);
        }
        None
    }

    fn answer(&mut self, method: &str, params: &Value) -> Value {
        let path = params["path"].as_str().unwrap_or_default();
        let editor = &mut self.editor;
        match method {
            "session/request_permission" => {
                let kind = editor.permissions.pop_front().unwrap_or("allow_once");
                if kind == "error" {
                    return json!({"error": {"code": -32601, "message": "Method not found"}});
                }
                if kind == "cancelled" {
                    return json!({"result": {"outcome": {"outcome": "cancelled"}}});
                }
                let options = params["options"].as_array().expect("options");
                let picked = options.iter().find(|option| option["kind"] == kind);
                let id = &picked.expect("an option of that kind")["optionId"];
                json!({"result": {"outcome": {"outcome": "selected", "optionId": id}}})
            }
            "fs/read_text_file" if editor.reads => match editor.buffers.get(path) {
                Some(content) => json!({"result": {"content": content}}),
                None => json!({"error": {"code": -32002, "message": "Resource not found"}}),
            },
            "fs/write_text_file" if editor.writes => {
                let content = params["content"].as_str().expect("content");
                editor.buffers.insert(path.to_owned(), content.to_owned());
                if editor.saves {
                    std::fs::write(path, content).expect("the workspace is writable");
                }
                json!({"result": null})
            }
            _ => json!({"error": {"code": -32601, "message": "Method not found"}}),
        }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).expect("the agent reads");
        self.input.flush().expect("the agent reads");
    }
}
