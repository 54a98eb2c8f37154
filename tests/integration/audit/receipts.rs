//! `portcullis audit check-receipts`: what counts as a receipt.

use std::io::{Seek as _, SeekFrom, Write as _};

use serde_json::{Value, json};

use crate::common::{Done, World};

/// A receipt of a write in `world`: `SEQ:HASH`.
fn written(world: &World) -> String {
    let written = world.write("a", "x").ok();
    let word = written.stderr.lines().find_map(|line| line.strip_prefix("record "));
    word.unwrap_or_else(|| panic!("{written:?}")).to_owned()
}

fn check(world: &World, transcript: &str) -> Done {
    let file = world.base().join("transcript");
    std::fs::write(&file, transcript).unwrap();
    world.run(&["audit", "check-receipts", file.to_str().unwrap(), "--json"])
}

/// A receipt that no log has.
fn forged() -> Value {
    json!({"seq": 0, "leaf": "0".repeat(64), "durable": true})
}

#[test]
fn a_receipt_is_found_wherever_a_reply_has_it() {
    let world = World::new();
    let right = written(&world);
    let (bad, word) = (forged(), format!("0:{}", "0".repeat(64)));
    for transcript in [
        format!("{bad}\n"),
        json!([bad]).to_string(),
        json!({"ok": true, "receipt": bad}).to_string(),
        format!("[12:00] {}", json!([{"ok": false, "receipts": [bad]}])),
        format!("<- {}\r", json!({"id": 1, "result": {"_meta": {"portcullis/receipt": bad}}})),
        json!({"id": 1, "result": {"_meta": {"portcullis/receipts": [bad]}}}).to_string(),
        json!({"id": 1, "error": {"data": {"receipt": bad}}}).to_string(),
        json!({"ok": true, "attempts": [{"receipt": bad}]}).to_string(),
        word.clone(),
        format!("  record {word}"),
        format!("record {word}, backup 20261122T120120460779Z-14727f6f"),
        format!("read a b: record {word}"),
    ] {
        let lost = check(&world, &format!("{transcript}\n{right}\n"));
        assert_eq!(lost.code, 5, "{transcript}: {lost:?}");
        let lost = lost.json();
        assert_eq!((&lost["receipts"], &lost["found"]), (&2.into(), &1.into()), "{transcript}");
        assert_eq!(lost["unattributed"], 0, "{transcript}: {lost}");
    }
}

/// Anybody with a text in a transcript made the log appear to lack durable records.
#[test]
fn an_agent_forged_a_receipt_in_a_transcript() {
    let world = World::new();
    let right = written(&world);
    let (bad, word) = (forged(), format!("0:{}", "0".repeat(64)));
    let deep = (0..130).fold(json!({"receipt": bad}), |inner, _| json!([inner]));
    for (transcript, count) in [
        (
            json!({"method": "session/update", "params": {"update": {"rawOutput": {"receipt": bad}}}}),
            1,
        ),
        (json!({"params": {"_meta": {"portcullis/receipt": bad}}}), 1),
        (json!({"result": {"content": format!("notes {word}\nrecord {word}")}}), 2),
        (json!({"result": {"content": [{"text": json!({"receipt": bad}).to_string()}]}}), 1),
        (json!({"result": {"structuredContent": {"receipt": bad}}}), 1),
        (json!({"ok": true, "content": format!("record {word}"), "entry": bad}), 2),
        (json!({"params": {"leaf": "0".repeat(64)}}), 1),
        (json!(format!("broken {{ [{bad}]")), 1),
    ] {
        let found = check(&world, &format!("{transcript}\n{right}\n")).ok().json();
        assert_eq!((&found["receipts"], &found["valid"]), (&1.into(), &true.into()), "{found}");
        assert_eq!(found["unattributed"], count, "{transcript}: {found}");
        let none = check(&world, &format!("{transcript}\n"));
        assert!(none.code == 1 && none.text().contains("there is no receipt"), "{none:?}");
        assert!(none.text().contains("that anybody may have written"), "{none:?}");
    }
    // Of a line that cannot be read nothing is claimed.
    for transcript in [deep.to_string(), format!("unclosed {{ \"a\": [ {bad}, {bad}")] {
        let left = check(&world, &format!("{transcript}\n{right}\n"));
        assert_eq!((left.code, &left.json()["leftOut"]), (5, &1.into()), "{left:?}");
        assert_eq!((&left.json()["receipts"], &left.json()["missing"]), (&1.into(), &json!([])));
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
