//! Old segments, compressed by commands and by gateways.

use std::time::Instant;

use portcullis_audit::Segment;
use serde_json::json;

use super::{audit, text, write_log};
use crate::{
    common::World,
    scripted_agent::{ScriptedAgent, TIMEOUT, receipt},
};

/// Follows FORMAT.md's advice for `verify.py`, which reported the output of `zstd -d` as damage.
#[test]
fn a_segment_in_both_forms_is_the_plain_one_to_both_verifiers() {
    let world = World::new();
    write_log(&world, 140_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let plain = audit(&world).join("seg-000000.jsonl");
    let text_of = std::fs::read(&plain).unwrap();
    world.run(&["audit", "compress"]).ok();
    std::fs::write(&plain, text_of).unwrap();
    assert!(audit(&world).join("seg-000000.jsonl.zst").exists());
    world.run(&["audit", "verify"]).ok();
    let other = super::second(&["log", text(&audit(&world))]).ok();
    assert_eq!(other.json()["records"], json!(140_000));
    // Any other name of that kind is none.
    std::fs::write(audit(&world).join("seg-0.jsonl.zst"), "").unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    assert_eq!(super::second(&["log", text(&audit(&world))]).code, 5);
}

/// A log with a compressed segment was damaged to it.
#[test]
fn the_second_verifier_asks_to_unpack_a_compressed_segment() {
    let world = World::new();
    write_log(&world, 140_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "compress"]).ok();
    let refused = super::second(&["log", text(&audit(&world))]);
    assert_eq!((refused.code, refused.text()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("seg-000000.jsonl.zst is compressed"), "{refused:?}");
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
    // A part of it is damage, too, and has a place.
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

/// It was a name that no segment has, without a position and with another remedy.
#[test]
fn a_compressed_segment_that_is_no_frame_is_a_bad_segment() {
    let world = World::new();
    write_log(&world, 10, "2026-01-01T00:00:00.000000Z");
    let directory = world.base().join("log");
    std::fs::create_dir(&directory).unwrap();
    let log = std::fs::read(audit(&world).join("seg-000000.jsonl")).unwrap();
    let unsized_frame = b"\x28\xb5\x2f\xfd\x00\x00";
    for (number, bytes) in [(0, &log[..]), (0, b""), (0, unsized_frame), (2, b"\x29\xb5\x2f\xfd")] {
        let name = Segment(number).to_string();
        let path = directory.join(format!("{name}.zst"));
        std::fs::write(&path, bytes).unwrap();
        let damaged = world.run(&["audit", "verify", "--json", "--dir", text(&directory)]);
        assert_eq!(damaged.code, 5, "{damaged:?}");
        let damages = damaged.json()["damages"].clone();
        let seq = Segment(number).first();
        assert!(
            damages.as_array().unwrap().iter().any(|one| {
                one["kind"] == "bad-segment" && one["segment"] == *name && one["seq"] == seq
            }),
            "{damages}"
        );
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_gateway_that_runs_compresses_old_segments() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    world.file("a", "x");
    // A file that a killed process left.
    std::fs::write(audit(&world).join(".seg-000000.jsonl.zst.left"), "half").unwrap();
    let config = world.base().join("portcullis.toml");
    let start = |compress: &str| {
        std::fs::write(&config, format!("[audit]\ncompress = {compress}\n")).unwrap();
        ScriptedAgent::with(&world, &["--config", text(&config)])
    };
    let there = |name: &str| audit(&world).join(name).exists();
    let mut scripted_agent = start("{ afterDays = 0 }");
    // Two segments are verified and compressed, beside whatever else runs here.
    let end = Instant::now() + 5 * TIMEOUT;
    while there("seg-000000.jsonl") || there("seg-000001.jsonl") {
        assert!(Instant::now() < end, "nothing was compressed");
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (status, complaints) = scripted_agent.end();
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
    // At any step of it.
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
