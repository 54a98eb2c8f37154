//! Disks that are full, read-only or broken beneath workspace, backup store and
//! log: each request fails with a clear error, the old file and the log are
//! intact, and service resumes after the operator's repair.

use std::fs;

use serde_json::Value;

use crate::{
    common::{Done, World},
    consistency,
    crash::POLICY,
    disk::Disk,
    scripted_agent::{ScriptedAgent, failure, receipt},
};

mod log;
mod outage;
mod peers;
mod power;
mod unread_stderr;

/// The part of the gateway's world that a disk is mounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Workspace,
    Backups,
    Log,
}

const PARTS: [Part; 3] = [Part::Workspace, Part::Backups, Part::Log];

impl Part {
    fn place(self, world: &World) -> std::path::PathBuf {
        match self {
            Self::Workspace => world.root(),
            Self::Backups => world.state().join("backups"),
            Self::Log => world.state().join("audit"),
        }
    }
}

/// A world that has been used, so that all directories are there.
fn world() -> World {
    let world = World::with_policy(POLICY);
    world.file("first.txt", "1");
    world.write("first.txt", "2").ok();
    // The disks that are mounted over these start a new log and a new backup
    // store.
    fs::remove_dir_all(world.state()).unwrap();
    world.fs(&["ls"]).ok();
    // Nor does the key know of another log.
    for place in [Part::Backups.place(&world), Part::Log.place(&world), world.state().join("keys")]
    {
        fs::remove_dir_all(place).unwrap();
    }
    world
}

/// Returns the record of the last attempted change, and its outcome.
fn last_outcome(world: &World) -> (Value, Value) {
    let records = world.records();
    let outcome = records.iter().rfind(|record| record["kind"] == "outcome").unwrap().clone();
    let intent = records.iter().find(|record| record["seq"] == outcome["of"]).unwrap().clone();
    (intent, outcome)
}

/// Exit code 1, and what a person reads.
#[track_caller]
fn failed(done: &Done, words: &str) {
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains(words), "{done:?}");
}

#[test]
fn a_full_workspace_keeps_every_old_file() {
    let world = world();
    let disk = Disk::memory(&world.root(), 512);
    let old = "old\n".repeat(10_000);
    world.file("old.txt", &old);
    world.file("small.txt", "small");
    for name in ["tree/a.txt", "tree/b/c.txt"] {
        world.file(name, "x".repeat(60_000));
    }
    let tree = world.fs(&["rm", "-r", "tree", "--json"]).ok().json();
    let tree = tree["backup"].as_str().unwrap();
    disk.fill(64 << 10);
    let before = consistency::snapshot(&world.root());
    let unchanged = |args: &[&str], input: &str| {
        let done = world.run_with_input(args, input);
        failed(&done, "no space left");
        let (intent, outcome) = last_outcome(&world);
        assert_eq!(outcome["result"], "noSpace", "{args:?} {outcome}");
        assert_eq!(intent["path"], outcome["path"]);
        assert_eq!(consistency::snapshot(&world.root()), before, "{args:?}");
    };
    let more = "new\n".repeat(40_000);
    unchanged(&["fs", "write", "old.txt"], &more);
    unchanged(&["fs", "write", "new.txt"], &more);
    unchanged(&["fs", "append", "old.txt"], &more);
    let new = "n".repeat(100_000);
    unchanged(&["fs", "edit", "small.txt", "--old", "small", "--new", &new], "");
    // The first file of the tree fits, the second does not.
    unchanged(&["backup", "restore", tree], "");

    // Operations that need no space still work, and free some.
    assert_eq!(world.fs(&["read", "old.txt"]).ok().text(), old);
    world.fs(&["mv", "small.txt", "moved.txt"]).ok();
    world.fs(&["rm", "old.txt"]).ok();
    disk.make_room();
    world.write("old.txt", &more).ok();
    world.run(&["backup", "restore", tree]).ok();
    consistency::check(&world);
}

#[test]
fn a_full_backup_store_lets_nothing_be_replaced() {
    let world = world();
    let disk = Disk::memory(&Part::Backups.place(&world), 512);
    let old = "old\n".repeat(50_000);
    world.file("old.txt", &old);
    world.file("tree/a.txt", &old);
    disk.fill(100 << 10);
    let before = consistency::snapshot(&world.root());
    for args in [
        &["fs", "write", "old.txt"][..],
        &["fs", "append", "old.txt"],
        &["fs", "rm", "old.txt"],
        &["fs", "rm", "-r", "tree"],
        &["fs", "mv", "tree/a.txt", "old.txt"],
    ] {
        let done = world.run_with_input(args, "new");
        failed(&done, "no space left for backups");
        let last = world.last();
        assert_eq!((&last["kind"], &last["result"]), (&"decision".into(), &"noSpace".into()));
        assert_eq!(consistency::snapshot(&world.root()), before, "{args:?}");
    }
    let mut files = consistency::walk(&Part::Backups.place(&world));
    files.retain(|path| path.is_file());
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["filler", "usage"], "what could not be kept whole is not kept at all");
    // Where nothing is replaced, no backup is needed.
    world.write("new.txt", "new").ok();
    world.fs(&["read", "old.txt"]).ok();

    disk.make_room();
    world.write("old.txt", "new").ok();
    consistency::check(&world);
}

/// Fills the log's disk so that a different record each time is the one that
/// does not fit.
#[test]
fn a_full_log_stops_everything_until_a_restart_with_room() {
    let mut stopped = std::collections::BTreeSet::new();
    for round in 0..12_usize {
        let world = world();
        let disk = Disk::memory(&Part::Log.place(&world), 96);
        world.file("a.txt", "a");
        let mut scripted_agent = ScriptedAgent::try_with(&world, &["--no-mount"]).unwrap();
        disk.fill(12 << 10);
        let (mut contents, mut receipts) = (vec!["a".to_owned()], Vec::new());
        // Paths of different length put the end of the page elsewhere.
        let other = vec!["n".repeat(90); 1 + round].join("/");
        let refused = loop {
            let content = format!("round {}", contents.len());
            let write = scripted_agent.write("a.txt", &content);
            contents.push(content);
            let write = scripted_agent.ask(write);
            if !write["error"].is_null() {
                break write;
            }
            receipts.push(receipt(&write));
            let read = scripted_agent.ask(scripted_agent.read("a.txt"));
            if !read["error"].is_null() {
                break read;
            }
            receipts.push(receipt(&read));
            let missing = scripted_agent.ask(scripted_agent.read(&other));
            if missing["error"]["code"] != -32002 {
                break missing;
            }
            assert!(contents.len() < 1000, "the disk never filled");
        };
        let (kind, message) = failure(&refused);
        assert_eq!(kind, "unavailable");
        assert!(message.contains("No space left"), "{message}");
        assert!(refused["error"]["data"]["receipt"].is_null(), "nothing was recorded");
        assert!(!message.contains(world.base().to_str().unwrap()), "{message}");
        // A reader sees the old or the new file, complete.
        let now = world.read("a.txt");
        assert!(contents.iter().rev().take(2).any(|content| *content == now), "{now}");
        let last = world.records().pop().unwrap();
        stopped.insert(["kind", "op"].map(|member| last[member].to_string()));

        // Nothing is served any more: no read, no change, no listing of
        // denials, not even when there is room again.
        disk.make_room();
        let requests = [
            scripted_agent.read("a.txt"),
            scripted_agent.write("a.txt", "late"),
            scripted_agent.read(&other),
        ];
        for answer in scripted_agent.ask_all(&requests) {
            assert_eq!(failure(&answer), (kind.clone(), message.clone()));
        }
        assert_eq!(world.read("a.txt"), now);
        // The operator sees why.
        let (status, said) = scripted_agent.end();
        assert!(!status.success(), "{status}");
        assert!(said.contains("cannot record the stop: cannot write to the audit log"), "{said}");

        // By a restart the operator declares the repair.
        let mut scripted_agent = ScriptedAgent::try_with(&world, &["--no-mount"]).unwrap();
        let read = scripted_agent.ask(scripted_agent.read("a.txt"));
        assert_eq!(read["result"]["content"], now);
        receipts.push(receipt(&read));
        receipts.push(receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "after"))));
        assert!(scripted_agent.end().0.success());
        consistency::check(&world);
        consistency::receipts_are_kept(&world, &receipts);
    }
    println!("the last record that fitted was each of {stopped:?}");
    assert!(stopped.len() > 1, "every round stopped at the same kind of record: {stopped:?}");
}

#[test]
fn a_gateway_does_not_start_on_a_full_state_directory() {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "old");
    let disk = Disk::memory(&world.state(), 256);
    world.fs(&["ls"]).ok();
    for leave in [0, 4 << 10] {
        disk.fill(leave);
        for _ in 0..3 {
            let done = world.write("a.txt", "new");
            failed(&done, "No space left");
            assert_eq!(world.read("a.txt"), "old");
            let Err(complaint) = ScriptedAgent::try_start(&world) else { panic!("it started") };
            assert!(complaint.contains("No space left"), "{complaint}");
        }
        disk.make_room();
        world.fs(&["read", "a.txt"]).ok();
    }
    world.write("a.txt", "new").ok();
    consistency::check(&world);
}

#[test]
fn on_a_read_only_disk_nothing_changes() {
    for part in PARTS {
        let world = world();
        let disk = Disk::ext4(&part.place(&world), &world.base().join("image"), 24);
        world.file("a.txt", "old");
        world.write("a.txt", "old as well").ok();
        disk.again("ro");
        let done = world.write("a.txt", "new");
        let words = match part {
            Part::Workspace => "the file system is read-only",
            Part::Backups => "cannot open the backups",
            Part::Log => "cannot open the audit log",
        };
        failed(&done, words);
        assert!(done.stderr.to_lowercase().contains("read-only"), "{part:?} {done:?}");
        assert_eq!(world.read("a.txt"), "old as well");
        let read = world.fs(&["read", "a.txt"]);
        assert_eq!(read.code, i32::from(part != Part::Workspace), "{part:?} {read:?}");
        disk.again("rw");
        world.write("a.txt", "new").ok();
        consistency::check(&world);
    }
}

/// Checks a running gateway when a disk stops working, and a restart when it
/// works again.
fn when_a_disk_fails(part: Part, break_it: impl FnOnce(&Disk), words: &str) {
    let world = world();
    let disk = Disk::ext4(&part.place(&world), &world.base().join("image"), 24);
    let old = "old\n".repeat(1000);
    world.file("a.txt", "first");
    world.file("b.txt", &old);
    let mut scripted_agent = ScriptedAgent::start(&world);
    let mut receipts = vec![receipt(&scripted_agent.ask(scripted_agent.write("a.txt", &old)))];
    disk.sync();
    break_it(&disk);
    for name in ["a.txt", "b.txt", "new.txt"] {
        let answer = scripted_agent.ask(scripted_agent.write(name, "new"));
        if part == Part::Backups && name == "new.txt" {
            // Nothing is replaced, so no backup is needed.
            receipts.push(receipt(&answer));
            continue;
        }
        let (kind, message) = failure(&answer);
        assert_eq!(kind, if part == Part::Log { "unavailable" } else { "io" }, "{part:?} {answer}");
        assert!(message.to_lowercase().contains(words), "{part:?} {message}");
        let recorded = answer["error"]["data"]["receipt"].is_object();
        assert_eq!(recorded, part != Part::Log, "{part:?} {answer}");
    }
    let read = scripted_agent.ask(scripted_agent.read("b.txt"));
    match part {
        Part::Backups => assert_eq!(read["result"]["content"], old, "reading needs no backup"),
        Part::Log => assert_eq!(failure(&read).0, "unavailable"),
        // Content that the kernel still has in memory can be read.
        Part::Workspace => {}
    }
    let (status, said) = scripted_agent.end();
    assert_eq!(status.success(), part != Part::Log, "{part:?} {said}");
    disk.again("rw");
    assert_eq!(world.read("a.txt"), old, "{part:?}");
    assert_eq!(world.read("b.txt"), old, "{part:?}");
    let mut scripted_agent = ScriptedAgent::start(&world);
    receipts.push(receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "new"))));
    assert!(scripted_agent.end().0.success());
    consistency::check(&world);
    consistency::receipts_are_kept(&world, &receipts);
}

#[test]
fn a_disk_that_turns_read_only_under_a_running_gateway() {
    for part in PARTS {
        when_a_disk_fails(part, Disk::fail_read_only, "read-only");
    }
}

#[test]
fn a_disk_that_only_gives_errors_under_a_running_gateway() {
    for part in PARTS {
        when_a_disk_fails(part, Disk::cut_off, "input/output error");
    }
}

/// The disk of each part in turn cannot store what the kernel took: the sync
/// is what fails, after the write succeeded.
#[test]
fn a_disk_whose_writes_are_lost_under_a_running_gateway() {
    for part in PARTS {
        let world = world();
        let store = Disk::memory(&world.base().join("store"), 20 << 10);
        let disk = Disk::ext4(&part.place(&world), &world.base().join("store/image"), 24);
        let old = "old\n".repeat(1000);
        world.file("a.txt", "first");
        world.file("b.txt", &old);
        let mut scripted_agent = ScriptedAgent::start(&world);
        let mut receipts = vec![receipt(&scripted_agent.ask(scripted_agent.write("a.txt", &old)))];
        disk.sync();
        store.fill(0);
        let new = "new\n".repeat(300_000);
        let mut failures = 0;
        for _ in 0..3 {
            for name in ["a.txt", "b.txt"] {
                let answer = scripted_agent.ask(scripted_agent.write(name, &new));
                if answer["error"].is_null() {
                    continue;
                }
                let (kind, message) = failure(&answer);
                let expected: &[&str] = match part {
                    Part::Workspace | Part::Backups => &["noSpace", "io"],
                    Part::Log => &["unavailable"],
                };
                assert!(expected.contains(&kind.as_str()), "{part:?} {answer}");
                assert!(!message.contains(world.base().to_str().unwrap()), "{message}");
                failures += 1;
            }
        }
        assert!(failures > 0, "{part:?}: everything was stored somewhere");
        assert_eq!(scripted_agent.end().0.success(), part != Part::Log);
        store.make_room();
        disk.again("rw");
        consistency::check(&world);
        for name in ["a.txt", "b.txt"] {
            let now = world.read(name);
            assert!(now == old || now == new, "{part:?} {name}: {} bytes", now.len());
        }
        let mut scripted_agent = ScriptedAgent::start(&world);
        receipts.push(receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "new"))));
        assert!(scripted_agent.end().0.success());
        consistency::check(&world);
        consistency::receipts_are_kept(&world, &receipts);
    }
}
