//! Checkpoints of logs that were changed, and the errors of a gateway about them.
#![expect(clippy::disallowed_methods, reason = "tests change the log behind the gateway's back")]

mod gateways;

use std::{collections::BTreeMap, fs, path::PathBuf};

use cap_std::fs::Dir;
use portcullis_audit::{
    Chain, Directory, Draft, Kind, Prepared, RecordView, Report, Segment, Verifier,
};
use tempfile::TempDir;

use super::*;

struct State(TempDir);

impl State {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Makes a log of `count` records without a gateway.
    fn filled(count: u64) -> Self {
        let state = Self::new();
        fs::create_dir(state.path("audit")).unwrap();
        let mut chain = Chain::new();
        let mut segments: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let record = Prepared::new(Kind::Decision, &draft(), [7; 16]).unwrap();
        for seq in 0..count {
            let lines = segments.entry(Segment::of(seq).0).or_default();
            chain.append(&record, "2026-01-01T00:00:00.000000Z", lines);
        }
        for (segment, lines) in segments {
            fs::write(state.path(&format!("audit/{}", Segment(segment))), lines).unwrap();
        }
        state
    }

    fn dir(&self) -> Dir {
        Dir::from_std_file(fs::File::open(self.0.path()).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(&format!("audit/{name}"))).unwrap();
    }

    fn open(&self) -> Result<AuditLog, Error> {
        let signing = Signing::own(&self.dir())?;
        AuditLog::open(&self.dir())?.signed(signing)
    }

    /// Does what a command does: its records, and a checkpoint at the end.
    fn command(&self) -> Result<Option<Error>, Error> {
        let audit_log = self.open()?;
        audit_log.note(Kind::Start, Draft::default(), true)?;
        let _receipt = audit_log.record(draft())?;
        audit_log.close(Draft::default())
    }

    fn report(&self) -> Report {
        Verifier::new(&Directory::new(self.path("audit"))).run().unwrap()
    }

    /// Checks that every record is signed, and nothing is damaged.
    #[track_caller]
    fn is_signed(&self) {
        let report = self.report();
        assert!(report.is_valid(), "{:#?}", report.damages);
        let newest = checkpoints::newest(&Folder::open(self.dir(), "audit").unwrap()).unwrap();
        assert_eq!(newest.map(|newest| newest.size), Some(report.records + report.pruned));
    }

    /// Removes everything in the log's directory that was signed.
    fn lose_checkpoints(&self) {
        self.remove("checkpoint");
        self.remove("frontier");
        fs::remove_dir_all(self.path("audit/checkpoints")).unwrap();
    }

    /// Adds records that no gateway wrote.
    fn append(&self, count: usize) {
        let path = self.path("audit/seg-000000.jsonl");
        let mut lines = fs::read(&path).unwrap();
        let last = lines.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap();
        let mut chain = Chain::after(last).unwrap();
        let record = Prepared::new(Kind::Decision, &draft(), [9; 16]).unwrap();
        for _ in 0..count {
            chain.append(&record, "2099-01-01T00:00:00.000000Z", &mut lines);
        }
        fs::write(path, lines).unwrap();
    }

    /// Replaces each decision, and links the chain again.
    fn rewrite(&self) {
        let path = self.path("audit/seg-000000.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let mut prev = portcullis_audit::Hash::ZERO.to_string();
        let mut forged = String::new();
        for line in text.lines() {
            let old = RecordView::parse(line.as_bytes()).unwrap().prev.to_string();
            let line = line.replace("\"allow\"", "\"deny\"").replace(&old, &prev);
            prev = portcullis_audit::Hash::leaf(line.as_bytes()).to_string();
            forged += &format!("{line}\n");
        }
        assert_ne!(text, forged);
        fs::write(path, forged).unwrap();
    }

    /// Agrees to a repair as the operator.
    fn recover(&self) {
        let plan = AuditLog::plan_recovery(&self.dir()).unwrap();
        assert!(!plan.is_empty());
        AuditLog::recover(&self.dir(), &plan, "operator").unwrap();
    }

    fn recoveries(&self) -> String {
        let log = fs::read_to_string(self.path("audit/seg-000000.jsonl")).unwrap();
        log.lines().filter(|line| line.contains("\"recovered\"")).collect()
    }
}

fn draft() -> Draft {
    Draft {
        op: Some("read".to_owned()),
        path: Some("a".to_owned()),
        decision: Some("allow".to_owned()),
        ..Draft::default()
    }
}

#[track_caller]
fn is_damaged(result: Result<impl fmt::Debug, Error>, words: &str) {
    match result {
        Err(error @ Error::Damaged { .. }) => {
            assert!(error.to_string().contains(words), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rewritten_log_without_its_frontier_is_not_signed() {
    let state = State::new();
    for _ in 0..3 {
        assert_eq!(state.command(), Ok(None));
    }
    state.rewrite();
    state.remove("frontier");
    let signed = fs::read(state.path("audit/checkpoint")).unwrap();
    let records = state.report().records;
    for _ in 0..2 {
        is_damaged(state.command(), "not those that a checkpoint signed");
    }
    assert_eq!(fs::read(state.path("audit/checkpoint")).unwrap(), signed);
    assert_eq!(state.report().records, records, "nothing is served on top of it");
    assert_eq!(fs::read_dir(state.path("gateways")).unwrap().count(), 0);
    // Until the operator sets the contradictions aside, which is recorded.
    state.recover();
    assert!(state.recoveries().contains("an operator had"));
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

#[test]
fn a_log_that_is_rewritten_under_a_gateway_is_not_signed() {
    let state = State::new();
    assert_eq!(state.command(), Ok(None));
    let audit_log = state.open().unwrap();
    let _receipt = audit_log.record(draft()).unwrap();
    state.rewrite();
    state.remove("frontier");
    is_damaged(audit_log.checkpoint(), "not those that a checkpoint signed");
}

#[test]
fn where_the_newest_checkpoint_is_missing_a_kept_one_binds() {
    let state = State::new();
    assert_eq!(state.command(), Ok(None));
    assert_eq!(state.command(), Ok(None));
    assert!(state.path("audit/checkpoints/3").exists());
    state.remove("checkpoint");
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
    state.remove("checkpoint");
    state.remove("frontier");
    fs::remove_file(state.path("keys/signed")).unwrap();
    state.rewrite();
    is_damaged(state.command(), "the first 3 records are not those that a checkpoint signed");
    // An unsigned one neither counts nor is passed over.
    fs::write(state.path("audit/checkpoints/3"), "nonsense").unwrap();
    assert!(matches!(state.command(), Err(Error::Note(_))));
}

#[test]
fn a_log_that_lost_all_its_checkpoints_is_the_one_that_is_noted_beside_the_key() {
    let state = State::new();
    for _ in 0..2 {
        assert_eq!(state.command(), Ok(None));
    }
    state.lose_checkpoints();
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
    state.lose_checkpoints();
    state.rewrite();
    for _ in 0..2 {
        is_damaged(state.command(), "not those that a checkpoint signed");
    }
    assert!(!state.path("audit/checkpoint").exists());
    state.recover();
    assert!(state.recoveries().contains("had the log signed again"));
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

#[test]
fn an_older_checkpoint_put_back_does_not_hide_what_was_rewritten_after_it() {
    let state = State::new();
    assert_eq!(state.command(), Ok(None));
    let older = fs::read(state.path("audit/checkpoint")).unwrap();
    let records = fs::read_to_string(state.path("audit/seg-000000.jsonl")).unwrap();
    assert_eq!(state.command(), Ok(None));
    // A process that can write to the log's directory restores it and continues differently.
    fs::write(state.path("audit/checkpoint"), older).unwrap();
    state.remove("frontier");
    fs::write(state.path("audit/seg-000000.jsonl"), &records).unwrap();
    assert!(state.report().is_valid(), "nothing in the directory tells");
    is_damaged(state.command(), "but a checkpoint of 6 was signed: its end was cut off");
    state.append(5);
    assert!(state.report().is_valid(), "nothing in the directory tells");
    is_damaged(state.command(), "the first 6 records are not those that a checkpoint signed");
    assert!(AuditLog::plan_recovery(&state.dir()).unwrap().sign_again);
    state.recover();
    assert!(state.recoveries().contains("had the log signed again"));
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

#[test]
fn a_log_that_was_signed_and_is_gone_is_missed() {
    let state = State::new();
    assert_eq!(state.command(), Ok(None));
    fs::remove_dir_all(state.path("audit")).unwrap();
    for _ in 0..2 {
        is_damaged(state.command(), "the log ends after 0 records, but a checkpoint of 3");
    }
    state.recover();
    assert!(state.recoveries().contains("had the log signed again"));
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

#[test]
fn where_nothing_tells_what_was_signed_the_operator_says_so() {
    let state = State::new();
    assert_eq!(state.command(), Ok(None));
    // After a power failure the log's directory alone is sufficient.
    for left in [&b""[..], b"\0\0\0", b"\xff", b"portcullis/"] {
        fs::write(state.path("keys/signed"), left).unwrap();
        assert_eq!(state.command(), Ok(None));
        state.is_signed();
    }
    fs::write(state.path("keys/signed"), "").unwrap();
    state.lose_checkpoints();
    for _ in 0..2 {
        is_damaged(state.command(), "no checkpoint of it is left");
    }
    assert!(AuditLog::plan_recovery(&state.dir()).unwrap().sign_again);
    state.recover();
    assert!(state.recoveries().contains("had the log signed again"));
    assert!(!AuditLog::plan_recovery(&state.dir()).unwrap().sign_again);
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

#[test]
fn a_gateway_that_died_before_the_first_checkpoint_needs_no_operator() {
    let state = State::new();
    let audit_log = state.open().unwrap();
    audit_log.note(Kind::Start, Draft::default(), true).unwrap();
    drop(audit_log);
    assert_eq!(state.command(), Ok(None));
    state.is_signed();
}

/// A checkpoint of nothing made the log count as one that lost its records.
#[test]
fn a_log_without_a_record_gets_no_checkpoint() {
    let state = State::new();
    let audit_log = state.open().unwrap();
    assert_eq!(audit_log.checkpoint(), Ok(false));
    assert!(!state.path("audit/checkpoint").exists());
}

#[test]
fn a_pruned_log_that_lost_its_frontier_is_signed_again() {
    let state = State::filled(2 * 65_536 + 5);
    let audit_log = state.open().unwrap();
    audit_log.checkpoint().unwrap();
    let before = "2026-06-01";
    let Pruning::Possible(agreed) = AuditLog::plan_prune(&state.dir(), before).unwrap() else {
        panic!()
    };
    audit_log.prune(&agreed, before, "operator").unwrap();
    audit_log.leave().unwrap();
    assert!(!state.path("audit/seg-000000.jsonl").exists());

    // Much has to be read: a command reports that, and one that may take its time reads it.
    state.remove("frontier");
    assert_eq!(state.command(), Ok(Some(Error::FrontierGone)));
    let audit_log = state.open().unwrap();
    assert_eq!(audit_log.checkpoint(), Ok(true));
    audit_log.leave().unwrap();
    state.is_signed();
    assert_eq!(state.command(), Ok(None));
    state.is_signed();

    // Roots are accepted only if they lead to the signed tree.
    state.remove("frontier");
    let roots = fs::read_to_string(state.path("audit/roots")).unwrap();
    let (first, rest) = roots.split_at(64);
    fs::write(state.path("audit/roots"), format!("{}{rest}", "0".repeat(first.len()))).unwrap();
    let audit_log = state.open().unwrap();
    is_damaged(audit_log.checkpoint(), "not those that a checkpoint signed");
}

/// Regression: all of them waited for ever, and so did the next start.
#[test]
fn a_lock_that_another_process_keeps_fails_only_what_waits_for_it() {
    let state = State::new();
    let audit_log = state.open().unwrap();
    let lock = fs::File::open(state.path("audit/lock")).unwrap();
    lock.lock().unwrap();
    let locked = Some(Error::Locked("audit/lock"));
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(AuditLog::open(&state.dir()).err(), locked));
        scope.spawn(|| assert_eq!(audit_log.record(draft()).err(), locked));
    });
    lock.unlock().unwrap();
    // The log is unchanged, and takes records again.
    let _leave = audit_log.note(Kind::Intent, draft(), true).unwrap();
    let _receipt = audit_log.record(draft()).unwrap();
    assert_eq!((audit_log.close(Draft::default()).unwrap(), state.report().records), (None, 3));
    state.is_signed();
}
