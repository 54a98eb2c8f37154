//! Searches that take long: how far they are, and giving them up.

use serde_json::json;

use super::rig::Client;
use crate::common::{ALL, World};

/// Takes a minute and more where nobody gives it up and no limit ends it.
const HARD: &str = "[ab]*a[ab]{200}[^ab]";

fn world() -> World {
    let world = World::with_policy(ALL);
    let mut random = 1_u32;
    let text: String = (0..6_000_000)
        .map(|n| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match (n % 400, random >> 31) {
                (399, _) => '\n',
                (_, 0) => 'a',
                _ => 'b',
            }
        })
        .collect();
    for n in 0..8 {
        world.file(&format!("long/{n}.txt"), &text);
    }
    for n in 0..600 {
        world.file(&format!("many/{n}"), "x");
    }
    world
}

#[test]
fn a_search_tells_how_far_it_is_and_is_given_up() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let call = |arguments: serde_json::Value| {
        json!({
            "name": "workspace__ws__grep",
            "arguments": arguments,
            "_meta": { "progressToken": "p" },
        })
    };
    // Nobody hears of progress who did not ask for it.
    client.good("workspace__ws__glob", &json!({ "pattern": "**/9*" }));
    assert!(client.others.is_empty());
    let id = client.post("tools/call", &call(json!({ "pattern": HARD })));
    let progress = client.other();
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "p");
    assert!(progress["params"]["progress"].as_f64().unwrap() > 0.0, "{progress}");
    let cancel = json!({ "requestId": id, "reason": "test" });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    // The next is carried out at once.
    client.good("workspace__ws__read_file", &json!({ "path": "many/1" }));
    client.end();
    let requests = world.requests();
    let search = requests.iter().find(|record| record["op"] == "grep").unwrap();
    assert_eq!(search["result"], "cancelled", "{search}");
    // No line was disclosed, so no file has a record.
    assert_eq!(requests.iter().filter(|record| record["op"] == "grep").count(), 1);
}

#[test]
fn a_client_that_is_gone_waits_for_no_search() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    client.post(
        "tools/call",
        &json!({
            "name": "workspace__ws__grep",
            "arguments": { "pattern": HARD },
            "_meta": { "progressToken": 1 },
        }),
    );
    client.other();
    let mut child = client.vanish();
    // Neither side is there any more.
    drop(child.stdin.take());
    assert!(child.wait().is_ok());
    let requests = world.requests();
    let search = requests.iter().find(|record| record["op"] == "grep").unwrap();
    assert_eq!(search["result"], "cancelled", "{search}");
}
