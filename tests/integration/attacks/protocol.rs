//! Lines that two parsers could read differently, and requests at the wrong
//! time.

use serde_json::json;

use crate::acp_rig::{Rig, notification, request};

fn rig() -> Rig {
    Rig::ready(json!({}), |_| {})
}

fn serves_on(rig: &mut Rig, id: i64) {
    rig.agent.send(&rig.read(id, "a.txt"));
    let answer = rig.agent.hear();
    assert_eq!(answer["id"], id, "{answer}");
    assert_eq!(answer["result"]["content"], "one\ntwo żółć\nthree\n");
}

#[test]
fn a_method_in_disguise_is_the_same_method_or_none() {
    let mut rig = rig();
    let path = rig.path("secret/key.txt");
    let line = |id: i64, method: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"sessionId":"s1","path":{path:?},"content":"PWNED"}}}}"#
        )
    };
    for (id, method, code) in [
        (10, r"fs\/read_text_file", -32001),
        (11, r"\u0066s/write_text_file", -32001),
        (12, "FS/read_text_file", -32601),
        (13, "fs/read_text_file ", -32601),
        (14, "fs//read_text_file", -32601),
        (15, "fs/readTextFile", -32601),
        (16, "fs/delete", -32601),
        (17, r"fs/read_text_file\u0000", -32601),
        (18, "terminal/create", -32601),
        (19, r"terminal\/create", -32601),
        (20, "_fs/read_text_file", -32601),
        (21, "session/update", -32601),
        (22, "session/new", -32601),
        (23, "", -32601),
    ] {
        let before = rig.log().lines().count();
        rig.agent.say(&line(id, method));
        let answer = rig.agent.hear();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(id), &json!(code)),
            "{method}: {answer}"
        );
        assert!(!answer.to_string().contains("TOP-SECRET"));
        assert_eq!(rig.log().lines().count(), before + 1, "{method} left no record");
    }
    rig.editor.hears_nothing();
    serves_on(&mut rig, 30);
}

#[test]
fn a_notification_where_a_request_belongs_does_nothing_and_is_recorded() {
    let mut rig = rig();
    let path = rig.path("a.txt");
    let params = json!({"sessionId": "s1", "path": path, "content": "PWNED"});
    for method in ["fs/write_text_file", "fs/read_text_file", "terminal/create", "session/new"] {
        rig.agent.send(&notification(method, params.clone()));
    }
    rig.agent
        .say(&format!(r#"{{"jsonrpc":"2.0","method":"fs\/write_text_file","params":{params}}}"#));
    rig.agent.hears_nothing();
    // The sender of these may wait, and gets an error.
    let no_id = r#"{"jsonrpc":"2.0","id":null,"method":"fs/write_text_file","params":PARAMS}"#;
    let batch = format!(r#"[{}]"#, request(9, "fs/write_text_file", params.clone()));
    for line in [no_id.replace("PARAMS", &params.to_string()), batch] {
        rig.agent.say(&line);
        let answer = rig.agent.hear();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(null), &json!(-32600)));
    }
    rig.agent.hears_nothing();
    rig.editor.hears_nothing();
    assert_eq!(rig.log().matches("acp.dropped").count(), 7);
    serves_on(&mut rig, 30);
}

#[test]
fn cancelling_what_is_answered_or_was_never_asked_does_nothing() {
    let mut rig = rig();
    serves_on(&mut rig, 10);
    for id in [json!(10), json!(11), json!("never"), json!(null), json!([10])] {
        rig.agent.send(&notification("$/cancel_request", json!({ "requestId": id })));
    }
    rig.agent.send(&notification("$/cancel_request", json!({})));
    rig.agent.hears_nothing();
    rig.editor.hears_nothing();
    assert_eq!(rig.log().matches("nothing to cancel").count(), 6);
    serves_on(&mut rig, 10);
}

#[test]
fn nesting_and_keys_without_end_are_dropped() {
    let mut rig = rig();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let objects = format!("{}0{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let keys: Vec<_> = (0..300_000).map(|n| format!("\"{n}\":0")).collect();
    let keys = format!("{{{}}}", keys.join(","));
    for (id, value) in [(10, deep), (11, objects), (12, keys)] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"fs/read_text_file","params":{{"sessionId":"s1","x":{value}}}}}"#
        );
        rig.agent.say(&line);
        let answer = rig.agent.hear();
        assert_eq!(answer["id"], id);
        assert!(answer["error"]["code"].as_i64().unwrap() <= -32600, "{answer}");
        serves_on(&mut rig, 20 + id);
    }
    assert_eq!(rig.log().matches("acp.dropped").count(), 3);
}
