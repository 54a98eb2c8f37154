//! `portcullis audit` as a person and a program meet it.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
};

use portcullis_audit::{Chain, Draft, Kind, Prepared};
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

/// What a person sees of all vectors with this prefix; the exit code is 5.
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
fn verify_says_that_a_log_is_whole() {
    let world = World::new();
    let mut text = String::new();
    for name in names("good-") {
        let done = verify(&world, &name, &[]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{name}");
        write!(text, "# {name}\n{}", done.text()).unwrap();
    }
    insta::assert_snapshot!(text, @r#"
# good-all-fields
whole: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:78c31e3d255934e2fc3a5bd85852e2ff1fc4d701116e5f66382e6abbce4eaf2b
signed: nothing; no checkpoint vouches for these records
# good-clock-back
warning: time-went-back: record 6 is of 2026-11-21T07:59:59.999999Z, the one before it of 2026-11-21T08:00:05.000000Z
whole: 7 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T07:59:59.999999Z
head: 6:fd6dd3fa005addf92bd8034c51759a5b30913f280c7437d6ef8b428da1410958
signed: nothing; no checkpoint vouches for these records
# good-cosigned
whole: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the largest of 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, of the log's own directory (--key takes one from outside)
# good-empty
whole: no records yet
# good-future
warning: unknown-kind: record 5 is of a kind that this version does not know
warning: unknown-file: "notes.txt" does not belong to the log
warning: unchecked-checkpoint: there are checkpoints, but no public key to check them with
whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:169615994f72fa8640d6513e7de1af4ce876829518f8a3ec6c83c663c2e4744f
signed: nothing; no checkpoint vouches for these records
# good-last-changed
whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796
signed: nothing; no checkpoint vouches for these records
# good-missing-checkpoint
warning: missing-checkpoint: records name a key for checkpoints, but no right checkpoint is there: a gate died before its first one, or they were removed
whole: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: nothing; no checkpoint vouches for these records
# good-receipts
whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint vouches for these records
# good-recovered
whole: 4 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:03.000000Z
head: 3:8d0a050eb645c6684eee7815598fc6cf939a4d73f6a322455ae5fa65c7ddf602
signed: nothing; no checkpoint vouches for these records
# good-signed
whole: 8 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:07.000000Z
head: 7:a4e3811bef2f0f9c7a006c5e4a9a629e306d66607d1fd01d508cef6ff8501279
signed: 2 checkpoints by example.com/log-1, the largest of 7 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, of the log's own directory (--key takes one from outside)
# good-six
whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint vouches for these records
# good-spelling
whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8cf1e1cc02c374ebd8157e34e12cba59b51c6133cddf01bf2c3a13a72eca9fb0
signed: nothing; no checkpoint vouches for these records
# good-unanswered
warning: unanswered-intent: the intent 6 has no outcome: it is under way or needs recovery
whole: 7 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:06.000000Z
head: 6:89ac74a5ad2b2646a68e05002688a978fb1390b58d910713d14c16f88a404ece
signed: nothing; no checkpoint vouches for these records
"#);
}

#[test]
fn verify_names_broken_links() {
    insta::assert_snapshot!(seen("broken-link"), @r"
# broken-link-blank
damaged: broken-link in seg-000000.jsonl, record 2, line 3
  `prev` is not the hash of record 1: one of the two was changed
not whole: the chain breaks after 2 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# broken-link-changed
damaged: broken-link in seg-000000.jsonl, record 5, line 6
  `prev` is not the hash of record 4: one of the two was changed
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# broken-link-first
damaged: broken-link in seg-000000.jsonl, record 0, line 1
  `prev` of the first record is not zero
damaged: broken-link in seg-000000.jsonl, record 1, line 2
  `prev` is not the hash of record 0: one of the two was changed
not whole: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# broken-link-spliced
damaged: broken-link in seg-000000.jsonl, record 3, line 4
  `prev` is not the hash of record 2: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
");
}

#[test]
fn verify_names_wrong_sequences() {
    insta::assert_snapshot!(seen("wrong-sequence"), @r"
# wrong-sequence-headless
damaged: wrong-sequence in seg-000000.jsonl, record 0, line 1
  the line is record 1: records before it are missing
not whole: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# wrong-sequence-removed
damaged: wrong-sequence in seg-000000.jsonl, record 4, line 5
  the line is record 5: records before it are missing
not whole: the chain breaks after 4 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# wrong-sequence-repeated
damaged: wrong-sequence in seg-000000.jsonl, record 2, line 3
  the line is record 1: it was here before, or is out of order
not whole: the chain breaks after 2 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
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
not whole: the chain breaks after 1 record
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
");
}

#[test]
fn verify_names_what_a_receipt_shows() {
    insta::assert_snapshot!(seen("wrong-head") + &seen("missing-head"), @r"
# wrong-head-last-changed
damaged: wrong-head in seg-000000.jsonl, record 5, line 6
  the record's hash is 547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796, but the receipt says 8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
the links are whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:547216271fc0e1865a7364cb014f00863a5fb960a88dc0e3110ae794061ae796
signed: nothing; no checkpoint vouches for these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
# wrong-head-rewritten
damaged: wrong-head in seg-000000.jsonl, record 3, line 4
  the record's hash is fc89ac4f7291717a8956cd1702af22b0e1efdd55d5206d619c6d9fc02ce4f297, but the receipt says b8a5a2421f1e01ef1ddd26d4892d701c3491a6714ed92148a13fc45a7ffb2e07
the links are whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:c24ec8e3b92c40a763315e424d398779045bbc08e04662385f2739e1a1750052
signed: nothing; no checkpoint vouches for these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
# missing-head-checkpoint
damaged: missing-head in seg-000000.jsonl, record 6
  the log ends after 6 records, but a checkpoint is of 7
damaged: missing-head in seg-000000.jsonl, record 6
  the log ends after 6 records, but the newest checkpoint is of 7
the links are whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:7baeb062966183e51212974e3f9ad5dc8f4399958b3ad5fa2debf621438e5209
signed: 1 checkpoint by example.com/log-1, the largest of 4 records
key: example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c, of the log's own directory (--key takes one from outside)
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
# missing-head-cut
damaged: missing-head in seg-000000.jsonl, record 5
  the log ends after 4 records, but a receipt proves record 5
the links are whole: 4 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:03.000000Z
head: 3:b8a5a2421f1e01ef1ddd26d4892d701c3491a6714ed92148a13fc45a7ffb2e07
signed: nothing; no checkpoint vouches for these records
  help: the log is not the one that gave the receipt, or was rewritten since: compare it with a copy; a repair cannot bring records back
");
}

#[test]
fn verify_names_wrong_references() {
    insta::assert_snapshot!(seen("wrong-reference"), @r"
# wrong-reference-decision
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 1 is no earlier intent without an answer
not whole: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# wrong-reference-later
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 7 is no earlier intent without an answer
not whole: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# wrong-reference-twice
damaged: wrong-reference in seg-000000.jsonl, record 6, line 7
  record 2 is no earlier intent without an answer
not whole: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
");
}

#[test]
fn verify_names_torn_ends() {
    insta::assert_snapshot!(seen("torn-tail") + &seen("unterminated-line"), @r"
# torn-tail-middle
damaged: torn-tail in seg-000000.jsonl, record 5, line 6
  the log ends after 81 bytes of a line
not whole: the chain breaks after 5 records
  help: a gate or the machine died while it wrote; the next gate that starts sets the torn line aside and records that
# torn-tail-newline
damaged: torn-tail in seg-000000.jsonl, record 5, line 6
  the log ends after 180 bytes of a line
not whole: the chain breaks after 5 records
  help: a gate or the machine died while it wrote; the next gate that starts sets the torn line aside and records that
# torn-tail-zeros
damaged: torn-tail in seg-000000.jsonl, record 6, line 7
  the log ends after 64 bytes of a line
not whole: the chain breaks after 6 records
  help: a gate or the machine died while it wrote; the next gate that starts sets the torn line aside and records that
# unterminated-line
damaged: unterminated-line in seg-000000.jsonl, record 5, line 6
  the segment ends after 180 bytes of a line
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
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
not whole: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# short-segment
damaged: short-segment in seg-000000.jsonl, record 6, line 6
  the segment ends after 6 of 65536 records, but is not the last
not whole: the chain breaks after 6 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# unexpected-file
damaged: unexpected-file in seg-0.jsonl
  a name like a segment's that no segment has
the links are whole: 6 records in 1 segment, 2026-11-21T08:00:00.000000Z to 2026-11-21T08:00:05.000000Z
head: 5:8d63932fd646d6849d45140615669053fdfe64a106c2b22a6f0f5189448f18d9
signed: nothing; no checkpoint vouches for these records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
");
}

#[test]
fn verify_names_lines_that_are_no_records() {
    let text = seen("malformed-record") + &seen("duplicate-key") + &seen("unsupported-version");
    insta::assert_snapshot!(text, @r#"
# malformed-record-array
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not exactly one JSON object
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-blank
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-bom
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-crlf
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-empty
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not exactly one JSON object
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-float
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `seq` has a wrong type or form
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-json
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not valid JSON at byte 8
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-missing
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the field `nonce` is missing
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-null
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `path` has a wrong type or form
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-outcome
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `of` is missing
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-time
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `t` has a wrong type or form
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-two
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not valid JSON at byte 4
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-type
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `path` has a wrong type or form
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-upper
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `prev` has a wrong type or form
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# malformed-record-utf8
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not UTF-8
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not whole: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# duplicate-key
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "seq" stands twice in the line
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# duplicate-key-escaped
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "seq" stands twice in the line
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# duplicate-key-unknown
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "new" stands twice in the line
not whole: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gates can start again
# unsupported-version
damaged: unsupported-version in seg-000000.jsonl, record 5, line 6
  format version 2 is not supported
not whole: the chain breaks after 5 records
  help: a newer portcullis wrote the log: verify it with that one
"#);
}

/// A state directory with a log of these records.
fn world_with(records: &[(Kind, Draft)]) -> World {
    let world = World::new();
    let mut chain = Chain::new();
    let mut lines = Vec::new();
    for (seq, (kind, draft)) in records.iter().enumerate() {
        let record = Prepared::new(*kind, draft, [seq as u8; 16]).unwrap();
        let time = format!("2026-11-{:02}T08:00:00.000000Z", seq + 1);
        chain.append(&record, &time, &mut lines);
    }
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit).unwrap();
    set_mode(&world.state(), 0o700);
    std::fs::write(audit.join("seg-000000.jsonl"), lines).unwrap();
    world
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap();
}

fn request(agent: &str, session: &str, op: &str, path: &str, decision: &str) -> Draft {
    let text = |text: &str| Some(text.to_owned());
    Draft {
        agent: text(agent),
        session: text(session),
        op: text(op),
        path: text(path),
        decision: text(decision),
        rule: text("allowedPaths.write"),
        ..Draft::default()
    }
}

fn several() -> World {
    let outcome = Draft {
        of: Some(2),
        result: Some("ok".to_owned()),
        ..request("b", "s2", "write", "src/a.rs", "allow")
    };
    world_with(&[
        (Kind::Start, Draft { agent: Some("b".to_owned()), ..Draft::default() }),
        (Kind::Decision, request("a", "s1", "read", "README.md", "allow")),
        (Kind::Intent, request("b", "s2", "write", "src/a.rs", "allow")),
        (Kind::Outcome, outcome),
        (Kind::Decision, request("a", "s1", "read", "a\nb\u{1b}[2J.env", "deny")),
        (
            Kind::Intent,
            Draft { to: Some("src/b.rs".to_owned()), ..request("a", "s3", "rename", "x", "allow") },
        ),
    ])
}

#[test]
fn show_prints_a_line_for_each_record() {
    let world = several();
    let done = world.run(&["audit", "show"]).ok();
    insta::assert_snapshot!(done.text(), @r"
0  2026-11-01 08:00:00  start      -      -        b             -
1  2026-11-02 08:00:00  decision   allow  read     a             README.md  rule=allowedPaths.write
2  2026-11-03 08:00:00  intent     allow  write    b             src/a.rs  rule=allowedPaths.write
3  2026-11-04 08:00:00  outcome    ok     write    b             src/a.rs  rule=allowedPaths.write  of=2
4  2026-11-05 08:00:00  decision   deny   read     a             a\nb\u{1b}[2J.env  rule=allowedPaths.write
5  2026-11-06 08:00:00  intent     allow  rename   a             x  to=src/b.rs  rule=allowedPaths.write
");
}

#[test]
fn show_filters() {
    let world = several();
    let shown = |args: &[&str]| -> String {
        let done = world.run(&[&["audit", "show", "--json"], args].concat()).ok();
        let seqs: Vec<_> = done
            .text()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].to_string())
            .collect();
        seqs.join(" ")
    };
    assert_eq!(shown(&[]), "0 1 2 3 4 5");
    assert_eq!(shown(&["--agent", "a"]), "1 4 5");
    assert_eq!(shown(&["--session", "s2"]), "2 3");
    assert_eq!(shown(&["--op", "read", "--op", "rename"]), "1 4 5");
    assert_eq!(shown(&["--path", "src"]), "2 3 5");
    assert_eq!(shown(&["--path", "README.md", "--path", "x"]), "1 5");
    assert_eq!(shown(&["--decision", "deny"]), "4");
    assert_eq!(shown(&["--kind", "intent"]), "2 5");
    assert_eq!(shown(&["--since", "2026-11-04"]), "3 4 5");
    assert_eq!(shown(&["-n", "2"]), "4 5");
    assert_eq!(shown(&["--last", "0"]), "");
    assert_eq!(shown(&["--last", "99"]), "0 1 2 3 4 5");
    assert_eq!(shown(&["--last", "1", "--agent", "b"]), "3");
    assert_eq!(shown(&["--since", "1h"]), "", "the log is from the past");
    let done = world.run(&["audit", "show", "--since", "yesterday"]);
    assert_eq!(done.code, 2);
}

#[test]
fn show_last_reads_over_the_end_of_a_segment() {
    let world = World::new();
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit).unwrap();
    let mut chain = Chain::new();
    let record = Prepared::new(Kind::Decision, &Draft::default(), [0; 16]).unwrap();
    for (name, count) in [("seg-000000.jsonl", 65_536), ("seg-000001.jsonl", 2)] {
        let mut lines = Vec::new();
        for _ in 0..count {
            chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
        }
        std::fs::write(audit.join(name), lines).unwrap();
    }
    let done = world.run(&["audit", "show", "-n", "3"]).ok();
    let seqs: Vec<_> = done.text().split_whitespace().filter(|word| word.len() == 5).collect();
    assert_eq!(seqs, ["65535", "65536", "65537"]);
}

#[test]
fn show_follows_a_log_that_grows() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let mut child = world
        .command(&["audit", "show", "--follow", "--json", "--kind", "outcome"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["path"], "a.txt");
    for name in ["b.txt", "c.txt"] {
        world.write(name, "new").ok();
        assert_eq!(next()["path"], name);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn show_says_that_a_line_is_no_record() {
    let world = several();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("{\"v\":1,\"seq\":1", "{\"v\":1,\"v\":1", 1)).unwrap();
    let done = world.run(&["audit", "show"]);
    assert_eq!((done.code, done.text().lines().count()), (5, 5));
    insta::assert_snapshot!(done.stderr, @r"
portcullis: 1 lines of the log are no records
  help: `portcullis audit verify` says what is wrong
");
}

#[test]
fn a_removed_record_hides_no_other() {
    let world = several();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    let mut lines: Vec<_> = text.split_inclusive('\n').collect();
    lines.remove(2);
    std::fs::write(&segment, lines.concat()).unwrap();
    let out = world.base().join("out");
    let out = out.to_str().unwrap();
    for args in [&["show", "--json"][..], &["query", "--json"]] {
        let done = world.run(&[&["audit"], args].concat());
        assert_eq!(
            (done.code, done.text().lines().count()),
            (5, lines.len()),
            "{args:?}: {done:?}"
        );
    }
    let report = format!("{out}.json");
    assert_eq!(world.run(&["audit", "report", "-o", &report]).code, 5);
    let csv = format!("{out}.csv");
    assert_eq!(world.run(&["audit", "export", "--format", "csv", "-o", &csv]).code, 5);
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), lines.len() + 1);
    let query = world.run(&["audit", "query"]);
    assert!(query.stderr.contains("line 3 of seg-000000.jsonl is record 3, not 2"), "{query:?}");
    assert!(!query.stderr.contains("line 4 of"), "{query:?}");
}

#[test]
fn a_segment_with_the_largest_number_is_damage_and_nothing_more() {
    let world = several();
    let audit = world.state().join("audit");
    let largest = audit.join(format!("seg-{}.jsonl", u64::MAX));
    std::fs::rename(audit.join("seg-000000.jsonl"), largest).unwrap();
    let out = world.base().join("out");
    let out = out.to_str().unwrap();
    let (report, csv) = (format!("{out}.json"), format!("{out}.csv"));
    let commands: [&[&str]; 5] = [
        &["query"],
        &["show"],
        &["session"],
        &["report", "-o", &report],
        &["export", "--format", "csv", "-o", &csv],
    ];
    for args in commands {
        let done = world.run(&[&["audit"], args].concat());
        // No segment has such a number, and without segments there is little to show.
        assert!(matches!(done.code, 0 | 5), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked"), "{args:?}: {done:?}");
    }
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = several();
    let mut child = world
        .command(&["audit", "show", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut chain = Chain::after(
        std::fs::read(world.state().join("audit/seg-000000.jsonl"))
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap()
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap(),
    )
    .unwrap();
    let record = Prepared::new(Kind::Stop, &Draft::default(), [9; 16]).unwrap();
    let mut bytes = Vec::new();
    chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut bytes);
    let segment = world.state().join("audit/seg-000000.jsonl");
    std::fs::OpenOptions::new().append(true).open(segment).unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn where_there_is_no_log_every_command_says_so_and_makes_nothing() {
    let world = World::new();
    let out = world.base().join("out.json");
    let out = out.to_str().unwrap();
    let commands: [&[&str]; 15] = [
        &["verify"],
        &["show"],
        &["recover", "--yes"],
        &["key"],
        &["key", "--new"],
        &["checkpoint"],
        &["compress"],
        &["prune", "--yes", "--before", "2026-01-01"],
        &["query"],
        &["blame", "a"],
        &["session"],
        &["prove", "1"],
        &["report", "-o", out],
        &["bundle", "-o", out],
        &["export", "--format", "csv", "-o", out],
    ];
    for command in commands {
        let done = world.run(&[&["audit"], command].concat());
        assert_eq!(done.code, 1, "{command:?}");
        let shown = done.stderr.replace(world.base().to_str().unwrap(), "BASE");
        assert_eq!(
            shown,
            "portcullis: there is no audit log at `BASE/state/audit`\n  help: name the workspace \
             with --workspace DIR, or the state directory with --state DIR\n"
        );
        assert!(!world.state().exists() && !world.base().join("out.json").exists(), "{command:?}");
    }
    let approve = world.run(&["approve"]);
    assert_eq!(approve.code, 0);
    assert!(approve.stderr.contains("no gate has ever run"), "{approve:?}");
}

#[test]
fn recover_says_what_it_will_do_and_needs_consent() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    world.write("b.txt", "b").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let before = std::fs::read_to_string(&segment).unwrap();
    let damaged = before.replacen("a.txt", "z.txt", 1);
    std::fs::write(&segment, &damaged).unwrap();
    world.run(&["audit", "verify"]);

    let done = world.run(&["audit", "recover"]);
    assert_eq!(done.code, 1);
    insta::assert_snapshot!(done.stderr, @r"
portcullis: nothing was changed: nobody is there to agree
  help: give --yes to do it without asking
");
    assert_eq!(std::fs::read_to_string(&segment).unwrap(), damaged);

    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.text().contains("first damage: broken-link"), "{}", done.text());
    world.run(&["audit", "verify"]).ok();
    let last = world.records().pop().unwrap();
    assert_eq!(last["kind"], "recovered");
    let kept = world.state().join("audit").join(last["facts"]["file"].as_str().unwrap());
    assert!(damaged.ends_with(&std::fs::read_to_string(kept).unwrap()));
    world.write("c.txt", "c").ok();
    world.run(&["audit", "verify"]).ok();
    let done = world.run(&["audit", "recover"]).ok();
    assert_eq!(done.text(), "the log is whole: nothing to recover\n");
}

#[test]
fn a_gate_refuses_a_damaged_log_and_says_what_to_do() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text + "{}\n").unwrap();
    let done = world.write("b.txt", "b");
    assert_eq!(done.code, 1);
    insta::assert_snapshot!(done.stderr, @"portcullis: cannot open the audit log: the audit log is damaged in `seg-000000.jsonl`: the field `v` is missing; see `portcullis audit verify`, then `portcullis audit recover`");
    assert!(!world.path("b.txt").exists());
}

#[test]
fn a_torn_tail_needs_no_help() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(&segment).unwrap();
    file.write_all(b"{\"v\":1,\"se").unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.write("b.txt", "b").ok();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_tail_that_was_signed_is_not_torn_but_cut() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 7).unwrap();
    let refused = world.write("b.txt", "b");
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("its end was cut off"), "{refused:?}");
    assert!(!world.path("b.txt").exists());
}

/// Runs a command and gives the most memory that it had, in KiB.
fn peak_of(world: &World, args: &[&str]) -> (i32, u64) {
    let null = std::process::Stdio::null;
    let mut child = world.command(args).stdout(null()).stderr(null()).spawn().unwrap();
    let mut most = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).map(|n| n.parse().unwrap());
        most = most.max(kib.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code().unwrap(), most);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_line_of_a_hundred_megabytes_is_damage_and_nothing_more() {
    let world = World::new();
    world.file("a", "x");
    world.write("b", "1").ok();
    let records = world.records();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let whole = std::fs::read(&segment).unwrap();
    for end in ["\n", ""] {
        let mut log = std::fs::File::options().append(true).open(&segment).unwrap();
        for _ in 0..100 {
            std::io::Write::write_all(&mut log, &vec![b'x'; 1 << 20]).unwrap();
        }
        std::io::Write::write_all(&mut log, end.as_bytes()).unwrap();
        drop(log);
        for args in [&["audit", "verify"][..], &["audit", "query"], &["audit", "show"]] {
            let (code, peak) = peak_of(&world, args);
            assert!(code == 5, "{args:?} {end:?}: {code}");
            assert!(peak < 64 << 10, "{args:?}: {peak} KiB");
        }
        let named = world.run(&["audit", "verify"]);
        assert!(named.text().contains("damaged: "), "{named:?}");
        let found = world.run(&["audit", "query", "--json"]);
        assert_eq!(found.text().lines().count(), records.len(), "what can be read is");
        if end == "\n" {
            let refused = world.fs(&["read", "a"]);
            assert_eq!(refused.code, 1);
            assert!(refused.stderr.contains("`portcullis audit recover`"), "{refused:?}");
            world.run(&["audit", "recover", "--yes"]).ok();
        } else {
            // As after a crash: set aside by the next gate, or by the operator.
            if world.fs(&["read", "a"]).code != 0 {
                world.run(&["audit", "recover", "--yes"]).ok();
            }
        }
        assert!(std::fs::read(&segment).unwrap().starts_with(&whole), "no record is lost");
        world.run(&["audit", "verify"]).ok();
        world.fs(&["read", "a"]).ok();
        // The next round begins with what is there now.
        let quarantine = std::fs::read_dir(world.state().join("audit/quarantine")).unwrap();
        let kept: u64 = quarantine.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(kept >= 100 << 20, "nothing is thrown away: {kept}");
        if end == "\n" {
            std::fs::write(&segment, &whole).unwrap();
            std::fs::remove_dir_all(world.state().join("audit")).unwrap();
            std::fs::create_dir(world.state().join("audit")).unwrap();
            std::fs::write(&segment, &whole).unwrap();
        }
    }
}
