//! `portcullis audit check-receipts`: what counts as a receipt.

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
