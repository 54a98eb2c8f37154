//! No disclosure of existence: a denied name is answered as fast whether or not it exists.
//!
//! `tests/run.sh` runs these by themselves: times are compared here, and other
//! processes would distort them.

use std::time::Instant;

use portcullis::{
    gateway::Client,
    model::{
        Encoding, GlobQuery, GrepQuery, LineRange, WorkspacePath,
        request::{Append, Edit, Glob, Grep, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};
use serde_json::Value;

use crate::{acp_rig, common::budget, denied_names::world, relay::Relay, requests::AnyRequest};

/// Tries of each kind: 5,000 under `tests/run.sh full`.
fn tries() -> usize {
    if budget() > 1 { 5_000 } else { 2_000 }
}

/// Measurements, of which one must find no difference: a machine that is busy
/// with something else for a while spoils one, a difference spoils them all.
const MEASUREMENTS: usize = 4;

/// Nanoseconds of two operations that were tried in turns.
struct Pair {
    one: Vec<u64>,
    other: Vec<u64>,
}

fn median(times: impl IntoIterator<Item = u64>) -> u64 {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the distance between the medians of two parts of one series: the
/// difference that a repeated run of the same has. Halves show drift, every
/// second try shows the rest.
fn noise(times: &[u64]) -> u64 {
    let (first, second) = times.split_at(times.len() / 2);
    let half = median(first.to_vec()).abs_diff(median(second.to_vec()));
    let even = median(times.iter().copied().step_by(2));
    let odd = median(times.iter().copied().skip(1).step_by(2));
    half.max(even.abs_diff(odd))
}

impl Pair {
    /// True if the medians differ by more than the noise, or by more than a
    /// fiftieth where the machine is very quiet.
    fn differs(&self) -> bool {
        let (one, other) = (median(self.one.clone()), median(self.other.clone()));
        let noise = noise(&self.one).max(noise(&self.other));
        one.abs_diff(other) > noise.max(one / 50)
    }

    fn tell(&self) -> String {
        format!(
            "{} ± {} ns against {} ± {} ns",
            median(self.one.clone()),
            noise(&self.one),
            median(self.other.clone()),
            noise(&self.other)
        )
    }
}

/// Measures until there is no difference; fails when there always is one.
#[track_caller]
fn no_difference(what: &str, mut measure: impl FnMut() -> Pair) {
    let mut told = Vec::new();
    for _ in 0..MEASUREMENTS {
        let pair = measure();
        if !pair.differs() {
            return;
        }
        told.push(pair.tell());
    }
    panic!("{what} takes another time: {told:#?}");
}

/// The yardstick works: what does differ is found to, unless the machine is busy
/// all the while.
#[track_caller]
fn a_difference(what: &str, mut measure: impl FnMut() -> Pair) {
    let mut told = Vec::new();
    for _ in 0..MEASUREMENTS {
        let pair = measure();
        if pair.differs() {
            return;
        }
        told.push(pair.tell());
    }
    panic!("{what} was not told apart: {told:#?}");
}

/// Has the agent ask for two paths in turns, ABBA, and measure.
fn in_turns(relay: &mut Relay, one: &str, other: &str, write: bool) -> Pair {
    let mut pair = Pair { one: Vec::new(), other: Vec::new() };
    while pair.one.len() < tries() {
        let turn: Vec<bool> = (0..500).map(|i| i % 4 == 0 || i % 4 == 3).collect();
        let requests: Vec<Value> = turn
            .iter()
            .map(|first| match (if *first { one } else { other }, write) {
                (name, false) => relay.read(name),
                (name, true) => relay.write(name, "PWNED"),
            })
            .collect();
        let (times, _) = relay.time(&requests);
        for (first, time) in turn.iter().zip(times) {
            if *first { &mut pair.one } else { &mut pair.other }.push(time);
        }
    }
    pair
}

#[test]
fn the_agent_cannot_tell_by_the_clock_what_is_there() {
    let mut relay = Relay::start(world());
    for (one, other, write) in [
        ("secret/key.txt", "secret/nix.txt", false),
        ("secret/key.txt", "secret/nix.txt", true),
        ("secret/deep/er/key.txt", "secret/deep/no/key.txt", false),
    ] {
        let what = format!("`{one}` and `{other}`");
        no_difference(&what, || in_turns(&mut relay, one, other, write));
    }
    a_difference("denied and read", || in_turns(&mut relay, "secret/key.txt", "a.txt", false));
    relay.end();
}

/// Every operation, in the process of the gateway.
#[test]
fn no_operation_takes_another_time_for_what_is_there() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = dir.path().join("ws");
    std::fs::create_dir_all(root.join("secret")).unwrap();
    std::fs::write(root.join("secret/key.txt"), "TOP-SECRET\n").unwrap();
    std::fs::write(root.join("a.txt"), "a\n").unwrap();
    let policy = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n[[rules]]\nid = \"keys\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n";
    let gateway = acp_rig::gateway_under(policy, &root, dir.path());
    let session = acp_rig::connection();
    let path = |text: &str| WorkspacePath::parse(text).unwrap();
    let read = |name: &str| -> Box<dyn AnyRequest> {
        let (range, encoding) = (LineRange::default(), Encoding::Text);
        Box::new(Read { path: path(name), range, encoding })
    };
    type Make<'a> = &'a dyn Fn(&str) -> Box<dyn AnyRequest>;
    let requests: [(&str, Make<'_>); 12] = [
        ("read", &read),
        ("write", &|n| Box::new(Write { path: path(n), content: b"PWNED".to_vec(), mode: None })),
        ("append", &|n| Box::new(Append { path: path(n), content: b"PWNED".to_vec() })),
        ("edit", &|n| Box::new(Edit { path: path(n), old: "T".into(), new: "P".into() })),
        ("list", &|n| Box::new(List { path: path(n) })),
        ("stat", &|n| Box::new(Stat { path: path(n) })),
        ("glob", &|n| Box::new(Glob { path: path(n), query: GlobQuery::default() })),
        ("grep", &|n| Box::new(Grep { path: path(n), query: GrepQuery::default() })),
        ("mkdir", &|n| Box::new(Mkdir { path: path(n), recursive: true, mode: None })),
        ("remove", &|n| Box::new(Remove { path: path(n), recursive: true })),
        ("rename", &|n| Box::new(Rename { from: path(n), to: path("b.txt"), replace: true })),
        ("rename onto", &|n| Box::new(Rename { from: path("a.txt"), to: path(n), replace: true })),
    ];
    let measure = |one: &dyn AnyRequest, other: &dyn AnyRequest| {
        let mut pair = Pair { one: Vec::new(), other: Vec::new() };
        let try_once = |request: &dyn AnyRequest, times: &mut Vec<u64>| {
            let started = Instant::now();
            let answer = request.put(&gateway, &session, Client::default());
            times.push(u64::try_from(started.elapsed().as_nanos()).unwrap());
            answer.map(drop).map_err(|error| (error.kind(), error.to_string()))
        };
        for turn in 0..tries() {
            let answers = if turn % 2 == 0 {
                let answer = try_once(one, &mut pair.one);
                (answer, try_once(other, &mut pair.other))
            } else {
                let answer = try_once(other, &mut pair.other);
                (try_once(one, &mut pair.one), answer)
            };
            if answers.0.is_err() {
                assert_eq!(answers.0, answers.1, "{one:?}");
            }
        }
        pair
    };
    for (name, request) in requests {
        let (there, gone) = (request("secret/key.txt"), request("secret/nix.txt"));
        no_difference(name, || measure(&*there, &*gone));
    }
    a_difference("a file that may be read", || measure(&*read("a.txt"), &*read("b.txt")));
    assert_eq!(std::fs::read_to_string(root.join("secret/key.txt")).unwrap(), "TOP-SECRET\n");
}
