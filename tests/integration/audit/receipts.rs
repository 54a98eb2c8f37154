//! `portcullis audit check-receipts`: what counts as a receipt.

use std::io::{Seek as _, SeekFrom, Write as _};

use crate::common::World;

/// Those behind the first value of a line, and words within strings, were passed over.
#[test]
fn a_receipt_is_found_wherever_it_stands() {
    let world = World::new();
    let written = world.write("a", "x").ok();
    let word = written.stderr.lines().find_map(|line| line.strip_prefix("record "));
    let (seq, right) = word.unwrap_or_else(|| panic!("{written:?}")).split_once(':').unwrap();
    let (seq, wrong): (u64, _) = (seq.parse().unwrap(), "0".repeat(64));
    let receipt =
        |seq: u64, leaf: &str| format!("{{\"seq\":{seq},\"leaf\":\"{leaf}\",\"durable\":true}}");
    let check = |transcript: &str| {
        let file = world.base().join("transcript");
        std::fs::write(&file, transcript).unwrap();
        world.run(&["audit", "check-receipts", file.to_str().unwrap(), "--json"])
    };
    let (good, bad) = (receipt(seq, right), receipt(0, &wrong));
    assert_eq!(check(&good).ok().json()["receipts"], 1);
    for transcript in [
        format!("[{good},{bad}]"),
        format!("{good} {bad}"),
        format!("[12:00] [{{\"receipt\":{good}}},{{\"receipt\":{bad}}}]"),
        format!("{{\"text\":\"record 0:{wrong}\\n\"}}\n{good}"),
        format!("[{{\"content\":[{{\"text\":\"(0:{wrong})\"}}]}}]\n{good}"),
        format!("{{\"text\":{}}}\n{good}", serde_json::json!(format!("broken {{ [{bad}]"))),
        format!("unclosed {{ \"a\": [ {good}, {bad}"),
    ] {
        let lost = check(&transcript);
        assert_eq!(lost.code, 5, "{transcript}: {lost:?}");
        let lost = lost.json();
        assert_eq!((&lost["receipts"], &lost["found"]), (&2.into(), &1.into()), "{transcript}");
    }
}

/// It was reported as valid, and programs got no mention of the line.
#[test]
fn a_transcript_of_which_lines_were_left_out_is_not_valid() {
    let world = World::new();
    let written = world.write("a", "x").ok();
    let receipt = written.stderr.lines().find_map(|line| line.strip_prefix("record ")).unwrap();
    let file = world.base().join("transcript");
    // A line of zeros takes no room.
    let mut transcript = std::fs::File::create(&file).unwrap();
    transcript.seek(SeekFrom::Start(65 << 20)).unwrap();
    writeln!(transcript, "\n{receipt}").unwrap();
    let check = |more: &[&str]| {
        world.run(&[&["audit", "check-receipts", file.to_str().unwrap()], more].concat())
    };
    let found = check(&["--json"]);
    assert_eq!(found.code, 5, "{found:?}");
    let json = found.json();
    assert_eq!((&json["valid"], &json["leftOut"]), (&false.into(), &1.into()));
    assert_eq!((&json["receipts"], &json["found"]), (&1.into(), &1.into()));
    let found = check(&[]);
    assert_eq!(found.code, 5, "{found:?}");
    assert!(found.text().contains("left out: 1 line, too long or not to be parsed\n"), "{found:?}");
}

/// Receipts over several lines were passed over, and the rest was reported as valid.
#[test]
fn a_receipt_in_indented_json_was_passed_over() {
    let world = World::new();
    let written = world.write("a", "x").ok();
    let right = written.stderr.lines().find_map(|line| line.strip_prefix("record ")).unwrap();
    let receipt = serde_json::json!({"seq": 0, "leaf": "0".repeat(64), "durable": true});
    let check = |transcript: String| {
        let file = world.base().join("transcript");
        std::fs::write(&file, transcript).unwrap();
        world.run(&["audit", "check-receipts", file.to_str().unwrap(), "--json"])
    };
    let found = check(format!("{right}\n{receipt:#}\n"));
    assert_eq!((found.code, &found.json()["leftOut"]), (5, &1.into()), "{found:?}");
    // Other values that a line does not end have no receipt.
    check(format!("{right}\nfn main() {{\n{:#}\n", serde_json::json!({"leaf": "x"}))).ok();
}
