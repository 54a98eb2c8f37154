//! A rule that restricts is about what its patterns name and all that is beneath it.

use serde_json::Value;

use crate::common::World;

fn world(effect: &str, rule: &str) -> World {
    let world = World::with_rules(&format!(
        "[[rules]]\nid = \"closed\"\neffect = \"{effect}\"\n{rule}\n[limits]\napprovalTimeout = \"1s\"\n"
    ));
    world.file("private/s.txt", "word\n");
    world.file("private/deep/t.txt", "word\n");
    world.file("private.txt", "word\n");
    world
}

fn explained(world: &World, operation: &str, path: &str) -> (Value, Value) {
    let json = world.run(&["policy", "explain", operation, path, "--json"]).json();
    (json["decision"]["effect"].clone(), json["decision"]["rule"].clone())
}

#[test]
fn a_denied_directory_is_closed_with_what_is_in_it() {
    for pattern in ["private", "Private", "*vate", "{private,other}", "pri[v]ate", "**/private"] {
        let world = world("deny", &format!("paths = [\"{pattern}\"]"));
        for path in ["private", "private/s.txt", "private/deep/t.txt", "PRIVATE/deep./t.txt"] {
            world.fs(&["stat", path]).denied("closed");
            assert_eq!(explained(&world, "read", path), ("deny".into(), "closed".into()), "{path}");
        }
        world.fs(&["read", "private/s.txt"]).denied("closed");
        world.fs(&["ls", "private/deep"]).denied("closed");
        world.write("private/deep/new.txt", "x").denied("closed");
        world.fs(&["rm", "private/deep/t.txt"]).denied("closed");
        world.fs(&["mv", "private/s.txt", "s.txt"]).denied("closed");
        world.fs(&["read", "private.txt"]).ok();
        let found = world.fs(&["grep", "word"]).ok();
        assert!(!found.text().contains("private/"), "{found:?}");
        assert_eq!(world.read("private/s.txt"), "word\n");
    }
}

#[test]
fn the_workspace_is_closed_with_what_is_in_it() {
    let world = world("deny", "operations = [\"read\"]\npaths = [\".\"]");
    world.fs(&["read", "private/s.txt"]).denied("closed");
    world.fs(&["ls", "private"]).ok();
}

#[test]
fn what_is_in_a_directory_that_is_asked_about_is_asked_about() {
    let world = world("ask", "paths = [\"private\"]");
    world.fs(&["read", "private/deep/t.txt"]).denied("closed");
    assert_eq!(explained(&world, "write", "private/a/b"), ("ask".into(), "closed".into()));
}

#[test]
fn a_rule_about_entries_leaves_what_is_beneath_them() {
    let world = world("deny", "scope = \"entry\"\npaths = [\"private\"]");
    world.fs(&["ls", "private"]).denied("closed");
    world.fs(&["read", "private/s.txt"]).ok();
}

#[test]
fn a_rule_that_allows_has_no_scope() {
    let world = world("allow", "scope = \"tree\"\noperations = [\"read\"]\npaths = [\"private\"]");
    let done = world.run(&["policy", "check", "policy/policy.toml", "--json"]);
    assert_eq!(done.code, 4);
    let errors = done.json()["policies"][0]["errors"].clone();
    assert_eq!(errors.as_array().map(Vec::len), Some(1), "{errors}");
}

/// Patterns that allow are compared as written.
#[test]
fn an_allowed_directory_is_not_opened_with_what_is_in_it() {
    let world =
        World::with_policy("schema = 1\n[allowedPaths]\nread = [\"src\"]\nlist = [\"src\"]\n");
    world.file("src/a.txt", "a");
    world.fs(&["ls", "src"]).ok();
    world.fs(&["read", "src/a.txt"]).denied("allowedPaths.read");
}

#[test]
fn a_denied_extension_closes_a_directory_with_what_is_in_it() {
    let world = World::with_rules("[extensions]\ndeny = [\"pem\"]\n");
    world.file("keys.pem/one", "1");
    world.fs(&["read", "keys.pem/one"]).denied("extensions.deny");
}

#[test]
fn a_comparison_tells_that_what_is_beneath_opens() {
    let world = world("deny", "paths = [\"elsewhere\"]");
    let policy = std::fs::read_to_string(world.base().join("policy/policy.toml")).unwrap();
    let entry = policy.replace("paths =", "scope = \"entry\"\npaths =");
    std::fs::write(world.base().join("entry.toml"), entry).unwrap();
    let diff = |old: &str, new: &str| world.run(&["policy", "diff", old, new, "--json"]).json();
    let opened = diff("policy/policy.toml", "entry.toml");
    let changes = opened["changes"].as_array().unwrap();
    assert!(
        !changes.is_empty()
            && changes.iter().all(|change| {
                change["path"].as_str().is_some_and(|path| path.starts_with("elsewhere/"))
            }),
        "{opened}"
    );
    assert_eq!(
        diff("policy/policy.toml", "policy/policy.toml")["changes"].as_array().unwrap().len(),
        0
    );
}

/// An agent is not shown tools that no path is left for.
#[test]
fn tools_that_a_denial_of_every_name_leaves_nothing_to_are_not_shown() {
    let world = world("deny", "operations = [\"write\", \"remove\"]\npaths = [\"*\"]");
    let hello = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
        r#""capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        "\n",
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        "\n",
    );
    let done = world.run_with_input(&["mcp"], hello);
    let lines: Vec<Value> =
        done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tools = lines.iter().find(|line| line["id"] == 2).unwrap()["result"]["tools"].clone();
    let names: Vec<_> =
        tools.as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.iter().any(|name| name.ends_with("read_file")), "{names:?}");
    assert!(
        !names.iter().any(|name| name.contains("write") || name.contains("append")),
        "{names:?}"
    );
}
