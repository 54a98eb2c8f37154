//! Agents and editors that misbehave, and signals in the middle of a load,
//! with the real processes of `portcullis run`.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::*;
use crate::{
    common::budget,
    scripted_agent::{self, descendants, ended, find_gateway, gone, kill, peak},
    seeded_random::Random,
};

pub(super) const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}"#;

/// Maximum resident memory of the gateway process, in KiB: the longest possible
/// line (63 MiB for the usual policies), times its copies.
const MAX_RESIDENT: u64 = 256 << 10;

fn start(world: &World, script: &str) -> Child {
    let mut child = scripted_agent::run(world, &[], &["/usr/bin/python3", "-S", "-c", script]);
    let hello = format!("{HELLO}\n");
    child.stdin.as_mut().unwrap().write_all(hello.as_bytes()).unwrap();
    child
}

/// Waits for the first line that the editor gets.
fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    let output = child.stdout.as_mut().unwrap();
    while output.read(&mut byte).unwrap() > 0 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

#[test]
fn a_gigabyte_without_a_newline_from_the_agent_is_not_kept() {
    let world = World::with_policy(POLICY);
    // Afterwards it says hello, so the connection is still served.
    let script = r#"
import json, sys
sys.stdin.readline()
block = b"x" * (1 << 20)
for _ in range(1024):
    sys.stdout.buffer.write(block)
sys.stdout.buffer.write(b'\n{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}\n')
sys.stdout.flush()
sys.stdin.read()
"#;
    let mut child = start(&world, script);
    let gateway = gateway_of_started(&child);
    let line = first_line(&mut child);
    assert!(line.contains("protocolVersion"), "{line}");
    let most = peak(gateway);
    assert!(most < MAX_RESIDENT, "{most} KiB");
    drop(child.stdin.take());
    assert!(ended(&mut child).success());
    consistency::check(&world);
    let reports = world.records().iter().filter(|r| r["result"] == "invalidInput").count();
    assert!(reports > 0, "the line is on record");
}

#[test]
fn a_gigabyte_without_a_newline_from_the_editor_is_not_kept() {
    let world = World::with_policy(POLICY);
    let script = r#"
import sys
for line in sys.stdin:
    if '"initialize"' in line:
        print('{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}', flush=True)
"#;
    let mut child = scripted_agent::run(&world, &[], &["/usr/bin/python3", "-S", "-c", script]);
    let gateway = gateway_of_started(&child);
    let mut input = child.stdin.take().unwrap();
    let writer = thread::spawn(move || {
        let block = vec![b'x'; 1 << 20];
        for _ in 0..1024 {
            input.write_all(&block).unwrap();
        }
        input.write_all(format!("\n{HELLO}\n").as_bytes()).unwrap();
        input
    });
    let mut line = first_line(&mut child);
    if !line.contains("protocolVersion") {
        // First the editor is told that its line was not one.
        assert!(line.contains("-32"), "{line}");
        line = first_line(&mut child);
    }
    assert!(line.contains("protocolVersion"), "{line}");
    let most = peak(gateway);
    assert!(most < MAX_RESIDENT, "{most} KiB");
    drop(writer.join().unwrap());
    assert!(ended(&mut child).success());
    consistency::check(&world);
}

/// Returns the gateway process of a `run` that has just been started.
fn gateway_of_started(child: &Child) -> i32 {
    let end = Instant::now() + scripted_agent::TIMEOUT;
    loop {
        let gateway = find_gateway(pid(child)).filter(|_| descendants(pid(child)).len() >= 4);
        if let Some(gateway) = gateway {
            return gateway;
        }
        assert!(Instant::now() < end, "it does not start");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_editor_that_stops_reading_holds_the_agent_back_and_leaves_nothing_behind() {
    let world = World::with_policy(POLICY);
    // Writes the number of bytes that it got rid of to a file in its own HOME,
    // and dies of a closed pipe.
    let script = r#"
import os, sys
sys.stdin.readline()
update = '{"jsonrpc":"2.0","method":"session/update","params":{"text":"' + "x" * 65000 + '"}}\n'
sent = 0
while True:
    sys.stdout.write(update)
    sent += 1
    if sent % 16 == 0:
        print(sent, file=sys.stderr, flush=True)
"#;
    let mut child = start(&world, script);
    let gateway = gateway_of_started(&child);
    let sent = Arc::new(AtomicU64::new(0));
    let (count, mut errors) = (Arc::clone(&sent), child.stderr.take().unwrap());
    let watcher = thread::spawn(move || {
        let mut reader = BufReader::new(&mut errors);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
            if let Some(number) = line.trim().strip_prefix("agent: ") {
                count.store(number.parse().unwrap_or(0), Ordering::Relaxed);
            }
            line.clear();
        }
    });
    // Until it does not get any further.
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_millis(700));
        let now = sent.load(Ordering::Relaxed);
        if now > 0 && now == before {
            break;
        }
        assert!(now < 1000, "{now} updates of 64 KiB were taken in");
        before = now;
    }
    assert!(peak(gateway) < MAX_RESIDENT, "{} KiB", peak(gateway));
    let processes = descendants(pid(&child));
    assert!(processes.len() >= 4, "{processes:?}");
    // It dies without a word, as it would if it were killed.
    drop((child.stdin.take(), child.stdout.take()));
    ended(&mut child);
    assert!(gone(&processes), "left behind: {processes:?}");
    watcher.join().unwrap();
    consistency::check(&world);
}

#[test]
fn an_agent_that_ends_takes_what_it_started_with_it() {
    let world = World::with_policy(POLICY);
    let script = r#"
import os, sys, time
sys.stdin.readline()
for session in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(0), os.close(1)
            time.sleep(600)
        time.sleep(600)
print('{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}', flush=True)
sys.stdin.readline()
sys.stdout.write('{"jsonrpc":"2.0","id":1,"resu')
sys.stdout.flush()
os._exit(3)
"#;
    let mut child = start(&world, script);
    assert!(first_line(&mut child).contains("protocolVersion"));
    let end = Instant::now() + scripted_agent::TIMEOUT;
    while descendants(pid(&child)).len() < 10 {
        assert!(Instant::now() < end, "{:?}", descendants(pid(&child)));
        thread::sleep(Duration::from_millis(5));
    }
    let processes = descendants(pid(&child));
    let params = serde_json::json!({ "cwd": world.root(), "mcpServers": [] });
    let bye = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/new\",\"params\":{params}}}\n"
    );
    child.stdin.as_mut().unwrap().write_all(bye.as_bytes()).unwrap();
    assert!(first_line(&mut child).contains("\"error\""), "the editor hears that nobody answers");
    assert_eq!(ended(&mut child).code(), Some(3));
    assert!(gone(&processes), "left behind: {processes:?}");
    consistency::check(&world);
}

/// The signal came while a write to the agent was under way, and was forgotten.
#[test]
fn a_stop_during_a_write_to_the_agent_is_not_lost() {
    let world = World::with_policy(POLICY);
    // Reads nothing for a while, and then until the gateway closes its input. On a busy machine
    // that takes longer than an agent has until it is asked to end by a signal.
    let script = r#"
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", file=sys.stderr, flush=True)
time.sleep(2)
sys.stdin.read()
"#;
    let mut child = scripted_agent::run(&world, &[], &["/usr/bin/python3", "-S", "-c", script]);
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while line != "agent: up\n" {
        line.clear();
        assert_ne!(errors.read_line(&mut line).unwrap(), 0);
    }
    let gateway = gateway_of_started(&child);
    let mut input = child.stdin.take().unwrap();
    let notice = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"x\":{:?}}}}}\n",
        "x".repeat(200_000)
    );
    input.write_all(notice.as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(700));
    kill(gateway, Signal::TERM);
    assert!(ended(&mut child).success());
    // The editor had not hung up.
    drop(input);
    consistency::check(&world);
}

/// `SIGTERM` and `SIGKILL` for broker and gateway while eight writes at a time
/// are under way.
#[test]
fn signals_in_the_middle_of_a_write_load_tear_nothing() {
    let world = World::with_policy(POLICY);
    let names: Vec<_> = (0..8).map(|number| format!("{number}.txt")).collect();
    let mut random = Random::new(77);
    let (mut receipts, mut acknowledged) = (Vec::new(), 0);
    for round in 0..8 * budget().min(10) {
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::TERM };
        let to_broker = round % 4 < 2;
        let content = |turn: u64, name: &str| {
            format!("{round} {turn} {name}\n{}end\n", "-".repeat(20_000 * (turn as usize % 3)))
        };
        let mut scripted_agent = ScriptedAgent::start(&world);
        let before: Vec<_> = names.iter().map(|name| fs::read(world.path(name)).ok()).collect();
        // More than is ever served before the signal.
        let mut prompts = Vec::new();
        for turn in 0..40 {
            let writes: Vec<_> =
                names.iter().map(|name| scripted_agent.write(name, &content(turn, name))).collect();
            prompts.push(scripted_agent.prompt(&writes).unwrap());
        }
        let broker = pid(&scripted_agent.broker);
        let processes = [vec![broker], descendants(broker)].concat();
        let victim = if to_broker { broker } else { scripted_agent.gateway() };
        // However slow the machine, some writes are made before.
        let made = Arc::new(AtomicU64::new(0));
        let killer = thread::spawn({
            let (made, enough) = (Arc::clone(&made), 6 + random.below(12));
            let delay = Duration::from_micros(random.below(50_000));
            let end = Instant::now() + scripted_agent::TIMEOUT;
            move || {
                while made.load(Ordering::Relaxed) < enough && Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(delay);
                kill(victim, signal);
            }
        });
        // The last reply that the editor got before the stream ended.
        let mut last = vec![None; names.len()];
        while let Some(message) = scripted_agent.hear() {
            let params = &message["params"];
            let Some(number) = params["number"].as_u64() else { continue };
            let turn = prompts.iter().position(|prompt| *prompt == number).unwrap() as u64;
            let place = usize::try_from(params["place"].as_u64().unwrap()).unwrap();
            if params["answer"]["error"].is_null() {
                receipts.push(receipt(&params["answer"]));
                last[place] = last[place].max(Some(turn));
                acknowledged += 1;
                made.fetch_add(1, Ordering::Relaxed);
            }
        }
        killer.join().unwrap();
        scripted_agent.wait();
        assert!(gone(&processes), "round {round}: left behind: {processes:?}");

        consistency::check(&world);
        for (place, name) in names.iter().enumerate() {
            // An answer may be lost, a write never.
            let now = fs::read(world.path(name)).ok();
            let newest = (last[place].unwrap_or(0)..40)
                .any(|turn| now.as_deref() == Some(content(turn, name).as_bytes()));
            let untouched = last[place].is_none() && now == before[place];
            assert!(newest || untouched, "round {round}, {signal:?}: {name} is torn or old");
        }
    }
    println!("{acknowledged} writes were acknowledged");
    assert!(acknowledged > 40, "only {acknowledged} writes were made");
    consistency::receipts_are_kept(&world, &receipts);
}
