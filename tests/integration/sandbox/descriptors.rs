//! Descriptors that an agent sends: the kernel counts them by user, and closes them in
//! the process that does not take them.

use std::{
    io::{BufRead as _, BufReader},
    time::Instant,
};

use super::*;

/// A user of this test only: its descriptors in flight keep no other test from sending.
const ALONE: &str = "4322";

/// Sends descriptors that are not received, as many as the kernel lets it.
const IN_FLIGHT: &str = r#"
import array, json, resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
null, pairs = open("/dev/null"), []
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * 250))]
try:
    while len(pairs) * 2 < hard - 50:
        pairs.append(socket.socketpair())
        pairs[-1][0].sendmsg([b"x"], rights)
    got = "ok"
except OSError as error:
    got = error.strerror
print(json.dumps({"try": "send", "got": got}), file=sys.stderr, flush=True)
sys.stdin.read()
"#;

/// A place of the user [`ALONE`], where that is possible.
fn place_alone() -> SandboxWorld {
    let mut world = SandboxWorld::new(As::User);
    if is_root() {
        world.user = ALONE;
        world.give_away();
    }
    world
}

/// An agent kept every process of its user from sending descriptors: a changed policy was not taken
/// up, and no other agent could be started.
#[test]
fn descriptors_in_flight_keep_nobody_else_from_sending_any() {
    let (world, other) = (place_alone(), place_alone());
    let policy = world.at("policies/policy.toml");
    let mut agent = world.start(&["--policy", &policy], &["/usr/bin/python3", "-c", IN_FLIGHT]);
    let (input, mut errors) = (agent.stdin.take(), BufReader::new(agent.stderr.take().unwrap()));
    let mut line = String::new();
    while !line.contains("\"try\"") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "the agent says how it went");
    }
    assert!(line.contains("Too many references"), "{line}");
    std::fs::write(&policy, "schema = 1\nname = \"test\"\nversion = 2\n").unwrap();
    let since = Instant::now();
    let of_policy = |record: &Value| record["kind"] == "policy" && record["facts"]["version"] == 2;
    while !world.records().iter().any(of_policy) {
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", world.records().last());
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = other.run(&[], &["/bin/true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    drop(input);
    assert_eq!(agent.wait().unwrap().code(), Some(0));
}

#[test]
fn an_agent_has_the_files_that_it_may_have_without_asking_and_fewer_at_most() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let limits =
            "import resource; print(*resource.getrlimit(7), file=__import__('sys').stderr)";
        let own = "ulimit -Sn 777; exec \"$@\"";
        let inner = world.command(&["run", "--", "/usr/bin/python3", "-c", limits]);
        let ended = wrapped("sh", &["-c", own], &world, &inner);
        let limits = ended.stderr.lines().find_map(|line| line.strip_prefix("agent: 777 "));
        let most: u64 = limits.unwrap_or_else(|| panic!("{ended:?}")).parse().unwrap();
        let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        assert!(most >= 512 && ours.is_none_or(|ours| most < ours), "{most} {ours:?}");
    }
}

/// Sends a socket that lingers beside the first byte of a token.
const LINGERING: &str = r#"
import array, json, socket, struct, sys
def say(what, got):
    print(json.dumps({"try": what, "got": got}), file=sys.stderr, flush=True)
def attempt(what, act):
    try:
        act()
        say(what, "ok")
    except OSError as error:
        say(what, error.strerror)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(1)
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()
sender.setblocking(False)
try:
    while True:
        sender.send(b"x" * 65536)
except BlockingIOError:
    pass
linger = struct.pack("ii", 1, 100000)
attempt("linger", lambda: sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger))
gateway = socket.socket(socket.AF_UNIX)
gateway.connect("/.portcullis/gateway")
for what, sent in (("first", sender), ("second", receiver)):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))]
    attempt(what, lambda: gateway.sendmsg([b"0"], rights))
"#;

/// A thread of the gateway slept in the kernel, and the gateway could not stop: it was killed
/// without a `stop` record.
#[test]
fn a_socket_that_lingers_does_not_keep_the_gateway_from_stopping() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let ended = world.run(&[], &["/usr/bin/python3", "-c", LINGERING]);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        let attempts = ended.attempts();
        assert_eq!(attempts["linger"], "Operation not permitted", "{who:?}");
        let refused = [&attempts["first"], &attempts["second"]];
        let is_refused = refused.iter().all(|got| *got == "Operation not permitted");
        assert_eq!(is_refused, crate::common::sockets_refuse_descriptors(), "{refused:?}");
        assert_eq!(world.records().last().unwrap()["kind"], "stop", "{who:?}");
    }
}
