//! Interop: demands of fast-agent's own tests on an ACP editor's file system,
//! with the gateway between, the agent in its sandbox, and file content from
//! the editor alone (`--source editor`).
//!
//! The gateway offers the agent no more of `fs` than the editor has, so one
//! that cannot read or write shows to the agent as a tool that is missing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    acp_client::{Editor, Turn},
    fast_agent::{fast_agent_config, peers},
    fast_agent_confined::Run,
};

/// Arguments of the agent's `fs/*` tools.
fn of(path: &str) -> Value {
    json!({ "path": path })
}

fn writing(path: &str, content: &str) -> Value {
    json!({"path": path, "content": content})
}

/// An editor with `sample.txt` open, which is on no disk.
fn editor(reads: bool, writes: bool) -> impl FnOnce(&Path) -> Editor {
    move |root| {
        let sample = root.join("sample.txt").to_str().unwrap().to_owned();
        let buffers = BTreeMap::from([(sample, "first\nsecond\nthird\n".to_owned())]);
        Editor { reads, writes, buffers, ..Editor::default() }
    }
}

fn start(reads: bool, writes: bool, more: &[&str]) -> Run {
    Run::with("editor", &fast_agent_config(), editor(reads, writes), more)
}

impl Run {
    /// The requests for files that reached the editor.
    fn files_asked(&mut self) -> Vec<(String, Value)> {
        let asked = self.client().asked.iter();
        let asked = asked.map(|asked| (asked["method"].as_str().unwrap(), &asked["params"]));
        asked
            .filter(|(method, _)| method.starts_with("fs/"))
            .map(|(method, params)| (method.to_owned(), params.clone()))
            .collect()
    }

    fn permissions_asked(&mut self) -> usize {
        let asked = self.client().asked.iter();
        asked.filter(|asked| asked["method"] == "session/request_permission").count()
    }
}

/// Returns the updates of the last turn about its tool call, oldest first.
fn tool_updates(run: &mut Run) -> Vec<Value> {
    let updates = run.client().updates.iter().map(|update| update["update"].clone());
    updates
        .filter(|update| {
            matches!(update["sessionUpdate"].as_str(), Some("tool_call" | "tool_call_update"))
        })
        .collect()
}

#[track_caller]
fn assert_missing(turn: &Turn, tool: &str) {
    assert!(turn.said.contains(&format!("Tool '{tool}' is not available")), "{}", turn.said);
}

#[track_caller]
fn assert_failed(turn: &Turn, why: &str) {
    assert!(turn.states.contains(&"failed".to_owned()), "{}", turn.said);
    assert!(!turn.states.contains(&"completed".to_owned()), "{}", turn.said);
    assert!(turn.said.contains(why), "{}", turn.said);
}

/// The records of requests, as `KIND OP DECISION`.
fn requests(records: &[Value]) -> Vec<String> {
    let word = |record: &Value, key: &str| record[key].as_str().unwrap_or("-").to_owned();
    records
        .iter()
        .filter(|record| record["op"].is_string() && record["kind"] != "outcome")
        .filter(|record| record["op"] != "acp.prompt")
        // The agent looks at the gateway's MCP server, too.
        .filter(|record| record["transport"] == "acp")
        .map(|record| ["kind", "op", "decision"].map(|key| word(record, key)).join(" "))
        .collect()
}

#[test]
fn an_editor_that_offers_files_is_asked_for_them() {
    let mut run = start(true, true, &[]);
    assert_eq!(run.client().agent["protocolVersion"], 1);
    assert!(run.client().agent["agentCapabilities"].is_object());
    let turn = run.prompt("use the read_text_file tool to read: /test/file.txt");
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("/test/file.txt"), "{}", turn.said);

    let sample = run.path("sample.txt");
    let turn = run.tool("read_text_file", &of(&sample));
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("second"), "{}", turn.said);
    let asked = run.files_asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].0, "fs/read_text_file");
    assert_eq!(asked[0].1["path"], sample);

    let records = run.end();
    assert_eq!(requests(&records).last().unwrap(), "decision read allow");
    let read = records.iter().find(|record| record["op"] == "read").unwrap();
    assert_eq!(read["source"], "editor");
}

#[test]
fn an_editor_that_offers_no_files_is_not_asked_and_the_disk_is_not_read_instead() {
    let mut run = start(false, false, &["--no-permissions"]);
    let turn = run.prompt("hello, no tools");
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("hello, no tools"), "{}", turn.said);

    let on_disk = run.path("a.txt");
    let turn = run.tool("read_text_file", &of(&on_disk));
    assert_missing(&turn, "read_text_file");
    assert!(!turn.said.contains("żółć"), "{}", turn.said);
    let turn = run.tool("write_text_file", &writing(&on_disk, "nope"));
    assert_missing(&turn, "write_text_file");
    assert_eq!(run.files_asked(), []);
    assert_eq!(run.world.read("a.txt"), "one\ntwo żółć\nthree\n");
    assert!(!run.end().iter().any(|record| record["kind"] == "intent"));
}

#[test]
fn an_editor_that_only_reads_is_read_and_never_written() {
    let mut run = start(true, false, &[]);
    let sample = run.path("sample.txt");
    let turn = run.tool("read_text_file", &of(&sample));
    assert!(turn.said.contains("second"), "{}", turn.said);

    let turn = run.tool("write_text_file", &writing(&sample, "nope"));
    assert_missing(&turn, "write_text_file");
    let turn = run.tool("write_text_file", &writing(&run.path("fresh.txt"), "nope"));
    assert_missing(&turn, "write_text_file");
    let asked = run.files_asked();
    assert!(asked.iter().all(|(method, _)| method == "fs/read_text_file"), "{asked:?}");
    assert_eq!(run.client().editor.buffers[&sample], "first\nsecond\nthird\n");
    assert!(!run.world.path("sample.txt").exists() && !run.world.path("fresh.txt").exists());
    run.end();
}

/// The buffer's content could not be backed up, so nothing is
/// changed.
#[test]
fn an_editor_that_only_writes_is_not_written_blindly() {
    let mut run = start(false, true, &["--no-permissions"]);
    let sample = run.path("sample.txt");
    let turn = run.tool("write_text_file", &writing(&sample, "nope"));
    assert_missing(&turn, "write_text_file");
    let turn = run.tool("read_text_file", &of(&sample));
    assert_missing(&turn, "read_text_file");
    assert_eq!(run.files_asked(), []);
    assert_eq!(run.client().editor.buffers[&sample], "first\nsecond\nthird\n");
    run.end();
}

#[test]
fn a_partial_read_slices_the_whole_buffer() {
    let mut run = start(true, true, &["--no-permissions"]);
    let sample = run.path("sample.txt");
    for (line, limit, seen) in [
        (json!(2), json!(1), "second\n"),
        (json!(2), Value::Null, "second\nthird\n"),
        (Value::Null, json!(2), "first\nsecond\n"),
        (json!(9), json!(1), ""),
    ] {
        let mut range = of(&sample);
        for (key, value) in [("line", line), ("limit", limit)] {
            if !value.is_null() {
                range[key] = value;
            }
        }
        let turn = run.tool("read_text_file", &range);
        assert!(turn.states.contains(&"completed".to_owned()), "{range}: {}", turn.said);
        let last = tool_updates(&mut run).pop().unwrap();
        assert_eq!(last["content"][0]["content"]["text"], seen, "{range}: {last}");
    }
    // The gateway checks the agent's part against the complete content, so it
    // never asks for less.
    for (_, params) in run.files_asked() {
        assert!(params.get("line").is_none() && params.get("limit").is_none(), "{params}");
    }
    run.end();
}

#[test]
fn a_write_goes_to_the_editor_and_the_buffer_is_kept_first() {
    let mut run = start(true, true, &["--no-permissions"]);
    let (sample, fresh) = (run.path("sample.txt"), run.path("fresh.txt"));
    for path in [&sample, &fresh] {
        let turn = run.tool("write_text_file", &writing(path, "Test content from a tool\n"));
        assert_eq!(turn.stop_reason, "end_turn");
        assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
        assert_eq!(run.client().editor.buffers[path], "Test content from a tool\n");
    }
    let writes: Vec<_> = run
        .files_asked()
        .into_iter()
        .filter(|(method, _)| method == "fs/write_text_file")
        .collect();
    assert_eq!(writes.len(), 2, "{writes:?}");
    assert_eq!(writes[0].1["path"], sample);
    assert_eq!(writes[0].1["content"], "Test content from a tool\n");
    // This editor has not saved, and the gateway does not write behind its
    // back.
    assert!(!run.world.path("sample.txt").exists() && !run.world.path("fresh.txt").exists());
    let backup = run.world.run(&["backup", "show", "sample.txt"]).ok();
    assert_eq!(backup.text(), "first\nsecond\nthird\n");

    let records = run.end();
    let intents: Vec<_> = records.iter().filter(|record| record["kind"] == "intent").collect();
    assert_eq!(intents.len(), 2, "{intents:#?}");
    assert!(intents[0]["backup"].is_string() && intents[1].get("backup").is_none());
    for intent in intents {
        assert_eq!(intent["source"], "editor");
        let outcome = records.iter().find(|record| record["of"] == intent["seq"]).unwrap();
        assert_eq!(outcome["result"], "buffered");
    }
}

#[test]
fn what_the_policy_denies_or_nobody_has_fails_without_a_question_too_many() {
    let mut run = start(true, true, &["--no-permissions"]);
    let secret = run.path("secret/key.txt");
    run.client().editor.buffers.insert(secret.clone(), "TOP-SECRET\n".to_owned());
    let turn = run.tool("read_text_file", &of(&secret));
    assert_failed(&turn, "denied by rule `keys`");
    assert!(!turn.said.contains("TOP-SECRET"), "{}", turn.said);
    assert_failed(
        &run.tool("write_text_file", &writing(&secret, "pwned")),
        "denied by rule `keys`",
    );
    assert_failed(&run.tool("read_text_file", &of("/etc/hostname")), "outside the workspace");
    assert_eq!(run.files_asked(), []);

    // Only on the disk, so not there for this source.
    assert_failed(&run.tool("read_text_file", &of(&run.path("a.txt"))), "not found");
    assert_eq!(run.files_asked().len(), 1);
    assert_eq!(run.client().editor.buffers[&secret], "TOP-SECRET\n");
    run.end();
}

#[test]
fn tool_calls_are_told_of_from_pending_to_their_end() {
    let mut run = start(true, true, &["--no-permissions"]);
    let sample = run.path("sample.txt");
    run.tool("read_text_file", &of(&sample));
    let read = tool_updates(&mut run);
    assert_eq!(read[0]["sessionUpdate"], "tool_call", "{read:#?}");
    assert_eq!(read[0]["title"], "read_text_file");
    assert_eq!((&read[0]["kind"], &read[0]["status"]), (&json!("read"), &json!("pending")));
    assert_eq!(read[0]["rawInput"]["path"], sample);
    let last = read.last().unwrap();
    assert_eq!(last["status"], "completed", "{read:#?}");
    assert_eq!(last["content"][0]["content"]["text"], "first\nsecond\nthird\n");

    run.tool("write_text_file", &writing(&sample, "changed\n"));
    let write = tool_updates(&mut run);
    assert_eq!((&write[0]["kind"], &write[0]["status"]), (&json!("edit"), &json!("pending")));
    // The old text of the difference came through the gateway.
    let diff = json!({
        "type": "diff", "path": sample,
        "oldText": "first\nsecond\nthird\n", "newText": "changed\n"
    });
    assert!(write.iter().any(|update| update["content"][0] == diff), "{write:#?}");
    assert_eq!(write.last().unwrap()["status"], "completed");

    for (updates, own) in [(&read, &read[0]), (&write, &write[0])] {
        let id = &own["toolCallId"];
        assert!(updates.iter().all(|update| update["toolCallId"] == *id), "{updates:#?}");
        let rest = &updates[1..];
        assert!(rest.iter().all(|update| update["sessionUpdate"] == "tool_call_update"));
    }
    assert_ne!(read[0]["toolCallId"], write[0]["toolCallId"]);
    run.end();
}

/// A configuration with our MCP server beside the agent.
fn with_server(root: &Path) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/progress.py");
    let server = json!({"command": peers().join("bin/python"), "args": [script]});
    let config = json!({
        "default_model": "passthrough",
        "logger": {"progress_display": false, "show_chat": false, "show_tools": false},
        "mcp": {"servers": {"steps": server}}
    });
    // JSON is YAML.
    let path = root.join("fastagent.config.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn progress_of_a_server_in_the_sandbox_reaches_the_editor() {
    let place = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let config = with_server(place.path());
    let more = ["--no-permissions", "--servers", "steps"];
    let mut run = Run::with("editor", &config, editor(true, true), &more);
    let turn = run.tool("steps__climb", &json!({"steps": 3}));
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("climbed 3 steps"), "{}", turn.said);
    let updates = tool_updates(&mut run);
    assert_eq!(updates[0]["sessionUpdate"], "tool_call", "{updates:#?}");
    assert_eq!((&updates[0]["kind"], &updates[0]["status"]), (&json!("other"), &json!("pending")));
    assert_eq!(updates.last().unwrap()["status"], "completed", "{updates:#?}");
    for step in 1..=3 {
        assert!(turn.said.contains(&format!("reached step {step}")), "{}", turn.said);
    }
    run.end();
}

#[test]
fn permission_is_asked_of_the_editor_and_what_it_says_holds() {
    let mut run = start(true, true, &[]);
    let sample = run.path("sample.txt");
    for (kind, why) in [("cancelled", "cancelled"), ("reject_once", "declined")] {
        run.client().editor.permissions = [kind].into();
        assert_failed(&run.tool("write_text_file", &writing(&sample, "nope")), why);
    }
    assert_eq!(run.permissions_asked(), 2);
    assert_eq!(run.files_asked(), []);

    // Once is for once.
    for asked in [3, 4] {
        run.client().editor.permissions = ["allow_once"].into();
        let turn = run.tool("read_text_file", &of(&sample));
        assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
        assert_eq!(run.permissions_asked(), asked);
    }
    // Always is for this tool.
    run.client().editor.permissions = ["allow_always"].into();
    for _ in 0..2 {
        let turn = run.tool("read_text_file", &of(&sample));
        assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
        assert_eq!(run.permissions_asked(), 5);
    }
    run.client().editor.permissions = ["reject_always"].into();
    for _ in 0..2 {
        assert_failed(&run.tool("write_text_file", &writing(&sample, "nope")), "");
        assert_eq!(run.permissions_asked(), 6);
    }
    assert_eq!(run.client().editor.buffers[&sample], "first\nsecond\nthird\n");
    // The agent keeps its notes about that in its working directory, which in
    // its sandbox is not the workspace.
    assert!(!run.world.path(".fast-agent").exists());
    let records = run.end();
    assert!(!requests(&records).contains(&"intent write allow".to_owned()), "{records:#?}");
}

/// The editor's permission does not stand above the policy.
#[test]
fn permission_of_the_editor_opens_nothing_that_the_policy_denies() {
    let mut run = start(true, true, &[]);
    run.client().editor.permissions = ["allow_always"].into();
    let secret = run.path("secret/key.txt");
    assert_failed(&run.tool("read_text_file", &of(&secret)), "denied by rule `keys`");
    assert_eq!(run.permissions_asked(), 1);
    assert_eq!(run.files_asked(), []);
    run.end();
}

#[test]
fn an_agent_that_asks_for_no_permission_asks_for_none() {
    let mut run = start(true, true, &["--no-permissions"]);
    let sample = run.path("sample.txt");
    run.tool("read_text_file", &of(&sample));
    run.tool("write_text_file", &writing(&sample, "new\n"));
    assert_eq!(run.permissions_asked(), 0);
    assert_eq!(run.client().editor.buffers[&sample], "new\n");
    run.end();
}
