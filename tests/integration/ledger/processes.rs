//! Gates that die, and gates that work at the same time.

use super::*;

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
