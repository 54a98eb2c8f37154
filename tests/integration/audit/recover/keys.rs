//! Recovery of the public keys of a log.

use super::*;

/// Gateways refused it, and no command found or repaired the fault.
#[test]
fn a_log_that_lost_its_public_key_gets_it_back() {
    for damage in ["gone", "garbage", "private"] {
        let world = World::new();
        world.file("a", "x");
        world.fs(&["read", "a"]).ok();
        if damage != "private" {
            world.run(&["audit", "key", "--new"]).ok();
            world.fs(&["read", "a"]).ok();
        }
        let file = world.state().join("audit/key.vkey");
        let keys = std::fs::read_to_string(&file).unwrap();
        match damage {
            "garbage" => std::fs::write(&file, "garbage").unwrap(),
            _ => std::fs::remove_file(&file).unwrap(),
        }
        if damage == "private" {
            std::fs::remove_file(world.state().join("keys/checkpoint.key")).unwrap();
        }
        assert_eq!(world.fs(&["read", "a"]).code, 5, "{damage}");
        let verified = world.run(&["audit", "verify"]);
        assert_eq!(verified.code, 5, "{verified:?}");
        assert!(verified.stderr.contains("`portcullis audit recover`"), "{verified:?}");
        let done = world.run(&["audit", "recover", "--yes"]);
        // The log is repaired, but gateways do not start without the private key.
        assert_eq!(done.code, i32::from(damage == "private"), "{done:?}");
        let first = keys.lines().next().unwrap();
        assert!(
            done.text().contains(&format!("put back: the log's public key {first}")),
            "{done:?}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), keys);
        world.run(&["audit", "verify", "--key", file.to_str().unwrap()]).ok();
        let last = world.records().pop().unwrap();
        assert_eq!((&last["facts"]["what"], &last["facts"]["key"]), (&"key".into(), &first.into()));
        if damage == "private" {
            let refused = world.fs(&["read", "a"]);
            assert!(refused.stderr.contains("audit key --new"), "{refused:?}");
            world.run(&["audit", "key", "--new"]).ok();
        }
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "verify"]).ok();
    }
}

/// A key that was missing was called a wrong one, `audit recover` set what it had signed
/// aside, and the log stayed damaged.
#[test]
fn a_log_that_lost_one_of_its_public_keys_gets_it_back() {
    for kept in ["the key in use", "the former key"] {
        let world = World::new();
        world.file("a", "x");
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "key", "--new"]).ok();
        world.fs(&["read", "a"]).ok();
        let file = world.state().join("audit/key.vkey");
        let keys = std::fs::read_to_string(&file).unwrap();
        let line = if kept == "the former key" { keys.lines().last() } else { keys.lines().next() };
        std::fs::write(&file, format!("{}\n", line.unwrap())).unwrap();
        let verified = world.run(&["audit", "verify"]);
        assert!(verified.code == 5 && verified.text().contains("wrong-key"), "{verified:?}");
        assert!(verified.stderr.contains("`key.vkey` lacks a key"), "{verified:?}");
        if kept == "the former key" {
            let refused = world.fs(&["read", "a"]);
            assert!(refused.stderr.contains("lacks a key"), "{refused:?}");
        }
        let done = world.run(&["audit", "recover", "--yes"]).ok();
        assert!(done.text().contains("put back: the log's public key"), "{done:?}");
        assert!(!done.text().contains("set aside: the checkpoint"), "{done:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), keys, "{kept}");
        world.run(&["audit", "verify", "--key", file.to_str().unwrap()]).ok();
        world.fs(&["read", "a"]).ok();
    }
}

/// `audit verify` was to show what is wrong, which does not look at that file.
#[test]
fn a_private_key_that_is_damaged_is_named() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    std::fs::write(world.state().join("keys/checkpoint.key"), "garbage\n").unwrap();
    let refused = world.fs(&["read", "a"]);
    assert!(refused.stderr.contains("checkpoint.key` is damaged"), "{refused:?}");
    world.run(&["audit", "key", "--new"]).ok();
    world.fs(&["read", "a"]).ok();
}

/// A key that signed nothing of it is not taken for the log's.
#[test]
fn a_log_whose_key_nothing_tells_waits_for_a_copy_of_it() {
    let world = World::new();
    write_log(&world, 10, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    let file = world.state().join("audit/key.vkey");
    let key = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let private = world.state().join("keys/checkpoint.key");
    let other = World::new();
    other.file("a", "x");
    other.fs(&["read", "a"]).ok();
    for private_is in ["another", "gone"] {
        match private_is {
            "gone" => std::fs::remove_file(&private).unwrap(),
            _ => drop(std::fs::copy(other.state().join("keys/checkpoint.key"), &private).unwrap()),
        }
        let refused = world.run(&["audit", "recover", "--yes"]);
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("put it back from a copy"), "{refused:?}");
        assert!(!file.exists());
    }
    std::fs::write(&file, key).unwrap();
    // Nor does a gateway start without the private key.
    let refused = world.run(&["audit", "recover"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("`portcullis audit key --new`"), "{refused:?}");
    assert_eq!(world.fs(&["read", "a"]).code, 1);
}
