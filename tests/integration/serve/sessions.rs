//! Sessions over MCP that go on while policies and workers change, and their ends.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    mcp::listen,
    rig::{Service, Site, answer, kill, status, wait},
};
use crate::common::ALL;

const READ: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n";
const CHANGED: &str = "notifications/tools/list_changed";

/// A session of a revision that has them.
struct Session<'a> {
    service: &'a Service,
    token: String,
    id: String,
}

impl<'a> Session<'a> {
    fn begin(service: &'a Service, token: &str) -> Self {
        Self::greeted(service, token).0
    }

    /// The same with the server's greeting.
    fn greeted(service: &'a Service, token: &str) -> (Self, Value) {
        let mut session = Self { service, token: token.to_owned(), id: String::new() };
        let info = json!({ "name": "test", "version": "1" });
        let hello =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let reply = all(session.put("initialize", &hello));
        let id = reply.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        session.id = id.unwrap_or_else(|| panic!("{reply}")).trim().to_owned();
        let lines = reply.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let mut messages = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let greeting = messages.find(|message| message["id"] == 1);
        (session, greeting.unwrap_or_else(|| panic!("{reply}")))
    }

    fn send(&self, method: &str, body: &str) -> TcpStream {
        let Self { token, id, .. } = self;
        let named = if id.is_empty() { String::new() } else { format!("Mcp-Session-Id: {id}\r\n") };
        let head = format!(
            "{method} /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\n{named}\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.service.connect();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    /// Sends a request; the reply comes over the connection.
    fn put(&self, method: &str, params: &Value) -> TcpStream {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.send("POST", &body.to_string())
    }

    fn call(&self, tool: &str, arguments: &Value) -> TcpStream {
        let name = format!("workspace__shop__{tool}");
        self.put("tools/call", &json!({ "name": name, "arguments": arguments }))
    }

    /// Opens the stream of messages that are no replies.
    fn stream(&self) -> BufReader<TcpStream> {
        let mut stream = BufReader::new(self.send("GET", ""));
        until(&mut stream, "id: 0");
        stream
    }

    fn ping(&self) -> u16 {
        status(&all(self.put("ping", &json!({}))))
    }

    fn has_write(&self) -> bool {
        all(self.put("tools/list", &json!({}))).contains("workspace__shop__write_file")
    }
}

fn all(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Reads until a line has a word.
fn until(stream: &mut BufReader<TcpStream>, word: &str) {
    let mut heard = String::new();
    while !heard.contains(word) {
        assert!(stream.read_line(&mut heard).unwrap() > 0, "{heard}");
    }
}

fn offer(site: &Site, service: &Service, version: u64, text: &str) {
    fs::write(site.base().join("policy.toml"), format!("version = {version}\n{text}")).unwrap();
    service.signal(Signal::HUP);
}

/// Returns the number of files that the front has open.
fn files(service: &Service) -> usize {
    let front = service.processes("front-process").pop().unwrap();
    fs::read_dir(format!("/proc/{front}/fd")).unwrap().count()
}

/// It came from the front, which knows neither workspace nor policy.
#[test]
fn the_greeting_says_what_the_agent_has_to_know() {
    let site = Site::new(&["shop"]);
    fs::write(site.base().join("policy.toml"), READ).unwrap();
    let service = site.serve();
    let token = site.token("all");
    let root = site.root("shop").canonicalize().unwrap();
    let (_session, greeting) = Session::greeted(&service, token);
    let discovered = service.post_message(token, "shop", ("server/discover", None), &json!({}));
    for said in [greeting, answer(discovered)] {
        let told = said["result"]["instructions"].as_str().unwrap_or_else(|| panic!("{said}"));
        assert!(told.len() < 2048 && told.contains(root.to_str().unwrap()), "{told}");
        assert!(told.contains("the server's machine"), "{told}");
        assert!(told.contains("never allows you to write, append"), "{told}");
        let undo = told.split_once("portcullis undo --session ").unwrap().1;
        let session = undo.split('`').next().unwrap();
        site.await_record("shop", |record| record["session"] == session);
    }
}

#[test]
fn clients_over_http_hear_of_other_tools() {
    let site = Site::new(&["shop"]);
    fs::write(site.base().join("policy.toml"), READ).unwrap();
    let service = site.serve();
    let token = site.token("all");
    let session = Session::begin(&service, token);
    let mut stream = session.stream();
    let mut listening =
        BufReader::new(listen(&service, token, &json!({ "toolsListChanged": true })));
    assert!(!session.has_write());
    for (version, policy) in [(2, ALL), (3, READ)] {
        offer(&site, &service, version, policy);
        until(&mut stream, CHANGED);
        until(&mut listening, CHANGED);
        assert_eq!(session.has_write(), policy == ALL);
        let written = all(session.call("write_file", &json!({ "path": "x", "content": "x" })));
        assert_eq!(written.contains("there is no tool"), policy == READ, "{written}");
    }
}

/// Its stream stayed open, the front answered its pings, and kept a file open for it.
#[test]
fn a_session_whose_worker_is_gone_ends_for_its_client() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    // A front opens what it listens with once its start is on record.
    assert_eq!(service.get("/healthz", &[]).0, 200);
    let before = files(&service);
    let session = Session::begin(&service, token);
    let stream = session.stream();
    assert_eq!(session.ping(), 200);
    kill(service.processes("worker-process")[0], Signal::KILL);
    all(stream.into_inner());
    assert_eq!(session.ping(), 404);
    assert_eq!(status(&all(session.send("GET", ""))), 404);
    wait(|| (files(&service) <= before).then_some(()));
    // It begins anew.
    assert_eq!(Session::begin(&service, token).ping(), 200);
}

/// A session with a request in progress was answered.
#[test]
fn a_session_whose_token_holds_no_more_is_not_answered() {
    let mut site = Site::new(&["shop"]);
    let asks = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\npaths = [\"asked.txt\"]\n";
    fs::write(site.base().join("policy.toml"), format!("{ALL}{asks}")).unwrap();
    let old = site.add_agent("old", "workspaces = [\"shop\"]");
    let service = site.serve();
    let session = Session::begin(&service, &old);
    let _waits = session.call("read_file", &json!({ "path": "asked.txt" }));
    site.await_record("shop", |record| record["decision"] == "ask");
    site.agents.retain(|(name, ..)| name != "old");
    site.write();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload");
    wait(|| (session.ping() == 404).then_some(()));
}

/// A question of it could be approved until the front no longer waited for the reply.
#[test]
fn a_session_that_its_client_ends_asks_nobody_any_more() {
    let site = Site::new(&["shop"]);
    let asks = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\npaths = [\"asked.txt\"]\n";
    fs::write(site.base().join("policy.toml"), format!("{ALL}{asks}")).unwrap();
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let _waits = session.call("write_file", &json!({ "path": "asked.txt", "content": "x" }));
    site.await_record("shop", |record| record["decision"] == "ask");
    assert_eq!(status(&all(session.send("DELETE", ""))), 200);
    // From here on the front does nothing more.
    let front = service.processes("front-process").pop().unwrap();
    kill(front, Signal::STOP);
    site.await_record("shop", |record| record["result"] == "withdrawn");
    kill(front, Signal::CONT);
}

const ASKS: &str = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\npaths = [\"asked.txt\"]\n";

/// A client got the content of another's file, and the other hung.
#[test]
fn a_second_request_under_an_id_that_is_in_use_in_a_session_is_refused() {
    let site = Site::new(&["shop"]);
    fs::write(site.base().join("policy.toml"), format!("{ALL}{ASKS}")).unwrap();
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let waits = session.call("write_file", &json!({ "path": "asked.txt", "content": "x" }));
    site.await_record("shop", |record| record["decision"] == "ask");
    let read =
        |session: &Session<'_>| all(session.call("read_file", &json!({ "path": "file.txt" })));
    let refused = read(&session);
    assert_eq!(status(&refused), 400, "{refused}");
    assert!(refused.contains("-32600") && refused.contains("\"id\":1"), "{refused}");
    site.await_record("shop", |record| record["op"] == "mcp.dropped");
    // In another session it is another.
    assert!(read(&Session::begin(&service, site.token("all"))).contains("of shop"));
    // The reply is not read, but must come.
    drop(waits);
    assert_eq!(status(&read(&session)), 400);
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": 1 } });
    assert_eq!(status(&all(session.send("POST", &cancel.to_string()))), 202);
    let answer = wait(|| Some(read(&session)).filter(|reply| status(reply) != 400));
    assert!(answer.contains("of shop"), "{answer}");
}

#[test]
fn requests_without_a_session_may_have_the_same_id() {
    let site = Site::new(&["shop"]);
    fs::write(site.base().join("policy.toml"), format!("{ALL}{ASKS}")).unwrap();
    fs::write(site.root("shop").join("asked.txt"), "asked\n").unwrap();
    let service = site.serve();
    let token = site.token("all");
    let first = service.post(token, "shop", "read_file", &json!({ "path": "asked.txt" }));
    let asked = site.await_record("shop", |record| record["decision"] == "ask");
    let read = service.call(token, "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["content"][0]["text"], "of shop\n", "{read}");
    let request = asked["facts"]["question"].as_str().unwrap_or_else(|| panic!("{asked}"));
    let state = site.state("shop");
    site.world.run(&["approve", "--yes", "--state", state.to_str().unwrap(), request]).ok();
    assert!(all(first).contains("asked\\n"));
}

/// It got nothing for five seconds, and then that something had failed.
#[test]
fn a_listener_is_told_when_its_worker_stops() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let listening = listen(&service, site.token("all"), &json!({ "toolsListChanged": true }));
    let text = fs::read_to_string(site.config()).unwrap();
    let state = "state = \"states/shop\"\n";
    fs::write(site.config(), text.replace(state, &format!("{state}ask = \"shell\"\n"))).unwrap();
    service.signal(Signal::HUP);
    let told = all(listening);
    assert!(told.contains("\"result\"") && !told.contains("\"error\""), "{told}");
}

/// The reply was success, without an effect.
#[test]
fn what_is_no_session_any_more_cannot_be_ended() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = Session::begin(&service, site.token("all"));
    assert_eq!(status(&all(session.send("DELETE", ""))), 200);
    assert_eq!(status(&all(session.send("DELETE", ""))), 404);
    session.id = "00000000-0000-0000-0000-000000000000".to_owned();
    assert_eq!(status(&all(session.send("DELETE", ""))), 404);
}

/// Some were not recorded, and empty bodies were refused for their type.
#[test]
fn what_there_is_not_is_refused_on_record_over_http_too() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let records = |op: &str| {
        let of = |record: &Value| record["op"] == op;
        site.records("shop").into_iter().filter(of).count()
    };
    for (method, params) in [
        ("prompts/get", json!({ "name": "x" })),
        ("tasks/get", json!({ "taskId": "x" })),
        ("subscriptions/listen", json!({ "notifications": {} })),
        ("no/such", json!({})),
    ] {
        let reply = all(session.put(method, &params));
        assert_eq!(status(&reply), 200, "{reply}");
        assert!(reply.contains("-32601") && reply.contains("\"receipt\""), "{reply}");
        assert_eq!(records(method), 1);
    }
    let refused = service.post_message(
        site.token("all"),
        "shop",
        ("resources/subscribe", None),
        &json!({ "uri": "file:///x" }),
    );
    let refused = all(refused);
    assert_eq!(status(&refused), 404, "{refused}");
    assert!(refused.contains("-32601") && records("resources/subscribe") == 1, "{refused}");
    for (count, body) in ["", " ", "\r\n"].into_iter().enumerate() {
        let reply = all(session.send("POST", body));
        assert_eq!(status(&reply), 400, "{reply}");
        assert!(reply.contains("-32700"), "{reply}");
        assert_eq!(records("mcp.dropped"), count + 1);
    }
    // A client that leaves before the reply may not have been read.
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/no" }).to_string();
    assert_eq!(status(&all(session.send("POST", &notification))), 202);
    site.await_record("shop", |record| {
        record["facts"]["reason"].as_str().is_some_and(|why| why.contains("`notifications/no`"))
    });
    // A message of the front to its worker is not a client's to send.
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/portcullis/repeated" });
    assert_eq!(status(&all(session.send("POST", &notification.to_string()))), 202);
    site.await_record("shop", |record| {
        let why = record["facts"]["reason"].as_str();
        why.is_some_and(|why| why.contains("there is no notification `notifications/portcullis/"))
    });
}
