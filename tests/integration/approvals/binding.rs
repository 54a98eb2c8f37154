//! Scope of an approval: the request as it was shown, and nothing else.

use std::path::Path;

use super::{begin, end, id, kinds, waiting, world};
use crate::common::World;

/// Lets a rename wait, changes something, and approves; returns true if the
/// rename was made all the same.
fn moved_after(world: &World, args: &[&str], change: impl FnOnce(&World)) -> bool {
    let child = begin(world, args, "");
    let asked = waiting(world, 1).remove(0);
    assert_eq!(asked["moved"].as_str().unwrap().len(), 64, "{asked}");
    change(world);
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    let done = end(child);
    if done.code == 3 {
        assert!(done.stderr.contains("is not what was approved"), "{}", done.stderr);
    }
    done.code == 0
}

#[test]
fn a_file_that_moves_is_bound() {
    let world = world();
    let args = ["mv", "src/a.ts", "src/payments/a.ts"];
    assert!(!moved_after(&world, &args, |world| {
        world.file("src/a.ts", "evil\n");
    }));
    assert_eq!(world.read("src/a.ts"), "evil\n");
    assert!(!world.path("src/payments/a.ts").exists());
    assert!(moved_after(&world, &args, |_| {}));
    assert_eq!(world.read("src/payments/a.ts"), "evil\n");
    let (approval, intent) = (kinds(&world, "approval").remove(1), kinds(&world, "intent"));
    assert_eq!(approval["facts"]["moved"], intent[0]["facts"]["moved"]);
    assert_eq!(approval["facts"]["moved"].as_str().unwrap().len(), 64);
}

#[test]
fn a_file_that_replaces_another_is_bound_and_so_is_the_other() {
    let world = world();
    let args = ["mv", "src/a.ts", "src/payments/card.ts"];
    assert!(!moved_after(&world, &args, |world| {
        world.file("src/a.ts", "evil\n");
    }));
    assert!(!moved_after(&world, &args, |world| {
        world.file("src/payments/card.ts", "somebody's\n");
    }));
    assert_eq!(world.read("src/payments/card.ts"), "somebody's\n");
    assert!(moved_after(&world, &args, |_| {}));
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
        assert!(!moved_after(&world, &args, |_| change(&tree)));
        assert!(tree.exists());
    }
    assert!(moved_after(&world, &args, |_| {}));
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
    assert!(end(child).denied("vault").stdout.is_empty());
}

#[test]
fn a_tree_that_is_removed_is_bound() {
    let world = world();
    let child = begin(&world, &["rm", "-r", "src/payments"], "");
    let asked = waiting(&world, 1).remove(0);
    world.file("src/payments/another.ts", "kept\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    end(child).denied("payments");
    assert_eq!(world.read("src/payments/another.ts"), "kept\n");
    assert_eq!(world.read("src/payments/card.ts"), "one\ntwo\n");
}
