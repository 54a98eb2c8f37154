//! Floods, sides that stop reading, and every way a connection ends.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use portcullis::acp::ClosedBy;

use super::*;

#[test]
fn an_over_long_line_is_dropped_while_it_streams_and_its_sender_told() {
    let mut rig = Rig::ready(no_fs(), |config| config.max_line = 1 << 20);
    let head = format!(
        r#"{{"jsonrpc":"2.0","id":77,"method":"fs/write_text_file","params":{{"sessionId":"s1","path":{:?},"content":""#,
        rig.path("big.txt")
    );
    rig.agent.bytes(head.as_bytes());
    let before = resident();
    let block = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        rig.agent.bytes(&block);
    }
    // Other tests run in this process too, hence the wide margin.
    assert!(resident() < before + 512 * 1024, "a gigabyte was kept");
    rig.agent.say("\"}}");
    let answer = rig.agent.hear();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(77), &json!(-32600)));
    assert!(!rig.root.join("big.txt").exists());
    rig.agent.send(&rig.read(78, "a.txt"));
    assert_eq!(rig.agent.hear()["id"], 78);
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_editor_that_does_not_read_slows_the_agent_down_and_still_reaches_it() {
    let mut rig = served();
    // From here on the editor reads nothing.
    rig.editor.stop_reading();
    let update = notification("session/update", json!({"text": "x".repeat(64 * 1024)}));
    let update = format!("{update}\n");
    let sent = Arc::new(AtomicUsize::new(0));
    let (mut input, count) = (rig.agent.take_input(), Arc::clone(&sent));
    let flood = thread::spawn(move || {
        while input.write_all(update.as_bytes()).is_ok() {
            count.fetch_add(update.len(), Ordering::Relaxed);
        }
    });
    thread::sleep(Duration::from_millis(500));
    let taken = sent.load(Ordering::Relaxed);
    assert!(taken < 16 << 20, "{taken} bytes were taken in");
    // The other direction is free.
    rig.editor.send(&notification("hello", json!({})));
    assert_eq!(rig.agent.hear()["method"], "hello");
    rig.editor.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Editor);
    flood.join().unwrap();
}

#[test]
fn an_agent_that_asks_and_never_reads_is_held_back_and_let_go_of() {
    let mut rig = served();
    rig.agent.stop_reading();
    let read = rig.read(1, "a.txt").to_string() + "\n";
    let sent = Arc::new(AtomicUsize::new(0));
    let (mut input, count) = (rig.agent.take_input(), Arc::clone(&sent));
    let flood = thread::spawn(move || {
        for id in 1000.. {
            let line = read.replacen("\"id\":1", &format!("\"id\":{id}"), 1);
            if input.write_all(line.as_bytes()).is_err() {
                return;
            }
            count.fetch_add(line.len(), Ordering::Relaxed);
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = sent.load(Ordering::Relaxed);
        if now == before {
            break;
        }
        before = now;
        assert!(now < 64 << 20 && Instant::now() < end, "{now} bytes of requests were taken in");
    }
    rig.editor.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Editor);
    flood.join().unwrap();
}

#[test]
fn an_editor_that_goes_while_the_agent_does_not_read_is_noticed() {
    let mut rig = served();
    fs::write(rig.root.join("big.txt"), "x\n".repeat(5 << 19)).unwrap();
    rig.agent.stop_reading();
    // A finished read, one whose reply is being written, one that waits for
    // that, and one that waits for room.
    for id in 100..104 {
        let read = rig.read(id, "big.txt");
        rig.agent.send(&read);
    }
    let end = Instant::now() + Duration::from_secs(60);
    while rig.log().matches("big.txt").count() < 4 {
        assert!(Instant::now() < end, "{}", rig.log());
        thread::sleep(Duration::from_millis(10));
    }
    rig.editor.send(&notification("hello", json!({})));
    rig.editor.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Editor);
}

#[test]
fn an_agent_that_goes_while_the_editor_does_not_read_is_noticed() {
    let mut rig = served();
    rig.editor.stop_reading();
    let update = notification("session/update", json!({"text": "x".repeat(5 << 20)}));
    for _ in 0..4 {
        rig.agent.send(&update);
    }
    rig.agent.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Agent);
}

/// Each cost its sender two bytes and the log five hundred.
#[test]
fn an_agent_that_sends_rubbish_is_slowed_down_and_all_of_it_is_recorded() {
    const LINES: usize = 6000;
    let mut rig = served();
    let started = Instant::now();
    rig.agent.bytes("x\n".repeat(LINES).as_bytes());
    let recorded = |rig: &Rig| rig.log().matches("acp.dropped").count();
    while recorded(&rig) < 2000 {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", recorded(&rig));
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(500));
    // More may come while the log is read.
    let (heard, passed) = (recorded(&rig), started.elapsed());
    let most = 2001 + passed.as_millis() as usize / 5;
    assert!(heard <= most, "{heard} of {most}");
    // The remaining messages of an agent that is gone are read at once, and not
    // at that rate.
    let ending = Instant::now();
    rig.agent.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Agent);
    let slowed = Duration::from_millis(5) * (LINES - heard).try_into().unwrap();
    assert!(ending.elapsed() < slowed, "{:?} of {slowed:?}", ending.elapsed());
    assert_eq!(recorded(&rig), LINES);
}

#[test]
fn five_thousand_requests_at_once_are_all_answered() {
    let mut rig = served();
    let read = rig.read(1, "a.txt").to_string() + "\n";
    let mut input = rig.agent.take_input();
    let flood = thread::spawn(move || {
        for id in 1000..6000 {
            let line = read.replacen("\"id\":1", &format!("\"id\":{id}"), 1);
            input.write_all(line.as_bytes()).unwrap();
        }
        input
    });
    let mut ids = BTreeSet::new();
    for _ in 0..5000 {
        let answer = rig.agent.hear();
        assert!(answer["result"].is_object(), "{answer}");
        ids.insert(answer["id"].as_i64().unwrap());
    }
    assert_eq!(ids.len(), 5000);
    drop(flood.join().unwrap());
    assert_eq!(rig.ending(), ClosedBy::Agent);
}

#[test]
fn when_the_editor_goes_the_agent_is_told_by_the_end_of_its_input() {
    let mut rig = Rig::ready(no_fs(), |config| config.grace = Duration::from_secs(60));
    rig.editor.hang_up();
    rig.agent.hears_the_end();
    rig.agent.send(&rig.write(10, "late.txt", "x"));
    rig.agent.send(&notification("session/update", json!({"last": true})));
    assert_eq!(rig.editor.hear()["params"]["last"], true);
    rig.agent.hang_up();
    rig.editor.hears_the_end();
    assert_eq!(rig.ending(), ClosedBy::Editor);
    assert!(!rig.root.join("late.txt").exists());
}

#[test]
fn when_the_editor_goes_and_the_agent_stays_serve_returns_nevertheless() {
    let mut rig = Rig::ready(no_fs(), |config| config.grace = Duration::from_millis(200));
    rig.editor.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Editor);
}

#[test]
fn when_the_agent_goes_the_editor_is_told_about_what_it_waits_for() {
    let mut rig = served();
    rig.editor.send(&request("turn", "session/prompt", json!({})));
    rig.agent.hear();
    rig.agent.bytes(b"{\"jsonrpc\":\"2.0\",\"id\":\"turn\",\"result\":{\"stopRea");
    rig.agent.hang_up();
    let told = rig.editor.hear();
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!("turn"), &json!(-32603)));
    rig.editor.hears_the_end();
    assert_eq!(rig.ending(), ClosedBy::Agent);
    assert!(rig.log().contains("in the middle of a line"));
}

#[test]
fn what_is_under_way_when_the_editor_goes_is_finished_and_answered() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.read(10, "a.txt"));
    rig.editor.hear();
    rig.editor.hang_up();
    // It waited for an editor that is gone, so it fails, and at once.
    let start = Instant::now();
    let answer = rig.agent.hear();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(10), &json!(-32603)));
    rig.agent.hears_the_end();
    rig.agent.hang_up();
    assert_eq!(rig.ending(), ClosedBy::Editor);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_process_that_dies_in_the_middle_of_a_line_ends_the_connection() {
    let (dir, root) = workspace();
    let gateway = gateway(&root, dir.path());
    let config = Config::new(connection(), root);
    let mut agent = Command::new("/bin/sh")
        .args(["-c", r#"read line; printf '{"jsonrpc":"2.0","method":"session/update","params":{}}\n{"json'; kill -9 $$"#])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (from_editor, mut editor_in) = std::io::pipe().unwrap();
    let (mut editor_out, to_editor) = std::io::pipe().unwrap();
    let streams = (agent.stdout.take().unwrap(), agent.stdin.take().unwrap());
    thread::scope(|scope| {
        let served =
            scope.spawn(|| acp::serve(&gateway, &config, (from_editor, to_editor), streams));
        editor_in
            .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/prompt\"}\n")
            .unwrap();
        let mut heard = String::new();
        std::io::Read::read_to_string(&mut editor_out, &mut heard).unwrap();
        let lines: Vec<_> = heard.lines().collect();
        assert_eq!(lines.len(), 2, "{heard}");
        assert_eq!(lines[0], r#"{"jsonrpc":"2.0","method":"session/update","params":{}}"#);
        assert!(lines[1].contains("the agent has ended"));
        assert_eq!(served.join().unwrap().unwrap(), ClosedBy::Agent);
    });
    agent.wait().unwrap();
}
