//! Merges of commits that build on different commits of the operator's.

use super::*;

/// Has a session commit and the operator take that over, and then change a file that the policy denies
/// and one that it hides; the operator's commit.
fn taken_over(world: &SandboxWorld, script: &str) -> String {
    let ended = world.exec(&[], &format!("{script} echo one >>file.txt && git commit -qam one"));
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 0, "{}", imported.told);
    let main = format!("refs/portcullis/{}/main", said(&imported.told, "session"));
    git(world, &["reset", "-q", &main]);
    std::fs::write(world.at("ws/fixed.txt"), "the fix\n").unwrap();
    std::fs::write(world.at("ws/hidden/file"), "newer\n").unwrap();
    git(world, &["commit", "-qam", "a fix of the operator's"]);
    git(world, &["rev-parse", "HEAD"])
}

/// The first parent was an imported commit, and the second one stood for the operator's newest: no path
/// was decided, and the branch had the operator's file as it was before.
#[test]
fn a_merge_took_back_what_the_operator_committed() {
    let world = committed(users()[0]);
    let head = taken_over(&world, "");
    let script = "o=$(git commit-tree main~1^{tree} -p main~1 -m other) && \
        merge() { n=$1; shift; git update-ref refs/heads/$n \
            $(git commit-tree main^{tree} \"$@\" -m $n); }; \
        merge a -p main -p main~1; merge b -p main~1 -p main; merge c -p main -p $o -p main~1; \
        merge d -p a -p $o";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(
        (imported.code, imported.branches()),
        (0, vec!["a", "b", "c", "d"]),
        "{}",
        imported.told
    );
    for branch in imported.told["branches"].as_array().unwrap() {
        let name = said(branch, "ref");
        let show = |path: &str| git(&world, &["show", &format!("{name}:{path}")]);
        assert_eq!(git(&world, &["merge-base", &head, name]), head);
        assert_eq!(
            (show("fixed.txt").as_str(), show("hidden/file").as_str()),
            ("the fix", "newer")
        );
        assert_eq!(git(&world, &["diff", "--name-only", &head, name]), "");
    }
}

/// A branch of the session before, and one that began before that was taken over.
#[test]
fn honest_merges_have_the_operators_newest_files() {
    let world = committed(users()[0]);
    let script = "git checkout -qb side && echo s >side.txt && git add -A && git commit -qm side && \
        git checkout -q main &&";
    let head = taken_over(&world, script);
    let script = "git checkout -qb late main~1 && echo l >late.txt && git add late.txt && \
        git commit -qm late && git checkout -qb joined main && git merge -q --no-edit late && \
        git checkout -q side && echo t >>side.txt && git commit -qm again side.txt && \
        git merge -q --no-edit main";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
    let name =
        |branch: &str| format!("refs/portcullis/{}/{branch}", said(&imported.told, "session"));
    let show =
        |branch: &str, path: &str| git(&world, &["show", &format!("{}:{path}", name(branch))]);
    assert_eq!(git(&world, &["diff", "--name-only", &head, &name("joined")]), "late.txt");
    assert_eq!(show("joined", "file.txt"), "secret\none");
    // It has not the operator's newest commit, and a merge with that leaves the newer files.
    assert_ne!(git(&world, &["merge-base", &head, &name("side")]), head);
    assert_eq!(
        (show("side", "side.txt").as_str(), show("side", "file.txt").as_str()),
        ("s\nt", "secret\none")
    );
    let merged = git(&world, &["merge-tree", "--write-tree", &head, &name("side")]);
    assert_eq!(git(&world, &["diff", "--name-only", &head, &merged]), "side.txt");
    git(&world, &["fsck", "--strict"]);
}
