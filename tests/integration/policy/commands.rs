//! `portcullis policy`, as a person and as a program use it.

use serde_json::Value;

use crate::{
    approvals::{begin, end, id, waiting},
    common::World,
};

#[test]
fn check_says_what_a_good_policy_is() {
    let world = World::new();
    let done = world.run(&["policy", "check", "default", "read-only"]).ok();
    let lines: Vec<_> = done.text().lines().collect();
    assert!(lines[0].starts_with("default: ok, policy `default` version 1, "), "{lines:?}");
    assert!(lines[1].contains(" of what it extends, sha256 "), "{lines:?}");
}

/// It counted the tests of what a policy extends as its own, in the words of `test`.
#[test]
fn check_and_test_count_the_same_tests() {
    let mut world = World::new();
    let test = "[[tests]]\noperation = \"read\"\npath = \".env\"\nexpect = { effect = \"deny\" }\n";
    world.set_policy(&format!("schema = 1\nextends = [\"read-only\"]\n{test}"));
    let check = world.run(&["policy", "check", "policy/policy.toml"]).ok();
    assert!(check.text().contains(", 1 test passed, and "), "{check:?}");
    assert!(check.text().contains(" of what it extends, sha256 "), "{check:?}");
    let test = world.run(&["policy", "test", "policy/policy.toml"]).ok();
    assert!(test.text().contains(": 1 of 1 tests passed\n"), "{test:?}");
    let json = world.run(&["policy", "check", "--json", "policy/policy.toml"]).ok().json();
    let (all, own) = (&json["policies"][0]["tests"], &json["policies"][0]["ownTests"]);
    assert!(own == 1 && all.as_u64() > Some(1), "{json}");
}

#[test]
fn check_answers_programs() {
    let mut world = World::new();
    world.set_policy("schema = 1\nnmae = \"x\"\n");
    let done = world.run(&["policy", "check", "--json", "default", "policy/policy.toml", "nope"]);
    assert_eq!(done.code, 4);
    assert_eq!(done.stderr, "");
    let result = done.json();
    assert_eq!(result["ok"], false);
    assert_eq!(result["policies"][0]["ok"], true);
    assert_eq!(result["policies"][0]["sha256"].as_str().unwrap().len(), 64);
    let error = &result["policies"][1]["errors"][0];
    assert_eq!(error["message"], "unknown key `nmae`");
    assert_eq!((error["line"].as_u64(), error["column"].as_u64()), (Some(2), Some(1)));
    assert_eq!(error["help"], "did you mean `name`?");
    assert!(result["policies"][2]["errors"][0]["message"].as_str().unwrap().contains("nope"));
}

#[test]
fn a_policy_is_known_by_its_content_wherever_it_lies() {
    let world = World::new();
    let text = "schema = 1\nextends = [\"baseline\"]\n";
    std::fs::create_dir(world.base().join("sub")).unwrap();
    for file in ["a.toml", "sub/b.toml"] {
        std::fs::write(world.base().join(file), text).unwrap();
    }
    let done = world.run(&["policy", "check", "--json", "a.toml", "sub/b.toml"]).ok().json();
    assert_eq!(done["policies"][0]["sha256"], done["policies"][1]["sha256"]);
}

#[test]
fn extends_is_relative_to_the_extending_file() {
    let world = World::new();
    std::fs::create_dir(world.base().join("sub")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(world.base().join(name), text).unwrap();
    write("sub/child.toml", "schema = 1\nextends = [\"parent.toml\", \"../top.toml\"]\n");
    write("sub/parent.toml", "schema = 1\n[allowedPaths]\nread = [\"a/**\"]\n");
    write("top.toml", "schema = 1\n[allowedPaths]\nread = [\"a/*\"]\n");
    for (path, rule, file) in
        [("a/b", "allowedPaths.read", "parent.toml"), ("a/b/c", "allowedPaths.read", "../top.toml")]
    {
        let explain = ["policy", "explain", "--json", "--policy", "sub/child.toml", "read", path];
        let decision = world.run(&explain).ok().json()["decision"].clone();
        assert_eq!(
            (decision["rule"].as_str(), decision["file"].as_str()),
            (Some(rule), Some(file))
        );
    }
}

/// A policy whose own tests pass may be extended by one that narrows it: the
/// tests of the extended one are about that one alone.
#[test]
fn tests_of_an_extended_policy_run_on_it_alone() {
    let world = World::new();
    let parent = "schema = 1\n[allowedPaths]\nread = [\"**\"]\n\
        [[tests]]\noperation = \"read\"\npath = \"a\"\nexpect = { effect = \"EFFECT\" }\n";
    let child = "schema = 1\nextends = [\"./parent.toml\"]\n[allowedPaths]\nread = [\"b\"]\n";
    std::fs::write(world.base().join("child.toml"), child).unwrap();
    for (effect, code) in [("allow", 0), ("deny", 4)] {
        let text = parent.replace("EFFECT", effect);
        std::fs::write(world.base().join("parent.toml"), text).unwrap();
        assert_eq!(world.run(&["policy", "check", "child.toml"]).code, code);
    }
}

/// It said that the name is denied, and through a link it named the file behind it.
#[test]
fn explain_of_a_restore_was_of_an_agents_request() {
    let mut world = World::with_policy("schema = 1\n[allowedPaths]\nwrite = [\"**\"]\n");
    world.file("src/a", "x");
    std::os::unix::fs::symlink("src", world.path("link")).unwrap();
    world.use_policy("policy/policy.toml");
    let explain = |operation: &str, path: &str| {
        let done = world.run(&["policy", "explain", operation, path, "--json"]).ok();
        done.json()["decision"].clone()
    };
    for path in ["a\u{200b}", "src/in\u{ad}/a"] {
        assert_eq!(explain("restore", path)["effect"], "allow", "{path}");
        assert_eq!(explain("write", path)["rule"], "names.hidden", "{path}");
    }
    assert_eq!(explain("restore", "link/a")["rule"], "restore.links");
    assert_eq!(explain("restore", "src/a")["effect"], "allow");
}

#[test]
fn explain_shows_every_stage() {
    let mut world = World::with_policy(
        "schema = 1\nextends = [\"baseline\"]\n\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"docs/**\"]\n\n\
         [files]\nhardlinks = { write = \"deny\" }\n\n[[rules]]\nid = \"drafts\"\neffect = \"deny\"\n\
         paths = [\"docs/drafts/**\"]\nreason = \"drafts are a person's\"\n",
    );
    world.file("docs/drafts/a.md", "text");
    std::fs::hard_link(world.path("docs/drafts/a.md"), world.path("docs/b.md")).unwrap();
    world.use_policy("policy/policy.toml");
    let explain = |args: &[&str]| {
        let done = world.run(&[&["policy", "explain"], args].concat()).ok();
        done.text().to_owned()
    };
    insta::assert_snapshot!(explain(&["write", "docs/drafts/a.md"]), @r"
    denied by `drafts` (policy/policy.toml:12): drafts are a person's
    policy `policy` version 0, agent `agent`

    write: write docs/drafts/a.md
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      deny  rules                 drafts  policy/policy.toml:12  drafts are a person's
      pass  links
      pass  extensions.allow
      allow allowedPaths          allowedPaths.write  policy/policy.toml:6
      pass  files.symlinks
      pass  files.type
      deny  files.hardlinks       files.hardlinks.write  policy/policy.toml:9  the file has other names
      open  files.maxWriteSize    depends on the content
      open  files.binary.write    depends on the content
      open  mount                 applies at the mount in place of these: at most 268435456 bytes
    ");
    insta::assert_snapshot!(explain(&["edit", "docs/b.md"]), @r"
    denied by `files.hardlinks.read`: the file has other names
    policy `policy` version 0, agent `agent`

    edit: read docs/b.md
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      pass  rules
      pass  links
      pass  extensions.allow
      allow allowedPaths          allowedPaths.read  policy/policy.toml:5
      pass  files.symlinks
      pass  files.type
      deny  files.hardlinks       files.hardlinks.read  the file has other names
      open  files.maxReadSize     depends on the content
      open  files.binary.read     depends on the content
      open  mount                 applies at the mount in place of these: at most 268435456 bytes

    edit: write docs/b.md
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      pass  rules
      pass  links
      pass  extensions.allow
      allow allowedPaths          allowedPaths.write  policy/policy.toml:6
      pass  files.symlinks
      pass  files.type
      deny  files.hardlinks       files.hardlinks.write  policy/policy.toml:9  the file has other names
      open  files.maxWriteSize    depends on the content
      open  files.binary.write    depends on the content
      open  mount                 applies at the mount in place of these: at most 268435456 bytes
    ");
    insta::assert_snapshot!(explain(&["rename", "docs/b.md", "--to", ".git"]), @r"
    denied by `default`: nothing in the policy allows removing this path
    policy `policy` version 0, agent `agent`
    note: `.git` is a scratch directory (`[git]`): in the sandbox, programs read and write there files of their own, which are neither decided on nor recorded

    rename: remove docs/b.md
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      pass  rules
      pass  links
      pass  extensions.allow
      deny  allowedPaths          default  nothing in the policy allows removing this path
      pass  files.symlinks
      pass  files.type
      pass  files.hardlinks

    rename: write .git
      pass  names.hidden
      pass  extensions.deny
      pass  secrets.names
      deny  rules                 git  baseline:86  files in .git can make Git run code
      pass  links
      pass  extensions.allow
      deny  allowedPaths          allowedPaths.write  policy/policy.toml:6  nothing in the policy allows writing this path
      pass  files.symlinks
      pass  files.type
      pass  files.hardlinks
      open  files.maxWriteSize    depends on the content
      open  files.binary.write    depends on the content
      open  mount                 applies at the mount in place of these: at most 268435456 bytes
    ");
}

#[test]
fn explain_follows_links_and_tells_what_leaves_the_workspace() {
    let world = World::new();
    world.file(".env", "secret");
    std::os::unix::fs::symlink(".env", world.path("link")).unwrap();
    std::os::unix::fs::symlink("/etc", world.path("out")).unwrap();
    let explain =
        |path: &str| world.run(&["policy", "explain", "--json", "read", path]).ok().json();
    let link = explain("link");
    assert_eq!(link["decision"]["rule"], "secrets.names[0]");
    assert_eq!(link["accesses"][0]["decision"]["effect"], "allow");
    assert_eq!(link["notes"][0], "`link` leads to `.env`");
    let out = explain("out/passwd");
    assert!(out["notes"][0].as_str().unwrap().contains("refused by the workspace"), "{out}");
}

#[test]
fn explain_refuses_what_is_no_question() {
    let world = World::new();
    for args in [
        &["chmod", "a"][..],
        &["rename", "a"],
        &["read", "a", "--to", "b"],
        &["read", "../a"],
        &["read", "/a"],
    ] {
        let done = world.run(&[&["policy", "explain"], args].concat());
        assert_eq!(done.code, 2, "{args:?}: {}", done.stderr);
    }
    let done = world.run(&["policy", "explain", "--policy", "nope", "read", "a"]);
    assert_eq!(done.code, 4, "{}", done.stderr);
}

#[test]
fn explain_decides_like_the_gateway() {
    let world = World::with_policy(
        "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\nlist = [\"a\"]\n",
    );
    world.file("a/x.txt", "text");
    for (operation, gateway, path) in [
        ("read", "read", "a/x.txt"),
        ("read", "read", ".env"),
        ("list", "ls", "a"),
        ("list", "ls", "b"),
        ("remove", "rm", "a/x.txt"),
        ("mkdir", "mkdir", ".git/x"),
    ] {
        let explained = world.run(&["policy", "explain", "--json", operation, path]).ok().json();
        let done = world.fs(&[gateway, path]);
        let allowed = explained["decision"]["effect"] == "allow";
        assert_eq!(done.code != 3, allowed, "{operation} {path}: {}", done.stderr);
        if !allowed {
            done.denied(explained["decision"]["rule"].as_str().unwrap());
        }
    }
}

fn explained(world: &World, operation: &str, path: &str) -> Value {
    world.run(&["policy", "explain", "--json", operation, path]).ok().json()
}

/// It said that such a request is denied, but a person is asked first: the denial reveals what is
/// there.
#[test]
fn explain_says_that_a_person_is_asked_before_a_denial_for_what_is_there() {
    let rules = "[files]\nsymlinks = \"deny\"\n\
        [[rules]]\nid = \"person\"\neffect = \"ask\"\npaths = [\"a\", \"link\"]\n";
    let prepare = |world: &World| {
        world.file("a/x", "text");
        world.file("a/hard", "text");
        std::fs::hard_link(world.path("a/hard"), world.path("hard")).unwrap();
        std::os::unix::fs::symlink("a", world.path("link")).unwrap();
        std::os::unix::fs::symlink("/etc", world.path("a/out")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(world.path("a/fifo")).status();
        assert!(made.unwrap().success());
    };
    let world = World::with_rules(rules);
    prepare(&world);
    for (operation, path, rule) in [
        ("read", "a/fifo", "files.type"),
        ("read", "link/x", "files.symlinks"),
        ("stat", "link", "files.symlinks"),
        ("read", "a/out", "workspace.outside"),
        ("write", "a/hard", "files.hardlinks.write"),
    ] {
        let explained = explained(&world, operation, path);
        let decision = &explained["decision"];
        assert_eq!((&decision["effect"], &decision["rule"]), (&"ask".into(), &"person".into()));
        let note = explained["notes"].as_array().unwrap().last().unwrap().as_str().unwrap();
        let denied = format!("after an approval it is denied by `{rule}`");
        assert!(note.starts_with(&denied), "{operation} {path}: {note}");
        let child = begin(&world, &[operation, path], if operation == "write" { "x" } else { "" });
        world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
        end(child).denied(rule);
    }
    // An agent that may look is denied at once.
    let world = World::with_rules(&rules.replace("\npaths", "\noperations = [\"write\"]\npaths"));
    prepare(&world);
    let explained = explained(&world, "write", "a/hard");
    assert_eq!(explained["decision"]["rule"], "files.hardlinks.write", "{explained}");
    world.write("a/hard", "x").denied("files.hardlinks.write");
}

/// It said that the request is allowed.
#[test]
fn explain_decides_on_the_names_through_which_links_lead() {
    let world = World::with_rules(
        "[[rules]]\nid = \"person\"\neffect = \"ask\"\npaths = [\"private/**\"]\n",
    );
    world.file("open/x", "text");
    std::os::unix::fs::symlink("open", world.path("private")).unwrap();
    std::os::unix::fs::symlink("private", world.path("link")).unwrap();
    let explained = explained(&world, "read", "link/x");
    assert_eq!(explained["decision"]["rule"], "person", "{explained}");
    let paths = explained["accesses"].as_array().unwrap().iter().map(|access| &access["path"]);
    assert_eq!(paths.collect::<Vec<_>>(), ["link/x", "private/x", "open/x"]);
    let child = begin(&world, &["read", "link/x"], "");
    world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
    end(child).ok();
}

/// It said that such a rename is allowed.
#[test]
fn explain_of_a_rename_looks_at_where_links_lead() {
    use std::os::unix::fs::symlink;
    let world = World::with_rules("");
    world.file("a/b/c/x", "text");
    symlink("/etc/passwd", world.path("out")).unwrap();
    symlink("../x", world.path("a/up")).unwrap();
    symlink("../../../a", world.path("a/b/c/inner")).unwrap();
    symlink("x", world.path("a/b/c/near")).unwrap();
    for (from, to, effect) in [
        ("out", "out2", "deny"),
        ("a/up", "up", "deny"),
        ("a/b/c", "c", "deny"),
        ("a/b/c/near", "near", "allow"),
        ("a/b/c", "a/c", "deny"),
        ("a/b", "a/d", "allow"),
    ] {
        let explain = ["policy", "explain", "--json", "rename", from, "--to", to];
        let explained = world.run(&explain).ok().json();
        assert_eq!(explained["decision"]["effect"], effect, "{from} {to}: {explained}");
        let done = world.fs(&["mv", from, to]);
        match effect {
            "deny" => {
                assert_eq!(explained["decision"]["rule"], "workspace.outside", "{explained}");
                done.denied("workspace.outside");
            }
            _ => _ = done.ok(),
        }
    }
}

#[test]
fn embedded_policies_are_listed_and_shown() {
    let world = World::new();
    let list = world.run(&["policy", "list"]).ok();
    let names: Vec<_> =
        list.text().lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        names,
        ["baseline", "secrets", "default", "read-only", "coding-agent", "docs-writer", "strict"]
    );
    for name in names {
        let shown = world.run(&["policy", "show", name]).ok();
        let file = format!("{}/policies/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(shown.text(), std::fs::read_to_string(file).unwrap());
    }
    let done = world.run(&["policy", "show", "defualt"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("did you mean `default`?"), "{}", done.stderr);
}
