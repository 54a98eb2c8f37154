use super::*;
use crate::model::Transport;

fn question(id: &str, timeout: Duration) -> Question {
    let session = Session {
        id: "s".into(),
        agent: "a".parse().unwrap(),
        user: "u".into(),
        transport: Transport::Acp,
        acp: None,
    };
    let binding = Binding::new(OperationKind::Write, "a".into(), "p".into(), vec!["r".into()]);
    Question {
        id: id.into(),
        session,
        workspace: PathBuf::new(),
        binding,
        asked_path: "a".into(),
        rules: Vec::new(),
        change: String::new(),
        disclosed_part: DisclosedQuestion {
            path: "a".into(),
            to: None,
            rules: Vec::new(),
            change: String::new(),
        },
        bytes: None,
        timeout: Some(timeout),
        since: Instant::now(),
    }
}

#[test]
fn the_first_answer_counts_and_later_ones_are_told_so() {
    let approvals = Approvals::default();
    let ticket = approvals.open(question("1", Duration::from_secs(60)), false).unwrap();
    approvals.answer("1", Answer::Once, "one").unwrap();
    let again = approvals.answer("1", Answer::Reject, "two").unwrap_err();
    assert!(matches!(again, AnswerError::Over { how, .. } if how == "approved by one"));
    let end = ticket.wait();
    assert_eq!(end, WaitOutcome::Answered { answer: Answer::Once, by: "one".into() });
    approvals.close(&ticket, &end);
    let late = approvals.answer("1", Answer::Once, "one").unwrap_err();
    assert!(matches!(late, AnswerError::Over { .. }));
    let unknown = approvals.answer("2", Answer::Once, "one").unwrap_err();
    assert_eq!(unknown, AnswerError::Unknown("2".into()));
}

#[test]
fn nobody_can_answer_after_the_time_is_over() {
    let approvals = Approvals::default();
    let ticket = approvals.open(question("1", Duration::ZERO), false).unwrap();
    assert_eq!(ticket.wait(), WaitOutcome::TimedOut);
    let late = ticket.answer(Answer::Once, "late").unwrap_err();
    assert!(late.to_string().contains("timed out: nobody answered within 0 s"), "{late}");
}

#[test]
fn a_question_without_a_timeout_waits_for_its_answer() {
    let approvals = Approvals::default();
    let endless = Question { timeout: None, ..question("1", Duration::ZERO) };
    let ticket = approvals.open(endless, false).unwrap();
    assert!(!ticket.has_ended());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ticket.wait());
        approvals.answer("1", Answer::Once, "one").unwrap();
        assert_eq!(waiting.join().unwrap().as_str(), "once");
    });
}

#[test]
fn a_sessions_approval_covers_the_same_and_nothing_else() {
    let approvals = Approvals::default();
    let binding = question("1", Duration::ZERO).binding;
    approvals.grant("s", &binding, 7);
    let other = Binding { after: Some(Hash::of(b"x")), ..binding.clone() };
    assert_eq!(approvals.granted("s", &other), Some(7));
    let directory = ShownObject {
        kind: ObjectKind::Directory,
        mode: None,
        has_executable: false,
        replaces: false,
    };
    for other in [
        Binding { path: "b".into(), ..binding.clone() },
        Binding { to: Some("b".into()), ..binding.clone() },
        Binding { object: Some(directory), ..binding.clone() },
        Binding { command: Some(Hash::of(b"x")), ..binding.clone() },
        Binding { operation: OperationKind::Remove, ..binding.clone() },
        Binding { attributes: Some(serde_json::json!({ "mode": "0777" })), ..binding.clone() },
        Binding { policy_sha256: "q".into(), ..binding.clone() },
        Binding { rules: vec!["r".into(), "t".into()], ..binding.clone() },
    ] {
        assert_eq!(approvals.granted("s", &other), None, "{other:?}");
    }
    assert_eq!(approvals.granted("t", &binding), None);
    approvals.forget("s");
    assert_eq!(approvals.granted("s", &binding), None);
}

#[test]
fn only_so_many_wait() {
    let approvals = Approvals::default();
    for number in 0..Approvals::MAX_WAITING {
        approvals.open(question(&number.to_string(), Duration::ZERO), false).unwrap();
    }
    assert!(approvals.open(question("more", Duration::ZERO), false).is_none());
}

/// Two agents held them all, and a third could not ask.
#[test]
fn questions_of_agents_leave_room_for_those_of_others() {
    let approvals = Approvals::default();
    let asked = ["a", "b", "c", "d", "e", "f"].map(|agent| {
        let asks = |number: &usize| {
            let mut question = question(&format!("{agent}{number}"), Duration::ZERO);
            question.session.agent = agent.parse().unwrap();
            approvals.open(question, true).is_some()
        };
        (0..Approvals::MAX_WAITING).take_while(asks).count()
    });
    assert_eq!(asked, [8, 4, 2, 1, 1, 0]);
}

/// A report that was overtaken put back an older state, and a request stayed without a notification.
#[test]
fn the_observer_is_told_the_newest_state_last() {
    let approvals = Arc::new(Approvals::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let (begun, wait_for_begin) = std::sync::mpsc::channel();
    let (ended, wait_for_end) = std::sync::mpsc::channel();
    let (note, wait_for_end) = (Arc::clone(&told), Mutex::new(wait_for_end));
    approvals.observe(Box::new(move |ids| {
        if ids.len() == 1 {
            begun.send(()).unwrap();
            let _ = lock(&wait_for_end).recv_timeout(Duration::from_millis(300));
        }
        lock(&note).push(ids.len());
    }));
    approvals.open(question("1", Duration::from_secs(60)), false).unwrap();
    let first = std::thread::spawn({
        let approvals = Arc::clone(&approvals);
        move || approvals.report()
    });
    wait_for_begin.recv().unwrap();
    approvals.open(question("2", Duration::from_secs(60)), false).unwrap();
    approvals.report();
    let _ = ended.send(());
    first.join().unwrap();
    assert_eq!(*lock(&told), [1, 2]);
}
