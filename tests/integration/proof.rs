//! Checkpoints, proofs, receipts and retention, as a gate makes them and as a
//! reviewer with Python alone checks them.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use portcullis_audit::{Chain, Draft, Kind, Prepared, Segment};
use serde_json::{Value, json};

use crate::{
    common::{Done, World, done},
    courier::{Courier, PATIENCE, receipt},
};

pub(crate) fn python() -> Command {
    // The one that the machine's tests use, else whatever is there.
    let home = std::env::var_os("HOME").unwrap_or_default();
    let known = Path::new(&home).join(".pyenv/versions/3.12.1/bin/python3.12");
    Command::new(if known.exists() { known } else { PathBuf::from("python3") })
}

/// `audit/verify.py ARGS…`
pub(crate) fn second(args: &[&str]) -> Done {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("audit/verify.py");
    done(python().arg("-I").arg(script).args(args).output().unwrap())
}

fn audit(world: &World) -> PathBuf {
    world.state().join("audit")
}

/// The text of a path.
fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a log of `count` records with nothing but the audit crate.
fn write_log(world: &World, count: u64, time: &str) -> Vec<String> {
    write_log_at(world, count, |_seq| time)
}

/// The same with each record's time.
fn write_log_at<'a>(world: &World, count: u64, time: impl Fn(u64) -> &'a str) -> Vec<String> {
    std::fs::create_dir_all(audit(world)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(world.state(), mode).unwrap();
    let mut chain = Chain::new();
    let mut leaves = Vec::new();
    let mut lines = Vec::new();
    for seq in 0..count {
        let draft = Draft {
            op: Some("read".to_owned()),
            path: Some(format!("src/file-{}.rs", seq % 100)),
            decision: Some("allow".to_owned()),
            ..Draft::default()
        };
        let record = Prepared::new(Kind::Decision, &draft, u128::from(seq).to_be_bytes()).unwrap();
        leaves.push(chain.append(&record, time(seq), &mut lines).leaf.to_string());
        if chain.next().is_multiple_of(65_536) || chain.next() == count {
            let name = Segment::of(seq).to_string();
            std::fs::write(audit(world).join(name), &lines).unwrap();
            lines.clear();
        }
    }
    leaves
}

#[test]
fn a_gate_signs_what_it_wrote_and_both_verifiers_agree() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
        world.write("b", "y").ok();
    }
    let report = world.run(&["audit", "verify", "--json", "--policies", "--backups"]).ok().json();
    let count = world.records().len();
    assert_eq!((&report["records"], &report["signed"]["records"]), (&json!(count), &json!(count)));
    assert_eq!(report["warnings"], json!([]));
    assert_eq!(report["attached"]["backups"], 2);
    let other = second(&["log", text(&audit(&world))]).ok().json();
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);
    assert_eq!((&other["records"], &other["signed"]), (&json!(count), &json!(count)));
    let start = &world.records()[0];
    let key = world.run(&["audit", "key"]).ok();
    assert_eq!(start["facts"]["checkpointKey"], key.text().trim());
    let mode = std::os::unix::fs::MetadataExt::mode(
        &std::fs::metadata(world.state().join("keys/checkpoint.key")).unwrap(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn both_verifiers_answer_every_vector_alike() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("audit/vectors");
    let mut seen = 0;
    for entry in std::fs::read_dir(vectors).unwrap() {
        let directory = entry.unwrap().path();
        let expected = std::fs::read(directory.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let log = directory.join("log");
        let mut args = vec!["log".to_owned(), text(&log).to_owned()];
        for receipt in expected["receipts"].as_array().unwrap() {
            let leaf = receipt["leaf"].as_str().unwrap();
            args.extend(["--head".to_owned(), format!("{}:{leaf}", receipt["seq"])]);
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let answer = second(&args);
        if expected["valid"] == true {
            let json = answer.ok().json();
            for field in ["records", "signed", "head"] {
                assert_eq!(json[field], expected[field], "{directory:?}");
            }
        } else {
            assert_eq!(answer.code, 5, "{directory:?}: {answer:?}");
            assert_eq!(answer.json(), expected["damage"], "{directory:?}");
        }
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_log_of_200_000_records_is_proved_record_by_record() {
    let world = World::new();
    let leaves = write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    let first = world.run(&["audit", "checkpoint"]).ok();
    assert_eq!(first.text().lines().nth(1), Some("200000"));
    let kept = world.base().join("kept");
    std::fs::write(&kept, &first.stdout).unwrap();
    let key = world.base().join("log.vkey");
    std::fs::write(&key, &world.run(&["audit", "key"]).ok().stdout).unwrap();
    let roots = std::fs::read_to_string(audit(&world).join("roots")).unwrap();
    assert_eq!(roots.lines().count(), 3);

    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let report =
        world.run(&["audit", "verify", "--json", "--key", text(&key), "--head", text(&kept)]);
    let report = report.ok().json();
    assert_eq!(
        (&report["records"], &report["signed"]["records"]),
        (&json!(200_003), &json!(200_003))
    );
    let other = second(&["log", text(&audit(&world)), "--key", text(&key)]).ok().json();
    assert_eq!((&other["records"], &other["signed"]), (&json!(200_003), &json!(200_003)));
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);

    let proof = world.base().join("proof");
    for seq in [0_usize, 1, 65_535, 65_536, 131_072, 199_999] {
        std::fs::write(&proof, &world.run(&["audit", "prove", &seq.to_string()]).ok().stdout)
            .unwrap();
        let holds =
            world.run(&["audit", "check-proof", text(&proof), "--key", text(&key), "--json"]);
        let holds = holds.ok().json();
        assert_eq!((&holds["seq"], &holds["leaf"]), (&json!(seq), &json!(leaves[seq])));
        let holds = second(&["proof", text(&proof), "--key", text(&key)]).ok().json();
        assert_eq!((&holds["seq"], &holds["size"]), (&json!(seq), &json!(200_003)));
    }
    // Another record under the same proof.
    let forged = std::fs::read_to_string(&proof).unwrap();
    let (head, rest) = forged.split_once("\nindex ").unwrap();
    let (_, extra) = head.split_once("extra ").unwrap();
    let forged =
        format!("{}extra B{}\nindex {rest}", &head[..head.len() - extra.len() - 6], &extra[1..]);
    std::fs::write(&proof, forged).unwrap();
    assert_eq!(world.run(&["audit", "check-proof", text(&proof), "--key", text(&key)]).code, 5);
    assert_eq!(second(&["proof", text(&proof), "--key", text(&key)]).code, 5);

    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", "200000"]).ok().stdout)
        .unwrap();
    let args = [text(&proof), "--key", text(&key), "--old", text(&kept)];
    world.run(&[&["audit", "check-proof"], &args[..]].concat()).ok();
    second(&[&["proof"], &args[..]].concat()).ok();
    // From another size than that of the older checkpoint.
    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", "199999"]).ok().stdout)
        .unwrap();
    assert_eq!(world.run(&[&["audit", "check-proof"], &args[..]].concat()).code, 5);
    assert_eq!(second(&[&["proof"], &args[..]].concat()).code, 5);
}

#[test]
fn pruned_segments_leave_their_roots() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let kept = world.base().join("kept");
    std::fs::copy(audit(&world).join("checkpoints/131072"), &kept).unwrap();
    let nothing = world.run(&["audit", "prune", "--before", "2025-01-01", "--yes"]).ok();
    assert!(nothing.text().starts_with("nothing to prune"), "{nothing:?}");
    let refused = world.run(&["audit", "prune", "--before", "2026-06-01"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).ok();
    for (number, there) in [(0, false), (1, false), (2, true), (3, true)] {
        assert_eq!(audit(&world).join(Segment(number).to_string()).exists(), there, "{number}");
    }
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let report = world.run(&["audit", "verify", "--json", "--head", text(&kept)]).ok().json();
    assert_eq!((&report["pruned"], &report["records"]), (&json!(131_072), &json!(68_932)));
    let other = second(&["log", text(&audit(&world))]).ok().json();
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);
    let shown = world.run(&["audit", "show", "--kind", "pruned", "--json"]).ok();
    assert_eq!(shown.json()["facts"]["segments"], 2);
    // A record that is there is proved past those that are not.
    let proof = world.base().join("proof");
    std::fs::write(&proof, &world.run(&["audit", "prove", "140000"]).ok().stdout).unwrap();
    let key = world.base().join("log.vkey");
    std::fs::write(&key, &world.run(&["audit", "key"]).ok().stdout).unwrap();
    world.run(&["audit", "check-proof", text(&proof), "--key", text(&key)]).ok();
    second(&["proof", text(&proof), "--key", text(&key)]).ok();
    let other = second(&["log", text(&audit(&world)), "--key", text(&key)]).ok().json();
    assert_eq!(other["signed"], report["signed"]["records"]);
    // Other roots than those that were signed.
    let roots = std::fs::read_to_string(audit(&world).join("roots")).unwrap();
    let swapped: String = [1, 0, 2].iter().map(|at| &roots[at * 65..][..65]).collect();
    std::fs::write(audit(&world).join("roots"), swapped).unwrap();
    for done in [world.run(&["audit", "verify"]), second(&["log", text(&audit(&world))])] {
        assert!(done.code == 5 && done.text().contains("wrong-root"), "{done:?}");
    }
    std::fs::write(audit(&world).join("roots"), roots).unwrap();
    // What was pruned cannot be proved, and is no damage.
    for args in [&["5"][..], &["--from", "5"]] {
        let refused = world.run(&[&["audit", "prove"], args].concat());
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("pruned"), "{args:?}: {refused:?}");
    }
    world.run(&["audit", "prove", "--from", "65536"]).ok();
    // One segment more than the record says.
    std::fs::remove_file(audit(&world).join(Segment(2).to_string())).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    assert_eq!(second(&["log", text(&audit(&world))]).code, 5);
}

/// The last record of a segment was older than others in it, and of the segments
/// before.
#[test]
fn where_the_clock_was_set_back_no_newer_record_is_pruned() {
    for (newer, gone) in [(30_000, 0), (65_535, 0), (65_536, 1), (100_000, 1), (140_000, 2)] {
        let world = World::new();
        write_log_at(&world, 200_000, |seq| match seq == newer {
            true => "2026-08-01T00:00:00.000000Z",
            false => "2026-01-01T00:00:00.000000Z",
        });
        let pruned = world.run(&["audit", "checkpoint"]).code
            + world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).code;
        assert_eq!(pruned, 0, "{newer}");
        let is_gone = |number: u64| !audit(&world).join(Segment(number).to_string()).exists();
        assert_eq!((0..4).filter(|number| is_gone(*number)).count(), gone, "{newer}");
        world.run(&["audit", "verify"]).ok();
    }
}

#[test]
fn a_record_that_is_not_there_is_not_said_to_need_a_checkpoint() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    for args in [&["4711"][..], &["--from", "4711"]] {
        let refused = world.run(&[&["audit", "prove"], args].concat());
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("the log has 3 records"), "{args:?}: {refused:?}");
        assert!(!refused.stderr.contains("audit checkpoint"), "{args:?}: {refused:?}");
    }
}

/// Who can write to the log's directory, but not sign, has no gate sign for
/// them.
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
    assert!(recovered.text().contains("signed anew"), "{recovered:?}");
    world.fs(&["read", "a"]).ok();
}

#[test]
fn a_gate_refuses_a_log_that_is_shorter_than_its_checkpoint() {
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
    // Whoever knows only the first key sees that it was another one.
    let old = world.run(&["audit", "verify", "--key", first.text().trim()]);
    assert_eq!(old.code, 5, "{old:?}");
    assert!(old.text().contains("wrong-key"), "{old:?}");
    let both = world.base().join("both");
    std::fs::write(&both, format!("{}{}", first.text(), second.text())).unwrap();
    world.run(&["audit", "verify", "--key", text(&both)]).ok();
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
    // Nobody takes a key for the log's that was not given.
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
    assert!(ours.stderr.contains("does not hold"), "{ours:?}");
}

#[test]
fn receipts_of_a_transcript_are_found_or_named() {
    let world = World::new();
    world.file("a", "x");
    let mut transcript = Vec::new();
    for _ in 0..2 {
        let read = world.fs(&["read", "a", "--json"]).ok().json();
        writeln!(transcript, "12:00:00 <- {}", json!({"id": 1, "result": read})).unwrap();
    }
    let denied = world.fs(&["read", "../x", "--json"]);
    transcript.extend_from_slice(&denied.stdout);
    transcript.extend_from_slice(b"\nnot JSON {\n");
    let file = world.base().join("transcript");
    std::fs::write(&file, &transcript).unwrap();
    let all = world.run(&["audit", "check-receipts", text(&file)]).ok();
    assert!(all.text().starts_with("receipts: "), "{all:?}");
    // The last gate's records are cut off, with what was signed of them.
    let segment = audit(&world).join(Segment(0).to_string());
    let lines = std::fs::read_to_string(&segment).unwrap();
    let cut: String = lines.lines().take(3).map(|line| format!("{line}\n")).collect();
    std::fs::write(&segment, cut).unwrap();
    for name in ["checkpoint", "frontier"] {
        std::fs::remove_file(audit(&world).join(name)).unwrap();
    }
    let mut alone = world.command(&["audit", "verify", "--dir", text(&audit(&world))]);
    alone.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    done(alone.output().unwrap()).ok();
    // What is noted beside the key shows it, but not what was lost.
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let lost = world.run(&["audit", "check-receipts", text(&file)]);
    assert_eq!(lost.code, 5, "{lost:?}");
    assert!(lost.text().contains("lost: 4:") && lost.text().contains("the log ends before it"));
    let lost = world.run(&["audit", "check-receipts", "--json", text(&file)]);
    assert_eq!(lost.json()["lost"][0]["seq"], 4);
}

/// The words of receipts of the first `count` records.
fn words(leaves: &[String], count: usize) -> String {
    leaves.iter().take(count).enumerate().map(|(seq, leaf)| format!("{seq}:{leaf}\n")).collect()
}

#[test]
fn receipts_are_found_only_where_they_were_seen() {
    let honest = World::new();
    let leaves = write_log(&honest, 500, "2026-01-01T00:00:00.000000Z");
    honest.run(&["audit", "checkpoint"]).ok();
    let file = honest.base().join("transcript");
    std::fs::write(&file, words(&leaves, 500)).unwrap();
    let check = |world: &World| world.run(&["audit", "check-receipts", text(&file)]);
    let found = check(&honest).ok();
    assert_eq!(found.text(), "receipts: 500, in the log: 500\n");
    // In another log, whose damages are too many to name.
    let other = World::new();
    write_log(&other, 500, "2026-01-02T00:00:00.000000Z");
    let lost = check(&other);
    assert_eq!(lost.code, 5);
    assert!(lost.text().ends_with("receipts: 500, in the log: 0\n"), "{lost:?}");
    // In a forged one of two records, which says that all others were pruned.
    std::fs::write(&file, words(&leaves, 25)).unwrap();
    forge_pruned(&other);
    other.run(&["audit", "verify"]).ok();
    let lost = check(&other);
    assert_eq!(lost.code, 5);
    assert_eq!(lost.text(), "pruned, not checkable: 25\nreceipts: 25, in the log: 0\n");
    // Whoever has the key sees that its owner did not write it.
    let key = honest.run(&["audit", "key"]).ok();
    let unsigned = other.run(&["audit", "verify", "--key", key.text().trim()]);
    assert_eq!(unsigned.code, 5, "{unsigned:?}");
    assert!(unsigned.text().contains("damaged: missing-checkpoint in checkpoint\n"));
    assert!(unsigned.text().contains("\nsigned: nothing;"), "{unsigned:?}");
    let kept = honest.base().join("log.vkey");
    std::fs::write(&kept, &key.stdout).unwrap();
    let second = second(&["log", text(&audit(&other)), "--key", text(&kept)]);
    assert_eq!((second.code, &second.json()["kind"]), (5, &json!("missing-checkpoint")));
}

/// Replaces the log by one of two records that follow on segment 0.
fn forge_pruned(world: &World) {
    let mut chain = Chain::new();
    let mut lines = Vec::new();
    for seq in 0..65_538_u64 {
        let facts = [("segments".to_owned(), json!(2))];
        let (kind, facts) = match seq {
            65_536 => (Kind::Pruned, Some(facts.into())),
            _ => (Kind::Decision, None),
        };
        if seq == 65_536 {
            lines.clear();
        }
        let draft = Draft { facts, ..Draft::default() };
        let record = Prepared::new(kind, &draft, u128::from(seq).to_be_bytes()).unwrap();
        let _receipt = chain.append(&record, "2026-01-01T00:00:00.000000Z", &mut lines);
    }
    std::fs::remove_file(audit(world).join(Segment(0).to_string())).unwrap();
    std::fs::write(audit(world).join(Segment(1).to_string()), lines).unwrap();
    std::fs::write(audit(world).join("roots"), format!("{}\n", "ab".repeat(32))).unwrap();
}

#[test]
fn another_directory_is_no_log_without_records() {
    let world = World::new();
    world.file("a", "x");
    let receipt = world.fs(&["read", "a"]).ok().stderr;
    let file = world.base().join("transcript");
    std::fs::write(&file, receipt).unwrap();
    let state = world.state();
    let dir = |args: &[&str]| {
        let mut command = world.command(&[&["audit"], args].concat());
        done(
            command
                .env_remove("PORTCULLIS_STATE")
                .env_remove("PORTCULLIS_WORKSPACE")
                .output()
                .unwrap(),
        )
    };
    for args in [
        vec!["verify", "--dir", text(&state)],
        vec!["verify", "--json", "--dir", text(&state)],
        vec!["check-receipts", text(&file), "--dir", text(&state)],
    ] {
        let refused = dir(&args);
        assert_eq!(refused.code, 1, "{refused:?}");
        let said = if args.contains(&"--json") { refused.text() } else { &refused.stderr };
        let meant = format!("did you mean `{}`?", audit(&world).display());
        assert!(said.contains("there is no audit log") && said.contains(&meant), "{refused:?}");
        assert!(!said.contains("whole"), "{refused:?}");
    }
    let other = second(&["log", text(&state)]);
    assert!(other.code == 1 && other.stderr.contains("there is no audit log"), "{other:?}");
    dir(&["verify", "--dir", text(&audit(&world))]).ok();
}

/// Every door's replies, denials and errors too, have a receipt of a record
/// that the log holds.
#[test]
fn every_reply_of_every_door_has_a_receipt() {
    let world = World::new();
    world.file("a", "x");
    let mut transcript = Vec::new();
    let mut replies = 0;
    let commands: [&[&str]; 12] = [
        &["read", "a"],
        &["stat", "a"],
        &["ls", "."],
        &["read", ".env"],
        &["read", "missing"],
        &["read", "../outside"],
        &["write", "b"],
        &["append", "b"],
        &["mkdir", "d"],
        &["mv", "b", "d/b"],
        &["write", ".git/config"],
        &["rm", "-r", "d"],
    ];
    for args in commands {
        let text = world.run_with_input(&[&["fs"], args].concat(), "y");
        assert_eq!(text.stderr.matches("record ").count(), 1, "{args:?}: {text:?}");
        transcript.extend_from_slice(&text.stdout);
        transcript.push(b'\n');
        transcript.extend_from_slice(text.stderr.as_bytes());
        let json = world.run_with_input(&[&["fs"], args, &["--json"]].concat(), "y");
        assert!(json.json()["receipt"]["leaf"].is_string(), "{args:?}: {json:?}");
        transcript.extend_from_slice(&json.stdout);
        replies += 2;
    }
    let mut courier = Courier::start(&world);
    for request in [
        courier.read("a"),
        courier.read(".env"),
        courier.read("missing"),
        courier.read("../outside"),
        courier.write("c", "z"),
        courier.write(".git/config", "z"),
        courier.write("a/b", "z"),
        // What the door itself refuses.
        json!({"method": "fs/read_text_file", "params": {"sessionId": "s1", "path": "relative"}}),
        json!({"method": "fs/read_text_file", "params": {"sessionId": "none", "path": "/a"}}),
        json!({"method": "fs/write_text_file", "params": {"sessionId": "s1"}}),
        json!({"method": "fs/read_text_file", "params": ["s1", "/a"]}),
        json!({"method": "terminal/create", "params": {}}),
        json!({"method": "fs/unlink", "params": {}}),
    ] {
        let answer = courier.ask(request);
        let said =
            [&answer["result"]["_meta"]["portcullis/receipt"], &answer["error"]["data"]["receipt"]];
        assert!(said.iter().any(|receipt| receipt["leaf"].is_string()), "{answer}");
        writeln!(transcript, "{answer}").unwrap();
        replies += 1;
    }
    assert!(courier.hang_up().success());
    let session = last_intent(&world)["session"].clone();
    let undo = ["backup", "undo", "--yes", "--session", session.as_str().unwrap()];
    let undone = world.run(&undo).ok();
    assert_eq!(undone.stderr.matches("record ").count(), 1, "{undone:?}");
    transcript.extend_from_slice(undone.stderr.as_bytes());
    let session = last_intent(&world)["session"].clone();
    let undo = ["backup", "undo", "--yes", "--json", "--session", session.as_str().unwrap()];
    let again = world.run(&undo).ok();
    assert_eq!(again.json()["receipts"].as_array().unwrap().len(), 1, "{again:?}");
    transcript.extend_from_slice(&again.stdout);
    replies += 2;
    let file = world.base().join("transcript");
    std::fs::write(&file, &transcript).unwrap();
    let found = world.run(&["audit", "check-receipts", "--json", text(&file)]).ok().json();
    assert_eq!((&found["receipts"], &found["valid"]), (&json!(replies), &json!(true)), "{found}");
    // Of another log they are none.
    let other = World::new();
    write_log(&other, 500, "2026-01-01T00:00:00.000000Z");
    let lost = other.run(&["audit", "check-receipts", "--json", text(&file)]);
    assert_eq!(lost.code, 5);
    assert_eq!(lost.json()["lost"].as_array().unwrap().len(), replies);
}

#[test]
fn a_signer_program_signs_what_the_log_cannot() {
    let world = World::new();
    world.file("a", "x");
    let other = World::new();
    other.file("a", "x");
    // Another log's key stands for one that is kept elsewhere.
    other.fs(&["read", "a"]).ok();
    let private = std::fs::read_to_string(other.state().join("keys/checkpoint.key")).unwrap();
    let public = other.run(&["audit", "key"]).ok();
    let signer = world.base().join("signer.py");
    std::fs::write(&signer, SIGNER.replace("PRIVATE", private.trim())).unwrap();
    let config = world.base().join("portcullis.toml");
    let program = python().get_program().to_str().unwrap().to_owned();
    let audit = format!(
        "[audit]\nsigner = [{program:?}, \"-I\", {:?}]\npublicKey = {:?}\n",
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
    // One that signs nonsense is no signer.
    std::fs::write(&signer, "print('— x AAAAAAAA')").unwrap();
    run(&["fs", "read", "a"]).ok();
    let refused = run(&["audit", "checkpoint"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("signer"), "{refused:?}");
}

#[test]
fn compressed_segments_are_read_as_before() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let before = world.run(&["audit", "verify", "--json"]).ok().json();
    let query = || {
        let args = ["audit", "query", "--path", "src/file-7.rs", "--stats", "op"];
        world.run(&args).ok().text().to_owned()
    };
    let found = query();
    let size = |name: &str| std::fs::metadata(audit(&world).join(name)).unwrap().len();
    let plain = size("seg-000001.jsonl");
    world.run(&["audit", "compress"]).ok();
    for (number, packed) in [(0, true), (1, true), (2, false), (3, false)] {
        assert_eq!(audit(&world).join(Segment(number).to_string()).exists(), !packed, "{number}");
    }
    assert!(size("seg-000001.jsonl.zst") * 2 < plain);
    let after = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!((&before["head"], &before["bytes"]), (&after["head"], &after["bytes"]));
    // Without an index for it, and with one.
    assert_eq!([query(), query()], [found.clone(), found]);
    let line = world.run(&["audit", "prove", "70000"]).ok();
    assert!(line.text().starts_with("c2sp.org/tlog-proof@v1\nextra "), "{line:?}");
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    // A changed one is damage.
    let packed = audit(&world).join("seg-000000.jsonl.zst");
    let mut bytes = std::fs::read(&packed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&packed, bytes).unwrap();
    let damaged = world.run(&["audit", "verify"]);
    assert_eq!(damaged.code, 5, "{damaged:?}");
    // A part of it is one too, and has a place.
    let part = std::fs::File::options().write(true).open(&packed).unwrap();
    part.set_len(middle as u64).unwrap();
    let damaged = world.run(&["audit", "verify", "--json"]);
    assert_eq!(damaged.code, 5, "{damaged:?}");
    let first = &damaged.json()["damages"][0];
    assert_eq!((&first["kind"], &first["seq"]), (&json!("bad-segment"), &json!(0)));
    // Nor is it set aside in part.
    let refused = world.run(&["audit", "recover", "--yes"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(packed.exists() && audit(&world).join("checkpoint").exists());
}

#[test]
fn a_gate_that_runs_compresses_old_segments() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    world.file("a", "x");
    // What one that was killed left behind.
    std::fs::write(audit(&world).join(".seg-000000.jsonl.zst.left"), "half").unwrap();
    let config = world.base().join("portcullis.toml");
    let start = |compress: &str| {
        std::fs::write(&config, format!("[audit]\ncompress = {compress}\n")).unwrap();
        Courier::with(&world, &["--config", text(&config)])
    };
    let there = |name: &str| audit(&world).join(name).exists();
    let mut courier = start("{ afterDays = 0 }");
    let end = Instant::now() + PATIENCE;
    while there("seg-000000.jsonl") || there("seg-000001.jsonl") {
        assert!(Instant::now() < end, "nothing was compressed");
        receipt(&courier.ask(courier.read("a")));
    }
    let (status, complaints) = courier.end();
    assert!(status.success(), "{complaints}");
    assert!(there("seg-000001.jsonl.zst") && there("seg-000002.jsonl"));
    assert!(!there(".seg-000000.jsonl.zst.left"));
    world.run(&["audit", "verify"]).ok();
    // Pruned like any other.
    world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).ok();
    assert!(!there("seg-000000.jsonl.zst") && !there("seg-000001.jsonl.zst"));
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_compression_that_is_killed_loses_nothing() {
    let world = World::new();
    write_log(&world, 131_100, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let before = world.run(&["audit", "verify", "--json"]).ok().json();
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(audit(&world)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("seg-")).collect()
    };
    let whole = |when: &str| {
        let after = world.run(&["audit", "verify", "--json"]).ok().json();
        assert_eq!(
            (&after["head"], &after["bytes"]),
            (&before["head"], &before["bytes"]),
            "{when}"
        );
    };
    let plain = audit(&world).join("seg-000000.jsonl");
    let kept = world.base().join("kept");
    std::fs::copy(&plain, &kept).unwrap();
    // At whatever it is then.
    for wait in [5, 40, 200, 450, 700, 1000] {
        let mut child = world.command(&["audit", "compress"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        whole(&format!("{wait} ms: {:?}", names()));
    }
    // Between the two steps: both forms are there.
    world.run(&["audit", "compress"]).ok();
    std::fs::copy(&kept, &plain).unwrap();
    whole("both forms");
    world.run(&["audit", "compress"]).ok();
    whole("at the end");
    let mut names = names();
    names.sort();
    let left = ["seg-000000.jsonl.zst", "seg-000001.jsonl", "seg-000002.jsonl"];
    assert_eq!(names, left, "nothing is left over");
}

#[test]
fn the_configuration_can_be_named_on_the_command_line() {
    let world = World::new();
    world.fs(&["ls"]).ok();
    let target = world.base().join("copy");
    let config = world.base().join("named.toml");
    std::fs::write(&config, format!("[audit]\nship = [{{ to = {:?} }}]\n", text(&target))).unwrap();
    world.run(&["audit", "ship", "--config", text(&config)]).ok();
    assert!(target.join("seg-000000.jsonl").exists());
    let refused = world.run(&["audit", "ship"]);
    assert!(refused.code == 2 && refused.stderr.contains("no target"), "{refused:?}");
}

#[test]
fn a_shipped_log_verifies_where_it_arrives() {
    let world = World::new();
    let target = world.base().join("elsewhere/log");
    let config = world.base().join("portcullis.toml");
    let ship = format!("[audit]\nship = [{{ to = {:?} }}]\n", text(&target));
    std::fs::write(&config, ship).unwrap();
    let run = |args: &[&str]| {
        done(world.command(args).env("PORTCULLIS_CONFIG", &config).output().unwrap())
    };
    write_log(&world, 70_000, "2026-01-01T00:00:00.000000Z");
    run(&["audit", "checkpoint"]).ok();
    run(&["audit", "ship"]).ok();
    world.file("a", "x");
    for _ in 0..3 {
        run(&["fs", "read", "a"]).ok();
        run(&["audit", "ship"]).ok();
    }
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    let verify_copy = || {
        let mut command = world.command(&["audit", "verify", "--json", "--dir", text(&target)]);
        command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
        done(command.output().unwrap()).ok().json()
    };
    let copy = verify_copy();
    assert_eq!(own["head"], copy["head"]);
    assert_eq!(copy["signed"]["records"], 70_009);
    assert!(target.join("seg-000000.jsonl.zst").exists());
    // A target that is gone is said to be, and caught up with later.
    std::fs::rename(&target, world.base().join("away")).unwrap();
    std::fs::write(&target, "in the way").unwrap();
    run(&["fs", "read", "a"]).ok();
    assert_eq!(run(&["audit", "ship"]).code, 1);
    let status = run(&["audit", "ship", "--status"]).ok();
    assert!(status.text().contains("last attempt"), "{status:?}");
    std::fs::remove_file(&target).unwrap();
    std::fs::rename(world.base().join("away"), &target).unwrap();
    run(&["audit", "ship"]).ok();
    let copy = verify_copy();
    assert_eq!(copy["signed"]["records"], 70_012);
}

/// Ed25519 signing (RFC 8032) with verify.py's arithmetic, written for this
/// test.
pub(crate) const SIGNER: &str = r#"
import base64, hashlib, sys
name, key_hash, key = "PRIVATE"[12:].split("+", 2)
seed = base64.b64decode(key)[1:]
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
def add(p, q):
    a, b, c, d = (p[1]-p[0])*(q[1]-q[0]), (p[1]+p[0])*(q[1]+q[0]), 2*p[3]*q[3]*D, 2*p[2]*q[2]
    e, f, g, h = b-a, d-c, d+c, b+a
    return e*f % P, g*h % P, f*g % P, e*h % P
def times(s, p):
    q = (0, 1, 1, 0)
    while s: q, p, s = add(q, p) if s & 1 else q, add(p, p), s >> 1
    return q
y = 4 * pow(5, -1, P) % P
xx = (y*y - 1) * pow(D*y*y + 1, -1, P) % P
x = pow(xx, (P + 3) // 8, P)
if (x*x - xx) % P: x = x * pow(2, (P - 1) // 4, P) % P
if x & 1: x = P - x
B = (x, y, 1, x * y % P)
def pack(p):
    z = pow(p[2], -1, P)
    return (p[1]*z % P | (p[0]*z % P & 1) << 255).to_bytes(32, "little")
h = hashlib.sha512(seed).digest()
a = int.from_bytes(h[:32], "little") & (1 << 254) - 8 | 1 << 254
public, message = pack(times(a, B)), sys.stdin.buffer.read()
r = int.from_bytes(hashlib.sha512(h[32:] + message).digest(), "little") % L
R = pack(times(r, B))
k = int.from_bytes(hashlib.sha512(R + public + message).digest(), "little") % L
sig = bytes.fromhex(key_hash) + R + ((r + k * a) % L).to_bytes(32, "little")
sys.stdout.buffer.write(b"\xe2\x80\x94 " + name.encode() + b" " + base64.b64encode(sig) + b"\n")
"#;

fn last_intent(world: &World) -> Value {
    world.records().into_iter().rfind(|record| record["kind"] == "intent").unwrap()
}
