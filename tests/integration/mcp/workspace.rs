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
    let both = json!({ "paths": ["a.txt", "gone.txt"] });
    assert_eq!(client.texts(&tool("read_file"), &json!({ "path": "a.txt" })), ["one\ntwo żółć\n"]);
    let files = client.call(&tool("read_files"), &both);
    assert_eq!(files["_meta"]["portcullis/files"][0]["size"], 17);
    assert_eq!(files["_meta"]["portcullis/files"][1]["error"]["kind"], "notFound");
    let files = client.texts(&tool("read_files"), &both);
    assert_eq!(files[..2], ["a.txt:", "one\ntwo żółć\n"]);
    assert!(files.len() == 3 && files[2].starts_with("gone.txt: "), "{files:?}");
    let mut good = |name: &str, arguments: Value| client.good(&tool(name), &arguments);

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
            .all(|record| record["transport"] == "mcp" || record["kind"] == "outcome")
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
    let missing = client.bad(&tool("read_file"), &json!({ "path": "other/none" }));
    assert_eq!(missing["kind"], "notFound");
    let record = world.last();
    assert_eq!(record["seq"], missing["receipt"]["seq"]);
    // As on every transport, a denied name does not disclose what is there.
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
        // A text has no other form.
        let is_text = ["read_file", "read_files"].contains(&name);
        assert_eq!(tool["outputSchema"]["type"] == "object", !is_text, "{name}");
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

/// It did not mention where the files are, what is denied, how to ask and how to undo.
#[test]
fn the_greeting_says_what_the_agent_has_to_know() {
    let rules = "[[rules]]\nid = \"careful-rule\"\neffect = \"ask\"\noperations = [\"write\"]\n\
         paths = [\"ask-here/**\"]\n[[rules]]\nid = \"hidden-rule\"\neffect = \"deny\"\n\
         paths = [\"hidden-name/**\"]\n[[rules]]\nid = \"open\"\neffect = \"deny\"\n\
         operations = [\"write\"]\npaths = [\"**/.git/**\"]\nreason = \"Git runs this\"\n\
         [secrets]\nnames = [\".env\"]\n";
    let mut world = World::with_policy(&format!("{ALL}{rules}"));
    let root = world.root().canonicalize().unwrap();
    let greet = |world: &World, args: &[&str], capabilities: &Value| {
        let client = Client::with(world, args, capabilities);
        let said = client.greeting["instructions"].as_str().unwrap().to_owned();
        client.end();
        assert!(said.len() < 2048, "{} {said}", said.len());
        assert!(said.contains(root.to_str().unwrap()), "{said}");
        // Nothing that the agent may not know of.
        assert!(
            !said.contains("hidden-") && !said.contains("careful-") && !said.contains("ask-here"),
            "{said}"
        );
        said
    };
    for tools in ["workspace", "reference"] {
        let said = greet(&world, &["--tools", tools], &json!({}));
        assert!(said.contains("approval") && said.contains("it waits until"), "{said}");
        assert!(!said.contains("never allows"), "{said}");
        for denied in ["`.env`", "`.git`", "Git runs this"] {
            assert!(said.contains(denied), "{denied}: {said}");
        }
        let session = world.last()["session"].as_str().unwrap().to_owned();
        let undo = format!("portcullis undo --session {session}");
        assert!(said.contains(&undo), "{said}");
    }
    for (policy, denied) in [
        ("default", &["`.env`", "`*.pem`", "`.git`", "Git run code"][..]),
        ("coding-agent", &["`.env`", "`*.exe`", "`node_modules`", "`.git`"]),
    ] {
        let said = greet(&world, &["--policy", policy], &json!({}));
        let missing: Vec<_> = denied.iter().filter(|name| !said.contains(**name)).collect();
        assert!(missing.is_empty(), "{policy} {missing:?}: {said}");
    }
    let asked = greet(&world, &["--ask", "shell"], &json!({}));
    assert!(asked.contains("the operator answers"), "{asked}");
    world.set_policy("schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n");
    let said = greet(&world, &[], &json!({}));
    let never = "never allows you to write, append, edit, mkdir, remove or rename";
    assert!(said.contains(never) && !said.contains("approval"), "{said}");
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
    assert_eq!(start["transport"], "mcp");
    assert!(start["facts"]["gatewayLandlockAbi"].as_u64().unwrap() >= 3, "{start}");
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
    let base64 = STANDARD.encode(b"\x00\xff\x01");
    let read = client.call(&tool("read_file"), &json!({ "path": "b.bin" }));
    assert_eq!(read["content"][0]["resource"]["blob"], base64, "{read}");
    // It advised to read the file alone, which was the request.
    world.file("large.bin", vec![0xff; 100_000]);
    let large = client.bad(&tool("read_file"), &json!({ "path": "large.bin" }));
    let message = large["message"].as_str().unwrap();
    assert!(!message.contains("alone") && message.contains("as a resource"), "{large}");
    world.file("c.png", b"\x00\xff\x01");
    let read = client.call(&tool("read_file"), &json!({ "path": "c.png" }));
    assert_eq!(
        read["content"],
        json!([{ "type": "image", "mimeType": "image/png", "data": base64 }])
    );
    assert_eq!(read["_meta"]["portcullis/file"], json!({ "size": 3 }));
    let lines = client.bad(&tool("read_file"), &json!({ "path": "b.bin", "line": 1 }));
    assert_eq!(lines["kind"], "invalidInput");
    // Only what a model is shown as such may be large.
    world.file("b.bin", vec![0; (64 << 10) + 1]);
    world.file("c.png", vec![0; (64 << 10) + 1]);
    let large = client.bad(&tool("read_file"), &json!({ "path": "b.bin" }));
    assert_eq!(large["kind"], "invalidInput");
    let files = json!({ "paths": ["c.png", "b.bin"] });
    let files = client.call(&tool("read_files"), &files)["_meta"]["portcullis/files"].clone();
    assert_eq!(
        (&files[0]["error"]["kind"], &files[1]["error"]["kind"]),
        (&large["kind"], &large["kind"])
    );
    assert_eq!(client.call(&tool("read_file"), &json!({ "path": "c.png" }))["isError"], false);
    client.end();
    let failed = world.requests().into_iter().filter(|record| record["result"] == "failed");
    assert!(failed.into_iter().all(|record| record.get("bytes").is_none()));
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

/// One reply took 170,027 bytes for a file of 72,000: the text, and again as JSON, and as base64.
#[test]
fn a_text_is_given_once_and_in_parts_that_say_how_to_go_on() {
    let world = World::with_policy(ALL);
    let line = |number: u64| format!("{number:05} żółć {}\n", "x".repeat(57));
    let text: String = (1..=1000).map(line).collect();
    world.file("a.txt", &text);
    assert_eq!(text.len(), 73_000);
    let mut client = Client::start(&world, &[]);
    let read = tool("read_file");
    let (mut whole, mut next, mut sent) = (String::new(), json!({}), 0);
    loop {
        let mut arguments = json!({ "path": "a.txt" });
        arguments.as_object_mut().unwrap().extend(next.as_object().unwrap().clone());
        let result = client.call(&read, &arguments);
        assert!(result.get("structuredContent").is_none(), "{result}");
        sent += result.to_string().len();
        let content = result["content"].as_array().unwrap();
        whole += content[0]["text"].as_str().unwrap();
        let file = &result["_meta"]["portcullis/file"];
        assert_eq!((&file["totalLines"], &file["size"]), (&json!(1000), &json!(73_000)));
        let record = world.last();
        assert_eq!(record["counts"], json!({ "line": file["line"], "limit": file["lines"] }));
        assert_eq!(record["bytes"], content[0]["text"].as_str().unwrap().len());
        match file.get("next") {
            Some(more) => next = more.clone(),
            None => break,
        }
        let note = content[1]["text"].as_str().unwrap();
        assert!(note.contains(&format!("`line`: {}", next["line"])), "{note}");
    }
    assert_eq!(whole, text);
    // Every line end is one byte more as JSON, and each part has a receipt.
    assert!(sent < text.len() * 21 / 20, "{sent}");

    let some = json!({ "path": "a.txt", "line": 999, "limit": 1 });
    let some = client.texts(&read, &some);
    assert_eq!((some[0].as_str(), some.len()), (line(999).as_str(), 2));
    assert_eq!(client.texts(&read, &json!({ "path": "a.txt", "line": 1000 })), [line(1000)]);
    let past = client.texts(&read, &json!({ "path": "a.txt", "line": 1001 }));
    assert_eq!(past, ["[There is no line 1001: the file has 1000.]"]);
    for wrong in [json!({ "line": 0 }), json!({ "limit": 0 }), json!({ "column": 0 })] {
        let mut arguments = wrong;
        arguments["path"] = json!("a.txt");
        assert_eq!(client.bad(&read, &arguments)["kind"], "invalidInput", "{arguments}");
    }
    // Lines without number, and lines without end.
    world.file("many", "\n".repeat(5000));
    world.file("long", "ż".repeat(50_000));
    assert_eq!(client.texts(&read, &json!({ "path": "many" }))[0].len(), 2000);
    let first = client.call(&read, &json!({ "path": "long" }));
    let next = &first["_meta"]["portcullis/file"]["next"];
    assert_eq!(*next, json!({ "line": 1, "column": 65_537 }));
    let rest = json!({ "path": "long", "line": 1, "column": 65_537 });
    assert_eq!(client.texts(&read, &rest), ["ż".repeat(50_000 - 32_768)]);
    assert_eq!(world.last()["counts"], json!({ "line": 1, "limit": 1, "column": 65_537 }));
    world.file("empty", "");
    assert_eq!(client.texts(&read, &json!({ "path": "empty" })), ["[The file is empty.]"]);
    // No lines are named for content that is sent completely.
    world.file("small", "a\nb");
    assert_eq!(client.texts(&read, &json!({ "path": "small", "line": 1, "limit": 9 })), ["a\nb"]);
    assert!(world.last().get("counts").is_none());
    client.end();
    world.run(&["audit", "verify"]).ok();
}

/// A hundred files of the largest size took a gigabyte.
#[test]
fn a_reply_with_many_files_is_bounded() {
    let world = World::with_policy(ALL);
    let names: Vec<_> = (0..6).map(|n| format!("{n}.txt")).collect();
    for name in &names {
        world.file(name, "x\n".repeat(12 << 10));
    }
    let mut client = Client::start(&world, &[]);
    let result = client.call(&tool("read_files"), &json!({ "paths": names }));
    assert!(result.to_string().len() < 110_000, "{}", result.to_string().len());
    let files = result["_meta"]["portcullis/files"].as_array().unwrap();
    let lines: Vec<_> = files.iter().map(|file| file["lines"].as_u64().unwrap_or(0)).collect();
    // At most so many of each.
    assert_eq!((lines.len(), &lines[..5]), (6, &[2000; 5][..]));
    assert_eq!(files[0]["next"], json!({ "line": 2001 }));
    world.file("0.txt", format!("{}\n", "x".repeat(99)).repeat(655));
    let result = client.call(&tool("read_files"), &json!({ "paths": names }));
    let files = result["_meta"]["portcullis/files"].as_array().unwrap();
    assert_eq!(files[0].get("next"), None);
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(result["content"].to_string().contains("5 more files were not read"));
    client.end();
}

/// Names and errors did not count: a hundred missing files took 800 KB.
#[test]
fn a_reply_with_many_errors_was_not_bounded() {
    let world = World::with_policy(ALL);
    let directory = format!("{}/", "d".repeat(200)).repeat(18);
    let names: Vec<_> = (0..100).map(|n| format!("{directory}{n}")).collect();
    let mut client = Client::start(&world, &[]);
    let result = client.call(&tool("read_files"), &json!({ "paths": names }));
    let files = result["_meta"]["portcullis/files"].as_array().unwrap();
    assert!(files.iter().all(|file| file["error"]["kind"] == "notFound"), "{files:?}");
    let left = format!("{} more files were not read", 100 - files.len());
    let content = result["content"].to_string();
    assert!(files.len() > 10 && content.contains(&left), "{}", files.len());
    assert!(content.len() < 70_000, "{}", content.len());
    assert!(result["_meta"].to_string().len() < 100_000);
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
