//! Long work shows a bar, on a terminal only, and never among the output.

use std::process::Command;

use super::policy_file;
use crate::common::{World, done};

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
    let command = world.command(&args);
    let mut terminal = Command::new("/usr/bin/python3");
    terminal.args(["-c", TERMINAL]).arg(command.get_program()).args(command.get_args());
    terminal.current_dir(world.base()).env("PORTCULLIS_WORKSPACE", world.root());
    terminal.env("PORTCULLIS_STATE", world.state()).env("TERM", "xterm");
    let shown = done(terminal.output().unwrap()).ok();
    let (bar, output) = shown.text().split_once("\n=====\n").unwrap();
    assert!(bar.contains("asking ") && bar.contains('%'), "{bar:?}");
    assert_eq!(output.as_bytes(), plain.stdout);
}
