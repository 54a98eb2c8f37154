//! `portcullis login`: an agent's own login, which sees nothing of the workspace.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::*;

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

/// A login that the browser calls back needed the host's network.
#[test]
fn a_browser_calls_a_login_back_without_the_hosts_network() {
    let script = r#"
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
while True:
    caller = server.accept()[0]
    word = caller.makefile().readline()
    caller.sendall(b"got " + word.encode())
    caller.close()
    if word == "code\n":
        break"#;
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port = port.to_string();
        let command = ["--", "/usr/bin/python3", "-c", script, &port];
        let args = [&["--agent", "coder", "--callback", &port][..], &command].concat();
        let mut operator = world.on_terminal("login", &args, &[]);
        operator.sees("listens");
        for word in ["first\n", "code\n"] {
            let mut browser = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            browser.write_all(word.as_bytes()).unwrap();
            let mut reply = String::new();
            browser.read_to_string(&mut reply).unwrap();
            assert_eq!(reply, format!("got {word}"), "{who:?}");
        }
        assert_eq!(operator.ends(), 0, "{who:?} {:?}", operator.text());
        let facts = world.facts();
        assert_eq!(facts["callback"], port.parse::<u16>().unwrap(), "{facts}");
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
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args =
        ["--agent", "coder", "--callback", &port.to_string(), "--", "sh", "-c", "echo up; read x"];
    let mut operator = world.on_terminal("login", &args, &[]);
    operator.sees("up");
    let connect = || TcpStream::connect(("127.0.0.1", port));
    let mut ended = 0;
    while ended < 40 {
        let Ok(mut browser) = connect() else { break };
        let mut reply = Vec::new();
        // Whether it is closed or reset is the kernel's affair.
        let _ = browser.read_to_end(&mut reply);
        assert!(reply.is_empty());
        ended += 1;
    }
    assert!((32..40).contains(&ended), "{ended}");
    operator.types("\r");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
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
