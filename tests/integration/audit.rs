//! `portcullis audit` as a person and a program meet it.

mod agreement;
mod attachments;
mod damage;
mod foreign_state;
mod malformed;
mod receipts;
mod recover;
mod show;
mod sparse;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::common::{Done, World};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("audit/vectors")
}

fn names(prefix: &str) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(vectors())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// `audit verify` of a vector with the receipts that belong to it.
fn verify(world: &World, name: &str, more: &[&str]) -> Done {
    let directory = vectors().join(name);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(directory.join("expected.json")).unwrap()).unwrap();
    let log = directory.join("log");
    let mut args = vec!["audit".to_owned(), "verify".to_owned(), "--dir".to_owned()];
    args.push(log.to_str().unwrap().to_owned());
    for receipt in expected["receipts"].as_array().unwrap() {
        let leaf = receipt["leaf"].as_str().unwrap();
        args.extend(["--head".to_owned(), format!("{}:{leaf}", receipt["seq"])]);
    }
    let args: Vec<_> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let mut command = world.command(&args);
    command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    crate::common::done(command.output().unwrap())
}

/// Returns the output for people of all vectors with this prefix; the exit code
/// is 5.
fn seen(prefix: &str) -> String {
    let world = World::new();
    let mut text = String::new();
    for name in names(prefix) {
        let done = verify(&world, &name, &[]);
        assert_eq!(done.code, 5, "{name}: {done:?}");
        write!(text, "# {name}\n{}{}", done.text(), done.stderr).unwrap();
    }
    text
}

#[test]
fn verify_answers_programs_as_the_vectors_say() {
    let world = World::new();
    for name in names("") {
        let expected = std::fs::read(vectors().join(&name).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let done = verify(&world, &name, &["--json"]);
        let valid = expected["valid"].as_bool().unwrap();
        assert_eq!(done.code, if valid { 0 } else { 5 }, "{name}");
        let report = done.json();
        assert_eq!(report["valid"], valid, "{name}");
        if valid {
            assert_eq!(report["records"], expected["records"], "{name}");
            assert_eq!(report["head"]["leaf"], expected["head"]["leaf"], "{name}");
        } else {
            for field in ["kind", "segment", "seq", "line"] {
                assert_eq!(report["damages"][0][field], expected["damage"][field], "{name}");
            }
        }
        let warnings: Vec<_> = report["warnings"].as_array().unwrap().iter().collect();
        let kinds: Vec<_> = warnings.iter().map(|warning| &warning["kind"]).collect();
        assert_eq!(kinds, expected["warnings"].as_array().unwrap().iter().collect::<Vec<_>>());
    }
}

#[test]
fn verify_says_that_a_log_is_intact() {
    let world = World::new();
    let mut text = String::new();
    for name in names("good-") {
        let done = verify(&world, &name, &[]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{name}");
        write!(text, "# {name}\n{}", done.text()).unwrap();
    }
    insta::assert_snapshot!(text, @r#"
# good-all-fields
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:02fb35a8b5edb05b8bd7b5972906e4089d84aa4092ba765a84b3c08af187c228
signed: nothing; no checkpoint covers these records
# good-clock-back
warning: time-went-back: record 6 is of 2026-11-21T07:59:59.999999Z, the one before it of 2026-11-21T08:00:05.000000Z
intact: 7 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T07:59:59.999999Z
head: 6:fd6dd3fa005addf92bd8034c51759a5b30913f280c7437d6ef8b428da1410958
signed: nothing; no checkpoint covers these records
# good-cosigned
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the newest covers 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, found beside the log, where anyone who changes the log can change it; give your own copy with --key
# good-empty
intact: no records yet
# good-extended
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the newest covers 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, found beside the log, where anyone who changes the log can change it; give your own copy with --key
# good-future
warning: unknown-kind: record 5 is of a kind that this version does not know
warning: unknown-file: "notes.txt" does not belong to the log
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:169615994f72fa8640d6513e7de1af4ce876829518f8a3ec6c83c663c2e4744f
signed: nothing; no checkpoint covers these records
# good-last-changed
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796
signed: nothing; no checkpoint covers these records
# good-limits
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:c9db9a20c7b034dcbb757e9c902d33376e0c52f353b0639585981c48e4b7ba71
signed: nothing; no checkpoint covers these records
# good-missing-checkpoint
warning: missing-checkpoint: records name a key for checkpoints, but no valid checkpoint exists: a gateway died before its first one, or they were removed
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: nothing; no checkpoint covers these records
# good-missing-checkpoint-recovered
warning: missing-checkpoint: records name a key for checkpoints, but no valid checkpoint exists: a gateway died before its first one, or they were removed
intact: 3 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:02.000000Z
head: 2:91a8c62aaa2f4170518aa5e2b2195bc4296a106f61ee82db1eb8328086947b38
signed: nothing; no checkpoint covers these records
# good-missing-outcome
warning: missing-outcome: the intent 6 has no outcome: it is under way or needs recovery
intact: 7 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:06.000000Z
head: 6:89ac74a5ad2b2646a68e05002688a978fb1390b58d910713d14c16f88a404ece
signed: nothing; no checkpoint covers these records
# good-receipts
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint covers these records
# good-recovered
intact: 4 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:03.000000Z
head: 3:8d0a050eb645c6684eee7815598fc6cf939a4d73f6a322455ae5fa65c7ddf602
signed: nothing; no checkpoint covers these records
# good-signed
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the newest covers 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, found beside the log, where anyone who changes the log can change it; give your own copy with --key
# good-six
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint covers these records
# good-spelling
intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8cf1e1cc02c374ebd8157e34e12cba59b51c6133cddf01bf2c3a13a72eca9fb0
signed: nothing; no checkpoint covers these records
# good-two-keys
intact: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the newest covers 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, found beside the log, where anyone who changes the log can change it; give your own copy with --key
"#);
}

#[test]
fn verify_names_broken_links() {
    insta::assert_snapshot!(seen("broken-link"), @r"
# broken-link-blank
damaged: broken-link in seg-000000.jsonl, record 2, line 3
  `prev` is not the hash of record 1: one of the two was changed
not intact: the chain breaks after 2 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# broken-link-changed
damaged: broken-link in seg-000000.jsonl, record 5, line 6
  `prev` is not the hash of record 4: one of the two was changed
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# broken-link-first
damaged: broken-link in seg-000000.jsonl, record 0, line 1
  `prev` of the first record is not zero
damaged: broken-link in seg-000000.jsonl, record 1, line 2
  `prev` is not the hash of record 0: one of the two was changed
not intact: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# broken-link-spliced
damaged: broken-link in seg-000000.jsonl, record 3, line 4
  `prev` is not the hash of record 2: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
");
}

#[test]
fn verify_names_wrong_sequences() {
    insta::assert_snapshot!(seen("wrong-sequence"), @r"
# wrong-sequence-headless
damaged: wrong-sequence in seg-000000.jsonl, record 0, line 1
  the line is record 1: records before it are missing
not intact: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# wrong-sequence-removed
damaged: wrong-sequence in seg-000000.jsonl, record 4, line 5
  the line is record 5: records before it are missing
not intact: the chain breaks after 4 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# wrong-sequence-repeated
damaged: wrong-sequence in seg-000000.jsonl, record 2, line 3
  the line is record 1: it was here before, or is out of order
not intact: the chain breaks after 2 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# wrong-sequence-swapped
damaged: wrong-sequence in seg-000000.jsonl, record 1, line 2
  the line is record 4: records before it are missing
damaged: wrong-sequence in seg-000000.jsonl, record 5, line 3
  the line is record 2: it was here before, or is out of order
damaged: wrong-sequence in seg-000000.jsonl, record 4, line 5
  the line is record 1: it was here before, or is out of order
damaged: wrong-sequence in seg-000000.jsonl, record 2, line 6
  the line is record 5: records before it are missing
warning: time-went-back: record 2 is of 2026-11-21T08:00:02.000000Z, the one before it of 2026-11-21T08:00:04.000000Z (and 1 more)
not intact: the chain breaks after 1 record
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
");
}

#[test]
fn verify_names_what_a_receipt_shows() {
    insta::assert_snapshot!(seen("wrong-head") + &seen("missing-head"), @r"
# wrong-head-last-changed
damaged: wrong-head in seg-000000.jsonl, record 5, line 6
  the record's hash is 547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796, but the receipt says 8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
the links are intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796
signed: nothing; no checkpoint covers these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
# wrong-head-rewritten
damaged: wrong-head in seg-000000.jsonl, record 3, line 4
  the record's hash is fc89ac4f7291717a8956cd1702af22b0e1efdd55d5206d619c6d9fc02ce4f297, but the receipt says b8a5a2421f1e01ef1ddd26d4892d701c3491a6714ed92148a13fc45a7ffb2e07
the links are intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:c24ec8e3b92c40a763315e424d398779045bbc08e04662385f2739e1a1750052
signed: nothing; no checkpoint covers these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
# missing-head-checkpoint
damaged: missing-head in seg-000000.jsonl, record 6
  the log ends after 6 records, but a checkpoint is of 7
damaged: missing-head in seg-000000.jsonl, record 6
  the log ends after 6 records, but the newest checkpoint is of 7
the links are intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:7baeb062966183e51212974e3f9ad5dc8f4399958b3ad5fa2debf621438e5209
signed: 1 checkpoint by example.com/log-1, the newest covers 4 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, found beside the log, where anyone who changes the log can change it; give your own copy with --key
  help: the log is not the one that was signed, or its end was cut off: compare it with a copy; `portcullis audit recover` moves signatures that do not match the log to quarantine, so that gateways can start again
# missing-head-cut
damaged: missing-head in seg-000000.jsonl, record 5
  the log ends after 4 records, but a receipt proves record 5
the links are intact: 4 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:03.000000Z
head: 3:b8a5a2421f1e01ef1ddd26d4892d701c3491a6714ed92148a13fc45a7ffb2e07
signed: nothing; no checkpoint covers these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
");
}

#[test]
fn verify_names_wrong_references() {
    insta::assert_snapshot!(seen("wrong-reference"), @r"
# wrong-reference-decision
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 1 is no earlier intent without an outcome
not intact: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# wrong-reference-later
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 7 is no earlier intent without an outcome
not intact: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# wrong-reference-twice
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 2 is no earlier intent without an outcome
not intact: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
");
}

#[test]
fn verify_names_torn_ends() {
    insta::assert_snapshot!(seen("torn-tail") + &seen("unterminated-line"), @r"
# torn-tail-middle
damaged: torn-tail in seg-000000.jsonl, record 5, line 6
  the log ends after 81 bytes of a line
not intact: the chain breaks after 5 records
  help: a gateway or the machine died while it wrote; the next gateway that starts sets the torn line aside and records that
# torn-tail-newline
damaged: torn-tail in seg-000000.jsonl, record 5, line 6
  the log ends after 180 bytes of a line
not intact: the chain breaks after 5 records
  help: a gateway or the machine died while it wrote; the next gateway that starts sets the torn line aside and records that
# torn-tail-zeros
damaged: torn-tail in seg-000000.jsonl, record 6, line 7
  the log ends after 64 bytes of a line
not intact: the chain breaks after 6 records
  help: a gateway or the machine died while it wrote; the next gateway that starts sets the torn line aside and records that
# unterminated-line
damaged: unterminated-line in seg-000000.jsonl, record 5, line 6
  the segment ends after 180 bytes of a line
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
");
}

#[test]
fn verify_names_wrong_segments() {
    let text = seen("missing-segment") + &seen("short-segment") + &seen("unexpected-file");
    insta::assert_snapshot!(text, @r"
# missing-segment
damaged: missing-segment in seg-000000.jsonl, record 0
  the segment is missing, but later ones are there
damaged: wrong-sequence in seg-000001.jsonl, record 65536, line 1
  the line is record 0: it was here before, or is out of order
not intact: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# short-segment
damaged: short-segment in seg-000000.jsonl, record 6, line 6
  the segment ends after 6 of 65536 records, but is not the last
not intact: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# unexpected-file
damaged: unexpected-file in seg-0.jsonl
  a name like a segment's that no segment has
the links are intact: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint covers these records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
");
}
