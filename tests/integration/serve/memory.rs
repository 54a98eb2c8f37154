//! Memory that clients take, and processes for which there is little.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    thread,
};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::rig::{Service, Site, Socket, status, wait};

const MIB: u64 = 1 << 20;

/// Returns a number of a process in pages of 4 KiB, in bytes: its address space
/// (0), or its resident part (1).
fn size(pid: u32, number: usize) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    sizes.split(' ').nth(number).unwrap().parse::<u64>().unwrap() * 4096
}

/// Lets a process have `more` bytes of address space than it has; gives its id.
fn limit(service: &Service, word: &str, more: u64) -> u32 {
    let pid = service.processes(word).pop().unwrap();
    let most = Some(size(pid, 0) + more);
    let of = Pid::from_raw(pid.try_into().unwrap());
    prlimit(of, Resource::As, Rlimit { current: most, maximum: most }).unwrap();
    pid
}

/// Begins a message of `length` bytes and sends its first one.
fn announce(session: &mut Socket, length: u64) {
    let mut begun = vec![0x81, 0xff];
    begun.extend(length.to_be_bytes());
    begun.extend([0; 4]);
    begun.push(b'{');
    session.stream.get_mut().write_all(&begun).unwrap();
}

fn is_open(session: &Socket) -> bool {
    let stream = session.stream.get_ref();
    stream.set_nonblocking(true).unwrap();
    let open = stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    open
}

/// They were reserved completely, and the front ended for all clients.
#[test]
fn messages_that_are_announced_take_no_memory_of_the_front() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let mut other = service.session(token, "shop");
    let front = limit(&service, "front-process", 512 * MIB);
    let mut announced: Vec<_> = (0..16).map(|_| service.session(token, "shop")).collect();
    for session in &mut announced {
        announce(session, 100 * MIB);
    }
    // Once they have been seen.
    for _ in 0..50 {
        assert_eq!(other.read("file.txt").unwrap(), "of shop\n");
    }
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    assert!(announced.iter().all(is_open));
    assert_eq!(service.processes("front-process"), [front]);
}

#[test]
fn a_message_for_which_the_front_has_no_memory_is_closed_with_1013() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { bodySeconds = 600 }".to_owned();
    let service = site.serve();
    let token = site.token("all");
    let mut other = service.session(token, "shop");
    let front = limit(&service, "front-process", 112 * MIB);
    let mut large = service.session(token, "shop");
    announce(&mut large, 140 * MIB);
    // More than fits beside what the front gives back after its size was looked at.
    send(large.stream.get_ref(), 100);
    assert_eq!(large.rest(), (0, Some(1013)));
    let head = format!(
        "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Content-Length: {}\r\n\r\n",
        140 * MIB
    );
    let mut stream = service.connect();
    stream.write_all(head.as_bytes()).unwrap();
    send(&stream, 100);
    let mut reply = String::new();
    BufReader::new(&stream).read_line(&mut reply).unwrap();
    assert_eq!(status(&reply), 429, "{reply}");
    assert_eq!(other.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.processes("front-process"), [front]);
}

/// Sends that many MiB while another thread reads; a peer that does not take
/// them all is no error.
fn send(stream: &TcpStream, mebibytes: usize) {
    let mut stream = stream.try_clone().unwrap();
    thread::spawn(move || {
        let piece = vec![b' '; 1 << 20];
        for _ in 0..mebibytes {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
    });
}

#[test]
fn a_message_for_which_a_worker_has_no_memory_ends_its_session_alone() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let mut other = service.session(token, "shop");
    assert_eq!(other.read("file.txt").unwrap(), "of shop\n");
    let worker = limit(&service, "worker-process", 128 * MIB);
    let mut large = service.session(token, "shop");
    let text = vec![b' '; 60 << 20];
    large.say(&text).unwrap();
    assert_eq!(large.rest().0, 0);
    site.await_record("shop", |record| {
        let why = record["facts"]["reason"].as_str();
        record["op"] == "files.dropped" && why.is_some_and(|why| why.contains("memory"))
    });
    assert_eq!(other.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.processes("worker-process"), [worker]);
}

/// Begins a session over MCP and leaves it; gives the reply.
fn begin(service: &Service, token: &str) -> String {
    let info = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let body = body.to_string();
    let head = format!(
        "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = service.connect();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The sessions of a workspace that are open, as `/metrics` has them.
fn open(service: &Service, token: &str) -> Option<u64> {
    let page = service.numbers(token);
    let line = "portcullis_sessions{workspace=\"shop\"} ";
    page.lines().find_map(|one| one.strip_prefix(line))?.parse().ok()
}

/// There were up to 4,000 of each agent, and each took half a megabyte for half an
/// hour.
#[test]
fn sessions_that_clients_begin_and_leave_are_bounded_and_so_is_their_memory() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    begin(&service, token);
    let worker = service.processes("worker-process").pop().unwrap();
    let before = size(worker, 1);
    let replies: Vec<_> = (0..300).map(|_| begin(&service, token)).collect();
    let begun = replies.iter().filter(|reply| status(reply) == 200).count();
    assert_eq!(begun, 255);
    for refused in replies.iter().skip(begun) {
        assert_eq!(status(refused), 429, "{refused}");
        assert!(refused.contains("retry-after: "), "{refused}");
    }
    wait(|| (open(&service, token) == Some(256)).then_some(()));
    let taken = size(worker, 1).saturating_sub(before);
    assert!(taken < 256 * MIB, "{taken}");
}

#[test]
fn a_session_in_which_nothing_is_said_ends_and_leaves_its_place() {
    let mut site = Site::new(&["shop"]);
    site.settings = "sessionIdleSeconds = 1\nlimits = { sessions = 8 }".to_owned();
    let service = site.serve();
    let token = site.token("all");
    let worker = || service.processes("worker-process").pop().unwrap();
    let threads = || std::fs::read_dir(format!("/proc/{}/task", worker())).unwrap().count();
    let mut session = service.session(token, "shop");
    let alone = threads();
    for _ in 0..3 {
        // As many as there may be, and one more once they have ended.
        for _ in 0..8 {
            wait(|| (status(&begin(&service, token)) == 200).then_some(()));
        }
    }
    wait(|| (open(&service, token) == Some(1)).then_some(()));
    // Twenty-four sessions had two each; others come and go.
    wait(|| (threads() < alone + 24).then_some(()));
    // A client that answers pings stays.
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
}

/// Each body opens a session that ends with it.
#[test]
fn bodies_that_are_no_messages_leave_nothing_behind() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut session = service.session(&token, "shop");
    let worker = service.processes("worker-process").pop().unwrap();
    let send = |count: usize| {
        for n in 0..count {
            let body = "{[\"x".repeat(n % 50 + 1);
            let head = format!(
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
                 Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let mut stream = service.connect();
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert_eq!(status(&reply), 400, "{reply}");
        }
    };
    send(200);
    let before = size(worker, 1);
    send(800);
    wait(|| (open(&service, &token) == Some(1)).then_some(()));
    let taken = size(worker, 1).saturating_sub(before);
    assert!(taken < 16 * MIB, "{taken}");
    assert_eq!(session.ask("stat", json!({ "path": "file.txt" })).unwrap()["error"], Value::Null);
}
