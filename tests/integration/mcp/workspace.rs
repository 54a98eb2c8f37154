//! The tools of the workspace module.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::rig::Client;
use crate::common::{ALL, World};

fn tool(name: &str) -> String {
    format!("workspace__ws__{name}")
}

#[test]
fn every_tool_does_what_the_module_says() {
    let world = World::with_policy(ALL);
    world.file("a.txt", "one\ntwo żółć\n");
    world.file("d/b.txt", "x");
    let mut client = Client::start(&world, &[]);
    let mut good = |name: &str, arguments: Value| client.good(&tool(name), &arguments);

    let read = good("read_file", json!({ "path": "a.txt" }));
    let bytes = STANDARD.encode("one\ntwo żółć\n");
    assert_eq!(read, json!({ "content": bytes, "text": "one\ntwo żółć\n" }));

    let ok = json!({ "ok": true });
    assert_eq!(good("write_file", json!({ "path": "new/c.txt", "content": "1\n" })), ok);
    assert_eq!(good("append_file", json!({ "path": "new/c.txt", "content": "2\n" })), ok);
    let edit = json!({ "path": "new/c.txt", "oldText": "2", "newText": "3" });
    assert_eq!(good("edit_file", edit), ok);
    assert_eq!(world.read("new/c.txt"), "1\n3\n");

    let listed = good("ls", json!({ "path": "." }));
    assert_eq!(
        listed["entries"],
        json!([
            { "name": "a.txt", "path": "a.txt", "type": "file", "size": 17 },
            { "name": "d", "path": "d", "type": "directory" },
            { "name": "new", "path": "new", "type": "directory" },
        ])
    );
    let stat = good("stat", json!({ "path": "d/b.txt" }));
    assert_eq!(stat["stat"]["size"], 1);
    assert!(stat["stat"]["mtime"].as_str().unwrap().ends_with('Z'));
    assert_eq!(good("mkdir", json!({ "path": "e/f", "recursive": true })), ok);
    assert_eq!(good("rename", json!({ "from": "d/b.txt", "to": "e/g.txt" })), ok);
    assert_eq!(world.read("e/g.txt"), "x");
    assert_eq!(good("rm", json!({ "path": "e", "recursive": true })), ok);
    assert!(!world.path("e").exists());
    let files = good("read_files", json!({ "paths": ["a.txt", "gone.txt"] }));
    assert_eq!(files["files"][0]["text"], "one\ntwo żółć\n");
    assert_eq!(files["files"][1]["error"]["kind"], "notFound");

    let found = good("glob", json!({ "pattern": "**/*.txt" }));
    assert_eq!(found, json!({ "matches": ["a.txt", "new/c.txt"] }));
    let lines = good("grep", json!({ "pattern": "^T..", "ignoreCase": true }));
    assert_eq!(
        lines,
        json!({ "matches": [{ "path": "a.txt", "lineNumber": 2, "line": "two żółć" }] })
    );
    let none = json!({ "pattern": ".", "path": "new", "includeGlob": "*.md" });
    assert_eq!(good("grep", none), json!({ "matches": [] }));
    client.end();
    world.run(&["audit", "verify"]).ok();
    assert!(
        world
            .requests()
            .iter()
            .all(|record| record["door"] == "mcp" || record["kind"] == "outcome")
    );
}

#[test]
fn failures_name_kind_rule_reason_and_record() {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"keys\"\neffect = \"deny\"\noperations = [\"read\"]\n\
         paths = [\"key*\"]\nreason = \"not for you\"\n"
    ));
    world.file("a.txt", "aa");
    world.file("key.txt", "k");
    let mut client = Client::start(&world, &[]);
    let denied = client.bad(&tool("read_file"), &json!({ "path": "key.txt" }));
    assert_eq!((&denied["kind"], &denied["rule"]), (&json!("denied"), &json!("keys")));
    assert_eq!(denied["reason"], "not for you");
    let missing = client.bad(&tool("read_file"), &json!({ "path": "keys/none" }));
    assert_eq!(missing["kind"], "notFound");
    let record = world.last();
    assert_eq!(record["seq"], missing["receipt"]["seq"]);
    // As for every door, a denied name tells nothing of what is there.
    let unlike = client.bad(&tool("read_file"), &json!({ "path": "key-none.txt" }));
    assert_eq!((&unlike["rule"], &unlike["message"]), (&denied["rule"], &denied["message"]));

    for (name, arguments, kind) in [
        ("edit_file", json!({ "path": "a.txt", "oldText": "a", "newText": "b" }), "invalidInput"),
        ("rm", json!({ "path": "none" }), "notFound"),
        ("mkdir", json!({ "path": "a.txt" }), "alreadyExists"),
        ("ls", json!({ "path": "a.txt" }), "notADirectory"),
        ("read_file", json!({ "path": "../x" }), "denied"),
        ("read_file", json!({ "path": "/etc/passwd" }), "denied"),
        ("glob", json!({ "pattern": "[" }), "invalidInput"),
        ("grep", json!({ "pattern": "(" }), "invalidInput"),
    ] {
        let error = client.bad(&tool(name), &arguments);
        assert_eq!(error["kind"], kind, "{name} {arguments}: {error}");
    }
    client.end();
}

#[test]
fn tools_say_what_they_do_and_those_that_the_policy_never_allows_are_not_there() {
    let mut world = World::with_policy(ALL);
    let mut client = Client::start(&world, &["--name", "docs"]);
    let tools = client.tools();
    assert_eq!(tools.len(), 12);
    for tool in &tools {
        let name = tool["name"].as_str().unwrap().strip_prefix("workspace__docs__").unwrap();
        let reads = ["read_file", "read_files", "ls", "stat", "glob", "grep"].contains(&name);
        assert_eq!(tool["annotations"]["readOnlyHint"], reads, "{name}");
        assert!(tool["annotations"]["destructiveHint"].is_boolean(), "{name}");
        assert!(tool["annotations"]["idempotentHint"].is_boolean(), "{name}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{name}");
    }
    client.end();

    world.set_policy("schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n");
    let mut client = Client::start(&world, &["--name", "docs"]);
    let names = client.names();
    let kept = ["read_file", "ls", "stat", "read_files", "glob", "grep"];
    assert_eq!(names, kept.map(|name| format!("workspace__docs__{name}")));
    let hidden = json!({ "name": "workspace__docs__rm", "arguments": { "path": "a" } });
    assert_eq!(client.ask("tools/call", &hidden)["error"]["code"], -32602);
    client.end();
    assert_eq!(world.run(&["mcp", "--name", "a b"]).code, 2);
    assert_eq!(world.run(&["mcp", "--tools", "reference", "--name", "a"]).code, 2);
}

#[test]
fn the_process_confines_itself_before_it_reads_and_says_so() {
    let world = World::with_policy(ALL);
    let mut client = Client::start(&world, &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    client.good(&tool("ls"), &json!({ "path": "." }));
    client.end();
    let start = world.records().into_iter().find(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["door"], "mcp");
    assert!(start["facts"]["gateLandlockAbi"].as_u64().unwrap() >= 3, "{start}");
    assert_eq!(start["facts"]["enforcement"], "none");
    assert_eq!(world.records().last().unwrap()["kind"], "stop");
}

#[test]
fn bytes_that_are_no_text_come_where_the_policy_lets_them() {
    let mut world = World::with_policy(ALL);
    world.file("b.bin", b"\x00\xff\x01");
    let mut client = Client::start(&world, &[]);
    let error = client.bad(&tool("read_file"), &json!({ "path": "b.bin" }));
    assert_eq!(error["rule"], "files.binary.read", "{error}");
    client.end();
    world.set_policy(&format!("{ALL}[files]\nbinary = {{ read = \"base64\" }}\n"));
    let mut client = Client::start(&world, &[]);
    let read = client.good(&tool("read_file"), &json!({ "path": "b.bin" }));
    assert_eq!(read["content"], STANDARD.encode(b"\x00\xff\x01"));
    client.end();
}

#[test]
fn a_stop_signal_ends_it_in_order() {
    let world = World::with_policy(ALL);
    let mut client = Client::start(&world, &[]);
    let pid = rustix::process::Pid::from_raw(client.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(client.wait().success());
    assert_eq!(world.records().last().unwrap()["kind"], "stop");
}

/// A hundred files of the largest size took a gigabyte.
#[test]
fn a_reply_with_many_files_is_bounded() {
    let world = World::with_policy(ALL);
    let names: Vec<_> = (0..6).map(|n| format!("{n}.txt")).collect();
    for name in &names {
        world.file(name, "x".repeat(6 << 20));
    }
    let mut client = Client::start(&world, &[]);
    let files = client.good(&tool("read_files"), &json!({ "paths": names }));
    let files = files["files"].as_array().unwrap();
    let read = files.iter().take_while(|file| file["text"].is_string()).count();
    assert_eq!((files.len(), read), (6, 3));
    assert!(files[read..].iter().all(|file| file["error"]["kind"] == "invalidInput"));
    client.end();
}

#[test]
fn a_line_that_is_too_long_to_be_shown_whole_says_so() {
    let world = World::with_policy(ALL);
    world.file("a.txt", format!("{}word{}\nword\n", "x".repeat(5000), "y".repeat(5000)));
    let mut client = Client::start(&world, &[]);
    let found = client.good(&tool("grep"), &json!({ "pattern": "word" }));
    let matches = found["matches"].as_array().unwrap();
    assert_eq!((&matches[0]["cut"], matches[1].get("cut")), (&json!(true), None));
    assert!(matches[0]["line"].as_str().unwrap().contains("xwordy"), "{found}");
    client.end();
}
