//! Another process exchanges names while the gateway works: nothing outside is
//! ever read or written, no content is lost, and nothing temporary stays.
//!
//! Reads and writes go through a confined gateway that lives as long as the
//! race; operations that ACP does not have go to a gateway in this process.

mod editor;
mod empty_directories;
mod moving;
mod operations;

use std::{
    collections::HashSet,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use portcullis::{
    gateway::{Client, ErrorKind, Gateway},
    model::WorkspacePath,
};
use portcullis_audit::Hash;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use crate::{
    acp_rig,
    common::{Stop, World, budget},
    relay::Relay,
    requests::AnyRequest,
    seeded_random::Random,
};

/// Requests in each race: 20,000 under `tests/run.sh full`.
fn rounds() -> usize {
    if budget() > 1 { 20_000 } else { 4_000 }
}

/// Requests that the agent sends before it waits for replies.
const BATCH: usize = 500;

/// Every request of this many is a write, which syncs and is tried again while
/// the object moves.
const WRITES: usize = 20;

/// Exchanges two names as fast as it can while `work` runs, which gets the
/// number of exchanges so far.
fn while_exchanging(one: PathBuf, other: PathBuf, work: impl FnOnce(&AtomicU64)) {
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _stop = Stop(&stop);
        work(&swaps);
    });
    let swaps = swaps.into_inner();
    assert!(swaps >= rounds() as u64, "only {swaps} exchanges: the race was not run");
}

fn world() -> World {
    let world = World::new();
    plant(&world.base().join("outside"));
    world
}

/// Makes files that must neither be read nor changed.
fn plant(outside: &Path) {
    std::fs::create_dir_all(outside.join("b")).unwrap();
    std::fs::write(outside.join("k"), "OUTSIDE").unwrap();
    std::fs::write(outside.join("b/k"), "OUTSIDE").unwrap();
}

fn is_untouched(outside: &Path) {
    assert_eq!(names(outside), ["b", "k"]);
    assert_eq!(names(&outside.join("b")), ["k"]);
    for name in ["k", "b/k"] {
        assert_eq!(std::fs::read_to_string(outside.join(name)).unwrap(), "OUTSIDE");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// No temporary name is left in `directory` or beneath it.
fn is_clean(directory: &Path) {
    for name in names(directory) {
        assert!(!name.starts_with(".portcullis-"), "{}", directory.join(name).display());
        let path = directory.join(&name);
        if path.symlink_metadata().unwrap().is_dir() {
            is_clean(&path);
        }
    }
}

/// Results of a race for the agent.
#[derive(Debug, Default)]
struct Tally {
    inside: usize,
    written: usize,
    refused: usize,
}

impl Tally {
    /// Counts the replies to a batch: content from inside, or a refusal.
    fn count(&mut self, answers: &[Value]) {
        for answer in answers {
            assert!(!answer.to_string().contains("OUTSIDE"), "read from outside: {answer}");
            match (&answer["result"], &answer["error"]["code"]) {
                (Value::Object(result), _) if result.contains_key("content") => {
                    assert!(result["content"].as_str().unwrap().starts_with("INSIDE"), "{answer}");
                    self.inside += 1;
                }
                (Value::Object(_), _) => self.written += 1,
                (_, code) => {
                    let code = code.as_i64().unwrap();
                    assert!([-32001, -32002, -32603].contains(&code), "{answer}");
                    self.refused += 1;
                }
            }
        }
    }

    /// Checks that both sides of the race occurred.
    fn was_a_race(&self) {
        let Self { inside, written, refused } = self;
        assert_eq!(inside + written + refused, rounds());
        for count in [inside, written, refused] {
            assert!(*count > rounds() / 1000, "one side never won: {self:?}");
        }
    }
}

/// Reads `read`, and now and then writes to the path that `write` returns for a
/// number, until [`rounds`] requests were answered. Every content is another
/// one.
fn play(relay: &mut Relay, read: &str, write: impl Fn(usize) -> String) -> Tally {
    let mut tally = Tally::default();
    for batch in 0..rounds() / BATCH {
        let requests: Vec<_> = (batch * BATCH..(batch + 1) * BATCH)
            .map(|round| match round % WRITES {
                0 => relay.write(&write(round / WRITES), &format!("INSIDE, {round}")),
                _ => relay.read(read),
            })
            .collect();
        tally.count(&relay.ask(&requests));
    }
    tally
}

#[test]
fn a_file_exchanged_with_a_link_is_never_followed_outside() {
    let world = world();
    world.file("k", "INSIDE");
    symlink("../outside/k", world.path("link")).unwrap();
    let (one, other) = (world.path("k"), world.path("link"));
    let mut relay = Relay::start(world);
    while_exchanging(one, other, |_| play(&mut relay, "k", |_| "k".to_owned()).was_a_race());
    let world = relay.end();
    is_untouched(&world.base().join("outside"));
    is_clean(&world.root());
    // Nothing that the other process made is lost: the link is somewhere.
    let links = names(&world.root()).iter().filter(|name| world.path(name).is_symlink()).count();
    assert_eq!(links, 1, "{:?}", names(&world.root()));
    nothing_is_lost(&world, &["INSIDE"]);
}

/// Checks that every content that was there first or that the gateway stored is
/// in the workspace or was backed up when the gateway replaced it.
fn nothing_is_lost(world: &World, first: &[&str]) {
    let requests = world.requests();
    let done: HashSet<u64> = requests
        .iter()
        .filter(|record| record["kind"] == "outcome" && record["result"] == "ok")
        .filter_map(|record| record["of"].as_u64())
        .collect();
    let (mut wanted, mut kept) = (HashSet::new(), HashSet::new());
    wanted.extend(first.iter().map(|content| Hash::of(content.as_bytes()).to_string()));
    for intent in requests.iter().filter(|r| done.contains(&r["seq"].as_u64().unwrap())) {
        wanted.insert(intent["after"].as_str().unwrap().to_owned());
        kept.extend(intent["before"].as_str().map(str::to_owned));
    }
    for name in names(&world.root()) {
        if !world.path(&name).is_symlink() {
            kept.insert(Hash::of(world.read(&name).as_bytes()).to_string());
        }
    }
    let lost: Vec<_> = wanted.difference(&kept).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), wanted.len());
}

/// An exchange that was undone took the object of another process for one that
/// it had replaced, and deleted it, when it had only changed places.
#[test]
fn two_files_that_change_places_are_both_kept() {
    let world = World::new();
    world.file("k", "INSIDE one");
    world.file("other", "INSIDE other");
    let (one, other) = (world.path("k"), world.path("other"));
    let mut relay = Relay::start(world);
    let mut tally = Tally::default();
    while_exchanging(one, other, |_| tally = play(&mut relay, "k", |_| "k".to_owned()));
    assert!(tally.written > 0 && tally.refused > 0, "no race: {tally:?}");
    let world = relay.end();
    is_clean(&world.root());
    nothing_is_lost(&world, &["INSIDE one", "INSIDE other"]);
}

#[test]
fn a_directory_exchanged_with_a_link_is_never_followed_outside() {
    let world = world();
    world.file("a/k", "INSIDE");
    symlink("../outside", world.path("b")).unwrap();
    let (one, other) = (world.path("a"), world.path("b"));
    let mut relay = Relay::start(world);
    while_exchanging(one, other, |_| {
        play(&mut relay, "a/k", |round| format!("a/w{}", round % 64)).was_a_race();
    });
    let world = relay.end();
    is_untouched(&world.base().join("outside"));
    is_clean(&world.root());
}

#[test]
fn an_ancestor_exchanged_with_a_link_is_never_followed_outside() {
    let world = world();
    world.file("deep/a/b/k", "INSIDE");
    symlink("../../outside", world.path("deep/other")).unwrap();
    let (one, other) = (world.path("deep/a"), world.path("deep/other"));
    let mut relay = Relay::start(world);
    while_exchanging(one, other, |_| {
        play(&mut relay, "deep/a/b/k", |round| format!("deep/a/b/new/w{}", round % 64))
            .was_a_race();
    });
    let world = relay.end();
    is_untouched(&world.base().join("outside"));
    is_clean(&world.root());
}

#[test]
fn an_ancestor_moved_out_of_the_workspace_takes_no_write_with_it() {
    let world = World::new();
    world.file("a/b/k", "INSIDE");
    let elsewhere = world.base().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let inside = world.path("a");
    let mut relay = Relay::start(world);
    let mut tally = Tally::default();
    while_exchanging(inside.clone(), elsewhere.clone(), |_| {
        tally = play(&mut relay, "a/b/k", |round| format!("a/b/w{round}"));
    });
    // Whichever of the two is outside now must hold nothing that was written
    // while it was there; what was written inside may have moved out with it.
    let world = relay.end();
    let requests = world.requests();
    let stored = requests.iter().filter(|r| r["kind"] == "outcome" && r["result"] == "ok").count();
    assert_eq!(stored, tally.written);
    let trees = [world.path("a"), elsewhere.clone()];
    let found = trees
        .iter()
        .filter(|tree| tree.join("b").is_dir())
        .flat_map(|tree| names(&tree.join("b")))
        .filter(|name| name.starts_with('w'))
        .count();
    assert_eq!(stored, found, "every write is recorded and in one of the trees");
    // A file that stayed outside for longer than the gateway's timeout is left
    // to the next start, once it is inside again.
    if !inside.join("b").is_dir() {
        renameat_with(CWD, &inside, CWD, &elsewhere, RenameFlags::EXCHANGE).unwrap();
    }
    world.fs(&["ls"]).ok();
    trees.iter().for_each(|tree| is_clean(tree));
    is_clean(&world.root());
}

#[test]
fn the_root_exchanged_with_another_directory_stays_the_one_that_was_opened() {
    let world = World::new();
    let twin = world.base().join("twin");
    plant(&twin);
    world.file("k", "INSIDE");
    let root = world.root();
    // The gateway is to stay where it was although its name leads elsewhere.
    let opened = rustix::fs::open(&root, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
    let mut relay = Relay::start(world);
    while_exchanging(root.clone(), twin.clone(), |_| {
        let tally = play(&mut relay, "k", |round| format!("w{}", round % 64));
        assert_eq!(tally.refused, 0, "the gateway does not depend on the root's name");
    });
    let is_root = |path: &Path| {
        let opened = rustix::fs::fstat(opened.as_ref().unwrap()).unwrap();
        rustix::fs::stat(path).unwrap().st_ino == opened.st_ino
    };
    if !is_root(&root) {
        renameat_with(CWD, &root, CWD, &twin, RenameFlags::EXCHANGE).unwrap();
    }
    assert!(is_root(&root));
    let _world = relay.end();
    is_untouched(&twin);
    is_clean(&root);
    assert_eq!(names(&root).len(), 65);
}

#[test]
fn the_root_exchanged_with_a_link_stays_the_one_that_was_opened() {
    let world = world();
    world.file("k", "INSIDE");
    let (root, link) = (world.root(), world.base().join("link"));
    symlink("outside", &link).unwrap();
    let mut relay = Relay::start(world);
    while_exchanging(root.clone(), link.clone(), |_| {
        let tally = play(&mut relay, "k", |round| format!("w{}", round % 64));
        assert_eq!(tally.refused, 0, "the gateway does not depend on the root's name");
    });
    if root.is_symlink() {
        renameat_with(CWD, &root, CWD, &link, RenameFlags::EXCHANGE).unwrap();
    }
    let world = relay.end();
    is_untouched(&world.base().join("outside"));
    is_clean(&root);
}

/// A gateway in this process, in a directory of its own.
struct RunningMount {
    dir: tempfile::TempDir,
    gateway: Gateway,
}

impl RunningMount {
    fn new() -> Self {
        Self::under(acp_rig::POLICY)
    }

    fn under(policy: &str) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        plant(&dir.path().join("outside"));
        let gateway = acp_rig::gateway_under(policy, &dir.path().join("ws"), dir.path());
        Self { dir, gateway }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    fn handle(&self, request: &dyn AnyRequest) -> Result<(), ErrorKind> {
        let (session, client) = (acp_rig::connection(), Client::default());
        match request.put(&self.gateway, &session, client) {
            Ok(reply) => {
                assert!(!reply.output.contains("OUTSIDE"), "read from outside: {request:?}");
                Ok(())
            }
            Err(error) => Err(error.kind()),
        }
    }
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

#[test]
fn a_file_that_another_process_rewrites_is_never_lost() {
    let world = World::with_policy(
        "schema = 1\nname = \"patient\"\nextends = [\"default\"]\n\
         [backups]\nkeep = { versions = 100000, days = 30, size = \"1GiB\" }\n",
    );
    world.file("k", "INSIDE 0");
    let (temp, target) = (world.path("other.tmp"), world.path("k"));
    let mut relay = Relay::start(world);
    let (stop, mut tally) = (AtomicBool::new(false), Tally::default());
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut last, mut random) = (0_u64, Random::new(8));
            while !stop.load(Ordering::Relaxed) {
                last += 1;
                std::fs::write(&temp, format!("INSIDE other {last}")).unwrap();
                std::fs::rename(&temp, &target).unwrap();
                // However slow the machine, the gateway gets some writes done.
                if last.is_multiple_of(64) {
                    thread::sleep(Duration::from_micros(random.below(20_000)));
                }
            }
            last
        });
        let over = Stop(&stop);
        tally = play(&mut relay, "k", |_| "k".to_owned());
        drop(over);
        assert!(writer.join().unwrap() > 1000, "the race was not run");
    });
    assert!(tally.written > 0, "{tally:?}");
    let world = relay.end();
    is_clean(&world.root());
    // The newest of the other process is there, or the gateway replaced it last
    // and backed it up; earlier ones may be deleted.
    let requests = world.requests();
    let done: Vec<&Value> = requests.iter().filter(|r| r["result"] == "ok").collect();
    let intents = requests.iter().filter(|r| r["kind"] == "intent");
    let newest: Vec<&Value> = intents
        .filter(|intent| done.iter().any(|outcome| outcome["of"] == intent["seq"]))
        .collect();
    for intent in newest.iter().rev().take(10) {
        let backup = intent["backup"].as_str().unwrap();
        let kept = world.run(&["backup", "show", backup]).ok();
        assert_eq!(Hash::of(&kept.stdout).to_string(), intent["before"]);
    }
}
