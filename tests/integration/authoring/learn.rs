//! `portcullis policy learn`.

use portcullis_audit::{Chain, Draft, Kind, Prepared};

use super::policy_file;
use crate::common::{Done, World};

const TIGHT: &str = r#"schema = 1
name = "tight"
extends = ["baseline"]

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["README.md"]

[[rules]]
id = "payments"
effect = "deny"
operations = ["write"]
paths = ["src/payments/**"]

[[tests]]
operation = "write"
path = "src/payments/card.rs"
expect = { effect = "deny", rule = "payments" }
"#;

/// A world with a log full of denials.
fn world() -> World {
    let mut world = World::new();
    policy_file(&world, "tight.toml", TIGHT);
    world.use_policy("tight.toml");
    for file in ["src/a.rs", "src/b.rs", "src/c.rs", "notes/today.txt"] {
        world.write(file, "x").denied("allowedPaths.write");
    }
    world.write("src/a.rs", "x").denied("allowedPaths.write");
    // None of these may ever be proposed.
    world.write("src/payments/card.rs", "x").denied("payments");
    world.write("src/.env", "x").denied("secrets.names[0]");
    for hook in ["pre-commit", "pre-push", "post-commit"] {
        world.write(&format!(".git/hooks/{hook}"), "x").denied("git");
    }
    world
}

fn learn(world: &World, args: &[&str]) -> Done {
    world.run(&[&["policy", "learn"], args].concat())
}

#[test]
fn a_proposal_is_a_diff_with_counts_and_records() {
    let world = world();
    let done = learn(&world, &[]).ok();
    insta::assert_snapshot!(done.text(), @r#"
    --- tight.toml
    +++ tight.toml (learned)
    @@ -5,7 +5,10 @@
     [allowedPaths]
     read = ["**"]
     list = ["**"]
    -write = ["README.md"]
    +write = ["README.md",
    +    "notes/today.txt", # 1x, record 10, agent cli
    +    "src/*.rs", # 4x, 3 paths, record 1, agent cli
    +]
     
     [[rules]]
     id = "payments"
    "#);
    insta::assert_snapshot!(done.stderr, @r"
    note: the log was not verified; `portcullis audit verify` does that
    10 requests read; 2 patterns and 0 extensions to allow
      with the proposal, `git` denies 3
      with the proposal, `payments` denies 1
      with the proposal, `secrets.names[0]` denies 1
    with the proposal, 5 more of the recorded requests are allowed
      `src/*.rs` allows `write` for more than the 3 paths requested
      what is listed is allowed to every agent, not only to the one that requested it
    ");
}

#[test]
fn the_proposal_allows_what_was_asked_for_and_nothing_that_is_denied() {
    let mut world = world();
    let done = learn(&world, &[]).ok();
    let patch = done.text().to_owned();
    let text: String =
        TIGHT.replace("write = [\"README.md\"]\n", "write = [\"README.md\",\nNEW]\n").replace(
            "NEW",
            &patch
                .lines()
                .filter_map(|line| line.strip_prefix("+    "))
                .fold(String::new(), |text, line| text + line + "\n"),
        );
    policy_file(&world, "learned.toml", &text);
    world.use_policy("learned.toml");
    for file in ["src/a.rs", "src/d.rs", "notes/today.txt"] {
        world.write(file, "x").ok();
    }
    world.write("notes/other.txt", "x").denied("allowedPaths.write");
    world.write("src/payments/card.rs", "x").denied("payments");
    world.write("src/.env", "x").denied("secrets.names[0]");
    world.write(".git/hooks/pre-commit", "x").denied("git");
    // Nothing more to learn.
    let again = learn(&world, &["--json"]).ok().json();
    assert_eq!(again["allowedPaths"].as_array().unwrap().len(), 1, "{again}");
}

/// The policy in force need not extend `baseline`.
#[test]
fn what_baseline_denies_is_never_proposed() {
    let mut world = World::new();
    policy_file(&world, "bare.toml", "schema = 1\n[allowedPaths]\nread = []\nlist = []\n");
    world.use_policy("bare.toml");
    for file in [".git/config", ".git/HEAD", ".git/index", ".env", "id_rsa", ".vscode/tasks.json"] {
        world.write(file, "x").denied("default");
        let read = world.fs(&["read", file]);
        assert_eq!(read.code, 3);
    }
    let json = learn(&world, &["--json"]).ok().json();
    let patterns: Vec<_> = json["allowedPaths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proposal| proposal["pattern"].as_str().unwrap())
        .collect();
    assert_eq!(patterns, [".git/HEAD", ".git/config", ".git/index", ".vscode/tasks.json"]);
    for proposal in json["allowedPaths"].as_array().unwrap() {
        // Git's own files may be read.
        assert_eq!(proposal["access"], "read", "{json}");
        assert!(!proposal["pattern"].as_str().unwrap().contains("env"), "{json}");
    }
    assert_eq!(json["stillDenied"]["git"], 3);
}

#[test]
fn extending_only_narrows_so_a_bound_above_stays() {
    let mut world = World::new();
    policy_file(&world, "top.toml", "schema = 1\n[allowedPaths]\nread = [\"src/**\"]\n");
    policy_file(&world, "child.toml", "schema = 1\nextends = [\"top.toml\"]\n");
    world.use_policy("child.toml");
    assert_eq!(world.fs(&["read", "docs/a"]).code, 3);
    let done = learn(&world, &[]).ok();
    assert_eq!(done.text(), "");
    assert!(
        done.stderr.contains("with the proposal, `allowedPaths.read (top.toml)` denies 1"),
        "{}",
        done.stderr
    );
}

#[test]
fn extensions_are_learned_where_they_are_listed() {
    let mut world = World::new();
    let text = "schema = 1\n[allowedPaths]\nwrite = [\"**\"]\n[extensions]\n\
        allow = { write = [\"md\"] }\n";
    policy_file(&world, "p.toml", text);
    world.use_policy("p.toml");
    world.write("a.txt", "x").denied("extensions.allow.write");
    let done = learn(&world, &[]).ok();
    assert!(done.text().contains("+    \"txt\", # 1x, record 1"), "{}", done.text());
    let wider = "the extension `txt` is allowed wherever `allowedPaths.write` is";
    assert!(done.stderr.contains(wider), "{}", done.stderr);
}

/// A pattern was proposed with counts that looked as if it were all that it allows.
#[test]
fn what_allows_more_than_was_asked_for_says_so() {
    let world = world();
    let json = learn(&world, &["--json"]).ok().json();
    let proposals = json["allowedPaths"].as_array().unwrap();
    let said: Vec<_> =
        proposals.iter().map(|p| (&p["pattern"], &p["paths"], &p["wider"])).collect();
    assert_eq!(said[0], (&"notes/today.txt".into(), &1.into(), &false.into()));
    assert_eq!(said[1], (&"src/*.rs".into(), &3.into(), &true.into()));
}

#[test]
fn a_proposal_against_a_test_says_so() {
    let mut world = World::new();
    let text = "schema = 1\n[allowedPaths]\nwrite = []\n[[tests]]\noperation = \"write\"\n\
        path = \"a.txt\"\nexpect = { effect = \"deny\" }\n";
    policy_file(&world, "p.toml", text);
    world.use_policy("p.toml");
    world.write("a.txt", "x").denied("allowedPaths.write");
    let done = learn(&world, &[]);
    assert_eq!(done.code, 4);
    assert!(done.stderr.contains("a test expects a denial"), "{}", done.stderr);
}

/// One request made `policy learn` fail, as long as its record was there.
#[test]
fn a_name_that_no_list_can_have_made_every_proposal_fail() {
    let mut world = World::new();
    let text = "schema = 1\n[allowedPaths]\nread = [\"docs/**\"]\nwrite = []\n\
        [extensions]\nallow = { read = [\"md\"] }\n";
    policy_file(&world, "p.toml", text);
    world.use_policy("p.toml");
    let long = ["d"; 700].join("/");
    for path in ["...", "a/.../b", "x (1).txt y", "a.yml b.yml", long.as_str(), "plain.txt"] {
        world.write(path, "x").denied("allowedPaths.write");
    }
    for path in ["docs/a.x y", "docs/a.{x}", "docs/a.", "docs/a.rst"] {
        assert_eq!(world.fs(&["read", path]).code, 3, "{path}");
    }
    let done = learn(&world, &[]).ok();
    for proposed in ["[.][.][.]", "plain.txt", "rst"] {
        assert!(done.text().contains(proposed), "{proposed}: {done:?}");
    }
    assert!(done.stderr.contains("with the proposal, `allowedPaths.write` denies 1"), "{done:?}");
}

/// Names from an agent appear in a policy as text, never as more policy.
#[test]
fn hostile_names_stay_names() {
    let mut world = World::new();
    policy_file(&world, "p.toml", "schema = 1\n[allowedPaths]\nread = []\n");
    world.use_policy("p.toml");
    for path in ["**", "*", "{a,b}", "a\"]\nread = [\"**\"]#", "a'b", "\\", "a\u{202e}b"] {
        assert_eq!(world.fs(&["read", path]).code, 3, "{path}");
    }
    let done = learn(&world, &["--json"]).ok().json();
    for proposal in done["allowedPaths"].as_array().unwrap() {
        let pattern = proposal["pattern"].as_str().unwrap();
        assert!(!matches!(pattern, "**" | "*" | "{a,b}"), "{done}");
    }
    let done = learn(&world, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let read = |line: &&str| line.starts_with("+read");
    assert_eq!(done.text().lines().filter(read).count(), 1, "{}", done.text());
    assert!(!done.text().contains('\u{202e}'));
}

/// Requests that only the default denies are allowed in observe mode and recorded
/// as such: it is learned from, and counts as denied in a replay.
#[test]
fn observed_requests_count_as_denied() {
    let mut world = World::new();
    policy_file(&world, "p.toml", TIGHT);
    world.use_policy("p.toml");
    let log = world.state().join("audit");
    std::fs::create_dir_all(&log).unwrap();
    let (mut chain, mut lines) = (Chain::new(), Vec::new());
    for (path, would_deny) in [("src/a.rs", Some(true)), ("README.md", None)] {
        let draft = Draft {
            agent: Some("bot".to_owned()),
            op: Some("write".to_owned()),
            path: Some(path.to_owned()),
            decision: Some("allow".to_owned()),
            would_deny,
            rule: Some("allowedPaths.write".to_owned()),
            ..Draft::default()
        };
        let record = Prepared::new(Kind::Intent, &draft, [7; 16]).unwrap();
        chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
    }
    std::fs::write(log.join("seg-000000.jsonl"), lines).unwrap();
    let json = learn(&world, &["--json"]).ok().json();
    assert_eq!(json["allowedPaths"][0]["pattern"], "src/a.rs", "{json}");
    assert_eq!(json["allowedPaths"].as_array().unwrap().len(), 1, "{json}");
    let replay = world.run(&["policy", "replay", "p.toml", "--json"]).ok().json();
    assert_eq!((&replay["same"], &replay["changed"]), (&2.into(), &0.into()), "{replay}");
    let done = learn(&world, &[]).ok();
    assert!(done.stderr.contains("with the proposal, 1 more"), "{}", done.stderr);
    assert!(!done.stderr.contains("denied"), "{}", done.stderr);
}

/// A program sees what may be listed. What observe mode alone showed it was proposed to be read and
/// written, and then was missing in the mount.
#[test]
fn what_programs_of_a_mount_used_was_not_proposed_to_be_listed() {
    let world = World::new();
    let text = "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\n\
        list = [\"src/**\"]\nwrite = [\"src/**\"]\nremove = [\"**\"]\n";
    policy_file(&world, "p.toml", text);
    let log = world.state().join("audit");
    std::fs::create_dir_all(&log).unwrap();
    let (mut chain, mut lines) = (Chain::new(), Vec::new());
    let requests = [
        ("read", "docs/a.md", None, None),
        ("write", "docs/b.md", None, Some(true)),
        ("read", "src/a.rs", None, None),
        ("rename", "old/a", Some("new/a"), Some(true)),
        // It is denied to read it, and was not shown.
        ("read", ".env", None, None),
    ];
    for (number, (op, path, to, would_deny)) in requests.into_iter().enumerate() {
        for (transport, is_setup) in [("mount", false), ("mount", true), ("acp", false)] {
            let path = if is_setup { format!("set/{number}") } else { path.to_owned() };
            // What other transports request needs no name.
            let path = if transport == "acp" { format!("acp/{path}") } else { path };
            let draft = Draft {
                agent: Some("bot".to_owned()),
                transport: Some(transport.to_owned()),
                op: Some(if is_setup { "read" } else { op }.to_owned()),
                path: Some(path),
                to: to.filter(|_| !is_setup).map(str::to_owned),
                decision: Some("allow".to_owned()),
                would_deny: would_deny.filter(|_| transport == "mount"),
                rule: Some("allowedPaths.read".to_owned()),
                facts: is_setup.then(|| [("setup".to_owned(), true.into())].into()),
                ..Draft::default()
            };
            let record = Prepared::new(Kind::Intent, &draft, [7; 16]).unwrap();
            chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
        }
    }
    std::fs::write(log.join("seg-000000.jsonl"), lines).unwrap();
    let json = learn(&world, &["--policy", "p.toml", "--json"]).ok().json();
    let proposals = json["allowedPaths"].as_array().unwrap().iter();
    let proposals: Vec<_> = proposals
        .map(|proposal| {
            let text = |key: &str| proposal[key].as_str().unwrap();
            format!("{} {} {}", text("access"), text("pattern"), proposal["requests"])
        })
        .collect();
    let listed = ["docs/a.md", "docs/b.md", "new/a", "old/a"].map(|path| format!("list {path} 1"));
    let written = ["docs/b.md", "new/a"].map(|path| format!("write {path} 1"));
    assert_eq!(proposals, [&listed[..], &written].concat(), "{json}");
    assert_eq!(json["stillDenied"], serde_json::json!({}), "{json}");
}

/// Regression: after its patch was applied, it reported everything that it had opened as still
/// denied.
#[test]
fn what_the_policy_allows_by_now_does_not_stay_denied() {
    let world = world();
    // Denied for more than its name: the content, and what a link leads to.
    let long = TIGHT.replace("[[rules]]", "[files]\nmaxWriteSize = \"1KiB\"\n\n[[rules]]");
    policy_file(&world, "tight.toml", &long);
    world.write("README.md", "x".repeat(2000)).denied("files.maxWriteSize");
    std::os::unix::fs::symlink("/", world.path("out")).unwrap();
    world.fs(&["read", "out"]).denied("workspace.outside");
    let learned = long.replace("[\"README.md\"]", "[\"README.md\", \"src/*.rs\"]");
    policy_file(&world, "learned.toml", &learned);
    let again = learn(&world, &["--policy", "learned.toml"]).ok();
    insta::assert_snapshot!(again.stderr, @r"
    note: the log was not verified; `portcullis audit verify` does that
    12 requests read; 1 pattern and 0 extensions to allow
      4 are allowed by now
      with the proposal, `files.maxWriteSize` denies 1
      with the proposal, `git` denies 3
      with the proposal, `payments` denies 1
      with the proposal, `secrets.names[0]` denies 1
      with the proposal, `workspace.outside` denies 1
    with the proposal, 1 more of the recorded requests are allowed
      what is listed is allowed to every agent, not only to the one that requested it
    ");
    let json = learn(&world, &["--policy", "learned.toml", "--json"]).ok().json();
    assert_eq!(json["allowedNow"], 4, "{json}");
    // The policy of then denies what it denied.
    let same = learn(&world, &["--json"]).ok().json();
    assert_eq!(same["allowedNow"], 0, "{same}");
}
