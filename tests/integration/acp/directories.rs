//! The directories of a session: `cwd` and `additionalDirectories`.

use serde_json::{Value, json};

use super::{all_fs, no_fs};
use crate::acp_rig::{Rig, request, result};

const METHODS: [&str; 4] = ["session/new", "session/load", "session/resume", "session/fork"];

fn params(rig: &Rig, directories: &Value) -> Value {
    json!({"cwd": rig.root, "mcpServers": [], "sessionId": "s9", "additionalDirectories": directories})
}

/// They reached the agent, which found nothing there, without a message.
#[test]
fn a_directory_outside_the_workspace_is_refused_by_name_and_recorded() {
    let mut rig = Rig::ready(no_fs(), |_| {});
    let beside = format!("{}-evil/x", rig.root.display());
    let within = rig.path("sub");
    for method in METHODS {
        for directories in [
            json!(["/srv/lib"]),
            json!([within, "/srv/lib"]),
            json!([beside]),
            json!(["/srv/my lib"]),
            json!([rig.path("sub/../../x")]),
        ] {
            rig.editor.send(&request(7, method, params(&rig, &directories)));
            let refused = rig.editor.hear();
            assert_eq!(
                (&refused["id"], &refused["error"]["code"]),
                (&json!(7), &json!(-32602)),
                "{refused}"
            );
            let last = directories.as_array().unwrap().last().unwrap();
            let why = refused["error"]["message"].as_str().unwrap();
            let last = last.as_str().unwrap();
            // What is to be pasted is one word.
            let option = if last.contains(' ') { format!("'{last}'") } else { last.to_owned() };
            assert!(why.contains(&format!("`--agent-read {option}`")), "{why}");
            assert!(why.contains(&format!("the workspace `{}`", rig.root.display())), "{why}");
            assert!(refused["error"]["data"]["receipt"]["leaf"].is_string(), "{refused}");
        }
    }
    rig.agent.hears_nothing();
    let log = rig.log();
    let mut records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let record = records.find(|record| record["op"] == "acp.dropped").unwrap();
    assert_eq!(record["facts"]["method"], "session/new", "{record}");
    assert_eq!(record["facts"]["from"], "editor", "{record}");
    assert!(record["facts"]["reason"].as_str().unwrap().contains("`/srv/lib`"), "{record}");
    assert_eq!(records.filter(|record| record["op"] == "acp.dropped").count(), 19);
    // The session that was refused is none.
    rig.agent.send(&request(8, "fs/read_text_file", json!({"sessionId": "s9", "path": within})));
    assert!(rig.agent.hear()["error"].is_object());
}

/// The session worked on the workspace while the editor showed another directory.
#[test]
fn a_working_directory_outside_the_workspace_passed_without_a_word() {
    let mut rig = Rig::ready(no_fs(), |config| config.granted = vec!["/srv/lib".into()]);
    let beside = format!("{}-evil", rig.root.display());
    let mut refused = 0;
    for method in METHODS {
        for cwd in ["/", "/srv", &beside, &rig.path("sub/../..")] {
            rig.editor.send(&request(7, method, json!({"cwd": cwd, "sessionId": "s9"})));
            let error = rig.editor.hear()["error"].clone();
            assert_eq!(error["code"], -32602, "{method} {cwd}: {error}");
            assert!(error["data"]["receipt"]["leaf"].is_string(), "{error}");
            let why = error["message"].as_str().unwrap();
            assert!(
                why.contains(&format!("`{cwd}`")) && why.contains(&format!("`--workspace {cwd}`")),
                "{why}"
            );
            refused += 1;
        }
        for params in [
            json!({}),
            json!({"cwd": null}),
            json!({"cwd": ""}),
            json!({"cwd": "sub"}),
            json!({"cwd": rig.root, "CWD": "/"}),
        ] {
            rig.editor.send(&request(7, method, params.clone()));
            assert_eq!(rig.editor.hear()["error"]["code"], -32602, "{method} {params}");
            refused += 1;
        }
    }
    rig.agent.hears_nothing();
    let dropped = |line: &&str| line.contains("\"acp.dropped\"");
    assert_eq!(rig.log().lines().filter(dropped).count(), refused);
    for (id, cwd) in [(20, rig.path("sub")), (21, "/srv/lib/x".to_owned())] {
        rig.editor.send(&request(id, "session/new", json!({"cwd": cwd, "mcpServers": []})));
        assert_eq!(rig.agent.hear()["params"]["cwd"], cwd);
    }
    // A filter opens nothing.
    rig.editor.send(&request(22, "session/list", json!({"cwd": "/"})));
    assert_eq!(rig.agent.hear()["method"], "session/list");
}

#[test]
fn what_is_no_list_of_absolute_paths_is_refused() {
    let mut rig = Rig::ready(no_fs(), |_| {});
    for directories in
        [json!(null), json!("/"), json!({}), json!([7]), json!([null]), json!([""]), json!(["sub"])]
    {
        rig.editor.send(&request(7, "session/new", params(&rig, &directories)));
        assert_eq!(rig.editor.hear()["error"]["code"], -32602, "{directories}");
    }
    // As a reader finds it that does not look at the case.
    let other = json!({"cwd": rig.root, "mcpServers": [], "AdditionalDirectories": ["/srv/lib"]});
    rig.editor.send(&request(7, "session/new", other));
    assert_eq!(rig.editor.hear()["error"]["code"], -32602);
    rig.agent.hears_nothing();
}

#[test]
fn directories_of_the_workspace_pass_byte_for_byte() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    let root = rig.root.display().to_string();
    for (id, directories) in [(5, "[]".to_owned()), (6, format!("[ \"{root}/sub\",\"{root}\"]"))] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/new","params":{{"cwd":"{root}","mcpServers":[], "additionalDirectories": {directories}}}}}"#
        );
        rig.editor.say(&line);
        assert_eq!(rig.agent.line(), line);
        rig.agent.send(&result(id, json!({"sessionId": format!("s{id}")})));
        assert_eq!(rig.editor.hear()["result"]["sessionId"], format!("s{id}"));
    }
    // A filter opens nothing.
    let list = json!({"additionalDirectories": ["/srv/lib"]});
    rig.editor.send(&request(9, "session/list", list.clone()));
    assert_eq!(rig.agent.hear()["params"], list);
}

#[test]
fn what_an_agent_says_of_further_directories_reaches_the_editor() {
    let mut rig = Rig::new();
    rig.editor.send(&request(0, "initialize", json!({"protocolVersion": 1})));
    rig.agent.hear();
    let capabilities = json!({"sessionCapabilities": {"additionalDirectories": {}}});
    let reply = json!({"protocolVersion": 1, "agentCapabilities": capabilities});
    rig.agent.send(&result(0, reply.clone()));
    assert_eq!(rig.editor.hear()["result"], reply);
}
