//! `[limits]`: bounds of a session over both transports, and their records.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use portcullis::{
    gateway::{Answer, Approver, Client, Gateway, SharedLimits, Ticket},
    model::{
        Encoding, LineRange, Session, Transport, WorkspacePath,
        request::{Read, Stat, Write},
    },
};
use serde_json::Value;

use crate::{acp_rig, common::World, relay::Relay};

const OPEN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n[[rules]]\nid = \"keys\"\neffect = \"deny\"\noperations = [\"read\", \"write\"]\npaths = [\"secret/**\"]\n";

fn world(limits: &str) -> World {
    World::with_policy(&format!("{OPEN}[limits]\n{limits}\n"))
}

fn rule(answer: &Value) -> &str {
    answer["error"]["data"]["rule"].as_str().unwrap_or("none")
}

fn by_rule(world: &World, rule: &str) -> Vec<Value> {
    let mut records = world.requests();
    records.retain(|record| record["rule"] == rule && record["decision"] == "deny");
    records
}

/// Refusals that no limit bounds were recorded as fast as they came, and filled
/// the disk.
#[test]
fn an_agent_is_heard_more_slowly_the_more_is_refused() {
    let mut relay = Relay::start(world("operationsPerSecond = 1"));
    relay.world().file("a.txt", "text");
    let method = |id: u64| acp_rig::request(id, "terminal/create", serde_json::json!({}));
    let nowhere = serde_json::json!({ "sessionId": "none", "path": relay.at("a.txt") });
    let mut requests = Vec::new();
    for number in 0..1000 {
        requests.push(method(100_000 + number));
        requests.push(acp_rig::request(200_000 + number, "fs/read_text_file", nowhere.clone()));
        requests.push(relay.read("a.txt"));
    }
    let started = Instant::now();
    let answers = relay.ask(&sorted(requests));
    // Two thousand at once, and two hundred in a second.
    let taken = started.elapsed();
    assert!(taken >= Duration::from_secs(4), "{taken:?}");
    // One read at once, and one in a second.
    let served = answers.iter().filter(|answer| answer["error"].is_null()).count();
    assert!(served <= usize::try_from(taken.as_secs()).unwrap() + 2, "{served} in {taken:?}");
    relay.end();
}

fn sorted(mut requests: Vec<Value>) -> Vec<Value> {
    requests.sort_by_key(|request| request["id"].as_u64());
    requests
}

#[test]
fn who_goes_too_fast_is_denied_and_may_go_on_a_moment_later() {
    let mut relay = Relay::start(world("operationsPerSecond = 50\ndenials = 1"));
    relay.world().file("a.txt", "text");
    let started = Instant::now();
    let requests: Vec<_> = (0..400).map(|_| relay.read("a.txt")).collect();
    let answers = relay.ask(&requests);
    let served = answers.iter().filter(|answer| answer["result"]["content"] == "text").count();
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((50..=50 + 50 * seconds).contains(&served), "{served} in {seconds} s");
    let denied: Vec<_> = answers.iter().filter(|answer| answer["error"].is_object()).collect();
    assert_eq!(served + denied.len(), 400);
    for answer in &denied {
        assert_eq!(rule(answer), "limits.operationsPerSecond");
        assert_eq!(answer["error"]["code"], -32001);
    }
    let denied = denied.len();
    assert!(denied > 0, "the gateway did not limit anything");
    std::thread::sleep(Duration::from_millis(100));
    let request = relay.read("a.txt");
    assert_eq!(relay.ask_one(request)["result"]["content"], "text");
    let world = relay.end();
    let records = by_rule(&world, "limits.operationsPerSecond");
    assert_eq!(records.len(), denied);
    assert_eq!(records[0]["line"], 13, "{}", records[0]);
}

#[test]
fn bytes_written_end_where_the_policy_says() {
    let mut relay = Relay::start(world("bytesWritten = \"10B\""));
    let write = |relay: &mut Relay, name: &str, text: &str| {
        let request = relay.write(name, text);
        relay.ask_one(request)
    };
    assert!(write(&mut relay, "a", "123456")["result"].is_object());
    // A change that fails gives back what it would have taken.
    std::fs::create_dir(relay.world().path("dir")).unwrap();
    assert!(write(&mut relay, "dir", "1234")["error"].is_object());
    assert_eq!(rule(&write(&mut relay, "a", "12345")), "limits.bytesWritten");
    assert_eq!(relay.world().read("a"), "123456");
    assert!(write(&mut relay, "b", "1234")["result"].is_object());
    assert_eq!(rule(&write(&mut relay, "c", "1")), "limits.bytesWritten");
    assert!(write(&mut relay, "c", "")["result"].is_object());
    let request = relay.read("a");
    assert_eq!(relay.ask_one(request)["result"]["content"], "123456");
    let world = relay.end();
    assert_eq!(by_rule(&world, "limits.bytesWritten").len(), 2);
    let stored: u64 = world
        .requests()
        .iter()
        .filter(|r| r["kind"] == "intent")
        .filter_map(|r| r["bytes"].as_u64())
        .sum();
    assert_eq!(stored, 10);
}

#[test]
fn a_removed_tree_counts_every_file() {
    let world = world("filesRemoved = 3");
    for name in ["t/1", "t/2", "t/deep/3", "u/1", "u/2", "u/3"] {
        world.file(name, "x");
    }
    std::os::unix::fs::symlink("1", world.path("t/link")).unwrap();
    world.fs(&["rm", "-r", "t"]).denied("limits.filesRemoved");
    assert_eq!(world.last()["rule"], "limits.filesRemoved");
    assert_eq!(world.read("t/deep/3"), "x");
    world.fs(&["rm", "-r", "u"]).ok();
    assert!(!world.path("u").exists());
    let none = self::world("filesRemoved = 0");
    none.file("a", "a");
    none.file("b", "b");
    none.fs(&["rm", "a"]).denied("limits.filesRemoved");
    none.fs(&["mv", "a", "b"]).denied("limits.filesRemoved");
    none.fs(&["mv", "a", "c"]).ok();
    none.fs(&["mkdir", "empty"]).ok();
    none.fs(&["rm", "empty"]).ok();
    assert_eq!((none.read("b"), none.read("c")), ("b".to_owned(), "a".to_owned()));
}

#[test]
fn the_operator_can_undo_whatever_the_limits_are() {
    let mut world = world("denials = 9");
    world.file("t/1", "old");
    world.fs(&["rm", "-r", "t"]).ok();
    let intent = world.requests().into_iter().find(|r| r["kind"] == "intent").unwrap();
    let backup = intent["backup"].as_str().unwrap().to_owned();
    world.set_policy(&format!("{OPEN}[limits]\nbytesWritten = \"0B\"\nfilesRemoved = 0\n"));
    world.write("new", "x").denied("limits.bytesWritten");
    world.run(&["backup", "restore", &backup]).ok();
    assert_eq!(world.read("t/1"), "old");
}

#[test]
fn too_many_denials_close_the_session_for_good() {
    let mut relay = Relay::start(world("denials = 3"));
    relay.world().file("a.txt", "text");
    relay.world().file("secret/key", "SECRET");
    let read = |relay: &mut Relay, name: &str| {
        let request = relay.read(name);
        relay.ask_one(request)
    };
    // Missing or malformed requests are no denials.
    for _ in 0..5 {
        assert_eq!(read(&mut relay, "missing")["error"]["code"], -32002);
        assert_eq!(read(&mut relay, "a\0")["error"]["code"], -32602);
    }
    assert_eq!(rule(&read(&mut relay, "secret/key")), "keys");
    assert_eq!(rule(&read(&mut relay, "../outside")), "workspace.outside");
    assert_eq!(read(&mut relay, "a.txt")["result"]["content"], "text");
    assert_eq!(rule(&read(&mut relay, "secret/none")), "keys");
    // Now it is closed: for what was allowed, denied, missing, outside.
    for name in ["a.txt", "secret/key", "missing", "../outside"] {
        let answer = read(&mut relay, name);
        assert_eq!(rule(&answer), "limits.denials", "{name}: {answer}");
        assert!(answer["error"]["data"]["receipt"]["seq"].is_u64(), "{answer}");
        let request = relay.write(name, "PWNED");
        assert_eq!(rule(&relay.ask_one(request)), "limits.denials", "{name}");
    }
    assert_eq!(relay.world().read("a.txt"), "text");
    // Another session, which only the editor can begin, is served.
    let other = relay.open_session("s2");
    assert_eq!(relay.ask_one(other)["result"]["content"], "text");
    let world = relay.end();
    assert_eq!(by_rule(&world, "limits.denials").len(), 8);
    let closed: Vec<_> =
        world.requests().into_iter().filter(|r| r["facts"]["sessionClosed"] == true).collect();
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert_eq!(closed[0]["path"], "secret/none");
}

#[test]
fn the_stricter_limit_of_two_policies_holds() {
    let mut world = world("filesRemoved = 5\nbytesWritten = \"1B\"");
    let parent = format!("{OPEN}[limits]\nfilesRemoved = 0\nbytesWritten = \"1MiB\"\n");
    std::fs::write(world.base().join("policy/parent.toml"), parent).unwrap();
    world.set_policy("schema = 1\nextends = [\"parent.toml\"]\n[limits]\nfilesRemoved = 5\nbytesWritten = \"1B\"\n");
    world.file("a", "a");
    world.fs(&["rm", "a"]).denied("limits.filesRemoved");
    let record = world.last();
    assert!(record["policy"].as_str().unwrap().ends_with("parent.toml"), "{record}");
    world.write("b", "12").denied("limits.bytesWritten");
    let record = world.last();
    assert!(record["policy"].as_str().unwrap().ends_with("policy.toml"), "{record}");
    let explained = world.run(&["policy", "explain", "remove", "a"]).ok();
    assert!(explained.text().contains("limits"), "{}", explained.text());
}

/// Approves once a denial has closed the session.
struct Late<'a>(&'a Gateway);

impl Approver for Late<'_> {
    fn ask(&self, ticket: &Arc<Ticket>) {
        let path = WorkspacePath::parse("secret/key").unwrap();
        let read = Read { path, range: LineRange::default(), encoding: Encoding::Text };
        let denied = self.0.handle(&acp_rig::connection(), &read, Client::default()).unwrap_err();
        assert_eq!(denied.rule(), Some("keys"));
        ticket.answer(Answer::Once, "late").unwrap();
    }

    fn over(&self, _ticket: &Ticket) {}
}

#[test]
fn a_yes_that_comes_when_the_session_is_closed_is_too_late() {
    let asks = "[limits]\ndenials = 1\n[[rules]]\nid = \"asked\"\neffect = \"ask\"\n\
        operations = [\"write\"]\npaths = [\"asked.txt\"]\n";
    let (world, policy) = (World::new(), format!("{OPEN}{asks}"));
    world.file("asked.txt", "old");
    let gateway = acp_rig::gateway_under(&policy, &world.root(), world.base());
    let path = WorkspacePath::parse("asked.txt").unwrap();
    let write = Write { path, content: b"new".to_vec(), mode: None };
    let late = Late(&gateway);
    let session = acp_rig::connection();
    let denied = gateway.handle(&session, &write, Client::asking(&late)).unwrap_err();
    assert_eq!(denied.rule(), Some("limits.denials"));
    assert_eq!(world.read("asked.txt"), "old");
    let record = world.last();
    assert_eq!((&record["decision"], &record["rule"]), (&"deny".into(), &"limits.denials".into()));
}

/// A worker has room for more sessions than a gateway counts that nothing else
/// bounds.
#[test]
fn a_worker_serves_every_session_that_was_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("ws");
    std::fs::create_dir(&root).unwrap();
    let policy = format!("{OPEN}[limits]\ndenials = 9\n");
    let mut gateway = acp_rig::gateway_under(&policy, &root, dir.path());
    gateway.share(SharedLimits {
        slots: 1,
        per_session: 1,
        requests_per_second: 1_000_000,
        bytes_per_second: 1_000_000,
        concurrent: 9,
        watches: 1,
    });
    let stat = Stat { path: WorkspacePath::root() };
    for number in 0..4_200 {
        let session = Session {
            id: number.to_string(),
            agent: "a".parse().unwrap(),
            user: "me".to_owned(),
            transport: Transport::Mcp,
            acp: None,
        };
        let answer = gateway.handle(&session, &stat, Client::default());
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
}
