//! Torn, touched, damaged and full: what the log makes of it.

use super::*;

#[test]
fn a_torn_tail_of_any_length_is_set_aside_and_recorded() {
    let state = State::new();
    let audit_log = state.open();
    for path in ["a", "b"] {
        audit_log.note(Kind::Decision, draft(path), false).unwrap();
    }
    let before = state.segment().metadata().unwrap().len() as usize;
    audit_log.note(Kind::Decision, draft("torn"), false).unwrap();
    drop(audit_log);
    let whole = std::fs::read(state.segment()).unwrap();
    for length in before + 1..whole.len() {
        let state = State::new();
        std::fs::create_dir(state.path("audit")).unwrap();
        std::fs::write(state.segment(), &whole[..length]).unwrap();
        let receipt = state.open().note(Kind::Decision, draft("after"), false).unwrap();
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
fn a_line_torn_by_another_gateway_is_set_aside_by_the_next_to_append() {
    let state = State::new();
    let audit_log = state.open();
    audit_log.note(Kind::Decision, draft("a"), false).unwrap();
    append(&state.segment(), b"{\"v\":1,\"seq\":1");
    let receipt = audit_log.note(Kind::Decision, draft("b"), false).unwrap();
    assert_eq!(receipt.seq, 2);
    state.whole(&[receipt]);
}

#[test]
fn a_repair_that_was_cut_short_is_finished_by_the_next_gateway() {
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

/// Returns the error of a running gateway after a change of its log: at once,
/// for every kind of record, and still after the change was undone.
fn answer_to(operation: impl FnOnce(&State), undo: impl FnOnce(&State)) -> String {
    let state = State::new();
    let audit_log = state.open();
    for path in ["a", "b", "c"] {
        audit_log.note(Kind::Decision, draft(path), false).unwrap();
    }
    let intent = audit_log.note(Kind::Intent, draft("d"), true).unwrap();
    operation(&state);
    let error = audit_log.note(Kind::Decision, draft("e"), false).unwrap_err();
    assert_eq!(audit_log.note(Kind::Intent, draft("e"), true).unwrap_err(), error);
    undo(&state);
    assert_eq!(audit_log.note(Kind::Decision, draft("e"), false).unwrap_err(), error);
    assert_eq!(audit_log.complete(&intent, ok()).unwrap_err(), error);
    assert_eq!(audit_log.note(Kind::Policy, Draft::default(), false).unwrap_err(), error);
    assert_eq!(audit_log.close(Draft::default()).unwrap_err(), error);
    assert_eq!(state.locks(), 1, "the intent is still to be recovered");
    error.to_string()
}

#[test]
fn a_log_that_is_touched_while_in_use_serves_nobody() {
    let nothing = |_: &State| {};
    let moved = |state: &State| std::fs::rename(state.segment(), state.path("elsewhere")).unwrap();
    let back = |state: &State| std::fs::rename(state.path("elsewhere"), state.segment()).unwrap();
    insta::assert_snapshot!(answer_to(moved, back), @"the audit log was deleted while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(|state| std::fs::remove_file(state.segment()).unwrap(), nothing), @"the audit log was deleted while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                let copy = std::fs::read(state.segment()).unwrap();
                std::fs::remove_file(state.segment()).unwrap();
                std::fs::write(state.segment(), copy).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    let cut = |by: u64| {
        move |state: &State| {
            let file = std::fs::OpenOptions::new().write(true).open(state.segment()).unwrap();
            file.set_len(file.metadata().unwrap().len() - by).unwrap();
        }
    };
    insta::assert_snapshot!(answer_to(cut(1), nothing), @"the audit log was cut short while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(answer_to(cut(400), nothing), @"the audit log was cut short while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
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
        ), @"the audit log was deleted while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                std::fs::rename(state.path("audit"), state.path("old")).unwrap();
                std::fs::create_dir(state.path("audit")).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(|state| std::fs::remove_file(state.path("audit/lock")).unwrap(), nothing), @"the audit log was robbed of its lock while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    insta::assert_snapshot!(
        answer_to(
            |state| {
                std::fs::remove_file(state.segment()).unwrap();
                std::os::unix::fs::symlink("/dev/null", state.segment()).unwrap();
            },
            nothing
        ), @"the audit log was replaced while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
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
        let audit_log = AuditLog::open(&dir()).unwrap();
        let mut receipts = Vec::new();
        let error = loop {
            match audit_log.note(Kind::Intent, draft("some/path"), true) {
                Ok(receipt) => receipts.push(receipt),
                Err(error) => break error,
            }
            assert!(receipts.len() < 10_000, "the disk never filled");
        };
        insta::assert_snapshot!(error, @"cannot write to the audit log: No space left on device (os error 28)");
        assert!(receipts.len() > 100, "{}", receipts.len());
        assert_eq!(audit_log.note(Kind::Decision, draft("other"), false).unwrap_err(), error);
        let verify = || {
            let source = Directory::new(place.join("audit"));
            let verifier = receipts.iter().fold(Verifier::new(&source), |verifier, head| {
                verifier.expect(head.seq, head.leaf)
            });
            verifier.run().unwrap()
        };
        assert_eq!(verify().damages, []);
        // More space does not bring the old gateway back, but a new one starts.
        let status =
            Command::new("mount").args(["-o", "remount,size=4096k"]).arg(place).status().unwrap();
        assert!(status.success());
        assert_eq!(audit_log.note(Kind::Decision, draft("other"), false).unwrap_err(), error);
        drop(audit_log);
        let audit_log = AuditLog::open(&dir()).unwrap();
        assert_eq!(verify().kinds["intent"], receipts.len() as u64);
        audit_log.note(Kind::Decision, draft("after"), false).unwrap();
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
        let error = AuditLog::open(&state.dir()).unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "{name}: {error}");
        assert_eq!(std::fs::read(state.segment()).unwrap(), log, "{name}: nothing was repaired");

        let plan = AuditLog::plan_recovery(&state.dir()).unwrap();
        assert!(plan.keep.records >= 18, "{name}: {plan:?}");
        AuditLog::recover(&state.dir(), &plan, "operator").unwrap();
        let report = state.whole(&[]);
        assert_eq!(report.records, plan.keep.records + 1, "{name}");
        let recovered = state.records().pop().unwrap();
        let facts = recovered.draft.facts.unwrap();
        let kept =
            std::fs::read(state.path("audit").join(facts["file"].as_str().unwrap())).unwrap();
        assert_eq!(kept, &log[plan.keep.offset as usize..], "{name}");
        assert_eq!(facts["sha256"], Hash::of(&kept).to_string(), "{name}");
        state.open().note(Kind::Decision, draft("after"), false).unwrap();
        state.whole(&[]);
        assert!(AuditLog::plan_recovery(&state.dir()).unwrap().is_empty());
    }
}

#[test]
fn a_missing_segment_is_recovered_by_setting_the_later_ones_aside() {
    let state = State::filled(65_540);
    std::fs::remove_file(state.segment()).unwrap();
    let error = AuditLog::open(&state.dir()).unwrap_err();
    insta::assert_snapshot!(error, @"the audit log is damaged in `seg-000000.jsonl`: the segment is missing; see `portcullis audit verify`, then `portcullis audit recover`");
    let plan = AuditLog::plan_recovery(&state.dir()).unwrap();
    AuditLog::recover(&state.dir(), &plan, "operator").unwrap();
    assert_eq!(state.whole(&[]).records, 1);
    assert_eq!(AuditLog::recover(&state.dir(), &plan, "operator"), Err(LogError::Changed));
}

#[test]
fn nothing_is_recovered_under_a_running_gateway() {
    let state = State::new();
    let audit_log = state.open();
    assert_eq!(AuditLog::plan_recovery(&state.dir()), Err(LogError::InUse(1)));
    drop(audit_log);
    assert!(AuditLog::plan_recovery(&state.dir()).unwrap().is_empty());
}
