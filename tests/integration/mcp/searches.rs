//! Searches that take long: how far they are, and giving them up.

use serde_json::{Value, json};

use super::rig::Client;
use crate::common::{ALL, World};

/// Takes a minute and more unless it is cancelled or a limit ends it.
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
    // Progress is sent only to clients that asked for it.
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

/// All results of a tool, page after page, and how many pages there were.
fn pages(client: &mut Client, tool: &str, arguments: &Value, results: &str) -> (Vec<Value>, usize) {
    let (mut all, mut arguments, mut count) = (Vec::new(), arguments.clone(), 0);
    loop {
        let result = client.call(&format!("workspace__ws__{tool}"), &arguments);
        assert_eq!(result["isError"], false, "{result}");
        let page = &result["structuredContent"];
        // Clients show models one of the two.
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, *page);
        assert!(result.to_string().len() < 160 << 10, "{}", result.to_string().len());
        all.extend(page[results].as_array().unwrap().iter().cloned());
        count += 1;
        let Some(next) = page.get("next") else { return (all, count) };
        assert!(page["note"].as_str().unwrap().contains(&next.to_string()), "{page}");
        arguments["after"] = next.clone();
    }
}

/// A search gave a megabyte, and after its limit there was no way to the rest.
#[test]
fn results_come_in_pages_that_say_how_to_go_on() {
    let world = World::with_policy(ALL);
    for n in 0..1800 {
        world.file(&format!("d{}/{n:04}.txt", n % 3), "needle\n");
    }
    world.file("d1/long.txt", "a needle\nhay\n".repeat(1000));
    let mut client = Client::start(&world, &[]);
    let (found, count) =
        pages(&mut client, "glob", &json!({ "pattern": "*/[0-9]*.txt" }), "matches");
    let paths: Vec<_> = found.iter().map(|path| path.as_str().unwrap().to_owned()).collect();
    assert_eq!((paths.len(), paths.is_sorted(), count), (1800, true, 3));
    let last = world.last();
    let shown = last["counts"]["entries"].as_u64().unwrap();
    assert!(last["op"] == "glob" && shown > 0 && shown < 1000, "{last}");

    let before = world.requests().len();
    let (found, count) = pages(&mut client, "grep", &json!({ "pattern": "needle" }), "matches");
    assert_eq!(found.len(), 2800);
    let place =
        |line: &Value| (line["path"].as_str().unwrap().to_owned(), line["lineNumber"].as_u64());
    assert!(found.iter().map(place).is_sorted());
    assert!((9..20).contains(&count), "{count}");
    // Each line is recorded once, as it was sent.
    let records = world.requests().split_off(before);
    let lines: u64 = records.iter().filter_map(|record| record["counts"]["lines"].as_u64()).sum();
    assert_eq!(lines, 2800);
    let long = records.iter().filter(|record| record["path"] == "d1/long.txt");
    let long: Vec<_> = long
        .map(|record| {
            (record["counts"]["matches"].as_u64().unwrap(), record["bytes"].as_u64().unwrap())
        })
        .collect();
    assert!(
        long.len() > 3 && long.iter().all(|(matches, bytes)| *bytes == 8 * matches),
        "{long:?}"
    );

    let few = json!({ "pattern": "needle", "path": "d1/long.txt", "maxResults": 2 });
    let page = client.good("workspace__ws__grep", &few);
    assert_eq!(
        (page["matches"].as_array().unwrap().len(), &page["next"]),
        (2, &json!("d1/long.txt:3"))
    );

    let (listed, count) = pages(&mut client, "ls", &json!({ "path": "d1" }), "entries");
    let names: Vec<_> =
        listed.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!((names.len(), names.is_sorted(), count), (601, true, 2));

    for (tool, arguments) in [
        ("glob", json!({ "pattern": "**", "after": "../x" })),
        ("grep", json!({ "pattern": "x", "after": "a.txt" })),
        ("grep", json!({ "pattern": "x", "after": "a.txt:x" })),
        ("grep", json!({ "pattern": "x", "maxResults": 0 })),
        ("glob", json!({ "pattern": "**", "maxResults": 0 })),
        ("ls", json!({ "path": ".", "after": 1 })),
    ] {
        let error = client.bad(&format!("workspace__ws__{tool}"), &arguments);
        assert_eq!(error["kind"], "invalidInput", "{tool} {arguments}");
    }
    client.end();
    world.run(&["audit", "verify"]).ok();
}

/// No gateway had signed a checkpoint yet, and the one that stopped left it to the others: `verify`
/// then took the checkpoint for removed.
#[test]
fn a_log_that_grew_fast_at_its_beginning_counted_as_damaged() {
    let world = World::with_policy(ALL);
    for n in 0..4_000 {
        world.file(&format!("big/{n:0>150}.txt"), "needle");
    }
    let client = Client::start(&world, &[]);
    world.fs(&["grep", "needle", "big", "--max-results", "10000"]).ok();
    world.run(&["audit", "verify"]).ok();
    client.end();
}

/// Its results were counted as they were, and sent escaped.
#[test]
fn a_page_of_control_characters_was_six_times_as_large() {
    let world = World::with_policy(ALL);
    world.file("a.txt", format!("needle{}\n", "\u{1}".repeat(200)).repeat(300));
    let mut client = Client::start(&world, &[]);
    let arguments = json!({ "pattern": "needle", "maxResults": 1000 });
    let page = client.good("workspace__ws__grep", &arguments);
    let length = page["matches"].to_string().len();
    assert!(length < 40 << 10 && page["next"].is_string(), "{length}");
    let (found, _) = pages(&mut client, "grep", &arguments, "matches");
    assert_eq!(found.len(), 300);
    client.end();
}

/// Regression: pages left results out when a search had ended early, and the last of them did not
/// mention it.
#[test]
fn the_last_page_says_that_results_may_be_missing() {
    let world = World::with_policy(ALL);
    for n in 0..130 {
        world.file(&format!("{n:04}.txt"), "needle\n".repeat(100));
    }
    let mut client = Client::start(&world, &[]);
    let mut arguments = json!({ "pattern": "needle", "maxResults": 1000 });
    let mut last = client.good("workspace__ws__grep", &arguments);
    while let Some(next) = last.get("next").cloned() {
        arguments["after"] = next;
        last = client.good("workspace__ws__grep", &arguments);
    }
    let note = last["note"].as_str().unwrap_or_default();
    assert!(note.contains("may be missing"), "{last}");
    arguments = json!({ "pattern": "needle", "path": "0001.txt" });
    let all = client.good("workspace__ws__grep", &arguments);
    assert_eq!(all.get("note"), None, "{all}");
    client.end();
}

/// Content that the agent may not see must not show in the end of a page.
#[test]
fn what_may_not_be_seen_moves_no_page() {
    let pages_of = |hidden: bool| {
        let rule = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"b/**\"]\n";
        let world = World::with_policy(&format!("{ALL}{rule}"));
        for name in ["a/1", "a/2", "c/1"] {
            world.file(name, "needle\n");
        }
        if hidden {
            (0..50).for_each(|n| drop(world.file(&format!("b/{n}"), "needle\n")));
        }
        let mut client = Client::start(&world, &[]);
        let grep = json!({ "pattern": "needle", "maxResults": 1 });
        let glob = json!({ "pattern": "*/*", "maxResults": 2 });
        let told = [("grep", grep), ("glob", glob)].map(|(tool, arguments)| {
            let first = client.good(&format!("workspace__ws__{tool}"), &arguments);
            let mut second = arguments.clone();
            second["after"] = json!(if tool == "grep" { "b/7:9" } else { "b/7" });
            (first, client.good(&format!("workspace__ws__{tool}"), &second))
        });
        client.end();
        told
    };
    assert_eq!(pages_of(false), pages_of(true));
}
