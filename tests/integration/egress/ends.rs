//! How connections, and the processes that carry them, end.

use std::{path::PathBuf, time::Duration};

use super::*;

/// Waits until something is there.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1200 {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(25));
    }
    panic!("it did not come");
}

/// The process of that command that `ancestor` or what it started has started.
fn process(command: &str, ancestor: u32) -> u32 {
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
    let found = numbers.find(|number: &u32| {
        let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes()) && descends(*number)
    });
    found.unwrap_or_else(|| panic!("no {command}"))
}

fn kill(number: u32) {
    let number = rustix::process::Pid::from_raw(number.cast_signed()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
}

impl Net {
    /// A program that holds a tunnel open, and goes on when the second file is there.
    fn waiting(&self, server: &Server) -> (Child, PathBuf) {
        let child = self.start_client("wait", &[server.port]);
        eventually(|| self.world.path("ready").exists().then_some(()));
        eventually(|| server.seen().first().filter(|seen| !seen.is_empty()).map(drop));
        (child, self.world.path("go"))
    }
}

#[test]
fn a_killed_connector_opens_nothing_and_ends_nothing() {
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
    kill(process("connector-process", child.id()));
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the connector ended"), "{stderr}");
    assert_eq!(reported(output), json!({ "ended": false, "then": 502 }));
    // The program was gone before it had read all.
    let last = net.connects().pop().unwrap();
    assert_eq!(
        (&last["kind"], &last["counts"]["bytesOut"]),
        (&json!("outcome"), &json!(server.lengths()[0]))
    );
}

#[test]
fn a_killed_egress_process_ends_all_and_programs_are_refused() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, go) = net.waiting(&server);
    kill(process("egress-process", child.id()));
    eventually(|| net.connects().pop().filter(|record| record["kind"] == "outcome"));
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the egress process ended"), "{stderr}");
    assert_eq!(reported(output), json!({ "ended": true, "then": "ConnectionRefusedError" }));
    let last = net.connects().pop().unwrap();
    assert_eq!((&last["kind"], &last["result"]), (&json!("outcome"), &json!("reset")));
}

/// The process that holds its connections is killed with it, and says nothing.
#[test]
fn an_agent_that_is_killed_leaves_an_end_for_each_connection() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let (child, _) = net.waiting(&server);
    let agent = process("client.py", child.id());
    kill(agent);
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
    assert_eq!(found["then"], 503, "{output:?}");
    let intents = net.connects().into_iter().filter(|record| record["kind"] == "intent").count();
    assert_eq!(server.seen().len(), intents);
}
