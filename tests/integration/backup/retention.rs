//! Retention of the backup store.

use super::*;
use crate::seeded_random::Random;

const THREE: &str = "[backups]\nkeep = { versions = 3, days = 30, size = \"1MiB\" }\n";

#[test]
fn many_writes_do_not_push_the_original_out() {
    let world = World::with_policy(&policy(THREE));
    world.file("a.txt", "the original");
    for round in 0..30 {
        world.write("a.txt", format!("version {round}")).ok();
    }
    let kept = list(&world, &["a.txt"]);
    assert_eq!(kept.len(), 4);
    let oldest = kept.last().unwrap()["id"].as_str().unwrap();
    assert_eq!(backup(&world, &["show", oldest]).ok().text(), "the original");
}

/// Returns the stored backups of a path, oldest first.
fn kept(world: &World, path: &str) -> Vec<String> {
    let ids = list(world, &[path]).into_iter().rev();
    let ids = ids.filter(|entry| entry["kind"] != "tree").map(|entry| entry["id"].clone());
    ids.map(|id| backup(world, &["show", id.as_str().unwrap()]).ok().text().to_owned()).collect()
}

#[test]
fn many_writes_do_not_push_out_what_was_moved_in_between() {
    let world = World::with_policy(&policy(THREE));
    world.file("precious.txt", "precious");
    for round in 0..3 {
        world.write("x", format!("junk {round}")).ok();
    }
    world.fs(&["mv", "precious.txt", "x"]).ok();
    for round in 3..10 {
        world.write("x", format!("junk {round}")).ok();
    }
    let kept = kept(&world, "x");
    assert!(kept.contains(&"precious".to_owned()), "{kept:?}");
    assert!(kept.len() <= 7, "what the agent wrote itself is not kept for ever: {kept:?}");
}

#[test]
fn many_writes_do_not_push_out_a_persons_edit_in_between() {
    let world = World::with_policy(&policy(THREE));
    world.file("a.txt", "the original");
    for round in 0..10 {
        if round == 2 {
            world.file("a.txt", "a person's edit");
        }
        world.write("a.txt", format!("version {round}")).ok();
    }
    let expected = ["the original", "a person's edit", "version 6", "version 7", "version 8"];
    assert_eq!(kept(&world, "a.txt"), expected);
}

#[test]
fn a_directory_that_was_moved_and_removed_is_not_pushed_out() {
    let world = World::with_policy(&policy(THREE));
    world.file("src/main.rs", "precious");
    let come_and_go = || {
        world.fs(&["mkdir", "t"]).ok();
        world.fs(&["rm", "-r", "t"]).ok();
    };
    come_and_go();
    world.fs(&["mv", "src", "t"]).ok();
    world.fs(&["rm", "-r", "t"]).ok();
    (0..6).for_each(|_| come_and_go());
    let tree = list(&world, &["t"]).into_iter().find(|tree| tree["bytes"] != 0).unwrap();
    backup(&world, &["restore", tree["id"].as_str().unwrap()]).ok();
    assert_eq!(world.read("t/main.rs"), "precious");
}

#[test]
fn a_change_that_nobody_approved_costs_no_backups() {
    let world = World::with_policy(&policy(
        r#"
[backups]
keep = { versions = 50, days = 30, size = "64KiB" }
[limits]
approvalTimeout = "1s"
[[rules]]
id = "big"
effect = "ask"
operations = ["remove"]
paths = ["big"]
"#,
    ));
    world.file("big", "b".repeat(40_000));
    for round in 0..6 {
        world.write("f", format!("{round:08000}")).ok();
    }
    let before = list(&world, &[]);
    world.fs(&["rm", "big"]).denied("big");
    assert_eq!(list(&world, &[]), before);
}

#[test]
fn a_full_backup_store_refuses_the_change() {
    let world = World::with_policy(&policy(
        "[backups]\nkeep = { versions = 3, days = 30, size = \"10KiB\" }\n",
    ));
    // Of what can be compressed more would fit.
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let mut noise = || -> String {
        (0..6000).map(|_| char::from(b'!' + u8::try_from(random.below(94)).unwrap())).collect()
    };
    world.file("a.txt", noise());
    world.file("b.txt", noise());
    world.write("a.txt", "").ok();
    for refused in [world.write("b.txt", ""), world.fs(&["rm", "b.txt"])] {
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("the backup store is full"), "{refused:?}");
    }
    assert_eq!(world.read("b.txt").len(), 6000);
    assert_eq!(world.last()["result"], "noSpace");
    // Operations that need no backup still work.
    world.write("new.txt", "x").ok();

    // Nor does it keep the operator from putting right what filled it.
    world.write("made.txt", noise()).ok();
    world.write("a.txt", noise()).ok();
    for path in ["made.txt", "a.txt"] {
        assert_eq!(world.fs(&["rm", path]).code, 1);
    }
    let records = world.requests();
    let made = records.iter().find(|record| record["path"] == "made.txt").unwrap();
    let made = made["seq"].to_string();
    world.run(&["backup", "undo", "--yes", "--record", &made]).ok();
    assert!(!world.path("made.txt").exists());
    let first = list(&world, &["a.txt"]).into_iter().find(|one| one["bytes"] == 6000).unwrap();
    world.run(&["backup", "restore", first["id"].as_str().unwrap()]).ok();
    assert_eq!(world.read("a.txt").len(), 6000);
    assert_eq!(world.fs(&["rm", "b.txt"]).code, 1);
}
