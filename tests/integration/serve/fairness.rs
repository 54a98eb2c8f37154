//! Clients of one agent that keep others of the workspace waiting.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::{Site, Socket, take_little};

/// Longer than a request takes on a busy machine, and shorter than the front bears
/// with a client that does not read.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A workspace with a large file for `all` and `other`.
fn site() -> (Site, String) {
    let mut site = Site::new(&["shop"]);
    let other = site.add_agent("other", "workspaces = [\"shop\"]");
    std::fs::write(site.root("shop").join("large.txt"), "x".repeat(9_000_000)).unwrap();
    (site, other)
}

fn post(session: &mut Socket, kind: &str, path: &str) {
    let message = json!({ "channel": "files", "type": kind, "requestId": "1", "path": path });
    session.say(message.to_string().as_bytes()).unwrap();
}

fn is_served_soon(session: &mut Socket) {
    let begun = Instant::now();
    let reply = session.ask("stat", json!({ "path": "file.txt" })).unwrap();
    assert_eq!(reply["error"], Value::Null, "{reply}");
    assert!(begun.elapsed() < REPLY_TIMEOUT, "{:?}", begun.elapsed());
}

/// Eight of them occupied all slots until the front closed them.
#[test]
fn clients_that_take_no_replies_keep_no_turns() {
    let (site, other) = site();
    let service = site.serve();
    let mut served = service.session(&other, "shop");
    is_served_soon(&mut served);
    let mut unread: Vec<_> = (0..8).map(|_| service.session(site.token("all"), "shop")).collect();
    for session in &mut unread {
        take_little(session.stream.get_ref());
        post(session, "read", "large.txt");
        // The first of it is there.
        session.stream.get_ref().peek(&mut [0]).unwrap();
    }
    for _ in 0..3 {
        is_served_soon(&mut served);
    }
}
