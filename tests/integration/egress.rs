//! Egress: programs in a sandbox reach the network by its proxy alone, and each connection is decided
//! and recorded. The servers are on loopback, under names of a hosts file that only the run sees.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

use crate::common::{ALL, World};

mod asking;
mod attacks;
mod clients;
pub(crate) mod credentials;
mod ends;
mod help;
mod labels;
mod names;
mod neighbours;
mod presets;
mod reviewed;
mod secret_texts;

/// The names of the servers, and what must not be reached by a name.
const HOSTS: &str = "127.0.0.1 localhost site.example other.example sub.site.example\n\
    169.254.169.254 metadata.example\n\
    10.1.2.3 private.example\n\
    64:ff9b::a01:203 nat64.example\n";

/// The client in the sandbox.
const CLIENT: &str = include_str!("egress/client.py");

/// Runs a command where `/etc/hosts` is its first argument, or `/etc` what a variable names.
const WITH_HOSTS: &str = r#"
if [ "$ETC" ]; then mount --bind "$ETC" /etc; else mount --bind "$0" /etc/hosts; fi && exec "$@"
"#;

/// A workspace whose policy lets programs connect to some hosts.
struct Net {
    world: World,
}

/// A policy that allows `site.example` and the address of the loopback interface at a port, with `more`.
fn policy(port: u32, more: &str) -> String {
    format!(
        "{ALL}[[network.rules]]\nid = \"site\"\neffect = \"allow\"\nports = [{port}]\n\
         hosts = [\"site.example\", \"metadata.example\", \"private.example\", \"nat64.example\", \
         \"127.0.0.1\"]\n{more}"
    )
}

impl Net {
    /// A world where `site.example` and the address of the loopback interface are allowed at a
    /// port, with `more` in the policy.
    fn new(port: u32, more: &str) -> Self {
        Self::with_policy(&policy(port, more))
    }

    fn with_policy(policy: &str) -> Self {
        let world = World::with_policy(policy);
        world.file("client.py", CLIENT);
        std::fs::write(world.base().join("hosts"), HOSTS).unwrap();
        Self { world }
    }

    /// `portcullis exec` of a command, among the hosts of the tests.
    fn command(&self, options: &[&str], command: &[&str]) -> Command {
        let quiet: &[&str] = if options.contains(&"--summary") { &[] } else { &["--quiet"] };
        self.portcullis(&[&["exec"], quiet, options, &["--"], command].concat())
    }

    fn portcullis(&self, arguments: &[&str]) -> Command {
        let inner = self.world.command(arguments);
        let own: &[&str] = match rustix::process::geteuid().is_root() {
            true => &["--mount"],
            false => &["--mount", "--user", "--map-root-user"],
        };
        let mut outer = Command::new("unshare");
        outer
            .args(own)
            .args(["sh", "-c", WITH_HOSTS])
            .arg(self.world.base().join("hosts"))
            .arg(inner.get_program())
            .args(inner.get_args())
            .env_clear()
            .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(self.world.base())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        outer
    }

    /// Makes a copy of `/etc` that has the hosts of the tests. A command has it there if its variable
    /// `ETC` names it.
    fn own_etc(&self) -> PathBuf {
        let etc = self.world.base().join("etc");
        // It fails at what only root may read.
        Command::new("cp").arg("--archive").arg("/etc").arg(&etc).output().unwrap();
        std::fs::copy(self.world.base().join("hosts"), etc.join("hosts")).unwrap();
        etc
    }

    fn exec(&self, command: &[&str]) -> Output {
        self.command(&[], command).output().unwrap()
    }

    /// Returns the report of the client in the sandbox on one topic.
    fn client(&self, topic: &str, numbers: &[u32]) -> Value {
        let started = self.start_client(topic, numbers);
        reported(started.wait_with_output().unwrap())
    }

    fn start_client(&self, topic: &str, numbers: &[u32]) -> Child {
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        let command = ["/usr/bin/python3", "client.py", topic];
        let numbers = numbers.iter().map(String::as_str);
        let command: Vec<_> = command.into_iter().chain(numbers).collect();
        self.command(&[], &command).spawn().unwrap()
    }

    /// The records of connections.
    fn connects(&self) -> Vec<Value> {
        let records = self.world.records().into_iter();
        records.filter(|record| record["op"] == "connect").collect()
    }
}

#[track_caller]
fn reported(output: Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

/// A server that replies to one request of each connection, and stores all requests.
struct Server {
    port: u32,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    /// A server that replies in HTTP and closes.
    fn http() -> Self {
        Self::start(|stream, seen| {
            if seen.windows(4).any(|end| end == b"\r\n\r\n") {
                let reply =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
                let _ = stream.write_all(reply);
                let _ = stream.shutdown(Shutdown::Write);
            }
        })
    }

    /// A server that sends back its input, once the client has sent all.
    fn echo() -> Self {
        Self::start(|_, _| {})
    }

    fn start(heard: fn(&mut TcpStream, &[u8])) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().into();
        let seen = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, all) = (stream.unwrap(), Arc::clone(&all));
                let number = {
                    let mut all = all.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                thread::spawn(move || {
                    let mut chunk = [0; 4096];
                    while let Ok(got @ 1..) = stream.read(&mut chunk) {
                        let seen = {
                            let mut all = all.lock().unwrap();
                            all[number].extend_from_slice(&chunk[..got]);
                            all[number].clone()
                        };
                        heard(&mut stream, &seen);
                    }
                    let seen = all.lock().unwrap()[number].clone();
                    let _ = stream.write_all(&seen);
                });
            }
        });
        Self { port, seen }
    }

    /// Numbers of bytes received, by connection.
    fn lengths(&self) -> Vec<usize> {
        self.seen.lock().unwrap().iter().map(Vec::len).collect()
    }

    /// Bytes received, by connection.
    fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

#[test]
fn a_connection_is_decided_and_recorded_before_and_after() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let url = format!("http://site.example:{}/path?q", server.port);
    let got = net.exec(&["curl", "-sS", &url]);
    assert_eq!((got.status.code(), &*got.stdout), (Some(0), &b"hello"[..]), "{got:?}");
    let head = "GET /path?q HTTP/1.1\r\nHost: site.example:";
    assert!(server.seen()[0].starts_with(head), "{:?}", server.seen());
    let records = net.connects();
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["decision", "intent", "outcome"]);
    for record in &records {
        let to = (&record["facts"]["host"], &record["facts"]["port"]);
        assert_eq!(to, (&json!("site.example"), &json!(server.port)));
    }
    assert_eq!(
        (&records[0]["transport"], &records[1]["transport"]),
        (&json!("proxy"), &json!("proxy"))
    );
    assert_eq!(records[1]["facts"]["address"], "127.0.0.1");
    let outcome = &records[2];
    assert_eq!((&outcome["of"], &outcome["result"]), (&records[1]["seq"], &json!("ok")));
    assert_eq!(outcome["counts"]["bytesOut"], server.seen()[0].len());
    assert!(outcome["counts"]["bytesIn"].as_u64().unwrap() > 5);
    // The sandbox is recorded, too.
    let sandbox = net.world.records().into_iter().find(|record| record["op"] == "sandbox").unwrap();
    assert_eq!(
        (&sandbox["facts"]["proxy"], &sandbox["facts"]["agentNetwork"]),
        (&json!("enforce"), &json!("none"))
    );
}

#[test]
fn a_denied_host_gets_no_packet_and_the_program_is_told_the_rule() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let url = format!("http://other.example:{}/", server.port);
    let got = net.exec(&["curl", "-sS", "-w", "%{http_code}", &url]);
    let said = String::from_utf8_lossy(&got.stdout);
    assert!(said.contains("`other.example:") && said.contains("rule `default`"), "{got:?}");
    assert!(said.contains("policy explain connect") && said.ends_with("403"), "{got:?}");
    assert_eq!(server.seen().len(), 0);
    let records = net.connects();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (&records[0]["kind"], &records[0]["decision"]),
        (&json!("decision"), &json!("deny"))
    );
}

#[test]
fn without_rules_of_hosts_nothing_is_started_and_no_variable_is_set() {
    let net = Net::with_policy(ALL);
    let got = net.exec(&["sh", "-c", "env | grep -i proxy; curl -sS http://127.0.0.1:3128/"]);
    assert_eq!((got.status.code(), &*got.stdout), (Some(7), &b""[..]), "{got:?}");
    let sandbox = net.world.records().into_iter().find(|record| record["op"] == "sandbox").unwrap();
    assert_eq!(sandbox["facts"].get("proxy"), None);
}

#[test]
fn the_network_of_the_host_is_a_way_past_the_rules_that_is_told() {
    let server = Server::http();
    let port = server.port.to_string();
    let url = format!("http://127.0.0.1:{port}/");
    let denies = "[[network.rules]]\nid = \"none\"\neffect = \"deny\"\nhosts = [\"*\"]\n";
    // There was no warning where the policy allows no host.
    for policy in [policy(server.port, ""), format!("{ALL}{denies}"), ALL.to_owned()] {
        let net = Net::with_policy(&policy);
        let command =
            net.command(&["--agent-network", &port], &["curl", "-sS", &url]).output().unwrap();
        assert_eq!(&*command.stdout, b"hello", "{command:?}");
        let stderr = String::from_utf8_lossy(&command.stderr);
        assert!(stderr.contains("past the rules of `[network]`"), "{stderr}");
        assert_eq!(net.connects().len(), 0);
    }
}

/// No start, reload, `status` or line of `doctor` said so.
#[test]
fn that_connections_are_only_observed_is_told() {
    fn mode(world: &World, kind: &str) -> Option<Value> {
        let record = world.records().into_iter().rev().find(|record| record["kind"] == kind)?;
        Some(record["facts"]["networkMode"].clone())
    }
    fn status(world: &World) -> Value {
        world.run(&["status", "--json"]).ok().json()["policy"]["networkMode"].clone()
    }
    let mut net = Net::with_policy(ALL);
    let observed = ALL.replacen('\n', "\nversion = 2\n", 1) + "[network]\nmode = \"observe\"\n";
    let script = ": >ready; until [ -e go ]; do sleep 0.02; done";
    let mut child = net.portcullis(&["exec", "--", "sh", "-c", script]);
    let child = child.stderr(Stdio::piped()).spawn().unwrap();
    ends::eventually(|| net.world.path("ready").exists().then_some(()));
    assert_eq!(mode(&net.world, "start").unwrap(), "enforce");
    assert_eq!(status(&net.world), "enforce");
    net.world.set_policy(&observed);
    ends::eventually(|| mode(&net.world, "policy").filter(|mode| mode == "observe"));
    assert_eq!(status(&net.world), "observe");
    net.world.file("go", "");
    let stderr = child.wait_with_output().unwrap().stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("only observes connections"), "{stderr}");

    let checks = net.world.run(&["doctor", "--json"]).json();
    let proxy = checks["checks"].as_array().unwrap().iter().find(|check| check["name"] == "proxy");
    assert_eq!(proxy.unwrap()["status"], "warning", "{checks}");
}
