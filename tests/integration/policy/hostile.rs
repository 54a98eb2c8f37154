//! Files that are no policies: a clear error, in bounded time and memory, for
//! any content.

use std::time::{Duration, Instant};

use portcullis::{
    model::{Access, OperationKind, WorkspacePath},
    policy::{PolicySource, Query, compile},
};

use crate::common::{Done, World};

/// Longer than anything here takes on a busy machine, and less than what grows
/// without bounds.
const TIMEOUT: Duration = Duration::from_secs(120);

fn check(bytes: impl AsRef<[u8]>) -> Done {
    let world = World::new();
    std::fs::write(world.base().join("p.toml"), bytes).unwrap();
    let start = Instant::now();
    let done = world.run(&["policy", "check", "p.toml"]);
    assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
    assert_eq!(done.code, 4, "{}", done.stderr);
    assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
    assert!(done.stderr.len() < 200_000, "{} bytes of errors", done.stderr.len());
    done
}

#[track_caller]
fn refuses(bytes: impl AsRef<[u8]>, with: &str) {
    let done = check(bytes);
    assert!(done.stderr.contains(with), "{}", done.stderr);
}

#[test]
fn files_that_are_too_large() {
    refuses("# comment\n".repeat(1 << 20), "larger than 1 MiB");
    let rule = "[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\"a\"]\n";
    refuses(format!("schema = 1\n{}", rule.repeat(100_000)), "larger than 1 MiB");
}

#[test]
fn more_rules_and_patterns_than_anybody_writes() {
    let rules: String = (0..10_001)
        .map(|n| format!("[[rules]]\nid=\"r{n}\"\neffect=\"deny\"\npaths=[\"a\"]\n"))
        .collect();
    refuses(format!("schema = 1\n{rules}"), "more than 10000 rules");
    let braces = "\"{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}\",".repeat(200);
    refuses(format!("schema = 1\n[allowedPaths]\nread = [{braces}]"), "more than 20000 patterns");
}

#[test]
fn nesting() {
    refuses(format!("schema = 1\nx = {}", "[".repeat(200_000)), "not valid TOML");
    refuses(format!("schema = 1\nx = {}", "{a=".repeat(100_000)), "not valid TOML");
    refuses(format!("schema = 1\n{}x = 1", "a.".repeat(200_000)), "not valid TOML");
    refuses(format!("schema = 1\n[{}x]", "a.".repeat(200_000)), "not valid TOML");
    let braces = format!("{}{}", "{".repeat(400), "}".repeat(400));
    refuses(format!("schema = 1\n[allowedPaths]\nread = [\"{braces}\"]"), "nested more than 8");
}

#[test]
fn bytes_that_are_no_text() {
    refuses(b"schema = 1\nname = \"\xff\"\n", "not UTF-8: bad byte in line 2");
    refuses(b"\xfe\xff\x00s\x00c", "UTF-16");
    refuses(b"schema = 1\0", "not valid TOML");
    refuses(b"", "has no `schema`");
}

#[test]
fn more_errors_than_anybody_reads() {
    refuses("= = =\n".repeat(100_000), "not valid TOML");
    refuses(format!("schema = 1\n{}", "schema = 1\n".repeat(50_000)), "more errors");
    let keys: String = (0..50_000).map(|n| format!("k{n} = 1\n")).collect();
    refuses(format!("schema = 1\n{keys}"), "more errors");
}

#[test]
fn lines_that_no_terminal_shows() {
    let long = "x".repeat(500_000);
    refuses(format!("schema = 1\n{long} = 1"), "unknown key");
    refuses(format!("schema = 1\nname = \"{long}\""), "longer than 100");
    refuses(format!("schema = 1\nextends = [\"{long}\"]"), "cannot extend");
    refuses(format!("schema = 1\n[allowedPaths]\nread = [\"{long}\"]"), "longer than 1024");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let done =
        check("schema = 1\n\"\\u001b[31mred\" = 1\n[allowedPaths]\nread = [\"\u{202e}a\"]\n");
    assert!(!done.stderr.contains(['\u{1b}', '\u{202e}']), "{:?}", done.stderr);
}

#[test]
fn policies_that_extend_themselves() {
    let world = World::new();
    let write = |name: &str, extends: &str| {
        let text = format!("schema = 1\nextends = [\"{extends}\"]\n");
        std::fs::write(world.base().join(name), text).unwrap();
    };
    write("a.toml", "b.toml");
    write("b.toml", "./a.toml");
    write("self.toml", "self.toml");
    for file in ["a.toml", "self.toml"] {
        let done = world.run(&["policy", "check", file]);
        assert_eq!(done.code, 4);
        assert!(done.stderr.contains("extends itself"), "{}", done.stderr);
    }
}

#[test]
fn long_chains_and_many_policies() {
    let world = World::new();
    let write = |name: String, extends: Vec<String>| {
        let text = format!("schema = 1\nextends = {extends:?}\n");
        std::fs::write(world.base().join(name), text).unwrap();
    };
    for n in 0..20 {
        write(format!("c{n}.toml"), vec![format!("c{}.toml", n + 1)]);
        // Each extends all that follow: two to the twentieth ways through.
        write(format!("d{n}.toml"), (n + 1..20).map(|m| format!("d{m}.toml")).collect());
    }
    write("many.toml".into(), (0..100).map(|n| format!("e{n}.toml")).collect());
    (0..100).for_each(|n| write(format!("e{n}.toml"), vec![]));
    for (file, with) in [
        ("c0.toml", "more than 8 deep"),
        ("d0.toml", "more than 8 deep"),
        ("many.toml", "more than 32 files"),
    ] {
        let done = world.run(&["policy", "check", file]);
        assert_eq!(done.code, 4);
        assert!(done.stderr.contains(with), "{file}: {}", done.stderr);
    }
}

#[test]
fn files_that_are_no_files() {
    let world = World::new();
    let fifo = world.base().join("fifo.toml");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("loop.toml", world.base().join("loop.toml")).unwrap();
    std::fs::create_dir(world.base().join("dir.toml")).unwrap();
    for (file, with) in [
        ("fifo.toml", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("dir.toml", "not a regular file"),
        ("loop.toml", "symbolic links"),
        ("missing.toml", "no such file"),
    ] {
        let done = world.run(&["policy", "check", file]);
        assert_eq!(done.code, 4, "{file}: {}", done.stderr);
        assert!(done.stderr.contains(with), "{file}: {}", done.stderr);
    }
}

#[test]
fn a_pattern_full_of_wildcards_stays_fast() {
    let pattern = format!("{}b", "**/*a*a*a*a/".repeat(40));
    let text = format!("schema = 1\n[allowedPaths]\nread = [\"{pattern}\"]\n");
    let policy = compile(&PolicySource::from_text("p", &text)).unwrap();
    let path = WorkspacePath::parse(&format!("{}/a", vec!["a".repeat(250); 15].join("/"))).unwrap();
    let agent = "agent".parse().unwrap();
    let query =
        Query { agent: &agent, operation: OperationKind::Read, access: Access::Read, path: &path };
    let start = Instant::now();
    assert!(!policy.evaluate(&query).is_allow());
    assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
}
