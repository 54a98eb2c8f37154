//! `mode = "observe"`: what it lets pass, what it does not, and where it shows.

use crate::common::World;

const POLICY: &str = r#"schema = 1
name = "watch"
mode = "observe"
extends = ["baseline"]
[allowedPaths]
read = ["src/**"]
list = ["src", "src/**"]
write = ["src/**"]
[extensions]
allow = { write = ["rs"] }
deny = ["exe"]
[files]
maxWriteSize = "100B"
[[rules]]
id = "closed"
effect = "deny"
paths = ["closed/**"]
[[tests]]
operation = "read"
path = "notes.txt"
expect = { effect = "deny", rule = "allowedPaths.read" }
"#;

fn world() -> World {
    let world = World::with_policy(POLICY);
    world.file("src/a.rs", "fn a() {}\n");
    world.file("notes.txt", "notes\n");
    world.file("closed/a.txt", "closed\n");
    world.file(".env", "KEY=1\n");
    world
}

#[track_caller]
fn would_deny(world: &World, rule: &str) {
    let record = world.requests().into_iter().rev().find(|r| r["kind"] != "outcome").unwrap();
    assert_eq!(record["decision"], "allow", "{record}");
    assert_eq!(record["wouldDeny"], true, "{record}");
    assert_eq!(record["rule"], rule, "{record}");
}

#[test]
fn what_nothing_allows_passes_and_is_recorded_with_the_rule() {
    let world = world();
    world.fs(&["read", "src/a.rs"]).ok();
    assert_eq!(world.last().get("wouldDeny"), None, "allowed anyway");
    assert_eq!(world.fs(&["read", "notes.txt"]).ok().text(), "notes\n");
    would_deny(&world, "allowedPaths.read");
    world.write("src/a.txt", "x").ok();
    would_deny(&world, "extensions.allow.write");
    world.write("new.rs", "x").ok();
    would_deny(&world, "allowedPaths.write");
    world.fs(&["rm", "new.rs"]).ok();
    would_deny(&world, "default");
    world.fs(&["mv", "src/a.rs", "elsewhere.rs"]).ok();
    would_deny(&world, "default");
    world.fs(&["ls"]).ok();
    would_deny(&world, "allowedPaths.list");
    assert_eq!(world.last()["counts"]["wouldHide"], 2, "{}", world.last());
}

#[test]
fn denials_secrets_types_and_content_stay_enforced() {
    let world = world();
    world.fs(&["read", "closed/a.txt"]).denied("closed");
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world.write(".git/hooks/pre-commit", "x").denied("git");
    world.write("a.exe", "x").denied("extensions.deny");
    world.write("big", "x".repeat(101)).denied("files.maxWriteSize");
    world.write("binary", b"\0").denied("files.binary.write");
    world.fs(&["read", "../outside"]).denied("workspace.outside");
    std::os::unix::fs::symlink("/etc/passwd", world.path("link")).unwrap();
    world.fs(&["read", "link"]).denied("workspace.outside");
    world.fs(&["mv", "closed/a.txt", "src/a.rs"]).denied("closed");
}

/// A request that was only let pass and then failed lost that mark.
#[test]
fn what_is_let_pass_and_fails_is_recorded_as_let_pass() {
    let world = world();
    assert_eq!(world.fs(&["read", "docs/missing.md"]).code, 1);
    would_deny(&world, "allowedPaths.read");
    assert_eq!(world.last()["result"], "notFound");
}

#[test]
fn it_is_seen_at_the_start_in_doctor_and_on_stderr() {
    let world = world();
    let done = world.fs(&["read", "notes.txt"]).ok();
    assert!(done.stderr.contains("warning: the policy `watch` observes"), "{}", done.stderr);
    let start = world.records().into_iter().find(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["facts"]["mode"], "observe");
    let doctor = world.run(&["doctor", "--json"]).json();
    let checks = doctor["checks"].as_array().unwrap();
    let policy = checks.iter().find(|check| check["name"] == "policy").unwrap();
    assert_eq!(policy["status"], "warning", "{policy}");
    assert!(policy["found"].as_str().unwrap().ends_with(", observing"), "{policy}");
    let explained = world.run(&["policy", "explain", "read", "notes.txt"]).ok();
    let first = explained.text().lines().next().unwrap();
    assert!(first.starts_with("observed only: would be denied by `allowedPaths.read`"), "{first}");
}

#[test]
fn an_extended_policy_neither_observes_for_its_child_nor_is_overruled() {
    let mut world = world();
    let parent = world.base().join("policy/parent.toml");
    let child = |more: &str| format!("schema = 1\nextends = [\"./parent.toml\"]\n{more}");
    for (above, own, passes) in [
        ("mode = \"observe\"\n", "", false),
        ("mode = \"enforce\"\n", "mode = \"observe\"\n", false),
        ("", "mode = \"observe\"\n", true),
    ] {
        std::fs::write(&parent, format!("schema = 1\n{above}")).unwrap();
        world.set_policy(&child(own));
        let done = world.fs(&["read", "notes.txt"]);
        assert_eq!(done.code == 0, passes, "{above}{own}{}", done.stderr);
    }
}
