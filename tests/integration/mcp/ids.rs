//! Requests whose id another request has that is not answered.

use serde_json::{Value, json};

use super::rig::Client;
use crate::common::World;

const ASKS: &str = "[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\n\
    paths = [\"ask/**\"]\n";

fn client(world: &World) -> Client {
    Client::with(world, &[], &json!({ "elicitation": {} }))
}

/// Puts a call under an id that is a text; its answer is among the others.
fn put(client: &mut Client, id: &str, tool: &str, arguments: &Value) {
    let params = json!({ "name": format!("workspace__ws__{tool}"), "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    client.send(&call);
}

/// All were carried out, and one was answered.
#[test]
fn a_second_request_under_an_id_that_is_in_use_is_refused_and_not_carried_out() {
    let world = World::with_rules(ASKS);
    let mut client = client(&world);
    put(&mut client, "x", "write_file", &json!({ "path": "ask/a.txt", "content": "a" }));
    let question = client.other();
    assert_eq!(question["method"], "elicitation/create");
    put(&mut client, "x", "write_file", &json!({ "path": "b.txt", "content": "b" }));
    let refused = client.other();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("x"), &json!(-32600)));
    let record = world.last();
    assert_eq!(record["op"], "mcp.dropped", "{record}");
    assert_eq!(refused["error"]["data"]["receipt"]["seq"], record["seq"]);

    let decision = json!({ "action": "accept", "content": { "decision": "once" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": decision }));
    let answer = client.other();
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!("x"), &json!(false)));
    assert!(!world.path("b.txt").exists());
    // It is answered.
    put(&mut client, "x", "write_file", &json!({ "path": "b.txt", "content": "b" }));
    assert_eq!(client.other()["result"]["isError"], false);
    client.end();
    assert_eq!((world.read("ask/a.txt"), world.read("b.txt")), ("a".to_owned(), "b".to_owned()));
}

/// The next request under its id could get its result.
#[test]
fn the_id_of_a_request_that_was_taken_back_is_free_when_it_has_come_to_its_end() {
    let world = World::with_rules(ASKS);
    world.file("a.txt", "a\n");
    let mut client = client(&world);
    put(&mut client, "x", "write_file", &json!({ "path": "ask/a.txt", "content": "a" }));
    assert_eq!(client.other()["method"], "elicitation/create");
    let cancel = json!({ "requestId": "x" });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    let answer = loop {
        put(&mut client, "x", "read_file", &json!({ "path": "a.txt" }));
        let answer = loop {
            let heard = client.other();
            match heard.get("method") {
                Some(method) => assert_eq!(method, "notifications/cancelled"),
                None => break heard,
            }
        };
        if answer["error"]["code"] != -32600 {
            break answer;
        }
    };
    assert_eq!(answer["result"]["content"][0]["text"], "a\n", "{answer}");
    assert!(client.others.is_empty(), "{:?}", client.others);
    client.end();
    assert!(!world.path("ask/a.txt").exists());
}
