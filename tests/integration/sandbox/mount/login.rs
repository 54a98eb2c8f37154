//! `portcullis login`: an agent's own login, which sees nothing of the workspace.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Instant,
};

use rustix::process::{Resource, Rlimit, prlimit};

use super::{shell::Operator, *};
use crate::common::ticks;

/// Prints the files that it sees, and stores a file as a login would.
const LOGIN: &str = r#"
test -t 0 && echo terminal; ls -A . | wc -l; cat "$0/ws/file.txt"; echo key >~/credentials
python3 -c '
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
print("called back")'
exit 3
"#;

/// Asks the proxy for each host, and shows the status.
const CONNECT: &str = r#"
import socket, sys
for to in sys.argv[1:]:
    proxy = socket.create_connection(("127.0.0.1", 3128))
    proxy.sendall(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
    print(proxy.recv(99).split()[1].decode())"#;

#[test]
fn a_login_stores_credentials_in_the_agents_home_and_sees_no_file() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let base = world.base().to_str().unwrap().to_owned();
        let args = ["--agent", "coder", "--", "sh", "-c", LOGIN, &base];
        let mut operator = world.on_terminal("login", &args, &[]);
        assert_eq!(operator.ends(), 3, "{who:?} {:?}", operator.text());
        let text = operator.text();
        for line in ["terminal", "0", "called back"] {
            assert!(text.lines().any(|shown| shown.trim() == line), "{who:?} {line} {text}");
        }
        assert!(!text.contains("secret"), "{text}");
        let facts = world.facts();
        assert_eq!(facts["credentials"], "in-sandbox", "{facts}");
        assert_eq!(facts["pseudoTerminal"], true);
        assert_eq!(facts["mount"], Value::Null);
        let kinds = world.records();
        let kinds: Vec<_> = kinds.iter().map(|record| record["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["start", "stop"]);

        let stored =
            world.exec(&["--agent", "coder", "--quiet"], "cat ~/credentials; cat file.txt");
        assert_eq!(stored.stdout, "key\nsecret\n", "{who:?} {stored:?}");
        assert_eq!(world.facts()["credentials"], Value::Null);
        let other = world.exec(&["--agent", "other", "--quiet"], "ls -A ~");
        assert!(!other.stdout.contains("credentials"), "{other:?}");
    }
}

#[test]
fn a_login_needs_the_name_of_an_agent_a_terminal_and_a_command() {
    let world = SandboxWorld::mounted(users()[0]);
    let mut unnamed = world.on_terminal("login", &["--", "true"], &[]);
    assert_eq!(unnamed.ends(), 2, "{:?}", unnamed.text());
    let mut unknown = world.on_terminal("login", &["--preset", "aider"], &[]);
    assert_eq!(unknown.ends(), 2, "{:?}", unknown.text());
    assert!(unknown.text().contains("is not known"), "{:?}", unknown.text());
    let ended = end(world.limited(&["login", "--agent", "a", "--", "true"]).spawn().unwrap());
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(!world.base().join("state/audit").exists());
}

/// It reached every host, or what the policy gives the agent that works.
#[test]
fn a_login_reaches_the_hosts_of_its_preset_alone() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let servers = ["127.0.0.2:0", "127.0.0.3:0"].map(|at| TcpListener::bind(at).unwrap());
        let [own, other] = servers.each_ref().map(|server| server.local_addr().unwrap());
        let policy = std::fs::read_to_string(world.at("policies/policy.toml")).unwrap();
        let rule = format!(
            "[[network.rules]]\nid = \"both\"\neffect = \"allow\"\nhosts = [\"127.0.0.0/8\"]\n\
             ports = [{}, {}]\n",
            own.port(),
            other.port()
        );
        for rules in ["", &rule] {
            std::fs::write(world.at("policies/policy.toml"), format!("{policy}{rules}")).unwrap();
            let preset = format!("name = \"it\"\ntitle = \"It\"\nhosts = [\"{own}\"]\n");
            std::fs::write(world.at("it.toml"), preset).unwrap();
            if is_root() && who != As::Root {
                world.give_away();
            }
            let hosts = [own, other].map(|address| address.to_string());
            let preset = world.at("it.toml");
            let args = ["--preset", &preset, "--", "/usr/bin/python3", "-c", CONNECT];
            let args = [&args[..], &hosts.each_ref().map(String::as_str)].concat();
            let mut operator = world.on_terminal("login", &args, &[]);
            assert_eq!(operator.ends(), 0, "{who:?} {:?}", operator.text());
            let text = operator.text();
            let codes: Vec<_> =
                text.lines().map(str::trim).filter(|line| ["200", "403"].contains(line)).collect();
            assert_eq!(codes, ["200", "403"], "{who:?} {text}");
            let facts = world.facts();
            assert_eq!(facts["credentials"], "in-sandbox", "{facts}");
            assert_eq!(facts["presetHosts"], serde_json::json!([own.to_string()]));
            let records = world.records();
            let denied = records.iter().find(|record| said(record, "decision") == "deny").unwrap();
            assert_eq!(said(&denied["facts"], "host"), "127.0.0.3");
        }
    }
}

/// Listens at an address and a port, until a browser brings the code.
const CALLED_BACK: &str = r#"
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.create_server((address, port), family=family)
print("listens at", server.getsockname()[1], "now", flush=True)
while True:
    caller = server.accept()[0]
    word = caller.makefile().readline()
    caller.sendall(b"got " + word.encode())
    caller.close()
    if word == "code\n":
        break"#;

/// Calls a login back with a word, and returns the reply.
fn call(browser: io::Result<TcpStream>, word: &str) -> io::Result<String> {
    let mut browser = browser?;
    browser.write_all(word.as_bytes())?;
    let mut reply = String::new();
    browser.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Starts a login that waits for a browser at the port which `--callback` names.
fn called_back(world: &SandboxWorld) -> (Operator, u16) {
    let port = unused_port();
    let at = port.to_string();
    let command = ["--", "/usr/bin/python3", "-c", CALLED_BACK, "127.0.0.1", &at];
    let args = [&["--agent", "coder", "--callback", &at][..], &command].concat();
    let mut operator = world.on_terminal("login", &args, &[]);
    operator.sees(" now");
    (operator, port)
}

/// Returns the ports that records say a login was called back at.
fn recorded_ports(world: &SandboxWorld) -> Vec<Value> {
    let records = world.records();
    let callbacks = records.iter().filter(|record| said(record, "op") == "callback");
    callbacks.map(|record| record["facts"]["port"].clone()).collect()
}

/// Returns ports of those that the kernel picks. They are free outside of the sandbox, too, where other
/// tests listen.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A login that listens at a port which the kernel picked needed the host's network.
#[test]
fn a_browser_calls_a_login_back_at_a_port_that_the_kernel_picked() {
    for (who, address) in users().into_iter().flat_map(|who| [(who, "127.0.0.1"), (who, "::1")]) {
        if address == "::1" && TcpListener::bind((address, 0)).is_err() {
            continue;
        }
        let world = SandboxWorld::mounted(who);
        let [port] = free_ports();
        let at = port.to_string();
        let command = ["--", "/usr/bin/python3", "-c", CALLED_BACK, address, &at];
        let args = [&["--agent", "coder", "--callback", "auto"][..], &command].concat();
        let mut operator = world.on_terminal("login", &args, &[]);
        operator.sees(" now");
        let begun = Instant::now();
        let connect = || TcpStream::connect(("127.0.0.1", port));
        while connect().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", operator.text());
            std::thread::sleep(Duration::from_millis(20));
        }
        for word in ["first\n", "code\n"] {
            assert_eq!(call(connect(), word).unwrap(), format!("got {word}"), "{who:?} {address}");
        }
        assert_eq!(operator.ends(), 0, "{who:?} {:?}", operator.text());
        assert!(connect().is_err(), "the port stays open");
        let text = operator.text();
        assert!(text.contains(&format!("port {port} of the loopback interface led to")), "{text}");
        assert_eq!(
            (&world.facts()["callback"], world.facts()["agentNetwork"].as_str()),
            (&"auto".into(), Some("none"))
        );
        assert_eq!(recorded_ports(&world), [Value::from(port)]);
    }
}

/// A login takes no port that services have, none that is taken, and few; a port stays taken when the
/// login does not listen there any more.
#[test]
fn a_login_opens_few_ports_and_none_of_services() {
    let script = r#"
import socket, sys
listen = lambda port: socket.create_server(("127.0.0.1", int(port)))
named, ports = [listen(port) for port in sys.argv[1:3]], sys.argv[3:]
print("named", flush=True)
input()
picked = [listen(port) for port in ports[:3]]
print("picked now", flush=True)
input()
picked[0].close()
more = [listen(port) for port in ports[3:]]
print("more now", flush=True)
input()"#;
    let world = SandboxWorld::mounted(users()[0]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port();
    let picked = free_ports::<5>();
    let ports = picked.map(|port| port.to_string());
    let command = ["--", "/usr/bin/python3", "-c", script, "8765", &taken.to_string()];
    let args = [&["--agent", "coder", "--callback", "auto"][..], &command].concat();
    let args = [&args[..], &ports.each_ref().map(String::as_str)].concat();
    let picked = &picked[..3];
    let mut operator = world.on_terminal("login", &args, &[]);
    operator.sees("named");
    let connects = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_ok();
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    operator.types("\r");
    operator.sees(" now");
    until("they are not open", &|| picked.iter().all(connects));
    assert!(!connects(&8765));
    operator.types("\r");
    operator.sees("more now");
    // The ports are looked for ten times a second, and what is found is told at the end.
    std::thread::sleep(Duration::from_secs(5));
    let taken_outside = TcpListener::bind(("127.0.0.1", picked[0])).unwrap_err();
    assert_eq!(taken_outside.kind(), io::ErrorKind::AddrInUse);
    operator.types("\r");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    let text = operator.text();
    for part in [&*format!("not reach the login at port {taken}: "), "at more than 4 ports"] {
        assert!(text.contains(part), "{part} {text}");
    }
    let mut recorded = recorded_ports(&world);
    recorded.sort_by_key(Value::as_u64);
    let mut picked = picked.iter().copied().map(Value::from).collect::<Vec<_>>();
    picked.sort_by_key(Value::as_u64);
    assert_eq!(recorded, picked);
}

/// The process that listens for a browser took a processor while no descriptor was left.
#[test]
fn a_login_without_descriptors_took_a_processor() {
    let world = SandboxWorld::mounted(users()[0]);
    let (mut operator, port) = called_back(&world);
    let login = operator.process("portcullis login");
    let limited = |current| {
        let limit = Rlimit { current: Some(current), maximum: Some(1024) };
        prlimit(Some(login), Resource::Nofile, limit).unwrap();
    };
    // More than it waits for, and fewer than it has.
    limited(10);
    let waiting = TcpStream::connect(("127.0.0.1", port));
    let process = login.as_raw_nonzero().get().unsigned_abs();
    let before = ticks(process);
    std::thread::sleep(Duration::from_secs(2));
    let taken = ticks(process) - before;
    assert!(taken < 50, "{taken} of 200");
    limited(1024);
    assert_eq!(call(waiting, "code\n").unwrap(), "got code\n");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
}

/// A login that the browser calls back needed the host's network.
#[test]
fn a_browser_calls_a_login_back_without_the_hosts_network() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let (mut operator, port) = called_back(&world);
        for word in ["first\n", "code\n"] {
            let reply = call(TcpStream::connect(("127.0.0.1", port)), word).unwrap();
            assert_eq!(reply, format!("got {word}"), "{who:?}");
        }
        assert_eq!(operator.ends(), 0, "{who:?} {:?}", operator.text());
        let facts = world.facts();
        assert_eq!(facts["callback"], port, "{facts}");
        assert_eq!(facts["agentNetwork"], "none");
    }
}

#[test]
fn a_port_of_a_callback_is_free_and_leads_to_a_network_of_its_own() {
    let world = SandboxWorld::mounted(users()[0]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    for (args, code) in [
        (&["--callback", &taken][..], 1),
        (&["--callback", "0"], 2),
        (&["--callback", "65536"], 2),
        (&["--callback", "any"], 2),
        (&["--callback", "auto", "--agent-network", "443"], 2),
        (&["--callback", "1455", "--agent-network", "443"], 2),
    ] {
        let args = [&["--agent", "coder"], args, &["--", "true"]].concat();
        let mut operator = world.on_terminal("login", &args, &[]);
        assert_eq!(operator.ends(), code, "{args:?} {:?}", operator.text());
    }
    assert!(!world.base().join("state/audit").exists());
}

/// The connections to a login are bounded, and one that nobody accepts ends.
#[test]
fn callbacks_are_counted() {
    let world = SandboxWorld::mounted(users()[0]);
    let port = unused_port();
    let args =
        ["--agent", "coder", "--callback", &port.to_string(), "--", "sh", "-c", "echo up; read x"];
    let mut operator = world.on_terminal("login", &args, &[]);
    operator.sees("up");
    for _ in 0..33 {
        let mut browser = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut reply = Vec::new();
        // Whether it is closed or reset is the kernel's affair.
        let _ = browser.read_to_end(&mut reply);
        assert!(reply.is_empty());
    }
    operator.types("\r");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    assert!(operator.text().contains("was reached 32 times"), "{:?}", operator.text());
}

/// Claude Code wants a port that the kernel picks, and none could be named.
#[test]
fn a_login_in_the_hosts_network_could_not_be_called_back() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = r#"
import socket
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], "end", flush=True)
server.accept()[0].sendall(b"x")"#;
    let named = ["--agent", "coder", "--agent-network", "443"];
    let command = ["--", "/usr/bin/python3", "-c", script];
    let mut refused = world.on_terminal("login", &[&named[..], &command].concat(), &[]);
    assert_eq!(refused.ends(), 1, "{:?}", refused.text());
    assert!(refused.text().contains("--agent-listen 0"), "{:?}", refused.text());

    let listens = [&named[..], &["--agent-listen", "0"], &command].concat();
    let mut operator = world.on_terminal("login", &listens, &[]);
    operator.sees(" end");
    let line = operator.line_with(" end");
    let port = line.split_whitespace().nth(1).unwrap();
    let mut called = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let mut said = Vec::new();
    called.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"x");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    assert_eq!(world.facts()["agentListen"], serde_json::json!([0]));
}

/// Another user's program took the port of a login that had been reached often, and the browser gave it
/// the code.
#[test]
fn a_login_gave_its_port_away_before_it_ended() {
    let world = SandboxWorld::mounted(users()[0]);
    let (mut operator, port) = called_back(&world);
    let connect = || TcpStream::connect(("127.0.0.1", port));
    for _ in 0..32 {
        assert_eq!(call(connect(), "word\n").unwrap(), "got word\n");
    }
    assert_eq!(call(connect(), "code\n").unwrap_or_default(), "");
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    operator.types("\u{3}");
    assert_ne!(operator.ends(), 0, "{:?}", operator.text());
    assert!(operator.text().contains("no program reaches it any more"), "{:?}", operator.text());
}
