//! Output of commands without a reader: one that went away, or a full disk.
//! Neither ends the process by a panic.

use std::{fs::File, io::pipe, os::unix::fs::PermissionsExt, process::Stdio};

use serde_json::Value;

use crate::{
    approvals::terminal::by_a_shell,
    common::{Done, World, done},
};

/// Commands of every kind that print, each with the exit code that it has where
/// all is taken.
const COMMANDS: [(&[&str], i32); 21] = [
    (&["policy", "diff", "default", "strict"], 0),
    (&["policy", "test", "--all", "default"], 0),
    (&["policy", "list"], 0),
    (&["policy", "show", "baseline"], 0),
    (&["policy", "schema"], 0),
    (&["policy", "explain", "read", "a.txt"], 0),
    (&["policy", "lint", "default"], 0),
    (&["fs", "read", "a.txt"], 0),
    (&["fs", "read", "a.txt", "b.txt", "--json"], 0),
    (&["fs", "read", ".env", "--json"], 3),
    (&["backup", "list", "--json"], 0),
    (&["audit", "query"], 0),
    (&["audit", "show"], 0),
    (&["audit", "verify"], 0),
    (&["approve"], 0),
    (&["completions", "bash"], 0),
    (&["man"], 0),
    (&["--version"], 0),
    (&["--help"], 0),
    (&["fs", "read", "--help"], 0),
    (&["help", "run"], 0),
];

fn world() -> World {
    let world = World::new();
    world.file("a.txt", "a\n".repeat(100_000));
    world.file("b.txt", "b\n");
    world.write("a.txt", "a\n".repeat(100_000)).ok();
    world
}

fn run(world: &World, args: &[&str], stdout: impl Into<Stdio>) -> Done {
    done(world.command(args).stdout(stdout).output().unwrap())
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let world = world();
    for (args, code) in COMMANDS {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let found = run(&world, args, writer);
        assert_eq!(found.code, code, "{args:?}: {found:?}");
        assert!(!found.stderr.contains("panicked"), "{args:?}: {found:?}");
        assert!(!found.stderr.contains("cannot print"), "{args:?}: {found:?}");
    }
}

#[test]
fn a_full_disk_is_told() {
    let world = world();
    for (args, _) in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let found = run(&world, args, full);
        assert_eq!(found.code, 1, "{args:?}: {found:?}");
        assert!(found.stderr.contains("cannot print: No space left"), "{args:?}: {found:?}");
    }
}

#[test]
fn nobody_at_stderr_is_no_panic() {
    let world = world();
    for (args, code) in [(&["fs", "read", "gone.txt"][..], 1), (&["fs", "write", "c.txt"], 0)] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = world.command(args).stdin(Stdio::null()).stderr(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn what_cannot_be_shown_is_not_done() {
    let world = world();
    world.write("b.txt", "new\n").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let refused = |args: &[&str]| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let found = run(&world, args, full);
        assert_eq!(found.code, 1, "{args:?}: {found:?}");
        assert!(found.stderr.contains("nothing was changed: "), "{args:?}: {found:?}");
    };
    refused(&["backup", "restore", "b.txt", "--before", "1", "--yes"]);
    assert_eq!(world.read("b.txt"), "new\n");
    let damaged = std::fs::read_to_string(&segment).unwrap().replacen("b.txt", "z.txt", 1);
    std::fs::write(&segment, &damaged).unwrap();
    refused(&["audit", "recover", "--yes"]);
    assert_eq!(std::fs::read_to_string(&segment).unwrap(), damaged);
}

#[test]
fn json_for_a_terminal_escapes_what_hides_or_steers() {
    let world = World::new();
    let name = "a\u{202e}txt\u{9b}2J\u{1b}[31m.md";
    world.write(name, "new\n").denied("names.hidden");
    world.file("b.md", name);
    let commands: [(&[&str], &str); 4] = [
        (&["audit", "query", "--op", "write", "--json"], "/path"),
        (&["policy", "explain", "--record", "1", "--json"], "/record/path"),
        (&["fs", "read", "b.md", "--json"], "/content"),
        (&["fs", "grep", "a", "--json"], "/files/0/lines/0/text"),
    ];
    for (args, pointer) in commands {
        let printed = world.run(args);
        let text = printed.text();
        assert!(text.contains("\\u202e"), "{args:?}: {text}");
        let raw = text.chars().find(|c| matches!(c, '\u{202e}' | '\u{9b}' | '\u{1b}'));
        assert_eq!(raw, None, "{args:?}: {text:?}");
        let first = text.lines().next().unwrap();
        let value: Value =
            serde_json::from_str(text).or_else(|_| serde_json::from_str(first)).unwrap();
        assert_eq!(value.pointer(pointer).and_then(Value::as_str), Some(name), "{args:?}: {text}");
    }
}

/// All output went past the reader on a terminal.
#[test]
fn a_pager_shows_what_is_printed_on_a_terminal() {
    let world = world();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    let pager = r#"TERM=xterm PORTCULLIS_PAGER="sed s/^/paged:/" exec "$0" "$@""#;
    let query = ["audit", "query", "--decision", "deny"];
    let paged = by_a_shell(&world, "", pager, &query);
    let shown = paged.text();
    let rows: Vec<_> = shown.lines().filter(|line| line.starts_with("paged:")).collect();
    assert!(rows.len() >= 2 && paged.code == 0, "{paged:?}");
    // No row is wider than the terminal, and a denial is red.
    let (heads, denied) = (rows[0], rows.join("\n"));
    assert!(heads.len() <= 60 + "paged:".len(), "{heads}");
    assert!(denied.contains("\u{1b}[31m"), "{denied:?}");
    for (script, args) in [
        (pager, [&query[..], &["--no-pager"]].concat()),
        (pager, [&query[..], &["--json"]].concat()),
        (r#"PAGER= exec "$0" "$@""#, query.to_vec()),
        (r#"PORTCULLIS_PAGER=cat exec "$0" "$@""#, query.to_vec()),
    ] {
        let plain = by_a_shell(&world, "", script, &args);
        assert!(!plain.text().contains("paged:") && plain.code == 0, "{args:?}: {plain:?}");
        assert!(plain.text().contains(".env"), "{args:?}: {plain:?}");
    }
    let missing = r#"PAGER=/no/such/pager exec "$0" "$@""#;
    let unpaged = by_a_shell(&world, "", missing, &query);
    assert!(unpaged.text().contains("cannot start the pager"), "{unpaged:?}");
    assert!(unpaged.text().contains(".env") && unpaged.code == 0, "{unpaged:?}");
}

/// `PATH` often begins with `.venv/bin` or `node_modules/.bin` of the project: the agent's `less`
/// ran as the operator, outside of any sandbox.
#[test]
fn no_pager_is_found_through_the_workspace() {
    let world = world();
    let directory = world.path("bin");
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("less");
    std::fs::write(&program, "#!/bin/sh\necho agent:\ncat\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let (bin, query) = (directory.display(), ["audit", "query"]);
    for (setting, is_refused, is_paged) in [
        (format!("PATH={bin}"), false, false),
        (format!("PAGER={bin}/less"), true, false),
        // The state directory alone leads to the workspace.
        (format!("unset PORTCULLIS_WORKSPACE; cd /; PAGER={bin}/less"), true, false),
        (format!("PATH={bin}:/usr/bin PAGER='sed s/^/paged:/'"), false, true),
    ] {
        let script = format!(r#"{setting} exec "$0" "$@""#);
        let shown = by_a_shell(&world, "", &script, &query);
        let text = shown.text();
        assert!(!text.contains("agent:") && text.contains("a.txt"), "{setting}: {shown:?}");
        assert_eq!(text.contains("cannot start the pager"), is_refused, "{setting}: {shown:?}");
        assert_eq!(text.contains("paged:"), is_paged, "{setting}: {shown:?}");
    }
    std::fs::rename(&program, directory.join("sed")).unwrap();
    let script = format!(r#"PATH={bin}:/usr/bin PAGER='sed s/^/paged:/' exec "$0" "$@""#);
    let shown = by_a_shell(&world, "", &script, &query);
    assert!(shown.text().contains("paged:"), "{shown:?}");
    assert!(!shown.text().contains("agent:"), "{shown:?}");
    // A copy of a log names the workspace that its writer chose.
    let copy = world.base().join("copy");
    let log = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    std::fs::create_dir(&copy).unwrap();
    let root = world.root().display().to_string();
    std::fs::write(copy.join("seg-000000.jsonl"), log.replace(&root, "/elsewhere")).unwrap();
    std::fs::rename(directory.join("sed"), &program).unwrap();
    let script = format!(r#"unset PORTCULLIS_WORKSPACE; PAGER={bin}/less exec "$0" "$@""#);
    let shown = by_a_shell(&world, "", &script, &["audit", "query", "--dir", "copy"]);
    assert!(!shown.text().contains("agent:") && shown.text().contains("a.txt"), "{shown:?}");
}

/// Regression: only the pager itself was compared, not the interpreter that its first line names.
#[test]
fn no_pager_is_started_by_an_interpreter_of_the_workspace() {
    let world = world();
    let (directory, interpreter) = (world.base().join("tools"), world.path("py"));
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("/bin/sh", &interpreter).unwrap();
    let pager = directory.join("less");
    std::fs::write(&pager, format!("#!{}\necho agent:\ncat\n", interpreter.display())).unwrap();
    std::fs::set_permissions(&pager, PermissionsExt::from_mode(0o755)).unwrap();
    let script = format!(r#"PAGER={} exec "$0" "$@""#, pager.display());
    let shown = by_a_shell(&world, "", &script, &["audit", "query"]);
    let text = shown.text();
    assert!(!text.contains("agent:") && text.contains("a.txt"), "{shown:?}");
    assert!(text.contains("cannot start the pager"), "{shown:?}");
    std::fs::rename(&pager, directory.join("man")).unwrap();
    let script = format!(r#"PATH={} exec "$0" "$@""#, directory.display());
    let shown = by_a_shell(&world, "", &script, &["man"]);
    assert!(shown.code == 0 && !shown.text().contains("agent:"), "{shown:?}");
    // Nor one that agents of other workspaces, or of a policy, may have made: by its name, a pager is
    // looked for among the programs of the system.
    std::fs::write(directory.join("less"), "#!/bin/sh\necho agent:\ncat\n").unwrap();
    std::fs::set_permissions(directory.join("less"), PermissionsExt::from_mode(0o755)).unwrap();
    let shown = by_a_shell(&world, "", &script, &["audit", "query"]);
    assert!(!shown.text().contains("agent:") && shown.text().contains("a.txt"), "{shown:?}");
}

/// A pager that needs no text stood between the operator and the message, and one that failed was
/// taken for one that had shown the text.
#[test]
fn a_failure_starts_no_pager_and_a_failed_pager_is_told_of() {
    let world = world();
    let pager = r#"PAGER='sh -c "echo started: >&2; exit 3"' exec "$0" "$@""#;
    let failed = by_a_shell(&world, "", pager, &["audit", "query", "--dir", "/no/such/log"]);
    assert!(failed.code == 1 && !failed.text().contains("started:"), "{failed:?}");
    let lost = by_a_shell(&world, "", pager, &["audit", "query"]);
    let words = "the pager ended with exit status: 3";
    assert!(lost.text().contains("started:") && lost.text().contains(words), "{lost:?}");
}

/// The answer was empty, or a list of all commands.
#[test]
fn what_is_not_known_is_named_with_what_is_near() {
    let world = world();
    for (args, word) in [
        (&["audit", "query", "--agent", "clj"][..], "did you mean `cli`?"),
        (&["audit", "query", "--path", "a.tx"], "did you mean `a.txt`?"),
        (&["audit", "show", "--session", "zz"], "`portcullis audit session` lists them"),
        (&["audit", "query", "--op", "wirte"], "did you mean `write`?"),
        (&["audit", "query", "--rule", "allowedPaths.wirte"], "did you mean `allowedPaths.write`?"),
        (&["audit", "query", "--result", "okk"], "did you mean `ok`?"),
        (&["audit", "query", "--columns", "pth"], "did you mean `path`?"),
        (&["audit", "query", "--stats", "agnet"], "did you mean `agent`?"),
        (&["run", "--preset", "codx", "--", "x"], "did you mean `codex`?"),
        // The beginning of a name, and words of other programs.
        (&["run", "--preset", "claude", "--", "x"], "did you mean `claude-code`?"),
        (&["audit", "query", "--op", "delete"], "did you mean `remove`?"),
        (&["policy", "explain", "raed", "a.txt"], "did you mean `read`?"),
        (&["policy", "explain", "delete", "a.txt"], "did you mean `remove`?"),
        (&["policy", "explain", "--who", "x", "--can", "delete"], "did you mean `remove`?"),
        (&["check"], "`portcullis policy check`, `portcullis config check`"),
        (&["restore"], "`portcullis backup restore`"),
        (&["lint"], "`portcullis policy lint`"),
    ] {
        let done = world.run(args);
        let stderr = &done.stderr;
        let all = word.split(", ").all(|word| stderr.contains(word));
        assert!(all, "{args:?}: {stderr}");
        // Another command that looks similar was offered first.
        assert!(!stderr.contains("similar subcommand"), "{args:?}: {stderr}");
    }
}

/// Lines of tables ran over the edge of a narrow terminal, and long lists past the reader.
#[test]
fn a_list_fits_the_terminal_and_has_a_pager() {
    let world = World::new();
    let long = format!("{}/{}", "directory".repeat(6), "file".repeat(20));
    world.write(&long, "1").ok();
    world.write(&long, "2").ok();
    for args in [
        &["status"][..],
        &["log"],
        &["backup", "list"],
        &["agents"],
        &["audit", "session"],
        &["audit", "session", "last", "--records", "--no-diff"],
        &["audit", "query"],
        &["audit", "query", "--stats", "agent,op,path"],
    ] {
        let shown = by_a_shell(&world, "", r#"PAGER=cat exec "$0" "$@" 2>/dev/null"#, args);
        let widths: Vec<_> = shown.text().lines().map(|line| line.chars().count()).collect();
        assert!(shown.code == 0 && widths.len() > 1, "{args:?}: {shown:?}");
        assert!(widths.iter().all(|width| *width <= 60), "{args:?}: {shown:?}");
    }
    let pager = r#"PAGER="sed s/^/paged:/" exec "$0" "$@""#;
    let listed = by_a_shell(&world, "", pager, &["backup", "list"]);
    assert!(listed.text().contains("paged:TIME"), "{listed:?}");
    let listed = by_a_shell(&world, "", pager, &["backup", "list", "--no-pager"]);
    assert!(!listed.text().contains("paged:"), "{listed:?}");
}

/// Rows were broken within words, such as `DEC/ISION`: the headers of tables, too.
#[test]
fn no_table_breaks_a_word_on_a_terminal() {
    let world = World::new();
    world.write("src/main.rs", "fn main() {}\n").ok();
    world.write("src/main.rs", "fn main() { }\n").ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world.fs(&["rm", "src/main.rs"]).ok();
    let commands: [&[&str]; 15] = [
        &["policy", "list"],
        &["policy", "explain", "read", ".env"],
        &["agents"],
        &["status"],
        &["log"],
        &["audit", "verify", "--backups", "--policies"],
        &["audit", "query"],
        &["audit", "query", "--stats", "agent,op,decision,rule,result"],
        &["audit", "session"],
        &["audit", "session", "last", "--records"],
        &["audit", "blame", "src/main.rs", "--history"],
        &["backup", "list"],
        &["undo", "--dry-run", "--session", "last"],
        &["uninstall", "--dry-run"],
        &["doctor"],
    ];
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for args in commands {
        let on_terminal = |width: usize| {
            let script = format!(
                r#"stty cols {width}; PORTCULLIS_PAGER=cat NO_COLOR=1 exec "$0" "$@" 2>/dev/null"#
            );
            by_a_shell(&world, "", &script, args)
        };
        for width in [60, 80, 120] {
            let compared = || {
                let (shown, wide) = (on_terminal(width), on_terminal(1000));
                // Each undo is a session of its own, and free space changes.
                match args[0] {
                    "undo" | "doctor" | "status" => {
                        let same = |text: &str| {
                            let has_digit =
                                |word: &String| word.contains(|c: char| c.is_ascii_digit());
                            let words = words(text).into_iter();
                            words.filter(|word| !has_digit(word)).collect::<Vec<_>>()
                        };
                        let mut lines = shown.text().lines();
                        let long = lines.find(|line| line.chars().count() > width);
                        (same(shown.text()), same(wide.text()), long.map(str::to_owned))
                    }
                    _ => (words(shown.text()), words(wide.text()), None),
                }
            };
            // What a command finds on the machine may differ between two moments; a word that does
            // not fit is broken each time, and a line is too long each time.
            let (mut shown, mut wide, mut long) = compared();
            for _ in 0..9 {
                if shown == wide && long.is_none() && !wide.is_empty() {
                    break;
                }
                (shown, wide, long) = compared();
            }
            assert_eq!(long, None, "{args:?} at {width}");
            assert!(!wide.is_empty(), "{args:?}");
            assert_eq!(shown, wide, "{args:?} at {width}");
        }
    }
}

/// Two files looked the same in these outputs, and a diff named the file of a backslash.
#[test]
fn a_name_with_an_escape_in_it_looked_like_the_escaped_one() {
    let world = World::new();
    let names = [("f\u{200b}z", r"f\u{200b}z"), (r"f\u{200b}z", r"f\\u{200b}z")];
    for (name, _) in names {
        world.file(name, "x\n");
        world.fs(&["read", name]).ok();
    }
    let lists = [
        world.fs(&["ls"]).ok().text().to_owned(),
        world.fs(&["glob", "f*"]).ok().text().to_owned(),
        world.fs(&["grep", "x"]).ok().text().to_owned(),
        world.run(&["audit", "query", "--csv", "--columns", "path"]).ok().text().to_owned(),
        world.run(&["audit", "query", "--csv", "--stats", "path"]).ok().text().to_owned(),
    ];
    let has_both = |list: &str| {
        let other = list.replace(names[1].1, "");
        list.contains(names[1].1) && other.contains(names[0].1)
    };
    for list in lists {
        assert!(has_both(&list), "{list}");
    }
    let stats = world.run(&["audit", "query", "--stats", "path"]).ok();
    assert!(stats.text().contains("\nf\\u{200b}z "), "{stats:?}");
    assert!(stats.text().contains("\n\"f\\\\u{200b}z\" "), "{stats:?}");
    let allowed = ["policy", "explain", "--who", "cli", "--can", "read", "--json"];
    let paths = world.run(&allowed).ok().json()["paths"].clone();
    let mut expected = names.map(|(name, _)| name);
    expected.sort_unstable();
    assert_eq!(paths, serde_json::json!(expected));
    for (name, shown) in names {
        world.fs(&["rm", name]).ok();
        let session = world.run(&["audit", "session", "last", "--records"]).ok();
        assert!(session.text().contains(&format!("--- a/{shown}\n")), "{session:?}");
        let diff = world.run(&["backup", "diff", &format!("./{name}")]).ok();
        assert!(diff.text().starts_with(&format!("--- a/{shown} (backup ")), "{diff:?}");
    }
    let report = world.base().join("report.html");
    world.run(&["audit", "report", "-o", report.to_str().unwrap()]).ok();
    let report = std::fs::read_to_string(report).unwrap();
    assert!(has_both(&report), "{report}");
}
