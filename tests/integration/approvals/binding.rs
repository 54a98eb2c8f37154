//! Scope of an approval: the request as it was shown, and nothing else.

use std::path::Path;

use super::{asked_again, begin, end, id, kinds, waiting, world};
use crate::common::World;

/// Lets a rename wait, changes something, and approves: that is asked about again.
fn not_moved_after(world: &World, args: &[&str], change: impl FnOnce(&World)) {
    let child = begin(world, args, "");
    let asked = waiting(world, 1).remove(0);
    assert_eq!(asked["moved"].as_str().unwrap().len(), 64, "{asked}");
    change(world);
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    let again = asked_again(world, &asked);
    assert_eq!((&again["path"], &again["to"]), (&asked["path"], &asked["to"]));
    assert_ne!((&again["moved"], &again["before"]), (&asked["moved"], &asked["before"]));
    end(child).denied("payments");
}

/// Lets a rename wait, and approves it as it is.
fn is_moved(world: &World, args: &[&str]) {
    let child = begin(world, args, "");
    let asked = waiting(world, 1).remove(0);
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    end(child).ok();
}

#[test]
fn a_file_that_moves_is_bound() {
    let world = world();
    let args = ["mv", "src/a.ts", "src/payments/a.ts"];
    not_moved_after(&world, &args, |world| {
        world.file("src/a.ts", "evil\n");
    });
    assert_eq!(world.read("src/a.ts"), "evil\n");
    assert!(!world.path("src/payments/a.ts").exists());
    is_moved(&world, &args);
    assert_eq!(world.read("src/payments/a.ts"), "evil\n");
    let (approval, intent) = (kinds(&world, "approval").remove(2), kinds(&world, "intent"));
    assert_eq!(approval["facts"]["moved"], intent[0]["facts"]["moved"]);
    assert_eq!(approval["facts"]["moved"].as_str().unwrap().len(), 64);
}

#[test]
fn a_file_that_replaces_another_is_bound_and_so_is_the_other() {
    let world = world();
    let args = ["mv", "src/a.ts", "src/payments/card.ts"];
    not_moved_after(&world, &args, |world| {
        world.file("src/a.ts", "evil\n");
    });
    not_moved_after(&world, &args, |world| {
        world.file("src/payments/card.ts", "somebody's\n");
    });
    assert_eq!(world.read("src/payments/card.ts"), "somebody's\n");
    is_moved(&world, &args);
}

#[test]
fn everything_in_a_directory_that_moves_is_bound() {
    let changes: [fn(&Path); 4] = [
        |tree| std::fs::write(tree.join("sub/b"), "other").unwrap(),
        |tree| std::fs::write(tree.join("sub/new"), "").unwrap(),
        |tree| std::fs::rename(tree.join("sub/b"), tree.join("sub/c")).unwrap(),
        |tree| {
            std::fs::remove_file(tree.join("link")).unwrap();
            std::os::unix::fs::symlink("sub/b", tree.join("link")).unwrap();
        },
    ];
    let world = world();
    world.file("src/tree/sub/b", "text");
    world.file("src/tree/a", "text");
    let tree = world.path("src/tree");
    std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
    let args = ["mv", "src/tree", "src/payments/tree"];
    for change in changes {
        not_moved_after(&world, &args, |_| change(&tree));
        assert!(tree.exists());
    }
    is_moved(&world, &args);
    assert_eq!(world.read("src/payments/tree/sub/c"), "other");
}

/// It named a backup, which was thrown away, and a file that was never made.
#[test]
fn a_stale_approval_s_denial_names_nothing_that_is_not_there() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/card.ts"], "new\n");
    let asked = waiting(&world, 1).remove(0);
    world.file("src/payments/card.ts", "somebody's\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    end(child).denied("payments");
    let denied = world.last();
    assert_eq!((&denied["kind"], &denied["decision"]), (&"decision".into(), &"deny".into()));
    assert_eq!(denied["before"].as_str().unwrap().len(), 64, "{denied}");
    assert!(denied["backup"].is_null() && denied["temp"].is_null(), "{denied}");
}

#[test]
fn a_read_is_bound_to_what_was_there() {
    let world = world();
    let child = begin(&world, &["read", "src/vault/a.txt"], "");
    let asked = waiting(&world, 1).remove(0);
    world.file("src/vault/a.txt", "a greater treasure\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    assert!(end(child).denied("vault").stdout.is_empty());
}

#[test]
fn a_tree_that_is_removed_is_bound() {
    let world = world();
    let child = begin(&world, &["rm", "-r", "src/payments"], "");
    let asked = waiting(&world, 1).remove(0);
    world.file("src/payments/another.ts", "kept\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    end(child).denied("payments");
    assert_eq!(world.read("src/payments/another.ts"), "kept\n");
    assert_eq!(world.read("src/payments/card.ts"), "one\ntwo\n");
}

/// Regression: the policy in force was told to deny what a person had approved under it.
#[test]
fn a_replay_under_the_same_policy_told_of_approved_requests() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/card.ts"], "x\n");
    let asked = waiting(&world, 1).remove(0);
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    end(child).ok();
    let policy = world.base().join("policy/policy.toml");
    let replay = world.run(&["policy", "replay", policy.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!(replay["changed"], 0, "{replay}");
}
