//! The end of connections, and of the processes that carry them.

use std::{
    io::{BufRead as _, BufReader},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::common::ticks;

/// Waits until something is there.
pub(super) fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2400 {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(25));
    }
    panic!("it did not come");
}

/// The process of that command that `ancestor` or what it started has started, if there is one.
fn find(command: &str, ancestor: u32) -> Option<u32> {
    let parent = |process: u32| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse::<u32>().ok()
    };
    let descends = |mut process: u32| {
        while process != ancestor {
            match parent(process) {
                Some(next @ 1..) => process = next,
                _ => return false,
            }
        }
        true
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|number: &u32| {
        let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes()) && descends(*number)
    })
}

pub(super) fn process(command: &str, ancestor: u32) -> u32 {
    find(command, ancestor).unwrap_or_else(|| panic!("no {command}"))
}

fn signal(number: u32, signal: Signal) {
    kill_process(Pid::from_raw(number.cast_signed()).unwrap(), signal).unwrap();
}

impl Net {
    /// Starts a program that keeps a tunnel open, and goes on when the second file is there.
    fn waiting(&self, server: &Server) -> (Child, PathBuf) {
        let child = self.start_client("wait", &[server.port]);
        eventually(|| self.world.path("ready").exists().then_some(()));
        eventually(|| server.seen().first().filter(|seen| !seen.is_empty()).map(drop));
        (child, self.world.path("go"))
    }

    /// Kills a process of egress so many times, and waits until the log says what became of it.
    pub(super) fn kill(&self, command: &str, child: &Child, times: usize) -> Vec<Value> {
        let noted = || {
            let records = self.world.records().into_iter();
            records.filter(|record| record["op"] == "egress").collect::<Vec<_>>()
        };
        for time in 1..=times {
            signal(eventually(|| find(command, child.id())), Signal::KILL);
            eventually(|| (noted().len() == time).then_some(()));
        }
        noted().into_iter().map(|record| record["facts"].clone()).collect()
    }
}

#[test]
fn a_killed_connector_ends_nothing_and_is_started_again() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    for command in ["connector-process", "egress-process"] {
        let status = process(command, child.id());
        let status = std::fs::read_to_string(format!("/proc/{status}/status")).unwrap();
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
            assert!(status.contains(line), "{command}: {status}");
        }
    }
    let noted = net.kill("connector-process", &child, 1);
    assert_eq!(noted, [json!({ "process": "connector", "restarted": true })]);
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the connector ended, and is started again"), "{stderr}");
    assert_eq!(reported(output), json!({ "ended": false, "then": 200 }));
}

/// One that an agent can make end would be tried again without end.
#[test]
fn a_connector_that_keeps_ending_opens_nothing_any_more() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    let noted = net.kill("connector-process", &child, 4);
    let restarted: Vec<_> = noted.iter().map(|facts| &facts["restarted"]).collect();
    assert_eq!(restarted, [true, true, true, false]);
    assert_eq!(find("connector-process", child.id()), None);
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the connector ended, and is not started again"), "{stderr}");
    assert!(stderr.contains("reach no further host in this session; start a new one"), "{stderr}");
    assert_eq!(reported(output), json!({ "ended": false, "then": 502 }));
    // The program was gone before it had read all.
    let last = net.connects().pop().unwrap();
    assert_eq!(
        (&last["kind"], &last["counts"]["bytesOut"]),
        (&json!("outcome"), &json!(server.lengths()[0]))
    );
}

#[test]
fn a_killed_egress_process_ends_its_connections_and_is_started_again() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    let noted = net.kill("egress-process", &child, 1);
    assert_eq!(noted, [json!({ "process": "egress process", "restarted": true })]);
    let end = eventually(|| net.connects().pop().filter(|record| record["kind"] == "outcome"));
    assert_eq!(end["result"], "reset");
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(reported(output), json!({ "ended": true, "then": 200 }));
}

#[test]
fn an_egress_process_that_keeps_ending_leaves_nothing_to_connect_to() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    let noted = net.kill("egress-process", &child, 4);
    let restarted: Vec<_> = noted.iter().map(|facts| &facts["restarted"]).collect();
    assert_eq!(restarted, [true, true, true, false]);
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the egress process ended, and is not started again"), "{stderr}");
    assert_eq!(reported(output), json!({ "ended": true, "then": "ConnectionRefusedError" }));
}

#[test]
fn a_server_that_has_said_all_still_hears_the_program() {
    let server = Server::start(|stream, seen| {
        if !seen.ends_with(b"late") {
            let _ = stream.write_all(b"all");
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    let net = Net::new(server.port, "");
    assert_eq!(net.client("half", &[server.port]), json!({ "got": "all" }));
    eventually(|| server.seen()[0].ends_with("late").then_some(()));
    let last = net.connects().pop().unwrap();
    let counted = (&last["result"], &last["counts"]["bytesIn"], &last["counts"]["bytesOut"]);
    assert_eq!(counted, (&json!("ok"), &json!(3), &json!(server.lengths()[0])));
}

#[test]
fn a_policy_that_denies_a_host_ends_what_is_open_to_it() {
    let server = Server::echo();
    let mut net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    let denial =
        "[[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nhosts = [\"site.example\"]\n";
    let later = policy(server.port, denial).replace("schema = 1\n", "schema = 1\nversion = 1\n");
    net.world.set_policy(&later);
    let end = eventually(|| net.connects().pop().filter(|record| record["kind"] == "outcome"));
    assert_eq!((&end["result"], &end["rule"]), (&json!("denied"), &json!("closed")));
    // The program hears of it when its end is on record, or a moment later.
    net.world.file("ends", "");
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(reported(output), json!({ "ended": true, "then": 403 }));
}

/// The connector may read the file that was there, not the one that took its place.
#[test]
fn names_are_looked_up_in_a_file_that_took_the_place_of_another_one() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let etc = net.own_etc();
    let number = server.port.to_string();
    let mut command = net.command(&[], &["/usr/bin/python3", "client.py", "wait", &number]);
    command.env("ETC", &etc);
    let child = command.spawn().unwrap();
    eventually(|| net.world.path("ready").exists().then_some(()));
    std::fs::write(etc.join("new"), HOSTS).unwrap();
    std::fs::rename(etc.join("new"), etc.join("hosts")).unwrap();
    eventually(|| net.world.records().into_iter().find(|record| record["op"] == "egress"));
    std::fs::write(net.world.path("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(reported(output), json!({ "ended": false, "then": 200 }));
}

/// The process that holds its connections is killed with it, and says nothing.
#[test]
fn an_agent_that_is_killed_leaves_an_end_for_each_connection() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, _) = net.waiting(&server);
    let agent = process("client.py", child.id());
    signal(agent, Signal::KILL);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(137));
    let records = net.connects();
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["decision", "intent", "outcome"]);
    assert!(records[2]["counts"]["bytesOut"].as_u64().unwrap() > 100);
}

/// A full disk must not let anything out that nobody can look up later.
#[test]
fn a_log_that_cannot_be_written_lets_nothing_out() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let state = crate::disk::Disk::memory(&net.world.state(), 4096);
    let (child, go) = net.waiting(&server);
    state.fill(0);
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = (&found["ended"], &found["then"], &found["at last"]);
    // Open connections went on for ever.
    assert_eq!(said, (&json!(false), &json!(503), &json!(true)), "{output:?}");
    let intents = net.connects().into_iter().filter(|record| record["kind"] == "intent").count();
    assert_eq!(server.seen().len(), intents);
}

/// An agent that ends when it is told to.
const WAITS: &str = "import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print('ready', flush=True)
signal.pause()";

#[test]
fn the_broker_polled_without_a_pause_once_the_agent_had_ended() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    net.world.file("waits.py", WAITS);
    let mut child = net.command(&[], &["/usr/bin/python3", "waits.py"]).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    // A gateway process that takes long to end.
    let gateway = process("gateway-process", child.id());
    signal(gateway, Signal::STOP);
    signal(process("waits.py", child.id()), Signal::TERM);
    eventually(|| find("waits.py", child.id()).is_none().then_some(()));
    thread::sleep(Duration::from_millis(1500));
    let before = ticks(child.id());
    thread::sleep(Duration::from_secs(1));
    let taken = ticks(child.id()) - before;
    signal(gateway, Signal::CONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(taken < 5, "{taken}");
}
