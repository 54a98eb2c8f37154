//! Files that something executes later: the next commit, an editor, a shell,
//! CI, the next agent.

use super::refused;
use crate::common::World;

const NAMES: [&str; 42] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git/info/attributes",
    ".git/modules/x/config",
    ".git/worktrees/w/config.worktree",
    ".git",
    "sub/.git/hooks/post-checkout",
    "sub/.git",
    ".GIT/hooks/pre-commit",
    ".Git/Config",
    ".git /config",
    ".git./config",
    ".gitattributes",
    ".gitmodules",
    "deep/er/.gitattributes",
    ".husky/pre-commit",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".idea/workspace.xml",
    ".zed/tasks.json",
    ".cursor/mcp.json",
    ".envrc",
    "sub/.envrc",
    ".pre-commit-config.yaml",
    ".cargo/config.toml",
    "crate/.cargo/config",
    ".github/workflows/ci.yml",
    ".gitlab-ci.yml",
    ".claude/settings.json",
    ".claude/commands/x.md",
    ".codex/config.toml",
    ".mcp.json",
    "AGENTS.md",
    "CLAUDE.md",
    ".devcontainer/devcontainer.json",
    ".bashrc",
    ".profile",
    ".npmrc",
    "bare.git/hooks/post-receive",
    ".ssh/authorized_keys",
    ".ssh/config",
    ".netrc",
];

/// A world under the default policy.
fn world() -> World {
    let world = World::new();
    world.file("proof.txt", "PROOF");
    world
}

fn denied_by_any_rule(world: &World, args: &[&str]) {
    let done = world.run_with_input(&[&["fs"], args].concat(), "PWNED");
    assert_eq!(done.code, 3, "{args:?}: {done:?}");
    assert_eq!(world.last()["decision"], "deny", "{args:?}");
}

#[test]
fn they_can_neither_be_made_nor_changed() {
    let world = world();
    for name in NAMES {
        denied_by_any_rule(&world, &["write", name]);
        assert!(!world.path(name).exists(), "{name}");
    }
    world.fs(&["read", "proof.txt"]).ok();
    for name in
        [".git/hooks/pre-commit", ".git/config", ".envrc", ".vscode/tasks.json", ".mcp.json"]
    {
        world.file(name, "mine");
        for args in [
            ["write", name].as_slice(),
            &["append", name],
            &["edit", name, "--old", "mine", "--new", "yours"],
            &["rm", name],
            &["mv", name, "elsewhere"],
            &["mv", "proof.txt", name],
        ] {
            denied_by_any_rule(&world, args);
        }
        assert_eq!(world.read(name), "mine");
    }
    world.fs(&["read", "proof.txt"]).ok();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn they_cannot_be_built_elsewhere_and_renamed_in() {
    let world = world();
    // A repository under another name is denied as a bare one, so that an agent
    // cannot even build it; here another program did.
    denied_by_any_rule(&world, &["write", "building/hooks/pre-commit"]);
    world.file("building/hooks/pre-commit", "#!/bin/sh\n");
    world.file("building/config", "[core]\nfsmonitor = evil\n");
    world.write("envrc", "evil").ok();
    world.write("kit/tasks.json", "{}").ok();
    for (from, to) in [
        ("building", ".git"),
        ("building", "sub/.git"),
        ("building", "sub/.GIT"),
        ("building/hooks", ".git/hooks"),
        ("building/config", ".git/config"),
        ("envrc", ".envrc"),
        ("kit", ".vscode"),
        ("kit", ".claude"),
    ] {
        denied_by_any_rule(&world, &["mv", from, to]);
        assert!(world.path(from).exists() && !world.path(to).exists(), "{from} to {to}");
    }
    // Nor step by step: the directory cannot be made, the tree not be moved
    // with what lies in it.
    for name in [".git", ".git/hooks", "sub/.git/hooks", ".husky", ".vscode", ".claude"] {
        denied_by_any_rule(&world, &["mkdir", "-r", name]);
    }
    world.write("repo/x.txt", "x").ok();
    world.file("repo/.git/config", "mine");
    denied_by_any_rule(&world, &["mv", "repo", "other"]);
    denied_by_any_rule(&world, &["rm", "-r", "repo"]);
    assert_eq!(world.read("repo/.git/config"), "mine");
    std::os::unix::fs::symlink("repo/.git", world.path("innocent")).unwrap();
    denied_by_any_rule(&world, &["write", "innocent/hooks/pre-commit"]);
    denied_by_any_rule(&world, &["write", "innocent/config"]);
    refused(&world, &["read", "../x"], "workspace.outside");
    world.run(&["audit", "verify"]).ok();
}
