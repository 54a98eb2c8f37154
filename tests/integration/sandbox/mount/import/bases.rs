//! Workspaces whose repository has no commit on which an import could build, or refs in a format that
//! an import does not write: nothing is offered at the end, and the start says what to do.

use super::*;

/// Makes one commit in a session, which has to have no base. Returns what was printed.
fn commits_without_a_base(world: &SandboxWorld) -> AgentOutput {
    let script = "git commit -q --allow-empty -m one && git log --format=%s | head -1";
    let ended = world.exec(&["--json"], script);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "one\n"), "{ended:?}");
    let summary = ended.stderr.lines().find(|line| line.starts_with('{')).unwrap();
    let summary: Value = serde_json::from_str(summary).unwrap();
    assert_eq!(summary["import"], Value::Null, "{summary}");
    let warned = ended.stderr.contains("warning: commits of this session cannot be imported: ");
    assert!(warned && ended.stderr.contains("  help: "), "{ended:?}");
    let records = world.records();
    let start = records.iter().rfind(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["facts"]["git"], Value::Null, "{start}");
    let refused = world.end_import(&["--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    ended
}

/// A repository of these arguments of `git init`, with the workspace's files committed.
fn initialized(arguments: &[&str]) -> SandboxWorld {
    let world = SandboxWorld::mounted(users()[0]);
    git(&world, &[&["init", "-q", "-b", "work"], arguments].concat());
    // Before version 2.48, git cannot migrate reflogs.
    git(&world, &["config", "core.logAllRefUpdates", "false"]);
    git(&world, &["add", "--all"]);
    git(&world, &["commit", "-qm", "the operator's"]);
    world
}

/// An import was offered that could not work.
#[test]
fn an_import_was_offered_where_the_workspace_had_no_commit() {
    let world = SandboxWorld::mounted(users()[0]);
    git(&world, &["init", "-q", "-b", "work"]);
    let ended = commits_without_a_base(&world);
    assert!(ended.stderr.contains("commit before the session"), "{ended:?}");
    // One that the operator makes during a session is not what that began with.
    let policy = world.at("policies/policy.toml");
    let script = "git commit -q --allow-empty -m two; echo begun >begun; until test -e on; do sleep 0.1; done";
    let command = ["exec", "--json", "--policy", &policy, "--", "sh", "-c", script];
    let child = world.limited(&command).spawn().unwrap();
    while !world.base().join("ws/begun").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    git(&world, &["commit", "-q", "--allow-empty", "-m", "the operator's first"]);
    std::fs::write(world.at("ws/on"), "").unwrap();
    let ended = end(child);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.stderr.contains("git import"), "{ended:?}");
    // The next session begins with it.
    let session = world.commit_as("three");
    assert_eq!(
        world.import(&["--session", &session, "--dry-run"]).told["session"],
        session.as_str()
    );
}

/// An import was offered that could not work, and nothing said why.
#[test]
fn an_import_was_offered_where_the_workspace_had_a_reftable() {
    let world = initialized(&["--ref-format=reftable"]);
    let ended = commits_without_a_base(&world);
    assert!(ended.stderr.contains("git refs migrate --ref-format=files"), "{ended:?}");
    let refused = world.end_import(&["--yes"]);
    assert!(refused.stderr.contains("git refs migrate --ref-format=files"), "{refused:?}");
    // History was left out without a word.
    super::super::repository::with_history(&world);
    let ended = world.exec(&[], "git log --format=%s");
    assert_eq!(ended.stdout, "Files that the policy shows at the start of the session\n");
    assert!(
        ended
            .stderr
            .contains("has no history: the workspace's repository has its refs in a reftable"),
        "{ended:?}"
    );
    // What the advice says, helps.
    git(&world, &["refs", "migrate", "--ref-format=files"]);
    let session = world.commit_as("two");
    let imported = world.import(&["--session", &session, "--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
}

/// A session began with a base that the repository has in a reftable since.
#[test]
fn a_reftable_of_the_operators_is_refused_with_what_to_do() {
    let world = committed(users()[0]);
    world.commit_as("one");
    std::fs::remove_dir_all(world.at("ws/.git/logs")).unwrap();
    git(&world, &["refs", "migrate", "--ref-format=reftable"]);
    let before = world.files_beside();
    let refused = world.end_import(&["--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("git refs migrate --ref-format=files"), "{refused:?}");
    assert_eq!(before, world.files_beside());
    assert!(!world.base().join("ws/.git/refs/portcullis").exists());
}

/// An import was offered that could not work.
#[test]
fn an_import_was_offered_where_the_repository_does_not_name_the_workspace() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("repository.git");
    let world = initialized(&["--separate-git-dir", directory.to_str().unwrap()]);
    let ended = commits_without_a_base(&world);
    assert!(ended.stderr.contains("core.worktree"), "{ended:?}");
    git(&world, &["config", "core.worktree", &world.at("ws")]);
    let session = world.commit_as("two");
    let imported = world.import(&["--session", &session, "--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
}
