//! The transports of `portcullis serve` with real clients: WebSockets and MCP
//! over HTTP, and peers that violate the protocols.

mod hostile;

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    acp_rig::POLICY,
    common::{World, done},
    fast_agent::peers,
};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A service of one workspace, `ws`.
pub(crate) struct Service {
    pub(crate) world: World,
    child: Child,
    pub(crate) address: String,
    pub(crate) token: String,
}

impl Service {
    pub(crate) fn start(policy: &str) -> Self {
        let world = World::with_policy(policy);
        world.file("a.txt", "one\ntwo\n");
        world.file("secret/key.txt", "TOP-SECRET\n");
        let mut child = world
            .command(&["serve", "--name", "ws", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut after = |mark: &str| {
            let line = lines.find(|line| line.contains(mark)).expect("the service starts");
            line.split_once(mark).unwrap().1.to_owned()
        };
        let address = after("http://");
        let token = after("shown this once: ");
        after("ready");
        Self { world, child, address, token }
    }

    fn socket(&self) -> String {
        format!("ws://{}/workspaces/ws/ws", self.address)
    }

    /// Runs a client with a plan on its stdin.
    fn drive(&self, command: &mut Command, plan: &Value) -> Value {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(plan.to_string().as_bytes()).unwrap();
        done(child.wait_with_output().unwrap()).ok().json()
    }

    fn python(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new(peers().join("bin/python"));
        command.arg(scripts().join(script)).args(args);
        command
    }

    /// Stops it, and gives the records of the workspace.
    pub(crate) fn end(mut self) -> Vec<Value> {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.world.run(&["audit", "verify"]).ok();
        self.world.records()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

/// The Node that the conformance scenarios come with.
pub(crate) fn node() -> PathBuf {
    let node = scripts().join("conformance/node_modules/node/bin/node");
    assert!(node.exists(), "no {}; see tests/peers/README.md", node.display());
    node
}

fn message(kind: &str, id: &str, fields: Value) -> Value {
    let mut message = json!({"channel": "files", "type": kind, "requestId": id});
    message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    message
}

fn plan() -> Value {
    json!([
        message("list", "1", json!({"path": "/"})),
        message("write", "2", json!({"path": "/new/b.txt", "content": "ünïcode\n"})),
        message("read", "3", json!({"path": "new/b.txt"})),
        message("read", "4", json!({"path": "/secret/key.txt"})),
        message("stat", "5", json!({"path": "/a.txt"})),
        message("delete", "6", json!({"path": "/new"})),
    ])
}

fn check_answers(answers: &Value) {
    let answers = answers.as_array().unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer["requestId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["1", "2", "3", "4", "5", "6"]);
    assert!(answers.iter().all(|answer| answer["receipt"]["leaf"].is_string()), "{answers:#?}");
    assert_eq!(answers[0]["data"][0]["name"], "a.txt");
    assert_eq!(answers[2]["data"], json!({"content": "ünïcode\n", "encoding": "utf-8"}));
    assert_eq!(answers[3]["rule"], "keys");
    assert_eq!(answers[4]["data"]["size"], 8);
}

#[test]
fn python_websockets_speak_the_files_channel() {
    let service = Service::start(POLICY);
    for (how, subprotocol) in [("protocol", json!("Bearer")), ("query", Value::Null)] {
        let mut client = service.python("ws_client.py", &[&service.socket(), &service.token, how]);
        let report = service.drive(&mut client, &plan());
        check_answers(&report["answers"]);
        assert_eq!(report["subprotocol"], subprotocol);
        let told = report["changes"].to_string();
        assert!(told.contains("/new") && !told.contains("secret"), "{told}");
    }
    let mut stranger = service.python("ws_client.py", &[&service.socket(), "wrong", "query"]);
    assert_eq!(service.drive(&mut stranger, &json!([]))["status"], 401);
    let elsewhere = format!("ws://{}/workspaces/other/ws", service.address);
    let mut lost = service.python("ws_client.py", &[&elsewhere, &service.token, "query"]);
    assert_eq!(service.drive(&mut lost, &json!([]))["status"], 404);

    let records = service.end();
    let intents = records.iter().filter(|record| record["kind"] == "intent").count();
    assert_eq!(intents, 4, "{records:#?}");
}

#[test]
fn nodes_websocket_speaks_the_files_channel() {
    let service = Service::start(POLICY);
    for how in ["protocol", "query"] {
        let mut client = Command::new(node());
        client.arg(scripts().join("ws_client.mjs")).args([&service.socket(), &service.token, how]);
        let report = service.drive(&mut client, &plan());
        check_answers(&report["answers"]);
        assert_eq!(report["protocol"], if how == "protocol" { "Bearer" } else { "" });
        assert_eq!(report["closed"], json!({"code": 1000, "reason": "", "wasClean": true}));
    }
    service.end();
}

#[test]
fn the_python_client_speaks_every_lifecycle_over_http() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"remove\"]\n\
         paths = [\"old/**\"]\nreason = \"old things\"\n"
    );
    let service = Service::start(&policy);
    let calls = json!([
        ["workspace__ws__ls", {"path": "."}],
        ["workspace__ws__grep", {"pattern": "two"}],
        ["workspace__ws__read_file", {"path": "secret/key.txt"}],
        ["workspace__ws__rm", {"path": "old/x"}],
        ["workspace__ws__chmod", {}],
    ]);
    for (mode, path, protocol) in [
        ("legacy", "/mcp", "2025-11-25"),
        ("auto", "/workspaces/ws/mcp", "2026-07-28"),
        ("2026-07-28", "/mcp", "2026-07-28"),
    ] {
        service.world.file("old/x", "x");
        let url = format!("http://{}{path}", service.address);
        let mut client = service.python("mcp_http.py", &[mode, "once", &url, &service.token]);
        let report = service.drive(&mut client, &calls);
        assert_eq!(report["protocol"], protocol, "{mode}");
        let results = &report["results"];
        assert!(results[0].to_string().contains("a.txt"), "{mode}: {results:#}");
        assert_eq!(results[1]["structuredContent"]["matches"][0]["path"], "a.txt", "{results:#}");
        assert_eq!(results[2]["_meta"]["portcullis/error"]["rule"], "keys", "{results:#}");
        assert_eq!(results[3]["isError"], false, "{mode}: {results:#}");
        assert_eq!(report["asked"].as_array().unwrap().len(), 1, "{mode}: {report:#}");
        assert!(!service.world.path("old/x").exists());
        assert!(results[4]["raised"].as_str().unwrap().contains("no tool"), "{results:#}");
    }
    let records = service.end();
    let removed: Vec<_> = records
        .iter()
        .filter(|record| record["kind"] == "intent" && record["op"] == "remove")
        .map(|record| record["session"].as_str().unwrap())
        .collect();
    assert_eq!(removed.len(), 3);
    // Where there are no sessions the token is one.
    assert_eq!(removed[1], removed[2], "{removed:?}");
    assert_ne!(removed[0], removed[1], "{removed:?}");
}

#[test]
fn the_conformance_scenarios_pass_but_for_those_that_are_listed() {
    let service = Service::start(POLICY);
    let conformance = scripts().join("conformance");
    let output = Command::new(node())
        .arg(conformance.join("bearer.mjs"))
        .args([&service.address, &service.token, "/mcp"])
        .arg(node())
        .arg(conformance.join("node_modules/.bin/conformance"))
        .args(["server", "--url", "URL", "--suite", "all"])
        .output()
        .unwrap();
    let report = done(output);
    let outcome = |mark: &str| -> BTreeSet<String> {
        let lines = report.text().lines().filter_map(|line| line.strip_prefix(mark));
        lines.filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
    };
    let list = std::fs::read_to_string(conformance.join("expected-failures.yaml")).unwrap();
    let listed = list.lines().filter_map(|line| line.strip_prefix("  - "));
    let listed: BTreeSet<_> = listed.map(str::to_owned).collect();
    // This one compares the time until a client came back with a clock.
    let mut failed = outcome("✗ ");
    failed.remove("server-sse-polling");
    assert_eq!(failed, listed, "{} {}", report.text(), report.stderr);
    assert!(outcome("✓ ").len() >= 7, "{}", report.text());
    service.end();
}

#[test]
fn the_inspector_lists_and_calls() {
    let service = Service::start(POLICY);
    let inspector = scripts().join("conformance/node_modules/.bin/mcp-inspector");
    let ask = |args: &[&str]| {
        let output = Command::new(node())
            .arg(&inspector)
            .args(["--cli", &format!("http://{}/mcp", service.address), "--transport", "http"])
            .args(["--header", &format!("Authorization: Bearer {}", service.token)])
            .args(args)
            .env("HOME", service.world.base())
            .output()
            .unwrap();
        done(output)
    };
    let tools = ask(&["--method", "tools/list"]).ok().json();
    let names: Vec<_> =
        tools["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert!(names.contains(&&json!("workspace__ws__rm")), "{names:?}");
    let call = |tool: &str, argument: &str| {
        ask(&["--method", "tools/call", "--tool-name", tool, "--tool-arg", argument])
    };
    let listed = call("workspace__ws__ls", "path=.").ok().json();
    assert_eq!(listed["structuredContent"]["entries"][0]["path"], "a.txt", "{listed}");
    let denied = call("workspace__ws__read_file", "path=secret/key.txt");
    assert!(denied.text().contains("denied by rule `keys`"), "{denied:?}");
    let resources = ask(&["--method", "resources/list"]).ok().json();
    assert!(!resources.to_string().contains("secret"), "{resources}");
    service.end();
}

/// Messages of a reply, whether it is an event stream or one message.
fn messages(reply: &str) -> Vec<Value> {
    let lines = reply.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
}

/// A subscriber of the newest revision gets a stream that begins with an
/// acknowledgement.
#[test]
fn a_subscriber_over_http_hears_of_changes() {
    let service = Service::start(POLICY);
    let file = service.world.root().canonicalize().unwrap().join("a.txt");
    let uri = format!("file://{}", file.display());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let root = file.parent().unwrap().display();
    let wanted = [&uri, &format!("file://{root}/secret/key.txt"), &format!("file://{root}/none")];
    let params = json!({"_meta": meta, "notifications": {
        "resourceSubscriptions": wanted, "promptsListChanged": true,
    }});
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params});
    let body = body.to_string();
    let mut stream = TcpStream::connect(&service.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n\
         Content-Length: {}\r\n\r\n",
        service.token,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut heard = String::new();
    let mut until = |mark: &str| {
        while !heard.contains(mark) {
            let mut some = [0; 4096];
            let got = stream.read(&mut some).unwrap();
            assert!(got > 0, "{heard}");
            heard.push_str(&String::from_utf8_lossy(&some[..got]));
        }
    };
    until("subscriptions/acknowledged");
    // From then on nothing is missed.
    std::fs::write(&file, "new\n").unwrap();
    until("notifications/resources/updated");
    let told = messages(&heard);
    let is = |message: &&Value| message["method"] == "notifications/subscriptions/acknowledged";
    let acknowledged = told.iter().find(is).unwrap_or_else(|| panic!("{heard}"));
    // Denied, missing and unwatchable resources are not promised.
    let granted = json!({"resourceSubscriptions": [uri]});
    assert_eq!(acknowledged["params"]["notifications"], granted, "{acknowledged}");
    let updated = messages(&heard);
    let is = |message: &&Value| message["method"] == "notifications/resources/updated";
    let updated = updated.iter().find(is).unwrap_or_else(|| panic!("{heard}"));
    assert_eq!(updated["params"]["uri"], uri, "{updated}");
    drop(stream);
    service.end();
}

/// An HTTP/1.1 exchange over a connection of its own; gives status and body.
fn exchange(service: &Service, head: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(&service.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A request that is refused early is not read to its end.
    let _ = stream.write_all(body);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), reply)
}

#[test]
fn what_is_no_mcp_over_http_is_refused_and_the_service_goes_on() {
    let service = Service::start(POLICY);
    let bearer = format!("Authorization: Bearer {}", service.token);
    let post = |path: &str, headers: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\n{headers}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}",
            body.len()
        );
        exchange(&service, &head, body.as_bytes())
    };
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    assert_eq!(post("/mcp", "X: y", hello).0, 401);
    assert_eq!(post("/mcp", "Authorization: Bearer wrong", hello).0, 401);
    assert_eq!(post("/workspaces/other/mcp", &bearer, hello).0, 404);
    let (status, reply) = post("/mcp", &bearer, hello);
    assert_eq!(status, 200, "{reply}");
    assert!(reply.to_lowercase().contains("mcp-session-id"), "{reply}");
    // A message that `rmcp` would read with the last of each key.
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"workspace__ws__write_file","arguments":{"path":"a.txt","path":"twice.txt","content":"x"}}}"#;
    for (body, code) in [
        ("{", -32700),
        ("[]", -32600),
        ("7", -32600),
        (twice, -32700),
        ("\u{feff}{}", -32700),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
    ] {
        let (status, reply) = post("/mcp", &bearer, body);
        assert_eq!(status, 400, "{body}: {reply}");
        let said = reply.rsplit("\r\n").next().unwrap();
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["error"]["code"], code, "{body}: {reply}");
        assert!(said["error"]["data"]["receipt"]["seq"].is_u64(), "{body}: {reply}");
    }
    // A session that does not exist, and one of no client.
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let session = format!("{bearer}\r\nMcp-Session-Id: {}", "0".repeat(32));
    assert_eq!(post("/mcp", &session, list).0, 404);
    let put = format!("PUT /mcp HTTP/1.1\r\n{bearer}\r\nContent-Length: 0");
    assert_eq!(exchange(&service, &put, b"").0, 405);
    // A body of a gigabyte, announced and not.
    let huge = format!("POST /mcp HTTP/1.1\r\n{bearer}\r\nContent-Length: 1073741824");
    assert_eq!(exchange(&service, &huge, b"{}").0, 413);
    assert_eq!(post("/mcp", &bearer, hello).0, 200);
    let records = service.end();
    assert_eq!(records.iter().filter(|record| record["op"] == "mcp.dropped").count(), 6);
    assert!(!records.iter().any(|record| record["path"] == "twice.txt"));
}
