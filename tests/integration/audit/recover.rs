//! `portcullis audit recover` on logs of several segments.

use crate::{
    common::World,
    review::{decision, write_log},
};
use portcullis_audit::Kind;

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

/// It could not be opened, by gates nor by another repair.
#[test]
fn a_log_that_ends_with_a_compressed_segment_goes_on() {
    let world = packed_log();
    std::fs::remove_file(world.state().join("audit/seg-000001.jsonl")).unwrap();
    assert_eq!(world.fs(&["ls"]).code, 1);
    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.text().contains("done"), "{done:?}");
    world.fs(&["ls"]).ok();
    world.run(&["audit", "verify"]).ok();
    let shown = world.run(&["audit", "show", "--kind", "recovered", "--json"]).ok();
    let seqs = shown.text().lines().map(|line| serde_json::from_str(line).unwrap());
    let seqs: Vec<_> = seqs.map(|record: serde_json::Value| record["seq"].clone()).collect();
    assert_eq!(seqs.first(), Some(&65_536.into()), "{shown:?}");
}

/// Where a repair died, or failed, before it could unpack what is the last segment now.
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
    world.run(&["audit", "verify"]).ok();
    assert!(!world.state().join("audit/seg-000000.jsonl.zst").exists());
}
