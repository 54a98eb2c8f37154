//! Fields of the log's records, by kind and operation. No record has the kind `checkpoint`, which
//! is reserved.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::{Shapes, golden};
use crate::{
    acp_client::{Client, Editor},
    approvals::{begin, end, id, waiting},
    common::{ALL, World},
    proof::write_log,
    recovery::{TEMP, died_after},
    reload::{policies, replace},
};

#[test]
fn fields_of_records() {
    let mut worlds = vec![by_programs()];
    // The gateway waits only some milliseconds for the arguments of a program, which a busy machine
    // exceeds.
    while lacks_arguments(&worlds) {
        assert!(worlds.len() < 20, "a kind of record never has the arguments of the program");
        worlds.push(by_programs());
    }
    worlds.extend([by_command_line(), by_an_editors_agent(), of_repairs(), of_pruning()]);
    let mut shapes = Shapes::default();
    for record in worlds.iter().flat_map(World::records) {
        shapes.add(&heading(&record), &record);
    }
    golden("records.txt", &shapes.text());
}

fn heading(record: &Value) -> String {
    let word = |key: &str| record[key].as_str().unwrap_or_default();
    format!("{} {}", word("kind"), word("op")).trim_end().to_owned()
}

/// True if all records of a kind that name a program lack its arguments.
fn lacks_arguments(worlds: &[World]) -> bool {
    let mut kinds: BTreeMap<String, bool> = BTreeMap::new();
    for record in worlds.iter().flat_map(World::records) {
        let process = &record["facts"]["process"];
        if process.is_object() {
            *kinds.entry(heading(&record)).or_default() |= process["arguments"].is_array();
        }
    }
    kinds.values().any(|has_arguments| !has_arguments)
}

/// The operations of `portcullis fs`, an approval and a restore.
fn by_command_line() -> World {
    let world = World::with_rules(
        "[[rules]]\nid = \"closed\"\neffect = \"deny\"\npaths = [\"closed/**\"]\n\
         [[rules]]\nid = \"asked\"\neffect = \"ask\"\npaths = [\"asked/**\"]\n\
         [limits]\nfilesRemoved = 100\n",
    );
    world.file("a.txt", "key = \"AKIAIOSFODNN7EXAMPLF\"\n");
    std::os::unix::fs::symlink("a.txt", world.path("link")).unwrap();
    world.fs(&["read", "a.txt"]).ok();
    world.fs(&["read", "link"]).ok();
    world.fs(&["read", "closed/x"]).denied("closed");
    world.fs(&["read", "gone"]);
    world.write("b.txt", "one\n").ok();
    world.write("b.txt", "two\n").ok();
    world.run_with_input(&["fs", "append", "b.txt"], "three\n").ok();
    world.fs(&["edit", "b.txt", "--old", "two", "--new", "2"]).ok();
    world.fs(&["mkdir", "d"]).ok();
    world.fs(&["mv", "b.txt", "d/b.txt"]).ok();
    world.fs(&["ls", "d"]).ok();
    world.fs(&["stat", "d/b.txt"]).ok();
    world.fs(&["glob", "**"]).ok();
    world.fs(&["grep", "three"]).ok();
    world.fs(&["watch", "--timeout", "0"]).ok();
    world.fs(&["rm", "d/b.txt"]).ok();
    world.run(&["undo", "--yes"]).ok();
    let asking = begin(&world, &["write", "asked/c.txt"], "c\n");
    world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
    end(asking).ok();
    world
}

/// A session and a prompt turn of ACP, a command in the sandbox, and another policy meanwhile.
fn by_an_editors_agent() -> World {
    let policy = |version: u64| {
        let rest = ALL.strip_prefix("schema = 1\n").unwrap();
        format!("schema = 1\nversion = {version}\n{rest}[agent]\nterminal = \"allow\"\n")
    };
    let world = World::with_policy(&policy(1));
    world.file("a.txt", "a\n");
    let scripts = world.base().join("agent");
    std::fs::create_dir(&scripts).unwrap();
    let script = scripts.join("agent.py");
    std::fs::write(&script, include_str!("../acp_agent.py")).unwrap();
    let mut command = world.command(&["run", "--source", "disk", "--agent-read"]);
    command.arg(&scripts).args(["--", "/usr/bin/python3"]).arg(&script);
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = streams.spawn().unwrap();
    let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut client = Client::with(streams.0, streams.1, Editor::default());
    let session = client.session(&world.root().canonicalize().unwrap());
    let mut order = |order: &Value| {
        let turn = client.prompt(&session, &order.to_string());
        assert_eq!(turn.stop_reason, "end_turn");
    };
    order(&json!({"order": "terminals", "calls": [
        ["terminal/create", {"command": "/bin/true", "args": ["x"]}],
        ["terminal/wait_for_exit", {"terminalId": "$"}],
        ["terminal/release", {"terminalId": "$"}],
    ]}));
    replace(&world, policy(2));
    policies(&world, 1);
    replace(&world, "schema =");
    policies(&world, 2);
    let path = world.root().canonicalize().unwrap().join("a.txt");
    order(&json!({"order": "file", "method": "fs/read_text_file", "params": {"path": path}}));
    drop(client);
    assert!(child.wait().unwrap().success());
    world
}

/// Operations that only a mount has, connections before and after content of a label was read,
/// and then an import of a commit.
fn by_programs() -> World {
    let port = server();
    let world = World::with_rules(&format!(
        "[scratch]\npaths = [\"target\"]\n\
         [[labels]]\nid = \"customers\"\npaths = [\"data/**\"]\n\
         [[network.rules]]\nid = \"site\"\neffect = \"allow\"\nports = [{port}]\n\
         hosts = [\"127.0.0.1\"]\n\
         [[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nwhenRead = [\"customers\"]\n\
         hosts = [\"*\"]\n"
    ));
    world.file("data/a.csv", "alice\n");
    world.file("b.txt", "b\n");
    world.file("c.txt", "c\n");
    let exec = |script: &str| world.run(&["exec", "--quiet", "--", "sh", "-ec", script]).ok();
    let connect = format!("curl -sS --noproxy '' --max-time 60 http://127.0.0.1:{port}/");
    exec(&format!(
        "ln -s b.txt link; cat link link; chmod 600 b.txt; python3 -c '{EXCHANGE}'; {connect}"
    ));
    // The first connection has ended: content of the label would close it.
    exec(&format!("cat data/a.csv; {connect}"));
    git(&world, &["init", "-q"]);
    git(&world, &["add", "--all"]);
    git(&world, &["commit", "-qm", "first"]);
    exec("echo x >>b.txt; git commit -qam second");
    world.run(&["git", "import", "--yes"]).ok();
    world
}

/// A program of Python, because not every `mv` exchanges.
const EXCHANGE: &str = "import ctypes
assert ctypes.CDLL(None).renameat2(-100, b\"b.txt\", -100, b\"c.txt\", 2) == 0";

/// Git in the workspace, from outside, with no configuration but its own.
fn git(world: &World, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(world.root());
    command.args(["-c", "user.name=n", "-c", "user.email=n@example.org"]).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Serves one reply to each connection of HTTP, and returns its port.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
    port
}

/// An intent whose gateway died, and a line that it wrote in part.
fn of_repairs() -> World {
    let world = World::with_rules("");
    world.fs(&["ls"]).ok();
    died_after(&world, "write", "a.txt", None, None);
    world.file(TEMP, "half");
    let segment = world.state().join("audit").join(portcullis_audit::Segment(0).to_string());
    let mut log = std::fs::OpenOptions::new().append(true).open(segment).unwrap();
    log.write_all(b"{\"v\":1,").unwrap();
    world.fs(&["ls"]).ok();
    world
}

/// A log whose first segment was removed. The newest full one always stays.
fn of_pruning() -> World {
    let world = World::new();
    write_log(&world, 2 * 65_536 + 1, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).ok();
    world
}
