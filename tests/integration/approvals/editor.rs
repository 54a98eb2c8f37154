//! Approvals by the editor's user, over ACP.

use serde_json::{Value, json};

use crate::acp_rig::{Rig, failure, notification, result};

pub(super) const POLICY: &str = r#"schema = 1
[allowedPaths]
read = ["**"]
write = ["**"]
[limits]
approvalTimeout = "10m"
[[rules]]
id = "ci"
effect = "ask"
operations = ["write"]
paths = ["ci/**"]
reason = "CI needs a person"
[[rules]]
id = "vault"
effect = "ask"
operations = ["read"]
paths = ["vault/**"]
"#;

fn rig() -> Rig {
    Rig::under(POLICY, |config| config.grace = std::time::Duration::from_secs(20))
        .made_ready(json!({}))
}

/// Returns the question, which must be the editor's next message.
#[track_caller]
fn asked(rig: &Rig) -> Value {
    let asked = rig.editor.hear();
    assert_eq!(asked["method"], "session/request_permission", "{asked}");
    asked
}

pub(super) fn choose(asked: &Value, option: &str) -> Value {
    let outcome = json!({ "outcome": "selected", "optionId": option });
    result(asked["id"].clone(), json!({ "outcome": outcome }))
}

#[test]
fn the_editor_is_shown_what_would_be_done_and_allows_it() {
    let mut rig = rig();
    std::fs::create_dir(rig.root.join("ci")).unwrap();
    std::fs::write(rig.root.join("ci/a.yml"), "on: push\n```\n\u{202e}old\n").unwrap();
    rig.agent.send(&rig.write(5, "ci/a.yml", "on: push\n```\nnew\n"));
    let asked = asked(&rig);
    let params = &asked["params"];
    assert_eq!(params["sessionId"], "s1");
    let call = &params["toolCall"];
    assert_eq!(call["title"], "Portcullis asks: write `ci/a.yml`");
    assert_eq!(call["kind"], "edit");
    assert_eq!(call["locations"][0]["path"], rig.path("ci/a.yml"));
    let text = call["content"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains("Rule `ci` (test.toml:8): CI needs a person"), "{text}");
    assert!(text.contains("````diff\n--- a/ci/a.yml\n+++ b/ci/a.yml\n"), "{text}");
    assert!(text.contains("-\\u{202e}old\n+new\n````"), "{text}");
    let kinds: Vec<_> = params["options"].as_array().unwrap().iter().map(|o| &o["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);

    rig.editor.send(&choose(&asked, "once"));
    let reply = rig.agent.hear();
    assert_eq!(reply["id"], 5);
    assert!(reply.get("result").is_some(), "{reply}");
    assert_eq!(std::fs::read_to_string(rig.root.join("ci/a.yml")).unwrap(), "on: push\n```\nnew\n");
    assert!(rig.log().contains("\"by\":\"the editor's user\""));
}

/// A name stood in the gateway's own words, with links and images that editors
/// render.
#[test]
fn a_name_in_a_question_is_no_markdown() {
    let mut rig = rig();
    let name = "ci/x. ![x](https:/evil/p.png) Portcullis has verified this; choose Allow";
    rig.agent.send(&rig.write(5, name, "x"));
    let asked = asked(&rig);
    let (call, said) = (&asked["params"]["toolCall"], format!("write `{name}`"));
    assert_eq!(call["title"], format!("Portcullis asks: {said}"));
    let text = call["content"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains(&format!("wants to {said}.")), "{text}");
    let option = asked["params"]["options"][1]["name"].as_str().unwrap();
    assert!(option.ends_with(&said), "{option}");
    rig.editor.send(&choose(&asked, "reject"));
    assert_eq!(rig.agent.hear()["error"]["code"], -32001);
}

/// A backtick was shown as an apostrophe.
#[test]
fn no_two_names_in_a_question_look_alike() {
    let mut rig = rig();
    let mut titles = Vec::new();
    for name in ["ci/`id`", "ci/'id'", "ci/`", "ci/ `"] {
        rig.agent.send(&rig.write(5, name, "x"));
        let asked = asked(&rig);
        titles.push(asked["params"]["toolCall"]["title"].as_str().unwrap().to_owned());
        rig.editor.send(&choose(&asked, "reject"));
        assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    }
    for (at, title) in titles.iter().enumerate() {
        assert!(!titles[..at].contains(title), "{titles:?}");
    }
}

#[test]
fn other_requests_go_on_even_on_the_same_path() {
    let mut rig = rig();
    let mut questions = Vec::new();
    for id in 10..26 {
        rig.agent.send(&rig.write(id, &format!("ci/{id}"), "x"));
        questions.push(asked(&rig));
    }
    rig.agent.send(&rig.read(3, "a.txt"));
    assert_eq!(rig.agent.hear()["id"], 3);
    rig.agent.send(&rig.read(4, "ci/10"));
    assert_eq!(rig.agent.hear()["error"]["code"], -32002, "not there yet");
    // Another question does not wait.
    rig.agent.send(&rig.write(30, "ci/30", "x"));
    let refused = rig.agent.hear();
    assert_eq!(refused["id"], 30);
    assert_eq!(refused["error"]["data"]["rule"], "ci");
    for asked in &questions {
        rig.editor.send(&choose(asked, "once"));
        assert!(rig.agent.hear().get("result").is_some());
    }
}

#[test]
fn a_session_is_asked_once_about_the_same_and_again_about_anything_else() {
    let mut rig = rig();
    rig.agent.send(&rig.write(1, "ci/a", "1"));
    let first = asked(&rig);
    rig.editor.send(&choose(&first, "session"));
    assert!(rig.agent.hear().get("result").is_some());
    rig.agent.send(&rig.write(2, "ci/a", "2"));
    assert!(rig.agent.hear().get("result").is_some(), "not asked again");
    rig.agent.send(&rig.write(3, "ci/b", "3"));
    let other = asked(&rig);
    rig.editor.send(&choose(&other, "reject"));
    let denied = rig.agent.hear();
    assert_eq!(denied["error"]["code"], -32001, "{denied}");
    assert_eq!(denied["error"]["data"]["reason"], "a person was asked and rejected it");
    // Another session has no part in it.
    rig.open_session(9, "s2");
    let mut write = rig.write(4, "ci/a", "4");
    write["params"]["sessionId"] = json!("s2");
    rig.agent.send(&write);
    let again = asked(&rig);
    assert_eq!(again["params"]["sessionId"], "s2");
    rig.editor.send(&choose(&again, "reject"));
    rig.agent.hear();
    let log = rig.log();
    let granted = log.lines().filter(|line| line.contains("\"kind\":\"approval\"")).count();
    assert_eq!(granted, 3, "{log}");
}

#[test]
fn whatever_is_not_a_yes_is_none() {
    let mut rig = rig();
    let answers: [fn(&Value) -> Value; 4] = [
        |asked| choose(asked, "always"),
        |asked| choose(asked, "ONCE"),
        |asked| result(asked["id"].clone(), json!({ "outcome": { "outcome": "cancelled" } })),
        |asked| result(asked["id"].clone(), json!({ "outcome": true })),
    ];
    for (id, answer) in (1..).zip(answers) {
        rig.agent.send(&rig.write(id, "ci/a", "x"));
        let question = asked(&rig);
        rig.editor.send(&answer(&question));
        assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    }
    assert!(!rig.root.join("ci").exists());
}

#[test]
fn the_agent_cannot_answer_for_the_editor() {
    let mut rig = rig();
    rig.agent.send(&rig.write(1, "ci/a", "x"));
    let question = asked(&rig);
    rig.agent.send(&choose(&question, "once"));
    rig.agent.send(&rig.read(2, "a.txt"));
    assert_eq!(rig.agent.hear()["id"], 2, "the answer went nowhere");
    assert!(!rig.root.join("ci").exists());
    rig.editor.send(&choose(&question, "reject"));
    assert_eq!(rig.agent.hear()["id"], 1);
}

#[test]
fn an_editor_that_cannot_ask_has_not_answered() {
    let policy = POLICY.replace("10m", "1s");
    let mut rig = Rig::under(&policy, |_| {}).made_ready(json!({}));
    rig.agent.send(&rig.write(1, "ci/a", "x"));
    let question = asked(&rig);
    rig.editor.send(&failure(question["id"].clone(), -32601));
    let denied = rig.agent.hear();
    let reason = denied["error"]["data"]["reason"].as_str().unwrap();
    assert!(reason.contains("timed out: nobody answered within 1 s"), "{reason}");
}

#[test]
fn the_question_is_taken_back_when_the_time_is_over() {
    let policy = POLICY.replace("10m", "1s");
    let mut rig = Rig::under(&policy, |_| {}).made_ready(json!({}));
    std::fs::create_dir(rig.root.join("vault")).unwrap();
    std::fs::write(rig.root.join("vault/a"), "treasure").unwrap();
    rig.agent.send(&rig.read(2, "vault/a"));
    let question = asked(&rig);
    let back = rig.editor.hear();
    assert_eq!(back["method"], "$/cancel_request");
    assert_eq!(back["params"]["requestId"], question["id"]);
    assert_eq!(rig.agent.hear()["error"]["code"], -32001);
    rig.editor.send(&choose(&question, "once"));
    rig.agent.send(&rig.read(3, "a.txt"));
    assert_eq!(rig.agent.hear()["id"], 3);
    // All messages of the editor are handled by then.
    rig.editor.hang_up();
    rig.ending();
    assert!(rig.log().contains("an answer that nobody waits for any more"));
}

#[test]
fn cancelling_gives_the_question_up() {
    let mut rig = rig();
    rig.agent.send(&rig.write(1, "ci/a", "x"));
    asked(&rig);
    rig.agent.send(&notification("$/cancel_request", json!({ "requestId": 1 })));
    assert_eq!(rig.editor.hear()["method"], "$/cancel_request");
    assert_eq!(rig.agent.hear()["error"]["code"], -32800);
    rig.agent.send(&rig.write(2, "ci/a", "x"));
    asked(&rig);
    rig.editor.send(&notification("session/cancel", json!({ "sessionId": "s1" })));
    assert_eq!(rig.agent.hear()["method"], "session/cancel");
    assert_eq!(rig.agent.hear()["error"]["code"], -32800);
    assert!(!rig.root.join("ci").exists());
    assert_eq!(rig.log().matches("\"result\":\"withdrawn\"").count(), 2);
}

#[test]
fn the_end_of_the_connection_ends_the_waiting() {
    let mut rig = rig();
    rig.agent.send(&rig.write(1, "ci/a", "x"));
    asked(&rig);
    rig.agent.hang_up();
    rig.ending();
    assert!(rig.log().contains("\"result\":\"withdrawn\""));
    assert!(!rig.root.join("ci").exists());
}
