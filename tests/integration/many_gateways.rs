//! Many gateways on one workspace at once.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    common::{World, budget},
    consistency,
    crash::POLICY,
    disk::Disk,
    load::{self, LoadGenerator},
    scripted_agent::{self, ScriptedAgent, receipt},
    seeded_random::Random,
};

/// Errors that are possible when other gateways change the same files.
const EXPECTED: [&str; 8] = [
    "notFound",
    "conflict",
    "alreadyExists",
    "notADirectory",
    "isADirectory",
    "notEmpty",
    "invalidInput",
    "denied",
];

/// The least number of requests of agents and shells together, however long they take.
const REQUESTS: usize = 400;

/// The time for which agents and shells work.
struct Shift {
    end: Instant,
    made: AtomicUsize,
}

impl Shift {
    fn is_over(&self) -> bool {
        let now = Instant::now();
        let is_enough = self.made.load(Ordering::Relaxed) >= REQUESTS;
        now >= self.end && (is_enough || now >= self.end + 5 * scripted_agent::TIMEOUT)
    }

    fn count_one(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }
}

fn path(random: &mut Random) -> String {
    let (directory, file) = (random.below(4), random.below(5));
    if directory == 3 { format!("f{file}") } else { format!("d{directory}/f{file}") }
}

fn block(random: &mut Random, writer: u64, round: u64) -> String {
    let length = [100, 5_000, 100_000][usize::try_from(random.below(3)).unwrap()];
    format!("block {writer} {round} {length}\n{}\nend\n", "-".repeat(length))
}

/// An agent in its sandbox that reads and writes, eight requests at a time.
fn agent(world: &World, writer: u64, shift: &Shift) -> Vec<Value> {
    let mut random = Random::new(writer);
    let mut scripted_agent = ScriptedAgent::start(world);
    let mut receipts = Vec::new();
    let mut round = 0;
    while !shift.is_over() {
        let requests: Vec<_> = (0..8)
            .map(|_| {
                round += 1;
                match random.below(2) {
                    0 => scripted_agent.read(&path(&mut random)),
                    _ => {
                        scripted_agent.write(&path(&mut random), &block(&mut random, writer, round))
                    }
                }
            })
            .collect();
        for answer in scripted_agent.ask_all(&requests) {
            match answer["error"]["code"].as_i64() {
                None => {
                    receipts.push(receipt(&answer));
                    shift.count_one();
                }
                // An entry in the way may have such a name, too.
                Some(-32001 | -32002 | -32602) => {}
                Some(_) => {
                    let kind = answer["error"]["data"]["kind"].as_str().unwrap_or_default();
                    assert!(EXPECTED.contains(&kind), "{answer}");
                }
            }
        }
    }
    let (status, said) = scripted_agent.end();
    assert!(status.success(), "{status} {said}");
    receipts
}

/// Runs one `portcullis fs` after the other: each is a gateway of its own.
fn shell(world: &World, writer: u64, shift: &Shift) -> Vec<Value> {
    let mut random = Random::new(writer);
    let mut receipts = Vec::new();
    let mut round = 0;
    while !shift.is_over() {
        round += 1;
        let (one, other) = (path(&mut random), path(&mut random));
        let input = block(&mut random, writer, round);
        let args: &[&str] = match random.below(6) {
            0 => &["fs", "read", &one, "--json"],
            1 => &["fs", "write", &one, "--json"],
            2 => &["fs", "append", &one, "--json"],
            3 => &["fs", "rm", &one, "--json"],
            4 => &["fs", "rm", "-r", "d1", "--json"],
            _ => &["fs", "mv", &one, &other, "--json"],
        };
        let done = world.run_with_input(args, input);
        let said: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|error| panic!("{error}: {args:?} {done:?}"));
        if done.code == 0 {
            receipts.push(said["receipt"].clone());
            shift.count_one();
        } else {
            let kind = said["error"]["kind"].as_str().unwrap_or_default();
            assert!(EXPECTED.contains(&kind), "{args:?} {said}");
        }
    }
    receipts
}

/// Six gateways of long life that do everything, two under `portcullis run`
/// whose agents read and write, and two loops in which one `portcullis fs`
/// follows the other, all on the same twenty names.
#[test]
fn ten_gateways_work_on_one_workspace() {
    let seconds = 15 * budget().min(8);
    let world = World::with_policy(POLICY);
    // Thousands of backups are gone at once with their disk.
    let _disk = Disk::ext4(&world.state(), &world.base().join("image"), 4096);
    world.fs(&["ls"]).ok();
    let end = Instant::now() + Duration::from_secs(seconds);
    let shift = Shift { end, made: AtomicUsize::new(0) };
    let load_generators: Vec<_> =
        (1..=6).map(|seed| LoadGenerator::start(&world, seed, seconds)).collect();
    let mut receipts = thread::scope(|scope| {
        let (world, shift) = (&world, &shift);
        let agents = (7..9).map(|writer| scope.spawn(move || agent(world, writer, shift)));
        let shells = (9..11).map(|writer| scope.spawn(move || shell(world, writer, shift)));
        let threads: Vec<_> = agents.chain(shells).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let others = receipts.len();
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (load_generator, seed) in load_generators.into_iter().zip(1..) {
        let mut lines = load_generator.end();
        assert_eq!(lines.pop().unwrap()["stopped"], true);
        for line in &lines {
            let error = line["error"].as_str();
            assert!(error.is_none_or(|kind| EXPECTED.contains(&kind)), "{line}");
            assert!(line["receipt"].is_object(), "no record: {line}");
            let outcome = error.map_or_else(|| line["ok"].to_string(), str::to_owned);
            *counts.entry(outcome).or_default() += 1;
        }
        requests.insert(format!("{seed:032x}"), lines.len());
        receipts.extend(load::receipts(&lines));
    }
    println!("{} requests, {others} of them of agents and shells: {counts:?}", receipts.len());
    assert!(receipts.len() > 300, "only {} requests", receipts.len());

    // A single chain contains every record, and no receipt is missing.
    assert!(consistency::check(&world) > 100);
    consistency::receipts_are_kept(&world, &receipts);
    let mut recorded: BTreeMap<String, usize> = BTreeMap::new();
    for record in world.records() {
        let session = record["session"].as_str().unwrap_or_default();
        if matches!(record["kind"].as_str(), Some("decision" | "intent")) {
            *recorded.entry(session.to_owned()).or_default() += 1;
        }
    }
    recorded.retain(|session, _| requests.contains_key(session));
    assert_eq!(recorded, requests);
    let files = load::files_are_whole(&world.root());
    println!("{files} files at the end");
}
