//! `portcullis audit recover` on logs of several segments.

mod keys;

use crate::{
    common::{Done, World},
    review::{decision, write_log},
};
use portcullis::gateway::AuditLog;
use portcullis_audit::Kind;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Three segments, the first of them compressed.
fn packed_log() -> World {
    let world = World::new();
    write_log(&world, 140_000, |seq| {
        let path = format!("src/file-{}.rs", seq % 100);
        (Kind::Decision, decision("coder", "read", &path, "allow", "allowedPaths.read"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "compress"]).ok();
    assert!(world.state().join("audit/seg-000000.jsonl.zst").exists());
    world
}

/// It could not be opened, by gateways nor by another repair.
#[test]
fn a_log_that_ends_with_a_compressed_segment_goes_on() {
    let world = packed_log();
    std::fs::remove_file(world.state().join("audit/seg-000001.jsonl")).unwrap();
    assert_eq!(world.fs(&["ls"]).code, 5);
    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.text().contains("done"), "{done:?}");
    world.fs(&["ls"]).ok();
    world.run(&["audit", "verify"]).ok();
    let shown = world.run(&["audit", "show", "--kind", "recovered", "--json"]).ok();
    let seqs = shown.text().lines().map(|line| serde_json::from_str(line).unwrap());
    let seqs: Vec<_> = seqs.map(|record: serde_json::Value| record["seq"].clone()).collect();
    assert_eq!(seqs.first(), Some(&65_536.into()), "{shown:?}");
    assert!(shown.text().lines().all(|line| line.contains(r#""user":"#)), "{shown:?}");
}

/// The advice named a plain segment, which was not there: there was nothing to move.
#[test]
fn the_file_of_an_unreadable_compressed_segment_was_not_named() {
    let world = World::new();
    world.write("f.txt", "1").ok();
    let stray = world.state().join("audit/seg-000002.jsonl.zst");
    std::fs::write(&stray, "").unwrap();
    let refused = world.run(&["audit", "recover", "--yes"]);
    assert_eq!(refused.code, 5);
    assert!(refused.stderr.contains("`audit/seg-000002.jsonl.zst`"), "{refused:?}");
    std::fs::rename(&stray, world.base().join("moved")).unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    world.write("f.txt", "2").ok();
    world.run(&["audit", "verify"]).ok();
}

/// The files of the log's directory, by their paths, and the bytes of each.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match std::fs::read(&path) {
            Ok(bytes) => BTreeMap::from([(path, bytes)]),
            Err(_directory) => files(&path),
        })
        .collect()
}

/// The verifier stops after many damages, before the checksum at the frame's end: checkpoints of
/// intact records were gone when the repair failed.
#[test]
fn a_repair_failed_halfway_at_a_compressed_segment_with_a_wrong_checksum() {
    let world = packed_log();
    world.file("a", "x");
    let audit = world.state().join("audit");
    let packed = audit.join("seg-000000.jsonl.zst");
    let lines = format!("{:100}\n", "no record").repeat(65_536);
    let mut bytes = Vec::new();
    AuditLog::compress_segment(lines.as_bytes(), &mut bytes, lines.len() as u64).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&packed, bytes).unwrap();
    let verified = world.run(&["audit", "verify", "--json"]).json();
    let damages = verified["damages"].as_array().unwrap();
    assert!(damages.iter().all(|damage| damage["kind"] != "bad-segment"), "{damages:?}");
    let before = files(&audit);
    for args in [&["audit", "recover"][..], &["audit", "recover", "--yes"]] {
        let refused = world.run(args);
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("`audit/seg-000000.jsonl.zst`"), "{refused:?}");
        assert!(files(&audit) == before);
    }
    std::fs::rename(&packed, world.base().join("moved")).unwrap();
    let (done, _records) = recovered(&world);
    assert!(done.text().contains("kept: the first 140000 records\n"), "{done:?}");
    assert!(!done.text().contains("set aside"), "{done:?}");
}

/// Commands that read records gave up: nothing of the intact segments was shown.
#[test]
fn a_compressed_segment_with_a_wrong_checksum_hid_the_others() {
    let world = packed_log();
    let segment = world.state().join("audit/seg-000000.jsonl.zst");
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let [csv, html] = ["out.csv", "out.html"].map(|name| world.base().join(name));
    for (args, output) in [
        (&["audit", "export", "--format", "csv", "-o", csv.to_str().unwrap()][..], Some(&csv)),
        (&["audit", "report", "-o", html.to_str().unwrap()], Some(&html)),
        (&["audit", "session", "--json"], None),
        (&["audit", "query", "--stats", "rule"], None),
        (&["audit", "show", "--json"], None),
        (&["audit", "show", "--last", "100000"], None),
    ] {
        let done = world.run(args);
        assert_eq!(done.code, 5, "{args:?}: {done:?}");
        let written = output.map(|path| std::fs::read_to_string(path).unwrap());
        let shown = written.unwrap_or_else(|| done.text().to_owned());
        assert!(!shown.is_empty(), "{args:?}: {done:?}");
        let all = shown + &done.stderr;
        assert!(all.contains("seg-000000.jsonl"), "{args:?}: {}", done.stderr);
    }
}

/// A repair died, or failed, before it could unpack the segment that is the last one now.
#[test]
fn a_repair_that_died_is_finished_by_the_next_start() {
    let world = packed_log();
    let signed = ["audit/checkpoint", "audit/frontier", "keys/signed"];
    let later = ["audit/seg-000001.jsonl", "audit/seg-000002.jsonl"];
    for set_aside in later.iter().chain(&signed) {
        std::fs::remove_file(world.state().join(set_aside)).unwrap();
    }
    std::fs::remove_dir_all(world.state().join("audit/checkpoints")).unwrap();
    world.fs(&["ls"]).ok();
    // It signs no log of which it would have to read so much.
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "verify"]).ok();
    assert!(!world.state().join("audit/seg-000000.jsonl.zst").exists());
}

/// Three segments, the first of them pruned.
fn pruned_log() -> World {
    let world = World::new();
    write_log(&world, 140_000, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    world
}

/// Recovers, and makes sure that the log verifies and that a gateway serves and signs.
fn recovered(world: &World) -> (Done, Vec<Value>) {
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.text().contains("done"), "{done:?}");
    world.run(&["audit", "verify"]).ok();
    let second = crate::proof::second(&["log", world.state().join("audit").to_str().unwrap()]);
    assert_eq!(second.code, 0, "{second:?}");
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "verify", "--key", world.run(&["audit", "key"]).text().trim()]).ok();
    let shown = world.run(&["audit", "show", "--kind", "recovered", "--json"]).ok();
    let records = shown.text().lines().map(|line| serde_json::from_str(line).unwrap());
    (done, records.collect())
}

/// The repair was done, and the log damaged as before.
#[test]
fn a_pruned_log_that_lost_the_record_of_it_says_so_and_goes_on() {
    for damage in ["cut", "changed before it"] {
        let world = pruned_log();
        let segment = world.state().join("audit/seg-000002.jsonl");
        let text = std::fs::read_to_string(&segment).unwrap();
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let damaged = match damage {
            "cut" => lines[..8_000].concat(),
            _ => lines[..8_000].concat() + &lines[8_001..].concat(),
        };
        std::fs::write(&segment, damaged).unwrap();
        let (done, records) = recovered(&world);
        assert!(done.text().contains("kept: the first 139072 records\n"), "{done:?}");
        assert!(done.text().contains("missing: 1 segments from the first one on"), "{done:?}");
        let said = records.iter().find(|record| record["facts"]["what"] == "unaccounted").unwrap();
        let first = std::fs::read_to_string(world.state().join("audit/seg-000001.jsonl")).unwrap();
        let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&said["facts"]["segments"], &said["facts"]["head"]),
            (&1.into(), &first["prev"])
        );
        // Nothing makes it look as if an operator had pruned it.
        let verified = world.run(&["audit", "verify"]).ok();
        assert!(verified.text().contains("warning: unaccounted-records: "), "{verified:?}");
        let nothing = world.run(&["audit", "recover", "--yes"]).ok();
        assert!(nothing.text().contains("nothing to recover"), "{nothing:?}");
    }
}

#[test]
fn a_wrong_root_of_a_segment_is_computed_again() {
    for wrong in ["0", "x"] {
        let world = pruned_log();
        let file = world.state().join("audit/roots");
        let right = std::fs::read_to_string(&file).unwrap();
        let mut other = format!("{}{wrong}{}", &right[..65], &right[66..]);
        if wrong == "0" && other == right {
            other.replace_range(65..66, "1");
        }
        if wrong == "x" {
            // At the very end a torn line is no damage: it is written again.
            other += &right[..65];
        }
        std::fs::write(&file, &other).unwrap();
        let (done, records) = recovered(&world);
        assert!(done.text().contains("stored root of seg-000001.jsonl"), "{done:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), right);
        let said = records.last().unwrap();
        assert_eq!(said["facts"]["what"], "roots");
        let kept = world.state().join("audit").join(said["facts"]["file"].as_str().unwrap());
        assert_eq!(std::fs::read_to_string(kept).unwrap(), other);
        // Signed records were confirmed by the log, and stay.
        assert!(!done.text().contains("signed again"), "{done:?}");
        assert!(world.state().join("audit/checkpoints/65536").exists());
    }
}

/// Nothing is left of which it could be computed again.
#[test]
fn a_wrong_root_of_a_pruned_segment_leaves_nothing_thrown_away() {
    for (wrong, whole) in [("0", true), ("x", false)] {
        let world = pruned_log();
        let file = world.state().join("audit/roots");
        let right = std::fs::read_to_string(&file).unwrap();
        let wrong = if right.starts_with(wrong) { "1" } else { wrong };
        std::fs::write(&file, format!("{wrong}{}", &right[1..])).unwrap();
        let segment = world.state().join("audit/seg-000001.jsonl");
        let lines = std::fs::read(&segment).unwrap();
        if !whole {
            let refused = world.fs(&["read", "a"]);
            assert_eq!(refused.code, 5, "as a verifier says: {refused:?}");
        }
        let (done, records) = recovered(&world);
        assert!(done.text().contains("signed again"), "{done:?}");
        if whole {
            assert_eq!(std::fs::read(&segment).unwrap(), lines);
            continue;
        }
        assert!(done.text().contains("kept: the first 0 records\n"), "{done:?}");
        let file = |what: &str| {
            let said = records.iter().find(|record| record["facts"]["what"] == what).unwrap();
            std::fs::read(world.state().join("audit").join(said["facts"]["file"].as_str().unwrap()))
        };
        assert!(file("damaged").unwrap().starts_with(&lines));
        assert!(file("roots").unwrap().starts_with(b"x"));
    }
}

/// A checkpoint behind the damage replaced the newest one.
#[test]
fn a_damaged_checkpoint_behind_the_damage_does_not_become_the_newest() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..2 {
        world.fs(&["read", "a"]).ok();
    }
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("allow", "allov", 1)).unwrap();
    let kept = std::fs::read_dir(world.state().join("audit/checkpoints")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().path()).collect();
    assert!(!kept.is_empty());
    for file in kept {
        std::fs::write(file, "").unwrap();
    }
    recovered(&world);
}

/// Nothing follows on what was pruned, not even the record of that.
#[test]
fn a_pruned_log_that_lost_every_record_begins_anew() {
    let world = pruned_log();
    std::fs::remove_file(world.state().join("audit/seg-000002.jsonl")).unwrap();
    std::fs::write(world.state().join("audit/seg-000001.jsonl"), "").unwrap();
    let (done, records) = recovered(&world);
    assert!(done.text().contains("kept: the first 0 records\n"), "{done:?}");
    assert!(records.iter().any(|record| record["facts"]["what"] == "roots"), "{records:?}");
}

/// A start only said that a file did not exist, with the exit code of any failure.
#[test]
fn a_pruned_log_whose_only_segment_is_empty_is_damaged() {
    for (gone, emptied) in [(1, 2), (2, 1)] {
        let world = pruned_log();
        let segment = |number: u8| world.state().join(format!("audit/seg-00000{number}.jsonl"));
        std::fs::remove_file(segment(gone)).unwrap();
        std::fs::write(segment(emptied), "").unwrap();
        for args in [&["fs", "read", "a"][..], &["audit", "checkpoint"]] {
            let refused = world.run(args);
            assert_eq!(refused.code, 5, "{refused:?}");
            assert!(refused.stderr.contains("audit recover"), "{refused:?}");
        }
        let report = world.run(&["doctor", "--json"]).json();
        let mut checks = report["checks"].as_array().unwrap().iter();
        let log = checks.find(|check| check["name"] == "audit log").unwrap();
        assert_eq!(log["status"], "failed", "{log}");
        recovered(&world);
    }
}

/// Regression: after a hundred damages it had seen no more of the log, and set checkpoints of
/// the rest aside.
#[test]
fn a_log_with_many_damaged_checkpoints_keeps_the_good_ones() {
    let world = World::new();
    write_log(&world, 400, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    world.file("a", "x");
    world.run(&["audit", "checkpoint"]).ok();
    let checkpoints = world.state().join("audit/checkpoints");
    for size in 1..150 {
        std::fs::write(checkpoints.join(size.to_string()), "none").unwrap();
    }
    let good = std::fs::read(world.state().join("audit/checkpoint")).unwrap();
    let (done, _records) = recovered(&world);
    assert!(!done.text().contains("signed again"), "{done:?}");
    assert!(!done.text().contains("set aside: the checkpoint checkpoint\n"), "{done:?}");
    let origin = |note: &[u8]| note.split(|byte| *byte == b'\n').next().unwrap().to_vec();
    let now = std::fs::read(world.state().join("audit/checkpoint")).unwrap();
    assert_eq!(origin(&now), origin(&good));
}

/// Three runs of a gateway. The newest checkpoint covers all records; of the earlier ones only that
/// of the first run is kept.
fn three_runs() -> (World, Vec<String>) {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    let text = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    (world, text.lines().map(str::to_owned).collect())
}

fn put(world: &World, lines: &[String]) {
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    std::fs::write(world.state().join("audit/seg-000000.jsonl"), text).unwrap();
}

/// It was kept, signed by the next gateway, and both verifiers reported the log as intact.
#[test]
fn a_forged_record_before_the_broken_link_that_shows_it_is_not_kept() {
    let (world, mut lines) = three_runs();
    let forged = 4;
    assert!(lines[forged].contains("\"agent\":\"cli\""), "{}", lines[forged]);
    assert!(!world.state().join(format!("audit/checkpoints/{}", forged + 1)).exists());
    lines[forged] = lines[forged].replace("\"agent\":\"cli\"", "\"agent\":\"bob\"");
    put(&world, &lines);
    let (done, records) = recovered(&world);
    assert!(done.text().contains("broken-link"), "{done:?}");
    assert!(done.text().contains(&format!("kept: the first {forged} records\n")), "{done:?}");
    assert!(done.text().contains("set aside too: the last record before"), "{done:?}");
    assert!(world.records().iter().all(|record| record["agent"] != "bob"));
    let said = records.iter().find(|record| record["facts"]["what"] == "damaged").unwrap();
    let file = world.state().join("audit").join(said["facts"]["file"].as_str().unwrap());
    assert!(std::fs::read_to_string(file).unwrap().starts_with(&lines[forged]));
}

#[test]
fn a_record_before_a_broken_link_is_kept_where_a_checkpoint_bears_it_out() {
    let (world, mut lines) = three_runs();
    let signed = (1..lines.len())
        .find(|size| world.state().join(format!("audit/checkpoints/{size}")).exists())
        .unwrap();
    let record: Value = serde_json::from_str(&lines[signed]).unwrap();
    let prev = record["prev"].as_str().unwrap();
    lines[signed] = lines[signed].replace(prev, &prev.chars().rev().collect::<String>());
    put(&world, &lines);
    let (done, _records) = recovered(&world);
    assert!(done.text().contains("broken-link"), "{done:?}");
    assert!(done.text().contains(&format!("kept: the first {signed} records\n")), "{done:?}");
    assert!(!done.text().contains("set aside too"), "{done:?}");
}

/// Its gateway had ended in order and left no trace, so no gateway ever settled it.
#[test]
fn an_intent_whose_outcome_a_recovery_set_aside_is_settled_by_the_next_gateway() {
    let world = World::new();
    world.run_with_input(&["fs", "write", "a"], "x").ok();
    let text = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let outcome = lines.iter().position(|line| line.contains("\"kind\":\"outcome\"")).unwrap();
    lines[outcome] = "{}".to_owned();
    put(&world, &lines);
    let (_done, records) = recovered(&world);
    let settled = records.iter().find(|record| record.get("of").is_some()).unwrap();
    assert_eq!((&settled["of"], &settled["result"]), (&(outcome - 1).into(), &"committed".into()));
    let verified = world.run(&["audit", "verify"]).ok();
    assert!(!verified.text().contains("missing-outcome"), "{verified:?}");
    let left: Vec<_> = std::fs::read_dir(world.state().join("gateways")).unwrap().collect();
    assert!(left.iter().all(|entry| {
        !entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with(".lock")
    }));
}

/// A file of the batch was changed since: the batch looked unfinished and had been finished long
/// ago.
#[test]
fn a_finished_batch_whose_outcomes_a_recovery_set_aside_is_not_taken_back() {
    let world = World::new();
    let write = |path: &str| serde_json::json!({ "op": "write", "path": path, "content": "new" });
    let changes = Value::from(vec![write("a"), write("b")]).to_string();
    world.run_with_input(&["fs", "batch", "--json"], changes).ok();
    let text = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let outcome = lines.iter().position(|line| line.contains("\"kind\":\"outcome\"")).unwrap();
    lines[outcome] = "{}".to_owned();
    put(&world, &lines);
    world.file("b", "changed since");
    let (_done, records) = recovered(&world);
    let settled = records.iter().filter(|record| record.get("of").is_some());
    let results: Vec<_> = settled.map(|record| record["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["committed", "superseded"]);
    assert_eq!((world.read("a"), world.read("b")), ("new".to_owned(), "changed since".to_owned()));
}

/// A gateway that stops does not read all of a long log, so none had a checkpoint, and the next
/// command left a damaged log behind.
#[test]
fn a_long_log_that_was_recovered_was_damaged_after_the_next_command() {
    let world = World::new();
    write_log(&world, 20_000, |seq| {
        let path = format!("src/file-{}.rs", seq % 100);
        (Kind::Decision, decision("coder", "read", &path, "allow", "allowedPaths.read"))
    });
    world.fs(&["ls"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    let audit = world.state().join("audit");
    let segment = audit.join("seg-000000.jsonl");
    assert!(segment.metadata().unwrap().len() > 4 << 20);
    std::fs::remove_dir_all(audit.join("checkpoints")).unwrap();
    for signed in ["audit/checkpoint", "audit/frontier", "keys/signed"] {
        std::fs::remove_file(world.state().join(signed)).unwrap();
    }
    let mut log = std::fs::OpenOptions::new().append(true).open(&segment).unwrap();
    std::io::Write::write_all(&mut log, b"no record\n").unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    world.fs(&["ls"]).ok();
    world.run(&["audit", "verify"]).ok();
}

/// Records of a newer version were set aside without a word.
#[test]
fn a_log_of_a_newer_version_is_named_before_it_is_set_aside() {
    let world = World::new();
    world.fs(&["ls"]).ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let log = std::fs::read_to_string(&segment).unwrap();
    let (rest, last) = log.trim_end().rsplit_once('\n').unwrap();
    let newer = format!("{rest}\n{}\n", last.replacen("\"v\":1", "\"v\":2", 1));
    std::fs::write(&segment, &newer).unwrap();
    let asked = world.run(&["audit", "recover"]);
    assert!(asked.code != 0 && asked.stderr.contains("another format version"), "{asked:?}");
    assert_eq!(std::fs::read_to_string(&segment).unwrap(), newer);
    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.stderr.contains("another format version"), "{done:?}");
    world.fs(&["ls"]).ok();
}

/// Lines that are no records got the advice for those of a newer version.
#[test]
fn damage_beside_a_newer_version_is_not_of_a_newer_version() {
    let world = World::new();
    for _ in 0..2 {
        world.fs(&["ls"]).ok();
    }
    let segment = world.state().join("audit/seg-000000.jsonl");
    let log = std::fs::read_to_string(&segment).unwrap();
    let newer = log.replacen("\"v\":1,\"seq\":2", "\"v\":2,\"seq\":2", 1);
    let both = newer.replacen("{\"v\":1,\"seq\":3", "\"v\":1,\"seq\":3", 1);
    for (text, is_newer) in [(&newer, true), (&both, false)] {
        std::fs::write(&segment, text).unwrap();
        // A record of this version follows, so the link to it is broken, as only `verify` checks.
        for (command, is_advised) in [
            (&["log"][..], is_newer),
            (&["audit", "query"], is_newer),
            (&["audit", "verify"], false),
        ] {
            let damaged = world.run(command);
            let advice = damaged.stderr.contains("use the portcullis that wrote it");
            assert_eq!((damaged.code, advice), (5, is_advised), "{command:?} {damaged:?}");
        }
    }
}
