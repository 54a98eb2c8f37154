//! The tools on a policy that only observes: they report its would-be denials.

use super::policy_file;
use crate::common::World;

const POLICY: &str = r#"schema = 1
name = "watch"
version = 1
mode = "observe"
[allowedPaths]
read = ["src/**"]
write = [
    "src/**",
]
[[rules]]
id = "closed"
effect = "deny"
operations = ["write"]
paths = ["closed/**"]
[[tests]]
operation = "write"
path = "other/a.rs"
expect = { effect = "deny", rule = "allowedPaths.write" }
"#;

/// An agent has worked under it.
fn world() -> World {
    let mut world = World::new();
    policy_file(&world, "p.toml", POLICY);
    world.use_policy("p.toml");
    world.file("notes.md", "notes\n");
    for name in ["a", "b", "c"] {
        world.write(&format!("tests/{name}.rs"), "fn a() {}\n").ok();
    }
    world.write("closed/a", "x").denied("closed");
    world.fs(&["read", "notes.md"]).ok();
    world
}

#[test]
fn what_it_let_through_is_learned() {
    let world = world();
    let done = world.run(&["policy", "learn", "--policy", "p.toml"]).ok();
    let diff = done.text();
    assert!(diff.contains("+    \"tests/*.rs\", # 3x, 3 paths, record "), "{diff}{}", done.stderr);
    let added = diff.lines().filter(|line| line.starts_with('+'));
    assert!(added.into_iter().all(|line| !line.contains("closed")), "{diff}");
    assert!(done.stderr.contains("`closed` denies 1"), "{}", done.stderr);
    assert!(done.stderr.contains("with the proposal, 4 more"), "{}", done.stderr);
}

#[test]
fn its_tests_say_what_is_enforced() {
    let world = world();
    let steps = "schema = 1\n[[tests]]\nname = \"steps\"\nsteps = [\n\
        { operation = \"write\", path = \"src/a\", content = \"a\", expect = { effect = \"allow\" } },\n\
        { operation = \"write\", path = \"b\", content = \"b\", expect = { effect = \"deny\", \
        rule = \"allowedPaths.write\" } },\n]\n";
    policy_file(&world, "p.test.toml", steps);
    let done = world.run(&["policy", "test", "p.toml"]).ok();
    assert!(done.text().contains("2 of 2 tests passed"), "{}", done.text());
}

#[test]
fn it_is_compared_and_replayed_as_if_it_enforced() {
    let world = world();
    let wider = POLICY.replace("    \"src/**\",\n", "    \"src/**\",\n    \"tests/*.rs\",\n");
    policy_file(&world, "wider.toml", &wider);
    let diff = |old: &str, new: &str| {
        world.run(&["policy", "diff", old, new, "--no-new-access", "--json"])
    };
    let opened = diff("p.toml", "wider.toml");
    assert_eq!(opened.code, 4);
    let changes = opened.json();
    let paths: Vec<_> =
        changes["changes"].as_array().unwrap().iter().map(|c| c["path"].clone()).collect();
    assert!(paths.contains(&"tests/a.rs".into()), "{paths:?}");
    assert!(!paths.contains(&"notes.md".into()), "{paths:?}");
    assert_eq!(changes["settings"].as_array().unwrap().len(), 0);
    diff("wider.toml", "p.toml").ok();
    // To observe opens something, to enforce does not.
    policy_file(&world, "strict.toml", &POLICY.replace("observe", "enforce"));
    let observing = diff("strict.toml", "p.toml");
    assert_eq!(observing.code, 4);
    assert_eq!(observing.json()["settings"][0]["key"], "mode");
    diff("p.toml", "strict.toml").ok();

    let replay = |policy: &str| world.run(&["policy", "replay", policy, "--json"]).ok().json();
    assert_eq!(replay("p.toml")["changed"], 0);
    assert_eq!(replay("strict.toml")["changed"], 0);
    let replayed = replay("wider.toml");
    assert_eq!(replayed["changed"], 3, "{replayed}");
    assert_eq!(replayed["changes"][0]["new"]["effect"], "allow");
}

#[test]
fn an_outcome_is_explained_by_its_intent() {
    let world = world();
    let outcome = world.records().into_iter().find(|record| record["kind"] == "outcome").unwrap();
    let (of, seq) = (outcome["of"].as_u64().unwrap(), outcome["seq"].as_u64().unwrap());
    let explain = |seq: u64| {
        world.run(&["policy", "explain", "--policy", "p.toml", "--record", &seq.to_string()]).ok()
    };
    assert_eq!(explain(seq).text(), explain(of).text());
    assert!(explain(seq).text().contains("the policy only observed"), "{:?}", explain(seq));
}

#[test]
fn files_of_tests_that_a_shell_names_go_with_their_policy() {
    let world = World::new();
    policy_file(&world, "p.toml", "schema = 1\n");
    policy_file(&world, "p.test.toml", "schema = 1\n");
    for command in ["check", "test", "lint"] {
        let done = world.run(&["policy", command, "p.test.toml", "p.toml"]);
        assert_eq!(done.code, 0, "{command}: {}", done.stderr);
        let done = world.run(&["policy", command, "p.test.toml"]);
        assert_eq!(done.code, 2, "{command}: {}", done.stderr);
        assert!(done.stderr.contains("help: name the policy"), "{}", done.stderr);
    }
}
