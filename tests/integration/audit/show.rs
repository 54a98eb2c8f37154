//! `portcullis audit show`: what it prints, filters and follows.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::Stdio,
};

use portcullis_audit::{Chain, Draft, Kind, Prepared};
use serde_json::Value;

use crate::common::World;

/// A state directory with a log of these records.
fn world_with(records: &[(Kind, Draft)]) -> World {
    let world = World::new();
    let mut chain = Chain::new();
    let mut lines = Vec::new();
    for (seq, (kind, draft)) in records.iter().enumerate() {
        let record = Prepared::new(*kind, draft, [seq as u8; 16]).unwrap();
        let time = format!("2026-11-{:02}T08:00:00.000000Z", seq + 1);
        chain.append(&record, &time, &mut lines);
    }
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit).unwrap();
    set_mode(&world.state(), 0o700);
    std::fs::write(audit.join("seg-000000.jsonl"), lines).unwrap();
    world
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap();
}

fn request(agent: &str, session: &str, op: &str, path: &str, decision: &str) -> Draft {
    let text = |text: &str| Some(text.to_owned());
    Draft {
        agent: text(agent),
        session: text(session),
        op: text(op),
        path: text(path),
        decision: text(decision),
        rule: text("allowedPaths.write"),
        ..Draft::default()
    }
}

fn several() -> World {
    let outcome = Draft {
        of: Some(2),
        result: Some("ok".to_owned()),
        ..request("b", "s2", "write", "src/a.rs", "allow")
    };
    world_with(&[
        (Kind::Start, Draft { agent: Some("b".to_owned()), ..Draft::default() }),
        (Kind::Decision, request("a", "s1", "read", "README.md", "allow")),
        (Kind::Intent, request("b", "s2", "write", "src/a.rs", "allow")),
        (Kind::Outcome, outcome),
        (Kind::Decision, request("a", "s1", "read", "a\nb\u{1b}[2J.env", "deny")),
        (
            Kind::Intent,
            Draft { to: Some("src/b.rs".to_owned()), ..request("a", "s3", "rename", "x", "allow") },
        ),
    ])
}

#[test]
fn show_prints_a_line_for_each_record() {
    let world = several();
    let done = world.run(&["audit", "show"]).ok();
    insta::assert_snapshot!(done.text(), @r"
0  2026-11-01 08:00:00Z  start      -      -        b             -
1  2026-11-02 08:00:00Z  decision   allow  read     a             README.md  rule=allowedPaths.write
2  2026-11-03 08:00:00Z  intent     allow  write    b             src/a.rs  rule=allowedPaths.write
3  2026-11-04 08:00:00Z  outcome    ok     write    b             src/a.rs  rule=allowedPaths.write  of=2
4  2026-11-05 08:00:00Z  decision   deny   read     a             a\nb\u{1b}[2J.env  rule=allowedPaths.write
5  2026-11-06 08:00:00Z  intent     allow  rename   a             x  to=src/b.rs  rule=allowedPaths.write
");
}

/// It was the one command for reading that took no copy of a log.
#[test]
fn show_reads_a_copy_of_a_log() {
    let world = several();
    let copy = world.base().join("copy");
    std::fs::rename(world.state().join("audit"), &copy).unwrap();
    let args = ["audit", "show", "--dir", copy.to_str().unwrap(), "--last", "1"];
    assert_eq!(world.run(&args).ok().text().lines().count(), 1);
    assert_eq!(world.run(&args[..2]).code, 1);
}

#[test]
fn show_filters() {
    let world = several();
    let shown = |args: &[&str]| -> String {
        let done = world.run(&[&["audit", "show", "--json"], args].concat()).ok();
        let seqs: Vec<_> = done
            .text()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].to_string())
            .collect();
        seqs.join(" ")
    };
    assert_eq!(shown(&[]), "0 1 2 3 4 5");
    assert_eq!(shown(&["--agent", "a"]), "1 4 5");
    assert_eq!(shown(&["--session", "s2"]), "2 3");
    assert_eq!(shown(&["--op", "read", "--op", "rename"]), "1 4 5");
    assert_eq!(shown(&["--path", "src"]), "2 3 5");
    assert_eq!(shown(&["--path", "README.md", "--path", "x"]), "1 5");
    assert_eq!(shown(&["--decision", "deny"]), "4");
    assert_eq!(shown(&["--kind", "intent"]), "2 5");
    assert_eq!(shown(&["--since", "2026-11-04"]), "3 4 5");
    assert_eq!(shown(&["-n", "2"]), "4 5");
    assert_eq!(shown(&["--last", "0"]), "");
    assert_eq!(shown(&["--last", "99"]), "0 1 2 3 4 5");
    assert_eq!(shown(&["--last", "1", "--agent", "b"]), "3");
    assert_eq!(shown(&["--since", "1h"]), "", "the log is from the past");
    let done = world.run(&["audit", "show", "--since", "someday"]);
    assert_eq!(done.code, 2);
}

#[test]
fn show_last_reads_over_the_end_of_a_segment() {
    let world = World::new();
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit).unwrap();
    let mut chain = Chain::new();
    let record = Prepared::new(Kind::Decision, &Draft::default(), [0; 16]).unwrap();
    for (name, count) in [("seg-000000.jsonl", 65_536), ("seg-000001.jsonl", 2)] {
        let mut lines = Vec::new();
        for _ in 0..count {
            chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
        }
        std::fs::write(audit.join(name), lines).unwrap();
    }
    let done = world.run(&["audit", "show", "-n", "3"]).ok();
    let seqs: Vec<_> = done.text().split_whitespace().filter(|word| word.len() == 5).collect();
    assert_eq!(seqs, ["65535", "65536", "65537"]);
}

#[test]
fn show_follows_a_log_that_grows() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let mut child = world
        .command(&["audit", "show", "--follow", "--json", "--kind", "outcome"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["path"], "a.txt");
    for name in ["b.txt", "c.txt"] {
        world.write(name, "new").ok();
        assert_eq!(next()["path"], name);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Records that a recovery wrote in the place of shown ones were skipped.
#[test]
fn show_follows_a_log_over_a_recovery() {
    let world = World::new();
    for name in ["a.txt", "b.txt", "c.txt"] {
        world.write(name, "x").ok();
    }
    let before = world.records().len();
    let mut child = world
        .command(&["audit", "show", "--follow", "--json", "-n", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    for seq in 0..before {
        assert_eq!(next()["seq"], seq);
    }
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    let mut changed: Vec<_> = text.split_inclusive('\n').map(str::to_owned).collect();
    changed[6] = changed[6].replacen("\"t\":\"2", "\"t\":\"3", 1);
    std::fs::write(&segment, changed.concat()).unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    world.write("d.txt", "x").ok();
    let mut shown = Vec::new();
    while shown
        .last()
        .is_none_or(|record: &Value| record["path"] != "d.txt" || record["kind"] != "outcome")
    {
        shown.push(next());
    }
    child.kill().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    child.wait().unwrap();
    let records = world.records();
    let first = shown.iter().position(|record| record["kind"] == "recovered").unwrap();
    let from = usize::try_from(shown[first]["seq"].as_u64().unwrap()).unwrap();
    assert!(from <= 6, "{shown:?}");
    assert_eq!(shown[first..], records[from..from + shown.len() - first], "{shown:?}");
    assert!(stderr.contains(&format!("the log changed: from record {from} on")), "{stderr}");
}

#[test]
fn show_says_that_a_line_is_no_record() {
    let world = several();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("{\"v\":1,\"seq\":1", "{\"v\":1,\"v\":1", 1)).unwrap();
    let done = world.run(&["audit", "show"]);
    assert_eq!((done.code, done.text().lines().count()), (5, 5));
    insta::assert_snapshot!(done.stderr, @r"
note: the log was not verified; `portcullis audit verify` does that
portcullis: 1 line of the log is not a record
  help: `portcullis audit verify` says what is wrong
");
}

#[test]
fn a_removed_record_hides_no_other() {
    let world = several();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    let mut lines: Vec<_> = text.split_inclusive('\n').collect();
    lines.remove(2);
    std::fs::write(&segment, lines.concat()).unwrap();
    let out = world.base().join("out");
    let out = out.to_str().unwrap();
    for args in [&["show", "--json"][..], &["query", "--json"]] {
        let done = world.run(&[&["audit"], args].concat());
        assert_eq!(
            (done.code, done.text().lines().count()),
            (5, lines.len()),
            "{args:?}: {done:?}"
        );
    }
    let report = format!("{out}.json");
    assert_eq!(world.run(&["audit", "report", "-o", &report]).code, 5);
    let csv = format!("{out}.csv");
    assert_eq!(world.run(&["audit", "export", "--format", "csv", "-o", &csv]).code, 5);
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), lines.len() + 1);
    let query = world.run(&["audit", "query"]);
    assert!(query.stderr.contains("line 3 of seg-000000.jsonl is record 3, not 2"), "{query:?}");
    assert!(!query.stderr.contains("line 4 of"), "{query:?}");
}

/// It named ten and was silent about the rest.
#[test]
fn show_says_how_many_damages_it_does_not_name() {
    let world = several();
    for number in 1..=14 {
        std::fs::write(world.state().join(format!("audit/seg-none-{number}")), "").unwrap();
    }
    for command in ["show", "query"] {
        let done = world.run(&["audit", command]);
        assert_eq!(done.code, 5, "{done:?}");
        let named = done.stderr.matches("seg-").count();
        let more = done.stderr.split("and ").filter_map(|text| text.split_once(" more"));
        let more: Vec<usize> = more.filter_map(|(number, _)| number.parse().ok()).collect();
        assert_eq!((named, more), (10, vec![4]), "{command} {done:?}");
    }
}

#[test]
fn a_segment_with_the_largest_number_is_damage_and_nothing_more() {
    let world = several();
    let audit = world.state().join("audit");
    let largest = audit.join(format!("seg-{}.jsonl", u64::MAX));
    std::fs::rename(audit.join("seg-000000.jsonl"), largest).unwrap();
    let out = world.base().join("out");
    let out = out.to_str().unwrap();
    let (report, csv) = (format!("{out}.json"), format!("{out}.csv"));
    let commands: [&[&str]; 5] = [
        &["query"],
        &["show"],
        &["session"],
        &["report", "-o", &report],
        &["export", "--format", "csv", "-o", &csv],
    ];
    for args in commands {
        let done = world.run(&[&["audit"], args].concat());
        // No segment has such a number, and without segments there is little to show.
        assert!(matches!(done.code, 0 | 5), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked"), "{args:?}: {done:?}");
    }
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = several();
    let mut child = world
        .command(&["audit", "show", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut chain = Chain::after(
        std::fs::read(world.state().join("audit/seg-000000.jsonl"))
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap()
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap(),
    )
    .unwrap();
    let record = Prepared::new(Kind::Stop, &Draft::default(), [9; 16]).unwrap();
    let mut bytes = Vec::new();
    chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut bytes);
    let segment = world.state().join("audit/seg-000000.jsonl");
    std::fs::OpenOptions::new().append(true).open(segment).unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(0), 1), "{stderr}");
    assert!(stderr.contains("not verified"), "{stderr}");
}
