//! Commands that say whether a gateway can start, or whether a log is intact, agree with a start.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use portcullis_audit::{Checkpoint, Hash, PrivateKey};

use super::{audit, long, text, world};
use crate::common::{World, done};

fn shorten(world: &World, name: &str) {
    let path = world.state().join(name);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 4]).unwrap();
}

fn mode(world: &World, name: &str, mode: u32) {
    fs::set_permissions(world.state().join(name), fs::Permissions::from_mode(mode)).unwrap();
}

fn remove_segments(world: &World) {
    for entry in fs::read_dir(audit(world, "")).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_name().to_string_lossy().starts_with("seg-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Removes all that is in the log's directory.
fn empty(world: &World) {
    fs::remove_dir_all(audit(world, "")).unwrap();
    fs::create_dir(audit(world, "")).unwrap();
    mode(world, "audit", 0o700);
}

fn damage_end(world: &World) {
    let segment = audit(world, "seg-000000.jsonl");
    let lines = fs::read_to_string(&segment).unwrap();
    fs::write(&segment, lines.replacen("\"op\":\"read\"", "\"op\":\"stat\"", 1)).unwrap();
}

/// It said that `run` works.
#[test]
fn doctor_has_the_verdict_of_a_start() {
    type Damage = fn(&World);
    let damages: [(&str, bool, Damage); 13] = [
        ("no log", true, |world| fs::remove_dir_all(audit(world, "")).unwrap()),
        ("an empty log", true, empty),
        ("no segment, no lock", true, |world| {
            remove_segments(world);
            fs::remove_file(audit(world, "lock")).unwrap();
        }),
        ("a damaged record, no lock", true, |world| {
            damage_end(world);
            fs::remove_file(audit(world, "lock")).unwrap();
        }),
        ("no lock", false, |world| fs::remove_file(audit(world, "lock")).unwrap()),
        ("no log, no key", true, |world| {
            fs::remove_dir_all(audit(world, "")).unwrap();
            fs::remove_file(world.state().join("keys/checkpoint.key")).unwrap();
        }),
        ("a damaged key, no log and nothing signed", true, |world| {
            fs::remove_dir_all(audit(world, "")).unwrap();
            fs::remove_file(world.state().join("keys/signed")).unwrap();
            shorten(world, "keys/checkpoint.key");
        }),
        ("a cut note and no checkpoint", true, |world| {
            shorten(world, "keys/signed");
            fs::remove_file(audit(world, "checkpoint")).unwrap();
            fs::remove_dir_all(audit(world, "checkpoints")).unwrap();
        }),
        ("a short key for secrets", true, |world| shorten(world, "secrets.key")),
        ("an empty key for secrets", true, |world| {
            fs::write(world.state().join("secrets.key"), "").unwrap();
        }),
        ("a directory as key for secrets", true, |world| {
            fs::remove_file(world.state().join("secrets.key")).unwrap();
            fs::create_dir(world.state().join("secrets.key")).unwrap();
        }),
        ("a key for secrets that others read", true, |world| mode(world, "secrets.key", 0o644)),
        ("no key for secrets", false, |world| {
            fs::remove_file(world.state().join("secrets.key")).unwrap();
        }),
    ];
    for (what, refuses, damage) in damages {
        let world = world();
        damage(&world);
        let names = || {
            let entries = fs::read_dir(world.state()).unwrap().map(|entry| entry.unwrap());
            let entries = entries.chain(
                fs::read_dir(audit(&world, "")).into_iter().flatten().map(|entry| entry.unwrap()),
            );
            entries.map(|entry| entry.path()).collect::<std::collections::BTreeSet<_>>()
        };
        let before = names();
        let doctor = world.run(&["doctor", "--json"]);
        assert_eq!(doctor.code, i32::from(refuses), "{what}: {}", doctor.text());
        assert_eq!(doctor.json()["runRefuses"], refuses, "{what}");
        assert_eq!(names(), before, "{what}: it leaves nothing behind");
        let start = world.fs(&["ls"]);
        assert_eq!(start.code != 0, refuses, "{what}: {start:?}");
    }
}

/// It was said to be intact, without records yet, once a gateway had been refused.
#[test]
fn a_log_of_which_nothing_but_an_unreadable_note_is_left_is_damaged() {
    type Loss = fn(&World);
    let losses: [(&str, Loss); 3] = [
        ("removed", |world| fs::remove_dir_all(audit(world, "")).unwrap()),
        ("emptied", empty),
        ("without checkpoints", |world| {
            fs::remove_file(audit(world, "checkpoint")).unwrap();
            fs::remove_dir_all(audit(world, "checkpoints")).unwrap();
        }),
    ];
    for (what, loss) in losses {
        let world = world();
        loss(&world);
        shorten(&world, "keys/signed");
        for _ in 0..2 {
            let found = world.run(&["audit", "verify"]);
            assert_eq!(found.code, 5, "{what}: {found:?}");
            assert!(!found.text().contains("intact"), "{what}: {found:?}");
            assert_eq!(world.fs(&["read", "a"]).code, 5, "{what}");
        }
    }
    // A checkpoint that is left is compared as ever.
    let world = world();
    shorten(&world, "keys/signed");
    world.run(&["audit", "verify"]).ok();
    world.fs(&["read", "a"]).ok();
}

/// It said that the start that made the state directory had failed.
#[test]
fn a_log_that_is_gone_with_its_note_is_not_said_never_to_have_begun() {
    let world = world();
    world.write("a", "y").ok();
    fs::remove_dir_all(audit(&world, "")).unwrap();
    fs::remove_file(world.state().join("keys/signed")).unwrap();
    for command in [&["audit", "verify"][..], &["log"], &["audit", "query"]] {
        let done = world.run(command);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(!done.stderr.contains("was not begun"), "{done:?}");
        assert!(
            done.stderr.contains("`backups`") && done.stderr.contains("`policies`"),
            "{done:?}"
        );
    }
}

/// It computed the tree of that many records, without an end.
#[test]
fn a_checkpoint_of_more_records_than_there_are_was_proved_without_end() {
    let key = PrivateKey::from_seed("n", [7; 32]).unwrap();
    let sign = |world: &World, size: u64| {
        let checkpoint = Checkpoint { origin: "n".to_owned(), size, root: Hash::ZERO };
        let text = checkpoint.to_string();
        fs::write(audit(world, "checkpoint"), format!("{text}\n{}", key.sign(&text))).unwrap();
        fs::write(audit(world, "key.vkey"), format!("{}\n", key.public())).unwrap();
    };
    let proves = |world: &World, args: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["300", env!("CARGO_BIN_EXE_portcullis"), "audit", "prove"]).args(args);
        done(command.args(["--dir", text(&audit(world, ""))]).output().unwrap())
    };
    let world = world();
    for size in [1000, 1 << 20, 1 << 60, u64::MAX] {
        sign(&world, size);
        for args in [&["0"][..], &["900"], &["--from", "2"]] {
            let refused = proves(&world, args);
            assert_eq!((refused.code, refused.text()), (5, ""), "{size} {args:?}: {refused:?}");
        }
    }
    // A name of a segment claims as many.
    sign(&world, 1 << 60);
    fs::write(audit(&world, "seg-281474976710655.jsonl"), "").unwrap();
    let refused = proves(&world, &["0"]);
    assert_eq!((refused.code, refused.text()), (5, ""), "{refused:?}");
    // So does a later segment where one is missing or not full.
    let world = long(131_073);
    sign(&world, 131_073);
    fs::remove_file(audit(&world, "roots")).unwrap();
    for content in [Some("x\n"), None] {
        match content {
            Some(content) => fs::write(audit(&world, "seg-000001.jsonl"), content).unwrap(),
            None => fs::remove_file(audit(&world, "seg-000001.jsonl")).unwrap(),
        }
        let refused = proves(&world, &["0"]);
        assert_eq!((refused.code, refused.text()), (5, ""), "{content:?}: {refused:?}");
        assert!(refused.stderr.contains("seg-000001.jsonl"), "{content:?}: {refused:?}");
    }
}

/// Only a line on stderr said so.
#[test]
fn a_report_did_not_say_that_the_last_checkpoint_was_not_compared() {
    let world = world();
    fs::write(world.state().join("keys/signed"), "x").unwrap();
    let verified = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(verified["warnings"][0]["kind"], "unreadable-head", "{verified}");
    let report = world.base().join("report.json");
    world.run(&["audit", "report", "-o", text(&report)]).ok();
    assert!(fs::read_to_string(report).unwrap().contains("unreadable-head"));
    let bundled = world.run(&["audit", "bundle", "-o", text(&world.base().join("b.zip"))]).ok();
    assert!(bundled.stderr.contains("keys/signed"), "{bundled:?}");
}
