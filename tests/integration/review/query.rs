//! `audit query`.

use std::collections::BTreeMap;

use portcullis_audit::{Draft, Kind};
use serde_json::Value;

use super::{HOSTILE, assert_visible, decision, write_log};
use crate::common::{Done, World};

fn query(world: &World, args: &[&str]) -> Done {
    world.run(&[&["audit", "query"], args].concat())
}

/// The numbers of the records that a query finds.
fn found(world: &World, args: &[&str]) -> Vec<u64> {
    let done = query(world, &[args, &["--json"]].concat()).ok();
    let seq = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap();
    done.text().lines().map(seq).collect()
}

/// Returns the gateway's records, by another parser of the same log.
fn expected(world: &World, wanted: impl Fn(&Value) -> bool) -> Vec<u64> {
    let records = world.records();
    records.iter().filter(|r| wanted(r)).map(|r| r["seq"].as_u64().unwrap()).collect()
}

/// The same text names another path as a pattern: nothing was found, without a message.
#[test]
fn a_path_with_brackets_in_its_name_is_found() {
    let world = World::new();
    world.write("app/[id]/page.tsx", "x").ok();
    for path in ["app/[id]/page.tsx", "app/[id]", "./app/[id]/", "app/*/page.tsx"] {
        let wanted = |r: &Value| r["path"] == "app/[id]/page.tsx";
        let seqs = found(&world, &["--path", path]);
        assert!(!seqs.is_empty() && seqs == expected(&world, wanted), "{path}: {seqs:?}");
        let shown = world.run(&["audit", "show", "--path", path]).ok();
        assert_eq!(shown.text().lines().count(), seqs.len(), "{path}: {shown:?}");
    }
}

#[test]
fn every_filter_finds_what_it_names_and_nothing_else() {
    let world = World::new();
    world.file("src/a.rs", "fn a() {}\n");
    world.fs(&["read", "src/a.rs"]).ok();
    world.write("src/b.rs", "b").ok();
    world.write("src/b.rs", "bb").ok();
    world.fs(&["mv", "src/b.rs", "src/c.rs"]).ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world.fs(&["read", "nothing"]);
    world.run(&["fs", "ls", ".", "--agent", "lister"]).ok();
    let after = world.last_after();

    type Predicate<'a> = Box<dyn Fn(&Value) -> bool + 'a>;
    let starts = |r: &Value, field: &str, text: &str| {
        r[field].as_str().is_some_and(|value| value.starts_with(text))
    };
    let session = world.last()["session"].as_str().unwrap()[..8].to_owned();
    let cases: Vec<(Vec<&str>, Predicate)> = vec![
        (vec![], Box::new(|_| true)),
        (vec!["--op", "read"], Box::new(|r| r["op"] == "read")),
        (
            vec!["--op", "write", "--op", "rename"],
            Box::new(|r| r["op"] == "write" || r["op"] == "rename"),
        ),
        (vec!["--kind", "intent"], Box::new(|r| r["kind"] == "intent")),
        (vec!["--agent", "lister"], Box::new(|r| r["agent"] == "lister")),
        (vec!["--decision", "deny"], Box::new(|r| r["decision"] == "deny")),
        (vec!["--rule", "secrets"], Box::new(|r| r["rule"] == "secrets.names[0]")),
        (vec!["--result", "notFound"], Box::new(|r| r["result"] == "notFound")),
        (vec!["--transport", "acp"], Box::new(|_| false)),
        (vec!["--session", &session], Box::new(|r| starts(r, "session", &session))),
        (
            vec!["--hash", &after],
            Box::new(|r| r["before"] == after.as_str() || r["after"] == after.as_str()),
        ),
        (vec!["--path", "src"], Box::new(|r| starts(r, "path", "src/") || starts(r, "to", "src/"))),
        (vec!["--path", "**/b.rs"], Box::new(|r| r["path"] == "src/b.rs")),
        (vec!["--path", "src/c.rs"], Box::new(|r| r["to"] == "src/c.rs")),
        (
            vec!["--op", "read", "--decision", "allow"],
            Box::new(|r| r["op"] == "read" && r["decision"] == "allow"),
        ),
        (vec!["--since", "2001-01-01", "--until", "2002-01-01"], Box::new(|_| false)),
    ];
    for (args, wanted) in cases {
        assert_eq!(found(&world, &args), expected(&world, wanted), "{args:?}");
    }
    let all = expected(&world, |_| true);
    assert_eq!(found(&world, &["--first", "3"]), all[..3]);
    assert_eq!(found(&world, &["--last", "3"]), all[all.len() - 3..]);
    assert_eq!(query(&world, &["--path", "src/["]).code, 2);
    assert_eq!(query(&world, &["--stats", "colour"]).code, 2);
}

impl World {
    /// The hash of what was last written.
    fn last_after(&self) -> String {
        let mut records = self.records();
        records.retain(|record| record["after"].is_string());
        records.pop().unwrap()["after"].as_str().unwrap().to_owned()
    }
}

/// 150,000 records in three segments, read in parallel.
fn long_log(world: &World) {
    write_log(world, 150_000, |seq| {
        let path = format!("src/{}/file{}.rs", seq % 7, seq % 1000);
        let effect = if seq % 10 == 0 { "deny" } else { "allow" };
        (Kind::Decision, decision("coder", "read", &path, effect, "allowedPaths.read"))
    });
}

#[test]
fn segments_that_are_read_at_once_come_in_order() {
    let world = World::new();
    long_log(&world);
    let seqs = found(&world, &["--decision", "deny"]);
    assert_eq!(seqs, (0..150_000).step_by(10).collect::<Vec<u64>>());
    assert_eq!(found(&world, &["--last", "2"]), [149_998, 149_999]);
    // From more than one segment, and from all.
    for last in [20_000, 90_000, 150_000] {
        let seqs = found(&world, &["--last", &last.to_string()]);
        assert_eq!(seqs, (150_000 - last..150_000).collect::<Vec<u64>>());
    }
    assert_eq!(found(&world, &["--first", "2"]), [0, 1]);
    assert_eq!(found(&world, &["--path", "src/0/file7.rs", "--first", "2"]), [7, 7007]);
}

#[test]
fn counts_by_any_field() {
    let world = World::new();
    long_log(&world);
    let done = query(&world, &["--stats", "decision,day", "--json"]).ok();
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in done.text().lines() {
        let group: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| group[field].as_str().unwrap().to_owned();
        counts.insert((text("decision"), text("day")), group["records"].as_u64().unwrap());
        assert_eq!(group["totalBytes"].as_u64(), group["records"].as_u64().map(|n| n * 10));
    }
    let day = |n: u64| format!("2026-11-{n:02}");
    assert_eq!(counts.len(), 4);
    assert_eq!(counts[&("deny".to_owned(), day(1))], 8640);
    assert_eq!(counts[&("allow".to_owned(), day(2))], 63_600 - 6360);
    let table = query(&world, &["--stats", "decision"]).ok();
    insta::assert_snapshot!(table.text(), @r"
    DECISION  RECORDS    BYTES
    allow      135000  1350000
    deny        15000   150000
    ");
    let csv = query(&world, &["--stats", "decision", "--csv"]).ok();
    assert!(csv.text().starts_with("decision,records,totalBytes,first,last\nallow,135000,"));
}

#[test]
fn hostile_names_stay_text_in_every_output() {
    let world = World::new();
    write_log(&world, 1, |_| {
        let draft = decision(HOSTILE, "read", HOSTILE, "deny", HOSTILE);
        (Kind::Decision, Draft { reason: Some(HOSTILE.to_owned()), ..draft })
    });
    for args in [&[][..], &["--json"], &["--csv"], &["--stats", "path,agent"]] {
        let done = query(&world, args).ok();
        assert_visible(done.text());
    }
    for args in [&["--stats", "path", "--csv"][..], &["--stats", "path", "--json"]] {
        assert_visible(query(&world, args).ok().text());
    }
    // JSON loses nothing, and CSV has no formula and one line a record.
    let json = query(&world, &["--json"]).ok().json();
    assert_eq!((json["path"].as_str(), json["rule"].as_str()), (Some(HOSTILE), Some(HOSTILE)));
    let csv = query(&world, &["--csv", "--columns", "path,agent"]).ok();
    let lines: Vec<_> = csv.text().lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("\"'=cmd|"), "{}", lines[1]);
    // And it can be searched for.
    assert_eq!(found(&world, &["--path", HOSTILE]), [0]);
    assert_eq!(found(&world, &["--agent", HOSTILE, "--rule", HOSTILE]), [0]);
}

#[test]
fn damage_is_said_and_nothing_readable_is_lost() {
    let world = World::new();
    world.write("a", "1").ok();
    world.write("b", "2").ok();
    let whole = found(&world, &[]);
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    // A line that is none, a foreign file, one that looks like a segment, and a
    // torn tail.
    let broken = text.replacen("{\"v\":1,\"seq\":2,", "{\"v\":1,\"seq\":2.5,", 1);
    std::fs::write(&segment, format!("{broken}{{\"v\":1")).unwrap();
    std::fs::write(world.state().join("audit/notes.txt"), "mine").unwrap();
    std::fs::write(world.state().join("audit/seg-1.jsonl"), "x").unwrap();
    let done = query(&world, &["--json"]);
    assert_eq!(done.code, 5, "{done:?}");
    let seen: Vec<u64> = (done.text().lines())
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seen, whole.into_iter().filter(|seq| *seq != 2).collect::<Vec<_>>());
    insta::assert_snapshot!(done.stderr, @r#"
    note: the log was not verified; `portcullis audit verify` does that
    portcullis: the audit log is damaged; what could be read of it is shown
      "seg-1.jsonl" has a name like a segment's, but is not one
      line 3 of seg-000000.jsonl: the field `seq` has a wrong type or form
      seg-000000.jsonl ends within its line 9
      help: `portcullis audit verify` says what is wrong and what to do
    "#);
    assert_eq!(query(&world, &["--stats", "op"]).code, 5);
}

#[test]
fn a_missing_segment_is_damage_and_a_missing_log_is_said() {
    let world = World::new();
    assert_eq!(query(&world, &[]).code, 1);
    long_log(&world);
    std::fs::remove_file(world.state().join("audit/seg-000001.jsonl")).unwrap();
    let done = query(&world, &["--last", "1", "--csv", "--columns", "seq"]);
    assert_eq!((done.code, done.text()), (5, "seq\n149999\n"));
    assert!(done.stderr.contains("seg-000001.jsonl is missing"), "{}", done.stderr);
}

#[test]
fn two_gateways_write_while_it_is_searched() {
    let world = World::new();
    world.write("a", "0").ok();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let world = &world;
                scope.spawn(move || {
                    for turn in 0..8 {
                        world.write(&format!("f{writer}"), format!("{turn}")).ok();
                    }
                })
            })
            .collect();
        let mut last = 0;
        while !writers.iter().all(|writer| writer.is_finished()) {
            let seqs = found(&world, &[]);
            assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());
            assert!(seqs.len() >= last);
            last = seqs.len();
        }
    });
    assert_eq!(found(&world, &["--kind", "intent", "--path", "f*"]).len(), 16);
}

/// They were printed as records, without a message.
#[test]
fn a_line_that_is_no_record_is_said_by_searches_as_by_the_verifier() {
    let world = World::new();
    world.write("a", "1").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let whole = std::fs::read_to_string(&segment).unwrap();
    let lines: Vec<_> = whole.lines().collect();
    let number = lines.iter().position(|line| line.contains("\"kind\":\"intent\"")).unwrap();
    let line = lines[number];
    let record: Value = serde_json::from_str(line).unwrap();
    let field = |name: &str| record[name].as_str().unwrap().to_owned();
    let session = field("session");
    let wrong = [
        format!("{line} "),
        format!("{line}\r"),
        line.replacen('{', "{\"x\":1,\"x\":1,", 1),
        line.replacen('{', "{\"resolved\":null,", 1),
        line.replacen(&field("after"), "ab", 1),
        line.replacen(&format!("\"nonce\":\"{}\",", field("nonce")), "", 1),
        line.replacen(&field("t"), "2026-02-30T08:00:00.000000Z", 1),
    ];
    for wrong in wrong {
        assert_ne!(wrong, line);
        std::fs::write(&segment, whole.replacen(line, &wrong, 1)).unwrap();
        let commands: [&[&str]; 5] = [
            &["verify"],
            &["query", "--json"],
            &["export", "--format", "csv"],
            &["blame", "a"],
            &["session", &session],
        ];
        for command in commands {
            let done = world.run(&[&["audit"], command].concat());
            assert_eq!(done.code, 5, "{command:?} {wrong:?}: {done:?}");
            if command[0] != "verify" {
                let said = format!("line {} of seg-000000.jsonl: ", number + 1);
                assert!(done.stderr.contains(&said), "{command:?}: {done:?}");
            }
        }
    }
}
