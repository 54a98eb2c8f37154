//! Standard error that nobody reads, and an agent that fills it.

use std::{
    io::{Read as _, Write as _},
    process::Child,
    thread,
    time::{Duration, Instant},
};

use rustix::{io::ioctl_fionread, process::Signal};

use super::{peers::HELLO, *};
use crate::{
    courier::{self, ended, kill},
    reload::{policies, policy, replace},
};

/// With what the gate puts before it, a line fills a page of the pipe.
const FLOOD: &str = r#"
import os, sys
sys.stdin.readline()
while True:
    os.write(2, b"x" * 4088 + b"\n")
"#;

/// A run whose stderr is full.
fn start(world: &World) -> Child {
    let mut child = courier::run(world, &[], &["/usr/bin/python3", "-S", "-c", FLOOD]);
    let hello = format!("{HELLO}\n");
    child.stdin.as_mut().unwrap().write_all(hello.as_bytes()).unwrap();
    let end = Instant::now() + courier::PATIENCE;
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = ioctl_fionread(child.stderr.as_ref().unwrap()).unwrap();
        if now > 32 << 10 && now == before {
            break;
        }
        before = now;
        assert!(Instant::now() < end, "{now} bytes wait to be read");
    }
    child
}

/// The thread that follows orders waited for whoever reads.
#[test]
fn a_gate_whose_stderr_nobody_reads_follows_its_orders() {
    let world = World::with_policy(&policy(1, ""));
    let mut child = start(&world);
    let pid = i32::try_from(child.id()).unwrap();
    for version in 2..5 {
        kill(pid, Signal::HUP);
        replace(&world, policy(version, ""));
        policies(&world, usize::try_from(version).unwrap() - 1);
    }
    // The agent, which never ends by itself, is asked, told and killed.
    let asked = Instant::now();
    kill(pid, Signal::TERM);
    ended(&mut child);
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    assert_eq!(world.records().last().unwrap()["kind"], "stop");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn whoever_reads_again_hears_that_messages_were_lost() {
    let world = World::with_policy(&policy(1, ""));
    let mut child = start(&world);
    replace(&world, policy(2, ""));
    policies(&world, 1);
    // Longer than the message waits for room.
    thread::sleep(Duration::from_secs(2));
    let mut errors = child.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        errors.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    replace(&world, policy(3, ""));
    policies(&world, 2);
    drop(child.stdin.take());
    ended(&mut child);
    let text = reader.join().unwrap();
    let said: Vec<_> = text.lines().filter(|line| !line.starts_with("agent: x")).collect();
    let told = said.iter().any(|line| line.contains("nobody read this for a while; 1 messages"));
    assert!(told, "{said:?}");
    assert!(said.iter().all(|line| line.starts_with("portcullis: ")), "{said:?}");
}
