//! The log on real files, with real processes that are really killed.

mod damage;
mod processes;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use cap_std::fs::Dir;
use portcullis::gateway::{AuditLog, LogError};
use portcullis_audit::{
    AuditRecord, Chain, Directory, Draft, Hash, Kind, Prepared, Reader, Receipt, Report, Segment,
    Verifier,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::common::example;

/// A state directory of a log alone.
struct State(TempDir);

impl State {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn dir(&self) -> Dir {
        Dir::from_std_file(std::fs::File::open(self.0.path()).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn segment(&self) -> PathBuf {
        self.path("audit/seg-000000.jsonl")
    }

    fn open(&self) -> AuditLog {
        AuditLog::open(&self.dir()).unwrap()
    }

    fn verify(&self, receipts: &[Receipt]) -> Report {
        let source = Directory::new(self.path("audit"));
        let verifier = receipts
            .iter()
            .fold(Verifier::new(&source), |verifier, head| verifier.expect(head.seq, head.leaf));
        verifier.run().unwrap()
    }

    #[track_caller]
    fn whole(&self, receipts: &[Receipt]) -> Report {
        let report = self.verify(receipts);
        assert!(report.is_valid(), "{:#?}", report.damages);
        report
    }

    fn records(&self) -> Vec<AuditRecord> {
        let source = Directory::new(self.path("audit"));
        let mut reader = Reader::new(&source, 0);
        let mut records = Vec::new();
        while let Some(entry) = reader.next().unwrap() {
            records.push(entry.record().unwrap());
        }
        records
    }

    fn locks(&self) -> usize {
        let names = std::fs::read_dir(self.path("gateways")).unwrap();
        names.filter(|name| name.as_ref().unwrap().path().extension().is_some()).count()
    }

    /// A log of `count` records made without a log.
    fn filled(count: u64) -> Self {
        let state = Self::new();
        std::fs::create_dir(state.path("audit")).unwrap();
        let mut chain = Chain::new();
        let mut segments: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let record = Prepared::new(Kind::Decision, &draft("filled"), [7; 16]).unwrap();
        for seq in 0..count {
            let lines = segments.entry(Segment::of(seq).0).or_default();
            chain.append(&record, "2026-11-21T08:00:00.000000Z", lines);
        }
        for (segment, lines) in segments {
            std::fs::write(state.path(&format!("audit/{}", Segment(segment))), lines).unwrap();
        }
        state
    }
}

fn draft(path: &str) -> Draft {
    Draft {
        op: Some("write".to_owned()),
        path: Some(path.to_owned()),
        decision: Some("allow".to_owned()),
        ..Draft::default()
    }
}

fn ok() -> Draft {
    Draft { result: Some("ok".to_owned()), ..Draft::default() }
}

#[test]
fn grants_come_with_receipts_of_what_is_in_the_log() {
    let state = State::new();
    let audit_log = state.open();
    let start = audit_log.note(Kind::Start, Draft::default(), true).unwrap();
    let read = audit_log.note(Kind::Decision, draft("a"), false).unwrap();
    assert!(start.durable && !read.durable);
    let intent = audit_log.note(Kind::Intent, draft("b"), true).unwrap();
    assert!(intent.durable);
    let outcome = audit_log.complete(&intent, ok()).unwrap();
    assert_eq!(audit_log.complete(&intent, ok()), Err(LogError::NoIntent(2)));
    assert_eq!(audit_log.complete(&start, ok()), Err(LogError::NoIntent(0)));
    let boot = audit_log.boot().to_owned();
    assert_eq!(state.locks(), 1);
    audit_log.close(Draft::default()).unwrap();
    assert_eq!(state.locks(), 0);

    let report = state.whole(&[start, read, intent, outcome]);
    assert_eq!(report.warnings, []);
    let records = state.records();
    let kinds: Vec<_> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["start", "decision", "intent", "outcome", "stop"]);
    assert!(records.iter().all(|record| record.draft.boot.as_ref() == Some(&boot)));
    assert_eq!(records[3].draft.of, Some(2));
    for file in ["audit/seg-000000.jsonl", "audit/lock"] {
        assert_eq!(state.path(file).metadata().unwrap().mode() & 0o7777, 0o600, "{file}");
    }
    for directory in ["audit", "gateways"] {
        assert_eq!(state.path(directory).metadata().unwrap().mode() & 0o7777, 0o700);
    }
}

#[test]
fn threads_of_several_gateways_share_one_chain() {
    let state = State::new();
    let gateways: Vec<_> = (0..3).map(|_| state.open()).collect();
    let receipts = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for gateway in &gateways {
            for thread in 0..8 {
                let receipts = &receipts;
                scope.spawn(move || {
                    for turn in 0..25 {
                        let receipt = if (thread + turn) % 3 == 0 {
                            gateway.note(Kind::Decision, draft("read"), false).unwrap()
                        } else {
                            let intent = gateway.note(Kind::Intent, draft("write"), true).unwrap();
                            assert!(intent.durable);
                            gateway.complete(&intent, ok()).unwrap();
                            intent
                        };
                        receipts.lock().unwrap().push(receipt);
                    }
                });
            }
        }
    });
    let receipts = receipts.into_inner().unwrap();
    assert_eq!(receipts.len(), 600);
    let report = state.whole(&receipts);
    assert_eq!(report.warnings, []);
    assert_eq!(report.records, 600 + report.kinds["outcome"]);
    for gateway in gateways {
        gateway.close(Draft::default()).unwrap();
    }
    state.whole(&receipts);
}

#[test]
fn gateways_go_on_together_in_the_next_segment() {
    let state = State::filled(65_530);
    let (one, other) = (state.open(), state.open());
    let mut receipts = Vec::new();
    for turn in 0..6 {
        receipts.push(one.note(Kind::Decision, draft("one"), false).unwrap());
        let intent = other.note(Kind::Intent, draft("other"), true).unwrap();
        receipts.push(other.complete(&intent, ok()).unwrap());
        assert_eq!(receipts.last().unwrap().seq, 65_530 + 3 * turn + 2);
    }
    // A writer that opens at the start of the new segment, and a batch over the
    // end.
    let third = state.open();
    receipts.push(third.note(Kind::Decision, draft("third"), false).unwrap());
    let report = state.whole(&receipts);
    assert_eq!((report.segments, report.records), (2, 65_549));
}

#[test]
fn a_gateway_that_died_between_two_segments_leaves_no_damage() {
    let state = State::filled(65_536);
    std::fs::write(state.path("audit/seg-000001.jsonl"), b"").unwrap();
    let receipt = state.open().note(Kind::Decision, draft("first"), false).unwrap();
    assert_eq!(receipt.seq, 65_536);
    state.whole(&[receipt]);

    let state = State::filled(65_536);
    std::fs::write(state.path("audit/seg-000001.jsonl"), b"{\"v\":1,").unwrap();
    let receipt = state.open().note(Kind::Decision, draft("second"), false).unwrap();
    assert_eq!(receipt.seq, 65_537, "after the record of the torn line");
    state.whole(&[receipt]);
}

/// A directory of hard links has the same lock and the same open segment; the
/// next segment would be made where no reader looks for it.
#[test]
fn a_directory_of_links_in_the_place_of_the_log_gets_no_new_segment() {
    let state = State::filled(65_535);
    let audit_log = state.open();
    std::fs::rename(state.path("audit"), state.path("old")).unwrap();
    std::fs::create_dir(state.path("audit")).unwrap();
    for name in ["lock", "seg-000000.jsonl"] {
        std::fs::hard_link(state.path("old").join(name), state.path("audit").join(name)).unwrap();
    }
    audit_log.note(Kind::Decision, draft("the last of the segment"), false).unwrap();
    let error = audit_log.note(Kind::Decision, draft("the first of the next"), false).unwrap_err();
    assert!(error.to_string().contains("replaced while in use"), "{error}");
    assert!(!state.path("old/seg-000001.jsonl").exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The log continues intact after any bytes behind the last newline.
    #[test]
    fn any_tail_without_a_newline_is_set_aside(
        records in 0_u64..4,
        tail in proptest::collection::vec(any::<u8>().prop_filter("newline", |b| *b != b'\n'), 1..300),
    ) {
        let state = State::filled(records);
        append_new(&state.segment(), &tail);
        let receipt = state.open().note(Kind::Decision, draft("after"), false).unwrap();
        prop_assert_eq!(receipt.seq, records + 1);
        state.whole(&[receipt]);
    }

    /// Neither the log nor the verifier panics after any change of a byte, and
    /// the log appends only where the verifier reports it as intact, or as
    /// damaged before the end that is read on opening.
    #[test]
    fn any_changed_byte_is_refused_or_repaired(at in 0_usize..1_000_000, flip in 1_u8..) {
        let state = State::filled(8);
        let length = state.segment().metadata().unwrap().len() as usize;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(state.segment()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, (at % length) as u64).unwrap();
        file.write_all_at(&[byte[0] ^ flip], (at % length) as u64).unwrap();
        let before = state.verify(&[]);
        let opened = AuditLog::open(&state.dir());
        // The window at the end covers this small log, so both agree, but that
        // a torn tail is repaired.
        let torn = before.damages.first().is_some_and(|damage| damage.kind.as_str() == "torn-tail");
        prop_assert_eq!(opened.is_ok(), before.is_valid() || torn);
        if opened.is_ok() {
            state.whole(&[]);
        }
    }
}

fn append_new(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap()
        .write_all(bytes)
        .unwrap();
}
