//! Attacks on a log by someone who has its disk, and how they are detected: a test for each row of
//! the table in FORMAT.md, section 10.

use portcullis_audit::{
    Checkpoint, Draft, Hash, Kind, Note, PublicKey, Report, SEGMENT_RECORDS, Verifier, tree,
};

use crate::support::{Log, Memory, key, of_lines};

const SEGMENT: &str = "seg-000000.jsonl";

fn log() -> Log {
    Log::signed(1, "last")
}

fn verify(files: &Memory) -> Report {
    Verifier::new(files).run().unwrap()
}

/// Verifies with the public key from outside.
fn verify_with_key(files: &Memory) -> Report {
    Verifier::new(files).trust(vec![key(1).public()]).run().unwrap()
}

/// Verifies with a checkpoint from outside.
fn verify_with_head(files: &Memory, head: &Note) -> Report {
    let keys: Vec<PublicKey> = vec![key(1).public()];
    let _signed = head.verify(&keys).unwrap();
    let head = Checkpoint::of(head).unwrap();
    Verifier::new(files).expect_checkpoint(head).run().unwrap()
}

#[track_caller]
fn found(report: &Report, kind: &str) {
    let first = report.damages.first().map(|damage| damage.kind.as_str());
    assert_eq!(first, Some(kind), "{report:#?}");
}

#[track_caller]
fn hidden(report: &Report) {
    assert!(report.is_valid(), "{report:#?}");
}

/// Returns the same files with other lines.
fn with_lines(log: &Log, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Memory {
    let mut lines = log.lines();
    change(&mut lines);
    let mut files = log.files.clone();
    files.0.extend(of_lines(lines).0);
    files
}

/// Returns a log with the same records but one, with intact links.
fn rechained() -> Log {
    let mut other = Log::default();
    other.start(&key(1));
    other.read("OTHER.md");
    other.write("src/main.rs");
    for path in ["a", "b", "c", "last"] {
        other.read(path);
    }
    other
}

/// Returns the checkpoints of `log` with the records of `other`.
fn under_checkpoints_of(log: &Log, other: &Log) -> Memory {
    let mut files = log.files.clone();
    files.0.insert(SEGMENT.to_owned(), other.files.0[SEGMENT].clone());
    files
}

#[test]
fn an_honest_log_is_whole_and_says_what_was_signed() {
    let report = verify(&log().files);
    hidden(&report);
    assert_eq!((report.signed.checkpoints, report.signed.records), (2, 7));
    assert_eq!(report.signed.key, Some(key(1).public().to_string()));
    assert_eq!(report.warnings, []);
    hidden(&verify_with_key(&log().files));
    hidden(&verify_with_head(&log().files, &log().head(7, &key(1))));
}

#[test]
fn edit() {
    let edited = |at: usize| {
        with_lines(&log(), |lines| {
            let text = String::from_utf8(lines[at].clone()).unwrap();
            lines[at] = text.replace("allow", "denyy").into_bytes();
        })
    };
    found(&verify(&edited(1)), "broken-link");
    // The last record that a checkpoint covers is here the last of the log.
    let mut cut = edited(6);
    let end =
        cut.0[SEGMENT].iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(6).unwrap().0;
    cut.0.get_mut(SEGMENT).unwrap().truncate(end + 1);
    found(&verify(&cut), "wrong-root");
    // After the last checkpoint only a receipt shows it.
    hidden(&verify(&edited(7)));
    let receipt = log().receipts[7].clone();
    let report = Verifier::new(&edited(7)).expect(receipt.seq, receipt.leaf).run().unwrap();
    found(&report, "wrong-head");
}

#[test]
fn delete() {
    found(&verify(&with_lines(&log(), |lines| drop(lines.remove(4)))), "wrong-sequence");
}

#[test]
fn insert() {
    found(
        &verify(&with_lines(&log(), |lines| lines.insert(4, lines[4].clone()))),
        "wrong-sequence",
    );
}

#[test]
fn reorder() {
    found(&verify(&with_lines(&log(), |lines| lines.swap(4, 5))), "wrong-sequence");
}

#[test]
fn splice() {
    let other = Log::signed(1, "last");
    let mut other = Log { salt: 9, ..other };
    other.read("x");
    let mut foreign = Log { salt: 9, ..Log::default() };
    foreign.start(&key(1));
    for _ in 0..7 {
        foreign.read("x");
    }
    let files = with_lines(&log(), |lines| lines[4..].clone_from_slice(&foreign.lines()[4..]));
    found(&verify(&files), "broken-link");
}

/// Forges segments 1 and later, without what preceded them, with a record that segment 0 was
/// pruned.
fn forged_pruned(root: Hash) -> Log {
    let mut log = Log::default();
    for _ in 0..SEGMENT_RECORDS {
        log.read("x");
    }
    log.files.0.clear();
    let facts = [("segments".to_owned(), 2.into())];
    log.push(Kind::Pruned, Draft { facts: Some(facts.into()), ..Draft::default() });
    log.read("invented");
    log.files.0.insert("roots".to_owned(), format!("{root}\n").into_bytes());
    log
}

/// Returns the log before a prune of segment 0, and the same log after it.
fn pruned() -> (Log, Log) {
    let mut log = Log::default();
    log.start(&key(1));
    for _ in 1..SEGMENT_RECORDS {
        log.read("x");
    }
    log.sign(&key(1));
    let before = Log { files: log.files.clone(), receipts: log.receipts.clone(), ..Log::default() };
    let leaves: Vec<Hash> = log.receipts.iter().map(|receipt| receipt.leaf).collect();
    let (root, head) = (tree::root_of(&leaves), log.receipts.last().unwrap().leaf);
    log.files.0.remove(SEGMENT);
    let facts = [("segments".to_owned(), 1.into()), ("head".to_owned(), head.to_string().into())];
    log.push(Kind::Pruned, Draft { facts: Some(facts.into()), ..Draft::default() });
    log.files.0.insert("roots".to_owned(), format!("{root}\n").into_bytes());
    log.sign(&key(1));
    (before, log)
}

#[test]
fn a_checkpoint_at_the_edge_of_what_was_pruned_hides_no_later_one() {
    let (_, log) = pruned();
    let report = verify_with_key(&log.files);
    hidden(&report);
    assert_eq!((report.signed.checkpoints, report.warnings.len()), (2, 0), "{report:#?}");
    // All remaining records are written anew, and the newest checkpoint is removed.
    let mut forged = log.files.clone();
    let segment = forged.0.get_mut("seg-000001.jsonl").unwrap();
    let text = String::from_utf8(segment.clone()).unwrap();
    *segment = text.replacen("\"nonce\":\"0000", "\"nonce\":\"1111", 1).into_bytes();
    forged.0.remove("checkpoint");
    found(&verify_with_key(&forged), "wrong-root");
    // The checkpoint at the boundary is checked against the stored roots.
    let mut forged = log.files;
    forged.0.insert("roots".to_owned(), format!("{}\n", Hash::of(b"other")).into_bytes());
    let first = verify_with_key(&forged).damages.remove(0);
    assert_eq!((first.kind.as_str(), first.segment.as_str()), ("wrong-root", "checkpoints/65536"));
}

#[test]
fn put_a_checkpoint_that_is_none_before_the_kept_ones() {
    let mut files = under_checkpoints_of(&log(), &rechained());
    files.0.remove("checkpoint");
    files.0.insert("checkpoints/0".to_owned(), Vec::new());
    let report = verify_with_key(&files);
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind.as_str()).collect();
    assert_eq!(kinds, ["bad-checkpoint", "wrong-root", "wrong-root"]);
}

#[test]
fn write_a_log_of_which_nothing_is_signed() {
    let mut files = log().files;
    files.0.retain(|name, _| !name.starts_with("checkpoint"));
    found(&verify_with_key(&files), "missing-checkpoint");
    // Records without a key do not change that.
    found(&verify_with_key(&Log::six().files), "missing-checkpoint");
    hidden(&verify(&Log::six().files));
    assert_eq!(verify(&Log::six().files).warnings, []);
    // File names alone are not checkpoints.
    let mut empty = Memory::default();
    let report = verify_with_key(&empty);
    hidden(&report);
    assert_eq!(report.warnings[0].kind.as_str(), "missing-checkpoint");
    empty.0.extend(Log::six().files.0);
    empty.0.insert("checkpoints/14".to_owned(), log().files.0["checkpoint"].clone());
    assert!(!verify_with_key(&empty).is_valid());
}

#[test]
fn write_a_log_that_says_it_was_pruned() {
    let honest = log();
    let forged = forged_pruned(Hash::of(b"invented"));
    let report = verify_with_head(&forged.files, &honest.head(7, &key(1)));
    let warning = &report.warnings[0];
    assert_eq!((warning.kind.as_str(), warning.seq), ("pruned-head", Some(6)), "{report:#?}");
    // If a key is given, a log without signatures is invalid.
    let checkpoint = Checkpoint::of(&honest.head(7, &key(1))).unwrap();
    let verifier = Verifier::new(&forged.files).trust(vec![key(1).public()]);
    found(&verifier.expect_checkpoint(checkpoint.clone()).run().unwrap(), "missing-checkpoint");
    // Receipts are not matched; two that differ are damage. The same holds for checkpoints.
    let receipts = &honest.receipts;
    let verifier = Verifier::new(&forged.files).expect(1, receipts[1].leaf);
    let report = verifier.run().unwrap();
    hidden(&report);
    assert!(report.matched.is_empty() && report.warnings[0].kind.as_str() == "pruned-head");
    let verifier = Verifier::new(&forged.files).expect(1, receipts[1].leaf);
    found(&verifier.expect(1, receipts[2].leaf).run().unwrap(), "wrong-head");
    let other = Checkpoint { root: Hash::of(b"fork"), ..checkpoint.clone() };
    let verifier = Verifier::new(&forged.files).expect_checkpoint(checkpoint);
    found(&verifier.expect_checkpoint(other).run().unwrap(), "wrong-head");
}

#[test]
fn a_checkpoint_from_outside_is_held_against_the_kept_roots() {
    let (before, log) = pruned();
    let head = before.head(65_536, &key(1));
    let report = verify_with_head(&log.files, &head);
    hidden(&report);
    assert_eq!(report.warnings, []);
    let fork = Checkpoint { root: Hash::of(b"fork"), ..Checkpoint::of(&head).unwrap() };
    let report = Verifier::new(&log.files).expect_checkpoint(fork).run().unwrap();
    found(&report, "wrong-head");
}

#[test]
fn of_two_receipts_that_differ_one_is_wrong() {
    let log = Log::six();
    let (right, wrong) = (log.receipts[5].leaf, log.receipts[4].leaf);
    for leaves in [[right, wrong], [wrong, right]] {
        let verifier = Verifier::new(&log.files).expect(5, leaves[0]).expect(5, leaves[1]);
        let report = verifier.expect(4, wrong).run().unwrap();
        found(&report, "wrong-head");
        assert_eq!(report.matched, [4].into());
    }
}

#[test]
fn truncate_before_the_last_checkpoint() {
    found(&verify(&with_lines(&log(), |lines| lines.truncate(6))), "missing-head");
}

#[test]
fn truncate_after_the_last_checkpoint() {
    let files = with_lines(&log(), |lines| lines.truncate(7));
    hidden(&verify(&files));
    let receipt = log().receipts[7].clone();
    let report = Verifier::new(&files).expect(receipt.seq, receipt.leaf).run().unwrap();
    found(&report, "missing-head");
}

#[test]
fn roll_back_log_and_checkpoints_together() {
    let mut files = with_lines(&log(), |lines| lines.truncate(5));
    let old = files.0["checkpoints/4"].clone();
    files.0.insert("checkpoint".to_owned(), old);
    files.0.remove("checkpoints/7");
    hidden(&verify(&files));
    hidden(&verify_with_key(&files));
    found(&verify_with_head(&files, &log().head(7, &key(1))), "missing-head");
}

#[test]
fn delete_a_segment() {
    let mut files = log().files;
    let segment = files.0.remove(SEGMENT).unwrap();
    files.0.insert("seg-000001.jsonl".to_owned(), segment);
    found(&verify(&files), "missing-segment");
    // Roots alone do not account for pruned segments.
    files.0.insert("roots".to_owned(), format!("{}\n", log().receipts[0].leaf).into_bytes());
    let report = verify(&files);
    assert!(report.damages.iter().any(|d| d.kind.as_str() == "missing-segment"), "{report:#?}");
}

#[test]
fn replace_the_key() {
    let mut forged = log();
    for name in ["checkpoint", "checkpoints/4", "checkpoints/7"] {
        forged.files.0.remove(name);
    }
    forged.sign(&key(2));
    found(&verify(&forged.files), "wrong-key");
    found(&verify_with_key(&forged.files), "wrong-key");
    // A new key beside checkpoints of the old one.
    let mut files = log().files;
    files.0.insert("key.vkey".to_owned(), format!("{}\n", key(2).public()).into_bytes());
    found(&verify(&files), "bad-checkpoint");
}

#[test]
fn rechain_everything() {
    let files = under_checkpoints_of(&log(), &rechained());
    found(&verify(&files), "wrong-root");
}

#[test]
fn rechain_everything_and_sign_with_another_key() {
    let mut other = Log::default();
    other.start(&key(2));
    other.read("OTHER.md");
    other.sign(&key(2));
    hidden(&verify(&other.files));
    found(&verify_with_key(&other.files), "wrong-key");
}

#[test]
fn rechain_everything_and_sign_with_the_stolen_key() {
    let mut other = rechained();
    other.sign(&key(1));
    hidden(&verify(&other.files));
    hidden(&verify_with_key(&other.files));
    found(&verify_with_head(&other.files, &log().head(7, &key(1))), "wrong-head");
    let receipt = log().receipts[1].clone();
    let report = Verifier::new(&other.files).expect(receipt.seq, receipt.leaf).run().unwrap();
    found(&report, "wrong-head");
}

#[test]
fn change_or_remove_checkpoints() {
    let mut files = log().files;
    let note = String::from_utf8(files.0["checkpoint"].clone()).unwrap();
    files.0.insert("checkpoint".to_owned(), note.replacen("\n7\n", "\n6\n", 1).into_bytes());
    found(&verify(&files), "bad-checkpoint");
    let mut files = log().files;
    files.0.insert("checkpoints/4".to_owned(), note.into_bytes());
    found(&verify(&files), "bad-checkpoint");
    let mut files = log().files;
    files.0.retain(|name, _| !name.starts_with("checkpoint"));
    let report = verify(&files);
    hidden(&report);
    assert_eq!(report.warnings[0].kind.as_str(), "missing-checkpoint");
    found(&verify_with_key(&files), "missing-checkpoint");
    // A gateway that stopped in order left one.
    let mut stopped = log();
    stopped.push(Kind::Stop, Draft::default());
    stopped.read("later");
    stopped.files.0.retain(|name, _| !name.starts_with("checkpoint"));
    found(&verify(&stopped.files), "missing-checkpoint");
    let recovered = [("what".to_owned(), "unsigned".into())];
    stopped.push(Kind::Recovered, Draft { facts: Some(recovered.into()), ..Draft::default() });
    hidden(&verify(&stopped.files));
    found(&verify_with_key(&stopped.files), "missing-checkpoint");
    found(
        &verify_with_head(&under_checkpoints_of(&log(), &rechained()), &log().head(7, &key(1))),
        "wrong-root",
    );
}

#[test]
fn remove_the_public_key() {
    let mut files = log().files;
    files.0.remove("key.vkey");
    found(&verify(&files), "missing-key");
    hidden(&verify_with_key(&files));
    files.0.retain(|name, _| !name.starts_with("checkpoint"));
    found(&verify(&files), "missing-key");
}

#[test]
fn a_head_from_outside_of_a_later_log() {
    let mut later = log();
    later.push(Kind::Stop, Draft::default());
    let head = later.head(9, &key(1));
    found(&verify_with_head(&log().files, &head), "missing-head");
}
