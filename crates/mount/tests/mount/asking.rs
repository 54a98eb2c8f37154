//! Rules with the effect `ask`: programs do not wait for the approval, and may try again.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use portcullis_core::Answer;
use portcullis_mount::Options;
use serde_json::Value;

use crate::rig::{ALL, Done, Rig, eventually, with, with_end};

const ASKS: &str = "[[rules]]\nid = \"careful\"\neffect = \"ask\"\npaths = [\"file\", \"dir/**\"]\n\
    operations = [\"read\", \"write\", \"remove\", \"rename\", \"mkdir\"]\n";

fn policy() -> String {
    format!("{ALL}{ASKS}")
}

fn files(root: &Path) {
    fs::write(root.join("file"), "one\n").unwrap();
    fs::write(root.join("other"), "other\n").unwrap();
}

impl Rig<'_> {
    /// Returns the ids of the pending approvals, the oldest first.
    fn questions(&self) -> Vec<String> {
        let waiting = self.gateway.approvals().waiting();
        waiting.iter().map(|ticket| ticket.question().id.clone()).collect()
    }

    /// Returns the id of the only pending approval.
    #[track_caller]
    fn question(&self) -> String {
        let questions = self.questions();
        assert_eq!(questions.len(), 1, "{questions:?}");
        questions.concat()
    }

    /// Writes a file at once and reports the error of close(2), which a shell ignores.
    fn write(&self, path: &str, text: &str) -> Done {
        self.python(&format!("with open('{path}', 'w') as f: f.write('{text}')"))
    }

    /// Answers the only pending approval.
    #[track_caller]
    fn answer(&self, answer: Answer) {
        self.gateway.approvals().answer(&self.question(), answer, "tester").unwrap();
    }

    /// Waits until programs find no such file: the kernel forgets a refused one in the background.
    #[track_caller]
    fn forgets(&self, path: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.command("test", &["-e", path]).status().unwrap().success() {
            assert!(Instant::now() < end, "{path} stays");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the results of the approvals, as recorded.
    fn ends(&self) -> Vec<String> {
        let records = self.records();
        let ends = records.iter().filter(|record| record["kind"] == "approval");
        ends.map(|record| record["result"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_read_passes_once_when_it_was_approved() {
    with(&policy(), files, |rig| {
        rig.sh("cat file").fails("Permission denied");
        let id = rig.question();
        let reason =
            rig.python("import os; print(os.getxattr('file', 'user.portcullis.why').decode())");
        let reason = reason.ok();
        assert!(reason.contains("denied by rule `careful`: a person is asked; "), "{reason}");
        // With the id the program could ask the operator to approve something else.
        assert!(!reason.contains(&id), "{reason}");
        // Repeated attempts do not ask again.
        rig.sh("cat file").fails("Permission denied");
        assert_eq!(rig.questions(), [id.as_str()]);
        let asked: Vec<Value> =
            rig.records().into_iter().filter(|record| record["facts"]["question"] == *id).collect();
        let decided: Vec<_> =
            asked.iter().map(|record| record["decision"].as_str().unwrap()).collect();
        assert_eq!(decided, ["ask", "deny", "deny"]);
        rig.answer(Answer::Once);
        assert_eq!(rig.sh("cat file").ok(), "one\n");
        rig.sh("cat file").fails("Permission denied");
        assert_eq!(rig.questions().len(), 1);
        assert_eq!(rig.ends(), ["once"]);
        let read = rig
            .records()
            .into_iter()
            .find(|record| record["result"] == "ok" && record["op"] == "read");
        let approval = rig.records().into_iter().find(|record| record["kind"] == "approval");
        assert_eq!(read.unwrap()["facts"]["approval"], approval.unwrap()["seq"]);
    });
}

#[test]
fn an_approved_change_is_that_change_alone() {
    with(&policy(), files, |rig| {
        rig.sh("cp other file").fails("ermission denied");
        rig.answer(Answer::Once);
        rig.write("file", "evil").fails("ermission denied");
        assert_eq!(rig.read("file"), "one\n");
        rig.sh("cp other file").ok();
        assert_eq!(rig.read("file"), "other\n");
        rig.sh("rm -f file").fails("ermission denied");
        assert!(rig.host("file").exists());
    });
}

#[test]
fn changes_that_were_approved_pass_whatever_they_are() {
    with(&policy(), files, |rig| {
        for script in ["rm file", "mkdir dir", "cp other dir/new", "mv dir/new dir/newer"] {
            rig.sh(script).fails("ermission denied");
            rig.answer(Answer::Once);
            rig.sh(script).ok();
        }
        assert_eq!(rig.read("dir/newer"), "other\n");
        assert!(!rig.host("file").exists());
        assert_eq!(rig.ends(), ["once"; 4]);
    });
}

#[test]
fn what_is_approved_for_the_session_passes_with_any_content() {
    with(&policy(), files, |rig| {
        rig.write("file", "two").fails("ermission denied");
        rig.answer(Answer::Session);
        for word in ["two", "three", "four"] {
            rig.write("file", word).ok();
        }
        assert_eq!((rig.read("file").as_str(), rig.questions().len()), ("four", 0));
    });
}

/// An approval of a file's rename covered any entry that had the name later.
#[test]
fn what_is_approved_for_the_session_passes_with_the_same_kind_and_mode() {
    with(&policy(), files, |rig| {
        let rename = || rig.python("import os; os.rename('other', 'dir/new')");
        let make = |script: &str| {
            for name in ["other", "dir/new"] {
                let path = rig.host(name);
                let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            }
            fs::create_dir_all(rig.host("dir")).unwrap();
            let done = Command::new("sh").args(["-ec", script]).current_dir(rig.host(".")).status();
            assert!(done.unwrap().success());
            // Until the kernel looks the names up again.
            thread::sleep(Duration::from_millis(1200));
        };
        for (script, others) in [
            ("echo 1 >other", &["echo 2 >other", "echo 3 >other"][..]),
            ("echo 4 >other; chmod 755 other", &["echo 5 >other; chmod 755 other"]),
            ("ln -s file other", &["ln -s other other"]),
            ("mkdir other", &["mkdir other; echo 6 >other/a"]),
            ("mkdir other; echo 7 >other/a; chmod 700 other/a", &[]),
        ] {
            make(script);
            rename().fails("ermission denied");
            rig.answer(Answer::Session);
            rename().ok();
            for other in others {
                make(other);
                rename().ok();
            }
        }
    });
}

/// An approval of a rename to a free name covered one that removed what had the name by then.
#[test]
fn an_approval_of_a_rename_does_not_cover_one_that_replaces() {
    with(&policy(), files, |rig| {
        let rename = || rig.python("import os; os.rename('other', 'dir/new')");
        fs::create_dir(rig.host("dir")).unwrap();
        rename().fails("ermission denied");
        rig.answer(Answer::Session);
        rename().ok();
        fs::write(rig.host("other"), "two").unwrap();
        thread::sleep(Duration::from_millis(1200));
        rename().fails("ermission denied");
        rig.answer(Answer::Session);
        rename().ok();
        assert_eq!(rig.read("dir/new"), "two");
    });
}

#[test]
fn another_content_withdraws_the_question_about_the_first() {
    with(&policy(), files, |rig| {
        for word in ["two", "three", "four"] {
            rig.write("file", word).fails("ermission denied");
            assert_eq!(rig.questions().len(), 1);
        }
        rig.answer(Answer::Once);
        rig.write("file", "four").ok();
        assert_eq!(rig.ends(), ["withdrawn", "withdrawn", "once"]);
    });
}

#[test]
fn nobody_is_asked_again_about_what_was_rejected_until_its_time_is_over() {
    let limit = "[limits]\napprovalTimeout = \"5s\"\n";
    with(&format!("{}{limit}", policy()), files, |rig| {
        let begun = Instant::now();
        rig.sh("rm -f file").fails("ermission denied");
        rig.answer(Answer::Reject);
        for _ in 0..2 {
            rig.sh("rm -f file").fails("ermission denied");
            assert!(rig.questions().is_empty() || begun.elapsed() >= Duration::from_secs(5));
        }
        thread::sleep(Duration::from_millis(5100));
        rig.sh("rm -f file").fails("ermission denied");
        // Nobody answers, and the timeout is recorded without a further request.
        assert!(eventually(|| rig.questions().is_empty() && rig.ends().len() > 1));
        let ends = rig.ends();
        assert_eq!(ends[0], "rejected");
        assert!(ends[1..].iter().all(|end| end == "timeout"), "{ends:?}");
    });
}

#[test]
fn the_end_of_the_mount_withdraws_what_was_not_answered() {
    with_end(
        &policy(),
        Options::new(0, 0),
        files,
        |rig| drop(rig.sh("rm -f file").fails("ermission denied")),
        |rig| assert_eq!((rig.questions().len(), rig.ends()), (0, vec!["withdrawn".to_owned()])),
    );
}

/// An approval under one policy is not valid under another.
#[test]
fn an_approval_ends_with_the_policy() {
    with(&policy(), files, |rig| {
        rig.sh("rm -f file").fails("ermission denied");
        rig.answer(Answer::Once);
        let text = policy().replace("version = 1", "version = 2");
        let source = portcullis_policy::PolicySource::from_text("test.toml", &text);
        let policy = portcullis_policy::compile(&source).unwrap();
        rig.gateway.reload(rig.session(), policy, "test").unwrap().unwrap();
        rig.sh("rm -f file").fails("ermission denied");
        assert!(rig.host("file").exists());
    });
}

/// A shell closes a duplicate of a new file before it writes to it: the approval was for an empty
/// file, and the content could never be approved.
#[test]
fn a_person_is_asked_about_what_a_shell_writes_to_a_new_file() {
    const FORK: &str = "import os\nf = os.open('dir/new', os.O_CREAT | os.O_WRONLY)\n\
        if os.fork() == 0: os._exit(0)\nos.wait()\nos.write(f, b'text\\n')\nos.close(f)";
    const DUPLICATE: &str = "import os\nf = os.open('dir/new', os.O_CREAT | os.O_WRONLY)\n\
        os.dup2(f, 9)\nos.close(f)\nos.write(9, b'text\\n')\nos.close(9)";
    let dir = |root: &Path| fs::create_dir(root.join("dir")).unwrap();
    for (program, script) in [
        ("sh", "echo text >dir/new"),
        ("sh", "(echo text) >dir/new"),
        ("sh", "exec 3>dir/new; true; echo text >&3; exec 3>&-"),
        ("sh", "exec 3>dir/new; sh -c 'echo text >&3'"),
        ("sh", "cat >dir/new <<X\ntext\nX"),
        ("python3", FORK),
        ("python3", DUPLICATE),
    ] {
        with(&policy(), dir, |rig| {
            let run = || rig.command(program, &["-c", script]).output().unwrap();
            run();
            rig.answer(Answer::Once);
            assert!(!rig.host("dir/new").exists(), "{script}");
            rig.forgets("dir/new");
            assert!(run().status.success(), "{script}");
            assert_eq!(rig.read("dir/new"), "text\n", "{script}");
            assert_eq!(rig.ends(), ["once"], "{script}");
            // One approval and one change: nothing was asked or stored for an empty file.
            let all = ["decision write -", "decision write denied", "approval write once"];
            let all = all.into_iter().chain(["intent write -", "outcome write ok"]);
            assert_eq!(rig.about("dir/new"), all.collect::<Vec<_>>(), "{script}");
        });
    }
}

/// The close of the last descriptor ends all writes.
#[test]
fn a_person_is_asked_about_a_new_file_that_stays_empty() {
    let dir = |root: &Path| fs::create_dir(root.join("dir")).unwrap();
    with(&policy(), dir, |rig| {
        rig.sh(": >dir/new").ok();
        assert!(eventually(|| !rig.questions().is_empty()));
        rig.forgets("dir/new");
        rig.answer(Answer::Once);
        rig.sh(": >dir/new").ok();
        assert!(eventually(|| rig.host("dir/new").exists()));
        assert_eq!((rig.read("dir/new").as_str(), rig.ends()), ("", vec!["once".to_owned()]));
        // A program that needs the result at once gets it from fsync(2).
        let script = "import os\nf = os.open('dir/other', os.O_CREAT | os.O_WRONLY)\n\
            try: os.fsync(f)\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(script).ok(), "13\n");
    });
}

/// `touch` succeeded, although the file was removed again.
#[test]
fn touch_hears_that_a_person_is_asked() {
    let dir = |root: &Path| fs::create_dir(root.join("dir")).unwrap();
    with(&policy(), dir, |rig| {
        rig.sh("touch dir/new").fails("ermission denied");
        rig.forgets("dir/new");
        rig.answer(Answer::Once);
        rig.sh("touch dir/new && test -e dir/new").ok();
        assert_eq!((rig.read("dir/new").as_str(), rig.ends()), ("", vec!["once".to_owned()]));
    });
}

/// A new empty file is stored by close(2) where no rule asks.
#[test]
fn an_empty_file_is_there_when_it_is_closed() {
    with(&policy(), files, |rig| {
        for number in 0..50 {
            rig.sh(&format!("touch empty{number}")).ok();
            assert!(rig.host(&format!("empty{number}")).exists());
        }
    });
}
