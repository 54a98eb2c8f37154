//! Policies, tests and logs that are none: a clear error from every tool.

use portcullis_audit::{Chain, Draft, Kind, Prepared};

use super::policy_file;
use crate::common::{Done, World, done};

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
    let replay = world.run(&["policy", "replay", "p.toml", "--json"]);
    assert_eq!(replay.code, 5, "{replay:?}");
    let replay = replay.json();
    assert_eq!((&replay["requests"], &replay["malformed"]), (&3.into(), &4.into()), "{replay}");
    // The five lines, and the record after them, whose number is too small.
    assert_eq!(replay["damaged"], 6, "{replay}");
    let today = ["policy", "replay", "p.toml", "--json", "--since", "2026-01-01"];
    assert_eq!(world.run(&today).json()["requests"], 2);
    let learned = world.run(&["policy", "learn"]);
    let replayed = world.run(&["policy", "replay", "read-only"]);
    for done in [&learned, &replayed] {
        assert_eq!(done.code, 5, "{done:?}");
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

/// Each finding had the renderer look at the whole line, so that 60 KB of policy took a minute.
#[test]
fn a_line_of_many_kilobytes_is_named_but_not_shown() {
    let world = World::new();
    let lint = |patterns: usize| {
        let list: Vec<_> = (0..patterns).map(|number| format!("\"*a{number}\"")).collect();
        let policy = format!(
            "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [{}]\n",
            list.join(", ")
        );
        std::fs::write(world.base().join("p.toml"), policy).unwrap();
        let mut command = world.command(&["policy", "lint", "--no-tree", "p.toml"]);
        done(command.current_dir(world.base()).output().unwrap()).ok().text().to_owned()
    };
    let (short, long) = (lint(10), lint(1000));
    assert!(short.contains("--> p.toml:5:10") && short.contains("5 | paths"), "{short}");
    assert!(long.contains("--> p.toml:5:10") && !long.contains("5 | "), "{long}");
}

/// Every two patterns were compared, which took minutes for 9,900.
#[test]
fn a_lint_says_which_patterns_it_did_not_compare() {
    let world = World::new();
    let found = |patterns: usize| {
        let list: Vec<_> = (0..patterns).map(|number| format!("\"*a{number}\",\n")).collect();
        let policy = format!(
            "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [\n{}]\n",
            list.concat()
        );
        let path = world.base().join("p.toml");
        std::fs::write(&path, policy).unwrap();
        let lint = ["policy", "lint", "--json", "--no-tree", path.to_str().unwrap()];
        let found = world.run(&lint).ok().json();
        let all = found["findings"].as_array().unwrap().iter();
        let some = all.filter(|finding| finding["id"] == "not-compared");
        some.map(|finding| finding["line"].clone()).collect::<Vec<_>>()
    };
    assert!(found(1000).is_empty());
    // The first pattern is in line 6.
    assert_eq!(found(1002), [1006]);
}

/// Git waited for the other end of a pipe, for ten minutes.
#[test]
fn a_lint_opens_no_pipe_in_a_repository() {
    for name in ["packed-refs", "objects/info/alternates", "objects/pack/pack-x.idx"] {
        let world = World::new();
        world.file("a.txt", "x");
        let script = format!(
            "git init -q && git add a.txt && git -c user.name=n -c user.email=n@x commit -qm x && \
             mkdir -p .git/objects/info .git/objects/pack && mkfifo .git/{name}"
        );
        let mut git = std::process::Command::new("sh");
        git.args(["-ec", &script]).current_dir(world.root());
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        assert!(git.status().unwrap().success());
        let done = world.run(&["policy", "lint", "default"]).ok();
        assert!(done.stderr.contains(&format!(".git/{name}` is no regular file")), "{done:?}");
    }
}
