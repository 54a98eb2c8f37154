//! Requests under a rule that asks for an approval.

use serde_json::{Value, json};

use super::{resources::uri, rig::Client};
use crate::common::{ALL, World};

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
        world.run(&["approve", "--yes", &waiting]).ok();
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

/// Names and content that the client may not list or read were in the question
/// that it was asked.
#[test]
fn a_client_is_not_shown_in_a_question_what_it_may_not_see() {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\", \"remove\"]\n\
         paths = [\"wo/**\", \"pub/**\"]\n[[rules]]\nid = \"blind\"\neffect = \"deny\"\n\
         operations = [\"read\", \"list\"]\npaths = [\"wo/**\", \"**/*.hid\"]\n"
    ));
    world.file("wo/there.txt", "alice 100\nbob 200\n");
    world.file("pub/open/one.txt", "");
    world.file("pub/d/one.txt", "");
    world.file("pub/d/two.hid", "");
    world.file("pub/there.txt", "carol 300\n");
    std::fs::create_dir(world.path("wo/list")).unwrap();
    std::os::unix::fs::symlink("../wo/there.txt", world.path("pub/link")).unwrap();
    let mut client = Client::with(&world, &[], &elicits());
    let mut ask = |tool: &str, arguments: Value| {
        let id = client.post_call(&format!("workspace__ws__{tool}"), &arguments);
        assert!(client.is_asked_before(id), "{tool}: {arguments}");
        let listed = world.run(&["approve", "--list", "--json"]).ok().json();
        let question = answer(&mut client, "decline", &json!(null));
        client.answer(id);
        let message = question["params"]["message"].as_str().unwrap().to_owned();
        // The policy's file is on the host.
        assert!(message.contains("`careful`") && !message.contains(".toml"), "{message}");
        (message, listed["waiting"][0]["change"].as_str().unwrap().to_owned())
    };
    for (tool, arguments) in [
        ("write_file", json!({ "content": "mine\n" })),
        ("append_file", json!({ "content": "mine\n" })),
        ("mkdir", json!({})),
        ("rm", json!({})),
        ("rename", json!({ "to": "wo/new.txt" })),
    ] {
        let shown = ["there.txt", "gone.txt", "list"].map(|name| {
            let mut arguments = arguments.clone();
            let path = if tool == "rename" { "from" } else { "path" };
            arguments[path] = json!(format!("wo/{name}"));
            let (message, _) = ask(tool, arguments);
            assert!(!message.contains("bob") && !message.contains("fails"), "{message}");
            let own = ["write_file", "append_file"].contains(&tool);
            assert_eq!(message.contains("+mine"), own, "{message}");
            message.replace(name, "NAME")
        });
        assert!(shown.iter().all(|message| *message == shown[0]), "{shown:?}");
    }
    let (told, whole) = ask("write_file", json!({ "path": "wo/there.txt", "content": "mine\n" }));
    assert!(whole.contains("-alice 100\n-bob 200\n+mine"), "{whole}");
    assert!(!told.contains("alice"), "{told}");
    // Nor where a link leads, of which only its own name is known.
    let (told, whole) = ask("write_file", json!({ "path": "pub/link", "content": "mine\n" }));
    assert!(whole.contains("-alice 100") && !told.contains("wo/"), "{told}");
    // Content that it may see is shown.
    let (told, _) = ask("write_file", json!({ "path": "pub/there.txt", "content": "mine\n" }));
    assert!(told.contains("-carol 300\n+mine"), "{told}");
    let (told, _) = ask("rename", json!({ "from": "pub/there.txt", "to": "pub/new.txt" }));
    assert!(told.contains("+++ b/pub/new.txt") && told.contains("+carol 300"), "{told}");
    let (told, whole) = ask("rename", json!({ "from": "pub/there.txt", "to": "wo/there.txt" }));
    assert!(
        whole.contains("+carol") && !told.contains("carol") && !told.contains("alice"),
        "{told}"
    );
    let (told, _) = ask("rm", json!({ "path": "pub/open", "recursive": true }));
    assert!(told.contains("objects in it: 1\n  one.txt\n"), "{told}");
    let (told, whole) = ask("rm", json!({ "path": "pub/d", "recursive": true }));
    assert!(whole.contains("objects in it: 2\n  one.txt\n  two.hid\n"), "{whole}");
    assert!(!told.contains("objects") && !told.contains("hid\n"), "{told}");
    client.end();
}

/// The question named files that no listing shows.
#[test]
fn a_client_is_not_shown_in_a_question_what_an_extension_hides() {
    let world = World::with_policy(&format!(
        "{ALL}[extensions]\nallow = {{ list = [\"md\"] }}\n[[rules]]\nid = \"careful\"\n\
         effect = \"ask\"\noperations = [\"remove\"]\npaths = [\"d/**\", \"open/**\"]\n"
    ));
    for file in ["d/a.md", "d/prod-token.key", "d/PASSWORDS", "open/in/a.md"] {
        world.file(file, "x");
    }
    let mut client = Client::with(&world, &[], &elicits());
    let mut ask = |tool: &str, arguments: Value| {
        let id = client.post_call(&format!("workspace__ws__{tool}"), &arguments);
        assert!(client.is_asked_before(id), "{tool}: {arguments}");
        let question = answer(&mut client, "decline", &json!(null));
        client.answer(id);
        question["params"]["message"].as_str().unwrap().to_owned()
    };
    for (tool, arguments) in [
        ("rm", json!({ "path": "d", "recursive": true })),
        ("rename", json!({ "from": "d", "to": "e" })),
    ] {
        let told = ask(tool, arguments);
        assert!(!told.contains("objects") && !told.contains("PASSWORDS"), "{told}");
        assert!(!told.contains("token") && !told.contains("a.md"), "{told}");
    }
    let told = ask("rm", json!({ "path": "open", "recursive": true }));
    assert!(told.contains("objects in it: 2\n  in\n  in/a.md\n"), "{told}");
    client.end();
}

/// A wrong guess at the old text was answered without a question.
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
        // After an approval it gets the reply.
        let told = guess("gold", "once");
        assert!(told["isError"] == true && told != refused[0], "{told}");
        client.end();
    }
    assert_eq!(world.read("ask/a.txt"), "treasure\n");
}

/// A world in which each read is asked about, for at most so long.
fn asks_for_reads(timeout: &str) -> World {
    let world = World::with_policy(&format!(
        "{ALL}[limits]\napprovalTimeout = \"{timeout}\"\n[[rules]]\nid = \"careful\"\n\
         effect = \"ask\"\noperations = [\"read\"]\npaths = [\"ask/**\"]\n"
    ));
    world.file("ask/a.txt", "treasure\n");
    world
}

fn post_read(client: &mut Client, world: &World) -> i64 {
    client.post("resources/read", &json!({ "uri": uri(world, "ask/a.txt") }))
}

/// Regression: while the client's question waited, nothing else was handled: neither a
/// shell's approval nor the timeout, nor that the client cancelled its request
/// or left.
#[test]
fn a_read_of_a_resource_that_asks_ends_as_a_call_of_a_tool_does() {
    let world = asks_for_reads("10m");
    let mut client = Client::with(&world, &[], &elicits());
    let asked_in = |client: &mut Client, world: &World| {
        let id = post_read(client, world);
        let question = client.other();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        (id, question["id"].clone())
    };
    let asked = |client: &mut Client| asked_in(client, &world);
    let is_taken_back = |client: &mut Client, question: &Value| {
        let back = client.other();
        assert_eq!(back["method"], "notifications/cancelled", "{back}");
        assert_eq!(back["params"]["requestId"], *question);
    };

    let (id, question) = asked(&mut client);
    let listed = world.run(&["approve", "--list", "--json"]).ok().json();
    world.run(&["approve", "--yes", listed["waiting"][0]["id"].as_str().unwrap()]).ok();
    assert_eq!(client.answer(id)["result"]["contents"][0]["text"], "treasure\n");
    is_taken_back(&mut client, &question);

    let (id, question) = asked(&mut client);
    let cancel = json!({ "requestId": id });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    is_taken_back(&mut client, &question);

    asked(&mut client);
    client.end();
    let results: Vec<_> = world.requests().iter().map(|record| record["result"].clone()).collect();
    assert_eq!(results.iter().filter(|result| *result == "cancelled").count(), 2, "{results:?}");

    let world = asks_for_reads("2s");
    let mut client = Client::with(&world, &[], &elicits());
    let (id, question) = asked_in(&mut client, &world);
    assert_eq!(client.answer(id)["error"]["data"]["kind"], "denied");
    is_taken_back(&mut client, &question);
    client.end();
}

/// The parameters of a request of the revision without sessions.
fn stateless(params: Value) -> Value {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
    });
    params
}

/// The state with which a request that needs input is to come again.
fn state(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    assert_eq!(result["inputRequests"]["approval"]["method"], "elicitation/create", "{answer}");
    result["requestState"].clone()
}

/// Returns the request as it is repeated with the user's answer.
fn again(mut params: Value, state: &Value, decision: &str) -> Value {
    params["requestState"] = state.clone();
    let answer = json!({ "action": "accept", "content": { "decision": decision } });
    params["inputResponses"] = json!({ "approval": answer });
    params
}

/// It waited for a shell until its time was over.
#[test]
fn a_read_of_a_resource_says_that_it_needs_input_where_the_revision_has_no_questions() {
    let world = asks_for_reads("10m");
    let mut client = Client::silent(&world, &[]);
    let read = stateless(json!({ "uri": uri(&world, "ask/a.txt") }));
    for (decision, good) in [("once", true), ("reject", false)] {
        let first = client.ask("resources/read", &read);
        let last = client.ask("resources/read", &again(read.clone(), &state(&first), decision));
        assert_eq!(last["result"]["contents"][0]["text"] == "treasure\n", good, "{last}");
        assert_eq!(last["error"]["data"]["kind"] == "denied", !good, "{last}");
    }
    let first = client.ask("resources/read", &read);
    let other = stateless(json!({ "uri": uri(&world, "ask/b.txt") }));
    let refused = client.ask("resources/read", &again(other, &state(&first), "once"));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    client.end();
}

/// The waiting call was forgotten, while a shell could still approve it.
#[test]
fn an_answer_with_other_arguments_leaves_the_call_that_waits() {
    let world = world();
    let mut client = Client::silent(&world, &[]);
    let call = |content: &str| {
        let arguments = json!({ "path": "ask/a.txt", "content": content });
        stateless(json!({ "name": WRITE, "arguments": arguments }))
    };
    let first = client.ask("tools/call", &call("new\n"));
    let state = state(&first);
    for decision in ["once", "reject"] {
        let other = client.ask("tools/call", &again(call("other\n"), &state, decision));
        assert_eq!(other["error"]["code"], -32602, "{other}");
        assert_eq!(world.read("ask/a.txt"), "old\n");
    }
    let last = client.ask("tools/call", &again(call("new\n"), &state, "once"));
    assert_eq!(last["result"]["isError"], false, "{last}");
    assert_eq!(world.read("ask/a.txt"), "new\n");
    // It counts once.
    let late = client.ask("tools/call", &again(call("new\n"), &state, "once"));
    assert_eq!(late["error"]["code"], -32602, "{late}");
    client.end();
}
