//! Several files in one request: reads one by one, changes all or none.

use std::{
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use portcullis::{
    gateway::{Client, ContentChange, Follower, SharedLimits},
    model::{
        GlobQuery, Session, Transport, WorkspacePath,
        request::{Glob, Stat, Write},
    },
};
use serde_json::{Value, json};

use crate::{
    acp_rig,
    common::{Done, World},
    seeded_random::Random,
};

const OPEN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
    [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"denied/**\"]\n\
    [[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"asked/**\"]\n";

fn batch(world: &World, changes: &Value) -> Done {
    world.run_with_input(&["fs", "batch", "--json"], changes.to_string())
}

fn write(path: &str, content: &str) -> Value {
    json!({ "op": "write", "path": path, "content": content })
}

#[test]
fn several_files_are_read_one_after_the_other() {
    let world = World::with_policy(OPEN);
    world.file("a.txt", "a\n");
    world.file("b.txt", "b\n");
    world.file("denied/c.txt", "c\n");
    assert_eq!(world.fs(&["read", "a.txt", "b.txt"]).ok().text(), "a\nb\n");
    let done = world.fs(&["read", "a.txt", "denied/c.txt", "gone.txt", "../x", "b.txt"]);
    assert_eq!((done.code, done.text()), (3, "a\nb\n"));
    assert!(done.stderr.contains("`no`") && done.stderr.contains("not found"), "{}", done.stderr);
    let answer = world.fs(&["read", "--json", "gone.txt", "b.txt"]);
    let files = &answer.json()["files"];
    assert_eq!((answer.code, &files[0]["error"]["kind"]), (1, &json!("notFound")));
    assert_eq!((&files[1]["path"], &files[1]["content"]), (&json!("b.txt"), &json!("b\n")));
    let records = world.requests();
    assert_eq!(records.iter().filter(|record| record["op"] == "read").count(), 9);
}

#[test]
fn changes_of_a_batch_are_all_made() {
    let world = World::with_policy(OPEN);
    world.file("a.txt", "old\n");
    world.file("b.txt", "one two\n");
    let done = batch(
        &world,
        &json!([
            write("a.txt", "new\n"),
            { "op": "edit", "path": "b.txt", "old": "two", "new": "three" },
            { "op": "append", "path": "deep/c.txt", "base64": "Ywo=" },
        ]),
    );
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.json()["replies"].as_array().unwrap().len(), 3);
    let read = |name: &str| world.read(name);
    assert_eq!(
        (read("a.txt"), read("b.txt"), read("deep/c.txt")),
        ("new\n".into(), "one three\n".into(), "c\n".into())
    );
    let records = world.requests();
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["intent", "intent", "intent", "outcome", "outcome", "outcome"]);
    assert_eq!(records[0]["facts"]["batch"], records[2]["facts"]["batch"]);
    assert_eq!(records[0]["facts"]["batchSize"], 3);
    let backup = done.json()["replies"][0]["backup"].as_str().unwrap().to_owned();
    world.run(&["backup", "restore", &backup]).ok();
    assert_eq!(world.read("a.txt"), "old\n");
}

#[test]
fn one_change_that_may_not_be_made_keeps_all_from_being_made() {
    let mut world = World::with_policy(OPEN);
    world.file("a.txt", "old\n");
    for (other, rule, kind) in [
        (write("denied/x.txt", "x"), Some("no"), "denied"),
        (write("asked/x.txt", "x"), Some("q"), "denied"),
        (write("bin", "\0"), Some("files.binary.write"), "denied"),
        (json!({ "op": "edit", "path": "a2.txt", "old": "x", "new": "y" }), None, "notFound"),
        (write("./a.txt", "again"), None, "invalidInput"),
        // A file and what would lie beneath it.
        (write("n.txt/x", "x"), None, "invalidInput"),
        (write("../x", "x"), Some("workspace.outside"), "denied"),
    ] {
        let done = batch(&world, &json!([write("a.txt", "new"), write("n.txt", "new"), other]));
        let answer = done.json();
        assert_eq!(done.code, if kind == "denied" { 3 } else { 1 }, "{other}");
        assert_eq!(
            (&answer["error"]["kind"], answer["error"]["rule"].as_str()),
            (&json!(kind), rule)
        );
        assert_eq!(answer["index"], 2);
        assert_eq!(world.read("a.txt"), "old\n");
        assert!(!world.path("n.txt").exists());
        assert!(world.records().iter().all(|record| record["kind"] != "intent"));
    }
    let not_done = world.requests().iter().filter(|record| record["result"] == "notDone").count();
    assert_eq!(not_done, 12);
    assert_eq!(world.run(&["backup", "list", "--json"]).ok().text().matches("\"id\"").count(), 0);
    // Nor do limits let a part of it through.
    world.set_policy(&format!("{OPEN}[limits]\nbytesWritten = \"5B\"\n"));
    let done = batch(&world, &json!([write("a.txt", "1234"), write("n.txt", "5678")]));
    assert_eq!(done.json()["error"]["rule"], "limits.bytesWritten");
    assert_eq!(world.read("a.txt"), "old\n");
}

#[test]
fn what_is_no_batch_is_refused() {
    let world = World::with_policy(OPEN);
    for input in [
        "",
        "{}",
        "[1]",
        "[{\"op\":\"remove\",\"path\":\"a\"}]",
        "[{\"op\":\"write\",\"path\":\"a\"}]",
        "[{\"op\":\"write\",\"path\":\"a\",\"base64\":\"*\"}]",
        "[{\"op\":\"write\",\"path\":\"a\",\"content\":\"\",\"mode\":1}]",
    ] {
        assert_eq!(world.run_with_input(&["fs", "batch"], input).code, 2, "{input}");
        // The gateway was open, and has ended.
        assert_eq!(world.records().last().unwrap()["kind"], "stop", "{input}");
    }
    assert_eq!(batch(&world, &json!([])).code, 0);
    let many: Vec<_> = (0..101).map(|n| write(&format!("f{n}"), "x")).collect();
    assert_eq!(batch(&world, &json!(many)).json()["error"]["kind"], "invalidInput");
    assert!(!world.path("f0").exists());
}

#[test]
fn a_change_that_fails_takes_back_those_before_it() {
    let world = World::with_policy(OPEN);
    world.file("a.txt", "old a\n");
    world.file("b.txt", "old b\n");
    world.file("locked/c.txt", "old c\n");
    world.file("d.txt", "old d\n");
    std::fs::set_permissions(world.path("a.txt"), PermissionsExt::from_mode(0o640)).unwrap();
    // The gateway gives up the capability by which root writes here.
    std::fs::set_permissions(world.path("locked"), PermissionsExt::from_mode(0o555)).unwrap();
    let changes = json!([
        write("a.txt", "new a"),
        write("n.txt", "new"),
        write("b.txt", "new b"),
        write("locked/c.txt", "new c"),
        write("d.txt", "new d"),
    ]);
    let done = batch(&world, &changes);
    assert_eq!((done.code, &done.json()["index"]), (1, &json!(3)), "{done:?}");
    for name in ["a", "b", "d"] {
        assert_eq!(world.read(&format!("{name}.txt")), format!("old {name}\n"));
    }
    assert_eq!(world.read("locked/c.txt"), "old c\n");
    assert!(!world.path("n.txt").exists());
    let mode = std::fs::metadata(world.path("a.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let records = world.requests();
    let taken_back: Vec<_> = records
        .iter()
        .filter(|record| record["facts"]["reverts"].is_u64() && record["kind"] == "intent")
        .map(|record| (record["op"].as_str().unwrap(), record["path"].as_str().unwrap()))
        .collect();
    assert_eq!(taken_back, [("restore", "b.txt"), ("remove", "n.txt"), ("restore", "a.txt")]);
    let answered = records.iter().filter(|record| record["kind"] == "outcome").count();
    assert_eq!(answered, 8, "every intent has its outcome");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn killed_at_any_moment_a_batch_is_there_or_not_after_the_next_start() {
    const FILES: usize = 12;
    let world = World::with_policy(OPEN);
    let mut random = Random::new(0x51ed);
    let input = world.base().join("input");
    let (mut killed, mut took_back) = (0, 0);
    // A busy machine misses more of them.
    for round in 0..240 {
        if round >= 24 && killed > 8 && took_back > 2 {
            break;
        }
        for number in 0..FILES {
            let path = world.path(&format!("f{number}.txt"));
            // Some are new.
            match number % 3 {
                0 => drop(std::fs::remove_file(path)),
                _ => std::fs::write(path, format!("old {round}")).unwrap(),
            }
        }
        let changes: Vec<_> =
            (0..FILES).map(|n| write(&format!("f{n}.txt"), &format!("new {round}"))).collect();
        std::fs::write(&input, json!(changes).to_string()).unwrap();
        let start = || {
            let mut command = world.command(&["fs", "batch"]);
            command.stdin(std::fs::File::open(&input).unwrap());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let mut child = start();
        let begun = Instant::now();
        // From when the first file has changed there is a part to be taken back.
        let after = random.below(FILES as u64);
        let changed = || {
            (0..FILES)
                .filter(|n| {
                    std::fs::read_to_string(world.path(&format!("f{n}.txt")))
                        .is_ok_and(|text| text == format!("new {round}"))
                })
                .count() as u64
        };
        while changed() < after && begun.elapsed() < Duration::from_secs(60) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        child.kill().unwrap();
        killed += usize::from(child.wait().unwrap().code().is_none());
        let partly = changed();
        // Any command settles what is left.
        world.fs(&["ls"]).ok();
        let now = changed();
        assert!(now == 0 || now == FILES as u64, "round {round}: {now} of {FILES}");
        if now == 0 {
            for number in 0..FILES {
                let path = world.path(&format!("f{number}.txt"));
                match number % 3 {
                    0 => assert!(!path.exists(), "round {round}: f{number}.txt"),
                    _ => assert_eq!(std::fs::read_to_string(path).unwrap(), format!("old {round}")),
                }
            }
            took_back += usize::from(partly > 0);
        }
    }
    assert!(killed > 8, "only {killed} were killed in time");
    assert!(took_back > 2, "only {took_back} were killed half-way");
    world.run(&["audit", "verify"]).ok();
}

/// The failure of a change was recorded before the others were taken back: a
/// gateway that died in between left a part of the batch.
#[test]
fn killed_while_it_takes_a_batch_back_it_is_taken_back_by_the_next_start() {
    const FILES: usize = 12;
    let world = World::with_policy(OPEN);
    world.file("locked/c.txt", "old");
    std::fs::set_permissions(world.path("locked"), PermissionsExt::from_mode(0o555)).unwrap();
    let mut changes: Vec<_> = (0..FILES).map(|n| write(&format!("f{n}.txt"), "new")).collect();
    changes.push(write("locked/c.txt", "new"));
    changes.push(write("later.txt", "new"));
    let input = world.base().join("input");
    std::fs::write(&input, json!(changes).to_string()).unwrap();
    let read = |n: usize| std::fs::read_to_string(world.path(&format!("f{n}.txt"))).ok();
    let new = || (0..FILES).filter(|n| read(*n).is_some_and(|text| text == "new")).count();
    let mut half_way = 0;
    // A busy machine misses more of them.
    for round in 0..60 {
        if round >= 6 && half_way > 0 {
            break;
        }
        for n in (0..FILES).filter(|n| n % 2 == 0) {
            world.file(&format!("f{n}.txt"), "old");
        }
        let mut command = world.command(&["fs", "batch"]);
        command.stdin(std::fs::File::open(&input).unwrap());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        let mut most = 0;
        // From when the first is back there is a rest to be taken back.
        while child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60) {
            let now = new();
            most = most.max(now);
            if most == FILES && now < most {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        half_way += usize::from(new() > 0);
        world.fs(&["ls"]).ok();
        for n in 0..FILES {
            let old = (n % 2 == 0).then(|| "old".to_owned());
            assert_eq!(read(n), old, "f{n}.txt");
        }
        assert!(!world.path("later.txt").exists());
    }
    assert!(half_way > 0, "none was killed half-way");
    world.run(&["audit", "verify"]).ok();
}

/// Keeps a search where it is until it is let go on.
struct PausedSearch {
    there: mpsc::Sender<()>,
    go: Mutex<mpsc::Receiver<()>>,
    once: AtomicBool,
}

impl Follower for PausedSearch {
    fn is_wanted(&self) -> bool {
        if !self.once.swap(true, Ordering::SeqCst) {
            self.there.send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        true
    }

    fn progress(&self, _entries: u64) {}
}

#[test]
fn a_batch_takes_its_turn_like_every_request_and_counts_with_all_its_changes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("ws");
    std::fs::create_dir(&root).unwrap();
    let mut gateway = acp_rig::gateway_under(OPEN, &root, dir.path());
    gateway.share(SharedLimits {
        slots: 1,
        per_session: 1,
        requests_per_second: 1_000,
        bytes_per_second: 1,
        concurrent: 1,
        watches: 1,
    });
    let gateway = gateway;
    let session = |agent: &str| Session {
        id: agent.to_owned(),
        agent: agent.parse().unwrap(),
        user: "me".to_owned(),
        transport: Transport::Mcp,
        acp: None,
    };
    let (slow, other) = (session("slow"), session("other"));
    let path = |name: &str| WorkspacePath::parse(name).unwrap();
    let changes = |size: usize| -> Vec<_> {
        let write = |name: &str| -> Box<dyn ContentChange> {
            Box::new(Write { path: path(name), content: vec![b'x'; size], mode: None })
        };
        vec![write("a.txt"), write("b.txt")]
    };
    let (there, arrived) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let held = PausedSearch { there, go: Mutex::new(wait), once: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let query = GlobQuery { pattern: "**".to_owned(), ..GlobQuery::default() };
            let glob = Glob { path: WorkspacePath::root(), query };
            let client = Client { follower: &held, ..Client::default() };
            gateway.handle(&slow, &glob, client).unwrap();
        });
        arrived.recv().unwrap();
        // A session that waits for its slot may have no other request in
        // progress.
        let refused = gateway.handle_together(&slow, &changes(1)).unwrap_err();
        assert_eq!(refused.error.rule(), Some("serve.limits.concurrentRequests"));
        assert!(refused.error.receipt().is_some() && !root.join("a.txt").exists());
        let batch = scope.spawn(|| gateway.handle_together(&other, &changes(9)));
        while gateway.numbers().waiting < 1 {
            std::thread::yield_now();
        }
        assert!(!root.join("a.txt").exists());
        go.send(()).unwrap();
        assert_eq!(batch.join().unwrap().unwrap().len(), 2);
    });
    assert!(root.join("a.txt").exists() && root.join("b.txt").exists());
    let stat = Stat { path: path("a.txt") };
    let refused = gateway.handle(&other, &stat, Client::default()).unwrap_err();
    assert_eq!(refused.rule(), Some("serve.limits.bytesPerSecond"));
}
