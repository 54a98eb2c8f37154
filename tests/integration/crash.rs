//! A gate killed with SIGKILL at any moment: every file is the old or the new
//! one, nothing temporary stays, the log verifies, and the next start needs no
//! help.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::common::World;

const ROUNDS: u64 = 120;

/// A small generator (xorshift64), so that a failing seed can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn temporary_names(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![world.root()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with(".portcullis-") {
                found.push(name);
            } else if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn killed_at_any_moment_the_gate_leaves_old_or_new() {
    let seed = std::env::var("PORTCULLIS_TEST_SEED").map_or(0x9e37_79b9, |s| s.parse().unwrap());
    let mut random = Random(seed);
    let world = World::new();
    let big = "x".repeat(200_000);
    world.file("target.txt", "round 0");
    let mut content = "round 0".to_owned();
    let mut killed = 0;
    // Kills spread over the time that a whole run takes here and now.
    let whole = {
        let started = Instant::now();
        world.write("target.txt", &content).ok();
        u64::try_from(started.elapsed().as_micros()).unwrap()
    };
    for round in 1..=ROUNDS {
        world.file("tree/a/1.txt", "1");
        world.file("tree/b/c/2.txt", &big);
        world.file("from.txt", "from");
        world.file("to.txt", "to");
        let new = format!("round {round}{}", if round % 2 == 0 { &big } else { "" });
        let input = world.base().join("input");
        std::fs::write(&input, &new).unwrap();
        let args: &[&str] = match random.below(4) {
            0 | 1 => &["fs", "write", "target.txt"],
            2 => &["fs", "rm", "-r", "tree"],
            _ => &["fs", "mv", "from.txt", "to.txt"],
        };
        let mut child = world
            .command(args)
            .stdin(std::fs::File::open(&input).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(random.below(whole)));
        child.kill().unwrap();
        if child.wait().unwrap().code().is_none() {
            killed += 1;
        }

        // The next start, of whatever command, puts things right.
        let next = world.fs(&["ls"]);
        assert_eq!(next.code, 0, "seed {seed}, round {round}: {next:?}");
        assert_eq!(temporary_names(&world), Vec::<String>::new(), "seed {seed}, round {round}");
        let now = world.read("target.txt");
        if args[1] == "write" {
            assert!(now == content || now == new, "seed {seed}, round {round}: torn");
        } else {
            assert_eq!(now, content, "seed {seed}, round {round}");
        }
        content = now;
        let tree = (world.path("tree/a/1.txt").exists(), world.path("tree/b/c/2.txt").exists());
        assert_eq!(tree.0, tree.1, "seed {seed}, round {round}: half a tree");
        let to = world.read("to.txt");
        let moved = to == "from" && !world.path("from.txt").exists();
        let stayed = to == "to" && world.read("from.txt") == "from";
        assert!(moved || stayed, "seed {seed}, round {round}: torn rename");
    }
    assert!(killed > ROUNDS / 4, "only {killed} of {ROUNDS} were killed in time");

    world.run(&["audit", "verify"]).ok();
    let records = world.records();
    for intent in records.iter().filter(|record| record["kind"] == "intent") {
        assert!(
            records.iter().any(|record| record["of"] == intent["seq"]),
            "intent {} was never resolved",
            intent["seq"]
        );
    }
    assert!(records.iter().any(|record| record["kind"] == "recovered"), "no crash hit an intent");
}
