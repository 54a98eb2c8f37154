//! The ledger on real files, with real processes that are really killed.

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
use portcullis::ledger::{self, Error, Ledger};
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

    fn open(&self) -> Ledger {
        Ledger::open(&self.dir()).unwrap()
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
        let names = std::fs::read_dir(self.path("gates")).unwrap();
        names.filter(|name| name.as_ref().unwrap().path().extension().is_some()).count()
    }

    /// A log of `count` records made without a ledger.
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
    let ledger = state.open();
    let start = ledger.note(Kind::Start, Draft::default(), true).unwrap();
    let read = ledger.record(draft("a")).unwrap();
    assert!(start.durable && !read.receipt().durable);
    let intent = ledger.admit(draft("b")).unwrap().into_receipt();
    assert!(intent.durable);
    let outcome = ledger.complete(&intent, ok()).unwrap();
    assert_eq!(ledger.complete(&intent, ok()), Err(Error::NoIntent(2)));
    assert_eq!(ledger.complete(&start, ok()), Err(Error::NoIntent(0)));
    let boot = ledger.boot().to_owned();
    assert_eq!(state.locks(), 1);
    ledger.close(Draft::default()).unwrap();
    assert_eq!(state.locks(), 0);

    let report = state.whole(&[start, read.into_receipt(), intent, outcome]);
    assert_eq!(report.warnings, []);
    let records = state.records();
    let kinds: Vec<_> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["start", "decision", "intent", "outcome", "stop"]);
    assert!(records.iter().all(|record| record.draft.boot.as_ref() == Some(&boot)));
    assert_eq!(records[3].draft.of, Some(2));
    for file in ["audit/seg-000000.jsonl", "audit/lock"] {
        assert_eq!(state.path(file).metadata().unwrap().mode() & 0o7777, 0o600, "{file}");
    }
    for directory in ["audit", "gates"] {
        assert_eq!(state.path(directory).metadata().unwrap().mode() & 0o7777, 0o700);
    }
}

#[test]
fn threads_of_several_gates_share_one_chain() {
    let state = State::new();
    let gates: Vec<_> = (0..3).map(|_| state.open()).collect();
    let receipts = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for gate in &gates {
            for thread in 0..8 {
                let receipts = &receipts;
                scope.spawn(move || {
                    for turn in 0..25 {
                        let receipt = if (thread + turn) % 3 == 0 {
                            gate.record(draft("read")).unwrap().into_receipt()
                        } else {
                            let intent = gate.admit(draft("write")).unwrap().into_receipt();
                            assert!(intent.durable);
                            gate.complete(&intent, ok()).unwrap();
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
    for gate in gates {
        gate.close(Draft::default()).unwrap();
    }
    state.whole(&receipts);
}

#[test]
fn records_that_are_made_together_are_all_there_and_in_order() {
    for durable in [false, true] {
        // A segment becomes full among them.
        let state = State::filled(65_300);
        let mut ledger = state.open();
        if durable {
            ledger.make_all_durable();
        }
        let names: Vec<String> = (0..600).map(|number| format!("together/{number}")).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    ledger.record(draft("between")).unwrap().into_receipt();
                }
            });
            ledger.record_all(names.iter().map(|name| draft(name))).unwrap();
        });
        ledger.record_all(std::iter::empty()).unwrap();
        ledger.close(Draft::default()).unwrap();
        let report = state.whole(&[]);
        assert_eq!((report.segments, report.records), (2, 65_300 + 600 + 50 + 1));
        let paths = state.records().into_iter().filter_map(|record| record.draft.path);
        let together: Vec<String> = paths.filter(|path| path.starts_with("together/")).collect();
        assert_eq!(together, names);
    }
}

#[test]
fn gates_go_on_together_in_the_next_segment() {
    let state = State::filled(65_530);
    let (one, other) = (state.open(), state.open());
    let mut receipts = Vec::new();
    for turn in 0..6 {
        receipts.push(one.record(draft("one")).unwrap().into_receipt());
        let intent = other.admit(draft("other")).unwrap().into_receipt();
        receipts.push(other.complete(&intent, ok()).unwrap());
        assert_eq!(receipts.last().unwrap().seq, 65_530 + 3 * turn + 2);
    }
    // One that opens where the new segment is, and one batch over the end.
    let third = state.open();
    receipts.push(third.record(draft("third")).unwrap().into_receipt());
    let report = state.whole(&receipts);
    assert_eq!((report.segments, report.records), (2, 65_549));
}

#[test]
fn a_gate_that_died_between_two_segments_leaves_no_damage() {
    let state = State::filled(65_536);
    std::fs::write(state.path("audit/seg-000001.jsonl"), b"").unwrap();
    let receipt = state.open().record(draft("first")).unwrap().into_receipt();
    assert_eq!(receipt.seq, 65_536);
    state.whole(&[receipt]);

    let state = State::filled(65_536);
    std::fs::write(state.path("audit/seg-000001.jsonl"), b"{\"v\":1,").unwrap();
    let receipt = state.open().record(draft("second")).unwrap().into_receipt();
    assert_eq!(receipt.seq, 65_537, "after the record of the torn line");
    state.whole(&[receipt]);
}

/// A directory of hard links has the same lock and the same open segment; the
/// next segment would be made where nobody looks for it.
#[test]
fn a_directory_of_links_in_the_place_of_the_log_gets_no_new_segment() {
    let state = State::filled(65_535);
    let ledger = state.open();
    std::fs::rename(state.path("audit"), state.path("old")).unwrap();
    std::fs::create_dir(state.path("audit")).unwrap();
    for name in ["lock", "seg-000000.jsonl"] {
        std::fs::hard_link(state.path("old").join(name), state.path("audit").join(name)).unwrap();
    }
    ledger.record(draft("the last of the segment")).unwrap().into_receipt();
    let error = ledger.record(draft("the first of the next")).unwrap_err();
    assert!(error.to_string().contains("replaced while in use"), "{error}");
    assert!(!state.path("old/seg-000001.jsonl").exists());
}

#[test]
fn a_torn_tail_of_any_length_is_set_aside_and_recorded() {
    let state = State::new();
    let ledger = state.open();
    for path in ["a", "b"] {
        ledger.record(draft(path)).unwrap().into_receipt();
    }
    let before = state.segment().metadata().unwrap().len() as usize;
    ledger.record(draft("torn")).unwrap().into_receipt();
    drop(ledger);
    let whole = std::fs::read(state.segment()).unwrap();
    for length in before + 1..whole.len() {
        let state = State::new();
        std::fs::create_dir(state.path("audit")).unwrap();
        std::fs::write(state.segment(), &whole[..length]).unwrap();
        let receipt = state.open().record(draft("after")).unwrap().into_receipt();
        assert_eq!(receipt.seq, 3);
        state.whole(&[receipt]);
        let recovered = &state.records()[2];
        assert_eq!(recovered.kind, Kind::Recovered);
        let facts = recovered.draft.facts.as_ref().unwrap();
        let kept =
            std::fs::read(state.path("audit").join(facts["file"].as_str().unwrap())).unwrap();
        assert_eq!(kept, &whole[before..length]);
        assert_eq!(facts["sha256"], Hash::of(&kept).to_string());
        assert_eq!(facts["size"], kept.len());
        assert_eq!(std::fs::read_dir(state.path("audit/quarantine")).unwrap().count(), 1);
    }
}

#[test]
fn a_line_torn_by_another_gate_is_set_aside_by_the_next_to_append() {
    let state = State::new();
    let ledger = state.open();
    ledger.record(draft("a")).unwrap().into_receipt();
    append(&state.segment(), b"{\"v\":1,\"seq\":1");
    let receipt = ledger.record(draft("b")).unwrap().into_receipt();
    assert_eq!(receipt.seq, 2);
    state.whole(&[receipt]);
}

#[test]
fn a_repair_that_was_cut_short_is_finished_by_the_next_gate() {
    let state = State::filled(3);
    let text = b"torn";
    std::fs::create_dir(state.path("audit/quarantine")).unwrap();
    let name = format!("audit/quarantine/torn-{}", Hash::of(text));
    std::fs::write(state.path(&format!("{name}.pending")), text).unwrap();
    drop(state.open());
    assert!(state.path(&name).exists());
    assert_eq!(state.records().pop().unwrap().kind, Kind::Recovered);
    drop(state.open());
    assert_eq!(state.records().len(), 4, "told once");
}

fn append(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// What a running gate says after something was done to its log: at once, for
/// every kind of record, and still after the deed was undone.
fn answer_to(deed: impl FnOnce(&State), undo: impl FnOnce(&State)) -> String {
    let state = State::new();
    let ledger = state.open();
    for path in ["a", "b", "c"] {
        ledger.record(draft(path)).unwrap().into_receipt();
    }
    let intent = ledger.admit(draft("d")).unwrap().into_receipt();
    deed(&state);
    let error = ledger.record(draft("e")).unwrap_err();
    assert_eq!(ledger.admit(draft("e")).unwrap_err(), error);
    undo(&state);
    assert_eq!(ledger.record(draft("e")).unwrap_err(), error);
    assert_eq!(ledger.complete(&intent, ok()).unwrap_err(), error);
    assert_eq!(ledger.note(Kind::Policy, Draft::default(), false).unwrap_err(), error);
    assert_eq!(ledger.orphans().map(drop).unwrap_err(), error);
    assert_eq!(ledger.close(Draft::default()).unwrap_err(), error);
    assert_eq!(state.locks(), 1, "the intent is still to be recovered");
    error.to_string()
}

#[test]
fn a_log_that_is_touched_while_in_use_serves_nobody() {
    let nothing = |_: &State| {};
    let moved = |state: &State| std::fs::rename(state.segment(), state.path("elsewhere")).unwrap();
    let back = |state: &State| std::fs::rename(state.path("elsewhere"), state.segment()).unwrap();
    insta::assert_snapshot!(answer_to(moved, back), @"the audit log was deleted while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(|state| std::fs::remove_file(state.segment()).unwrap(), nothing), @"the audit log was deleted while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                let copy = std::fs::read(state.segment()).unwrap();
                std::fs::remove_file(state.segment()).unwrap();
                std::fs::write(state.segment(), copy).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    let cut = |by: u64| {
        move |state: &State| {
            let file = std::fs::OpenOptions::new().write(true).open(state.segment()).unwrap();
            file.set_len(file.metadata().unwrap().len() - by).unwrap();
        }
    };
    insta::assert_snapshot!(answer_to(cut(1), nothing), @"the audit log was cut short while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(answer_to(cut(400), nothing), @"the audit log was cut short while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(|state| append(&state.segment(), b"not a record\n"), nothing), @"the audit log is damaged in `seg-000000.jsonl`: the line is not exactly one JSON object; see `portcullis audit verify`, then `portcullis audit recover`");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                let line = std::fs::read_to_string(state.segment()).unwrap();
                let line = line.lines().next().unwrap().to_owned() + "\n";
                append(&state.segment(), line.as_bytes());
            },
            nothing
        ), @"the audit log is damaged in `seg-000000.jsonl`: record 4 does not follow on the one before; see `portcullis audit verify`, then `portcullis audit recover`");
    insta::assert_snapshot!(
        answer_to(
            |state| std::fs::rename(state.path("audit"), state.path("old")).unwrap(),
            |state| std::fs::rename(state.path("old"), state.path("audit")).unwrap()
        ), @"the audit log was deleted while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                std::fs::rename(state.path("audit"), state.path("old")).unwrap();
                std::fs::create_dir(state.path("audit")).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(|state| std::fs::remove_file(state.path("audit/lock")).unwrap(), nothing), @"the audit log was robbed of its lock while in use; stop the gates, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                std::fs::remove_file(state.segment()).unwrap();
                std::os::unix::fs::symlink("/dev/null", state.segment()).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gates, look at it with `portcullis audit verify` and start again");
}

/// Runs a closure with a tmpfs of so many kilobytes as the state directory.
fn on_small_disk(kilobytes: u32, test: impl FnOnce(&Path)) {
    let place = TempDir::new().unwrap();
    let mount = |options: &str| {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(place.path())
            .status()
            .unwrap();
        assert!(status.success(), "this test fills a disk: it must run as root, to mount one");
    };
    mount(&format!("size={kilobytes}k"));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(place.path())));
    let status = Command::new("umount").arg("--lazy").arg(place.path()).status().unwrap();
    assert!(status.success());
    result.unwrap();
}

#[test]
fn a_full_disk_refuses_every_request_and_damages_nothing() {
    on_small_disk(96, |place| {
        let dir = || Dir::from_std_file(std::fs::File::open(place).unwrap());
        let ledger = Ledger::open(&dir()).unwrap();
        let mut receipts = Vec::new();
        let error = loop {
            match ledger.admit(draft("some/path")) {
                Ok(grant) => receipts.push(grant.into_receipt()),
                Err(error) => break error,
            }
            assert!(receipts.len() < 10_000, "the disk never filled");
        };
        insta::assert_snapshot!(error, @"cannot write to the audit log: No space left on device (os error 28)");
        assert!(receipts.len() > 100, "{}", receipts.len());
        assert_eq!(ledger.record(draft("other")).unwrap_err(), error);
        let verify = || {
            let source = Directory::new(place.join("audit"));
            let verifier = receipts.iter().fold(Verifier::new(&source), |verifier, head| {
                verifier.expect(head.seq, head.leaf)
            });
            verifier.run().unwrap()
        };
        assert_eq!(verify().damages, []);
        // More room does not bring the old gate back, but a new one starts.
        let status =
            Command::new("mount").args(["-o", "remount,size=4096k"]).arg(place).status().unwrap();
        assert!(status.success());
        assert_eq!(ledger.record(draft("other")).unwrap_err(), error);
        drop(ledger);
        let ledger = Ledger::open(&dir()).unwrap();
        let orphans = ledger.orphans().unwrap();
        assert_eq!(orphans.intents().len(), receipts.len());
        drop(orphans);
        ledger.record(draft("after")).unwrap().into_receipt();
        assert_eq!(verify().damages, []);
    });
}

#[test]
fn a_damaged_end_refuses_service_until_the_operator_recovers() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage); 4] = [
        ("a ruined last line", |log| {
            let at = log.len() - 20;
            log[at] = b'\n';
        }),
        ("a changed record near the end", |log| {
            let at = log.windows(5).rposition(|bytes| bytes == b"allow").unwrap();
            log[at..at + 5].copy_from_slice(b"deny\"");
        }),
        ("a removed record near the end", |log| {
            let mut lines: Vec<_> = log.split_inclusive(|byte| *byte == b'\n').collect();
            lines.remove(lines.len() - 2);
            *log = lines.concat();
        }),
        ("zeros and a line", |log| {
            log.extend([0; 100]);
            log.push(b'\n');
        }),
    ];
    for (name, damage) in cases {
        let state = State::filled(20);
        let mut log = std::fs::read(state.segment()).unwrap();
        damage(&mut log);
        std::fs::write(state.segment(), &log).unwrap();
        let error = Ledger::open(&state.dir()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{name}: {error}");
        assert_eq!(std::fs::read(state.segment()).unwrap(), log, "{name}: nothing was repaired");

        let plan = ledger::plan(&state.dir()).unwrap();
        assert!(plan.keep.records >= 18, "{name}: {plan:?}");
        ledger::recover(&state.dir(), &plan).unwrap();
        let report = state.whole(&[]);
        assert_eq!(report.records, plan.keep.records + 1, "{name}");
        let recovered = state.records().pop().unwrap();
        let facts = recovered.draft.facts.unwrap();
        let kept =
            std::fs::read(state.path("audit").join(facts["file"].as_str().unwrap())).unwrap();
        assert_eq!(kept, &log[plan.keep.offset as usize..], "{name}");
        assert_eq!(facts["sha256"], Hash::of(&kept).to_string(), "{name}");
        state.open().record(draft("after")).unwrap().into_receipt();
        state.whole(&[]);
        assert!(ledger::plan(&state.dir()).unwrap().is_empty());
    }
}

#[test]
fn a_missing_segment_is_recovered_by_setting_the_later_ones_aside() {
    let state = State::filled(65_540);
    std::fs::remove_file(state.segment()).unwrap();
    let error = Ledger::open(&state.dir()).unwrap_err();
    insta::assert_snapshot!(error, @"the audit log is damaged in `seg-000000.jsonl`: the segment is missing; see `portcullis audit verify`, then `portcullis audit recover`");
    let plan = ledger::plan(&state.dir()).unwrap();
    ledger::recover(&state.dir(), &plan).unwrap();
    assert_eq!(state.whole(&[]).records, 1);
    assert_eq!(ledger::recover(&state.dir(), &plan), Err(Error::Changed));
}

#[test]
fn nothing_is_recovered_under_a_running_gate() {
    let state = State::new();
    let ledger = state.open();
    assert_eq!(ledger::plan(&state.dir()), Err(Error::InUse(1)));
    drop(ledger);
    assert!(ledger::plan(&state.dir()).unwrap().is_empty());
}

#[test]
fn intents_of_dead_gates_are_found_once_and_those_of_live_ones_never() {
    let state = State::new();
    let (dead, alive) = (state.open(), state.open());
    let answered = dead.admit(draft("answered")).unwrap().into_receipt();
    dead.complete(&answered, ok()).unwrap();
    let orphan = dead.admit(draft("orphan")).unwrap().into_receipt();
    let busy = alive.admit(draft("busy")).unwrap().into_receipt();
    drop(dead);

    let gate = state.open();
    let orphans = gate.orphans().unwrap();
    let [intent] = orphans.intents() else { panic!("{:?}", orphans.intents()) };
    assert_eq!((intent.seq, intent.draft.path.as_deref()), (orphan.seq, Some("orphan")));
    let intent = intent.clone();
    drop(orphans);
    assert_eq!(state.locks(), 3, "nothing is forgotten before it is resolved");

    let orphans = gate.orphans().unwrap();
    let receipt = orphans.resolve(&intent, ok()).unwrap();
    assert!(receipt.durable);
    assert_eq!(orphans.resolve(&intent, ok()), Err(Error::NoIntent(orphan.seq)));
    orphans.finish().unwrap();
    assert_eq!(state.locks(), 2);
    assert_eq!(gate.orphans().unwrap().intents(), []);
    alive.complete(&busy, ok()).unwrap();
    assert_eq!(state.whole(&[receipt]).warnings, []);
}

#[test]
fn a_gate_that_closes_with_an_open_intent_leaves_it_to_the_next() {
    let state = State::new();
    let ledger = state.open();
    ledger.admit(draft("left")).unwrap().into_receipt();
    ledger.close(Draft::default()).unwrap();
    assert_eq!(state.open().orphans().unwrap().intents().len(), 1);
}

#[test]
fn gates_that_start_while_others_recover_are_never_taken_for_dead() {
    let state = State::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let ledger = state.open();
                    let intent = ledger.admit(draft("mine")).unwrap().into_receipt();
                    let orphans = ledger.orphans().unwrap();
                    assert_eq!(orphans.intents(), []);
                    orphans.finish().unwrap();
                    ledger.complete(&intent, ok()).unwrap();
                    ledger.close(Draft::default()).unwrap();
                }
            });
        }
    });
    assert_eq!(state.locks(), 0);
    assert_eq!(state.whole(&[]).warnings, []);
}

/// Another process that appends until it is killed, or `turns` times, and
/// prints the receipts that it got.
fn driver(state: &State, turns: usize) -> Child {
    example("ledger_writer")
        .arg(state.0.path())
        .arg(turns.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The receipts that the process printed whole.
fn receipts(output: ChildStdout) -> Vec<Receipt> {
    let mut output = BufReader::new(output);
    let mut receipts = Vec::new();
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if let Some(json) = line.strip_suffix('\n').and_then(|line| line.split_once("receipt ")) {
            receipts.push(serde_json::from_str(json.1).unwrap());
        }
        line.clear();
    }
    receipts
}

#[test]
fn processes_share_one_chain() {
    let state = State::new();
    let mut children: Vec<_> = (0..4).map(|_| driver(&state, 40)).collect();
    let mut all = Vec::new();
    for child in &mut children {
        all.extend(receipts(child.stdout.take().unwrap()));
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(all.len(), 4 * 3 * 40 * 3);
    let report = state.whole(&all);
    assert_eq!(report.records, all.len() as u64 + 4);
    assert_eq!(report.warnings, []);
}

#[test]
fn killed_writers_leave_a_whole_chain_with_all_they_had_promised() {
    let state = State::new();
    let mut promised = Vec::new();
    for round in 0..60 {
        let mut children = [driver(&state, usize::MAX), driver(&state, usize::MAX)];
        let readers: Vec<_> = children
            .each_mut()
            .into_iter()
            .map(|child| child.stdout.take().unwrap())
            .map(|output| thread::spawn(move || receipts(output)))
            .collect();
        thread::sleep(Duration::from_millis(15 + round * 7 % 40));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        promised.extend(readers.into_iter().flat_map(|reader| reader.join().unwrap()));

        let gate = state.open();
        let orphans = gate.orphans().unwrap();
        for intent in orphans.intents() {
            orphans.resolve(intent, ok()).unwrap();
        }
        orphans.finish().unwrap();
        gate.close(Draft::default()).unwrap();
        assert_eq!(state.locks(), 0);
    }
    let report = state.whole(&promised);
    assert!(report.warnings.iter().all(|warning| warning.kind.as_str() == "quarantine"));
    let torn = state.records().iter().filter(|record| record.draft.facts.is_some()).count();
    assert!(promised.len() > 500, "only {} receipts", promised.len());
    let recovered = report.kinds.get("recovered").copied().unwrap_or(0);
    assert!(recovered > 0, "no kill left an intent behind");
    println!("{} promised, {torn} torn, {recovered} recovered", promised.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever bytes stand after the last newline, the log goes on whole.
    #[test]
    fn any_tail_without_a_newline_is_set_aside(
        records in 0_u64..4,
        tail in proptest::collection::vec(any::<u8>().prop_filter("newline", |b| *b != b'\n'), 1..300),
    ) {
        let state = State::filled(records);
        append_new(&state.segment(), &tail);
        let receipt = state.open().record(draft("after")).unwrap().into_receipt();
        prop_assert_eq!(receipt.seq, records + 1);
        state.whole(&[receipt]);
    }

    /// Whatever is done to a byte, the ledger and the verifier never panic,
    /// and what the ledger appends to is what the verifier calls whole or
    /// damaged before the end that the ledger looked at.
    #[test]
    fn any_changed_byte_is_refused_or_repaired(at in 0_usize..1_000_000, flip in 1_u8..) {
        let state = State::filled(8);
        let length = state.segment().metadata().unwrap().len() as usize;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(state.segment()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, (at % length) as u64).unwrap();
        file.write_all_at(&[byte[0] ^ flip], (at % length) as u64).unwrap();
        let before = state.verify(&[]);
        let opened = Ledger::open(&state.dir());
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
