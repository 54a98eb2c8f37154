//! Memory that messages over MCP take: on their way to the worker, and for as long
//! as their session.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, status, wait};

const MIB: u64 = 1 << 20;

/// Returns the resident memory of a process in bytes.
fn resident(pid: u32) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// A process that does not run while this exists.
struct Stopped(u32);

impl Stopped {
    fn new(service: &Service, word: &str) -> Self {
        let pid = service.processes(word).pop().unwrap();
        kill(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

/// A client's session over HTTP.
struct Session<'a> {
    service: &'a Service,
    token: &'a str,
    id: Option<String>,
}

impl<'a> Session<'a> {
    fn begin(service: &'a Service, token: &'a str) -> Self {
        let mut session = Self { service, token, id: None };
        let info = json!({ "name": "test", "version": "1" });
        let reply = session.initialize(&json!({}), &info);
        assert_eq!(status(&reply), 200, "{reply}");
        let id = reply.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        session.id = Some(id.unwrap().to_owned());
        session
    }

    fn initialize(&self, capabilities: &Value, info: &Value) -> String {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info,
        });
        self.ask("initialize", &params)
    }

    /// Sends a request, and returns the reply with its head.
    fn ask(&self, method: &str, params: &Value) -> String {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut stream = self.service.connect();
        stream.write_all(&self.request(&body, "Connection: close\r\n")).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Returns a request with a message.
    fn request(&self, message: &Value, headers: &str) -> Vec<u8> {
        let body = message.to_string();
        let id = self
            .id
            .as_ref()
            .map(|id| format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n"));
        format!(
            "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\n{headers}\
             Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.token,
            id.unwrap_or_default(),
            body.len()
        )
        .into_bytes()
    }
}

/// Reads what arrives, and drops it.
fn ignore_replies(stream: &TcpStream) {
    let mut stream = stream.try_clone().unwrap();
    thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
}

/// Each notification got its 202 at once and waited in the front, with the head that
/// it came with, however many there were.
#[test]
fn notifications_that_the_worker_does_not_take_take_no_memory_of_the_front() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let front = service.processes("front-process").pop().unwrap();
    let head: String = (0..4).map(|n| format!("X-{n}: {}\r\n", "y".repeat(7000))).collect();
    let note = session.request(&json!({ "jsonrpc": "2.0", "method": "notifications/none" }), &head);
    let before = resident(front);
    let worker = Stopped::new(&service, "worker-process");
    let mut stream = service.connect();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    ignore_replies(&stream);
    // The front stops reading when the first one waits.
    let sent = (0..3000).take_while(|_| stream.write_all(&note).is_ok()).count();
    let taken = resident(front).saturating_sub(before);
    assert!(taken < 32 * MIB, "{sent} notifications: {} MiB", taken / MIB);
    drop(worker);
    assert_eq!(status(&session.ask("ping", &json!({}))), 200);
}

/// The memory of a call was released when its reply began, which is before the worker
/// has the call.
#[test]
fn calls_whose_clients_leave_count_until_the_worker_has_them() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let session = Session::begin(&service, token);
    let front = service.processes("front-process").pop().unwrap();
    let call = |id: usize, length: usize| {
        let arguments = json!({ "path": "file.txt", "content": "x".repeat(length) });
        let params = json!({ "name": "workspace__shop__append_file", "arguments": arguments });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        session.request(&call, "")
    };
    let before = resident(front);
    let worker = Stopped::new(&service, "worker-process");
    for id in 0..16 {
        let mut stream = service.connect();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        // More than the socket to the worker holds.
        stream.write_all(&call(id, 12 << 20)).unwrap();
        // The head of the reply, if there is one.
        let _ = BufReader::new(&stream).read_line(&mut String::new());
    }
    thread::sleep(Duration::from_millis(500));
    let taken = resident(front).saturating_sub(before);
    assert!(taken < 96 * MIB, "{} MiB", taken / MIB);
    drop(worker);
    assert_eq!(status(&session.ask("ping", &json!({}))), 200);
}

/// A client's name, or its capabilities, stayed in front and worker as long as the
/// session, outside of every bound.
#[test]
fn a_session_is_not_as_large_as_its_initialize() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let session = Session::begin(&service, token);
    let pid = |word: &str| service.processes(word).pop().unwrap();
    let (front, worker) = (pid("front-process"), pid("worker-process"));
    let new = Session { service: &service, token, id: None };
    let large = json!({ "name": "x".repeat(1 << 20), "version": "1" });
    let reply = new.initialize(&json!({}), &large);
    assert_eq!(status(&reply), 400, "{reply}");
    assert!(reply.contains("65,536"), "{reply}");
    site.await_record("shop", |record| {
        let why = record["facts"]["reason"].as_str();
        record["op"] == "mcp.dropped" && why.is_some_and(|why| why.contains("65,536"))
    });
    let before = (resident(front), resident(worker));
    // As values they take sixteen times what they take as text.
    let many = json!({ "experimental": { "x": { "y": vec![0; 31_000] } } });
    for _ in 0..100 {
        let reply = new.initialize(&many, &json!({ "name": "test", "version": "1" }));
        assert_eq!(status(&reply), 200, "{reply}");
    }
    let taken = (resident(front) - before.0, resident(worker) - before.1);
    assert!(taken.0 < 48 * MIB && taken.1 < 80 * MIB, "{taken:?}");
    assert_eq!(status(&session.ask("ping", &json!({}))), 200);
}

/// It was kept as it was sent, of any length.
#[test]
fn a_subscription_to_a_uri_longer_than_a_path_is_refused() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let root = site.root("shop").canonicalize().unwrap();
    let subscribe = |slashes: usize| {
        let uri = format!("file://{}{}file.txt", root.display(), "/".repeat(slashes));
        session.ask("resources/subscribe", &json!({ "uri": uri }))
    };
    let reply = subscribe(10);
    assert!(reply.contains("\"result\":{}"), "{reply}");
    let reply = subscribe(20_000);
    assert!(reply.contains("longer than a path can be"), "{reply}");
    let reply = subscribe(1 << 20);
    assert!(status(&reply) == 400 && reply.contains("65,536"), "{reply}");
}

/// A reply over a stream is sent when its request has ended; until then another
/// connection can take it over.
#[test]
fn a_stream_can_be_resumed_while_its_request_is_under_way() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let call = |id: u32, path: &str| {
        let arguments = json!({ "path": path });
        let params = json!({ "name": "workspace__shop__read_file", "arguments": arguments });
        session.request(
            &json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }),
            "",
        )
    };
    let primed = |stream: &TcpStream| {
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("id: ").map(str::to_owned)).unwrap()
    };
    let resume = |event: &str| {
        let id = session.id.as_ref().unwrap();
        let bearer = format!("Bearer {}", session.token);
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Accept", "text/event-stream"),
            ("Mcp-Session-Id", id),
            ("MCP-Protocol-Version", "2025-11-25"),
            ("Last-Event-ID", event),
        ];
        service.get("/workspaces/shop/mcp", &headers)
    };
    let worker = Stopped::new(&service, "worker-process");
    let mut stream = service.connect();
    stream.write_all(&call(7, "file.txt")).unwrap();
    let event = primed(&stream);
    drop(stream);
    let front = service.processes("front-process").pop().unwrap();
    wait(|| (resident(front) > 0).then_some(()));
    let continued = thread::scope(|scope| {
        let resumed = scope.spawn(|| resume(&event));
        thread::sleep(Duration::from_millis(300));
        drop(worker);
        resumed.join().unwrap()
    });
    assert!(continued.0 == 200 && continued.1.contains("of shop"), "{}", continued.1);
    // The reply to a request that has ended is gone with its stream.
    let late = resume(&event);
    assert!(late.0 == 200 && !late.1.contains("data:"), "{}", late.1);
}
