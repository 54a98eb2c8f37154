//! A client that sends a test's messages, good or bad, and sorts the replies.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::AsFd as _,
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use crate::common::World;

pub(super) struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    answers: HashMap<i64, Value>,
    pub(super) others: Vec<Value>,
    /// The server's description of itself.
    pub(super) greeting: Value,
    next: i64,
}

impl Client {
    /// Starts the server and greets it.
    pub(super) fn start(world: &World, args: &[&str]) -> Self {
        Self::with(world, args, &json!({}))
    }

    pub(super) fn with(world: &World, args: &[&str], capabilities: &Value) -> Self {
        let mut client = Self::silent(world, args);
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" },
        });
        let reply = client.ask("initialize", &hello);
        assert_eq!(reply["result"]["serverInfo"]["name"], "portcullis", "{reply}");
        client.greeting = reply["result"].clone();
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    /// Starts the server and sends nothing.
    pub(super) fn silent(world: &World, args: &[&str]) -> Self {
        let mut child = world
            .command(&[&["mcp"], args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (answers, others) = (HashMap::new(), Vec::new());
        Self { child, input, output, answers, others, greeting: Value::Null, next: 0 }
    }

    /// Another way in, for a thread that may have to wait.
    pub(super) fn input(&self) -> std::fs::File {
        let fd = self.input.as_ref().unwrap().as_fd();
        fd.try_clone_to_owned().unwrap().into()
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub(super) fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    /// Sends a request; gives its id.
    pub(super) fn post(&mut self, method: &str, params: &Value) -> i64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    pub(super) fn post_call(&mut self, tool: &str, arguments: &Value) -> i64 {
        self.post("tools/call", &json!({ "name": tool, "arguments": arguments }))
    }

    /// Returns the next message that is no reply to a request with a number.
    pub(super) fn other(&mut self) -> Value {
        while self.others.is_empty() {
            self.hear();
        }
        self.others.remove(0)
    }

    /// True if the client is asked a question before the reply comes.
    pub(super) fn is_asked_before(&mut self, id: i64) -> bool {
        while self.others.is_empty() && !self.answers.contains_key(&id) {
            self.hear();
        }
        !self.answers.contains_key(&id)
    }

    pub(super) fn answer(&mut self, id: i64) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            self.hear();
        }
    }

    fn hear(&mut self) {
        let mut line = String::new();
        let length = self.output.read_line(&mut line).unwrap();
        assert!(length > 0, "the server closed its output");
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
        match message["id"].as_i64().filter(|_| message.get("method").is_none()) {
            Some(id) => assert!(self.answers.insert(id, message).is_none(), "answered twice"),
            None => self.others.push(message),
        }
    }

    pub(super) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.post(method, params);
        self.answer(id)
    }

    /// The result of a call.
    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let id = self.post_call(tool, arguments);
        let answer = self.answer(id);
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    /// Returns the result of a call that must succeed, with its receipt checked.
    #[track_caller]
    pub(super) fn good(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{result}");
        let receipt = &result["_meta"]["portcullis/receipt"];
        assert!(receipt["seq"].is_u64() && receipt["leaf"].is_string(), "{result}");
        result["structuredContent"].clone()
    }

    /// Returns the texts of a call, which must succeed and have no result in another form.
    #[track_caller]
    pub(super) fn texts(&mut self, tool: &str, arguments: &Value) -> Vec<String> {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{result}");
        assert!(result.get("structuredContent").is_none(), "{result}");
        let text = |block: &Value| block["text"].as_str().unwrap().to_owned();
        result["content"].as_array().unwrap().iter().map(text).collect()
    }

    /// The reason why a call fails that must fail, with its receipt checked.
    #[track_caller]
    pub(super) fn bad(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert!(result["_meta"]["portcullis/receipt"]["seq"].is_u64(), "{result}");
        result["_meta"]["portcullis/error"].clone()
    }

    pub(super) fn tools(&mut self) -> Vec<Value> {
        self.ask("tools/list", &json!({}))["result"]["tools"].as_array().unwrap().clone()
    }

    pub(super) fn names(&mut self) -> Vec<String> {
        let name = |tool: Value| tool["name"].as_str().unwrap().to_owned();
        self.tools().into_iter().map(name).collect()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes the input; the server ends, with success.
    pub(super) fn end(mut self) {
        self.input.take();
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {}
        assert!(self.child.wait().unwrap().success(), "{line}");
    }

    /// Leaves without closing.
    pub(super) fn vanish(self) -> Child {
        self.child
    }

    pub(super) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}
