//! The workspace's files as resources, and notifications of their changes.

use serde_json::{Value, json};

use super::rig::Client;
use crate::common::{ALL, World};

fn world() -> World {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n\
         [[rules]]\nid = \"unread\"\neffect = \"deny\"\noperations = [\"read\"]\n\
         paths = [\"unread.txt\"]\n[files]\nbinary = {{ read = \"base64\" }}\n"
    ));
    for name in ["a.txt", "d/ż #1.md", "secret/key", "secret/deep/x", "unread.txt"] {
        world.file(name, name);
    }
    world.file("logo.png", [0, 1, 2, 0xff]);
    world
}

pub(super) fn uri(world: &World, name: &str) -> String {
    format!("file://{}/{name}", world.root().canonicalize().unwrap().to_str().unwrap())
}

fn list(client: &mut Client, cursor: Option<&str>) -> Value {
    let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
    let answer = client.ask("resources/list", &params);
    assert!(answer["result"]["_meta"]["portcullis/receipt"]["seq"].is_u64(), "{answer}");
    answer["result"].clone()
}

/// It still got the names of changed files.
#[test]
fn a_session_that_is_closed_hears_of_no_more_changes() {
    let world = World::with_policy(&format!(
        "{ALL}[limits]\ndenials = 1\n[[rules]]\nid = \"hidden\"\neffect = \"deny\"\n\
         paths = [\"secret\"]\n"
    ));
    world.file("a.txt", "a");
    let mut client = Client::start(&world, &[]);
    let subscribed = client.ask("resources/subscribe", &json!({ "uri": uri(&world, "a.txt") }));
    assert!(subscribed.get("result").is_some(), "{subscribed}");
    client.bad("workspace__ws__read_file", &json!({ "path": "secret" }));
    let records = world.records();
    let ends: Vec<_> = records.iter().filter(|record| record["op"] == "watch.end").collect();
    assert!(!ends.is_empty(), "{records:?}");
    assert!(ends.iter().all(|end| end["facts"]["reason"] == "denied"), "{ends:?}");
    client.end();
}

#[test]
fn files_that_may_be_read_are_listed_and_read() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let listed = list(&mut client, None);
    let uris: Vec<_> = listed["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["uri"].as_str().unwrap().to_owned())
        .collect();
    let encoded = uri(&world, "d/%C5%BC%20%231.md");
    assert_eq!(uris, [uri(&world, "a.txt"), encoded.clone(), uri(&world, "logo.png")]);
    assert_eq!(listed["nextCursor"], Value::Null);
    assert_eq!(listed["resources"][0]["size"], 5);

    let templates = client.ask("resources/templates/list", &json!({}));
    let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(*template, format!("{}{{+path}}", uri(&world, "")));

    let mut read = |uri: &str| client.ask("resources/read", &json!({ "uri": uri }));
    let text = read(&encoded);
    let content = json!([{ "uri": encoded, "mimeType": "text/plain", "text": "d/ż #1.md" }]);
    assert_eq!(text["result"]["contents"], content);
    assert!(text["result"]["_meta"]["portcullis/receipt"]["leaf"].is_string());
    let binary = read(&uri(&world, "logo.png"));
    assert_eq!(binary["result"]["contents"][0]["blob"], "AAEC/w==");
    assert_eq!(binary["result"]["contents"][0]["mimeType"], "image/png");

    let missing = read(&uri(&world, "nothing"));
    assert_eq!(
        (&missing["error"]["code"], &missing["error"]["data"]["kind"]),
        (&json!(-32002), &json!("notFound"))
    );
    let mut denied = |name: &str| {
        let mut error = read(&uri(&world, name))["error"].take();
        assert!(error["data"]["receipt"]["seq"].is_u64(), "{error}");
        assert_eq!((&error["code"], &error["data"]["rule"]), (&json!(-32602), &json!("hidden")));
        error["data"]["receipt"].take();
        error["data"]["uri"].take();
        error
    };
    assert_eq!(denied("secret/key"), denied("secret/none"));
    for bad in [
        "http://example.com/",
        "/etc/passwd",
        "file:///etc/passwd",
        "file://host/a",
        &uri(&world, "%2e%2e/x"),
    ] {
        let refused = read(bad);
        assert!(refused["error"]["data"]["receipt"]["seq"].is_u64(), "{bad}: {refused}");
    }
    client.end();
    let ops: Vec<_> =
        world.requests().iter().map(|r| r["op"].as_str().unwrap().to_owned()).collect();
    assert!(ops.contains(&"glob".to_owned()) && ops.contains(&"read".to_owned()), "{ops:?}");
}

#[test]
fn a_long_list_comes_in_pages() {
    let world = World::with_policy(ALL);
    for n in 0..1_203 {
        world.file(&format!("f{n:04}"), "");
    }
    let mut client = Client::start(&world, &[]);
    let (mut names, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let page = list(&mut client, cursor.as_deref());
        let found = page["resources"].as_array().unwrap();
        names.extend(found.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    let expected: Vec<_> = (0..1_203).map(|n| format!("f{n:04}")).collect();
    assert_eq!((names, pages), (expected, 3));
    let refused = client.ask("resources/list", &json!({ "cursor": "nonsense!" }));
    assert_eq!(refused["error"]["code"], -32602);
    client.end();
}

/// The next notification of this kind.
fn told(client: &mut Client, method: &str) -> Value {
    loop {
        let message = client.other();
        if message["method"] == format!("notifications/resources/{method}") {
            return message["params"].clone();
        }
    }
}

#[test]
fn a_subscriber_hears_of_its_files_and_of_the_list() {
    let world = world();
    let mut client = Client::start(&world, &[]);
    let capabilities = json!({ "subscribe": true, "listChanged": true });
    assert_eq!(client.greeting["capabilities"]["resources"], capabilities);
    let mut subscribe =
        |name: &str| client.ask("resources/subscribe", &json!({ "uri": uri(&world, name) }));
    assert!(subscribe("a.txt")["result"].is_object());
    assert_eq!(subscribe("secret/key")["error"]["data"]["rule"], "hidden");
    assert_eq!(subscribe("nothing")["error"]["code"], -32002);
    world.file("secret/key", "changed");
    world.file("d/unsubscribed", "x");
    world.file("a.txt", "changed");
    assert_eq!(told(&mut client, "updated")["uri"], uri(&world, "a.txt"));
    // The list is watched as soon as a client has requested it; that may take a
    // moment after the reply.
    list(&mut client, None);
    let watches = |world: &World| {
        world.records().iter().filter(|r| r["op"] == "watch" && r["path"] == ".").count()
    };
    while watches(&world) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    world.file("new.txt", "x");
    told(&mut client, "list_changed");
    std::fs::remove_file(world.path("a.txt")).unwrap();
    assert_eq!(told(&mut client, "updated")["uri"], uri(&world, "a.txt"));
    let gone = client.ask("resources/unsubscribe", &json!({ "uri": uri(&world, "a.txt") }));
    assert!(gone["result"].is_object(), "{gone}");
    client.end();
    let ended: Vec<_> = world
        .requests()
        .iter()
        .filter(|r| r["op"] == "watch.end")
        .map(|r| r["path"].clone())
        .collect();
    assert_eq!(ended, [json!("a.txt"), json!(".")]);
}

#[test]
fn a_stream_of_the_stateless_revision_hears_of_them_too() {
    let world = world();
    let mut client = Client::silent(&world, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let wanted = ["a.txt", "secret/key", "nothing"].map(|name| uri(&world, name));
    let id = client.post(
        "subscriptions/listen",
        &json!({
            "_meta": meta,
            "notifications": { "resourcesListChanged": true, "resourceSubscriptions": wanted },
        }),
    );
    let acknowledged = client.other();
    let accepted = &acknowledged["params"]["notifications"];
    assert_eq!(accepted["resourceSubscriptions"], json!([wanted[0]]), "{acknowledged}");
    assert_eq!(accepted["resourcesListChanged"], true, "{acknowledged}");
    // From the acknowledgement on nothing is missed.
    world.file("a.txt", "changed");
    assert_eq!(told(&mut client, "updated")["uri"], wanted[0]);
    world.file("new.txt", "x");
    told(&mut client, "list_changed");
    let cancel = json!({ "requestId": id });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    client.end();
    let ended = world.requests().iter().filter(|r| r["op"] == "watch.end").count();
    assert_eq!(ended, 2);
}
