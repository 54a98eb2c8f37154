//! The approval socket, and who is heard at it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use super::{TIMEOUT, begin, end, id, waiting, world};
use crate::common::{World, send_descriptor, sockets_refuse_descriptors};

fn approval_socket(world: &World, ending: &str) -> PathBuf {
    let folder = world.state().join("approvals");
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|e| e == ending)).unwrap()
}

fn say(world: &World, line: &str) -> Value {
    let mut socket = UnixStream::connect(approval_socket(world, "sock")).unwrap();
    socket.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(socket).read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap()
}

#[test]
fn the_socket_takes_no_descriptors() {
    let world = world();
    let mut child = begin(&world, &["write", "src/payments/a.ts"], "a");
    waiting(&world, 1);
    let is_refused =
        send_descriptor(&approval_socket(&world, "sock")) == Err(rustix::io::Errno::PERM);
    assert_eq!(is_refused, sockets_refuse_descriptors());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn only_who_reads_the_nonce_is_heard() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    for ending in ["sock", "nonce"] {
        let mode = std::fs::metadata(approval_socket(&world, ending)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{ending}");
    }
    let folder = std::fs::metadata(world.state().join("approvals")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let answer = json!({ "answer": { "id": asked, "answer": "once" } });
    for line in [
        json!({ "version": 1, "nonce": "", "request": answer }).to_string(),
        json!({ "version": 1, "nonce": "0".repeat(64), "request": answer }).to_string(),
        json!({ "version": 1, "request": answer }).to_string(),
        "{}".to_owned(),
        "approve".to_owned(),
        "x".repeat(10_000),
    ] {
        let reply = say(&world, &line);
        assert!(reply.get("refused").is_some(), "{line}: {reply}");
    }
    assert_eq!(waiting(&world, 1).len(), 1);
    let nonce = std::fs::read_to_string(approval_socket(&world, "nonce")).unwrap();
    let reply =
        say(&world, &json!({ "version": 1, "nonce": nonce, "request": answer }).to_string());
    assert_eq!(reply["taken"]["id"], asked.as_str(), "{reply}");
    end(child).ok();
}

#[test]
fn an_approval_socket_that_had_no_descriptor_left_hears_again() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    let gateway = Some(Pid::from_child(&child));
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    let before = prlimit(gateway, Resource::Nofile, none).unwrap();
    // The descriptor for a client is made before the client comes.
    assert!(say(&world, "{}").get("refused").is_some());
    let early = UnixStream::connect(approval_socket(&world, "sock")).unwrap();
    early.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    (&early).write_all(b"{}\n").unwrap();
    assert!((&early).read(&mut [0]).is_err(), "nobody can be let in");

    prlimit(gateway, Resource::Nofile, before).unwrap();
    early.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!((&early).read(&mut [0]).unwrap(), 1);
    world.run(&["approve", "--yes", &asked]).ok();
    end(child).ok();
}

#[test]
fn another_user_is_not_heard_even_with_the_nonce() {
    assert!(rustix::process::geteuid().is_root(), "this test changes users");
    let world = world();
    let child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    // As if every permission on the way were wrong.
    let (socket, file) = (approval_socket(&world, "sock"), approval_socket(&world, "nonce"));
    let folder = world.state().join("approvals");
    for path in [world.base(), &world.state(), &folder, &socket, &file] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let nonce = std::fs::read_to_string(approval_socket(&world, "nonce")).unwrap();
    let line = json!({ "version": 1, "nonce": nonce, "request": { "answer": { "id": asked, "answer": "once" } } });
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
        s.sendall(sys.argv[2].encode()+b'\\n')\nprint(s.makefile().readline())";
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            script,
        ])
        .arg(approval_socket(&world, "sock"))
        .arg(line.to_string())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["refused"], "only the user for whom the gateway runs may answer");
    let state = world.state();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    world.run(&["approve", "--reject", &asked]).ok();
    end(child).denied("payments");
}
