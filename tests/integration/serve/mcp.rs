//! Sessions over MCP: whose they are, and when they end.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
};

use rustix::{
    net::{AddressFamily, SocketType, bind, connect, socket},
    process::Signal,
};
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, status, wait};
use crate::common::ALL;

/// Greets from an address of this machine; gives the status.
fn initialize(service: &Service, token: &str, from: Ipv4Addr) -> u16 {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, service.port)).unwrap();
    let info = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let mut stream = TcpStream::from(socket);
    post(&mut stream, token, "", "initialize", &params);
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    status(&reply)
}

fn post(stream: &mut TcpStream, token: &str, headers: &str, method: &str, params: &Value) {
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": params });
    let body = body.to_string();
    let head = format!(
        "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
}

/// Subscribes to the wanted changes; the notifications come over the
/// connection.
pub(super) fn listen(service: &Service, token: &str, wanted: &Value) -> TcpStream {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "_meta": meta, "notifications": wanted });
    let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n";
    let mut stream = service.connect();
    post(&mut stream, token, headers, "subscriptions/listen", &params);
    let mut heard = String::new();
    while !heard.contains("subscriptions/acknowledged") {
        let mut some = [0; 4096];
        let got = stream.read(&mut some).unwrap();
        assert!(got > 0, "{heard}");
        heard.push_str(&String::from_utf8_lossy(&some[..got]));
    }
    stream
}

fn peers(records: &[Value], op: &str) -> Vec<Value> {
    let of = records.iter().filter(|record| record["op"] == op);
    of.map(|record| record["facts"]["peer"].clone()).collect()
}

/// One of two workspaces had a configuration for clients.
#[test]
fn each_workspace_has_a_configuration_for_its_clients() {
    let service = Site::new(&["blog", "shop"]).serve();
    for name in ["blog", "shop"] {
        let begin = format!("portcullis: MCP client of `{name}`: ");
        let line = service.said.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
        let client: Value = serde_json::from_str(line).unwrap();
        let url = format!("http://127.0.0.1:{}/workspaces/{name}/mcp", service.port);
        assert_eq!(client["url"], url.as_str(), "{}", service.said);
    }
}

/// All requests of a token were recorded with the address of the first one.
#[test]
fn a_session_is_recorded_under_the_address_that_asked_for_it() {
    let mut site = Site::new(&["shop"]);
    let old = site.add_agent("old", "workspaces = [\"shop\"]");
    let service = site.serve();
    let from = |last: u8| initialize(&service, &old, Ipv4Addr::new(127, 0, 0, last));
    assert_eq!((from(50), from(60)), (200, 200));
    assert_eq!(peers(&site.records("shop"), "session"), ["127.0.0.50", "127.0.0.60"]);
    site.agents.retain(|(name, ..)| name != "old");
    site.write();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload");
    assert_eq!(from(70), 401);
    assert_eq!(peers(&site.records("serve"), "login"), ["127.0.0.70"]);
}

#[test]
fn the_label_of_a_read_is_that_of_a_token_over_all_its_sessions() {
    let mut site = Site::new(&["shop"]);
    site.add_agent("other", "workspaces = [\"shop\"]");
    let labels = "[[labels]]\nid = \"customers\"\npaths = [\"file.txt\"]\n";
    fs::write(site.base().join("policy.toml"), format!("{ALL}{labels}")).unwrap();
    let service = site.serve();
    let mut sessions =
        ["all", "all", "other"].map(|agent| service.session(site.token(agent), "shop"));
    for session in &mut sessions {
        let got = session.ask("read", json!({ "path": "/file.txt" })).unwrap();
        assert_eq!(got["data"]["content"], "of shop\n", "{got}");
    }
    let read = service.call(site.token("all"), "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["isError"], false, "{read}");
    let records = site.records("shop");
    let of = |op: &str| {
        let records = records.iter().filter(|record| record["op"] == op);
        records.filter_map(|record| record["agent"].as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("label"), ["all", "other"]);
    assert_eq!(of("read").len(), 4);
}

/// It went on as long as its token was used within a quarter of an hour: after
/// the limit of denials nothing was served any more, and no worker stopped.
#[test]
fn the_session_of_those_without_one_ends_when_nothing_is_asked() {
    let mut site = Site::new(&["shop"]);
    site.settings = "idleSeconds = 1".to_owned();
    let rule = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no.txt\"]\n";
    let policy = format!("{ALL}[limits]\ndenials = 1\n{rule}");
    fs::write(site.base().join("policy.toml"), policy).unwrap();
    let service = site.serve();
    let token = site.token("all");
    let is_served = || {
        let read = service.call(token, "shop", "read_file", &json!({ "path": "file.txt" }));
        read["result"]["isError"] == false
    };
    assert!(is_served());
    while is_served() {
        service.call(token, "shop", "read_file", &json!({ "path": "no.txt" }));
    }
    wait(|| service.processes("worker-process").is_empty().then_some(()));
    assert!(is_served());
}

/// Regression: while the old worker answered its remaining requests, all clients got the
/// session in which it read nothing more.
#[test]
fn those_without_a_session_are_served_while_an_old_worker_still_stops() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let file = site.root("shop").canonicalize().unwrap().join("file.txt");
    let wanted = json!({ "resourceSubscriptions": [format!("file://{}", file.display())] });
    let _subscribed = listen(&service, token, &wanted);
    let old = service.processes("worker-process").pop().unwrap();
    let text = fs::read_to_string(site.config()).unwrap();
    let state = "state = \"states/shop\"\n";
    fs::write(site.config(), text.replace(state, &format!("{state}ask = \"shell\"\n"))).unwrap();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload");
    let read = service.call(token, "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["isError"], false, "{read}");
    assert!(service.processes("worker-process").iter().any(|process| *process != old));
}

/// They had no record and no receipt.
#[test]
fn requests_whose_headers_contradict_their_body_are_refused_on_record() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let meta = |version: &str| {
        json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        })
    };
    let new = "MCP-Protocol-Version: 2026-07-28\r\n";
    let right = format!("{new}Mcp-Method: tools/list\r\n");
    for (headers, params) in [
        (format!("{new}Mcp-Method: ping\r\n"), json!({ "_meta": meta("2026-07-28") })),
        (right.clone(), json!({ "_meta": meta("1999-01-01") })),
        (right, json!({})),
    ] {
        let mut stream = service.connect();
        post(&mut stream, token, &headers, "tools/list", &params);
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        let error: Value = serde_json::from_str(body).unwrap();
        let records = site.records("shop");
        let record = records.iter().rfind(|record| record["op"] == "tools/list").unwrap();
        assert_eq!(record["result"], "invalidInput", "{record}");
        assert_eq!(error["error"]["data"]["receipt"]["seq"], record["seq"], "{reply} {record}");
    }
}

/// The reasons of `rmcp` repeat what was sent. They were recorded as they came, and cut before.
#[test]
fn a_secret_in_a_refused_request_was_recorded() {
    let site = Site::new(&["shop"]);
    let rules = "[secrets]\n[[secrets.rules]]\nid = \"aws\"\nregex = \"AKIA[0-9A-Z/]{16}\"\n\
        keywords = [\"AKIA\"]\n";
    fs::write(site.base().join("policy.toml"), format!("{ALL}{rules}")).unwrap();
    let (service, token) = (site.serve(), site.token("all"));
    let new = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: ";
    // The reason, or the method, was cut in the middle of the key.
    for before in [0, 395, 400, 405, 410, 415, 420] {
        let secret = format!("{} AKIAQ3EGRIBNBTZ5X7LT", "x".repeat(before));
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": secret,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut stream = service.connect();
        let headers = format!("{new}tools/list\r\n");
        post(&mut stream, token, &headers, "tools/list", &json!({ "_meta": meta }));
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
        let method = format!("{}/AKIAQ3EGRIB/BTZ5X7LT", "x".repeat(115));
        let mut stream = service.connect();
        post(&mut stream, token, &format!("{new}ping\r\n"), &method, &json!({}));
        stream.read_to_string(&mut String::new()).unwrap();
    }
    let records = site.records("shop");
    let refused = records.iter().filter(|record| record["result"] == "invalidInput");
    assert_eq!(refused.count(), 14, "{records:?}");
    for record in records {
        assert!(!record.to_string().contains("AKIAQ"), "{record}");
    }
}

/// A client of a worker that does not answer waited for ever.
#[test]
fn a_request_that_the_front_refuses_waits_for_no_worker() {
    let site = Site::new(&["shop"]);
    let (service, token) = (site.serve(), site.token("all"));
    let read = service.call(token, "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["isError"], false, "{read}");
    let worker = service.processes("worker-process").pop().unwrap();
    kill(worker, Signal::STOP);
    let stat = format!("/proc/{worker}/stat");
    wait(|| fs::read_to_string(&stat).unwrap().contains(") T ").then_some(()));
    let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: ping\r\n";
    let mut stream = service.connect();
    post(&mut stream, token, headers, "tools/list", &json!({}));
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    kill(worker, Signal::CONT);
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
}

/// Its body was parsed.
#[test]
fn a_body_of_a_session_that_there_is_not_was_read() {
    let site = Site::new(&["shop"]);
    let (service, token) = (site.serve(), site.token("all"));
    let answered = |session: &str| {
        let mut stream = service.connect();
        let headers = format!("Mcp-Session-Id: {session}\r\n");
        post(&mut stream, token, &headers, "tools/call", &json!([]));
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let reply = answered(&"0".repeat(32));
    assert!(reply.starts_with("HTTP/1.1 404"), "{reply}");
    assert!(!site.records("shop").iter().any(|record| record["op"] == "mcp.dropped"));
}
