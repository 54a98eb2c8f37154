//! The commands of every day: `status`, `undo`, `log`, and times in words.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use portcullis::{
    gateway::Client,
    model::{Session, Transport, WorkspacePath, request::Write},
};
use serde_json::{Value, json};

use crate::{
    acp_rig,
    common::{Done, World},
};

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

/// A directory that a failed first start had made was taken for one without a log, or for a log.
#[test]
fn a_first_start_that_failed_is_told_of() {
    let world = World::new();
    let failed = world.run(&["run", "--", "/no/such/agent"]);
    assert!(failed.code != 0 && world.state().join("format").exists(), "{failed:?}");
    assert!(!world.state().join("audit").exists());
    let status = world.run(&["status"]).ok();
    assert!(status.text().contains("the start that made it failed"), "{status:?}");
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status, json!({ "workspace": null, "state": world.state() }));
    for command in [&["log"][..], &["audit", "verify"], &["audit", "session"], &["undo", "--yes"]] {
        let none = world.run(command);
        assert!(none.code == 1 && none.stderr.contains("no record yet"), "{command:?} {none:?}");
    }
    // A start that failed later made the log, too.
    std::fs::create_dir(world.state().join("audit")).unwrap();
    std::fs::write(world.state().join("audit/lock"), "").unwrap();
    let none = world.run(&["log"]).ok();
    assert!(none.stderr.contains("the log has no record yet"), "{none:?}");
    let status = world.run(&["status"]).ok();
    assert!(status.text().contains("the start that made it failed"), "{status:?}");
}

const POLICY: &str = r#"
schema = 1
name = "open"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
"#;

/// Has the agent `cli` write a file in a session of its own.
fn write_as_agent(world: &World, name: &str) {
    let gateway = acp_rig::gateway_under(POLICY, &world.root(), world.base());
    let session = Session {
        id: "ab".repeat(16),
        agent: "cli".parse().unwrap(),
        user: "user".to_owned(),
        transport: Transport::Acp,
        acp: None,
    };
    gateway.start(&session, BTreeMap::new()).unwrap();
    let path = WorkspacePath::parse(name).unwrap();
    let write = Write { path, content: b"x".to_vec(), mode: None };
    gateway.handle(&session, &write, Client::default()).unwrap();
}

/// A log that somebody removed or emptied passed for one of a start that failed, or for one in which
/// nothing matched.
#[test]
fn a_removed_log_is_damaged() {
    let world = World::new();
    world.write("a", "1").ok();
    world.file(
        "transcript",
        r#"{"seq":0,"leaf":"0000","durable":true}"#.replace("0000", &"0".repeat(64)),
    );
    let transcript = world.path("transcript");
    let log = world.state().join("audit");
    let (bundle, report) = (world.base().join("bundle.zip"), world.base().join("report.json"));
    let commands: [&[&str]; 30] = [
        &["status"],
        &["status", "--json"],
        &["log"],
        &["log", "--json", "--last", "1"],
        &["audit", "verify"],
        &["audit", "key"],
        &["audit", "checkpoint"],
        &["audit", "prove", "0"],
        &["audit", "check-receipts", transcript.to_str().unwrap()],
        &["audit", "prune", "--before", "2999-01-01", "--yes"],
        &["audit", "compress"],
        &["audit", "query"],
        &["audit", "query", "--stats", "agent", "--json"],
        &["audit", "blame", "a"],
        &["audit", "session"],
        &["audit", "session", "last"],
        &["audit", "report", "-o", report.to_str().unwrap()],
        &["audit", "export", "--format", "ocsf"],
        &["audit", "bundle", "-o", bundle.to_str().unwrap()],
        &["policy", "learn"],
        &["policy", "replay", "default"],
        &["policy", "diff", "default", "default", "--log"],
        &["policy", "explain", "--record", "0"],
        &["undo", "--yes"],
        &["undo", "--session", "ab", "--yes"],
        &["undo", "--record", "1", "--yes"],
        &["backup", "restore", "--at", "1 hour ago", "--yes"],
        &["git", "import", "--list"],
        &["git", "import", "--yes"],
        &["fs", "read", "a"],
    ];
    for (state, has_directory, has_lock) in
        [("removed", false, false), ("emptied", true, false), ("locked", true, true)]
    {
        for command in commands {
            // A start that is refused makes the directory.
            let _ = std::fs::remove_dir_all(&log);
            if has_directory {
                std::fs::create_dir(&log).unwrap();
            }
            if has_lock {
                std::fs::write(log.join("lock"), "").unwrap();
            }
            let refused = world.run(command);
            let said = format!("{}{}", refused.text(), refused.stderr);
            let is_told = ["damaged", "missing"].iter().any(|word| said.contains(word));
            assert!(refused.code == 5 && is_told, "{state} {command:?} {refused:?}");
        }
        let found = world.run(&["doctor", "--json"]).json();
        let checks = found["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "audit log").unwrap();
        assert_eq!(check["status"], "failed", "{state} {check}");
    }
    world.run(&["audit", "recover", "--yes"]).ok();
    world.run(&["status"]).ok();
    world.run(&["audit", "verify"]).ok();
}

/// The operator's own commands were the last session: those that name an agent, as an import does for
/// the agent of its session. An agent with the name that such commands have otherwise had none.
#[test]
fn the_last_session_is_that_of_an_agent() {
    let world = World::with_policy(POLICY);
    write_as_agent(&world, "a");
    world.write("b", "1").ok();
    world.run(&["fs", "write", "c", "--agent", "robot"]).ok();
    world.run(&["backup", "list"]).ok();
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status["session"]["agent"], "cli", "{status}");
    assert_eq!(status["session"]["session"], "ab".repeat(16), "{status}");
    let told = world.run(&["audit", "session", "last", "--json"]).ok();
    assert!(told.text().contains(status["session"]["session"].as_str().unwrap()), "{told:?}");
    let undone = world.run(&["undo", "--last", "--yes", "--json"]).ok().json();
    assert_eq!(undone["steps"][0]["path"], "a", "{undone}");
    assert!(!world.path("a").exists() && world.path("b").exists());
    // The undo is a session of the operator's.
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status["session"]["session"], "ab".repeat(16), "{status}");
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
    // It was taken for a minute, and means a month elsewhere.
    for args in [["log", "--since", "1M"], ["log", "--until", "1M"]] {
        let wrong = world.run(&args);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert!(wrong.stderr.contains("`1m`") && wrong.stderr.contains("`30d`"), "{wrong:?}");
    }
    assert_eq!(world.run(&["audit", "prune", "--before", "1M", "--yes"]).code, 2);
    let until = |until: &str| world.run(&["log", "--until", until, "--json"]);
    assert_eq!(until("yesterday").ok().text(), "");
    assert_eq!(until("9999-01-01").ok().text().lines().count(), count("yesterday"));
    let none = world.run(&["log", "--since", "today", "--until", "yesterday"]);
    assert_eq!(none.code, 2, "{none:?}");
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
    let told = |done: &Done, words: &[&str]| {
        let text = done.text();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} {done:?}");
    };
    let unsigned = verify(ours);
    assert_eq!(unsigned.code, 4);
    told(&unsigned, &["has no signature", "mine.toml.sig", "no such file"]);
    world.run(&["policy", "sign", &policy, "--key", &place("ours.key")]).ok();
    let verified = verify(ours).ok().json();
    assert_eq!((&verified["name"], &verified["public"]), (&json!("mine"), &json!(ours)));
    let strange = verify(other);
    assert_eq!(strange.code, 4);
    told(&strange, &[ours, "is not an accepted one"]);
    assert_eq!(world.run(&["policy", "verify", &policy]).code, 2);
    // Other files in place of the policy, and of the public key.
    for (file, key, word) in [
        (place("mine.toml.sig"), ours.to_owned(), "is a signature, not a policy"),
        (place("ours.key"), ours.to_owned(), "is a private key, not a policy"),
        (policy.clone(), place("ours.key"), "not the name of a file"),
    ] {
        let wrong = world.run(&["policy", "verify", &file, "--key", &key]);
        assert!(wrong.code == 2 && wrong.stderr.contains(word), "{wrong:?}");
    }
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
    // Only the start said that other machines would read tokens, or that nobody is served.
    assert_eq!(check("[serve]\nlisten = [\"0.0.0.0:7\"]\n").code, 1);
    assert_eq!(check("[serve]\nlisten = [\"0.0.0.0:7\"]\nplaintext = true\n").ok().code, 0);
    assert_eq!(check("[[workspaces]]\nname = \"w\"\nroot = \".\"\n").code, 2);
    // `serve` refuses a workspace in another one.
    let served = |root: &str| {
        format!(
            "[[workspaces]]\nname = \"a\"\nroot = \"one\"\n[[workspaces]]\nname = \"b\"\nroot = \"{root}\"\n\
             [[agents]]\nname = \"ci\"\ntokenHash = \"sha256:{}\"\nworkspaces = [\"*\"]\n",
            "0".repeat(64)
        )
    };
    assert_eq!(check(&served("other")).ok().code, 0);
    assert_eq!(check(&served("one/two")).code, 1);
    // Keys alone made nobody sign.
    let made = world.base().join("k.key");
    let made = world.run(&["policy", "keygen", "-o", made.to_str().unwrap(), "--json"]).ok().json();
    let key = format!("policyKeys = [{}]\n", made["public"]);
    assert!(check(&key).ok().stderr.contains("requireSignature"), "{key}");
    assert_eq!(check(&format!("requireSignature = true\n{key}")).ok().stderr, "");
    let missing = check(&format!("{credential}from = \"file:missing.key\"\n"));
    assert!(missing.code == 1 && missing.text().contains("the credential `k`"), "{missing:?}");
    assert_eq!(world.run(&["config", "check", "/nonexistent"]).code, 1);
    // Nobody could see which file it looked for.
    let default = world.base().join("home/.config/portcullis/portcullis.toml");
    let absent = world.run(&["config", "check", "--json"]).ok().json();
    assert_eq!(absent["file"], serde_json::Value::Null, "{absent}");
    assert_eq!(absent["defaultFile"], default.to_str().unwrap(), "{absent}");
    let absent = world.run(&["config", "check"]).ok();
    assert!(absent.text().contains(default.to_str().unwrap()), "{absent:?}");
    assert!(!world.state().exists());
}

/// It was said to be without a record, with exit code 0, and to have backups and approvals; a start
/// advised to change the mode of the directory.
#[test]
fn a_directory_that_is_no_state_directory_is_called_so() {
    let world = World::new();
    let other = world.base().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("passwd"), "").unwrap();
    let named = other.to_str().unwrap();
    for args in [
        &["status"][..],
        &["approve"],
        &["backup", "list"],
        &["log"],
        &["audit", "verify"],
        &["undo"],
    ] {
        let refused = world.run(&[args, &["--state", named]].concat());
        assert_eq!(refused.code, 1, "{args:?} {refused:?}");
        let told = refused.stderr.contains("is not a state directory")
            || refused.stderr.contains("there is no audit log");
        assert!(told && refused.stderr.contains("--state DIR"), "{args:?} {refused:?}");
    }
    let refused = world.fs(&["ls", "--state", named]);
    assert!(refused.stderr.contains("is not a state directory"), "{refused:?}");
    assert!(!refused.stderr.contains("chmod"), "{refused:?}");
}

/// Agents, presets, rules and columns had it alone.
#[test]
fn similar_sessions_paths_and_policy_files_are_named() {
    let world = World::new();
    world.write("src/main.rs", "1").ok();
    let id = world.records()[0]["session"].as_str().unwrap().to_owned();
    let mut wrong = id[..8].to_owned();
    wrong.replace_range(7.., if id.as_bytes()[7] == b'z' { "y" } else { "z" });
    let near = format!("did you mean `{}`?", &id[..8]);
    for args in [
        &["audit", "session", &wrong][..],
        &["audit", "query", "--session", &wrong],
        &["undo", "--session", &wrong],
    ] {
        let told = world.run(args);
        assert!(told.stderr.contains(&near), "{args:?} {told:?}");
    }
    let told = world.run(&["audit", "blame", "src/mian.rs"]);
    assert!(told.stderr.contains("did you mean `src/main.rs`?"), "{told:?}");
    std::fs::write(world.base().join("mine.toml"), "schema = 1\n").unwrap();
    for args in [&["policy", "check", "./mien.toml"][..], &["fs", "ls", "--policy", "./mien.toml"]]
    {
        let told = world.run(args);
        assert!(told.stderr.contains("did you mean `./mine.toml`?"), "{args:?} {told:?}");
    }
}
