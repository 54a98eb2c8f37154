//! Logs that are not what was signed, and keys that are not those they were signed with.

use std::path::Path;

use portcullis_audit::Segment;
use serde_json::Value;

use super::{PYTHON, SIGNER, audit, second, text};
use crate::common::{World, done};

/// A party that can write to the log's directory, but not sign, cannot make a gateway sign for it.
#[test]
fn a_rewritten_log_is_refused_by_the_next_command() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    let segment = audit(&world).join(Segment(0).to_string());
    let mut prev = portcullis_audit::Hash::ZERO.to_string();
    let mut forged = String::new();
    for line in std::fs::read_to_string(&segment).unwrap().lines() {
        let known: Value = serde_json::from_str(line).unwrap();
        let line = line
            .replace("\"decision\":\"allow\"", "\"decision\":\"deny\"")
            .replace(known["prev"].as_str().unwrap(), &prev);
        prev = portcullis_audit::Hash::leaf(line.as_bytes()).to_string();
        forged += &format!("{line}\n");
    }
    std::fs::write(&segment, forged).unwrap();
    std::fs::remove_file(audit(&world).join("frontier")).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let refused = world.fs(&["read", "a"]);
    assert_eq!((refused.code, refused.text()), (5, ""), "{refused:?}");
    assert!(refused.stderr.contains("not those that a checkpoint signed"), "{refused:?}");
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    // Without any checkpoint it is refused, too.
    std::fs::remove_file(audit(&world).join("checkpoint")).unwrap();
    std::fs::remove_dir_all(audit(&world).join("checkpoints")).unwrap();
    let refused = world.fs(&["read", "a"]);
    assert!(refused.stderr.contains("not those that a checkpoint signed"), "{refused:?}");
    let damaged = world.run(&["audit", "verify"]);
    assert_eq!(damaged.code, 5, "{damaged:?}");
    assert!(damaged.text().contains("wrong-head"), "{damaged:?}");
    assert!(damaged.stderr.contains("not the one that was signed"), "{damaged:?}");
    let recovered = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(recovered.text().contains("signed again"), "{recovered:?}");
    world.fs(&["read", "a"]).ok();
}

#[test]
fn a_gateway_refuses_a_log_that_is_shorter_than_its_checkpoint() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let segment = audit(&world).join(Segment(0).to_string());
    let lines = std::fs::read_to_string(&segment).unwrap();
    let cut: String = lines.lines().take(2).map(|line| format!("{line}\n")).collect();
    std::fs::write(&segment, cut).unwrap();
    let refused = world.fs(&["read", "a"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("its end was cut off"), "{refused:?}");
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.run(&["audit", "recover", "--yes"]).ok();
    world.fs(&["read", "a"]).ok();
    let report = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(report["warnings"][0]["kind"], "quarantine");
    assert_eq!(report["signed"]["records"], report["records"]);
}

#[test]
fn a_key_that_is_gone_or_another_one_is_not_passed_over() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let first = world.run(&["audit", "key"]).ok();
    let private = world.state().join("keys/checkpoint.key");
    std::fs::remove_file(&private).unwrap();
    let refused = world.fs(&["read", "a"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("audit key --new"), "{refused:?}");
    let second = world.run(&["audit", "key", "--new"]).ok();
    assert_ne!(first.text(), second.text());
    world.fs(&["read", "a"]).ok();
    let report = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(report["signed"]["records"], report["records"]);
    // A verifier that knows only the first key sees that another one signed.
    let old = world.run(&["audit", "verify", "--key", first.text().trim()]);
    assert_eq!(old.code, 5, "{old:?}");
    assert!(old.text().contains("wrong-key"), "{old:?}");
    let both = world.base().join("both");
    std::fs::write(&both, format!("{}{}", first.text(), second.text())).unwrap();
    world.run(&["audit", "verify", "--key", text(&both)]).ok();
}

/// Recovery took the key for the log's and set the genuine checkpoints aside, and the log stayed
/// damaged after each repetition.
#[test]
fn the_public_key_of_another_log_is_replaced_by_the_own_one() {
    let (world, other) = (World::new(), World::new());
    for world in [&world, &other] {
        world.file("a", "x");
        world.fs(&["read", "a"]).ok();
    }
    let own = world.run(&["audit", "key"]).ok();
    let key = |world: &World| world.state().join("audit/key.vkey");
    std::fs::copy(key(&other), key(&world)).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(world.run(&["audit", "key"]).ok().text(), own.text());
    world.fs(&["read", "a"]).ok();
    let report = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(report["signed"]["records"], report["records"]);
}

/// It was refused where `audit verify` took the older checkpoint for the log's.
#[test]
fn a_proof_of_growth_holds_across_a_change_of_the_key() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let first = world.run(&["audit", "key"]).ok();
    let kept = world.base().join("kept");
    std::fs::copy(audit(&world).join("checkpoint"), &kept).unwrap();
    let size = world.records().len().to_string();
    let second_key = world.run(&["audit", "key", "--new"]).ok();
    world.fs(&["read", "a"]).ok();
    let proof = world.base().join("proof");
    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", &size]).ok().stdout).unwrap();
    let check = |key: &Path| {
        ["proof", text(&proof), "--key", text(key), "--old", text(&kept)].map(str::to_owned)
    };
    let file = |name: &str, keys: &str| {
        let file = world.base().join(name);
        std::fs::write(&file, keys).unwrap();
        file
    };
    let both = file("both", &format!("{}{}", second_key.text(), first.text()));
    let prove = |key: &Path| {
        let args = check(key);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        (world.run(&[&["audit", "check-proof"], &args[1..]].concat()), second(&args))
    };
    let (ours, other) = prove(&both);
    assert!(ours.ok().text().contains("begins that of"));
    other.ok();
    world.run(&["audit", "verify", "--key", text(&both), "--head", text(&kept)]).ok();
    // No key is taken for the log's that was not given.
    for (name, keys) in [("first", &first), ("second", &second_key)] {
        let key = file(name, keys.text());
        let (ours, other) = prove(&key);
        assert_eq!((ours.code, other.code), (5, 5), "{ours:?}");
        assert!(ours.stderr.contains("give all of them that you trust"), "{ours:?}");
    }
    // Nor another log, whose key is given, for this one.
    let stranger = World::new();
    stranger.file("a", "x");
    stranger.fs(&["read", "a"]).ok();
    std::fs::copy(audit(&stranger).join("checkpoint"), &kept).unwrap();
    let three = format!(
        "{}{}",
        std::fs::read_to_string(&both).unwrap(),
        stranger.run(&["audit", "key"]).text()
    );
    let (ours, other) = prove(&file("three", &three));
    assert_eq!((ours.code, other.code), (5, 5), "{ours:?}");
    assert!(ours.stderr.contains("is not valid"), "{ours:?}");
}

#[test]
fn a_signer_program_signs_what_the_log_cannot() {
    let world = World::new();
    world.file("a", "x");
    let other = World::new();
    other.file("a", "x");
    // Another log's key represents one that is stored elsewhere.
    other.fs(&["read", "a"]).ok();
    let private = std::fs::read_to_string(other.state().join("keys/checkpoint.key")).unwrap();
    let public = other.run(&["audit", "key"]).ok();
    let signer = world.base().join("signer.py");
    std::fs::write(&signer, SIGNER.replace("PRIVATE", private.trim())).unwrap();
    let config = world.base().join("portcullis.toml");
    let audit = format!(
        "[audit]\nsigner = [{PYTHON:?}, \"-I\", {:?}]\npublicKey = {:?}\n",
        text(&signer),
        public.text().trim()
    );
    std::fs::write(&config, audit).unwrap();
    let run = |args: &[&str]| {
        done(world.command(args).env("PORTCULLIS_CONFIG", &config).output().unwrap())
    };
    run(&["fs", "read", "a"]).ok();
    assert!(!world.state().join("keys/checkpoint.key").exists());
    let note = run(&["audit", "checkpoint"]).ok();
    assert_eq!(note.text().lines().nth(1), Some("3"));
    let report = run(&["audit", "verify", "--json", "--key", public.text().trim()]).ok().json();
    assert_eq!(report["signed"]["records"], 3);
    // A program that signs nonsense is no signer.
    std::fs::write(&signer, "print('— x AAAAAAAA')").unwrap();
    run(&["fs", "read", "a"]).ok();
    let refused = run(&["audit", "checkpoint"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("signer"), "{refused:?}");
}

#[test]
fn a_checkpoint_after_a_new_key_is_signed_with_it() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let signed = || world.run(&["audit", "checkpoint"]).ok().text().to_owned();
    let former = signed();
    let kept = world.base().join("kept");
    std::fs::write(&kept, &former).unwrap();
    let old = world.run(&["audit", "key"]).ok();
    let key = world.run(&["audit", "key", "--new"]).ok();
    let new = signed();
    let origin = key.text().split('+').next().unwrap();
    assert_eq!(new.lines().next(), Some(origin));
    // The same records, once, and one that names the party that gave the log its new key.
    let records = |note: &str| note.lines().nth(1).unwrap().parse::<u64>().unwrap();
    assert_eq!(records(&new), records(&former) + 1);
    assert_eq!(signed(), new);
    world.run(&["audit", "bundle", "-o", "b.zip"]).ok();
    world.run(&["audit", "check-bundle", "b.zip", "--key", key.text().trim()]).ok();
    let both = world.base().join("both");
    std::fs::write(&both, format!("{}{}", key.text(), old.text())).unwrap();
    world.run(&["audit", "verify", "--key", text(&both), "--head", text(&kept)]).ok();
    second(&["log", text(&audit(&world)), "--key", text(&both)]).ok();
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "verify"]).ok();
}
