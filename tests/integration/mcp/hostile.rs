//! Bad input: the process continues or ends in order, and the log records it.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::rig::Client;
use crate::common::{ALL, World};

fn world() -> World {
    let world = World::with_policy(ALL);
    world.file("a.txt", "hello\n");
    world
}

fn alive(client: &mut Client) {
    let read = client.texts("workspace__ws__read_file", &json!({ "path": "a.txt" }));
    assert_eq!(read, ["hello\n"]);
}

#[test]
fn lines_that_are_no_messages_are_answered_recorded_and_survived() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let bad: [(&[u8], i64); 12] = [
        (b"nonsense", -32700),
        (b"\xff\xfe{}", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"id\":\"b\",\"method\":\"ping\"}", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"\\ud800\",\"method\":\"ping\"}", -32700),
        (b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}", -32700),
        (b"{\"a\":\r1}", -32700),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}]", -32600),
        (b"17", -32600),
        (b"{\"jsonrpc\":\"1.0\",\"id\":\"a\",\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\",\"params\":[]}", -32602),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"no/such\"}", -32601),
    ];
    for (line, code) in bad {
        client.raw(line);
        client.raw(b"\n");
        let answer = client.other();
        assert_eq!(answer["error"]["code"], code, "{:?} {answer}", String::from_utf8_lossy(line));
        assert!(answer.get("id").is_some(), "{answer}");
        assert!(answer["error"]["data"]["receipt"]["leaf"].is_string(), "{answer}");
        alive(&mut client);
    }
    let deep = format!("{}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    client.raw(deep.as_bytes());
    assert_eq!(client.other()["error"]["code"], -32700);
    client.end();
    let ops: Vec<_> = world.requests().into_iter().map(|record| record["op"].clone()).collect();
    assert_eq!(ops.iter().filter(|op| **op == "mcp.dropped").count(), 12, "{ops:?}");
    assert!(ops.contains(&json!("no/such")));
}

/// They were answered as if there were no such methods.
#[test]
fn wrong_parameters_are_told_from_unknown_methods() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    for (method, params) in [
        ("resources/read", json!({})),
        ("resources/subscribe", json!({ "uri": 5 })),
        ("resources/unsubscribe", json!({})),
    ] {
        let answer = client.ask(method, &params);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["data"]["receipt"]["seq"].is_u64(), "{answer}");
    }
    assert_eq!(client.ask("no/such", &json!({}))["error"]["code"], -32601);
    client.end();
}

/// They were answered without a record, and not slowed down.
#[test]
fn requests_with_wrong_metadata_are_refused_on_record() {
    let world = world();
    let old = json!({
        "io.modelcontextprotocol/protocolVersion": "1999-01-01",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    for begins in [Client::silent, Client::start] {
        let mut client = begins(&world, &[]);
        for (method, params, code) in [
            ("server/discover", json!({}), -32602),
            ("server/discover", json!({ "_meta": old }), -32022),
            ("tools/list", json!({ "_meta": old }), -32022),
        ] {
            let answer = client.ask(method, &params);
            assert_eq!(answer["error"]["code"], code, "{answer}");
            let record = world.last();
            assert_eq!(record["op"], method, "{answer}");
            assert_eq!(answer["error"]["data"]["receipt"]["seq"], record["seq"], "{answer}");
        }
        client.end();
    }
}

/// It was recorded as if the gateway had noted it.
#[test]
fn a_method_named_like_an_event_of_the_gateway_is_recorded_as_a_method() {
    let world = world();
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "1999-01-01" });
    for begins in [Client::silent, Client::start] {
        let mut client = begins(&world, &[]);
        for params in [json!({}), json!({ "_meta": meta })] {
            let answer = client.ask("commit", &params);
            let record = world.last();
            assert_eq!(answer["error"]["data"]["receipt"]["seq"], record["seq"], "{answer}");
            assert_eq!(
                (&record["op"], &record["decision"]),
                (&json!("method commit"), &json!("deny"))
            );
        }
        client.end();
    }
}

/// They were answered without a record.
#[test]
fn methods_that_are_not_offered_are_refused_on_record() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let refused = |client: &mut Client, method: &str, params: &Value| {
        let answer = client.ask(method, params);
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
        let record = world.last();
        let op = if method == "ping" { "method ping" } else { method };
        assert_eq!(record["op"], op, "{answer}");
        assert_eq!(answer["error"]["data"]["receipt"]["seq"], record["seq"]);
    };
    for (method, params) in [
        ("prompts/get", json!({ "name": "x" })),
        ("logging/setLevel", json!({ "level": "info" })),
        ("tasks/get", json!({ "taskId": "x" })),
        ("tasks/cancel", json!({ "taskId": "x" })),
        ("subscriptions/listen", json!({ "notifications": {} })),
    ] {
        refused(&mut client, method, &params);
    }
    // Some clients request everything that is offered.
    let none = client.ask("prompts/list", &json!({}));
    assert_eq!(none["result"]["prompts"], json!([]), "{none}");
    client.end();

    let mut client = Client::silent(&world, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    client.ask("tools/list", &json!({ "_meta": meta }));
    for method in ["ping", "resources/subscribe", "resources/unsubscribe"] {
        refused(&mut client, method, &json!({ "_meta": meta, "uri": "file:///x" }));
    }
    client.end();
}

/// They left no trace.
#[test]
fn notifications_that_there_are_not_are_recorded() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    for method in ["notifications/no", "no/such", "notifications/portcullis/repeated"] {
        client.send(&json!({ "jsonrpc": "2.0", "method": method, "params": { "x": 1 } }));
    }
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
    alive(&mut client);
    client.end();
    let mut dropped = world.requests();
    dropped.retain(|record| record["op"] == "mcp.dropped");
    let why: Vec<_> = dropped.iter().map(|record| record["facts"]["reason"].to_string()).collect();
    assert_eq!(why.len(), 3, "{why:?}");
    assert!(why[0].contains("`notifications/no`") && why[1].contains("`no/such`"), "{why:?}");
    // A client had a request recorded as refused for its id.
    assert!(why[2].contains("there is no notification `notifications/portcullis/"), "{why:?}");
}

#[test]
fn a_client_that_sends_rubbish_is_slowed_down_and_all_of_it_is_recorded() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let started = Instant::now();
    client.raw("x\n".repeat(2500).as_bytes());
    for _ in 0..2500 {
        assert_eq!(client.other()["error"]["code"], -32700);
    }
    // Two thousand are free, and two hundred each second.
    assert!(started.elapsed() > Duration::from_secs(2), "{:?}", started.elapsed());
    alive(&mut client);
    // The remaining messages of a client that is gone are read at once.
    client.raw("x\n".repeat(2500).as_bytes());
    let started = Instant::now();
    client.end();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let dropped = world.requests().iter().filter(|record| record["op"] == "mcp.dropped").count();
    assert_eq!(dropped, 5000);
}

/// Requests with immediate replies were answered without end: 4 GB in twelve
/// seconds.
#[test]
fn a_client_that_asks_and_never_reads_is_not_heard_any_more() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let requests: String = (0..20_000)
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"tools/list\"}}\n"))
        .collect();
    let mut input = client.input();
    let sender = std::thread::spawn(move || input.write_all(requests.as_bytes()).unwrap());
    let memory = |key: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // All of it together is 280 MB and more.
    let mut before = 0;
    while memory("VmRSS:") > before {
        before = memory("VmRSS:");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(!sender.is_finished());
    assert!(memory("VmHWM:") < 200 << 10, "{} kB", memory("VmHWM:"));
    // A client that reads again gets all of it, and is read again.
    let answered: std::collections::HashSet<_> =
        (0..20_000).map(|_| client.other()["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(answered.len(), 20_000);
    sender.join().unwrap();
    alive(&mut client);
    client.end();
}

#[test]
fn arguments_of_wrong_types_and_unknown_tools() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    for (tool, arguments) in [
        ("read_file", json!({})),
        ("read_file", json!({ "path": 7 })),
        ("read_file", json!({ "path": null })),
        ("read_file", json!({ "path": ["a"] })),
        ("read_file", json!({ "path": "a.txt", "extra": 1 })),
        ("write_file", json!({ "path": "a.txt" })),
        ("write_file", json!({ "path": "a.txt", "content": { "x": 1 } })),
        ("mkdir", json!({ "path": "d", "recursive": "yes" })),
        ("read_files", json!({ "paths": [] })),
        ("read_files", json!({ "paths": [1] })),
        ("read_files", json!({ "paths": vec!["a.txt"; 101] })),
        ("grep", json!({ "pattern": "a", "maxResults": -1 })),
        ("grep", json!({ "pattern": "a", "maxResults": 1.5 })),
    ] {
        let error = client.bad(&format!("workspace__ws__{tool}"), &arguments);
        assert_eq!(error["kind"], "invalidInput", "{tool} {arguments}: {error}");
        assert_eq!(world.last()["seq"], error["receipt"]["seq"]);
    }
    for name in ["", "workspace__ws__", "workspace__other__ls", "ls", "\u{1b}[31m"] {
        let params = json!({ "name": name, "arguments": {} });
        let answer = client.ask("tools/call", &params);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["data"]["receipt"]["seq"].is_u64(), "{answer}");
    }
    alive(&mut client);
    client.end();
    assert_eq!(world.read("a.txt"), "hello\n");
}

#[test]
fn a_path_of_a_megabyte_and_other_impossible_ones() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let long = "a/".repeat(1 << 19);
    for path in [long.as_str(), &"x".repeat(256), "a\0b", "..", "a/../../b", "~/x/../..", "//x"] {
        client.bad("workspace__ws__read_file", &json!({ "path": path }));
        client.bad("workspace__ws__write_file", &json!({ "path": path, "content": "" }));
    }
    alive(&mut client);
    client.end();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_gigabyte_without_a_newline_takes_no_memory() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        client.raw(&piece);
    }
    client.raw(b"\n");
    assert_eq!(client.other()["error"]["code"], -32600);
    alive(&mut client);
    assert!(peak(&client) < 200 << 10, "{} kB", peak(&client));
    client.end();
}

/// Most memory that the server had, in kB.
fn peak(client: &Client) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Each takes two bytes on the line and sixteen times that afterwards.
#[test]
fn a_line_of_twenty_million_array_elements_is_not_read_into_memory() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    client.raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\",\"params\":{");
    client.raw(b"\"name\":\"workspace__ws__read_file\",\"arguments\":{\"path\":[");
    client.raw("0,".repeat(20_000_000).as_bytes());
    client.raw(b"0]}}}\n");
    let refused = client.other();
    assert_eq!(refused["error"]["code"], -32700, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("array elements"), "{refused}");
    alive(&mut client);
    assert!(peak(&client) < 200 << 10, "{} kB", peak(&client));
    client.end();
}

#[test]
fn many_calls_in_flight_are_all_answered_once() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    for count in [16, 500] {
        let ids: Vec<_> = (0..count)
            .map(|number| match number % 3 {
                0 => client.post_call(
                    "workspace__ws__append_file",
                    &json!({ "path": "log.txt", "content": "x" }),
                ),
                1 => client.post_call("workspace__ws__read_file", &json!({ "path": "a.txt" })),
                _ => client.post_call("workspace__ws__ls", &json!({ "path": "." })),
            })
            .collect();
        for id in ids {
            assert_eq!(client.answer(id)["result"]["isError"], false);
        }
    }
    let appended = (0..16).chain(0..500).filter(|number| number % 3 == 0).count();
    assert_eq!(world.read("log.txt").len(), appended);
    client.end();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_write_leaves_a_whole_file() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let content = "y".repeat(1 << 20);
    for number in 0..8 {
        let path = format!("w{number}.txt");
        client.post_call("workspace__ws__write_file", &json!({ "path": path, "content": content }));
    }
    // And half a line more.
    client.raw(b"{\"jsonrpc\":\"2.0\",\"id\":99,\"method\":\"tools/call\",\"params\":{\"na");
    let mut server = client.vanish();
    assert!(server.wait().unwrap().success());
    for number in 0..8 {
        let name = format!("w{number}.txt");
        assert!(!world.path(&name).exists() || world.read(&name) == content, "{name}");
    }
    let records = world.records();
    assert_eq!(records.last().unwrap()["kind"], "stop");
    // The torn line, or that the replies were not read.
    assert!(records.iter().any(|record| record["op"] == "mcp.dropped"), "{records:?}");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let world = world();
    world.file("big.txt", "z".repeat(2 << 20));
    let mut client = Client::start(&world, &[]);
    let big = world.root().canonicalize().unwrap().join("big.txt");
    let uri = json!({ "uri": format!("file://{}", big.display()) });
    let ids: Vec<_> = (0..16).map(|_| client.post("resources/read", &uri)).collect();
    for id in ids {
        assert!(client.answer(id)["result"]["contents"].is_array());
    }
    client.end();
}

#[test]
fn a_client_that_begins_with_something_else_is_not_served_and_does_no_harm() {
    let world = world();
    let mut client = Client::silent(&world, &[]);
    client.raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    client.raw(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n");
    let params = json!({ "name": "workspace__ws__read_file", "arguments": { "path": "a.txt" } });
    let answer = client.ask("tools/call", &params);
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    client.end();
    let silent = Client::silent(&world, &[]);
    silent.end();
    let done = world.run_with_input(&["mcp"], "GET / HTTP/1.1\r\n\r\n").ok();
    assert!(done.text().contains("-32700"), "{done:?}");
    std::io::stderr().flush().unwrap();
    assert!(!world.requests().iter().any(|record| record["op"] == "read"));
}

/// Names were cut before secrets in them were redacted.
#[test]
fn half_a_secret_in_a_long_name_was_recorded() {
    let rules = "[secrets]\n[[secrets.rules]]\nid = \"aws\"\nregex = \"AKIA[0-9A-Z]{16}\"\n\
        keywords = [\"AKIA\"]\n";
    let world = World::with_policy(&format!("{ALL}{rules}"));
    world.file("a.txt", "hello\n");
    let mut client = Client::start(&world, &[]);
    for before in 108..128 {
        let name = format!("{}AKIAQ3EGRIBNBTZ5X7LT", "-".repeat(before));
        assert_eq!(client.ask(&name, &json!({}))["error"]["code"], -32601);
        let call = json!({ "name": name, "arguments": {} });
        assert_eq!(client.ask("tools/call", &call)["error"]["code"], -32602);
        client.send(&json!({ "jsonrpc": "2.0", "method": name }));
    }
    alive(&mut client);
    client.end();
    let records = world.requests();
    assert_eq!(records.iter().filter(|record| record["decision"] == "deny").count(), 60);
    for record in records {
        assert!(!record.to_string().contains("AKIAQ"), "{record}");
    }
}

/// Names were cut at a `/` within a secret before secrets in them were redacted.
#[test]
fn half_a_secret_with_a_slash_was_recorded() {
    let rules = "[secrets]\n[[secrets.rules]]\nid = \"key\"\nregex = \"key=[0-9a-zA-Z/]{40}\"\n\
        keywords = [\"key=\"]\n";
    let world = World::with_policy(&format!("{ALL}{rules}"));
    world.file("a.txt", "hello\n");
    let name = |before: usize| {
        format!("{} key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzLEKEYa", "-".repeat(before))
    };
    // The longest name of a client, of a method and of an argument.
    for longest in [200, 128, 64] {
        let mut client = Client::silent(&world, &[]);
        let name = name(longest - 30);
        let client_info = json!({ "name": name, "version": name });
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client_info,
        });
        assert!(client.ask("initialize", &hello)["result"].is_object());
        client.send(&json!({ "jsonrpc": "2.0", "method": name }));
        client.bad("workspace__ws__read_file", &json!({ "path": "a.txt", name.as_str(): 1 }));
        alive(&mut client);
        client.end();
    }
    let records = world.requests();
    let ops = records.iter().filter_map(|record| record["op"].as_str());
    assert_eq!(ops.filter(|op| ["mcp.client", "mcp.dropped"].contains(op)).count(), 6);
    for record in records {
        assert!(!record.to_string().contains("wJalrX"), "{record}");
    }
}

/// The error of the parser, and so the record, had all of it. One of more than a megabyte had no
/// record at all.
#[test]
fn a_refused_call_was_recorded_with_what_it_sent() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    for length in [100_000, 2 << 20] {
        let text = "A".repeat(length);
        for params in [
            json!({ "name": "t", "arguments": text }),
            json!({ "name": "t", "arguments": {}, "_meta": text.get(..60_000) }),
        ] {
            let refused = client.ask("tools/call", &params);
            assert_eq!(refused["error"]["code"], -32602);
            let record = world.last();
            assert_eq!(refused["error"]["data"]["receipt"]["seq"], record["seq"]);
            assert_eq!(record["op"], "mcp.dropped");
            assert!(record.to_string().len() < 1024);
        }
    }
    client.end();
}
