//! Where a rule asks for a person.

use serde_json::{Value, json};

use super::rig::{ALL, Client};
use crate::common::World;

const WRITE: &str = "workspace__ws__write_file";

fn world() -> World {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\n\
         paths = [\"ask/**\"]\nreason = \"look first\"\n"
    ));
    world.file("ask/a.txt", "old\n");
    world
}

fn elicits() -> Value {
    json!({ "elicitation": {} })
}

fn answer(client: &mut Client, action: &str, content: &Value) -> Value {
    let question = client.other();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let result = json!({ "action": action, "content": content });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }));
    question
}

#[test]
fn the_clients_user_is_asked_and_the_answer_counts() {
    let world = world();
    let mut client = Client::with(&world, &[], &elicits());
    let write = json!({ "path": "ask/a.txt", "content": "new\n" });

    let id = client.post_call(WRITE, &write);
    let question = answer(&mut client, "accept", &json!({ "decision": "once" }));
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.contains("-old\n+new") && message.contains("look first"), "{message}");
    assert_eq!(client.answer(id)["result"]["isError"], false);
    assert_eq!(world.read("ask/a.txt"), "new\n");

    for (action, content) in [
        ("accept", json!({ "decision": "reject" })),
        ("accept", json!({ "decision": "whatever" })),
        ("decline", json!(null)),
        ("cancel", json!(null)),
    ] {
        let id = client.post_call(WRITE, &json!({ "path": "ask/a.txt", "content": action }));
        answer(&mut client, action, &content);
        let result = client.answer(id);
        let error = &result["result"]["_meta"]["portcullis/error"];
        assert_eq!(error["kind"], "denied", "{action}: {result}");
        assert_eq!(world.read("ask/a.txt"), "new\n");
    }

    let id = client.post_call(WRITE, &json!({ "path": "ask/a.txt", "content": "3" }));
    answer(&mut client, "accept", &json!({ "decision": "session" }));
    assert_eq!(client.answer(id)["result"]["isError"], false);
    // Not asked again.
    client.good(WRITE, &json!({ "path": "ask/a.txt", "content": "4" }));
    assert!(client.others.is_empty());
    client.end();
}

#[test]
fn a_shell_answers_where_the_client_cannot_or_may_not() {
    for (args, capabilities) in [(&["--ask", "shell"][..], elicits()), (&[], json!({}))] {
        let world = world();
        let mut client = Client::with(&world, args, &capabilities);
        let id = client.post_call(WRITE, &json!({ "path": "ask/a.txt", "content": "new" }));
        let waiting = loop {
            let listed = world.run(&["approve", "--list", "--json"]).ok().json();
            if let Some(first) = listed["waiting"].get(0) {
                break first["id"].as_str().unwrap().to_owned();
            }
        };
        world.run(&["approve", &waiting]).ok();
        assert_eq!(client.answer(id)["result"]["isError"], false);
        assert!(client.others.is_empty(), "{:?}", client.others);
        client.end();
    }
}

#[test]
fn what_is_taken_back_or_left_behind_is_not_done() {
    let world = world();
    let mut client = Client::with(&world, &[], &elicits());
    let id = client.post_call(WRITE, &json!({ "path": "ask/a.txt", "content": "new" }));
    let question = client.other();
    assert_eq!(question["method"], "elicitation/create");
    let cancel = json!({ "requestId": id, "reason": "no" });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    // The question is taken back, and others are served.
    let back = client.other();
    assert_eq!(back["method"], "notifications/cancelled", "{back}");
    assert_eq!(back["params"]["requestId"], question["id"]);
    client.good("workspace__ws__read_file", &json!({ "path": "ask/a.txt" }));

    client.post_call(WRITE, &json!({ "path": "ask/a.txt", "content": "newer" }));
    assert_eq!(client.other()["method"], "elicitation/create");
    client.end();
    assert_eq!(world.read("ask/a.txt"), "old\n");
    let records = world.requests();
    let intents = records.iter().filter(|record| record["kind"] == "intent").count();
    assert_eq!(intents, 0, "{records:?}");
}

#[test]
fn questions_that_nobody_answers_leave_room_for_others() {
    let world = world();
    let mut client = Client::with(&world, &[], &elicits());
    for number in 0..20 {
        let path = format!("ask/{number}.txt");
        client.post_call(WRITE, &json!({ "path": path, "content": "x" }));
    }
    client.good(WRITE, &json!({ "path": "free.txt", "content": "x" }));
    client.end();
    assert_eq!(world.read("free.txt"), "x");
    assert!(!world.path("ask/0.txt").exists());
}

/// A wrong guess at the old text was answered before anybody was asked.
#[test]
fn a_guess_at_what_may_be_read_only_after_a_yes_asks_whether_or_not_it_is_right() {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"read\"]\n\
         paths = [\"ask/**\"]\n"
    ));
    world.file("ask/a.txt", "treasure\n");
    for (set, tool) in [("workspace", "workspace__ws__edit_file"), ("reference", "edit_file")] {
        let mut client = Client::with(&world, &["--tools", set], &elicits());
        let mut guess = |old: &str, action: &str| {
            let arguments = match set {
                "workspace" => json!({ "path": "ask/a.txt", "oldText": old, "newText": "x" }),
                _ => json!({
                    "path": "ask/a.txt",
                    "edits": [{ "oldText": old, "newText": "x" }],
                }),
            };
            let id = client.post_call(tool, &arguments);
            assert!(client.is_asked_before(id), "{set}: {old}: {}", client.answer(id));
            answer(&mut client, "accept", &json!({ "decision": action }));
            let mut result = client.answer(id)["result"].take();
            result["_meta"]["portcullis/receipt"].take();
            result["_meta"]["portcullis/error"]["receipt"].take();
            result
        };
        let refused = ["gold", "treasure", "r"].map(|old| guess(old, "reject"));
        assert_eq!(refused[0]["_meta"]["portcullis/error"]["kind"], "denied", "{refused:?}");
        assert!(refused.iter().all(|result| *result == refused[0]), "{set}: {refused:#?}");
        // After a yes it is told.
        let told = guess("gold", "once");
        assert!(told["isError"] == true && told != refused[0], "{told}");
        client.end();
    }
    assert_eq!(world.read("ask/a.txt"), "treasure\n");
}
