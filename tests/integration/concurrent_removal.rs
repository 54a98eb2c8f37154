//! One gateway removes a directory while another one writes into it. A file
//! that was reported as stored is in the workspace or in the backup store: a
//! file that was put into a directory which the other gateway had compared with
//! the backup store a moment before was removed with it.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use portcullis::{
    gateway::{Client, ErrorKind, Gateway},
    model::{WorkspacePath, request::Remove},
};
use portcullis_audit::Hash;
use rustix::process::Signal;

use crate::{
    acp_rig,
    common::{Stop, World},
    consistency,
    crash::POLICY,
    crash_race::{hash_backup_store, hash_files},
    scripted_agent::{self, ScriptedAgent},
    seeded_random::Random,
};

/// Number of times that the writing gateway is stopped for a moment, at any
/// point.
const STOPS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(3);

fn content(number: u64) -> String {
    format!("stored {number}\n")
}

/// Writes, four at a time, until stopped; returns the numbers of the stored
/// ones.
fn write(mut scripted_agent: ScriptedAgent, stop: &AtomicBool, written: &AtomicUsize) -> Vec<u64> {
    let mut stored = Vec::new();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let numbers = round * 4..round * 4 + 4;
        let write =
            |number| scripted_agent.write(&format!("d/deep/k{}", number % 5), &content(number));
        let requests: Vec<_> = numbers.clone().map(write).collect();
        for (number, answer) in numbers.zip(scripted_agent.ask_all(&requests)) {
            match answer["error"]["code"].as_i64() {
                None => {
                    stored.push(number);
                    written.fetch_add(1, Ordering::Relaxed);
                }
                Some(-32002) => {}
                Some(_) => assert_eq!(scripted_agent::failure(&answer).0, "conflict", "{answer}"),
            }
        }
    }
    let (status, said) = scripted_agent.end();
    assert!(status.success(), "{status} {said}");
    stored
}

/// Removes the files until stopped; counts the successes.
fn remove(gateway: &Gateway, stop: &AtomicBool, removed: &AtomicUsize) {
    let path = WorkspacePath::parse("d").unwrap();
    let request = Remove { path, recursive: true };
    while !stop.load(Ordering::Relaxed) {
        match gateway.handle(&acp_rig::connection(), &request, Client::default()) {
            Ok(_) => {
                removed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let expected = [ErrorKind::Conflict, ErrorKind::NotFound];
                assert!(expected.contains(&error.kind()), "{error}");
            }
        }
    }
}

#[test]
fn what_one_gateway_stored_does_not_go_with_a_directory_that_another_one_removes() {
    let world = World::in_memory(POLICY);
    let scripted_agent = ScriptedAgent::start(&world);
    let writer = scripted_agent.gateway();
    let gateway = acp_rig::gateway_under(POLICY, &world.root(), world.base());
    let stop = AtomicBool::new(false);
    let (written, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let was_a_race = || {
        let [written, removed] = [&written, &removed].map(|count| count.load(Ordering::Relaxed));
        written > STOPS / 20 && removed > STOPS / 50
    };
    let end = Instant::now() + 2 * scripted_agent::TIMEOUT;
    let stored = thread::scope(|scope| {
        let writing = scope.spawn(|| write(scripted_agent, &stop, &written));
        scope.spawn(|| remove(&gateway, &stop, &removed));
        let (over, mut random) = (Stop(&stop), Random::new(11));
        let mut stops = 0;
        // However slow the machine, both get some done.
        while stops < STOPS || (!was_a_race() && Instant::now() < end) {
            stops += 1;
            thread::sleep(Duration::from_micros(random.below(2000)));
            scripted_agent::kill(writer, Signal::STOP);
            thread::sleep(PAUSE);
            scripted_agent::kill(writer, Signal::CONT);
        }
        drop(over);
        writing.join().unwrap()
    });
    drop(gateway);
    assert!(was_a_race(), "{written:?} {removed:?}");
    consistency::check(&world);
    let mut kept = HashSet::new();
    hash_files(&world.root(), &mut kept);
    hash_backup_store(&world.state(), &mut kept);
    let is_kept = |number: &u64| kept.contains(&Hash::of(content(*number).as_bytes()));
    let lost: Vec<_> = stored.iter().filter(|number| !is_kept(number)).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), stored.len());
}
