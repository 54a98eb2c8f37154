//! Changes of the log's key that were cut short, and files in `keys/` that are none.

use std::{fs, process::Command};

use super::{audit, both, doctor, world};

/// Every gateway refused, and named a configuration that had not changed.
#[test]
fn a_change_of_keys_that_was_cut_short_is_finished_by_the_next_gateway() {
    let world = world();
    let keys = world.state().join("keys");
    let (key, next) = (keys.join("checkpoint.key"), keys.join("checkpoint.key.new"));
    let (old, published) = (fs::read(&key).unwrap(), fs::read(audit(&world, "key.vkey")).unwrap());
    let copy = world.base().join("copy");
    let copied = Command::new("cp").arg("-a").args([&*world.state(), &copy]).status().unwrap();
    assert!(copied.success());
    world.run(&["audit", "key", "--new"]).ok();
    let (new, changed) = (fs::read(&key).unwrap(), fs::read(audit(&world, "key.vkey")).unwrap());
    // The record of the change comes after it.
    fs::remove_dir_all(world.state()).unwrap();
    fs::rename(&copy, world.state()).unwrap();
    // Before the log's directory names the new key, the old one is the log's.
    fs::write(&key, &old).unwrap();
    fs::write(&next, &new).unwrap();
    fs::write(audit(&world, "key.vkey"), &published).unwrap();
    assert_eq!(doctor(&world).1, "ok");
    world.fs(&["read", "a"]).ok();
    assert_eq!((fs::read(&key).unwrap(), both(&world)), (old.clone(), [0, 0]));
    // Afterwards, the new one.
    for renewed in [false, true] {
        fs::write(&key, &old).unwrap();
        fs::write(&next, &new).unwrap();
        fs::write(audit(&world, "key.vkey"), &changed).unwrap();
        assert_eq!(doctor(&world).1, "ok");
        if renewed {
            world.run(&["audit", "key", "--new"]).ok();
        }
        world.fs(&["read", "a"]).ok();
        assert_eq!((fs::read(&key).unwrap() == new, both(&world)), (!renewed, [0, 0]));
        assert!(!next.exists());
    }
}

/// The party that had given a log another key was not recorded.
#[test]
fn a_change_of_keys_is_on_record() {
    let world = world();
    let first = |world: &crate::common::World| {
        let keys = fs::read_to_string(audit(world, "key.vkey")).unwrap();
        keys.lines().next().unwrap().to_owned()
    };
    let former = first(&world);
    world.run(&["audit", "key", "--new"]).ok();
    let record = world.records().pop().unwrap();
    assert_eq!(record["op"], "audit.key", "{record}");
    let facts = serde_json::json!({"key": first(&world), "formerKey": former});
    assert_eq!(record["facts"], facts);
    assert!(record["user"].is_string() && former != first(&world), "{record}");
    world.run(&["audit", "verify"]).ok();
    assert_eq!(both(&world), [0, 0]);
}

/// All checkpoints were said to be by the newest key.
#[test]
fn checkpoints_of_a_former_key_were_said_to_be_by_the_new_one() {
    let world = world();
    let first = || {
        fs::read_to_string(audit(&world, "key.vkey")).unwrap().lines().next().unwrap().to_owned()
    };
    let former = first();
    world.run(&["audit", "key", "--new"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    let both = [former, first()];
    let signed = world.run(&["audit", "verify", "--json"]).ok().json()["signed"].clone();
    assert_eq!(
        (&signed["keys"], &signed["key"]),
        (&serde_json::json!(both), &serde_json::json!(both[1]))
    );
    let page = world.base().join("r.html");
    world.run(&["audit", "report", "-o", page.to_str().unwrap()]).ok();
    let page = fs::read_to_string(page).unwrap();
    let text = world.run(&["audit", "verify"]).ok().text().to_owned();
    let names = |key: &String| key.split('+').next().unwrap().to_owned();
    assert!(text.contains(&both.each_ref().map(names).join(", ")), "{text}");
    assert!(page.contains(&both.join(", ")), "{page}");
}

/// The message named another path, and that of the verifier none.
#[test]
fn what_is_no_file_in_the_directory_of_keys_is_named_with_its_path() {
    for name in ["signed", "checkpoint.key"] {
        let world = world();
        let file = world.state().join("keys").join(name);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let mut commands = vec![vec!["fs", "ls"], vec!["audit", "recover", "--yes"]];
        if name == "signed" {
            commands.push(vec!["audit", "verify"]);
        }
        for command in commands {
            let refused = world.run(&command);
            assert_eq!(refused.code, 5, "{refused:?}");
            assert!(refused.stderr.contains(&format!("keys/{name}`")), "{refused:?}");
            assert!(refused.stderr.contains("move it away"), "{refused:?}");
        }
    }
}
