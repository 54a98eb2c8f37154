//! `glob` and `grep`: their results, entries that they must not find, and their records.

mod ignore;
mod lines;

use std::{
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt, symlink},
    },
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use crate::common::{Done, World};

const OPEN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n";

fn world(more: &str) -> World {
    World::with_policy(&format!("{OPEN}{more}"))
}

fn paths(done: &Done) -> Vec<String> {
    let found = done.json();
    let list = if found["entries"].is_array() { &found["entries"] } else { &found["files"] };
    list.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
}

fn glob(world: &World, args: &[&str]) -> Done {
    world.fs(&[&["glob", "--json"], args].concat())
}

fn grep(world: &World, args: &[&str]) -> Done {
    world.fs(&[&["grep", "--json"], args].concat())
}

#[test]
fn glob_finds_by_path_and_says_what_it_found() {
    let world = world("");
    for name in ["a.rs", "src/b.rs", "src/x/c.rs", "src/x/d.md", ".hidden/e.rs"] {
        world.file(name, "text");
    }
    let found = glob(&world, &["**/*.rs"]).ok();
    assert_eq!(paths(&found), [".hidden/e.rs", "a.rs", "src/b.rs", "src/x/c.rs"]);
    assert_eq!(found.json()["entries"][1]["size"], 4);
    assert_eq!(paths(&glob(&world, &["*.rs"]).ok()), ["a.rs"]);
    assert_eq!(paths(&glob(&world, &["*/*.{rs,md}", "src"]).ok()), ["src/x/c.rs", "src/x/d.md"]);
    assert_eq!(world.fs(&["glob", "src/*"]).ok().text(), "src/b.rs\nsrc/x/\n");
    assert_eq!(glob(&world, &["*.py"]).code, 1);
    let stopped = glob(&world, &["**", "--max-results", "2"]).ok().json();
    assert_eq!(
        (stopped["entries"].as_array().unwrap().len(), &stopped["stopped"]),
        (2, &json!("results"))
    );
    let record = world.last();
    assert_eq!(
        (&record["op"], &record["path"], &record["result"]),
        (&json!("glob"), &json!("."), &json!("ok"))
    );
    assert_eq!(record["counts"]["entries"], 2);
    for (pattern, start, word) in [
        ("[", ".", "pattern"),
        ("/etc/*", ".", "relative"),
        ("*", "none", "not found"),
        ("*", "a.rs", "not a directory"),
    ] {
        let done = world.fs(&["glob", pattern, start]);
        // Not 1 where nothing can be looked for at all.
        assert_eq!(done.code, if start == "." { 2 } else { 1 }, "{done:?}");
        assert!(done.stderr.contains(word), "{done:?}");
    }
    world.fs(&["glob", "*", "../"]).denied("workspace.outside");
}

#[test]
fn grep_finds_lines_with_what_stands_around_them() {
    let world = world("");
    world.file("a.txt", "one\ntwo\nTHREE\nfour\n");
    world.file("src/b.rs", "fn two() {}\r\n\tlet x = 1;\n");
    world.file("src/c.md", "two");
    let shown = world.fs(&["grep", "two"]).ok();
    assert_eq!(shown.text(), "a.txt:2:two\nsrc/b.rs:1:fn two() {}\nsrc/c.md:1:two\n");
    let shown = world.fs(&["grep", "-C1", "-i", "three", "a.txt"]).ok();
    assert_eq!(shown.text(), "a.txt-2-two\na.txt:3:THREE\na.txt-4-four\n");
    assert_eq!(
        world.fs(&["grep", "-l", "t[wh]", "--include", "*.{rs,md}"]).ok().text(),
        "src/b.rs\nsrc/c.md\n"
    );
    // A file that is named is searched, as `rg -g '*.rs' two a.txt` has it.
    let named = world.fs(&["grep", "two", "a.txt", "--include", "*.rs"]).ok();
    assert_eq!(named.text(), "a.txt:2:two\n");
    let refused = world.fs(&["grep", "two", "--include", "../x"]);
    assert!(refused.code == 2 && refused.stderr.contains("the pattern cannot be used"));
    assert_eq!(paths(&grep(&world, &["two", ".", "--include", "src/*.rs"]).ok()), ["src/b.rs"]);
    assert_eq!(paths(&grep(&world, &["-F", "two()"]).ok()), ["src/b.rs"]);
    let stopped = grep(&world, &[".", "--max-results", "3"]).ok().json();
    let lines =
        stopped["files"].as_array().unwrap().iter().map(|f| f["lines"].as_array().unwrap().len());
    assert_eq!((lines.sum::<usize>(), &stopped["stopped"]), (3, &json!("results")));
    assert_eq!(world.fs(&["grep", "nothing such"]).code, 1);
    // Something else than that nothing was found.
    assert_eq!(world.fs(&["grep", "("]).code, 2);
    assert_eq!(world.last()["result"], "invalidInput");
}

#[test]
fn what_may_not_be_seen_is_not_seen_and_what_may_not_be_read_is_not_searched() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"src/**\", \"deep/er/**\"]\nlist = [\"src/**\", \"docs/**\", \"deep/er/**\"]\n\
         [secrets]\nnames = [\".env\"]\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"list\"]\npaths = [\"src/no/**\"]\n\
         [[rules]]\nid = \"unread\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"src/unread.txt\"]\n\
         [[rules]]\nid = \"one\"\neffect = \"allow\"\noperations = [\"read\", \"list\"]\npaths = [\"closed/one.txt\"]\n\
         [[rules]]\nid = \"q\"\neffect = \"ask\"\noperations = [\"read\"]\npaths = [\"src/ask.txt\"]\n\
         [[rules]]\nid = \"qq\"\neffect = \"ask\"\noperations = [\"list\"]\npaths = [\"src/hidden-ask/**\"]\n",
    );
    for name in [
        "src/a.txt",
        "src/no/b.txt",
        "src/unread.txt",
        "src/.env",
        "src/ask.txt",
        "src/hidden-ask/c.txt",
        "docs/d.txt",
        "closed/one.txt",
        "closed/two.txt",
        "deep/er/e.txt",
        "deep/f.txt",
        "top.txt",
    ] {
        world.file(name, "needle\n");
    }
    let found = glob(&world, &["**"]).ok();
    assert_eq!(
        paths(&found),
        [
            "closed/one.txt",
            "deep/er/e.txt",
            "docs/d.txt",
            "src/a.txt",
            "src/ask.txt",
            "src/unread.txt"
        ]
    );
    assert_eq!(found.json()["skipped"], json!({}));
    assert_eq!(world.last()["rule"], "search.beneath");
    assert_eq!(world.last()["counts"]["askHidden"], 1);
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(paths(&found), ["closed/one.txt", "deep/er/e.txt", "src/a.txt"]);
    assert_eq!(found.json()["skipped"], json!({ "ask": 1, "denied": 2 }));
    // From where something may be seen, and from where nothing may.
    assert_eq!(paths(&grep(&world, &["needle", "closed"]).ok()), ["closed/one.txt"]);
    for start in ["src/no", "top.txt", "src/.env", "other"] {
        for search in ["glob", "grep"] {
            assert_eq!(world.fs(&[search, "x", start]).code, 3, "{search} {start}");
        }
    }
    world.fs(&["grep", "x", "src/unread.txt"]).denied("unread");
    // Entries that need an approval are left out, and the result states that.
    for start in ["src/ask.txt", "src/hidden-ask", "src/hidden-ask/not-there"] {
        let found = grep(&world, &["needle", start]);
        assert_eq!((found.code, &found.json()["skipped"]), (1, &json!({ "ask": 1 })), "{start}");
    }
}

#[test]
fn a_start_that_nothing_allows_answers_alike_whether_or_not_it_is_there() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"*/*/open/**\"]\nlist = [\"*/*/open/**\"]\n",
    );
    world.file("a/there/x.txt", "needle");
    world.file("a/file", "needle");
    symlink("there", world.path("a/link")).unwrap();
    std::fs::create_dir(world.path("a/closed")).unwrap();
    std::fs::set_permissions(world.path("a/closed"), PermissionsExt::from_mode(0o000)).unwrap();
    for search in ["glob", "grep"] {
        let ask = |start: &str| {
            let done = world.fs(&[search, "--json", "*", start]);
            let done =
                if search == "grep" { world.fs(&[search, "--json", ".", start]) } else { done };
            let mut answer = done.json();
            answer["receipt"].take();
            (done.code, answer, done.stderr)
        };
        let gone = ask("a/gone");
        for start in ["a/there", "a/file", "a/link", "a/closed"] {
            assert_eq!(ask(start), gone, "{search} {start}");
        }
    }
}

#[test]
fn each_file_whose_lines_are_disclosed_has_a_record_before_they_are() {
    let world = world("");
    world.file("a.txt", "needle one\nhay\n");
    world.file("b/c.txt", "hay\n");
    world.file("b/d.txt", "needle\nneedle\n");
    grep(&world, &["needle"]).ok();
    let records = world.requests();
    let [search, a, d] = records.as_slice() else { panic!("{records:#?}") };
    assert_eq!(search["counts"], json!({ "files": 2, "matches": 3, "searched": 3 }));
    assert_eq!((&search["path"], &search["bytes"]), (&json!("."), &json!(22)));
    assert_eq!(
        (&a["path"], &a["bytes"], &a["counts"]),
        (&json!("a.txt"), &json!(10), &json!({ "lines": 1, "matches": 1 }))
    );
    assert_eq!((&d["path"], &d["rule"]), (&json!("b/d.txt"), &json!("allowedPaths.read")));
    assert_eq!(d["facts"]["search"], search["seq"]);
    assert_eq!(d["before"].as_str().unwrap().len(), 64);
    // The operator may want fewer.
    let config = world.base().join("portcullis.toml");
    std::fs::write(&config, "[audit]\nsearch = \"summary\"\n").unwrap();
    world.run(&["fs", "grep", "needle", "--config", config.to_str().unwrap()]).ok();
    assert_eq!(world.requests().len(), 4);
    assert_eq!(world.last()["counts"]["files"], 2);
}

#[test]
fn secrets_are_searched_as_a_reader_sees_them() {
    const RULE: &str = "[[secrets.rules]]\nid = \"acme\"\nregex = '''acme_[0-9a-z]{8}'''\nkeywords = [\"acme_\"]\n";
    const TEXT: &str = "key = acme_q1w2e3r4\nother\n";
    let redacting = world(&format!("[secrets]\nonRead = \"redact\"\n{RULE}"));
    redacting.file("a.txt", TEXT);
    for hidden in ["q1w2", "acme_q", "acme_.1"] {
        assert_eq!(paths(&grep(&redacting, &[hidden])).len(), 0, "{hidden}");
    }
    let found = grep(&redacting, &["key"]).ok().json();
    assert_eq!(found["files"][0]["redacted"], true);
    assert!(
        found["files"][0]["lines"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("key = [portcullis-secret:acme:")
    );
    let record = redacting.last();
    assert_eq!(record["findings"][0]["rule"], "acme");
    assert!(!redacting.records().iter().any(|record| record.to_string().contains("q1w2")));
    let denying = world(RULE);
    denying.file("a.txt", TEXT);
    denying.file("b.txt", "other\n");
    let found = grep(&denying, &["other"]).ok();
    assert_eq!(
        (paths(&found), &found.json()["skipped"]),
        (vec!["b.txt".to_owned()], &json!({ "secret": 1 }))
    );
    grep(&denying, &["other", "a.txt"]);
    assert_eq!(denying.last()["counts"]["secret"], 1);
}

#[test]
fn nothing_in_a_hostile_workspace_blocks_a_search_or_leads_it_out() {
    let world = world("[files]\nmaxReadSize = \"1MiB\"\n");
    let outside = world.base().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("o.txt"), "needle").unwrap();
    std::fs::hard_link(outside.join("o.txt"), world.path("hard.txt")).unwrap();
    world.file("a/real.txt", "needle\n");
    world.file("huge.txt", "x".repeat((1 << 20) + 1));
    world.file("binary", b"needle\0");
    world.file("name\nwith\u{202e}bidi.txt", "needle \u{1b}[31m\u{202e}red\tend\n");
    world.file("long.txt", format!("{}needle{}", "ż".repeat(200_000), "x".repeat(200_000)));
    std::fs::write(world.root().join(std::ffi::OsStr::from_bytes(b"not-\xff-utf8")), "needle")
        .unwrap();
    symlink("..", world.path("a/up")).unwrap();
    symlink(".", world.path("a/loop")).unwrap();
    symlink(&outside, world.path("out")).unwrap();
    symlink("/etc/passwd", world.path("passwd")).unwrap();
    assert!(Command::new("mkfifo").arg(world.path("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(world.path("socket")).unwrap();
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(paths(&found), ["a/real.txt", "long.txt", "name\nwith\u{202e}bidi.txt"]);
    assert_eq!(
        found.json()["skipped"],
        json!({ "binary": 1, "denied": 1, "notUtf8": 1, "special": 2, "symlink": 4, "tooLarge": 1 })
    );
    let long = &found.json()["files"][1]["lines"][0];
    assert!(long["text"].as_str().unwrap().len() <= 2_000 && long["cut"] == true);
    let shown = world.fs(&["grep", "needle", "--include", "name*"]).ok();
    assert_eq!(
        shown.text(),
        "name\\nwith\\u{202e}bidi.txt:1:needle \\u{1b}[31m\\u{202e}red\tend\n"
    );
    let kinds: Vec<_> = glob(&world, &["{fifo,socket,out,a}"]).ok().json()["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["type"].clone())
        .collect();
    assert_eq!(kinds, ["directory", "other", "symlink", "other"]);
    for start in ["out", "passwd"] {
        world.fs(&["grep", "x", start]).denied("workspace.outside");
    }
    world.fs(&["grep", "x", "fifo"]).denied("files.type");
    world.fs(&["grep", "x", "hard.txt"]).denied("files.hardlinks.read");
    assert_eq!(paths(&grep(&world, &["needle", "a/loop/loop"]).ok()), ["a/real.txt"]);
}

#[test]
fn a_tree_of_ten_thousand_levels_is_searched_as_far_as_there_are_paths() {
    let world = world("");
    // No path reaches the deepest of them.
    let mut place =
        rustix::fs::open(world.root(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())
            .unwrap();
    for level in 0..10_000 {
        if level % 500 == 0 {
            let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
            let file = rustix::fs::openat(&place, "f.txt", flags, 0o600.into()).unwrap();
            rustix::io::write(&file, b"needle").unwrap();
        }
        rustix::fs::mkdirat(&place, "d", 0o700.into()).unwrap();
        place = rustix::fs::openat(
            &place,
            "d",
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
    }
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(paths(&found).len(), 2);
    assert_eq!(found.json()["skipped"], json!({ "tooDeep": 1 }));
    let below = "d/".repeat(1_800);
    let found = glob(&world, &["**/f.txt", &below]).ok();
    assert_eq!(paths(&found).len(), 1, "{:?}", found.json());
    assert_eq!(found.json()["skipped"], json!({}));
}

/// No pattern can be matched against its path, and it was counted all the same.
#[test]
fn a_denied_name_whose_path_is_too_long_is_not_counted() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let world = world("[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"**/zz*\"]\n");
    let mut place = openat(CWD, world.root(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..16 {
        mkdirat(&place, "d".repeat(249), 0o700.into()).unwrap();
        place = openat(&place, "d".repeat(249), OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let make = |name: &str| {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        rustix::io::write(openat(&place, name, flags, 0o600.into()).unwrap(), b"hit").unwrap();
    };
    make("a.txt");
    let answers = || {
        let found = [grep(&world, &["hit"]).ok(), glob(&world, &["**/*"]).ok()];
        found.map(|found| (paths(&found), found.json()["skipped"].clone()))
    };
    let before = answers();
    assert_eq!((before[0].0.len(), &before[0].1), (1, &json!({})));
    make(&format!("zz{}", "k".repeat(150)));
    assert_eq!(answers(), before);
}

#[test]
fn expressions_that_explode_end() {
    let world = world("");
    world.file("a.txt", "a".repeat(200_000));
    for pattern in ["(a+)+$b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)[^a]", "(x+x+)+y"] {
        let found = grep(&world, &[pattern]);
        assert_eq!(paths(&found).len(), 0, "{pattern}");
    }
    for pattern in ["a{1000}{1000}{1000}", "(((((.{0,999}){0,999}){0,999})))", &"(".repeat(10_000)]
    {
        let refused = world.fs(&["grep", pattern]);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains("the pattern cannot be used"), "{}", refused.stderr);
    }
}

#[test]
fn a_tree_that_changes_meanwhile_never_leads_a_search_elsewhere() {
    let world = world("[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n");
    let outside = world.base().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("x.txt"), "FORBIDDEN").unwrap();
    world.file("secret/x.txt", "FORBIDDEN");
    for number in 0..30 {
        world.file(&format!("d{number}/x.txt"), "plain");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for number in 0..30 {
                    let (name, aside) = (world.path(&format!("d{number}")), world.path("aside"));
                    let target =
                        if number % 2 == 0 { outside.as_path() } else { "secret".as_ref() };
                    std::fs::rename(&name, &aside).unwrap();
                    symlink(target, &name).unwrap();
                    std::fs::remove_file(&name).unwrap();
                    std::fs::rename(&aside, &name).unwrap();
                }
            }
        });
        for _ in 0..15 {
            let found = grep(&world, &["."]);
            assert!(!found.text().contains("FORBIDDEN"), "{}", found.text());
            let found = glob(&world, &["**"]);
            assert!(!found.text().contains("secret"), "{}", found.text());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn observing_shows_what_would_be_hidden_and_says_so() {
    let world =
        World::with_policy("schema = 1\nmode = \"observe\"\n[allowedPaths]\nread = [\"a.txt\"]\n");
    world.file("a.txt", "needle");
    world.file("b.txt", "needle");
    assert_eq!(paths(&grep(&world, &["needle"]).ok()), ["a.txt", "b.txt"]);
    let records = world.requests();
    assert_eq!(records[0]["wouldDeny"], true);
    assert_eq!((&records[1]["wouldDeny"], &records[2]["wouldDeny"]), (&Value::Null, &json!(true)));
}

#[test]
fn a_hundred_thousand_entries_need_little_memory() {
    let world = world("");
    for directory in 0..100 {
        let place = world.path(&format!("d{directory}"));
        std::fs::create_dir(&place).unwrap();
        for file in 0..1_000 {
            std::fs::File::create(place.join(format!("file-{file}"))).unwrap();
        }
    }
    let done = world.command(&["fs", "glob", "**/none"]);
    assert_eq!(peak(done), (Some(1), true));
    let done = world.command(&["fs", "grep", "none"]);
    assert_eq!(peak(done), (Some(1), true));
}

/// The exit code, and whether less than 64 MiB were resident at the most.
fn peak(mut command: Command) -> (Option<i32>, bool) {
    // It may have ended before it is looked at.
    for _ in 0..10 {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let mut peak = 0;
        let ended = loop {
            // The kernel keeps the largest value until the process ends.
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.starts_with("VmHWM:")) {
                peak = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if peak > 0 {
            return (ended.code(), peak < 64 << 10);
        }
    }
    panic!("nothing was measured");
}
