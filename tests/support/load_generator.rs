//! `load_generator WORKSPACE STATE POLICY SEED SECONDS`: a gateway whose two threads
//! read, write, append, edit, remove and rename on a handful of paths, and
//! print the result of each request on stdout, one JSON object a line. Tests
//! start many of these on one workspace, and break things under them.
//!
//! A file's content is one or more blocks, so that a torn one is detected.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "part of the tests: it says what went wrong by panicking"
)]

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;
use portcullis::{
    gateway::{AuditLog, Changed, Client, ErrorKind, Gateway, Request, Workspace},
    model::{
        Encoding, LineRange, Session, Transport, WorkspacePath,
        request::{Append, Edit, List, Mkdir, Read, Remove, Rename, Write},
    },
    policy::{PolicySource, SecretKey, compile},
};
use serde_json::json;

#[path = "../integration/seeded_random.rs"]
mod seeded_random;
use seeded_random::Random;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workspace, state, policy, seed, seconds] = arguments.as_slice() else {
        panic!("usage: load_generator WORKSPACE STATE POLICY SEED SECONDS")
    };
    let policy = std::fs::read_to_string(policy).unwrap();
    let policy = Arc::new(compile(&PolicySource::from_text("policy.toml", &policy)).unwrap());
    let state = Dir::from_std_file(std::fs::File::open(state).unwrap());
    let gateway = Gateway::open(
        Workspace::open(Path::new(workspace)).unwrap(),
        Arc::clone(&policy),
        AuditLog::open(&state).unwrap(),
        &state,
        SecretKey::new(&[7; SecretKey::LENGTH]),
    )
    .unwrap();
    let seed: u64 = seed.parse().unwrap();
    let session = Session {
        id: format!("{seed:032x}"),
        agent: "load_generator".parse().unwrap(),
        user: "tester".to_owned(),
        transport: Transport::Cli,
        acp: None,
    };
    gateway.start(&session, BTreeMap::new()).unwrap();
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    thread::scope(|scope| {
        for number in 1..=2 {
            let (gateway, session) = (&gateway, &session);
            let random = Random::new((seed + number) << 20 | 1);
            scope.spawn(move || {
                let mut load_generator = LoadGenerator {
                    gateway,
                    session,
                    random,
                    writer: seed * 10 + number,
                    round: 0,
                };
                while Instant::now() < end && load_generator.hit() {}
            });
        }
    });
    let stopped = gateway.stop(&session).is_ok();
    tell(&json!({ "stopped": stopped }));
}

fn tell(line: &serde_json::Value) {
    // In one write, so that what a kill cuts short is the last line only.
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

struct LoadGenerator<'a> {
    gateway: &'a Gateway,
    session: &'a Session,
    random: Random,
    writer: u64,
    round: u64,
}

impl LoadGenerator<'_> {
    /// Makes one request. Returns false if the gateway serves nothing any more.
    fn hit(&mut self) -> bool {
        self.round += 1;
        let path = self.path();
        let block = self.block();
        match self.random.below(100) {
            0..25 => {
                let (range, encoding) = (LineRange::default(), Encoding::Text);
                self.put(&Read { path: path.clone(), range, encoding }, |content| {
                    let text = String::from_utf8(content.bytes).unwrap();
                    assert!(whole(&text), "a torn read of {path}");
                })
            }
            25..50 => self.change(&Write { path, content: block.into_bytes(), mode: None }),
            50..58 => self.change(&Append { path, content: block.into_bytes() }),
            // Appends as well, if there is but one block.
            58..65 => {
                self.change(&Edit { path, old: "end\n".into(), new: format!("end\n{block}") })
            }
            65..76 => self.change(&Remove { path, recursive: false }),
            76..88 => {
                let to = self.path();
                self.change(&Rename { from: path, to, replace: true })
            }
            88..92 => {
                let path = self.directory();
                self.change(&Mkdir { path, recursive: true, mode: None })
            }
            92..95 => {
                let path = self.directory();
                self.change(&Remove { path, recursive: true })
            }
            95..98 => {
                let (from, to) = (self.directory(), self.directory());
                self.change(&Rename { from, to, replace: true })
            }
            _ => {
                let path = self.directory();
                self.put(&List { path }, drop)
            }
        }
    }

    fn change(&self, change: &dyn Request<Output = Changed>) -> bool {
        self.put(change, drop)
    }

    /// Sends a request to the gateway and prints its result.
    fn put<R: Request + ?Sized>(&self, request: &R, check: impl FnOnce(R::Output)) -> bool {
        let operation = request.as_operation().kind().as_str();
        let said = match self.gateway.handle(self.session, request, Client::default()) {
            Ok(reply) => {
                check(reply.output);
                json!({ "ok": operation, "receipt": reply.receipt })
            }
            Err(error) => json!({
                "error": error.kind().as_str(),
                "op": operation,
                "message": error.to_string(),
                "receipt": error.receipt(),
                "unavailable": error.kind() == ErrorKind::Unavailable,
            }),
        };
        tell(&said);
        said.get("unavailable") != Some(&true.into())
    }

    fn directory(&mut self) -> WorkspacePath {
        WorkspacePath::parse(&format!("d{}", self.random.below(3))).unwrap()
    }

    fn path(&mut self) -> WorkspacePath {
        let (directory, file) = (self.random.below(4), self.random.below(5));
        let text =
            if directory == 3 { format!("f{file}") } else { format!("d{directory}/f{file}") };
        WorkspacePath::parse(&text).unwrap()
    }

    fn block(&mut self) -> String {
        let length = match self.random.below(10) {
            0 => 100_000,
            1..4 => 5_000,
            _ => 100,
        };
        let filler = "-".repeat(length);
        format!("block {} {} {length}\n{filler}\nend\n", self.writer, self.round)
    }
}

/// True if a text is complete blocks and nothing else.
fn whole(mut text: &str) -> bool {
    while !text.is_empty() {
        let Some((head, rest)) = text.split_once('\n') else { return false };
        let length = head.rsplit(' ').next().and_then(|length| length.parse().ok());
        let Some((filler, rest)) = length.and_then(|length| rest.split_at_checked(length)) else {
            return false;
        };
        let Some(rest) = rest.strip_prefix("\nend\n") else { return false };
        if !head.starts_with("block ") || filler.bytes().any(|byte| byte != b'-') {
            return false;
        }
        text = rest;
    }
    true
}
