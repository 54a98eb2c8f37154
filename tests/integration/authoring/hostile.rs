//! Policies, tests and logs that are none: a clear error from every tool.

use portcullis_audit::{Chain, Draft, Kind, Prepared};

use super::policy_file;
use crate::common::{Done, World};

/// Runs every tool on the policy `bad.toml`.
fn tools(world: &World) -> Vec<(Vec<&'static str>, Done)> {
    policy_file(world, "good.toml", "schema = 1\n");
    std::fs::create_dir_all(world.state().join("audit")).unwrap();
    [
        &["test", "bad.toml"][..],
        &["lint", "bad.toml"],
        &["lint", "bad.toml", "--sarif"],
        &["diff", "good.toml", "bad.toml"],
        &["diff", "bad.toml", "good.toml"],
        &["replay", "bad.toml"],
        &["learn", "--policy", "bad.toml"],
        &["explain", "--policy", "bad.toml", "--who", "agent"],
    ]
    .iter()
    .map(|args| {
        let done = world.run(&[&["policy"], *args].concat());
        (args.to_vec(), done)
    })
    .collect()
}

#[test]
fn no_tool_takes_what_does_not_load() {
    let rule = "[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\"a\"]\n";
    for (text, with) in [
        (b"schema = 1\nname = \"\xff\"\n".to_vec(), "not UTF-8"),
        ("# comment\n".repeat(1 << 20).into_bytes(), "larger than 1 MiB"),
        (format!("schema = 1\n{}", rule.repeat(100_000)).into_bytes(), "larger than 1 MiB"),
        (b"schema = 1\nextends = [\"bad.toml\"]\n".to_vec(), "extends itself"),
        (b"schema = 1\nextends = [\"gone.toml\"]\n".to_vec(), "no such file"),
        (b"schema = 1\nx = [[[[".to_vec(), "not valid TOML"),
    ] {
        let world = World::new();
        std::fs::write(world.base().join("bad.toml"), text).unwrap();
        for (args, done) in tools(&world) {
            assert_eq!(done.code, 4, "{args:?}: {}", done.stderr);
            assert!(done.stderr.contains(with), "{args:?}: {with}: {}", done.stderr);
            assert_eq!(done.text(), "", "{args:?}");
        }
    }
}

/// Pairwise comparisons stay fast enough.
#[test]
fn thousands_of_rules_are_looked_at() {
    let world = World::new();
    let mut text = "schema = 1\n[allowedPaths]\nread = [\"**\"]\n".to_owned();
    for number in 0..2000 {
        text += &format!(
            "[[rules]]\nid=\"r{number}\"\neffect=\"deny\"\npaths=[\"d{}/s{number}/**\"]\n",
            number % 100
        );
    }
    policy_file(&world, "bad.toml", &text);
    for (args, done) in tools(&world) {
        assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
    }
}

fn line(chain: &mut Chain, draft: &Draft, time: &str) -> Vec<u8> {
    let mut line = Vec::new();
    let record = Prepared::new(Kind::Decision, draft, [7; 16]).unwrap();
    chain.append(&record, time, &mut line);
    line
}

#[test]
fn a_log_full_of_lies_is_read_without_harm() {
    let mut world = World::new();
    policy_file(&world, "p.toml", "schema = 1\n[allowedPaths]\nread = []\n");
    world.use_policy("p.toml");
    let mut chain = Chain::new();
    let request = |path: &str, agent: &str, op: &str| Draft {
        agent: Some(agent.to_owned()),
        op: Some(op.to_owned()),
        path: Some(path.to_owned()),
        decision: Some("deny".to_owned()),
        rule: Some("allowedPaths.read".to_owned()),
        ..Draft::default()
    };
    let noon = "2026-11-21T12:00:00.000000Z";
    let mut log = Vec::new();
    log.extend(line(&mut chain, &request("a", "bot", "read"), noon));
    // Not a path, not an agent, not an operation.
    log.extend(line(&mut chain, &request("../../etc/passwd", "bot", "read"), noon));
    log.extend(line(&mut chain, &request("/etc/passwd", "bot", "read"), noon));
    log.extend(line(&mut chain, &request("a", "b\u{1b}[31m/t", "read"), noon));
    log.extend(line(&mut chain, &request("a", "bot", "terminal/create"), noon));
    log.extend(b"{\"seq\": 5, \"kind\": \"decision\"\n");
    log.extend(b"\xff\xfe\n\n[]\nnull\n");
    // The clock was set back.
    log.extend(line(&mut chain, &request("b", "bot", "read"), "2020-01-01T00:00:00.000000Z"));
    log.extend(line(&mut chain, &request("c\u{202e}\u{1b}[2J", "bot", "read"), noon));
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit).unwrap();
    std::fs::write(audit.join("seg-000000.jsonl"), &log).unwrap();
    let replay = world.run(&["policy", "replay", "p.toml", "--json"]).ok().json();
    assert_eq!((&replay["requests"], &replay["malformed"]), (&3.into(), &4.into()), "{replay}");
    assert_eq!(replay["damaged"], 5, "{replay}");
    let today = ["policy", "replay", "p.toml", "--json", "--since", "2026-01-01"];
    assert_eq!(world.run(&today).ok().json()["requests"], 2);
    let learned = world.run(&["policy", "learn"]).ok();
    let replayed = world.run(&["policy", "replay", "read-only"]).ok();
    for done in [&learned, &replayed] {
        let shown = format!("{}{}", done.text(), done.stderr);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
    }
    assert!(learned.text().contains("\"a\", # 1x, record 0, agent bot"), "{}", learned.text());
    // A line that never ends.
    std::fs::write(audit.join("seg-000000.jsonl"), vec![b'x'; 3 << 20]).unwrap();
    let done = world.run(&["policy", "replay", "p.toml"]);
    assert!(done.code == 5 && done.stderr.contains("too long"), "{}", done.stderr);
}

/// Names in the workspace reach the terminal as text.
#[test]
fn names_are_escaped() {
    let world = World::new();
    world.file("a\u{1b}[31m\u{202e}/b.rs", "x");
    policy_file(&world, "old.toml", "schema = 1\n");
    policy_file(&world, "new.toml", "schema = 1\n[allowedPaths]\nread = [\"**\"]\n");
    for args in [
        &["diff", "old.toml", "new.toml"][..],
        &["explain", "--policy", "new.toml", "--who", "agent", "--can", "read"],
    ] {
        let done = world.run(&[&["policy"], args].concat()).ok();
        assert!(done.text().contains("\\u{202e}"), "{}", done.text());
        assert!(!done.text().contains(['\u{1b}', '\u{202e}']), "{:?}", done.text());
    }
}
