//! Disagreements of `audit recover` and the verifiers.

use std::{ffi::OsStr, fs, io::Write as _, os::unix::ffi::OsStrExt as _, path::Path};

use super::{audit, both, world};
use crate::common::World;

/// Appends a line that is no record.
fn damage(world: &World) {
    let mut log = fs::File::options().append(true).open(audit(world, "seg-000000.jsonl")).unwrap();
    log.write_all(b"bad\n").unwrap();
}

fn compress(plain: &Path) {
    let bytes = fs::read(plain).unwrap();
    let packed = fs::File::create(plain.with_extension("jsonl.zst")).unwrap();
    portcullis::gateway::AuditLog::compress_segment(&*bytes, packed, bytes.len() as u64).unwrap();
}

/// It became the log, and nothing compared it with what was signed.
#[test]
fn a_compressed_segment_does_not_take_the_place_of_the_plain_one_that_is_set_aside() {
    for whole in [false, true] {
        let world = world();
        let plain = audit(&world, "seg-000000.jsonl");
        compress(&plain);
        if whole {
            let bytes = fs::read_to_string(&plain).unwrap();
            fs::write(&plain, bytes.replacen("\"v\":1", "\"v\":x", 1)).unwrap();
        } else {
            damage(&world);
        }
        let before = fs::read_to_string(&plain).unwrap().lines().count();
        world.run(&["audit", "recover", "--yes"]).ok();
        assert_eq!(both(&world), [0, 0]);
        assert!(!audit(&world, "seg-000000.jsonl.zst").exists());
        let aside = fs::read_dir(audit(&world, "quarantine")).unwrap();
        let aside: Vec<_> = aside.map(|entry| entry.unwrap().file_name()).collect();
        let kinds = |kind: &str| {
            aside.iter().filter(|name| name.to_string_lossy().starts_with(kind)).count()
        };
        assert_eq!((kinds("unexpected-"), kinds("damaged-")), (1, 1), "{aside:?}");
        world.fs(&["read", "a"]).ok();
        assert!(world.records().len() != before || !whole);
        assert_eq!(both(&world), [0, 0]);
    }
}

/// The verifiers called the log damaged, and the repair that they name called it intact.
#[test]
fn files_whose_names_are_no_utf8_are_set_aside() {
    let world = world();
    let names = [&b"seg-\xff"[..], b"seg-\xfe", "seg-\u{fffd}".as_bytes(), b"\xff"];
    for name in names {
        fs::write(audit(&world, "").join(OsStr::from_bytes(name)), name).unwrap();
    }
    assert_eq!(both(&world), [5, 5]);
    let found = world.run(&["audit", "verify", "--json"]).json();
    assert_eq!(found["damages"][0]["segment"], "seg-\u{fffd}");
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(both(&world), [0, 0]);
    let aside = fs::read_dir(audit(&world, "quarantine")).unwrap();
    let aside = aside.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let mut aside: Vec<_> = aside.collect();
    aside.sort();
    assert_eq!(aside, ["seg-\u{fffd}".as_bytes(), b"seg-\xfe", b"seg-\xff"]);
}

/// The repair took them for damaged checkpoints, and stopped at the directory.
#[test]
fn a_repair_leaves_what_no_verifier_minds_among_the_checkpoints() {
    let world = world();
    fs::create_dir(audit(&world, "checkpoints/.x")).unwrap();
    fs::write(audit(&world, "checkpoints/zz"), "x").unwrap();
    damage(&world);
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(both(&world), [0, 0]);
    assert!(audit(&world, "checkpoints/.x").exists() && audit(&world, "checkpoints/zz").exists());
}

/// The plan was confirmed and half done before the error came.
#[test]
fn a_repair_that_cannot_be_done_is_refused_before_anything_is_moved() {
    let world = world();
    fs::write(audit(&world, "seg-x"), "x").unwrap();
    fs::create_dir(audit(&world, "checkpoints/1")).unwrap();
    damage(&world);
    let refused = world.run(&["audit", "recover", "--yes"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(audit(&world, "seg-x").exists() && !audit(&world, "quarantine").exists());
}
