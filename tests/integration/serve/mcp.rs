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

use super::rig::{ALL, Service, Site, status, wait};

/// Greets from an address of this machine; gives the status.
fn initialize(service: &Service, token: &str, from: Ipv4Addr) -> u16 {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, service.port)).unwrap();
    let info = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let body = body.to_string();
    let head = format!(
        "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::from(socket);
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    status(&reply)
}

fn peers(records: &[Value], op: &str) -> Vec<Value> {
    let of = records.iter().filter(|record| record["op"] == op);
    of.map(|record| record["facts"]["peer"].clone()).collect()
}

/// All that a token did had the address from which it came first.
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
