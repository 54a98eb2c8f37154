//! The commands and warnings that the end of a session and an import print.

use super::*;

/// Commits a change of the file that the policy does not let be written, past the mount.
const PLUMBED: &str = "b=$(echo x | git hash-object -w --stdin) && \
    git update-index --cacheinfo 100644,$b,fixed.txt && git commit -qm plumbed";

/// It was imported under the default policy, which has not the rule that denied the change.
#[test]
fn the_printed_import_decided_under_another_policy_than_the_sessions() {
    let world = committed(users()[0]);
    let ended = world.exec(&[], PLUMBED);
    let command = ended.stderr.lines().find_map(|line| line.strip_prefix("  commits: "));
    let command = command.unwrap_or_else(|| panic!("{ended:?}"));
    let imported = world.printed("sh", &format!("{command} --yes --json"));
    assert_eq!(imported.code, 1, "{command} {imported:?}");
    assert!(!imported.stderr.contains("policy"), "{imported:?}");
    let told: Value = serde_json::from_str(&imported.stdout).unwrap();
    assert_eq!(told["commits"][0]["refused"][0]["path"], "fixed.txt", "{told}");
    assert_eq!(
        (&told["policy"], &told["policy"]["name"]),
        (&told["sessionPolicy"], &"mounted".into())
    );
}

/// Nothing was said about that.
#[test]
fn an_import_under_another_policy_than_the_sessions_was_silent() {
    let world = committed(users()[0]);
    assert_eq!(world.exec(&[], PLUMBED).code, 0);
    let import = ["git", "import", "--policy", "default", "--dry-run"];
    let ended = end(world.limited(&[&import[..], &["--json"]].concat()).spawn().unwrap());
    let warned = "warning: the session began under the policy `mounted`, and the policy in force is `default`";
    assert!(ended.stderr.contains(warned), "{ended:?}");
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    let names = (&told["policy"]["name"], &told["sessionPolicy"]["name"]);
    assert_eq!(names, (&"default".into(), &"mounted".into()), "{told}");
    // One with the same name is another one, too.
    let policy = world.at("policies/policy.toml");
    std::fs::write(&policy, format!("{POLICY}\n[limits]\ndenials = 50\n")).unwrap();
    let ended = world.end_import(&["--dry-run"]);
    assert!(ended.stderr.contains("the policy `mounted` has changed since"), "{ended:?}");
}

/// The reset that it advised took a commit of the operator's off the branch.
#[test]
fn the_advice_after_an_import_removed_the_operators_commits() {
    let world = committed(users()[0]);
    world.commit_as("one");
    let next = |world: &SandboxWorld| {
        let ended = world.end_import(&["--yes"]);
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix("  next: "));
        line.unwrap_or_else(|| panic!("{ended:?}")).to_owned()
    };
    // Nothing was committed since: a reset loses nothing.
    let first = next(&world);
    let reset = first.split_once("; git ").unwrap().1.to_owned();
    assert!(reset.starts_with("reset refs/portcullis/"), "{first}");
    // Without `-m` git displays nothing of what merges change.
    assert!(first.starts_with("git log -p -m HEAD..refs/portcullis/"), "{first}");
    git(&world, &reset.split(' ').collect::<Vec<_>>());
    std::fs::write(world.at("ws/fix.txt"), "the fix\n").unwrap();
    git(&world, &["add", "fix.txt"]);
    git(&world, &["commit", "-qm", "a fix of the operator's"]);
    let head = git(&world, &["rev-parse", "HEAD"]);
    world.commit_as("two");
    let second = next(&world);
    assert!(!second.contains("reset"), "{second}");
    assert!(second.contains("; git merge refs/portcullis/"), "{second}");
    git(&world, &["stash", "-q"]);
    let merge = second.split_once("; git ").unwrap().1.split(' ').collect::<Vec<_>>();
    git(&world, &[&merge[..2], &["--no-edit"]].concat());
    assert_eq!(git(&world, &["merge-base", "HEAD", &head]), head);
    assert_eq!(git(&world, &["show", "HEAD:fix.txt"]), "the fix");
    assert_eq!(git(&world, &["show", "HEAD:file.txt"]), "secret\none\ntwo");
    // The next session builds on what was merged: HEAD is in what it imports again.
    git(&world, &["stash", "drop", "-q"]);
}

/// The agent chose by a name that comes first in the alphabet.
#[test]
fn the_agent_chose_which_branch_is_advised() {
    let world = committed(users()[0]);
    let script = "echo x >>file.txt && git commit -qam x && git branch a-evil && \
        git checkout -q a-evil && echo y >>file.txt && git commit -qam evil";
    assert_eq!(world.exec(&[], script).code, 0);
    let ended = world.end_import(&["--yes"]);
    let next = ended.stderr.lines().find(|line| line.starts_with("  next: ")).unwrap();
    assert!(next.ends_with("/main") && !next.contains("a-evil"), "{ended:?}");
}
