//! `effect = "ask"`: requests that wait for an approval, and their approvers.

mod binding;
mod buffers;
mod editor;
mod notifications;
mod question;
mod secrets;
mod shell;
mod socket;
pub(crate) mod terminal;

use std::{
    io::Write as _,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::common::{Done, World, done};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const POLICY: &str = r#"schema = 1
name = "asks"
version = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["src/**"]
remove = ["src/**"]
[limits]
approvalTimeout = "10m"
[files]
maxWriteSize = "1KiB"
[[rules]]
id = "payments"
effect = "ask"
operations = ["write", "remove", "rename"]
paths = ["src/payments/**"]
reason = "changes to payments need a person"
[[rules]]
id = "vault"
effect = "ask"
operations = ["read"]
paths = ["src/vault/**"]
[[rules]]
id = "frozen"
effect = "deny"
operations = ["write"]
paths = ["src/payments/frozen/**"]
"#;

pub(crate) fn world() -> World {
    let world = World::with_policy(POLICY);
    world.file("src/payments/card.ts", "one\ntwo\n");
    world.file("src/vault/a.txt", "treasure\n");
    world.file("src/a.ts", "a\n");
    world
}

/// `portcullis fs ARGS…`, left running.
pub(crate) fn begin(world: &World, args: &[&str], input: &str) -> Child {
    let mut child = world
        .command(&[&["fs"], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child
}

pub(crate) fn end(child: Child) -> Done {
    done(child.wait_with_output().unwrap())
}

/// Returns the waiting requests, once there are `count`.
#[track_caller]
pub(crate) fn waiting(world: &World, count: usize) -> Vec<Value> {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let list = world.run(&["approve", "--list", "--json"]).ok().json();
        let list = list["waiting"].as_array().unwrap().clone();
        if list.len() == count {
            return list;
        }
        assert!(Instant::now() < give_up, "{list:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until what `asked` was about is asked about again, as something else.
#[track_caller]
fn next_question(world: &World, asked: &Value) -> Value {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let again = waiting(world, 1).remove(0);
        if again["id"] != asked["id"] {
            return again;
        }
        assert!(Instant::now() < give_up, "{again:?}");
    }
}

/// The same, and rejects it.
#[track_caller]
pub(crate) fn asked_again(world: &World, asked: &Value) -> Value {
    let again = next_question(world, asked);
    world.run(&["approve", "--reject", &id(&again)]).ok();
    again
}

#[track_caller]
pub(crate) fn id(waiting: &Value) -> String {
    waiting["id"].as_str().unwrap().to_owned()
}

pub(crate) fn kinds(world: &World, kind: &str) -> Vec<Value> {
    world.records().into_iter().filter(|record| record["kind"] == kind).collect()
}

/// No request could be seen, approved or rejected while one gateway of the workspace was stopped.
#[test]
fn a_gateway_that_does_not_answer_hid_the_requests_of_others() {
    let world = world();
    let stopped = begin(&world, &["rm", "src/payments/card.ts"], "");
    let hidden = id(&waiting(&world, 1)[0]);
    let pid = rustix::process::Pid::from_child(&stopped);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let other = begin(&world, &["write", "src/payments/new.ts"], "x\n");
    let shown = waiting(&world, 1);
    assert_ne!(id(&shown[0]), hidden);
    let approved = world.run(&["approve", "--yes", &id(&shown[0])]).ok();
    assert!(approved.stderr.contains("does not answer"), "{approved:?}");
    end(other).ok();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    world.run(&["approve", "--yes", &hidden]).ok();
    end(stopped).ok();
}
