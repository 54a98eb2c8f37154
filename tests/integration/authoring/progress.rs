//! Long work shows a bar, on a terminal only, and never among the output.

use std::{collections::BTreeMap, process::Command};

use super::policy_file;
use portcullis_audit::{Draft, Kind};

use crate::{
    common::{Done, World, done},
    review::write_log,
};

/// Runs a program with a terminal as its stderr; prints what the terminal
/// showed, then a line, then the output.
const TERMINAL: &str = r"
import os, pty, subprocess, sys, threading
ours, theirs = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=theirs)
os.close(theirs)
shown = b''
def look():  # all the time: a full terminal would hold the child up
    global shown
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass
looking = threading.Thread(target=look)
looking.start()
output = child.communicate()[0]
looking.join()
sys.stdout.buffer.write(shown + b'\n=====\n' + output)
sys.exit(child.returncode)
";

/// Returns the output of the command on a terminal as its stderr, and its end.
#[track_caller]
fn on_terminal(world: &World, args: &[&str]) -> (String, Done) {
    let command = world.command(args);
    let mut terminal = Command::new("/usr/bin/python3");
    terminal.args(["-c", TERMINAL]).arg(command.get_program()).args(command.get_args());
    terminal.current_dir(world.base()).env("PORTCULLIS_WORKSPACE", world.root());
    terminal.env("PORTCULLIS_STATE", world.state()).env("TERM", "xterm");
    let mut done = done(terminal.output().unwrap());
    let text = done.text().to_owned();
    let (bar, output) = text.split_once("\n=====\n").unwrap();
    done.stdout = output.as_bytes().to_owned();
    (bar.to_owned(), done)
}

#[test]
fn on_a_terminal_and_nowhere_else() {
    let world = World::new();
    world.file("a.txt", "a");
    let policy = |directory: &str| {
        let patterns: String =
            (0..6000).map(|number| format!("\"{directory}/s{number}/**\",")).collect();
        format!("schema = 1\n[allowedPaths]\nread = [{patterns}]\n")
    };
    policy_file(&world, "old.toml", &policy("a"));
    policy_file(&world, "new.toml", &policy("b"));
    let args = ["policy", "diff", "old.toml", "new.toml", "--agent", "bot", "--json"];
    let plain = world.run(&args).ok();
    assert_eq!(plain.stderr, "");
    let (bar, shown) = on_terminal(&world, &args);
    assert!(bar.contains("asking ") && bar.contains('%'), "{bar:?}");
    assert_eq!(shown.ok().stdout, plain.stdout);
}

/// Writes a log of changes whose records are large, each with its outcome.
fn large_log(world: &World, changes: u64) {
    write_log(world, 2 * changes, |seq| {
        let mut draft = Draft { path: Some("a.txt".to_owned()), ..Draft::default() };
        draft.op = Some("write".to_owned());
        draft.session = Some("s".to_owned());
        if seq % 2 == 0 {
            let pad = ("pad".to_owned(), "x".repeat(1_000_000).into());
            draft.facts = Some(BTreeMap::from([pad]));
            return (Kind::Intent, draft);
        }
        draft.of = Some(seq - 1);
        draft.result = Some("ok".to_owned());
        (Kind::Outcome, draft)
    });
}

#[test]
fn blame_shows_how_much_of_a_large_log_it_has_read() {
    let world = World::new();
    large_log(&world, 80);
    let args = ["audit", "blame", "a.txt", "--no-index", "--json"];
    let plain = world.run(&args).ok();
    assert!(!plain.stderr.contains("reading"), "{plain:?}");
    let (bar, shown) = on_terminal(&world, &args);
    assert!(bar.contains("reading ") && bar.contains("MiB"), "{bar:?}");
    assert_eq!(shown.ok().stdout, plain.stdout);
}

/// All of them were kept in memory, as many as there were.
#[test]
fn changes_are_kept_up_to_a_bound() {
    let world = World::new();
    world.file("a.txt", "a");
    large_log(&world, 140);
    let blamed = world.run(&["audit", "blame", "a.txt", "--json"]);
    assert_eq!((blamed.code, &blamed.json()["ok"]), (1, &false.into()), "{blamed:?}");
    // A change that only a few records mention is no matter.
    world.run(&["audit", "blame", "b.txt"]).ok();
    let undone = world.run(&["backup", "undo", "--session", "s", "--yes"]);
    assert_eq!(undone.code, 1, "{undone:?}");
    assert!(undone.stderr.contains("record 26"), "{undone:?}");
    assert_eq!(world.read("a.txt"), "a");
}
