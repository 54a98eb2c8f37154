//! Standard error without a reader, and an agent that fills it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::Child,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::{io::ioctl_fionread, process::Signal};
use serde_json::{Value, json};

use super::{peers::HELLO, *};
use crate::{
    reload::{policies, policy, replace},
    scripted_agent::{self, ended, kill},
};

/// A line that fills a page of the pipe with the gateway's prefix.
const FLOOD: &str = r#"
import os, sys
sys.stdin.readline()
while True:
    os.write(2, b"x" * 4088 + b"\n")
"#;

/// A run whose stderr is full.
fn start(world: &World) -> Child {
    let mut child =
        scripted_agent::run(world, &["--no-mount"], &["/usr/bin/python3", "-S", "-c", FLOOD]);
    let hello = format!("{HELLO}\n");
    child.stdin.as_mut().unwrap().write_all(hello.as_bytes()).unwrap();
    let end = Instant::now() + scripted_agent::TIMEOUT;
    let (mut before, mut same) = (0, 0);
    // An agent that is only slow to write has room left.
    while same < 8 {
        thread::sleep(Duration::from_millis(500));
        let now = ioctl_fionread(child.stderr.as_ref().unwrap()).unwrap();
        same = if now > 32 << 10 && now == before { same + 1 } else { 0 };
        before = now;
        assert!(Instant::now() < end, "{now} bytes wait to be read");
    }
    child
}

/// The thread that follows orders waited for a reader.
#[test]
fn a_gateway_whose_stderr_nobody_reads_follows_its_orders() {
    let world = World::with_policy(&policy(1, ""));
    let mut child = start(&world);
    let pid = i32::try_from(child.id()).unwrap();
    for version in 2..5 {
        kill(pid, Signal::HUP);
        replace(&world, policy(version, ""));
        policies(&world, usize::try_from(version).unwrap() - 1);
    }
    // The agent, which never ends by itself, is asked, told and killed.
    kill(pid, Signal::TERM);
    ended(&mut child);
    // One that has to be killed records no stop.
    assert_eq!(world.records().last().unwrap()["kind"], "stop");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_reader_that_returns_is_told_that_messages_were_lost() {
    let world = World::with_policy(&policy(1, ""));
    let mut child = start(&world);
    replace(&world, policy(2, ""));
    policies(&world, 1);
    // Longer than the message waits for room, once the gateway says it.
    thread::sleep(Duration::from_secs(6));
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
    let told = said
        .iter()
        .any(|line| line.contains("standard error was not read for a while; 1 messages"));
    assert!(told, "{said:?}");
    assert!(said.iter().all(|line| line.starts_with("portcullis: ")), "{said:?}");
}

/// Fills its stderr, then has the gateway's MCP server write a file that a rule
/// asks about.
const FLOOD_AND_ASK: &str = r#"
import json, os, socket, sys, threading, time

def flood():
    while True:
        os.write(2, b"x\n")

def say(to, message):
    to.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    to.flush()

for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        say(sys.stdout, {"id": asked["id"], "result": {"protocolVersion": 1}})
    elif asked.get("method") == "session/new":
        own = asked["params"]["mcpServers"][-1]
        say(sys.stdout, {"id": asked["id"], "result": {"sessionId": "s"}})
        threading.Thread(target=flood, daemon=True).start()
        time.sleep(2)
        server = socket.socket(socket.AF_UNIX)
        server.connect(own["args"][2])
        server.sendall(own["env"][0]["value"].encode() + b"\n")
        server = server.makefile("rw")
        say(server, {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
            "capabilities": {}, "clientInfo": {"name": "agent", "version": "0"}}})
        server.readline()
        say(server, {"method": "notifications/initialized"})
        say(server, {"id": 2, "method": "tools/list"})
        names = [tool["name"] for tool in json.loads(server.readline())["result"]["tools"]]
        name = next(name for name in names if name.endswith("write_file"))
        say(server, {"id": 3, "method": "tools/call",
            "params": {"name": name, "arguments": {"path": "asked.txt", "content": "x"}}})
        server.readline()
        os._exit(0)
"#;

/// It was announced past the messages of the gateway, and waited for a reader.
#[test]
fn a_question_of_an_mcp_client_reaches_the_editor_whose_stderr_nobody_reads() {
    let asks = "[[rules]]\nid = \"a\"\neffect = \"ask\"\noperations = [\"write\"]\n\
                paths = [\"asked.txt\"]\n";
    let world = World::with_policy(&policy(1, asks));
    let agent = ["/usr/bin/python3", "-S", "-c", FLOOD_AND_ASK];
    let mut child = scripted_agent::run(&world, &[], &agent);
    let mut editor = child.stdin.take().unwrap();
    let root = world.root().canonicalize().unwrap();
    let open = json!({"jsonrpc": "2.0", "id": 1, "method": "session/new",
        "params": {"cwd": root, "mcpServers": []}});
    write!(editor, "{HELLO}\n{open}\n").unwrap();
    let (sender, lines) = mpsc::channel();
    let output = BufReader::new(child.stdout.take().unwrap());
    thread::spawn(move || {
        output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let question = loop {
        let line = lines.recv_timeout(scripted_agent::TIMEOUT).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let answer = json!({"jsonrpc": "2.0", "id": question["id"],
        "result": {"outcome": {"outcome": "selected", "optionId": "once"}}});
    writeln!(editor, "{answer}").unwrap();
    ended(&mut child);
    assert_eq!(std::fs::read_to_string(root.join("asked.txt")).unwrap(), "x");
    assert_eq!(world.records().last().unwrap()["kind"], "stop");
}

/// Keeps a pipe of its own locked, and does not leave.
const LOCK: &str = r#"
import ctypes, os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.readline()
libc, (nobody, _kept) = ctypes.CDLL(None), socket.socketpair()
pipe = os.open("/proc/self/fd/" + sys.argv[1], os.O_WRONLY)
print(file=sys.stderr, flush=True)
libc.splice(nobody.fileno(), None, pipe, None, ctypes.c_size_t(4096), 0)
libc.sendfile(pipe, nobody.fileno(), None, ctypes.c_size_t(4096))
while True:
    time.sleep(60)
"#;

/// The gateway waited for the lock in the kernel, where nothing ends a process.
#[test]
fn an_agent_that_keeps_its_streams_locked_holds_nobody_up() {
    for stream in ["0", "1", "2"] {
        let world = World::with_policy(&policy(1, ""));
        let agent = ["/usr/bin/python3", "-S", "-c", LOCK, stream];
        let mut child = scripted_agent::run(&world, &[], &agent);
        let mut editor = child.stdin.take().unwrap();
        writeln!(editor, "{HELLO}").unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while line != "agent: \n" {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0);
        }
        thread::sleep(Duration::from_millis(200));
        drop(editor);
        ended(&mut child);
        assert_eq!(world.records().last().unwrap()["kind"], "stop", "{stream}");
    }
}
