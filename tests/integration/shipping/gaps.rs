//! Copies that have not all that was sent to them, and logs of several segments.

use std::{
    fs,
    path::{Path, PathBuf},
};

use portcullis_audit::{Kind, SEGMENT_RECORDS};

use super::{configure, copies, records, run, shipped, the_copy};
use crate::{
    common::World,
    review::{decision, write_log},
};

/// A log of two full segments and one that is open, with a checkpoint.
pub(super) fn world_of_segments() -> World {
    let world = World::new();
    write_log(&world, 2 * SEGMENT_RECORDS + 500, |seq| {
        (Kind::Decision, decision("coder", "read", &format!("f{}", seq % 100), "allow", "r"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    world
}

/// Puts a copy of the directory `from` at `to`, which is not there.
fn duplicate(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => duplicate(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The state of a copy's progress.
fn progress(world: &World) -> PathBuf {
    let entries = fs::read_dir(world.state().join("ship")).unwrap().map(|it| it.unwrap().path());
    entries.into_iter().find(|path| path.extension().is_some_and(|it| it == "json")).unwrap()
}

/// The checkpoint of a copy counted for the copy: what was missing in it was removed from the log,
/// and was nowhere then.
#[test]
fn what_a_copy_has_lost_is_not_pruned() {
    let world = world_of_segments();
    let target = configure(world.base());
    let all = 2 * SEGMENT_RECORDS + 500;
    run(&world, world.base(), &["audit", "ship"]).ok();
    let copy = the_copy(&target);
    let whole = world.base().join("whole");
    duplicate(&copy, &whole);
    let first = "seg-000000.jsonl.zst";
    let empty = |name: &str| fs::write(copy.join(name), "").unwrap();
    let remove = |name: &str| fs::remove_file(copy.join(name)).unwrap();
    let shorten = |name: &str| {
        let bytes = fs::read(copy.join(name)).unwrap();
        fs::write(copy.join(name), &bytes[..bytes.len() / 2]).unwrap();
    };
    let flip = |name: &str| {
        let mut bytes = fs::read(copy.join(name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(copy.join(name), bytes).unwrap();
    };
    let link = |name: &str| {
        remove(name);
        std::os::unix::fs::symlink(whole.join(name), copy.join(name)).unwrap();
    };
    // Changes of the copy, each with the number of records that are then reported.
    let holes: [(&str, &dyn Fn(), u64); 8] = [
        ("empty", &|| empty(first), 0),
        ("removed", &|| remove(first), 0),
        ("cut", &|| shorten(first), 0),
        ("elsewhere", &|| link(first), 0),
        ("second cut", &|| shorten("seg-000001.jsonl.zst"), SEGMENT_RECORDS),
        ("open removed", &|| remove("seg-000002.jsonl"), 2 * SEGMENT_RECORDS),
        ("open cut", &|| shorten("seg-000002.jsonl"), 2 * SEGMENT_RECORDS),
        // Of the same length: only a reader of it sees that.
        ("changed", &|| flip(first), all),
    ];
    let prune = ["audit", "prune", "--before", "2027-01-01", "--yes"];
    for (what, damage, left) in holes {
        damage();
        let status =
            run(&world, world.base(), &["audit", "ship", "--status", "--json"]).ok().json();
        assert_eq!(status["records"], left, "{what}: {status}");
        assert_eq!(status["error"].is_string(), left < all, "{what}: {status}");
        if left < SEGMENT_RECORDS || left == all {
            let refused = run(&world, world.base(), &prune);
            assert!(
                refused.code == 1 && refused.stderr.contains("nothing was removed"),
                "{what}: {refused:?}"
            );
            assert!(world.state().join("audit/seg-000000.jsonl").exists(), "{what}");
        }
        fs::remove_dir_all(&copy).unwrap();
        duplicate(&whole, &copy);
    }
    // A copy with a hole is not gone on with either.
    shorten(first);
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let newest = copies(&target).pop().unwrap();
    assert!(newest != copy && records(&world, &newest) > all);
    run(&world, world.base(), &prune).ok();
    assert!(!world.state().join("audit/seg-000000.jsonl").exists());
}

/// The sender was killed when the open segment was gone and that was not noted: the copy, which was
/// intact, was reported as incomplete, and everything was sent again.
#[test]
fn a_segment_that_was_just_sealed_is_not_missed() {
    let world = World::new();
    let target = configure(world.base());
    write_log(&world, SEGMENT_RECORDS - 2, |seq| {
        (Kind::Decision, decision("coder", "read", &format!("f{}", seq % 100), "allow", "r"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let before = fs::read(progress(&world)).unwrap();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let copy = the_copy(&target);
    assert!(!copy.join("seg-000000.jsonl").exists());
    fs::write(progress(&world), before).unwrap();
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    assert_eq!(the_copy(&target), copy);
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, &copy)), own["signed"]["records"].as_u64());
}

/// The end of a compressed segment could not be determined: each was a failure.
#[test]
fn a_log_with_compressed_segments_is_copied_at_once() {
    let world = world_of_segments();
    let target = configure(world.base());
    world.run(&["audit", "compress"]).ok();
    assert!(world.state().join("audit/seg-000000.jsonl.zst").exists());
    run(&world, world.base(), &["audit", "ship"]).ok();
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, &the_copy(&target))), own["signed"]["records"].as_u64());
    let known: serde_json::Value =
        serde_json::from_slice(&fs::read(progress(&world)).unwrap()).unwrap();
    assert!(known["end"].is_object(), "{known}");
}

/// It began again at nothing without a word, and each failing attempt made another copy.
#[test]
fn progress_that_cannot_be_read_is_told() {
    let (world, target) = shipped();
    fs::write(progress(&world), "{").unwrap();
    let status = run(&world, world.base(), &["audit", "ship", "--status", "--json"]).ok().json();
    assert!(status["error"].as_str().unwrap().contains("cannot be read"), "{status}");
    let sent = run(&world, world.base(), &["audit", "ship"]).ok();
    assert!(sent.stderr.contains("another copy is begun"), "{sent:?}");
    assert_eq!(copies(&target).len(), 2);
}

/// The records were said to be copied when nothing could be sent: no error, and no lag.
#[test]
fn a_log_without_its_frontier_or_checkpoint_was_not_copied_unnoticed() {
    let world = World::new();
    let target = configure(world.base());
    world.file("a", "x");
    let next = || {
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "checkpoint"]).ok();
        world.run(&["audit", "verify", "--json"]).ok().json()["signed"]["records"].as_u64()
    };
    let status = || run(&world, world.base(), &["audit", "ship", "--status", "--json"]).ok().json();
    next();
    let sent = run(&world, world.base(), &["audit", "ship"]).ok();
    assert!(!sent.text().ends_with(": 0 records\n"), "{sent:?}");

    next();
    fs::remove_file(world.state().join("audit/frontier")).unwrap();
    let refused = run(&world, world.base(), &["audit", "ship"]);
    assert!(refused.code == 1 && refused.stderr.contains("audit checkpoint"), "{refused:?}");
    let late = status();
    assert!(late["behind"].as_u64() > Some(0) && late["error"].is_string(), "{late}");
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let all = world.run(&["audit", "verify", "--json"]).ok().json()["signed"]["records"].as_u64();
    assert_eq!(Some(records(&world, &the_copy(&target))), all);

    // The one beside the private key counts.
    let all = next();
    fs::remove_file(world.state().join("audit/checkpoint")).unwrap();
    assert!(status()["behind"].as_u64() > Some(0), "{}", status());
    run(&world, world.base(), &["audit", "ship"]).ok();
    assert_eq!(Some(records(&world, &the_copy(&target))), all);
    for name in ["keys/signed", "audit/checkpoints"] {
        let path = world.state().join(name);
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
    }
    let refused = run(&world, world.base(), &["audit", "ship"]);
    assert!(refused.code == 1 && refused.stderr.contains("no checkpoint any more"), "{refused:?}");
}

/// Nothing is signed yet, so there is nothing to send.
#[test]
fn a_log_that_never_had_a_checkpoint_is_no_error() {
    let world = World::new();
    configure(world.base());
    write_log(&world, 5, |_| (Kind::Decision, decision("coder", "read", "f", "allow", "r")));
    let sent = run(&world, world.base(), &["audit", "ship"]).ok();
    assert!(sent.text().ends_with(": 0 records\n"), "{sent:?}");
}
