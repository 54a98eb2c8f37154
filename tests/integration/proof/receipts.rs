//! Receipts of a gateway's replies, looked up in logs.

use std::io::Write as _;

use portcullis_audit::{Chain, Draft, Kind, Prepared, Segment};
use serde_json::{Value, json};

use super::{audit, second, text, write_log};
use crate::{
    common::{World, done},
    scripted_agent::ScriptedAgent,
};

#[test]
fn receipts_of_a_transcript_are_found_or_named() {
    let world = World::new();
    world.file("a", "x");
    let mut transcript = Vec::new();
    for _ in 0..2 {
        let read = world.fs(&["read", "a", "--json"]).ok().json();
        writeln!(transcript, "12:00:00 <- {read}").unwrap();
    }
    let denied = world.fs(&["read", "../x", "--json"]);
    transcript.extend_from_slice(&denied.stdout);
    transcript.extend_from_slice(b"\nnot JSON {\n");
    let file = world.base().join("transcript");
    std::fs::write(&file, &transcript).unwrap();
    let all = world.run(&["audit", "check-receipts", text(&file)]).ok();
    assert!(all.text().starts_with("receipts: "), "{all:?}");
    // The last gateway's records are cut off, with what was signed of them.
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
    // The note beside the key shows it, but not which records were lost.
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let lost = world.run(&["audit", "check-receipts", text(&file)]);
    assert_eq!(lost.code, 5, "{lost:?}");
    assert!(lost.text().contains("missing: 4:") && lost.text().contains("the log ends before it"));
    let lost = world.run(&["audit", "check-receipts", "--json", text(&file)]);
    assert_eq!(lost.json()["missing"][0]["seq"], 4);
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
    // In a forged one of two records, which states that all others were pruned.
    std::fs::write(&file, words(&leaves, 25)).unwrap();
    forge_pruned(&other);
    other.run(&["audit", "verify"]).ok();
    let lost = check(&other);
    assert_eq!(lost.code, 5);
    assert_eq!(lost.text(), "pruned, not checkable: 25\nreceipts: 25, in the log: 0\n");
    // A verifier with the key sees that its owner did not write it.
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
        assert!(!said.contains("intact"), "{refused:?}");
    }
    let other = second(&["log", text(&state)]);
    assert!(other.code == 1 && other.stderr.contains("there is no audit log"), "{other:?}");
    dir(&["verify", "--dir", text(&audit(&world))]).ok();
}

/// Every transport's replies, denials and errors too, have a receipt of a
/// record in the log.
#[test]
fn every_reply_of_every_transport_has_a_receipt() {
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
    let mut scripted_agent = ScriptedAgent::start(&world);
    for request in [
        scripted_agent.read("a"),
        scripted_agent.read(".env"),
        scripted_agent.read("missing"),
        scripted_agent.read("../outside"),
        scripted_agent.write("c", "z"),
        scripted_agent.write(".git/config", "z"),
        scripted_agent.write("a/b", "z"),
        // Refusals of the transport itself.
        json!({"method": "fs/read_text_file", "params": {"sessionId": "s1", "path": "relative"}}),
        json!({"method": "fs/read_text_file", "params": {"sessionId": "none", "path": "/a"}}),
        json!({"method": "fs/write_text_file", "params": {"sessionId": "s1"}}),
        json!({"method": "fs/read_text_file", "params": ["s1", "/a"]}),
        json!({"method": "terminal/create", "params": {}}),
        json!({"method": "fs/unlink", "params": {}}),
    ] {
        let answer = scripted_agent.ask(request);
        let said =
            [&answer["result"]["_meta"]["portcullis/receipt"], &answer["error"]["data"]["receipt"]];
        assert!(said.iter().any(|receipt| receipt["leaf"].is_string()), "{answer}");
        writeln!(transcript, "{answer}").unwrap();
        replies += 1;
    }
    assert!(scripted_agent.hang_up().success());
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
    assert_eq!(lost.json()["missing"].as_array().unwrap().len(), replies);
}

fn last_intent(world: &World) -> Value {
    world.records().into_iter().rfind(|record| record["kind"] == "intent").unwrap()
}

/// The words of the receipts that a command printed for people.
fn said(world: &World, stderr: &str) -> Vec<String> {
    let records = world.records().len();
    let words = stderr.split(|c: char| !c.is_ascii_alphanumeric() && c != ':');
    let is_one = |word: &&str| {
        word.split_once(':').is_some_and(|(seq, leaf)| {
            seq.parse::<usize>().is_ok_and(|seq| seq < records) && leaf.len() == 64
        })
    };
    words.filter(is_one).map(str::to_owned).collect()
}

/// Several files had none, a batch the number alone, and backups none.
#[test]
fn every_reply_in_a_shell_has_a_receipt() {
    let world = World::new();
    world.file("a", "x");
    world.file("b", "y");
    let read = world.fs(&["read", "a", "b"]).ok();
    assert_eq!((read.text(), said(&world, &read.stderr).len()), ("xy", 2));
    let changes =
        r#"[{"op":"write","path":"a","content":"1"},{"op":"write","path":"b","content":"2"}]"#;
    let batch = world.run_with_input(&["fs", "batch"], changes).ok();
    assert_eq!(said(&world, &batch.stderr).len(), 2, "{batch:?}");
    let show = world.run(&["backup", "show", "a"]).ok();
    assert_eq!((show.text(), said(&world, &show.stderr).len()), ("x", 1));
    let diff = world.run(&["backup", "diff", "a"]).ok();
    let last = world.records().len() - 2;
    assert!(said(&world, &diff.stderr)[0].starts_with(&format!("{last}:")), "{diff:?}");
    let diff = world.run(&["backup", "diff", "a", "--json"]).ok();
    assert_eq!(diff.json()["receipts"].as_array().unwrap().len(), 2);
    // They are those of the log.
    let file = world.base().join("transcript");
    let all = [&read.stderr, &batch.stderr, &show.stderr].map(String::as_str).concat();
    std::fs::write(&file, all + diff.text()).unwrap();
    let checked = world.run(&["audit", "check-receipts", "--json", text(&file)]).ok().json();
    assert_eq!(checked["receipts"], 7, "{checked}");
}

/// Each opening was parsed to the end again: a line of 800 kB took minutes.
#[test]
fn a_line_of_a_transcript_is_not_parsed_once_for_each_opening_in_it() {
    let world = World::new();
    let leaves = write_log(&world, 3, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let file = world.base().join("transcript");
    let receipt = |seq: usize| json!({ "seq": seq, "leaf": leaves[seq], "durable": true });
    let inner = format!("{}{}", "[1],".repeat(500_000), receipt(0));
    let word = format!("1:{}", leaves[1]);
    let begun = std::time::Instant::now();
    // It does not end, or ends in what is not JSON: it is left out, which is no success.
    for end in ["", "x"] {
        std::fs::write(&file, format!("{word}\n{}{inner}{end}\n", "[".repeat(120))).unwrap();
        let left = world.run(&["audit", "check-receipts", "--json", text(&file)]);
        assert_eq!((left.code, &left.json()["leftOut"]), (5, &json!(1)), "{left:?}");
        assert_eq!(left.json()["receipts"], 1, "{left:?}");
    }
    assert!(begun.elapsed().as_secs() < 300, "{:?}", begun.elapsed());
    // Few of them leave nothing out.
    std::fs::write(&file, format!("[12:00 {{x [\"a {{ {}", receipt(2))).unwrap();
    let found = world.run(&["audit", "check-receipts", text(&file)]).ok();
    assert_eq!(found.text(), "receipts: 1, in the log: 1\n");
}
