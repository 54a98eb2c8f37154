//! Grants, and intents of dead gateways.
#![expect(clippy::disallowed_methods, reason = "tests look at the log behind the gateway's back")]

use std::thread;

use super::*;

fn unsigned(state: &State) -> AuditLog {
    AuditLog::open(&state.dir()).unwrap()
}

fn locks(state: &State) -> usize {
    let names = fs::read_dir(state.path("gateways")).unwrap();
    names.filter(|name| name.as_ref().unwrap().path().extension().is_some()).count()
}

fn of(path: &str) -> Draft {
    Draft { path: Some(path.to_owned()), ..draft() }
}

fn ok() -> Draft {
    Draft { result: Some("ok".to_owned()), ..Draft::default() }
}

#[test]
fn a_grant_is_for_one_seal_and_one_kind_of_record() {
    let state = State::new();
    let audit_log = unsigned(&state);
    let (ours, other) = (Seal::new(), Seal::new());
    let opens = |grant: Grant, kind| grant.redeem(kind, &ours).1;
    assert!(opens(audit_log.record_for(draft(), &ours).unwrap(), Kind::Decision));
    assert!(opens(audit_log.admit(draft(), &ours).unwrap(), Kind::Intent));
    assert!(!opens(audit_log.record_for(draft(), &other).unwrap(), Kind::Decision));
    assert!(!opens(audit_log.admit(draft(), &other).unwrap(), Kind::Intent));
    // The record of a decision grants no change.
    assert!(!opens(audit_log.record_for(draft(), &ours).unwrap(), Kind::Intent));
    assert!(!opens(audit_log.admit(draft(), &ours).unwrap(), Kind::Decision));
}

#[test]
fn intents_of_dead_gateways_are_found_once_and_those_of_live_ones_never() {
    let state = State::new();
    let (dead, alive) = (unsigned(&state), unsigned(&state));
    let answered = dead.note(Kind::Intent, of("answered"), true).unwrap();
    dead.complete(&answered, ok()).unwrap();
    let orphan = dead.note(Kind::Intent, of("orphan"), true).unwrap();
    let busy = alive.note(Kind::Intent, of("busy"), true).unwrap();
    drop(dead);

    let gateway = unsigned(&state);
    let orphans = gateway.orphans().unwrap();
    let [intent] = orphans.intents() else { panic!("{:?}", orphans.intents()) };
    assert_eq!((intent.seq, intent.draft.path.as_deref()), (orphan.seq, Some("orphan")));
    let intent = intent.clone();
    drop(orphans);
    assert_eq!(locks(&state), 3, "nothing is forgotten before it is resolved");

    let orphans = gateway.orphans().unwrap();
    let receipt = orphans.resolve(&intent, ok()).unwrap();
    assert!(receipt.durable);
    assert_eq!(orphans.resolve(&intent, ok()), Err(Error::NoIntent(orphan.seq)));
    orphans.finish().unwrap();
    assert_eq!(locks(&state), 2);
    assert_eq!(gateway.orphans().unwrap().intents(), []);
    alive.complete(&busy, ok()).unwrap();
    let report = state.report();
    assert!(report.is_valid() && report.warnings.is_empty() && report.records > receipt.seq);
}

#[test]
fn a_gateway_that_closes_with_an_open_intent_leaves_it_to_the_next() {
    let state = State::new();
    let audit_log = unsigned(&state);
    audit_log.note(Kind::Intent, of("left"), true).unwrap();
    audit_log.close(Draft::default()).unwrap();
    assert_eq!(unsigned(&state).orphans().unwrap().intents().len(), 1);
}

#[test]
fn gateways_that_start_while_others_recover_are_never_taken_for_dead() {
    let state = State::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let audit_log = unsigned(&state);
                    let intent = audit_log.note(Kind::Intent, of("mine"), true).unwrap();
                    let orphans = audit_log.orphans().unwrap();
                    assert_eq!(orphans.intents(), []);
                    orphans.finish().unwrap();
                    audit_log.complete(&intent, ok()).unwrap();
                    audit_log.close(Draft::default()).unwrap();
                }
            });
        }
    });
    assert_eq!(locks(&state), 0);
    let report = state.report();
    assert!(report.is_valid() && report.warnings.is_empty());
}

#[test]
fn records_that_are_made_together_are_all_there_and_in_order() {
    for durable in [false, true] {
        // A segment becomes full among them.
        let state = State::filled(65_300);
        let mut audit_log = unsigned(&state);
        if durable {
            audit_log.make_all_durable();
        }
        let names: Vec<String> = (0..600).map(|number| format!("together/{number}")).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    audit_log.record(of("between")).unwrap();
                }
            });
            audit_log.record_all(names.iter().map(|name| of(name))).unwrap();
        });
        audit_log.record_all(std::iter::empty()).unwrap();
        audit_log.close(Draft::default()).unwrap();
        let report = state.report();
        assert!(report.is_valid(), "{:#?}", report.damages);
        assert_eq!((report.segments, report.records), (2, 65_300 + 600 + 50 + 1));
        let source = Directory::new(state.path("audit"));
        let mut reader = portcullis_audit::Reader::new(&source, 0);
        let records = std::iter::from_fn(|| Some(reader.next().unwrap()?.record().unwrap()));
        let paths = records.filter_map(|record| record.draft.path);
        let together: Vec<String> = paths.filter(|path| path.starts_with("together/")).collect();
        assert_eq!(together, names);
    }
}
