//! The ACP transport: messages that pass, messages that do not, and the state
//! that is left behind.

use std::{fs, time::Duration};

use portcullis::acp::{self, Config};
use serde_json::{Value, json};

use crate::acp_rig::{
    POLICY, Rig, connection, failure, gateway, notification, request, result, workspace,
};

mod buffers;
mod cancellation;
mod directories;
mod ends;
mod further;

fn no_fs() -> Value {
    json!({})
}

fn all_fs() -> Value {
    json!({"readTextFile": true, "writeTextFile": true})
}

fn served() -> Rig {
    Rig::ready(no_fs(), |_| {})
}

// Messages that pass

#[test]
fn what_passes_passes_byte_for_byte() {
    let mut rig = served();
    let odd = [
        r#"{"params": {"z":1.50,"a":1e2,"\u0061b":"\ud83d\ude00\/"} ,"jsonrpc":"2.0", "method":"session\/update"}"#,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","n":123456789012345678901234567890},"extra":[]}"#,
    ];
    for line in odd {
        rig.agent.say(line);
        assert_eq!(rig.editor.line(), line);
    }
    let asked = r#"{"id" : "p\u0031","jsonrpc":"2.0","method":"session/request_permission","params":{"x":0.10}}"#;
    rig.agent.say(asked);
    assert_eq!(rig.editor.line(), asked);
    let answer = r#"{ "result":{"outcome":1.0},"id":"p1","jsonrpc":"2.0"}"#;
    rig.editor.say(answer);
    assert_eq!(rig.agent.line(), answer);
    let prompt = r#"{"jsonrpc":"2.0","id":-9007199254740993,"method":"session/prompt","params":{"b":1,"a":2.0}}"#;
    rig.editor.say(prompt);
    assert_eq!(rig.agent.line(), prompt);
    let reply = "{\"jsonrpc\":\"2.0\",\"result\":{\"stopReason\":\"end_turn\"},\t\"id\":-9007199254740993}\r";
    rig.agent.say(reply);
    assert_eq!(rig.editor.line(), reply);
}

#[test]
fn initialize_offers_fs_and_no_terminal() {
    let mut rig = Rig::new();
    rig.editor.say(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":3,"clientCapabilities":{"terminal":true,"x":1.0}}}"#);
    assert_eq!(
        rig.agent.line(),
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"terminal":false,"x":1.0,"fs":{"readTextFile":true,"writeTextFile":true}}}}"#
    );
    rig.agent.say(r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentInfo":{"v":1.0},"authMethods":[{"id":"t","name":"T","type":"terminal","args":["-c"]}]}}"#);
    assert_eq!(
        rig.editor.line(),
        r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentInfo":{"v":1.0},"authMethods":[]}}"#
    );
    assert!(rig.log().contains("make the editor act"));
}

#[test]
fn an_agent_of_another_version_is_turned_into_an_error() {
    let mut rig = Rig::new();
    rig.editor.send(&request(0, "initialize", json!({"protocolVersion": 2})));
    rig.agent.hear();
    rig.agent.send(&result(0, json!({"protocolVersion": 2})));
    assert_eq!(rig.editor.hear()["error"]["code"], -32603);
}

// Messages that do not

#[test]
fn nothing_else_of_the_agent_reaches_the_editor() {
    let mut rig = served();
    for (id, method) in [
        (10, "terminal/create"),
        (11, "fs/list_directory"),
        (12, "FS/read_text_file"),
        (13, "session/update"),
        (14, "elicitation/create"),
        (15, "_zed.dev/run"),
        (16, "mcp/connect"),
        (17, "initialize"),
    ] {
        rig.agent.send(&request(id, method, json!({"sessionId": "s1", "command": "id"})));
        let answer = rig.agent.hear();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(id), &json!(-32601)),
            "{method}"
        );
        assert!(answer["error"]["data"]["receipt"]["leaf"].is_string(), "{answer}");
        assert!(rig.log().contains(method), "{method} is recorded");
    }
    for method in [
        "terminal/create",
        "fs/write_text_file",
        "fs/read_text_file",
        "session/request_permission",
        "x",
    ] {
        let path = rig.path("made.txt");
        rig.agent
            .send(&notification(method, json!({"sessionId": "s1", "path": path, "content": "x"})));
    }
    // An answer behind them shows that they have been dealt with.
    rig.agent.send(&rig.read(99, "a.txt"));
    assert_eq!(rig.agent.hear()["id"], 99);
    rig.editor.hears_nothing();
    assert!(!rig.root.join("made.txt").exists());
    assert_eq!(rig.log().matches("the notification is not one that passes").count(), 5);
}

#[test]
fn an_agent_may_ask_for_much_before_it_reads_anything() {
    const REQUESTS: i64 = 3000;
    let mut rig = Rig::ready(no_fs(), |_| {});
    // More than all queues together take in.
    std::fs::write(rig.root.join("a.txt"), "text\n".repeat(4000)).unwrap();
    rig.agent.stop_reading();
    let requests: String = (0..REQUESTS).map(|id| format!("{}\n", rig.read(id, "a.txt"))).collect();
    let mut input = rig.agent.take_input();
    let (done, written) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        std::io::Write::write_all(&mut input, requests.as_bytes()).unwrap();
        done.send(input).unwrap();
    });
    let _input = written.recv_timeout(Duration::from_secs(60)).expect("all is heard");
    rig.agent.read_on();
    let mut answered: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let answer = rig.agent.hear();
            assert!(answer["result"]["content"].is_string(), "{answer}");
            answer["id"].as_i64().unwrap()
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..REQUESTS).collect::<Vec<_>>());
}

#[test]
fn the_operator_can_forward_a_method_and_never_fs() {
    let mut rig = Rig::ready(no_fs(), |config| config.forward = vec!["terminal/create".into()]);
    rig.agent.send(&request(10, "terminal/create", json!({})));
    assert_eq!(rig.editor.hear()["method"], "terminal/create");
    rig.agent.send(&request(11, "terminal/kill", json!({})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32601);

    let (dir, root) = workspace();
    let mut config = Config::new(connection(), root.clone());
    config.forward = vec!["fs/read_text_file".into()];
    let streams = || std::io::pipe().unwrap();
    let error = acp::serve(&gateway(&root, dir.path()), &config, streams(), streams()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`fs/read_text_file` cannot be forwarded: the gateway itself serves `fs/*`"
    );
}

#[test]
fn lines_that_are_not_strict_are_dropped_and_the_waiting_party_is_told() {
    let mut rig = served();
    let path = rig.path("a.txt");
    // These get no reply.
    let dropped: [&[u8]; 12] = [
        b"{\"jsonrpc\":\"2.0\",\r\"method\":\"session/update\",\"params\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"a\":1,\"\\u0061\":2}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"m\\u0065thod\":\"x\",\"params\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"METHOD\":\"x\",\"params\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"a\":\"\\ud800\"}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":[]}",
        b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":\"never\",\"result\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"result\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":1,\"message\":\"\"}}",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"a\":\"\xff\"}}",
        b"",
    ];
    for line in dropped {
        rig.agent.bytes(&[line, b"\n"].concat());
    }
    // These may be requests, but their id cannot be read or used.
    let deep = format!("{}{}", "{\"a\":".repeat(500), "}".repeat(500));
    let unknown: [(&[u8], i64); 13] = [
        (b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}}", -32700),
        (b"[{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}}]", -32600),
        (b"[]", -32600),
        (b"garbage", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"a\":NaN}}", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}} {}", -32700),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"fs/read_text_file\",\"params\":{}}",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1.0,\"method\":\"fs/read_text_file\",\"params\":{}}",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"fs/read_text_file\",\"params\":{}}",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"fs/read_text_file\",\"params\":{}}",
            -32600,
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":99999999999999999999,\"method\":\"x\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"x\"}", -32700),
        (deep.as_bytes(), -32700),
    ];
    for (line, code) in unknown {
        rig.agent.bytes(&[line, b"\n"].concat());
        let answer = rig.agent.hear();
        let line = String::from_utf8_lossy(line);
        assert_eq!(
            (answer.get("id"), &answer["error"]["code"]),
            (Some(&Value::Null), &json!(code)),
            "{line}"
        );
        assert!(answer["error"]["data"]["receipt"].is_object(), "{answer}");
    }
    let answered = [
        (
            20,
            r#""method":"fs/read_text_file","params":{"sessionId":"s1","path":"/etc/passwd","path":"PATH"}"#,
            -32700,
        ),
        (21, r#""method":"session/request_permission","result":{}"#, -32600),
        (
            22,
            r#""method":"fs/read_text_file","params":{"sessionId":"s1","path":"PATH","line":Infinity}"#,
            -32700,
        ),
        (23, r#""method":7"#, -32600),
    ];
    for (id, rest, code) in answered {
        rig.agent
            .say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{}}}", rest.replace("PATH", &path)));
        let answer = rig.agent.hear();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(code)), "{rest}");
    }
    rig.editor.hears_nothing();
    rig.agent.hears_nothing();
    assert_eq!(
        rig.log().matches("acp.dropped").count(),
        dropped.len() + unknown.len() + answered.len()
    );
    rig.agent.send(&rig.read(99, "a.txt"));
    assert_eq!(rig.agent.hear()["result"]["content"], "one\ntwo żółć\nthree\n");
}

#[test]
fn each_request_of_the_editor_is_answered_once() {
    let mut rig = served();
    rig.editor.send(&request("q", "session/prompt", json!({})));
    rig.agent.hear();
    for line in [result("q", json!({"n": 1})), result("q", json!({"n": 2})), failure("q", 1)] {
        rig.agent.send(&line);
    }
    assert_eq!(rig.editor.hear()["result"]["n"], 1);
    rig.editor.hears_nothing();
    // A broken reply does not leave the editor waiting.
    rig.editor.send(&request("r", "session/prompt", json!({})));
    rig.agent.hear();
    rig.agent.say(r#"{"jsonrpc":"2.0","id":"r","result":{"a":1,"a":2}}"#);
    let told = rig.editor.hear();
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!("r"), &json!(-32603)));
}

#[test]
fn replies_of_the_editor_to_nothing_do_not_reach_the_agent() {
    let mut rig = served();
    rig.editor.send(&result(7, json!({})));
    rig.agent.hears_nothing();
    // The same id may be in use in both directions.
    rig.editor.send(&request(7, "session/prompt", json!({})));
    rig.agent.hear();
    rig.agent.send(&request(7, "session/request_permission", json!({})));
    assert_eq!(rig.editor.hear()["method"], "session/request_permission");
    rig.agent.send(&request(7, "session/request_permission", json!({"again": 1})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32600);
    rig.editor.hears_nothing();
    rig.editor.send(&result(7, json!({"outcome": 1})));
    assert_eq!(rig.agent.hear()["result"]["outcome"], 1);
    rig.agent.send(&result(7, json!({"stopReason": "end_turn"})));
    assert_eq!(rig.editor.hear()["result"]["stopReason"], "end_turn");
}

// Files

#[test]
fn files_are_served_with_receipts() {
    let mut rig = served();
    rig.agent.send(&rig.read(10, "a.txt"));
    let answer = rig.agent.hear();
    assert_eq!(answer["result"]["content"], "one\ntwo żółć\nthree\n");
    let receipt = &answer["result"]["_meta"]["portcullis/receipt"];
    assert!(receipt["seq"].is_u64() && receipt["durable"].is_boolean(), "{answer}");
    assert_eq!(receipt["leaf"].as_str().unwrap().len(), 64);

    rig.agent.send(&rig.write(11, "b.txt", "ünï\ncode"));
    let answer = rig.agent.hear();
    assert!(answer["result"]["_meta"]["portcullis/receipt"]["seq"].is_u64(), "{answer}");
    assert_eq!(fs::read_to_string(rig.root.join("b.txt")).unwrap(), "ünï\ncode");
    rig.editor.hears_nothing();
}

#[test]
fn line_and_limit_slice() {
    let mut rig = served();
    let path = rig.path("a.txt");
    for (extra, expected) in [
        (json!({"line": 2, "limit": 1}), "two żółć\n"),
        (json!({"line": 3, "limit": null}), "three\n"),
        (json!({"line": null, "limit": 1}), "one\n"),
        (json!({"line": 2.0, "limit": 1.0}), "two żółć\n"),
        (json!({"line": 3, "limit": 1e300}), "three\n"),
        (
            json!({"line": 18_446_744_073_709_551_615u64, "limit": 18_446_744_073_709_551_615u64}),
            "",
        ),
    ] {
        let mut params = json!({"sessionId": "s1", "path": path});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        rig.agent.send(&request(10, "fs/read_text_file", params));
        assert_eq!(rig.agent.hear()["result"]["content"], expected, "{extra}");
    }
    for bad in ["0", "-1", "1.5", "\"1\""] {
        rig.agent.say(&format!(r#"{{"jsonrpc":"2.0","id":11,"method":"fs/read_text_file","params":{{"sessionId":"s1","path":{path:?},"line":{bad}}}}}"#));
        assert_eq!(rig.agent.hear()["error"]["code"], -32602, "{bad}");
    }
}

#[test]
fn bad_paths_sessions_and_types_are_refused_and_recorded() {
    let mut rig = served();
    let evil = format!("{}-evil/a.txt", rig.root.display());
    fs::create_dir(format!("{}-evil", rig.root.display())).unwrap();
    fs::write(&evil, "outside").unwrap();
    for (path, code) in [
        (evil.as_str(), -32001),
        ("/etc/passwd", -32001),
        (&rig.path("../ws/a.txt"), -32001),
        (&rig.path("a.txt\0"), -32602),
        ("a.txt", -32602),
        ("~/a.txt", -32602),
        ("", -32602),
    ] {
        let before = rig.log().lines().count();
        for method in ["fs/read_text_file", "fs/write_text_file"] {
            rig.agent.send(&request(
                10,
                method,
                json!({"sessionId": "s1", "path": path, "content": "x"}),
            ));
            let answer = rig.agent.hear();
            assert_eq!(answer["error"]["code"], code, "{path:?} {answer}");
            assert!(answer["error"]["data"]["receipt"]["seq"].is_u64(), "{answer}");
        }
        assert_eq!(rig.log().lines().count(), before + 2, "{path:?}");
    }
    assert_eq!(fs::read_to_string(&evil).unwrap(), "outside");
    let path = rig.path("a.txt");
    for params in [
        json!({"sessionId": "s2", "path": path, "content": "x"}),
        json!({"path": path, "content": "x"}),
        json!({"sessionId": 1, "path": path, "content": "x"}),
        json!({"sessionId": "s1", "content": "x"}),
        json!({"sessionId": "s1", "path": [path], "content": "x"}),
        json!({"sessionId": "s1", "path": {"path": path}, "content": "x"}),
        json!({"sessionId": "s1", "path": path, "content": 7}),
        json!({"sessionId": "s1", "path": path}),
    ] {
        rig.agent.send(&request(10, "fs/write_text_file", params.clone()));
        assert_eq!(rig.agent.hear()["error"]["code"], -32602, "{params}");
    }
    assert_eq!(fs::read_to_string(rig.root.join("a.txt")).unwrap(), "one\ntwo żółć\nthree\n");
}

#[test]
fn denied_and_missing_have_their_codes() {
    let mut rig = served();
    rig.agent.send(&rig.read(10, "secret/key.txt"));
    let denied = rig.agent.hear();
    assert_eq!(denied["error"]["code"], -32001);
    assert!(denied["error"]["data"]["rule"].is_string(), "{denied}");
    assert!(denied["error"]["data"]["receipt"]["seq"].is_u64(), "{denied}");
    assert!(!denied.to_string().contains("TOP-SECRET"));
    rig.agent.send(&rig.read(10, "secret/missing.txt"));
    let mut absent = rig.agent.hear();
    absent["error"]["data"]["receipt"] = denied["error"]["data"]["receipt"].clone();
    assert_eq!(absent, denied, "a denied path tells nothing about its existence");
    rig.agent.send(&rig.write(11, "secret/key.txt", "pwned"));
    assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    assert_eq!(fs::read_to_string(rig.root.join("secret/key.txt")).unwrap(), "TOP-SECRET\n");
    rig.agent.send(&rig.read(12, "missing.txt"));
    let missing = rig.agent.hear();
    assert_eq!(missing["error"]["code"], -32002);
    assert_eq!(missing["error"]["data"]["uri"], rig.path("missing.txt"));
}

#[test]
fn the_workspace_answers_to_the_name_that_the_user_gave() {
    let mut rig = Rig::ready(no_fs(), |config| config.workspace_alias = Some("/alias/ws".into()));
    let params = json!({"sessionId": "s1", "path": "/alias/ws/a.txt", "limit": 1});
    rig.agent.send(&request(10, "fs/read_text_file", params));
    assert_eq!(rig.agent.hear()["result"]["content"], "one\n");
}

#[test]
fn sessions_are_known_from_load_and_gone_after_close() {
    let mut rig = served();
    let read = |session: &str, path: String| {
        request(50, "fs/read_text_file", json!({"sessionId": session, "path": path}))
    };
    rig.editor.send(&request(2, "session/load", json!({"sessionId": "old", "cwd": rig.root})));
    rig.agent.hear();
    // While the agent replays.
    rig.agent.send(&read("old", rig.path("a.txt")));
    assert!(rig.agent.hear()["result"].is_object());
    rig.agent.send(&failure(2, -32603));
    rig.editor.hear();
    rig.agent.send(&read("old", rig.path("a.txt")));
    assert_eq!(rig.agent.hear()["error"]["code"], -32602);
    rig.open_session(3, "s2");
    rig.editor.send(&request(4, "session/close", json!({"sessionId": "s1"})));
    rig.agent.hear();
    rig.agent.send(&result(4, json!({})));
    rig.editor.hear();
    rig.agent.send(&read("s1", rig.path("a.txt")));
    assert_eq!(rig.agent.hear()["error"]["code"], -32602);
    rig.agent.send(&read("s2", rig.path("a.txt")));
    assert!(rig.agent.hear()["result"].is_object());
}

#[test]
fn each_session_is_named_in_the_session_of_the_run() {
    let mut rig = served();
    rig.open_session(2, "s2");
    let mut other = rig.read(11, "a.txt");
    other["params"]["sessionId"] = json!("s2");
    for read in [rig.read(10, "a.txt"), other] {
        rig.agent.send(&read);
        rig.agent.hear();
    }
    let records: Vec<Value> =
        rig.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in ["s1", "s2"] {
        let of_session: Vec<_> =
            records.iter().filter(|record| record["facts"]["acpSession"] == name).collect();
        let [opened, _] = of_session[..] else { panic!("{name}: {of_session:?}") };
        assert_eq!(opened["session"], records[0]["session"]);
        assert!(opened["decision"].is_null() && opened["result"] == "ok", "{opened}");
        assert_eq!(
            (&of_session[1]["op"], &of_session[1]["transport"]),
            (&json!("read"), &json!("acp"))
        );
    }
}

// Cancellation

/// They were cut at a `/` within a secret before secrets in them were redacted.
#[test]
fn half_a_secret_in_a_method_was_recorded() {
    let rules = "[secrets]\n[[secrets.rules]]\nid = \"key\"\nregex = \"key=[0-9a-zA-Z/]{40}\"\n\
        keywords = [\"key=\"]\n";
    let mut rig = Rig::under(&format!("{POLICY}{rules}"), |_| {}).made_ready(no_fs());
    let method = format!("{} key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzLEKEYa", "-".repeat(98));
    rig.agent.send(&json!({"jsonrpc": "2.0", "method": method}));
    rig.agent.send(&request(7, &method, json!({})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32601);
    assert_eq!(rig.log().matches("acp.dropped").count(), 1);
    assert!(!rig.log().contains("wJalrX"), "{}", rig.log());
}
