//! `portcullis policy init`.

use crate::common::World;

fn rust_tree() -> World {
    let world = World::new();
    for file in [
        "Cargo.toml",
        "Cargo.lock",
        "src/main.rs",
        "src/deep/a.rs",
        "tests/it.rs",
        "docs/guide.md",
        "README.md",
        "target/debug/x",
        "assets/logo.png",
        ".github/workflows/ci.yml",
    ] {
        world.file(file, "text");
    }
    world
}

#[test]
fn a_first_policy_is_made_from_what_is_there() {
    let world = rust_tree();
    let done = world.run(&["policy", "init"]).ok();
    insta::assert_snapshot!(done.text(), @r#"
    # What an agent may do with this workspace.
    #
    # Made by `portcullis policy init` from what is there (Rust). Read it line
    # by line: what it does not allow is denied, and what it allows is yours to
    # answer for. The reference is docs/policy.md.
    #:schema ./policy.schema.json
    schema = 1
    name = "ws"
    # Increase it with every change; every record has it.
    version = 1
    # Denies files whose names suggest secrets, and files that something else
    # executes later (Git hooks, editor settings, CI). Extending only narrows.
    extends = ["baseline"]

    [allowedPaths]
    # Everything that `baseline` does not deny. Name directories to close the rest.
    read = ["**"]
    list = ["**"]
    # Directories with sources or documents, with all that is in them.
    write = [
        "docs{,/**}",
        "src{,/**}",
        "tests{,/**}",
        # Sources and documents in the root itself.
        "*.md",
        # Manifests: what they name is fetched and run at the next build.
        "Cargo.toml",
    ]
    # Less than may be written: a removal is undone from the backups only.
    remove = [
        "docs/**",
        "src/**",
        "tests/**",
    ]

    [[rules]]
    id = "lockfiles"
    effect = "deny"
    operations = ["write", "remove", "rename"]
    # They need not be there yet.
    # lint: allow unmatched-glob
    paths = [
        "**/Cargo.lock",
    ]
    reason = "lock files pin what is trusted; the package manager writes them"

    [[rules]]
    id = "built"
    effect = "deny"
    operations = ["write", "remove", "rename"]
    # They need not be there yet.
    # lint: allow unmatched-glob
    paths = [
        "**/target/**",
    ]
    reason = "this is installed or built, change its source instead"

    # At a mount (`exec`, `run --mount`) these are directories outside the workspace, for
    # builds and installers: what is done in them is neither decided nor recorded.
    [scratch]
    paths = [
        "target",
        "target[0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z]",
    ]

    # Programs connect to no host, and each attempt is recorded: `portcullis policy learn`
    # proposes rules of hosts. With a preset its hosts are allowed, until there is a rule here
    # that allows or asks.
    [network]
    # For builds that fetch packages. Somebody with a token of their own can publish there.
    # [[network.rules]]
    # id = "packages"
    # effect = "allow"
    # hosts = ["index.crates.io", "static.crates.io"]
    # ports = [443]

    # What one session may do by ACP or MCP; beyond it an operation is denied.
    [limits]
    operationsPerSecond = 200
    bytesWritten = "200MiB"
    filesRemoved = 100
    denials = 100

    # What programs may do at a mount, in place of that.
    [mount]
    maxReadSize = "256MiB"
    maxWriteSize = "256MiB"
    bytesWritten = "2GiB"
    filesRemoved = 1000
    denials = 10000

    # What must stay as it is. Tests run at every load: a policy that fails one does
    # not come into force.

    [[tests]]
    operation = "write"
    path = "src/new.rs"
    expect = { effect = "allow", rule = "allowedPaths.write" }

    [[tests]]
    operation = "remove"
    path = "src/old.rs"
    expect = { effect = "allow", rule = "allowedPaths.remove" }

    [[tests]]
    operation = "edit"
    path = "Cargo.toml"
    expect = { effect = "allow", rule = "allowedPaths.read" }

    [[tests]]
    operation = "write"
    path = "data.bin"
    expect = { effect = "deny", rule = "allowedPaths.write" }

    [[tests]]
    operation = "write"
    path = "Cargo.lock"
    expect = { effect = "deny", rule = "lockfiles" }

    [[tests]]
    operation = "write"
    path = "target/x"
    expect = { effect = "deny", rule = "built" }

    [[tests]]
    operation = "read"
    path = ".github/workflows/ci.yml"
    expect = { effect = "allow", rule = "allowedPaths.read" }

    [[tests]]
    operation = "read"
    path = ".env"
    expect = { effect = "deny", rule = "secrets.names[0]" }

    [[tests]]
    operation = "write"
    path = ".git/hooks/pre-commit"
    expect = { effect = "deny", rule = "git" }

    [[tests]]
    operation = "list"
    path = "."
    expect = { effect = "allow", rule = "allowedPaths.list" }
    "#);
}

#[test]
fn it_loads_as_it_is_and_has_nothing_to_lint() {
    let world = rust_tree();
    let done = world.run(&["policy", "init", "-o", "shop.toml"]).ok();
    assert!(done.text().starts_with("found Rust\n"), "{}", done.text());
    world.run(&["policy", "check", "shop.toml"]).ok();
    world.run(&["policy", "test", "shop.toml"]).ok();
    // Also where lock files and what is built are not there yet.
    std::fs::remove_file(world.path("Cargo.lock")).unwrap();
    let done = world.run(&["policy", "lint", "shop.toml", "--deny-warnings"]);
    assert_eq!(done.code, 0, "{}", done.text());
    assert!(world.base().join("policy.schema.json").exists());
    // It does not write over a file.
    let again = world.run(&["policy", "init", "-o", "shop.toml"]);
    assert!(again.code == 1 && again.stderr.contains("exists already"), "{}", again.stderr);
}

#[test]
fn every_embedded_policy_can_be_started_from() {
    for name in ["baseline", "default", "read-only", "coding-agent", "docs-writer", "strict"] {
        let world = rust_tree();
        world.run(&["policy", "init", "--from", name, "-o", "mine.toml"]).ok();
        let done = world.run(&["policy", "check", "mine.toml"]).ok();
        assert!(done.text().contains("policy `mine` version 1"), "{}", done.text());
    }
    let done = rust_tree().run(&["policy", "init", "--from", "defualt"]);
    assert!(done.code == 1 && done.stderr.contains("did you mean `default`?"), "{}", done.stderr);
}

#[test]
fn any_tree_will_do() {
    let world = World::new();
    let empty = world.run(&["policy", "init"]).ok();
    std::fs::write(world.base().join("p.toml"), empty.text()).unwrap();
    world.run(&["policy", "check", "p.toml"]).ok();
    for file in ["a\"b/x.py", "[id]/{y}.ts", "**/z.go", "quo'te/w.rs", "\u{202e}x/v.md", "n\nl/u.c"]
    {
        world.file(file, "text");
    }
    let hostile = world.run(&["policy", "init"]).ok();
    std::fs::write(world.base().join("p.toml"), hostile.text()).unwrap();
    world.run(&["policy", "check", "p.toml"]).ok();
    assert!(!hostile.text().contains("\"**\",\n    \""), "{}", hostile.text());
    assert!(!hostile.text().contains('\u{202e}'), "{}", hostile.text());
}

#[test]
fn a_policy_does_not_belong_into_the_workspace() {
    let world = rust_tree();
    let inside = world.path("policy.toml");
    let done = world.run(&["policy", "init", "-o", inside.to_str().unwrap()]);
    assert!(done.code == 1 && done.stderr.contains("within the agent's reach"), "{}", done.stderr);
    assert!(!inside.exists());
}

/// A directory of such a name kept the whole policy from being drafted.
#[test]
fn names_that_look_like_patterns_do_not_keep_a_policy_from_being_made() {
    let world = World::new();
    for name in ["src\u{2215}x", "\u{ff0a}", "\u{ff1f}", "\u{2217}", "\u{2026}", "src"] {
        world.file(&format!("{name}/k.rs"), "text");
    }
    let done = world.run(&["policy", "init"]).ok();
    let text = done.text();
    assert!(text.contains("\"src[\u{2215}]x{,/**}\"") && text.contains("\"src/**\""), "{text}");
}
