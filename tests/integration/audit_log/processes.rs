//! Gateways that die, and gateways that work at the same time.

use std::sync::Arc;

use portcullis::{
    gateway::{Gateway, Workspace},
    model::{Session, Transport},
    policy::{PolicySource, SecretKey, compile},
};
use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::acp_rig;

/// Starts a process that appends until it is killed, or `turns` times, and
/// prints the receipts that it got.
fn driver(state: &State, turns: usize) -> Child {
    example("log_writer")
        .arg(state.0.path())
        .arg(turns.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the receipts that the process printed completely.
fn receipts(output: ChildStdout) -> Vec<Receipt> {
    let mut output = BufReader::new(output);
    let mut receipts = Vec::new();
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if let Some(json) = line.strip_suffix('\n').and_then(|line| line.split_once("receipt ")) {
            receipts.push(serde_json::from_str(json.1).unwrap());
        }
        line.clear();
    }
    receipts
}

/// Starts and stops a gateway, which settles what the dead ones left.
fn recover(state: &State) {
    let (gateway, session) = opened(state);
    gateway.stop(&session).unwrap();
}

fn opened(state: &State) -> (Gateway, Session) {
    let root = TempDir::new().unwrap();
    let policy = compile(&PolicySource::from_text("test.toml", acp_rig::POLICY)).unwrap();
    let (workspace, policy) = (Workspace::open(root.path()).unwrap(), Arc::new(policy));
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    let gateway = Gateway::open(workspace, policy, state.open(), &state.dir(), key).unwrap();
    let (id, agent) = ("0".repeat(32), "agent".parse().unwrap());
    let session =
        Session { id, agent, user: "user".to_owned(), transport: Transport::Cli, acp: None };
    (gateway, session)
}

/// A thread that did not end kept the gateway from recording its stop.
#[test]
fn a_gateway_that_others_still_have_records_its_stop_and_nothing_after_it() {
    let state = State::new();
    let (gateway, session) = opened(&state);
    let gateway = Arc::new(gateway);
    let other = Arc::clone(&gateway);
    gateway.note(&session, "test", [].into()).unwrap();
    gateway.stop_shared(&session).unwrap();
    other.note(&session, "test", [].into()).unwrap_err();
    drop((gateway, other));
    recover(&state);
    let report = state.whole(&[]);
    assert_eq!(report.records, 3);
    assert_eq!(report.warnings, []);
}

#[test]
fn processes_share_one_chain() {
    let state = State::new();
    let mut children: Vec<_> = (0..4).map(|_| driver(&state, 40)).collect();
    let mut all = Vec::new();
    for child in &mut children {
        all.extend(receipts(child.stdout.take().unwrap()));
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(all.len(), 4 * 3 * 40 * 3);
    let report = state.whole(&all);
    assert_eq!(report.records, all.len() as u64 + 4);
    assert_eq!(report.warnings, []);
}

#[test]
fn killed_writers_leave_a_whole_chain_with_all_they_had_promised() {
    let state = State::new();
    let mut promised = Vec::new();
    for round in 0..60 {
        let mut children = [driver(&state, usize::MAX), driver(&state, usize::MAX)];
        let outputs = children.each_mut().map(|child| child.stdout.take().unwrap());
        // Both append by then, however long they took to start.
        for output in &outputs {
            poll(&mut [PollFd::new(output, PollFlags::IN)], None).unwrap();
        }
        let readers: Vec<_> =
            outputs.into_iter().map(|output| thread::spawn(move || receipts(output))).collect();
        thread::sleep(Duration::from_millis(15 + round * 7 % 40));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        promised.extend(readers.into_iter().flat_map(|reader| reader.join().unwrap()));

        recover(&state);
        assert_eq!(state.locks(), 0);
    }
    let report = state.whole(&promised);
    assert!(report.warnings.iter().all(|warning| warning.kind.as_str() == "quarantine"));
    let torn = state.records().iter().filter(|record| record.draft.facts.is_some()).count();
    // Their number depends on other work of the machine.
    assert!(promised.len() > 60, "only {} receipts", promised.len());
    let recovered = report.kinds.get("recovered").copied().unwrap_or(0);
    assert!(recovered > 0, "no kill left an intent behind");
    println!("{} promised, {torn} torn, {recovered} recovered", promised.len());
}
