//! `policy explain --who` and `--record`, `policy diff`, `policy replay`.

mod diff;

use super::policy_file;
use crate::common::World;

const HOST: &str =
    "[[network.rules]]\nid = \"h\"\neffect = \"allow\"\nhosts = [\"a.example\"]\nports = [443]\n";

const OLD: &str = r#"schema = 1
name = "shop"
version = 1
mode = "enforce"

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["src/**"]
remove = ["src/**"]

[limits]
filesRemoved = 2

[[rules]]
id = "payments"
effect = "deny"
operations = ["write"]
paths = ["src/payments/**"]
agents = ["bot-*"]

[secrets]
names = [".env"]
"#;

fn new() -> String {
    OLD.replace("write = [\"src/**\"]", "write = [\"docs/**\", \"src/**\"]")
        .replace("filesRemoved = 2", "filesRemoved = 5")
        .replace("bot-*", "robot")
        .replace("remove = [\"src/**\"]", "remove = []")
        .replace("version = 1", "version = 2")
}

fn world() -> World {
    let mut world = World::new();
    policy_file(&world, "old.toml", OLD);
    policy_file(&world, "new.toml", &new());
    for file in ["src/a.rs", "src/payments/card.rs", "docs/guide.md", "README.md", ".env"] {
        world.file(file, "text");
    }
    std::os::unix::fs::symlink("src/a.rs", world.path("link.rs")).unwrap();
    std::os::unix::fs::symlink("/etc", world.path("out")).unwrap();
    world.use_policy("old.toml");
    world
}

#[test]
fn who_can_do_what_is_a_tree() {
    let world = world();
    let who = |args: &[&str]| {
        let done = world.run(&[&["policy", "explain", "--who"], args].concat()).ok();
        done.text().to_owned()
    };
    insta::assert_snapshot!(who(&["bot-1", "--can", "write"]), @r"
    agent `bot-1` can write 1 of 6 files (policy `shop` version 1)
    .
    └── src/  1 of 2
        └── a.rs
    ");
    insta::assert_snapshot!(who(&["agent", "--can", "read"]), @r"
    agent `agent` can read 5 of 6 files (policy `shop` version 1)
    .
    ├── README.md
    ├── docs/  all 1
    ├── link.rs
    └── src/  all 2
    ");
    insta::assert_snapshot!(who(&["agent", "--can", "list"]), @r"
    agent `agent` can list 4 of 4 directories (policy `shop` version 1)
    .
    ├── docs/  all 1
    └── src/  all 2
    ");
    let json = world.run(&["policy", "explain", "--who", "agent", "--can", "remove", "--json"]);
    let json = json.ok().json();
    assert_eq!(json["paths"], serde_json::json!(["src/a.rs", "src/payments/card.rs"]));
    assert_eq!(world.run(&["policy", "explain", "--who", "agent", "--can", "fly"]).code, 2);
}

/// Paths that only observe mode lets through were left out, while the agent wrote them.
#[test]
fn the_tree_marks_what_only_observe_mode_lets_through() {
    let world = world();
    let tree = |mode: &str| {
        let text = format!(
            "schema = 1\nname = \"m\"\nmode = \"{mode}\"\n[allowedPaths]\nread = [\"**\"]\n\
             list = [\"**\"]\nwrite = [\"src/**\"]\n"
        );
        policy_file(&world, "mode.toml", &text);
        let who =
            ["policy", "explain", "--policy", "mode.toml", "--who", "agent", "--can", "write"];
        let json = world.run(&[&who[..], &["--json"]].concat()).ok().json();
        assert_eq!(json["mode"], mode);
        let observed = json["observed"].as_array().unwrap();
        assert_eq!(observed.contains(&"README.md".into()), mode == "observe");
        assert!(!json["paths"].as_array().unwrap().contains(&"README.md".into()));
        let done = world.run(&who).ok();
        assert_eq!(done.stderr.contains("observes"), mode == "observe", "{done:?}");
        done.text().to_owned()
    };
    let enforced = tree("enforce");
    assert!(enforced.starts_with("agent `agent` can write 2 of 6 files"), "{enforced}");
    assert!(!enforced.contains("observed"), "{enforced}");
    let observed = tree("observe");
    assert!(
        observed.contains("of them while the policy observes, marked `observed`"),
        "{observed}"
    );
    assert!(observed.contains("README.md  observed\n"), "{observed}");
}

/// An access that is allowed covered another one of the same operation that only observe mode allows.
#[test]
fn the_tree_had_as_allowed_what_is_observed_by_one_of_two_accesses() {
    let mut world = world();
    policy_file(
        &world,
        "observe.toml",
        "schema = 1\nmode = \"observe\"\n[allowedPaths]\nread = [\"**\"]\n",
    );
    world.use_policy("observe.toml");
    for operation in ["grep", "edit"] {
        let who = ["policy", "explain", "--who", "agent", "--can", operation, "--json"];
        let json = world.run(&who).ok().json();
        assert_eq!(json["paths"], serde_json::json!([]), "{operation}");
        // Links, too.
        for file in ["README.md", "link.rs", "src/a.rs"] {
            assert!(json["observed"].as_array().unwrap().contains(&file.into()), "{json}");
            let one = world.run(&["policy", "explain", operation, file, "--json"]);
            assert_eq!(one.ok().json()["decision"]["wouldDeny"], true, "{operation} {file}");
        }
    }
}

/// The gateway decides as the tree reports.
#[test]
fn the_tree_is_what_the_gateway_does() {
    let world = world();
    let json = world.run(&["policy", "explain", "--who", "cli", "--can", "read", "--json"]);
    let readable = json.ok().json()["paths"].as_array().unwrap().clone();
    for file in ["src/a.rs", "docs/guide.md", "README.md", ".env", "link.rs"] {
        let can = readable.contains(&file.into());
        assert_eq!(world.fs(&["read", file]).code == 0, can, "{file}");
    }
}

#[test]
fn a_record_is_explained_by_the_policy_of_now() {
    let mut world = world();
    world.write("docs/guide.md", "more").denied("allowedPaths.write");
    let seq = world.last()["seq"].to_string();
    let explain = |world: &World| {
        let done = world.run(&["policy", "explain", "--record", &seq]).ok();
        let text = done.text().to_owned();
        // The time and the hash are others every time.
        let hide = |text: &str, from: &str, to: &str| {
            let start = text.find(from).map(|at| at + from.len());
            match start.and_then(|start| Some((start, start + text[start..].find(to)?))) {
                Some((start, end)) => format!("{}…{}", &text[..start], &text[end..]),
                None => text.to_owned(),
            }
        };
        let text = hide(&text, ", 20", ": `");
        let text = hide(&text, "then (", ")");
        hide(&text, "policies/", ".toml")
    };
    let then = explain(&world);
    assert!(then.contains("the policy is the same as then"), "{then}");
    world.use_policy("new.toml");
    insta::assert_snapshot!(explain(&world), @r"
    record 1, 20…: `write` of `docs/guide.md` by agent `cli`
    it was denied by `allowedPaths.write` (old.toml:9): nothing in the policy allows writing this path
    another policy was in force then (…); its text is in the state directory: policies/….toml
    what this policy says of it now:

    allowed by `allowedPaths.write` (new.toml:9)
    policy `shop` version 2, agent `cli`

    write: write docs/guide.md
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      pass  rules
      pass  links
      pass  extensions.allow
      allow allowedPaths          allowedPaths.write  new.toml:9
      pass  files.symlinks
      pass  files.type
      pass  files.hardlinks
      open  files.maxWriteSize    depends on the content
      open  files.binary.write    depends on the content
      open  limits                depends on what the session has done
      open  mount                 applies at the mount in place of these: at most 268435456 bytes
    ");
    let done = world.run(&["policy", "explain", "--record", "0"]);
    assert!(done.code == 1 && done.stderr.contains("about no operation"), "{}", done.stderr);
    let done = world.run(&["policy", "explain", "--record", "4711"]);
    assert!(done.code == 1 && done.stderr.contains("no record 4711"), "{}", done.stderr);
}

#[test]
fn a_replay_tells_what_changes() {
    let world = world();
    world.write("docs/later.md", "x").denied("allowedPaths.write");
    world.write("docs/later.md", "x").denied("allowedPaths.write");
    world.fs(&["read", "README.md"]).ok();
    world.fs(&["rm", "src/a.rs"]).ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    std::fs::write(world.path("src/nul.rs"), b"a\0b").unwrap();
    world.fs(&["read", "src/nul.rs"]).denied("files.binary.read");
    let done = world.run(&["policy", "replay", "new.toml"]).ok();
    insta::assert_snapshot!(done.text(), @r"
    replayed 6 requests of 19 records under `shop` version 2
           2 decided as before
           2 now allowed
           1 now denied
           1 not decided again: denied by `files.binary.read`, not by name

    now allowed:
         2x write docs/later.md  agent cli  deny by `allowedPaths.write` -> allow by `allowedPaths.write` (new.toml:9)  record 1

    now denied:
         1x remove src/a.rs  agent cli  allow by `allowedPaths.remove` -> deny by `allowedPaths.remove` (new.toml:10)  record 10
    ");
    let json = world.run(&["policy", "replay", "new.toml", "--json"]).ok().json();
    assert_eq!(json["changed"], 3);
    assert_eq!(json["undecided"]["files.binary.read"], 1);
    assert_eq!(json["changes"][0]["new"]["effect"], "allow");
    let same = world.run(&["policy", "replay", "old.toml", "--json"]).ok().json();
    assert_eq!(same["changed"], 0);
    let none = world.run(&["policy", "replay", "new.toml", "--since", "2999-01-01", "--json"]);
    assert_eq!(none.ok().json()["requests"], 0);
}

#[test]
fn tools_that_need_a_log_say_when_there_is_none() {
    let world = world();
    for args in [&["replay", "new.toml"][..], &["diff", "old.toml", "new.toml", "--log"]] {
        let done = world.run(&[&["policy"], args].concat());
        assert!(done.code == 1 && done.stderr.contains("no audit log"), "{}", done.stderr);
    }
    let done = world.run(&["policy", "replay", "missing.toml"]);
    assert_eq!(done.code, 4, "{}", done.stderr);
}

#[test]
fn what_only_a_search_or_a_watch_may_show_is_access_too() {
    let world = world();
    let closed =
        "schema = 1\n[allowedPaths]\nread = [\"docs/**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n";
    let rule = |effect: &str, operation: &str| {
        format!(
            "{closed}[[rules]]\nid = \"r\"\neffect = \"{effect}\"\noperations = [\"{operation}\"]\n\
             paths = [\"src{{,/**}}\"]\n"
        )
    };
    policy_file(&world, "closed.toml", closed);
    policy_file(&world, "grep.toml", &rule("allow", "grep"));
    let diff = |old: &str, new: &str| {
        world.run(&["policy", "diff", old, new, "--no-new-access", "--json"])
    };
    let opened = diff("closed.toml", "grep.toml");
    assert_eq!(opened.code, 4, "{}", opened.stderr);
    let opened = opened.json();
    let a =
        opened["changes"].as_array().unwrap().iter().find(|change| change["path"] == "src/a.rs");
    let a = a.unwrap();
    assert_eq!((&a["access"], &a["operations"]), (&"read".into(), &serde_json::json!(["grep"])));
    assert_eq!(diff("grep.toml", "closed.toml").code, 0);
    let who = ["policy", "explain", "--policy", "grep.toml", "--who", "agent", "--json", "--can"];
    let can = |word| world.run(&[&who[..], &[word]].concat()).ok().json()["paths"].clone();
    assert!(can("read").as_array().unwrap().contains(&"src/a.rs".into()));
    assert!(can("grep").as_array().unwrap().contains(&"src/a.rs".into()));
    // A denial that goes away opens what it denied.
    for operation in ["grep", "glob", "watch", "restore"] {
        let (name, open) = (format!("no-{operation}.toml"), "open.toml");
        let everything = |text: &str| text.replace("\"docs/**\"", "\"**\"");
        policy_file(&world, open, &everything(closed));
        policy_file(&world, &name, &everything(&rule("deny", operation)));
        assert_eq!(diff(&name, open).code, 4, "{operation}");
        assert_eq!(diff(open, &name).code, 0, "{operation}");
    }
}

/// Files in a directory that no glob enters counted as found.
#[test]
fn files_that_no_glob_shows_are_not_in_its_tree() {
    let rules = "[[rules]]\nid = \"closed\"\neffect = \"EFFECT\"\noperations = [\"glob\", \"grep\", \
        \"watch\"]\npaths = [\"d\"]\nscope = \"entry\"\n";
    for effect in ["deny", "ask"] {
        let world = World::with_rules(&rules.replace("EFFECT", effect));
        for file in ["d/f", "d/in/g", "e"] {
            world.file(file, "text");
        }
        let can = |operation: &str| {
            let who = ["policy", "explain", "--who", "cli", "--can", operation, "--json"];
            world.run(&who).ok().json()["paths"].clone()
        };
        assert_eq!(can("glob"), serde_json::json!(["d/in/g", "e"]));
        // A file is searched and watched by its name.
        for operation in ["grep", "watch"] {
            assert_eq!(can(operation), serde_json::json!(["d/f", "d/in/g", "e"]));
        }
        for (directory, found) in [(".", "e\n"), ("d", ""), ("d/in", "d/in/g\n")] {
            let done = world.fs(&["glob", "**", directory]);
            assert_eq!(done.text(), found, "{effect} {directory}: {done:?}");
        }
        assert!(world.fs(&["glob", "**", "d/f"]).stderr.contains("not a directory"));
        world.fs(&["grep", "text", "d/f"]).ok();
    }
}
