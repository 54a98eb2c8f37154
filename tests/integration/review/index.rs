//! The index beside a long log.

use std::path::{Path, PathBuf};

use portcullis_audit::{Draft, Hash, Kind, SEGMENT_RECORDS};
use serde_json::Value;

use super::{HOSTILE, decision, write_log};
use crate::common::World;

/// A full segment and the beginning of another.
const RECORDS: u64 = SEGMENT_RECORDS + 100;

fn hash(seq: u64) -> Hash {
    Hash::of(&seq.to_le_bytes())
}

fn world() -> World {
    let world = World::new();
    write_log(&world, RECORDS, |seq| {
        let agent = if seq % 5000 == 17 { HOSTILE } else { "coder" };
        let effect = if seq % 1000 == 3 { "deny" } else { "allow" };
        // More distinct paths in a segment than two bytes can number.
        let draft = decision(agent, "read", &format!("src/{}/f{seq}.rs", seq % 7), effect, "r");
        let to = (seq % 4096 == 9).then(|| format!("to/{seq}"));
        (Kind::Decision, Draft { before: Some(hash(seq)), to, ..draft })
    });
    world
}

fn found(world: &World, args: &[&str]) -> Vec<u64> {
    let args = [&["audit", "query", "--csv", "--columns", "seq"], args].concat();
    let done = world.run(&args).ok();
    done.text().lines().skip(1).map(|line| line.parse().unwrap()).collect()
}

fn files(world: &World) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(world.state().join("index")) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn an_index_finds_what_the_log_holds_and_is_only_an_index() {
    let world = world();
    let digits = hash(65_600).to_string();
    let cases: &[&[&str]] = &[
        &["--path", "src/6/f60003.rs"],
        &["--path", "src/5/*7.rs", "--decision", "deny"],
        &["--path", "to"],
        &["--agent", HOSTILE],
        &["--hash", &digits[..8]],
        &["--hash", &digits],
        &[
            "--decision",
            "deny",
            "--since",
            "2026-11-02T00:00:00Z",
            "--until",
            "2026-11-02T12:00:00Z",
        ],
        &["--op", "read", "--last", "5"],
    ];
    let plain: Vec<_> =
        cases.iter().map(|case| found(&world, &[*case, &["--no-index"]].concat())).collect();
    assert!(files(&world).is_empty());
    assert_eq!(plain[0], [60_003]);
    assert_eq!((&plain[4], &plain[5]), (&vec![65_600], &vec![65_600]));
    assert_eq!(plain[2].len(), 17);
    // The first makes it, the others use it.
    for (case, plain) in cases.iter().zip(&plain) {
        assert_eq!(&found(&world, case), plain, "{case:?}");
    }
    assert_eq!(found(&world, cases[0]), plain[0]);
    assert_eq!(files(&world).len(), 1);
    // Nothing in it is needed, whatever its content.
    let all = files(&world);
    let mut bytes = std::fs::read(&all[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xff);
    for damaged in [bytes, Vec::new()] {
        std::fs::write(&all[0], damaged).unwrap();
        for (case, plain) in cases.iter().zip(&plain).take(2) {
            assert_eq!(&found(&world, case), plain, "{case:?}");
        }
    }
    std::fs::remove_dir_all(world.state().join("index")).unwrap();
    std::fs::write(world.state().join("index"), "in the way").unwrap();
    assert_eq!(found(&world, cases[0]), [60_003]);
}

#[test]
fn a_segment_that_changed_is_read_again() {
    let world = world();
    assert_eq!(found(&world, &["--path", "src/6/f60003.rs"]), [60_003]);
    let segment = world.state().join("audit/seg-000000.jsonl");
    let modified = std::fs::metadata(&segment).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(&segment).unwrap();
    // Of the same length, and with its time set back.
    std::fs::write(&segment, text.replace("/f60003.rs", "/f6OOO3.rs")).unwrap();
    std::fs::File::options().append(true).open(&segment).unwrap().set_modified(modified).unwrap();
    assert_eq!(found(&world, &["--path", "src/6/f60003.rs"]), [0_u64; 0]);
    assert_eq!(found(&world, &["--path", "src/6/f6OOO3.rs"]), [60_003]);
    // A damaged segment is never indexed, so that its damage is always
    // reported.
    std::fs::write(&segment, text.replacen("{\"v\":1", "{\"v\":x", 1)).unwrap();
    for _ in 0..2 {
        let done = world.run(&["audit", "query", "--path", "src/6/f60003.rs", "--json"]);
        assert_eq!((done.code, done.text().lines().count()), (5, 1));
        assert!(done.stderr.contains("line 1 of seg-000000.jsonl"), "{}", done.stderr);
    }
}

/// Writes the index as a party would that knows its form: with its hash.
fn forge(path: &Path, change: impl FnOnce(&mut Value)) {
    const START: usize = 16 + 8 + 32;
    let mut bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let end = START + usize::try_from(length).unwrap();
    let mut header: Value = serde_json::from_slice(&bytes[START..end]).unwrap();
    change(&mut header);
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(end - START, b' ');
    bytes[24..START].copy_from_slice(Hash::of(&text).as_bytes());
    bytes[START..end].copy_from_slice(&text);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_forged_index_hides_nothing_from_what_is_shown_to_others() {
    let world = world();
    let denied = ["--decision", "deny"];
    let all = found(&world, &denied);
    assert_eq!(all.len(), 66);
    forge(&files(&world)[0], |header| {
        for column in header["columns"].as_array_mut().unwrap() {
            if column["name"] == "decision" {
                column["name"] = "rule".into();
            }
        }
    });
    // It is a forgery that a search of the state directory believes.
    assert!(found(&world, &denied).is_empty());
    let export = ["audit", "export", "--format", "csv"];
    let exported = world.run(&[&export[..], &denied].concat()).ok();
    assert_eq!(exported.text().lines().count(), 1 + all.len());
    let log = world.state().join("audit");
    for whole in [&["--no-index"][..], &["--dir", log.to_str().unwrap()]] {
        assert_eq!(found(&world, &[&denied[..], whole].concat()), all, "{whole:?}");
    }
}

#[test]
fn the_index_of_what_was_pruned_goes_with_it() {
    let world = World::new();
    write_log(&world, 2 * SEGMENT_RECORDS + 100, |seq| {
        let path = format!("src/f{}.rs", seq % 100);
        (Kind::Decision, decision("coder", "read", &path, "allow", "r"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    let search = ["--path", "src/f7.rs"];
    found(&world, &search);
    let [first, second] = files(&world).try_into().unwrap();
    let unfinished = first.with_file_name("seg-000000.jsonl.4711.tmp");
    let foreign = first.with_file_name("seg-000000.jsonl.notes");
    let index = std::fs::read(&first).unwrap();
    for path in [&unfinished, &foreign] {
        std::fs::write(path, &index).unwrap();
    }
    // The first segment ends in the evening of the first day.
    world.run(&["audit", "prune", "--before", "2026-11-02", "--yes"]).ok();
    assert_eq!(files(&world), [foreign.clone(), second.clone()]);

    // An index that a search left, which began before.
    std::fs::write(&first, &index).unwrap();
    std::fs::remove_file(&second).unwrap();
    found(&world, &search);
    assert_eq!(files(&world), [foreign, second]);
}

/// The search ended with an abort.
#[test]
fn an_index_that_says_that_it_is_larger_than_memory_is_made_anew() {
    let world = world();
    let denied = ["--decision", "deny"];
    let all = found(&world, &denied);
    let index = files(&world).remove(0);
    forge(&index, |header| {
        header["lines"]["length"] = (1_u64 << 42).into();
        // Room for the longer number.
        header["columns"].as_array_mut().unwrap().pop();
    });
    std::fs::File::options().write(true).open(&index).unwrap().set_len(1 << 43).unwrap();
    assert_eq!(found(&world, &denied), all);
    assert!(std::fs::metadata(&index).unwrap().len() < 1 << 30);
}
