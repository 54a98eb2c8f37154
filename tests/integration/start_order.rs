//! Nothing is answered, attended or released before the `start` record is on stable storage: where
//! it cannot be written, no client got anything.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    os::unix::{fs::DirBuilderExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;

use crate::{
    common::{ALL, World, done, whole_lines},
    disk::Disk,
    scripted_agent,
};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a process could do a forbidden action.
const TEMPTATION: Duration = Duration::from_secs(1);
/// Number of attempts of a test to come between two steps of a start.
const TRIES: usize = 20;

#[track_caller]
fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "nothing came");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the kinds of the log's records, each with its gateway.
fn kinds(state: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(state.join("audit/seg-000000.jsonl")).unwrap_or_default();
    let records = whole_lines(&text).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let word = |record: &Value, field: &str| record[field].as_str().unwrap().to_owned();
    records.map(|record| (word(&record, "boot"), word(&record, "kind"))).collect()
}

fn starts(state: &Path) -> usize {
    kinds(state).iter().filter(|(_, kind)| kind == "start").count()
}

/// Checks that each gateway's first record is its start.
#[track_caller]
fn starts_come_first(state: &Path) {
    let mut seen = std::collections::BTreeSet::new();
    for (boot, kind) in kinds(state) {
        assert!(!seen.insert(boot) || kind == "start", "{kind}");
    }
    assert!(!seen.is_empty());
}

/// Checks that no reply comes on this stream.
#[track_caller]
fn is_silent(stream: &mut UnixStream) {
    stream.set_read_timeout(Some(TEMPTATION)).unwrap();
    let error = loop {
        match stream.read(&mut [0; 64]) {
            // A read with a timeout is not restarted after a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read.expect_err("somebody answered"),
        }
    };
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

/// Returns the bytes that come on this stream until it ends; a stream that is closed with unread
/// bytes is reset.
fn rest(stream: &mut UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut said = Vec::new();
    if let Err(error) = stream.read_to_end(&mut said) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    said
}

/// A small disk beneath the log of a state directory that only its owner may enter.
fn small_disk(state: &Path) -> Disk {
    fs::DirBuilder::new().mode(0o700).create(state).unwrap();
    Disk::memory(&state.join("audit"), 256)
}

/// A child that is killed when a test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A client at the approval socket of a gateway that waits for its agent: the broker, stopped, does
/// not hand one over.
fn before_the_agent(world: &World) -> (Killed, UnixStream) {
    for tried in 0..TRIES {
        let agent = ["/bin/sh", "-c", "echo released >&2; exec cat"];
        let run = Killed(scripted_agent::run(world, &["--no-mount"], &agent));
        let approval_sockets = world.state().join("approvals");
        let approval_socket: PathBuf = wait(|| {
            let mut names =
                fs::read_dir(&approval_sockets).ok()?.map(|entry| entry.unwrap().path());
            names.find(|path| path.extension().is_some_and(|extension| extension == "sock"))
        });
        signal(&run.0, Signal::STOP);
        // The gateway goes as far as it can.
        thread::sleep(TEMPTATION);
        if starts(&world.state()) == tried {
            let mut visitor = wait(|| UnixStream::connect(&approval_socket).ok());
            visitor.write_all(b"{}\n").unwrap();
            return (run, visitor);
        }
        drop(run);
        fs::remove_dir_all(approval_sockets).unwrap();
    }
    panic!("the start was always recorded before the broker could be stopped");
}

/// The approval socket listened before the start was on record.
#[test]
fn nobody_is_at_the_approval_socket_of_run_before_the_start_is_on_record() {
    let world = World::with_policy(ALL);
    let (mut run, mut visitor) = before_the_agent(&world);
    is_silent(&mut visitor);
    let before = starts(&world.state());
    signal(&run.0, Signal::CONT);
    let said = rest(&mut visitor);
    assert!(String::from_utf8(said).unwrap().contains("refused"), "the approval socket listens");
    assert_eq!(starts(&world.state()), before + 1);
    drop(run.0.stdin.take());
    assert!(run.0.wait().unwrap().success());
    starts_come_first(&world.state());
}

#[test]
fn an_agent_is_not_released_when_its_start_cannot_be_recorded() {
    let world = World::with_policy(ALL);
    let disk = small_disk(&world.state());
    let (mut run, mut visitor) = before_the_agent(&world);
    is_silent(&mut visitor);
    let before = starts(&world.state());
    disk.fill(0);
    signal(&run.0, Signal::CONT);
    assert_eq!(rest(&mut visitor), b"", "the approval socket did not listen");
    drop(run.0.stdin.take());
    let (mut output, mut errors) = (Vec::new(), String::new());
    run.0.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    run.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(1), "{errors}");
    assert_eq!(output, b"");
    assert!(!errors.contains("released"), "{errors}");
    assert_eq!(starts(&world.state()), before);
}

/// Starts a service whose log is locked by another process, once it has opened it; and a client
/// that has sent it a request.
fn before_the_service(world: &World) -> (Killed, fs::File, UnixStream) {
    let state = world.base().join("serve");
    let config = world.base().join("portcullis.toml");
    let socket = world.base().join("front");
    let text = format!("[serve]\nstate = \"{}\"\n", state.display());
    fs::write(&config, text).unwrap();
    for tried in 0..TRIES {
        let listen = format!("unix:{}", socket.display());
        let mut serve =
            world.command(&["serve", "--config", config.to_str().unwrap(), "--listen", &listen]);
        let serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let serve = Killed(serve);
        wait(|| state.join("out-of-reach").exists().then_some(()));
        let lock = fs::File::open(state.join("audit/lock")).unwrap();
        wait(|| flock(&lock, FlockOperation::NonBlockingLockExclusive).ok());
        if starts(&state) == tried {
            let mut client = wait(|| UnixStream::connect(&socket).ok());
            let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            client.write_all(request).unwrap();
            return (serve, lock, client);
        }
        drop(serve);
        fs::remove_file(state.join("out-of-reach")).unwrap();
    }
    panic!("the start was always recorded before its log could be locked");
}

/// The front answered before the service's start was on record.
#[test]
fn no_request_to_serve_is_answered_before_the_start_is_on_record() {
    let world = World::with_policy(ALL);
    let (mut serve, lock, mut client) = before_the_service(&world);
    is_silent(&mut client);
    let state = world.base().join("serve");
    let before = starts(&state);
    drop(lock);
    let answer = String::from_utf8(rest(&mut client)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(starts(&state), before + 1);
    signal(&serve.0, Signal::TERM);
    assert!(serve.0.wait().unwrap().success());
    starts_come_first(&state);
}

#[test]
fn a_service_that_cannot_record_its_start_answers_nobody() {
    let world = World::with_policy(ALL);
    let state = world.base().join("serve");
    let disk = small_disk(&state);
    let (mut serve, lock, mut client) = before_the_service(&world);
    is_silent(&mut client);
    let before = starts(&state);
    disk.fill(0);
    drop(lock);
    assert_eq!(rest(&mut client), b"");
    assert_eq!(serve.0.wait().unwrap().code(), Some(1));
    assert_eq!(starts(&state), before);
    let mut announced = String::new();
    serve.0.stdout.take().unwrap().read_to_string(&mut announced).unwrap();
    assert_eq!(announced, "", "no token, no address");
}

/// Runs a command whose input asks for something, where the log has no room left.
fn without_room(args: &[&str], input: &str) -> (World, crate::common::Done) {
    let world = World::with_policy(ALL);
    world.file("a.txt", "content");
    world.fs(&["ls"]).ok();
    // The disk that is mounted over it begins a new log.
    fs::remove_dir_all(world.state().join("keys")).unwrap();
    let disk = Disk::memory(&world.state().join("audit"), 256);
    disk.fill(0);
    let done = world.run_with_input(args, input);
    assert_eq!(starts(&world.state()), 0);
    (world, done)
}

#[test]
fn no_command_answers_when_its_start_cannot_be_recorded() {
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    for (args, input) in [
        (&["fs", "read", "a.txt"][..], ""),
        (&["fs", "ls"], ""),
        (&["fs", "write", "a.txt"], "new"),
        (&["fs", "watch"], ""),
        (&["backup", "diff", "a.txt"], ""),
        (&["mcp"], &format!("{initialize}\n")),
        (&["mcp", "--tools", "reference"], &format!("{initialize}\n")),
    ] {
        let (world, done) = without_room(args, input);
        assert_eq!(done.code, 1, "{args:?} {done:?}");
        assert_eq!(done.stdout, b"", "{args:?}");
        assert_eq!(world.read("a.txt"), "content");
    }
}

#[test]
fn every_gateway_s_first_record_is_its_start() {
    let world = World::with_policy(ALL);
    world.write("a.txt", "1").ok();
    world.fs(&["read", "a.txt"]).ok();
    world.fs(&["read", "missing.txt"]);
    world.run_with_input(&["mcp"], "").ok();
    let agent = ["/bin/sh", "-c", "exit 0"];
    let run: Command = world.command(&[&["run", "--"], &agent[..]].concat());
    done({ run }.stdin(Stdio::null()).output().unwrap()).ok();
    starts_come_first(&world.state());
}
