//! Statements of commands about a log that they had not read, or could not
//! read.

use std::fs;

use portcullis::gateway::AuditLog;
use serde_json::json;

use super::{audit, both, long, world};
use crate::{common::World, proof::second};

fn compress(world: &World) -> std::path::PathBuf {
    let plain = audit(world, "seg-000000.jsonl");
    let bytes = fs::read(&plain).unwrap();
    let packed = audit(world, "seg-000000.jsonl.zst");
    let file = fs::File::create(&packed).unwrap();
    AuditLog::compress_segment(&*bytes, file, bytes.len() as u64).unwrap();
    fs::remove_file(plain).unwrap();
    packed
}

/// It reported that the end had been checked, and was right, with 0 records.
#[test]
fn doctor_says_that_a_compressed_last_segment_was_not_looked_at() {
    let world = world();
    compress(&world);
    let report = world.run(&["doctor", "--json"]).json();
    let checks = report["checks"].as_array().unwrap();
    let log = checks.iter().find(|check| check["name"] == "audit log").unwrap();
    assert_eq!(log["status"], "warning", "{log}");
    let facts = &log["facts"];
    assert_eq!((&facts["checked"], &facts["records"]), (&json!("nothing"), &json!(null)), "{log}");
    world.fs(&["read", "a"]).ok();
    assert_eq!(both(&world), [0, 0]);
}

/// It was reported as a failure of the disk.
#[test]
fn a_compressed_segment_that_cannot_be_unpacked_is_damage() {
    let world = world();
    let packed = compress(&world);
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() - 5]).unwrap();
    let refused = world.fs(&["read", "a"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("audit verify"), "{refused:?}");
}

/// It was reported as intact, without records yet.
#[test]
fn a_log_that_was_cut_to_nothing_is_not_said_to_be_intact() {
    let world = world();
    fs::write(audit(&world, "seg-000000.jsonl"), "").unwrap();
    let found = world.run(&["audit", "verify"]);
    assert_eq!(found.code, 5, "{found:?}");
    assert!(!found.text().contains("intact"), "{found:?}");
}

/// A damage was reported for each of the files.
#[test]
fn no_more_damages_are_reported_than_a_report_may_have() {
    let world = world();
    for size in 1_000_000..1_000_150 {
        fs::write(audit(&world, &format!("checkpoints/{size}")), "x").unwrap();
    }
    let found = world.run(&["audit", "verify", "--json"]);
    assert_eq!(found.code, 5, "{found:?}");
    let found = found.json();
    assert_eq!(found["damages"].as_array().unwrap().len(), 100);
    assert_eq!(found["stopped"], true);
    let plan = world.run(&["audit", "recover"]);
    assert!(plan.text().lines().count() < 110, "{plan:?}");
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(both(&world), [0, 0]);
}

/// The repair counted on it, cut it off, and then was not done.
#[test]
fn a_repair_does_not_count_on_a_record_that_it_cuts_off() {
    let world = long(140_000);
    world.run(&["audit", "compress"]).ok();
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    let last = audit(&world, "seg-000002.jsonl");
    let text = fs::read_to_string(&last).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    let pruned = lines.iter().position(|line| line.contains("\"kind\":\"pruned\"")).unwrap();
    lines.insert(pruned, lines[pruned - 10]);
    fs::write(&last, lines.join("\n") + "\n").unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    assert_eq!(both(&world), [0, 0]);
    let told = world.records().into_iter().filter(|record| record["kind"] == "recovered");
    assert!(told.into_iter().any(|record| record["facts"]["what"] == "unaccounted"));
}

/// It reported them as recorded, and had not read them.
#[test]
fn a_verifier_does_not_vouch_for_what_is_in_quarantine() {
    let world = world();
    fs::create_dir(audit(&world, "quarantine")).unwrap();
    fs::write(audit(&world, "quarantine/damaged-0"), "forged").unwrap();
    let found = world.run(&["audit", "verify"]).ok();
    assert!(found.text().contains("was not looked at"), "{found:?}");
    assert_eq!(second(&["log", audit(&world, "").to_str().unwrap()]).code, 0);
}
