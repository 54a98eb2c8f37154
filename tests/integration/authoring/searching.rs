//! `policy explain` of searches and subscriptions, compared with the gateway.

use serde_json::Value;

use super::policy_file;
use crate::common::World;

const POLICY: &str = r#"schema = 1
[allowedPaths]
read = ["src/**", "open/kept/**"]
list = ["src/**", "open", "open/**", "half/in/**", "link", "dangling"]

[[rules]]
id = "no"
effect = "deny"
paths = ["open/no/**"]

[[rules]]
id = "person"
effect = "ask"
paths = ["open/asked/**"]

[[rules]]
id = "reader"
effect = "ask"
operations = ["read"]
paths = ["open/kept/**"]
"#;

fn world() -> World {
    let mut world = World::new();
    policy_file(&world, "policy.toml", POLICY);
    for file in ["src/a", "open/a", "open/no/a", "open/asked/a", "half/in/a", "open/kept/a"] {
        world.file(file, "text");
    }
    std::os::unix::fs::symlink("src", world.path("link")).unwrap();
    std::os::unix::fs::symlink("gone", world.path("dangling")).unwrap();
    world.use_policy("policy.toml");
    world
}

/// Effect and rule.
type EffectAndRule = (String, String);

fn explained(world: &World, args: &[&str]) -> EffectAndRule {
    let report = world.run(&[&["policy", "explain", "--json"], args].concat()).ok().json();
    let decision = &report["decision"];
    (text(&decision["effect"]), text(&decision["rule"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// A search in a directory was explained as one in a file, and so reported as
/// "denied" where the gateway allows.
#[test]
fn a_search_is_explained_as_the_gateway_decides_it() {
    let world = world();
    let cases = [
        ("src", "allow", "search.beneath"),
        ("src/a", "allow", "allowedPaths"),
        (".", "allow", "search.beneath"),
        ("open", "allow", "allowedPaths"),
        ("half", "allow", "search.beneath"),
        ("half/gone", "deny", "allowedPaths"),
        ("nothing", "deny", "allowedPaths"),
        ("open/no", "deny", "no"),
        ("link", "allow", "search.beneath"),
        ("dangling", "deny", "allowedPaths"),
        ("open/asked", "allow", "person"),
    ];
    for (operation, more) in
        [("grep", &["text"][..]), ("glob", &["**"][..]), ("watch", &["--timeout", "0"][..])]
    {
        for (path, effect, rule) in cases {
            let effect = if (operation, rule) == ("watch", "person") { "deny" } else { effect };
            world.fs(&[&[operation], more, &[path]].concat());
            let records = world.requests();
            let asked = |record: &&Value| {
                (&record["op"], &record["path"]) == (&operation.into(), &path.into())
            };
            let record = records.iter().find(asked).unwrap();
            let done = (text(&record["decision"]), text(&record["rule"]));
            assert!(done.0 == effect && done.1.starts_with(rule), "{operation} {path}: {record}");
            assert_eq!(explained(&world, &[operation, path]), done, "{operation} {path}");
            let again = explained(&world, &["--record", &record["seq"].to_string()]);
            assert_eq!(again, done, "{operation} {path}");
        }
    }
}

#[test]
fn a_file_that_is_searched_by_its_name_is_explained_as_one_that_is_read() {
    let world = world();
    world.fs(&["grep", "text", "open/a"]).denied("allowedPaths.read");
    assert_eq!(explained(&world, &["grep", "open/a"]), ("deny".into(), "allowedPaths.read".into()));
    assert_eq!(explained(&world, &["glob", "open/a"]).0, "allow");
    let kept = world.run(&["policy", "explain", "grep", "open/kept/a"]).ok();
    insta::assert_snapshot!(kept.text().lines().take(3).collect::<Vec<_>>().join("\n"), @r"
    allowed by `reader` (policy.toml:17)
    policy `policy` version 0, agent `agent`
    note: an entry about which a rule asks is left out of the result
    ");
    let closed = world.run(&["policy", "explain", "grep", "src"]).ok();
    insta::assert_snapshot!(closed.text().lines().take(5).collect::<Vec<_>>().join("\n"), @r"
    allowed by `search.beneath`: nothing allows this directory, but something beneath it
    policy `policy` version 0, agent `agent`
    note: each entry beneath is decided separately: one that may not be listed, or for `grep` read, is left out

    grep: list src
    ");
}
