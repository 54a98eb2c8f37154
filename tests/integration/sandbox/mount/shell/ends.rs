//! The end of the shell, which restores the operator's terminal.

use super::*;

/// Settings of programs that do not restore the terminal.
const LEFT: &str = r"printf '\033[?1049h\033[?1000;1006h\033[?25l\033[31mready'; ";
/// Sequences that undo them.
const UNDONE: [&str; 5] = ["\x1b[?25h", "\x1b[?1000l", "\x1b[?1006l", "\x1b[?1049l", "\x1b[m"];

impl Operator {
    /// Checks that the terminal is restored, and that the summary came after that.
    #[track_caller]
    fn is_put_back(&self) {
        self.is_restored();
        let text = self.text();
        for part in UNDONE {
            assert!(text.contains(part), "{part:?} {text:?}");
        }
        let summary = text.find("portcullis: no changes");
        let last = UNDONE.iter().filter_map(|part| text.rfind(part)).max();
        assert!(summary > last, "{text:?}");
        // The summary has lines of its own.
        assert!(text[last.unwrap()..].contains("\r\n"), "{text:?}");
    }
}

#[test]
fn the_terminal_is_put_back_however_the_program_ends() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        for (end, code) in [("exit 5", 5), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)] {
            let mut operator = world.shell_script(&[], &format!("{LEFT}{end}"));
            assert_eq!(operator.ends(), code, "{who:?} {end} {:?}", operator.text());
            operator.is_put_back();
        }
    }
}

#[test]
fn signals_end_it_and_the_terminal_is_put_back() {
    let world = SandboxWorld::mounted(users()[0]);
    // A shell ignores SIGTERM, and this one the end of its terminal, too.
    for script in ["while :; do sleep 0.1; done", "trap '' HUP TERM; while :; do sleep 0.1; done"] {
        for signal in [Signal::TERM, Signal::HUP] {
            let mut operator = world.shell_script(&[], &format!("{LEFT}{script}"));
            operator.sees("ready");
            operator.signal(signal);
            let code = operator.ends();
            // Which of the signals ends it depends on which one it gets first.
            assert!([129, 137, 143].contains(&code), "{code} {:?}", operator.text());
            operator.is_put_back();
        }
    }
}

#[test]
fn an_operator_whose_keys_a_program_takes_can_leave() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = format!("{LEFT} trap '' HUP; stty raw -echo; while :; do sleep 0.1; done");
    let mut operator = world.shell_script(&[], &script);
    operator.sees("ready");
    operator.types("\x03\x03\x1d\x1d\x1d");
    let code = operator.ends();
    assert!([137, 143].contains(&code), "{code} {:?}", operator.text());
    operator.is_put_back();
}

/// Neither of the two processes that know the terminal needs the other one for that.
#[test]
fn the_terminal_is_put_back_when_one_of_ours_is_killed() {
    let world = SandboxWorld::mounted(users()[0]);
    for word in ["sandbox-stage terminal", "gateway-process"] {
        let mut operator = world.shell_script(&[], &format!("{LEFT} sleep 1000"));
        operator.sees("ready");
        kill_process(operator.process(word), Signal::KILL).unwrap();
        assert_ne!(operator.ends(), 0, "{word} {:?}", operator.text());
        operator.is_restored();
        for part in ["\x1b[?25h", "\x1b[?1000l", "\x1b[m"] {
            assert!(operator.text().contains(part), "{word} {part:?} {:?}", operator.text());
        }
    }
    let mut operator = world.shell_script(&[], &format!("{LEFT} sleep 1000"));
    operator.sees("ready");
    let program = operator.process("sandbox-stage launch").as_raw_nonzero();
    operator.signal(Signal::KILL);
    assert_eq!(operator.ends(), 137);
    operator.is_restored();
    let began = Instant::now();
    while !operator.text().contains("\x1b[?1049l") {
        operator.look(Duration::from_millis(100));
        assert!(began.elapsed() < TIMEOUT, "{:?}", operator.text());
    }
    while Path::new(&format!("/proc/{program}")).exists() {
        assert!(began.elapsed() < TIMEOUT, "the sandbox goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Run by themselves: a report that comes later than a tenth of a second is not expected any more.
mod timing {
    use super::*;

    /// A mouse report that is under way when the mode ends would be typed into the operator's shell.
    #[test]
    fn what_the_terminal_still_sends_is_thrown_away() {
        let world = SandboxWorld::mounted(users()[0]);
        let mut operator = world.shell_script(&["--quiet"], r"printf '\033[?1003h'");
        operator.sees("\x1b[?1003l");
        std::thread::sleep(Duration::from_millis(20));
        operator.types("\x1b[M !!");
        assert_eq!(operator.ends(), 0);
        operator.is_restored();
        operator.types("\r");
        assert_eq!(operator.left_to_read(), b"\n");
    }
}

#[test]
fn a_program_in_the_background_ends_with_the_shell() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "trap '' HUP; (trap '' HUP; sleep 1000) & echo ready; read line";
    let mut operator = world.shell_script(&["--quiet"], script);
    operator.sees("ready");
    let program = operator.process("sandbox-stage launch").as_raw_nonzero();
    operator.types("\r");
    assert_eq!(operator.ends(), 0);
    assert!(!Path::new(&format!("/proc/{program}")).exists());
    operator.is_restored();
}

#[test]
fn a_program_goes_on_that_closes_its_terminal() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "exec </dev/null >/dev/null 2>&1; sleep 4; echo late >/dev/tty; exit 9";
    let mut operator = world.shell_script(&["--quiet"], script);
    assert_eq!(operator.ends(), 9, "{:?}", operator.text());
    assert!(operator.text().contains("late"), "{:?}", operator.text());
}

#[test]
fn what_was_written_last_is_shown() {
    let world = SandboxWorld::mounted(users()[0]);
    let mut operator = world.shell_script(&["--quiet"], "seq 1 20000; printf last");
    assert_eq!(operator.ends(), 0);
    let text = operator.text();
    assert!(text.contains("\r\n19999\r\n20000\r\nlast\r\n"), "{:?}", &text[text.len() - 100..]);
}

/// The sequences that restore a terminal were not written where that had no room at the moment.
#[test]
fn a_slow_terminal_is_put_back() {
    let world = SandboxWorld::mounted(users()[0]);
    let mut operator = world.shell_script(&[], &format!("{LEFT} seq 1 30000"));
    operator.sees("ready");
    while operator.code().is_none() {
        operator.look(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(4));
    }
    assert_eq!(operator.ends(), 0);
    operator.is_put_back();
}

#[test]
fn a_program_that_reads_nothing_does_not_stop_its_output() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "stty raw -echo; echo ready; sleep 2; for i in 1 2 3 4 5 6 7 8; do \
                  head -c 65536 /dev/zero | tr '\\0' x; done; echo; echo done";
    let mut operator = world.shell_script(&["--quiet"], script);
    operator.sees("ready");
    for _ in 0..40 {
        operator.types(&"y".repeat(4000));
        operator.look(Duration::from_millis(1));
    }
    operator.sees("done");
    assert_eq!(operator.ends(), 0);
}

#[test]
fn the_summary_is_an_object_where_it_is_asked_for() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "echo new >new.txt; rm -f fixed.txt; exit 3";
    let mut operator = world.shell_script(&["--json"], script);
    assert_eq!(operator.ends(), 3);
    let text = operator.text();
    let last = text.lines().filter_map(|line| line.strip_prefix("\r\x1b[J")).next_back().unwrap();
    let summary: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&summary["exitCode"], &summary["denials"][0]["rule"]),
        (&3.into(), &"fixed".into())
    );
    let file = world.at("summary.json");
    let mut operator = world.shell_script(&["--summary", &file], "rm -f new.txt");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    let summary: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(summary["changes"][0]["path"], "new.txt");
}

/// A question there could be answered by a program that imitates it, and would be written over a
/// program.
#[test]
fn nobody_is_asked_on_the_programs_terminal() {
    let world = SandboxWorld::mounted(users()[0]);
    let ask = "\n[[rules]]\nid = \"asked\"\neffect = \"ask\"\noperations = [\"write\"]\n\
               paths = [\"asked.txt\"]\n";
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{ask}")).unwrap();
    let script = "echo x 2>/dev/null >asked.txt; sleep 1; echo after";
    let mut operator = world.shell_script(&[], script);
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    let text = operator.text();
    let records = world.records();
    let asked = records.iter().find(|record| record["facts"]["question"].is_string()).unwrap();
    let id = said(&asked["facts"], "question");
    // It was told afterwards to approve what was withdrawn.
    assert!(text.contains(&format!("question {id}")), "{text:?}");
    assert!(!text.contains("portcullis approve"), "{text:?}");
}
