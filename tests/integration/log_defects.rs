//! Past defects: logs, keys and files that an attacker or a power loss leaves, and the commands
//! that then gave false results, hung, filled the memory or left no way out.

mod keys;
mod messages;
mod readers;
mod repair;
mod verdicts;

use std::{
    fs,
    os::unix::{
        self,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::PathBuf,
};

use portcullis_audit::{Draft, Kind};

use crate::{
    common::{Done, World},
    proof::second,
    review::{decision, write_log},
};

fn audit(world: &World, name: &str) -> PathBuf {
    world.state().join("audit").join(name)
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// A log of some records that a gateway wrote and signed.
fn world() -> World {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    world
}

/// Writes a log of `count` records that no gateway wrote, with a checkpoint.
fn long(count: u64) -> World {
    let world = World::new();
    write_log(&world, count, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    world
}

/// Exit codes of both verifiers.
fn both(world: &World) -> [i32; 2] {
    let log = world.state().join("audit");
    [world.run(&["audit", "verify", "--dir", text(&log)]).code, second(&["log", text(&log)]).code]
}

/// The exit code of `doctor`, and what it finds of the log.
fn doctor(world: &World) -> (i32, String) {
    let done = world.run(&["doctor", "--json"]);
    let report = done.json();
    let checks = report["checks"].as_array().unwrap();
    let log = checks.iter().find(|check| check["name"] == "audit log").unwrap();
    (done.code, log["status"].as_str().unwrap().to_owned())
}

/// Two keys of one name and hash.
const COLLIDING: [&str; 2] = [
    "n+79e788cf+ATRCZgYoi1eUUgP2bK3D7Khq2G+jOZjeiE0Wq8MnIFqB",
    "n+79e788cf+AeZQcAT5GmZ/kzQudhQmKuMM8Pa8uPW8amLB5wKa38CJ",
];

#[test]
fn two_keys_of_one_name_and_hash_are_refused_by_both_verifiers() {
    let world = world();
    let colliding = format!("{}\n{}\n", COLLIDING[0], COLLIDING[1]);
    let keys = audit(&world, "key.vkey");
    let known = fs::read_to_string(&keys).unwrap();
    fs::write(&keys, format!("{known}{colliding}")).unwrap();
    let log = world.state().join("audit");
    let first = world.run(&["audit", "verify", "--dir", text(&log)]);
    assert!(first.text().starts_with("damaged: bad-checkpoint in key.vkey"), "{first:?}");
    let second = second(&["log", text(&log)]);
    assert_eq!((second.code, second.json()["kind"].as_str()), (5, Some("bad-checkpoint")));
    assert_eq!(second.json()["segment"], "key.vkey");
    // As a key from outside they are none, either.
    fs::write(&keys, known).unwrap();
    let given = world.base().join("given.vkey");
    fs::write(&given, colliding).unwrap();
    let refused = world.run(&["audit", "verify", "--key", text(&given)]);
    assert!(refused.code != 0 && refused.stderr.contains("one name and one hash"), "{refused:?}");
}

/// Whichever of the two was looked up first decided what the log was.
#[test]
fn a_witness_of_the_name_and_hash_of_a_key_of_the_log_is_refused() {
    let world = world();
    let [own, witness] = COLLIDING;
    let (keys, log) = (audit(&world, "key.vkey"), world.state().join("audit"));
    let known = fs::read_to_string(&keys).unwrap();
    fs::write(&keys, format!("{known}{own}\n")).unwrap();
    world.run(&["audit", "verify"]).ok();
    let first = world.run(&["audit", "verify", "--witness", witness, "--json"]);
    let damage = &first.json()["damages"][0];
    assert_eq!((first.code, damage["kind"].as_str()), (5, Some("bad-checkpoint")), "{first:?}");
    assert_eq!(damage["segment"], "key.vkey");
    // The other verifier takes the keys of witnesses with those of the log.
    let given = world.base().join("witness.vkey");
    fs::write(&given, witness).unwrap();
    let second = second(&["log", text(&log), "--key", text(&keys), "--key", text(&given)]);
    assert_eq!((second.code, second.json()["kind"].as_str()), (5, Some("bad-checkpoint")));
}

/// Both verifiers reported a log as intact on which no gateway serves.
#[test]
fn what_a_gateway_cannot_use_in_the_place_of_its_files_is_damage_to_all() {
    for name in ["frontier", "quarantine"] {
        for kind in ["pipe", "link", "other"] {
            let world = world();
            let path = audit(&world, name);
            let was = fs::read(&path).ok();
            if was.is_some() {
                fs::remove_file(&path).unwrap();
            }
            match (kind, name) {
                ("pipe", _) => {
                    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap()
                }
                ("link", _) => std::os::unix::fs::symlink("/tmp", &path).unwrap(),
                (_, "frontier") => fs::create_dir(&path).unwrap(),
                _ => fs::write(&path, "").unwrap(),
            }
            assert_eq!(both(&world), [5, 5], "{name} {kind}");
            let log = world.state().join("audit");
            let first = world.run(&["audit", "verify", "--json"]).json();
            let damage = &first["damages"][0];
            assert_eq!(
                (&damage["kind"], &damage["segment"]),
                (&"unexpected-file".into(), &name.into())
            );
            let second = second(&["log", text(&log)]).json();
            assert_eq!(
                (&second["kind"], &second["segment"]),
                (&damage["kind"], &damage["segment"])
            );
            // No gateway serves on it, and a recovery repairs it, unless the operator has to move
            // something away.
            assert_ne!(world.fs(&["read", "a"]).code, 0, "{name} {kind}");
            let recovered = world.run(&["audit", "recover", "--yes"]);
            if name == "frontier" && kind != "other" {
                recovered.ok();
            } else {
                assert_ne!(recovered.code, 0, "{name} {kind}: {recovered:?}");
                assert!(recovered.stderr.contains(name), "{recovered:?}");
                fs::remove_dir(&path).or_else(|_| fs::remove_file(&path)).unwrap();
            }
            world.fs(&["read", "a"]).ok();
            assert_eq!(both(&world), [0, 0], "{name} {kind}");
        }
    }
}

#[test]
fn a_long_line_of_roots_is_one_line_to_both_verifiers() {
    let world = long(65_540);
    let roots = fs::read_to_string(audit(&world, "roots")).unwrap();
    assert_eq!(both(&world), [0, 0]);
    for (content, code) in [
        (format!("{}{roots}", "x".repeat(65)), 0),
        (format!("{}\n{roots}", "x".repeat(65)), 5),
        (format!("{roots}{}", "x".repeat(200)), 0),
    ] {
        fs::write(audit(&world, "roots"), content).unwrap();
        assert_eq!(both(&world), [code; 2]);
    }
}

#[test]
fn an_empty_last_segment_after_a_compressed_one_stops_nobody() {
    for torn in ["", "{\"v\":1,\"seq\":65"] {
        let world = long(65_536);
        let plain = audit(&world, "seg-000000.jsonl");
        let bytes = fs::read(&plain).unwrap();
        let packed = fs::File::create(audit(&world, "seg-000000.jsonl.zst")).unwrap();
        portcullis::gateway::AuditLog::compress_segment(&*bytes, packed, bytes.len() as u64)
            .unwrap();
        fs::remove_file(&plain).unwrap();
        fs::write(audit(&world, "seg-000001.jsonl"), torn).unwrap();
        assert_ne!(doctor(&world).1, "failed");
        world.file("a", "x");
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "verify"]).ok();
    }
}

#[test]
fn a_repair_copies_no_file_of_a_length_that_is_only_said() {
    let world = world();
    let sparse = fs::File::create(audit(&world, "checkpoint")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let refused = world.run(&["audit", "recover", "--yes"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("`checkpoint`") && refused.stderr.contains("move it away"));
    fs::remove_file(audit(&world, "checkpoint")).unwrap();
    world.fs(&["read", "a"]).ok();
    // A copied file takes no more space than before.
    fs::File::create(audit(&world, "seg-x")).unwrap().set_len(64 << 20).unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    world.run(&["audit", "verify"]).ok();
    let aside = fs::read_dir(audit(&world, "quarantine")).unwrap().map(|entry| entry.unwrap());
    let aside = aside.map(|entry| entry.metadata().unwrap());
    let aside: Vec<_> = aside.filter(|entry| entry.len() == 64 << 20).collect();
    assert!(aside.len() == 1 && aside[0].blocks() < 1024, "{aside:?}");
}

#[test]
fn a_new_key_does_not_make_the_loss_of_the_old_one_permanent() {
    let world = world();
    let private = fs::read(world.state().join("keys/checkpoint.key")).unwrap();
    let published = fs::read(audit(&world, "key.vkey")).unwrap();
    for damage in ["gone", "damaged"] {
        match damage {
            "gone" => fs::remove_file(audit(&world, "key.vkey")).unwrap(),
            _ => fs::write(audit(&world, "key.vkey"), "no key").unwrap(),
        }
        let refused = world.run(&["audit", "key", "--new"]);
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("audit recover"), "{refused:?}");
        assert_eq!(fs::read(world.state().join("keys/checkpoint.key")).unwrap(), private);
        world.run(&["audit", "recover", "--yes"]).ok();
        assert_eq!(fs::read(audit(&world, "key.vkey")).unwrap(), published);
    }
    world.run(&["audit", "key", "--new"]).ok();
    world.fs(&["read", "a"]).ok();
    assert_eq!(both(&world), [0, 0]);
}

/// A new key left this before, where the old one was gone from `key.vkey`.
#[test]
fn a_key_that_records_name_is_put_back_beside_the_one_in_use() {
    let (world, other) = (world(), self::world());
    let old = fs::read_to_string(audit(&world, "key.vkey")).unwrap();
    for name in ["keys/checkpoint.key", "audit/key.vkey"] {
        fs::copy(other.state().join(name), world.state().join(name)).unwrap();
    }
    let new = fs::read_to_string(audit(&world, "key.vkey")).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(fs::read_to_string(audit(&world, "key.vkey")).unwrap(), new + &old);
    world.fs(&["read", "a"]).ok();
    assert_eq!(both(&world), [0, 0]);
}

#[test]
fn a_repair_does_not_say_that_gateways_start_where_they_do_not() {
    let world = world();
    fs::remove_dir_all(world.state().join("keys")).unwrap();
    let segment = audit(&world, "seg-000000.jsonl");
    let lines = fs::read_to_string(&segment).unwrap();
    fs::write(&segment, lines.replace("\"op\":\"read\"", "\"op\":\"stat\"")).unwrap();
    let done = world.run(&["audit", "recover", "--yes"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(!done.text().contains("done") && done.text().ends_with("cannot start yet\n"));
}

#[test]
fn pruned_records_do_not_stay_in_a_copy_that_was_not_finished() {
    let world = long(140_000);
    let copy = audit(&world, ".seg-000000.jsonl.zst.0123");
    fs::copy(audit(&world, "seg-000000.jsonl"), &copy).unwrap();
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    assert!(!audit(&world, "seg-000000.jsonl").exists() && !copy.exists());
}

/// Paths of 4,000 bytes; a gateway writes none of more than 4,096.
const PATHS_OF_A_MEGABYTE: u64 = 250;

/// Runs a command on a log with so many MB of paths; gives its output. It ends at its bound, and says so.
#[track_caller]
fn ends_at_its_bound(megabytes: u64, args: &[&str], why: &str) -> String {
    let world = World::new();
    let directories = format!("/{}", "x".repeat(250)).repeat(16);
    write_log(&world, megabytes * PATHS_OF_A_MEGABYTE, |seq| {
        let path = format!("{seq}{directories}");
        let rest = decision("coder", "write", &path, "allow", "allowedPaths.write");
        (Kind::Intent, Draft { decision: Some("allow".to_owned()), ..rest })
    });
    let log = world.state().join("audit");
    let done = world.run(&[&["audit"], args, &["--dir", text(&log)]].concat());
    assert_eq!(done.code, 5, "{args:?}: {}", done.stderr);
    assert!(done.stderr.contains(why), "{args:?}: {}", done.stderr);
    String::from_utf8(done.stdout).unwrap()
}

/// They took memory without a bound, as the log determined.
#[test]
fn an_export_of_a_log_from_somebody_else_keeps_a_bounded_part_of_it() {
    let why = "too many changes wait for an outcome";
    let events = ends_at_its_bound(20, &["export", "--format", "ocsf"], why);
    // All of what went out is there.
    assert_eq!(events.lines().count() as u64, 20 * PATHS_OF_A_MEGABYTE);
}

#[test]
#[ignore = "`tests/run.sh full` runs it"]
fn views_of_a_log_from_somebody_else_keep_a_bounded_part_of_it() {
    let why = "the session has more records than are shown";
    ends_at_its_bound(150, &["session", "session", "--records", "--no-diff"], why);
    ends_at_its_bound(150, &["query", "--stats", "path"], "too many values to count them all");
}

#[test]
fn what_is_written_for_the_operator_follows_no_link_of_an_agent() {
    let world = world();
    world.run(&["audit", "checkpoint"]).ok();
    let precious = world.base().join("precious");
    fs::write(&precious, "kept").unwrap();
    for (args, name) in [
        (&["report"][..], "report.html"),
        (&["export", "--format", "csv"], "log.csv"),
        (&["bundle"], "evidence.zip"),
    ] {
        let output = world.path(name);
        for planted in [output.clone(), output.with_extension("zip.part")] {
            unix::fs::symlink(&precious, planted).unwrap();
        }
        let args = [&["audit"], args, &["--output", text(&output)]].concat();
        let refused = world.run(&args);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("it is a link"), "{refused:?}");
        fs::remove_file(&output).unwrap();
        world.run(&args).ok();
        world.run(&args).ok();
        assert!(output.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "kept");
        fs::remove_file(output.with_extension("zip.part")).unwrap();
    }
    let left = fs::read_dir(world.root()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

const COMMANDS: [&[&str]; 11] = [
    &["audit", "checkpoint"],
    &["audit", "compress"],
    &["audit", "key"],
    &["audit", "key", "--new"],
    &["audit", "prune", "--before", "1d", "--yes"],
    &["audit", "recover", "--yes"],
    &["audit", "ship"],
    &["approve"],
    &["backup", "list"],
    &["backup", "verify"],
    &["fs", "ls"],
];

fn refused(done: &Done) {
    assert_ne!(done.code, 0, "{done:?}");
    let said = ["overlap", "is named through"].iter().any(|why| done.stderr.contains(why));
    assert!(said, "{done:?}");
}

#[test]
fn a_configuration_in_the_workspace_is_used_by_no_command() {
    let world = world();
    let ran = world.base().join("ran");
    let signer = world.file("signer", format!("#!/bin/sh\ntouch {}\n", ran.display()));
    fs::set_permissions(&signer, fs::Permissions::from_mode(0o755)).unwrap();
    let key = world.run(&["audit", "key"]).ok();
    let config = world.file(
        "c.toml",
        format!(
            "[audit]\nsigner = [{:?}]\npublicKey = {:?}\nship = [{{ to = {:?} }}]\n",
            text(&signer),
            key.text().trim(),
            text(&world.base().join("copies"))
        ),
    );
    for command in COMMANDS {
        refused(&world.run(&[command, &["--config", text(&config)]].concat()));
    }
    let doctor = world.run(&["doctor", "--json", "--config", text(&config)]);
    assert_eq!(doctor.code, 1, "{doctor:?}");
    assert!(doctor.text().contains("\"trusted paths\""), "{doctor:?}");
    assert!(!ran.exists());
}

#[test]
fn a_state_directory_named_through_the_workspace_is_used_by_no_command() {
    let world = world();
    unix::fs::symlink(world.base(), world.path("link")).unwrap();
    let config = world.base().join("c.toml");
    let copies = world.base().join("copies");
    fs::write(&config, format!("[audit]\nship = [{{ to = {:?} }}]\n", text(&copies))).unwrap();
    let state = world.path("link/state");
    let more = ["--state", text(&state), "--config", text(&config)];
    for command in COMMANDS {
        refused(&world.run(&[command, &more].concat()));
        // The workspace need not be named.
        if command[0] == "audit" {
            let mut unnamed = world.command(&[command, &more].concat());
            unnamed.env_remove("PORTCULLIS_WORKSPACE");
            refused(&crate::common::done(unnamed.output().unwrap()));
        }
    }
    let doctor = world.run(&["doctor", "--json", "--state", text(&state)]);
    assert_eq!(doctor.code, 1, "{doctor:?}");
    world.run(&["audit", "ship", "--config", text(&config)]).ok();
}

#[test]
fn doctor_refuses_the_logs_that_a_start_refuses() {
    type Damage = fn(&World);
    let damages: [(&str, Damage); 4] = [
        ("no public key", |world| fs::remove_file(audit(world, "key.vkey")).unwrap()),
        ("no checkpoint", |world| fs::write(audit(world, "checkpoint"), "none\n").unwrap()),
        ("a long segment", |world| {
            let segment = fs::File::options().write(true).open(audit(world, "seg-000000.jsonl"));
            segment.unwrap().set_len(1 << 40).unwrap();
        }),
        ("no private key", |world| {
            fs::remove_file(world.state().join("keys/checkpoint.key")).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let world = world();
        world.run(&["doctor"]).ok();
        damage(&world);
        assert_eq!(doctor(&world), (1, "failed".to_owned()), "{what}");
        assert_ne!(world.fs(&["ls"]).code, 0, "{what}");
    }
}

/// It took each of them for damage.
#[test]
fn doctor_starts_on_a_compressed_and_on_a_pruned_log() {
    let world = long(140_000);
    world.run(&["audit", "compress"]).ok();
    for prune in [false, true] {
        if prune {
            world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
        }
        assert_eq!(doctor(&world).1, "ok");
    }
}

#[test]
fn run_tells_a_damaged_log_by_its_exit_code_and_says_why_once() {
    let world = world();
    fs::write(audit(&world, "checkpoint"), "none\n").unwrap();
    for _ in 0..3 {
        let done = world.run(&["run", "--unconfined", "--", "/bin/true"]);
        assert_eq!(done.code, 5, "{done:?}");
        let said = done.stderr.lines().filter(|line| line.starts_with("portcullis: "));
        let beside =
            |line: &str| [": warning: ", ": note: "].iter().any(|word| line.contains(word));
        let said: Vec<_> = said.filter(|line| !beside(line)).collect();
        assert!(said.len() == 1 && said[0].contains("audit log"), "{done:?}");
    }
}
