//! `audit session ID`: the story of a session.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::acp_rig::{Rig, request, result};

fn parts(world: &World, args: &[&str]) -> Vec<Value> {
    let told = world.run(&[&["audit", "session"], args, &["--json"]].concat()).ok();
    told.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn activities(parts: &[Value]) -> Vec<&Value> {
    parts.iter().filter(|part| part["part"] == "activity").collect()
}

#[test]
fn a_story_has_prompt_turns_and_what_was_done_in_each() {
    let mut rig = Rig::ready(json!({"readTextFile": false, "writeTextFile": false}), |_| {});
    for (turn, reason) in [(10, "end_turn"), (20, "cancelled")] {
        let prompt = json!({"sessionId": "s1", "prompt": [{"type": "text", "text": "hush"}]});
        rig.editor.send(&request(turn, "session/prompt", prompt));
        rig.agent.hear();
        for asked in [
            rig.read(turn + 1, "a.txt"),
            rig.read(turn + 2, "a.txt"),
            rig.read(turn + 3, "secret/key.txt"),
        ] {
            rig.agent.send(&asked);
            rig.agent.hear();
        }
        rig.agent.send(&rig.write(turn + 4, "b.txt", &format!("{turn}")));
        rig.agent.hear();
        rig.agent.send(&result(turn, json!({"stopReason": reason})));
        rig.editor.hear();
    }
    let log = rig.log();
    assert!(!log.contains("hush"), "{log}");
    let begin = log.lines().find(|line| line.contains("acp.prompt")).unwrap();
    let begin: Value = serde_json::from_str(begin).unwrap();
    let (world, directory) = (World::new(), rig.log_directory());
    let (id, directory) = (begin["session"].as_str().unwrap(), directory.to_str().unwrap());
    let parts = parts(&world, &[id, "--dir", directory]);
    let turns: Vec<_> = parts.iter().filter(|part| part["what"] == "acp.prompt").collect();
    let told = |part: &&Value| {
        (part["turn"].clone(), part["facts"]["event"].clone(), part["facts"]["stopReason"].clone())
    };
    let expected = [
        (json!(1), json!("begin"), Value::Null),
        (json!(1), json!("end"), json!("end_turn")),
        (json!(2), json!("begin"), Value::Null),
        (json!(2), json!("end"), json!("cancelled")),
    ];
    assert_eq!(turns.iter().map(told).collect::<Vec<_>>(), expected);
    let done = activities(&parts);
    assert_eq!(done.len(), 2, "{done:?}");
    for (turn, activity) in (1..).zip(done) {
        assert_eq!(
            (&activity["turn"], &activity["actor"]),
            (&json!(turn), &json!({"client": "acp"}))
        );
        let read = json!([{"path": "a.txt", "op": "read", "times": 2}]);
        assert_eq!(activity["read"]["paths"], read, "{activity}");
        let denied = json!([{"path": "secret/key.txt", "rule": "keys", "times": 1}]);
        assert_eq!(activity["denied"]["paths"], denied, "{activity}");
        assert_eq!(activity["changed"]["paths"][0]["path"], "b.txt", "{activity}");
    }
    let told = world.run(&["audit", "session", id, "--dir", directory]).ok();
    assert!(told.text().contains("turn 2 ends; the agent says why: cancelled"), "{told:?}");
}

/// It was `denied - by "-"`.
#[test]
fn a_story_says_which_message_was_dropped() {
    let mut rig = Rig::ready(json!({}), |_| {});
    rig.agent.send(&json!({"jsonrpc": "2.0", "method": "vendor/x", "params": {}}));
    rig.agent.send(&result(77, json!({})));
    rig.agent.send(&rig.read(10, "a.txt"));
    rig.agent.hear();
    let (world, directory) = (World::new(), rig.log_directory());
    let session = ["audit", "session", "last", "--dir", directory.to_str().unwrap()];
    let told = parts(&world, &session[2..]);
    let denied = &activities(&told)[0]["denied"]["paths"];
    let expected = json!([
        {"path": "acp.dropped from agent", "rule": "a reply to nothing that was asked", "times": 1},
        {"path": "vendor/x", "rule": "the notification is not one that passes", "times": 1},
    ]);
    assert_eq!(*denied, expected);
    let text = world.run(&session).ok();
    let line = "vendor/x by \"the notification is not one that passes\"";
    assert!(text.text().contains(line), "{text:?}");
    let records = world.run(&[&session[..], &["--records", "--no-diff"]].concat()).ok();
    let line = "denied vendor/x: \"the notification is not one that passes\"";
    assert!(records.text().contains(line), "{records:?}");
}

/// A record of the mount, of a process or a command.
fn mounted(op: &str, path: &str, facts: Value) -> Draft {
    let text = |text: &str| Some(text.to_owned());
    let facts: BTreeMap<String, Value> = serde_json::from_value(facts).unwrap();
    Draft {
        session: text(&"ab".repeat(16)),
        agent: text("agent"),
        transport: text("mount"),
        op: text(op),
        path: (!path.is_empty()).then(|| path.to_owned()),
        decision: text("allow"),
        result: text("ok"),
        facts: (!facts.is_empty()).then_some(facts),
        ..Draft::default()
    }
}

fn process(pid: u64) -> Value {
    json!({"process": {"pid": pid, "program": "g\u{202e}it", "arguments": ["git", "status"]}})
}

#[test]
fn a_story_groups_by_command_or_process_and_marks_what_programs_claim() {
    let world = World::new();
    write_log(&world, 8, |seq| {
        let draft = match seq {
            0 => mounted("command", "", json!({"command": ["cargo", "test"]})),
            1 => mounted("read", "a", json!({"command": 0, "process": {"pid": 9}})),
            2 | 3 => mounted("read", "b", process(7)),
            4 => mounted("read", "b", process(8)),
            5 => mounted("stat", "b", json!({"command": 0})),
            6 => Draft {
                decision: Some("deny".to_owned()),
                rule: Some("keys".to_owned()),
                ..mounted("read", "secret", process(7))
            },
            _ => mounted("acp.session", "", json!({})),
        };
        (Kind::Decision, draft)
    });
    let parts = parts(&world, &["abab"]);
    let done = activities(&parts);
    let actors: Vec<_> = done.iter().map(|part| part["actor"].clone()).collect();
    assert_eq!(actors, [json!({"command": 0}), json!({"process": 7}), json!({"process": 8})]);
    assert_eq!(done[0]["command"], json!(["cargo", "test"]));
    assert_eq!(
        (&done[0]["lookups"], &done[0]["record"], &done[0]["lastRecord"]),
        (&json!(1), &json!(0), &json!(5))
    );
    assert_eq!(
        (&done[0]["claimed"], &done[0]["read"]["paths"][0]["path"]),
        (&Value::Null, &json!("a"))
    );
    let claimed = json!({"program": "g\u{202e}it", "arguments": ["git", "status"]});
    assert_eq!(done[1]["claimed"], claimed);
    assert_eq!(done[1]["read"]["paths"], json!([{"path": "b", "op": "read", "times": 2}]));
    assert_eq!(done[1]["denied"]["paths"][0]["rule"], "keys");
    let told = world.run(&["audit", "session", "abab"]).ok();
    let process = "process 7, which calls itself \"g\\u{202e}it\" (\"git status\")";
    assert!(told.text().contains(process), "{told:?}");
}

/// An undo and an import counted the runs, and named none.
#[test]
fn an_acp_session_of_two_runs_is_refused_with_the_runs() {
    let world = World::new();
    let (one, other) = ("ab".repeat(16), "cd".repeat(16));
    write_log(&world, 2, |seq| {
        let session = Some(if seq == 0 { one.clone() } else { other.clone() });
        let opened = mounted("acp.session", "", json!({"acpSession": "sess-1"}));
        (Kind::Decision, Draft { session, ..opened })
    });
    for command in
        [&["audit", "session"][..], &["undo", "--session"], &["git", "import", "--session"]]
    {
        let refused = world.run(&[command, &["sess-1"]].concat());
        assert_eq!(refused.code, 1, "{command:?} {refused:?}");
        let named = format!("name one of: {one}, {other}");
        assert!(refused.stderr.contains(&named), "{command:?} {refused:?}");
    }
}

#[test]
fn a_session_of_a_command_is_that_command_and_its_paths_are_bounded() {
    let world = World::new();
    write_log(&world, 302, |seq| {
        let draft = match seq {
            0 => mounted("sandbox", "", json!({"command": ["sh", "-c", "make"]})),
            301 => mounted(
                "repeats",
                "",
                json!({"opens": 5, "denials": 1,
                "paths": [{"path": "p1", "opens": 5, "denials": 1}]}),
            ),
            _ => mounted("read", &format!("p{seq}"), process(seq)),
        };
        (Kind::Decision, draft)
    });
    let parts = parts(&world, &["abab"]);
    let done = activities(&parts);
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!((&done[0]["actor"], &done[0]["claimed"]), (&json!({"command": 0}), &Value::Null));
    let read = &done[0]["read"];
    assert_eq!((read["paths"].as_array().unwrap().len(), &read["more"]), (200, &json!(100)));
    assert_eq!((&read["distinct"], &read["exact"]), (&json!(300), &json!(true)));
    assert_eq!(read["paths"][0], json!({"path": "p1", "op": "read", "times": 6}));
    assert_eq!(done[0]["denied"]["paths"][0]["rule"], "repeated");
    let told = world.run(&["audit", "session", "abab"]).ok();
    assert!(
        told.text().contains("\n              read 300 files, was denied 1 name\n"),
        "{told:?}"
    );
    assert!(told.text().contains(" and 280 more\n"), "{told:?}");
}

/// They were those of a party called `mount`.
#[test]
fn repeats_of_several_programs_passed_for_those_of_another_party() {
    let world = World::new();
    write_log(&world, 4, |seq| {
        let paths = json!([{"path": "a", "opens": 5, "denials": 0}]);
        let draft = match seq {
            0 => mounted("command", "", json!({"command": ["sh", "-c", "make"]})),
            1 => mounted("read", "a", json!({"command": 0, "process": {"pid": 9}})),
            2 => mounted("read", "b", process(7)),
            _ => mounted("repeats", "", json!({"opens": 5, "denials": 0, "paths": paths})),
        };
        (Kind::Decision, draft)
    });
    let parts = parts(&world, &["abab"]);
    let done = activities(&parts);
    assert_eq!(done.len(), 3, "{done:?}");
    assert_eq!(done[2]["actor"], json!({"client": "mount"}));
    let read = json!([{"path": "a", "op": "read", "times": 5}]);
    assert_eq!(done[2]["read"]["paths"], read);
    let told = world.run(&["audit", "session", "abab"]).ok();
    let text = told.text();
    assert!(text.contains("  programs of the mount together  (to "), "{text}");
    assert!(text.contains("              read again 1 file\n"), "{text}");
}

/// Names and arguments told of entries that no record has.
#[test]
fn no_name_passes_for_another_entry_of_a_story() {
    let world = World::new();
    let names = [
        "a.txt [remove], prod/db.sqlite",
        "z (3 times) and 17 more",
        "q by rule",
        "x\" [remove], y",
        "w\u{a0}[remove],\u{3000}v",
        "-",
    ];
    write_log(&world, 8, |seq| {
        let of_kind = |draft: Draft| (Kind::Decision, draft);
        let claims =
            json!({"process": {"pid": 9, "program": "make`  `x", "arguments": ["a)", "(b"]}});
        match usize::try_from(seq).unwrap().checked_sub(2) {
            None if seq == 0 => {
                of_kind(mounted("command", "", json!({"command": ["sh", "a  (to b)\n"]})))
            }
            None => of_kind(mounted("read", names[0], claims)),
            Some(number) => of_kind(Draft {
                decision: Some("deny".to_owned()),
                rule: Some("no".to_owned()),
                ..mounted("read", names[number], json!({"command": 0}))
            }),
        }
    });
    let told = world.run(&["audit", "session", "abab"]).ok();
    let text = told.text();
    let line = text.lines().find(|line| line.trim_start().starts_with("denied")).unwrap();
    let shown = [
        r#""a.txt [remove], prod/db.sqlite""#,
        r#""z (3 times) and 17 more""#,
        r#""q by rule""#,
        r#""x\" [remove], y""#,
        "\"w\u{a0}[remove],\u{3000}v\"",
        r#""-""#,
    ];
    for entry in shown.map(|name| format!("{name} by no")) {
        assert!(line.contains(&entry), "{line}\n{entry}");
    }
    assert!(text.contains(r#"command 0: sh "a  (to b)\n"  (to"#), "{text}");
    let process = r#"process 9, which calls itself "make`  `x" ("a) (b")"#;
    assert!(text.contains(process), "{text}");
    // Fields of a record can be no more than one, either.
    write_log(&world, 1, |_| (Kind::Decision, mounted("read", "x\"  rule=\"y", json!({}))));
    let shown = world.run(&["audit", "show"]).ok();
    assert!(shown.text().contains(r#""x\"  rule=\"y""#), "{shown:?}");
}

/// The list was cut without a word.
#[test]
fn a_story_says_how_many_tool_calls_it_does_not_list() {
    let world = World::new();
    write_log(&world, 205, |seq| {
        let call = format!("call {:03}", seq.min(202));
        (Kind::Decision, mounted("read", "a", json!({"toolCall": call})))
    });
    let parts = parts(&world, &["abab"]);
    let done = activities(&parts);
    assert_eq!(done[0]["claimedToolCalls"].as_array().unwrap().len(), 200);
    // One of each of the first two, three of the last.
    assert_eq!(done[0]["claimedToolCallsMore"], 5, "{}", done[0]);
}
