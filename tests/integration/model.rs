//! A second way to the same answer: random sequences of operations, with hostile names
//! and links, run through the gateway and through a model of the workspace, and nothing may
//! differ: not the outcome, not the content, not a name in the tree. The mount is the third
//! way, in `crates/mount/tests/mount/model.rs`.

#[path = "../support/model.rs"]
mod tree;

use std::collections::BTreeMap;

use portcullis::{
    gateway::{Client, Entry, Gateway, Request},
    model::{
        Encoding, LineRange, Operation, Session,
        request::{Append, Edit, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};

use self::tree::{MODEL_POLICY, Outcome, Tree, on_disk, plant};
use crate::{acp_rig, common::budget, requests::AnyRequest, seeded_random::Random};

const SEQUENCES: u64 = 1_000;
const LENGTH: u64 = 30;

/// An entry in the words of the model.
fn entry(entry: &Entry) -> String {
    match entry.size {
        Some(size) => format!("file {size}"),
        None => entry.kind.as_str().to_owned(),
    }
}

impl Random {
    fn request(&mut self) -> Box<dyn AnyRequest> {
        let path = self.path();
        match self.below(13) {
            0 | 1 => {
                let (range, encoding) = (LineRange::default(), Encoding::Text);
                Box::new(Read { path, range, encoding })
            }
            2..=4 => Box::new(Write { path, content: self.text().into_bytes(), mode: None }),
            5 => Box::new(Append { path, content: self.text().into_bytes() }),
            6 => Box::new(Edit { path, old: "x".into(), new: self.text() }),
            7 => Box::new(List { path }),
            8 => Box::new(Stat { path }),
            9 => Box::new(Mkdir { path, recursive: self.below(2) == 0, mode: None }),
            10 => Box::new(Remove { path, recursive: self.below(2) == 0 }),
            _ => {
                let (to, replace) = (self.path(), self.below(4) > 0);
                Box::new(Rename { from: path, to, replace })
            }
        }
    }
}

struct Rig {
    gateway: Gateway,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        // In memory where that is possible: thousands of syncs wait for nothing.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        std::fs::write(dir.path().join("outside"), "OUTSIDE").unwrap();
        let gateway = acp_rig::gateway_under(MODEL_POLICY, &dir.path().join("ws"), dir.path());
        Self { gateway, dir }
    }

    /// Returns the gateway's outcome in the terms of the model.
    fn ask(&self, session: &Session, operation: Operation<'_>) -> Outcome {
        let changed = |_| "changed".to_owned();
        match operation {
            Operation::Read(read) => {
                self.put(session, read, |content| String::from_utf8(content.bytes).unwrap())
            }
            Operation::List(list) => self.put(session, list, |list| {
                let name =
                    |one: &Entry| format!("{:?} {}\n", one.path.file_name().unwrap(), entry(one));
                list.entries.iter().map(name).collect()
            }),
            Operation::Stat(stat) => self.put(session, stat, |one| entry(&one)),
            Operation::Write(write) => self.put(session, write, changed),
            Operation::Append(append) => self.put(session, append, changed),
            Operation::Edit(edit) => self.put(session, edit, changed),
            Operation::Mkdir(mkdir) => self.put(session, mkdir, changed),
            Operation::Remove(remove) => self.put(session, remove, changed),
            Operation::Rename(rename) => self.put(session, rename, changed),
            _ => unreachable!("{operation:?}"),
        }
    }

    fn put<R: Request>(
        &self,
        session: &Session,
        request: &R,
        say: impl FnOnce(R::Output) -> String,
    ) -> Outcome {
        match self.gateway.handle(session, request, Client::default()) {
            Ok(reply) => Ok(say(reply.output)),
            Err(error) => Err(error.kind()),
        }
    }

    /// Runs one sequence and counts its outcomes.
    fn sequence(&self, seed: u64, results: &mut BTreeMap<String, u64>) {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let root = self.dir.path().join("ws");
        for entry in std::fs::read_dir(&root).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        let mut tree = Tree::empty();
        let mut history: Vec<String> =
            (0..8).map(|_| plant(&root, &mut tree, &mut random)).collect();
        let session = acp_rig::connection();
        for _ in 0..LENGTH {
            if random.below(6) == 0 {
                history.push(plant(&root, &mut tree, &mut random));
            }
            let request = random.request();
            let operation = request.as_operation();
            history.push(format!("{operation:?}"));
            let tell = || format!("seed {seed}:\n{}", history.join("\n"));
            let before = tree.clone();
            let expected = tree.apply(operation);
            let got = self.ask(&session, operation);
            assert_eq!(got, expected, "{}\nin {before:#?}", tell());
            assert_eq!(on_disk(&root), tree.0, "{}\nin {before:#?}", tell());
            let outcome = got.map_or_else(|kind| kind.as_str(), |_| "ok");
            *results.entry(format!("{} {outcome}", operation.kind())).or_default() += 1;
        }
    }
}

/// `PORTCULLIS_TEST_SEED` is the first sequence, `PORTCULLIS_TEST_BUDGET` multiplies their number.
#[test]
fn the_gateway_does_what_the_model_does() {
    let rig = Rig::new();
    let mut results = BTreeMap::new();
    let first = std::env::var("PORTCULLIS_TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + SEQUENCES * budget() {
        rig.sequence(seed, &mut results);
    }
    // Every outcome that a quiet workspace can give occurred, and not by luck.
    for (operation, outcomes) in [
        ("read", "ok denied notFound isADirectory"),
        ("write", "ok denied isADirectory notADirectory"),
        ("append", "ok denied isADirectory notADirectory"),
        ("edit", "ok denied notFound isADirectory invalidInput"),
        ("list", "ok denied notFound notADirectory"),
        ("stat", "ok denied notFound"),
        ("mkdir", "ok denied notFound alreadyExists notADirectory"),
        ("remove", "ok denied notFound notEmpty invalidInput"),
        ("rename", "ok denied notFound alreadyExists notADirectory invalidInput"),
    ] {
        for outcome in outcomes.split(' ') {
            let times = results.get(&format!("{operation} {outcome}")).copied().unwrap_or_default();
            assert!(times >= 10, "`{operation}` was `{outcome}` {times} times: {results:#?}");
        }
    }
    assert_eq!(std::fs::read_to_string(rig.dir.path().join("outside")).unwrap(), "OUTSIDE");
}
