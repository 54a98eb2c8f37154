//! Memory that messages over MCP take: on their way to the worker, and for as long
//! as their session.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, status, take_little, wait};

const MIB: u64 = 1 << 20;

/// Returns the resident memory of a process in bytes.
fn resident(pid: u32) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Waits until a process sleeps, which it does once it has taken all that was sent to it.
fn sleeps(pid: u32) {
    wait(|| {
        let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let is_asleep = tasks.all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        });
        is_asleep.then_some(())
    });
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

impl Session<'_> {
    /// Returns a request for a stream.
    fn get(&self, headers: &str) -> Vec<u8> {
        let (token, id) = (self.token, self.id.as_ref().unwrap());
        let head = format!(
            "GET /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\
             Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n{headers}\r\n"
        );
        head.into_bytes()
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

/// A body of a few kilobytes took a megabyte once it was parsed, and counted as nothing.
#[test]
fn parsed_values_did_not_count_in_the_memory_of_the_front() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"1MiB\" }".to_owned();
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let call = |id: usize, path: &Value| {
        let params = json!({ "name": "workspace__shop__stat", "arguments": { "path": path } });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        let mut stream = service.connect();
        stream.write_all(&session.request(&call, "")).unwrap();
        stream
    };
    let values = json!(vec![json!({ "": "" }); 1200]);
    let status_of = |stream: TcpStream| {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        status(&line)
    };
    assert_eq!(status_of(call(1, &values)), 200);
    let worker = Stopped::new(&service, "worker-process");
    // More than the socket to the worker holds.
    let waiting = call(2, &json!("x".repeat(700_000)));
    thread::sleep(Duration::from_millis(500));
    sleeps(service.processes("front-process").pop().unwrap());
    assert_eq!(status_of(call(3, &values)), 429);
    drop(worker);
    assert_eq!(status_of(waiting), 200);
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
    let many = |count: usize| json!({ "experimental": { "x": { "y": vec![0; count] } } });
    let reply = new.initialize(&many(31_000), &json!({ "name": "test", "version": "1" }));
    assert_eq!(status(&reply), 400, "{reply}");
    let many = many(900);
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

/// A client that lost its connection, and its resumption of the stream.
struct Resumption<'a> {
    session: &'a Session<'a>,
    event: String,
}

impl<'a> Resumption<'a> {
    /// Sends a request, and leaves when its stream begins.
    fn new(session: &'a Session<'a>, request: &Value) -> Self {
        let mut stream = session.service.connect();
        stream.write_all(&session.request(request, "")).unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let event = lines.find_map(|line| line.strip_prefix("id: ").map(str::to_owned)).unwrap();
        Self { session, event }
    }

    /// Resumes the stream.
    fn resume(&self) -> TcpStream {
        let mut stream = self.session.service.connect();
        let event = format!("Last-Event-ID: {}\r\n", self.event);
        stream.write_all(&self.session.get(&event)).unwrap();
        stream
    }
}

fn rest(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The reply to a request that has ended is gone with its stream, as the documentation says.
#[test]
fn a_stream_can_be_resumed_while_its_request_is_unanswered() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let arguments = json!({ "path": "file.txt" });
    let params = json!({ "name": "workspace__shop__read_file", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let worker = Stopped::new(&service, "worker-process");
    let left = Resumption::new(&session, &call);
    let resumed = left.resume();
    // Once its head is there.
    resumed.peek(&mut [0]).unwrap();
    drop(worker);
    let reply = rest(resumed);
    assert!(status(&reply) == 200 && reply.contains("of shop"), "{reply}");
    let late = rest(left.resume());
    assert!(status(&late) == 200 && !late.contains("data:"), "{late}");
}

/// They counted until the client that had asked was gone, which it was.
#[test]
fn replies_over_resumed_streams_count_until_the_client_has_them() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"64MiB\" }".to_owned();
    let size = 9_000_000;
    std::fs::write(site.root("shop").join("large.txt"), "x".repeat(size)).unwrap();
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let root = site.root("shop").canonicalize().unwrap();
    let read = |id: usize| {
        let params = json!({ "uri": format!("file://{}/large.txt", root.display()) });
        json!({ "jsonrpc": "2.0", "id": id, "method": "resources/read", "params": params })
    };
    let worker = Stopped::new(&service, "worker-process");
    let left: Vec<_> = (0..3).map(|id| Resumption::new(&session, &read(id))).collect();
    let unread: Vec<_> = left.iter().map(Resumption::resume).collect();
    unread.iter().for_each(take_little);
    unread.iter().for_each(|stream| {
        stream.peek(&mut [0]).unwrap();
    });
    drop(worker);
    // The beginning of a reply; nothing of it is taken.
    let begin = |stream: &TcpStream| {
        let mut begin = [0; 2048];
        let length = stream.peek(&mut begin).unwrap();
        let begin = String::from_utf8_lossy(&begin[..length]).into_owned();
        begin.contains("data: {").then_some(begin)
    };
    let replies = wait(|| unread.iter().map(begin).collect::<Option<Vec<_>>>());
    // The token has half of the memory, and each reply counts twice.
    let contents = replies.iter().filter(|reply| reply.contains("xxxx")).count();
    let refused = replies.iter().filter(|reply| reply.contains("too large for what is under way"));
    assert_eq!((contents, refused.count()), (1, 2));
}

/// It came over the session's own stream to the next client of that, and stayed there as
/// long as the session, sixteen of them.
#[test]
fn a_reply_that_meets_its_cancellation_is_not_kept() {
    let site = Site::new(&["shop"]);
    std::fs::write(site.root("shop").join("large.txt"), "x".repeat(100_000)).unwrap();
    let service = site.serve();
    let session = Session::begin(&service, site.token("all"));
    let root = site.root("shop").canonicalize().unwrap();
    let params = json!({ "uri": format!("file://{}/large.txt", root.display()) });
    let read = |id: u32| json!({ "jsonrpc": "2.0", "id": id, "method": "resources/read", "params": params });
    let ask = |id: u32| {
        let mut stream = service.connect();
        stream.write_all(&session.request(&read(id), "Connection: close\r\n")).unwrap();
        stream
    };
    let begun = Instant::now();
    assert!(rest(ask(0)).contains("xxx"));
    let time = begun.elapsed();
    for id in 1..400 {
        let stream = ask(id);
        // From a third of the time that a reply takes to all of it.
        thread::sleep(time * (100 + id % 200) / 300);
        let cancelled = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id },
        });
        let mut other = service.connect();
        let cancelled = session.request(&cancelled, "Connection: close\r\n");
        other.write_all(&cancelled).unwrap();
        assert_eq!(status(&rest(other)), 202);
        rest(stream);
    }
    let mut own = service.connect();
    own.write_all(&session.get("")).unwrap();
    own.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut kept = Vec::new();
    let _ = own.read_to_end(&mut kept);
    let kept = String::from_utf8_lossy(&kept);
    assert!(status(&kept) == 200 && !kept.contains("xxx"), "{} bytes", kept.len());
}
