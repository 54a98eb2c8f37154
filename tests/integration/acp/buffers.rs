//! Files that the editor has open, with text that is not saved.

use std::time::Duration;

use portcullis::acp::SourceMode;

use super::*;

#[test]
fn unsaved_buffers_are_seen_and_the_raw_request_is_not() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    let path = rig.path("./a.txt");
    let params = json!({"sessionId": "s1", "path": path, "line": 2, "limit": 1, "_meta": {"x": 1}});
    rig.agent.send(&request(0, "fs/read_text_file", params));
    let asked = rig.editor.hear();
    assert_eq!(asked["params"], json!({"sessionId": "s1", "path": rig.path("a.txt")}));
    let id = asked["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("portcullis-"));
    rig.editor.send(&result(id.as_str(), json!({"content": "1\nunsaved\n3\n"})));
    assert_eq!(rig.agent.hear()["result"]["content"], "unsaved\n");
    // The agent cannot borrow such an id, nor the editor answer twice.
    rig.agent.send(&request(id.as_str(), "session/request_permission", json!({})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32600);
    rig.editor.send(&result(id.as_str(), json!({"content": "again"})));
    rig.agent.hears_nothing();
    rig.editor.hears_nothing();
}

/// It was dropped, and its agent waited for ever, or took the answer to the first
/// one for its own.
#[test]
fn a_second_request_under_an_id_that_is_in_use_is_refused() {
    let mut rig = Rig::ready(all_fs(), |config| config.source = SourceMode::Editor);
    let (first, second) = (rig.read(8, "a.txt"), rig.write(8, "b.txt", "second"));
    rig.agent.send(&first);
    let asked = rig.editor.hear();
    rig.agent.send(&second);
    let refused = rig.agent.hear();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(8), &json!(-32600)));
    assert!(refused["error"]["data"]["receipt"]["seq"].is_u64(), "{refused}");
    rig.editor.hears_nothing();
    rig.editor.send(&result(asked["id"].as_str().unwrap(), json!({"content": "first"})));
    assert_eq!(rig.agent.hear()["result"]["content"], "first");
    rig.agent.hears_nothing();
}

#[test]
fn what_the_editor_does_not_have_is_read_from_disk_and_an_error_is_not() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.read(10, "a.txt"));
    let asked = rig.editor.hear();
    rig.editor.send(&failure(asked["id"].clone(), -32002));
    assert_eq!(rig.agent.hear()["result"]["content"], "one\ntwo żółć\nthree\n");
    rig.agent.send(&rig.read(11, "a.txt"));
    let asked = rig.editor.hear();
    rig.editor.send(&failure(asked["id"].clone(), -32603));
    assert_eq!(rig.agent.hear()["error"]["code"], -32603);
    rig.agent.send(&rig.read(12, "a.txt"));
    let asked = rig.editor.hear();
    rig.editor.say(&format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":"a","content":"b"}}}}"#,
        asked["id"]
    ));
    assert_eq!(rig.agent.hear()["error"]["code"], -32603);
}

#[test]
fn source_editor_never_falls_back_to_the_disk() {
    let mut rig = Rig::ready(no_fs(), |config| config.source = SourceMode::Editor);
    rig.agent.send(&rig.read(10, "a.txt"));
    let answer = rig.agent.hear();
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(message, "the editor does not offer `fs.readTextFile`", "{answer}");
    rig.agent.send(&rig.write(11, "a.txt", "x"));
    assert!(rig.agent.hear()["error"].is_object());
    assert_eq!(fs::read_to_string(rig.root.join("a.txt")).unwrap(), "one\ntwo żółć\nthree\n");

    // Nor does what was not offered to the agent, and is asked for all the same.
    let reads = json!({"readTextFile": true});
    let mut rig = Rig::ready(reads, |config| config.source = SourceMode::Editor);
    rig.agent.send(&rig.write(10, "a.txt", "x"));
    let asked = rig.editor.hear();
    assert_eq!(asked["method"], "fs/read_text_file");
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "unsaved"})));
    let answer = rig.agent.hear();
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(message, "the editor does not offer `fs.writeTextFile`", "{answer}");
    rig.editor.hears_nothing();
    let writes = json!({"writeTextFile": true});
    let mut rig = Rig::ready(writes, |config| config.source = SourceMode::Editor);
    rig.agent.send(&rig.write(10, "a.txt", "x"));
    assert!(rig.agent.hear()["error"].is_object());
    rig.editor.hears_nothing();

    let mut rig = Rig::ready(all_fs(), |config| {
        config.source = SourceMode::Editor;
        config.editor_timeout = Duration::from_millis(200);
    });
    rig.agent.send(&rig.read(10, "a.txt"));
    let asked = rig.editor.hear();
    assert_eq!(rig.agent.hear()["error"]["code"], -32603);
    assert_eq!(rig.editor.hear()["params"]["requestId"], asked["id"]);
    // Its reply comes too late and goes nowhere.
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "late"})));
    rig.agent.hears_nothing();
}

/// The protocol's own guide has its client fail so where there is no file.
#[test]
fn an_editor_that_refuses_to_read_what_is_not_there_keeps_no_file_from_being_made() {
    for (source, through_editor) in [(SourceMode::Auto, false), (SourceMode::Editor, true)] {
        let mut rig = Rig::ready(all_fs(), |config| config.source = source);
        rig.agent.send(&rig.read(10, "new.txt"));
        let asked = rig.editor.hear();
        rig.editor.send(&failure(asked["id"].clone(), -32603));
        assert_eq!(rig.agent.hear()["error"]["code"], -32002);
        rig.agent.send(&rig.write(11, "new.txt", "new\n"));
        let asked = rig.editor.hear();
        rig.editor.send(&failure(asked["id"].clone(), -32603));
        if through_editor {
            let told = rig.editor.hear();
            assert_eq!(told["method"], "fs/write_text_file");
            fs::write(rig.root.join("new.txt"), told["params"]["content"].as_str().unwrap())
                .unwrap();
            rig.editor.send(&result(told["id"].clone(), Value::Null));
        }
        assert!(rig.agent.hear()["error"].is_null());
        assert_eq!(fs::read_to_string(rig.root.join("new.txt")).unwrap(), "new\n");
        // Of what is there a refusal is one.
        rig.agent.send(&rig.write(12, "a.txt", "x"));
        let asked = rig.editor.hear();
        rig.editor.send(&failure(asked["id"].clone(), -32603));
        assert_eq!(rig.agent.hear()["error"]["code"], -32603);
        assert_eq!(fs::read_to_string(rig.root.join("a.txt")).unwrap(), "one\ntwo żółć\nthree\n");
        rig.editor.hears_nothing();
    }
}

#[test]
fn a_slow_editor_stalls_only_the_request_that_waits_for_it() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.read(10, "a.txt"));
    let first = rig.editor.hear();
    rig.agent.send(&rig.read(11, "b.txt"));
    let second = rig.editor.hear();
    rig.agent.send(&notification("session/update", json!({"n": 1})));
    assert_eq!(rig.editor.hear()["params"]["n"], 1);
    rig.editor.send(&result(second["id"].clone(), json!({"content": "b"})));
    assert_eq!(rig.agent.hear()["id"], 11);
    rig.editor.send(&result(first["id"].clone(), json!({"content": "a"})));
    assert_eq!(rig.agent.hear()["id"], 10);
}

#[test]
fn a_write_over_unsaved_text_goes_through_the_editor_and_both_are_kept() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.write(10, "a.txt", "new\n"));
    let asked = rig.editor.hear();
    assert_eq!(asked["method"], "fs/read_text_file");
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "unsaved\n"})));
    let told = rig.editor.hear();
    assert_eq!(told["method"], "fs/write_text_file");
    assert_eq!(
        told["params"],
        json!({"sessionId": "s1", "path": rig.path("a.txt"), "content": "new\n"})
    );
    fs::write(rig.root.join("a.txt"), "new\n").unwrap();
    rig.editor.send(&result(told["id"].clone(), Value::Null));
    let answer = rig.agent.hear();
    assert_eq!(answer["result"]["_meta"]["portcullis/receipt"]["durable"], true, "{answer}");
    let log = rig.log();
    let intent = log.lines().find(|line| line.contains("\"kind\":\"intent\"")).unwrap();
    let intent: Value = serde_json::from_str(intent).unwrap();
    assert_eq!(intent["source"], "editor", "{intent}");
    assert!(
        intent["backup"].is_string() && intent["facts"]["bufferBackup"].is_string(),
        "{intent}"
    );
}

#[test]
fn what_is_denied_is_never_asked_of_the_editor() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    for line in [rig.read(10, "secret/key.txt"), rig.write(11, "secret/key.txt", "x")] {
        rig.agent.send(&line);
        assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    }
    let outside = json!({"sessionId": "s1", "path": "/etc/passwd"});
    rig.agent.send(&request(12, "fs/read_text_file", outside));
    assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    rig.editor.hears_nothing();
}

#[test]
fn a_link_is_asked_of_the_editor_by_what_it_leads_to() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    std::os::unix::fs::symlink("a.txt", rig.root.join("link.txt")).unwrap();
    std::os::unix::fs::symlink("secret/key.txt", rig.root.join("innocent.txt")).unwrap();
    rig.agent.send(&rig.read(10, "link.txt"));
    let asked = rig.editor.hear();
    assert_eq!(asked["params"]["path"], rig.path("a.txt"));
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "x"})));
    assert_eq!(rig.agent.hear()["result"]["content"], "x");
    rig.agent.send(&rig.read(11, "innocent.txt"));
    assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    rig.editor.hears_nothing();
}

#[test]
fn a_buffer_is_checked_like_a_file() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    for content in ["nul \u{0} inside".to_owned(), "x".repeat(11 << 20)] {
        rig.agent.send(&rig.read(10, "a.txt"));
        let asked = rig.editor.hear();
        rig.editor.send(&result(asked["id"].clone(), json!({ "content": content })));
        let answer = rig.agent.hear();
        assert_eq!(answer["error"]["code"], -32001, "{answer}");
    }
}
