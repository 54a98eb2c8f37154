//! The commands of every day: `status`, `undo`, `log`, and times in words.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use serde_json::{Value, json};

use crate::common::World;

#[test]
fn status_tells_policy_session_log_and_space() {
    let world = World::new();
    let before = world.run(&["status"]).ok();
    assert!(before.text().contains("not made yet"), "{before:?}");
    world.write("a", "1").ok();
    world.write("a", "2").ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status["policy"]["mode"], "enforce", "{status}");
    assert_eq!((&status["gateways"], &status["waiting"]), (&json!(0), &json!(0)), "{status}");
    assert_eq!(status["session"]["denials"], 1, "{status}");
    assert!(status["log"]["records"].as_u64().unwrap() > 5, "{status}");
    assert!(status["free"].as_u64().unwrap() > 0, "{status}");
    let text = world.run(&["status"]).ok();
    for word in ["policy", "enforcement", "none waiting", "1 denial", "not verified", "free"] {
        assert!(text.text().contains(word), "{word} {text:?}");
    }
}

/// It counted the sockets for approvals, which a policy without `ask` rules does not have, and told
/// the policy of the last start, whatever ran.
#[test]
fn a_gateway_that_runs_was_not_counted_and_its_policy_not_told() {
    let open = "schema = 1\nname = \"open\"\nmode = \"observe\"\n[allowedPaths]\nread = [\"**\"]\n";
    let world = World::with_policy(open);
    world.file("a", "1");
    let mut gateway =
        world.command(&["mcp"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let parameters = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters});
    let mut input = gateway.stdin.take().unwrap();
    writeln!(input, "{request}").unwrap();
    let mut output = BufReader::new(gateway.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    world.run(&["fs", "read", "a", "--policy", "coding-agent"]).ok();
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status["gateways"], 1, "{status}");
    assert_eq!(status["running"][0]["policy"]["name"], "open", "{status}");
    assert_eq!(status["running"][0]["policy"]["mode"], "observe", "{status}");
    assert_eq!(status["policy"]["name"], "coding-agent", "{status}");
    let text = world.run(&["status"]).ok();
    assert!(text.text().contains("open, version 0, observe"), "{text:?}");
    assert!(!text.text().contains("coding-agent"), "{text:?}");
    drop(input);
    gateway.wait().unwrap();
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!((&status["gateways"], &status["running"]), (&json!(0), &json!([])), "{status}");
}

#[test]
fn undo_takes_the_last_session_back_and_not_the_undo() {
    let world = World::new();
    let none = world.run(&["undo", "--yes"]);
    assert_eq!(none.code, 1, "{none:?}");
    world.write("a", "1").ok();
    world.write("a", "2").ok();
    world.fs(&["read", "a"]).ok();
    let shown = world.run(&["undo", "--dry-run"]).ok();
    assert!(shown.text().contains("1 to do"), "{shown:?}");
    world.run(&["undo", "--yes"]).ok();
    assert_eq!(world.read("a"), "1");
    world.run(&["backup", "undo", "--session", "last", "--yes"]).ok();
    assert_eq!(world.read("a"), "1");
    let both = world.run(&["undo", "--last", "--record", "1"]);
    assert_eq!(both.code, 2, "{both:?}");
}

#[test]
fn the_whole_workspace_comes_back_as_it_was_at_a_time() {
    let world = World::new();
    world.write("a", "1").ok();
    world.write("b", "1").ok();
    let last = world.run(&["log", "--last", "1", "--json"]).ok().json();
    // No record is of the microsecond after.
    let time = last["t"].as_str().unwrap().to_owned();
    world.write("a", "2").ok();
    world.fs(&["rm", "b"]).ok();
    world.run(&["backup", "restore", "--at", &time, "--yes"]).ok();
    assert_eq!((world.read("a"), world.read("b")), ("1".to_owned(), "1".to_owned()));
}

#[test]
fn times_may_be_words() {
    let world = World::new();
    world.write("a", "1").ok();
    let count = |since: &str| {
        let shown = world.run(&["log", "--since", since, "--json"]).ok();
        shown.text().lines().count()
    };
    assert_eq!(count("yesterday"), count("last week"));
    assert!(count("yesterday") > 0 && count("1 hour ago") > 0);
    let wrong = world.run(&["log", "--since", "tomorrow"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("yesterday"), "{wrong:?}");
    let shown = world.run(&["log", "--last", "1"]).ok();
    let time = shown.text().split_whitespace().nth(2).unwrap().to_owned();
    assert!(time.ends_with('Z') && time.len() == 9, "{shown:?}");
}

#[test]
fn an_agent_that_no_record_is_of_is_named() {
    let world = World::new();
    world.run(&["fs", "write", "a", "--agent", "alice-bot"]);
    for command in ["query", "show"] {
        let none = world.run(&["audit", command, "--agent", "alise-bot"]).ok();
        assert!(none.stderr.contains("did you mean `alice-bot`?"), "{none:?}");
    }
    let newest = world.run(&["audit", "session", "last"]).ok();
    assert!(newest.text().contains("alice-bot"), "{newest:?}");
}

#[test]
fn a_signature_is_verified_without_starting_a_gateway() {
    let world = World::new();
    let place = |name: &str| world.base().join(name).to_str().unwrap().to_owned();
    let policy = place("mine.toml");
    std::fs::write(&policy, "schema = 1\nname = \"mine\"\n").unwrap();
    let key = |name: &str| -> Value {
        world.run(&["policy", "keygen", "-o", &place(name), "--json"]).ok().json()
    };
    let (ours, other) = (key("ours.key"), key("other.key"));
    let verify = |key: &str| world.run(&["policy", "verify", &policy, "--key", key, "--json"]);
    let (ours, other) = (ours["public"].as_str().unwrap(), other["public"].as_str().unwrap());
    assert_eq!(verify(ours).code, 4);
    world.run(&["policy", "sign", &policy, "--key", &place("ours.key")]).ok();
    let verified = verify(ours).ok().json();
    assert_eq!((&verified["name"], &verified["public"]), (&json!("mine"), &json!(ours)));
    assert_eq!(verify(other).code, 4);
    assert_eq!(world.run(&["policy", "verify", &policy]).code, 2);
    std::fs::write(&policy, "schema = 1\nname = \"mine\"\nversion = 2\n").unwrap();
    assert_eq!(verify(ours).code, 4);
}

#[test]
fn a_configuration_is_checked_before_anything_starts() {
    let world = World::new();
    let file = world.base().join("portcullis.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        world.run(&["config", "check", file.to_str().unwrap(), "--json"])
    };
    assert_eq!(check("").ok().json()["serve"], false);
    let wrong = check("requireSignatures = true\n");
    assert!(wrong.code == 1 && wrong.text().contains("requireSignature"), "{wrong:?}");
    assert_eq!(check("[serve]\nlisten = 7\n").code, 1);
    // It was `ok` where every start with that credential fails.
    let credential = "[[credentials]]\nid = \"k\"\nhost = \"h.example\"\nheader = \"x-key\"\n\
        env = \"K\"\nbaseUrl = \"U\"\nmethods = [\"GET\"]\npaths = [\"/*\"]\n";
    assert_eq!(check(&format!("{credential}from = \"env:PORTCULLIS_UNSET\"\n")).ok().code, 0);
    let missing = check(&format!("{credential}from = \"file:missing.key\"\n"));
    assert!(missing.code == 1 && missing.text().contains("the credential `k`"), "{missing:?}");
    assert_eq!(world.run(&["config", "check", "/nonexistent"]).code, 1);
    assert!(!world.state().exists());
}
