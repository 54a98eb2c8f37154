//! Approvals from a shell, over the socket in the state directory.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{asked_again, begin, end, id, kinds, next_question, waiting, world};

#[test]
fn a_write_waits_is_approved_and_all_of_it_is_on_record() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/card.ts"], "one\nTWO\n");
    let asked = waiting(&world, 1).remove(0);
    assert_eq!(asked["operation"], "write");
    assert_eq!(asked["path"], "src/payments/card.ts");
    assert_eq!(asked["rules"][0]["id"], "payments");
    assert_eq!(asked["rules"][0]["reason"], "changes to payments need a person");
    let change = asked["change"].as_str().unwrap();
    assert!(change.contains("-two\n+TWO\n"), "{change}");
    assert_eq!(world.read("src/payments/card.ts"), "one\ntwo\n", "nothing happens before");
    assert_eq!(kinds(&world, "intent").len(), 0);

    let done = world.run(&["approve", "--yes", &id(&asked)]).ok();
    assert_eq!(done.text(), "approved: write `src/payments/card.ts` by agent `cli`\n");
    let done = end(child).ok();
    assert!(done.stderr.contains("in another shell, `portcullis approve "), "{}", done.stderr);
    assert_eq!(world.read("src/payments/card.ts"), "one\nTWO\n");

    let question = kinds(&world, "decision").into_iter().find(|r| r["decision"] == "ask").unwrap();
    let approval = kinds(&world, "approval").remove(0);
    let intent = kinds(&world, "intent").remove(0);
    for record in [&question, &approval, &intent] {
        assert_eq!(record["rule"], "payments", "{record}");
        assert_eq!(record["path"], "src/payments/card.ts", "{record}");
        assert_eq!(record["before"], asked["before"], "{record}");
        assert_eq!(record["after"], asked["after"], "{record}");
        assert_eq!(record["policySha256"], asked["policySha256"], "{record}");
    }
    assert_eq!(question["facts"]["question"], asked["id"]);
    assert_eq!((&approval["decision"], &approval["result"]), (&json!("allow"), &json!("once")));
    assert!(approval["facts"]["by"].as_str().unwrap().contains(" at a shell, process "));
    assert_eq!(intent["decision"], "allow");
    assert_eq!(intent["facts"]["approval"], approval["seq"]);
    world.run(&["audit", "verify"]).ok();
    let backup_store = world.run(&["backup", "list", "--json"]).ok();
    assert_eq!(backup_store.text().matches("card.ts").count(), 1, "the question's copy is gone");
}

#[test]
fn what_is_rejected_is_denied_by_the_rule() {
    let world = world();
    let child = begin(&world, &["rm", "src/payments/card.ts"], "");
    let asked = waiting(&world, 1).remove(0);
    assert!(asked["change"].as_str().unwrap().contains("-one\n-two\n"), "{asked}");
    world.run(&["approve", "--reject", &id(&asked)]).ok();
    let done = end(child).denied("payments");
    assert!(done.stderr.contains("a person was asked and rejected it"), "{}", done.stderr);
    assert!(world.path("src/payments/card.ts").exists());
    assert_eq!(kinds(&world, "approval")[0]["result"], "rejected");
    assert_eq!(kinds(&world, "intent").len(), 0);
}

#[test]
fn nobody_answers() {
    let mut world = world();
    world.set_policy(&super::POLICY.replace("10m", "1s"));
    let done = world.fs(&["read", "src/vault/a.txt"]).denied("vault");
    let timeout = "timed out: nobody answered within 1 s (`limits.approvalTimeout`)";
    assert!(done.stderr.contains(timeout), "{}", done.stderr);
    assert!(done.stdout.is_empty());
    assert_eq!(kinds(&world, "approval")[0]["result"], "timeout");
    assert!(waiting(&world, 0).is_empty());
}

/// An `fs` that ended while it waited left the question open in the log for
/// ever.
#[test]
fn a_question_whose_gateway_is_gone_comes_to_an_end_in_the_log() {
    let world = world();
    let backup_store = ["read", "src/vault/a.txt"];
    let payments = ["write", "src/payments/card.ts"];
    for (args, signal) in [(backup_store, Signal::TERM), (payments, Signal::KILL)] {
        let mut child = begin(&world, &args, "new");
        let asked = waiting(&world, 1).remove(0);
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        // The next start records it, and only that one.
        for _ in 0..2 {
            world.fs(&["stat", "src/a.ts"]).ok();
            let mut ends = kinds(&world, "approval");
            ends.retain(|end| end["facts"]["question"] == asked["id"]);
            let [end] = &ends[..] else { panic!("{ends:?}") };
            assert_eq!((&end["result"], &end["decision"]), (&json!("abandoned"), &Value::Null));
            assert_eq!((&end["op"], &end["path"]), (&json!(args[0]), &json!(args[1])));
            let mut questions = kinds(&world, "decision");
            questions.retain(|record| record["facts"]["question"] == asked["id"]);
            let [question] = &questions[..] else { panic!("{questions:?}") };
            assert_eq!(question["session"], end["session"]);
            assert_ne!(question["boot"], end["boot"]);
        }
    }
    assert_eq!(world.read("src/payments/card.ts"), "one\ntwo\n");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_read_is_disclosed_only_afterwards() {
    let world = world();
    let child = begin(&world, &["read", "src/vault/a.txt"], "");
    let asked = waiting(&world, 1).remove(0);
    assert!(!asked.to_string().contains("treasure"));
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    assert_eq!(end(child).ok().text(), "treasure\n");
}

#[test]
fn denials_are_not_asked_about() {
    let world = world();
    world.write("src/payments/frozen/a", "x").denied("frozen");
    world.write("payments/a", "x").denied("allowedPaths.write");
    world.write("src/payments/big", "x".repeat(1025)).denied("files.maxWriteSize");
    world.write("src/payments/binary", b"\0").denied("files.binary.write");
    world.fs(&["mv", "src/payments", "payments"]).denied("allowedPaths.write");
    assert!(kinds(&world, "approval").is_empty());
}

#[test]
fn neither_a_link_nor_a_rename_gets_round_the_question() {
    let world = world();
    std::os::unix::fs::symlink("payments/card.ts", world.path("src/link")).unwrap();
    // The link, the directory above, and what may be read only when asked.
    for (args, rule) in [
        (vec!["append", "src/link"], "payments"),
        (vec!["rm", "-r", "src/payments"], "payments"),
        (vec!["mv", "src/payments", "src/elsewhere"], "payments"),
        (vec!["mv", "src/payments/card.ts", "src/b.ts"], "payments"),
        (vec!["mv", "src/a.ts", "src/payments/a.ts"], "payments"),
        (vec!["mkdir", "src/payments/new"], "payments"),
        (vec!["read", "src/vault/a.txt"], "vault"),
    ] {
        let child = begin(&world, &args, "x");
        let asked = waiting(&world, 1).remove(0);
        world.run(&["approve", "--reject", &id(&asked)]).ok();
        end(child).denied(rule);
    }
    world.fs(&["mv", "src/vault/a.txt", "src/open.txt"]).denied("vault");
    assert_eq!(world.read("src/payments/card.ts"), "one\ntwo\n");
}

#[test]
fn what_changed_meanwhile_is_not_what_was_approved() {
    let world = world();
    let path = "src/payments/card.ts";
    let child = begin(&world, &["append", path], "three\n");
    let asked = waiting(&world, 1).remove(0);
    world.file(path, "another\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    let again = asked_again(&world, &asked);
    assert!(again["change"].as_str().unwrap().contains(" another\n+three"), "{again}");
    end(child).denied("payments");
    assert_eq!(world.read(path), "another\n");

    // The name means another file now: that is a question of its own.
    let child = begin(&world, &["append", path], "three\n");
    let asked = waiting(&world, 1).remove(0);
    std::fs::remove_file(world.path(path)).unwrap();
    std::os::unix::fs::symlink("../a.ts", world.path(path)).unwrap();
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    end(child).denied("payments");
    assert_eq!(world.read("src/a.ts"), "a\n");

    // It is there by now.
    let child = begin(&world, &["write", "src/payments/new.ts"], "new\n");
    let asked = waiting(&world, 1).remove(0);
    assert_eq!(asked.get("before"), None);
    world.file("src/payments/new.ts", "somebody's\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    end(child).denied("payments");
    assert_eq!(world.read("src/payments/new.ts"), "somebody's\n");
}

/// The target of a rename and the contents of a removal were not in the
/// question.
#[test]
fn the_question_shows_what_a_rename_puts_there_and_what_goes_with_a_directory() {
    let world = world();
    for number in 0..60 {
        world.file(&format!("src/tree/f{number:02}.ts"), "x");
    }
    std::os::unix::fs::symlink("../outside", world.path("src/link")).unwrap();
    let shown = |args: &[&str]| {
        let child = begin(&world, args, "");
        let asked = waiting(&world, 1).remove(0);
        world.run(&["approve", "--reject", &id(&asked)]).ok();
        end(child).denied("payments");
        asked["change"].as_str().unwrap().to_owned()
    };
    let over = shown(&["mv", "src/a.ts", "src/payments/card.ts"]);
    let head = "renames `src/a.ts` to `src/payments/card.ts`, mode 0644, replacing what is there\n--- a/src";
    assert!(over.starts_with(head) && over.contains("-one\n-two\n+a"), "{over}");
    let new = shown(&["mv", "src/a.ts", "src/payments/new.ts"]);
    assert!(
        new.contains("--- /dev/null\n+++ b/src/payments/new.ts\n") && new.contains("+a"),
        "{new}"
    );
    let link = shown(&["mv", "src/link", "src/payments/link"]);
    assert!(link.ends_with("\na link to `../outside`"), "{link}");
    let over = shown(&["mv", "src/link", "src/payments/card.ts"]);
    assert!(over.contains("\na link to `../outside`\n--- a/src/payments/card.ts"), "{over}");
    std::os::unix::fs::symlink("../outside", world.path("src/payments/link")).unwrap();
    let over = shown(&["mv", "src/a.ts", "src/payments/link"]);
    assert!(over.contains(", replacing a link to `../outside`\n--- /dev/null\n"), "{over}");
    let gone = shown(&["rm", "src/payments/link"]);
    assert_eq!(gone, "removes `src/payments/link`, a link to `../outside`");
    std::fs::remove_file(world.path("src/payments/link")).unwrap();
    let tree = shown(&["mv", "src/tree", "src/payments/tree"]);
    assert!(tree.contains("objects in it: 60\n  f00.ts\n  f01.ts\n"), "{tree}");
    let end = "  f49.ts\n(and 10 more)\n(the contents of files are not shown)\n";
    assert!(tree.ends_with(end), "{tree}");
    // A rename of a directory brought a program in unnoticed.
    let program = world.path("src/tree/f55.ts");
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tree = shown(&["mv", "src/tree", "src/payments/tree"]);
    let begin = "objects in it: 60, 1 of them executable\n  f55.ts (executable)\n  f00.ts\n";
    assert!(tree.contains(begin), "{tree}");
    let gone = shown(&["rm", "-r", "src/payments"]);
    let expected = "removes `src/payments` with everything in it\nobjects in it: 1\n  card.ts\n";
    assert_eq!(gone, expected);
    world.file("src/large.ts", vec![b'x'; (1 << 20) + 1]);
    let large = shown(&["mv", "src/large.ts", "src/payments/large.ts"]);
    assert!(large.ends_with("\nthe content is too large to be shown"), "{large}");
}

/// The agent made the file executable while the question waited, and the question did not show the
/// permission bits.
#[test]
fn an_approved_rename_did_not_cover_the_permission_bits() {
    let world = world();
    world.file("src/tool", "#!/bin/sh\n");
    world.file("src/tree/tool", "#!/bin/sh\n");
    let set = |path: &str, mode: u32| {
        std::fs::set_permissions(world.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (from, file) in [("src/tool", "src/tool"), ("src/tree", "src/tree/tool")] {
        set(file, 0o644);
        let to = format!("src/payments/{}", from.rsplit('/').next().unwrap());
        let child = begin(&world, &["mv", from, &to], "");
        let asked = waiting(&world, 1).remove(0);
        set(file, 0o755);
        world.run(&["approve", "--yes", &id(&asked)]).ok();
        let again = asked_again(&world, &asked);
        let is_shown = |question: &Value| {
            question["change"].as_str().unwrap().contains(", mode 0755 (executable)\n")
        };
        assert_eq!([&asked, &again].map(is_shown), [false, from == file]);
        end(child).denied("payments");
        assert!(!world.path(&to).exists());
    }
}

/// A line end in a name began a line in the head of the difference.
#[test]
fn a_name_forges_no_line_of_the_question() {
    let world = world();
    let name = "src/payments/a\n+forged \u{1b}[31m\n  rule `fake` (p.toml:1)";
    let shown = "src/payments/a\\n+forged \\u{1b}[31m\\n  rule `fake` (p.toml:1)";
    let moves = ["mv", name, "src/payments/b"];
    let calls: [(&[&str], &str, &str); 3] = [
        (&["rm", name], "real\n", "--- a/{}\n+++ /dev/null\n@@ -1 +0,0 @@\n-real\n"),
        (&["rm", name], "", "removes the empty file \"{}\""),
        (&moves, "real\n", "renames \"{}\" to `src/payments/b`, mode 0644\n--- /dev/null\n"),
    ];
    for (args, content, expected) in calls {
        world.file(name, content);
        let child = begin(&world, args, "");
        let asked = waiting(&world, 1).remove(0);
        let listed = world.run(&["approve"]).ok().text().to_owned();
        world.run(&["approve", "--reject", &id(&asked)]).ok();
        end(child).denied("payments");
        let change = asked["change"].as_str().unwrap();
        assert!(change.starts_with(&expected.replace("{}", shown)), "{change}");
        let forged = |line: &&str| line.starts_with("  +forged") || line.contains("rule `fake`");
        let forged: Vec<_> = listed.lines().filter(forged).collect();
        assert!(forged.iter().all(|line| line.contains("a\\n+forged")), "{forged:?}");
    }
}

/// Everything else takes the beginning of an identifier.
#[test]
fn yes_takes_the_beginning_of_an_identifier() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    let unknown = if asked.starts_with('0') { "1" } else { "0" };
    assert_eq!(world.run(&["approve", "--yes", unknown]).code, 1);
    world.run(&["approve", "--yes", &asked[..4]]).ok();
    end(child).ok();
}

/// `approve` said that it was approved, and nothing of the new question.
#[test]
fn what_is_asked_again_is_said_to_wait_again() {
    let world = world();
    let child =
        begin(&world, &["edit", "src/payments/card.ts", "--old", "two", "--new", "TWO"], "");
    let mut asked = waiting(&world, 1).remove(0);
    // The command looks for a moment only, which is too short for a busy machine.
    let is_told = (0..20).any(|round| {
        world.file("src/payments/card.ts", format!("one\ntwo\n{round}\n"));
        let told = world.run(&["approve", "--yes", &id(&asked)]).ok();
        asked = next_question(&world, &asked);
        told.stderr.contains(&format!("path waits as {}:", id(&asked)))
    });
    assert!(is_told, "{asked}");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    end(child).ok();
    assert!(world.read("src/payments/card.ts").starts_with("one\nTWO\n"));
}

#[test]
fn it_can_be_answered_once_only() {
    let world = world();
    let child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    world.run(&["approve", "--reject", &asked]).ok();
    // The approval is not taken, whether the command is still there or gone.
    let again = world.run(&["approve", "--yes", &asked]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(
        again.stderr.contains("needs no answer any more: rejected by ")
            || again.stderr.contains("no question"),
        "{again:?}"
    );
    end(child).denied("payments");
    let unknown = world.run(&["approve", "00000000", "--json"]);
    assert_eq!(unknown.code, 1);
    assert_eq!(unknown.json()["ok"], false);
    assert!(!world.path("src/payments/a.ts").exists());
}

/// An approval of a question that was not shown was rejected, although it may
/// have come only then.
#[test]
fn approving_what_does_not_wait_answers_nothing() {
    let world = world();
    world.run(&["fs", "ls"]).ok();
    let approvals = world.state().join("approvals");
    std::fs::create_dir_all(&approvals).unwrap();
    let listener = UnixListener::bind(approvals.join("0.sock")).unwrap();
    std::fs::write(approvals.join("0.nonce"), "nonce").unwrap();
    let gateway = std::thread::spawn(move || {
        let mut heard = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            let mut line = String::new();
            BufReader::new(&client).read_line(&mut line).unwrap();
            if line.is_empty() {
                break;
            }
            heard.push(serde_json::from_str::<Value>(&line).unwrap()["request"].clone());
            (&client).write_all(b"{\"waiting\":[]}\n").unwrap();
        }
        heard
    });
    for args in [&["approve", "00000000"][..], &["approve", "00000000", "--json"]] {
        let ended = world.run(args);
        assert_eq!(ended.code, 1, "{ended:?}");
    }
    // Ends the gateway.
    drop(UnixStream::connect(approvals.join("0.sock")).unwrap());
    assert_eq!(gateway.join().unwrap(), ["list", "list"]);
}

#[test]
fn several_wait_side_by_side_and_nothing_else_waits() {
    let world = world();
    let first = begin(&world, &["write", "src/payments/a.ts"], "a");
    let second = begin(&world, &["write", "src/payments/b.ts"], "b");
    let asked = waiting(&world, 2);
    world.write("src/a.ts", "goes on").ok();
    let of = |name: &str| {
        id(asked.iter().find(|item| item["path"].as_str().unwrap().ends_with(name)).unwrap())
    };
    world.run(&["approve", "--yes", &of("b.ts")]).ok();
    end(second).ok();
    assert_eq!(waiting(&world, 1).len(), 1);
    world.run(&["approve", "--reject", &of("a.ts")]).ok();
    end(first).denied("payments");
    // The rejection and the denial of its request were counted, but one of them by a report.
    let found = |options: &[&str]| {
        let query = [&["audit", "query", "--json", "--decision", "deny"], options].concat();
        world.run(&query).ok().text().lines().count()
    };
    let report = world.base().join("report.json");
    world.run(&["audit", "report", "-o", report.to_str().unwrap()]).ok();
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!((found(&[]), &report["denied"]["total"]), (1, &json!(1)));
    assert_eq!(found(&["--kind", "approval"]), 1);
}

#[test]
fn a_gateway_that_was_killed_leaves_nothing_to_answer() {
    let world = world();
    let mut child = begin(&world, &["write", "src/payments/a.ts"], "a");
    let asked = id(&waiting(&world, 1)[0]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(waiting(&world, 0).is_empty());
    assert_eq!(world.run(&["approve", "--yes", &asked]).code, 1);
    // The next gateway clears up.
    world.fs(&["read", "src/a.ts"]).ok();
    assert_eq!(std::fs::read_dir(world.state().join("approvals")).unwrap().count(), 0);
    assert!(!world.path("src/payments/a.ts").exists());
}

/// It had options of gateways, which mean nothing there.
#[test]
fn approve_takes_the_options_that_it_uses() {
    let world = world();
    let help = world.run(&["approve", "--help"]).ok().text().to_owned();
    assert!(help.contains("--state"), "{help}");
    for option in ["--policy", "--adopt", "--agent"] {
        assert!(!help.contains(option), "{option}: {help}");
        assert_eq!(world.run(&["approve", option, "default", "--list"]).code, 2, "{option}");
    }
}
