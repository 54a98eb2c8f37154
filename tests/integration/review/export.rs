//! `audit export`.

use std::{path::PathBuf, process::Command};

use portcullis_audit::{Draft, Hash, Kind};
use serde_json::Value;

use super::{HOSTILE, assert_visible, decision, write_log};
use crate::{
    common::{Done, World},
    fast_agent::peers,
};

pub(super) fn export(world: &World, format: &str, args: &[&str]) -> Done {
    world.run(&[&["audit", "export", "--format", format], args].concat())
}

/// Python with the packages of `tests/peers/requirements.txt`.
pub(super) fn python(script: &str, args: &[&str]) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script);
    let output = Command::new(peers().join("bin/python")).arg(script).args(args).output();
    let output = output.expect("`tests/run.sh setup` makes the virtual environment");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A log with every operation, allowed, denied, failed and unsettled.
fn varied(world: &World) {
    world.file("src/a.rs", "fn a() {}\n");
    world.write("src/b.rs", "b").ok();
    world.write("src/b.rs", "bb").ok();
    world.run_with_input(&["fs", "append", "src/b.rs"], "c").ok();
    world.fs(&["read", "src/b.rs"]).ok();
    world.fs(&["stat", "src/b.rs"]).ok();
    world.fs(&["ls", "."]).ok();
    world.fs(&["mkdir", "dir"]).ok();
    world.fs(&["mv", "src/b.rs", "dir/c.rs"]).ok();
    world.fs(&["rm", "-r", "dir"]).ok();
    world.run(&["backup", "restore", "dir"]).ok();
    world.fs(&["read", "nothing"]);
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world.write(".git/config", "x").denied("git");
}

#[test]
fn ocsf_events_validate_against_the_published_schema() {
    let world = World::new();
    varied(&world);
    let file = world.base().join("events.jsonl");
    let done = export(&world, "ocsf", &["-o", file.to_str().unwrap()]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests = world.requests();
    let intents = requests.iter().filter(|r| r["kind"] == "intent").count();
    let decisions = requests.iter().filter(|r| r["kind"] == "decision").count();
    assert_eq!(events.len(), intents + decisions);
    assert!(done.stderr.contains(&format!("\n{} events", events.len())), "{}", done.stderr);
    assert_eq!(python("ocsf.py", &[file.to_str().unwrap()]), format!("{} valid\n", events.len()));

    // The events agree with the log.
    let ids: Vec<_> = events.iter().map(|e| e["activity_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 3, 3, 2, 8, 2, 1, 5, 4, 1, 2, 2, 3]);
    let renamed = &events[7];
    assert_eq!(renamed["file"]["path"], "src/b.rs");
    assert_eq!(renamed["file_result"]["path"], "dir/c.rs");
    let overwritten = &events[1];
    assert_eq!(overwritten["file"]["hashes"][0]["value"], Hash::of(b"b").to_string());
    assert_eq!(overwritten["file_result"]["hashes"][0]["value"], Hash::of(b"bb").to_string());
    assert_eq!((&overwritten["status_id"], &overwritten["action_id"]), (&1.into(), &1.into()));
    let failed = &events[10];
    assert_eq!((&failed["status_id"], &failed["status_code"]), (&2.into(), &"notFound".into()));
    let denied = &events[11];
    assert_eq!((&denied["action_id"], &denied["disposition_id"]), (&2.into(), &2.into()));
    assert_eq!(denied["authorizations"][0]["policy"]["name"], "secrets.names[0]");
    assert_eq!(denied["file"]["type_id"], 0);
    let uid = denied["metadata"]["uid"].as_str().unwrap();
    let seq = denied["metadata"]["sequence"].as_u64().unwrap();
    let segment = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    let line = segment.lines().nth(usize::try_from(seq).unwrap()).unwrap();
    assert_eq!(uid, Hash::leaf(line.as_bytes()).to_string());
    // The validator can refuse.
    std::fs::write(&file, text.replacen("\"class_uid\":1001", "\"class_uid\":1002", 1)).unwrap();
    let wrong = std::panic::catch_unwind(|| python("ocsf.py", &[file.to_str().unwrap()]));
    assert!(wrong.is_err());
}

#[test]
fn hostile_and_unsettled_requests_are_valid_events_too() {
    let world = World::new();
    write_log(&world, 4, |seq| {
        let mut draft = decision(HOSTILE, HOSTILE, HOSTILE, "deny", HOSTILE);
        draft.findings = Some(vec![serde_json::json!({ "rule": HOSTILE })]);
        match seq {
            0 => (Kind::Decision, draft),
            // Without what an event could do with.
            1 => (Kind::Decision, Draft { path: Some("/".to_owned()), ..Draft::default() }),
            2 => (
                Kind::Intent,
                Draft {
                    op: Some("write".to_owned()),
                    path: Some("a/b".to_owned()),
                    ..Draft::default()
                },
            ),
            _ => (Kind::Decision, Draft { path: None, to: None, ..draft }),
        }
    });
    let file = world.base().join("events.jsonl");
    let path = file.to_str().unwrap();
    export(&world, "ocsf", &["-o", path, "--device", "build-7"]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_visible(&text);
    assert_eq!(python("ocsf.py", &[path]), "4 valid\n");
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["status_id"], &last["device"]["hostname"]), (&0.into(), &"build-7".into()));
}

/// Denials of requests without a path, such as commands and messages, were left out: OCSF had fewer
/// denials than the report and the query.
#[test]
fn every_denial_of_the_report_is_an_event() {
    let world = World::new();
    let about = |op: &str, path: Option<&str>| Draft {
        path: path.map(str::to_owned),
        rule: None,
        ..decision("a", op, "", "deny", "git")
    };
    write_log(&world, 4, |seq| match seq {
        0 => (Kind::Decision, about("read", Some("a.txt"))),
        1 => (Kind::Decision, about("acp.dropped", None)),
        2 => {
            let facts = [("command".to_owned(), serde_json::json!(["make", "all"]))];
            (Kind::Decision, Draft { facts: Some(facts.into()), ..about("command", None) })
        }
        _ => (Kind::Decision, Draft { decision: None, ..about("acp.prompt", None) }),
    });
    let file = world.base().join("events.jsonl");
    let path = file.to_str().unwrap();
    export(&world, "ocsf", &["-o", path]).ok();
    assert_eq!(python("ocsf.py", &[path]), "3 valid\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let denied = events.iter().filter(|event| event["action_id"] == 2).count();
    let queried = world.run(&["audit", "query", "--decision", "deny", "--json"]).ok();
    assert_eq!((denied, queried.text().lines().count()), (3, 3));
    let report = world.base().join("report.json");
    world.run(&["audit", "report", "-o", report.to_str().unwrap()]).ok();
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["denied"]["total"], 3);
    let classes: Vec<_> = events.iter().map(|event| event["class_name"].clone()).collect();
    assert_eq!(classes, ["File System Activity", "API Activity", "API Activity"]);
    assert_eq!(events[2]["api"]["operation"], "command");
    assert!(events[2]["message"].as_str().unwrap().contains("make all"), "{}", events[2]);
}

#[test]
fn csv_has_a_row_for_each_record_whatever_is_in_it() {
    let world = World::new();
    varied(&world);
    world.fs(&["read", HOSTILE]);
    let done = export(&world, "csv", &[]).ok();
    assert_visible(done.text());
    let file = world.base().join("log.csv");
    std::fs::write(&file, &done.stdout).unwrap();
    let rows: Vec<Value> =
        serde_json::from_str(&python("rows.py", &[file.to_str().unwrap()])).unwrap();
    let records = world.records();
    assert_eq!(rows.len(), records.len());
    for (row, record) in rows.iter().zip(&records) {
        for field in ["kind", "agent", "op", "rule", "after", "result", "t"] {
            assert_eq!(
                row[field].as_str().unwrap(),
                record[field].as_str().unwrap_or(""),
                "{field}"
            );
        }
        for (_, sandbox) in row.as_object().unwrap() {
            let sandbox = sandbox.as_str().unwrap();
            assert!(!sandbox.starts_with(['=', '+', '-', '@', '\t']), "{sandbox:?}");
        }
    }
}

/// A reader that separates at `;` found formulas in names.
#[test]
fn a_name_with_a_semicolon_made_a_formula_for_some_spreadsheets() {
    let world = World::new();
    for name in ["a;=1+1;b", "a; @x", "a;\"=2\"", ";-3", "a;b"] {
        world.write(name, "x").ok();
    }
    let csv = export(&world, "csv", &[]).ok();
    let mut cells = csv.text().lines().flat_map(|line| line.split(';'));
    let formula =
        |cell: &&str| cell.trim_start_matches(['"', ' ']).starts_with(['=', '+', '-', '@']);
    assert_eq!(cells.find(formula), None);
    let row = csv.text().lines().find(|line| line.contains("1+1")).unwrap();
    assert!(row.contains("\"a;'=1+1;b\""), "{row}");
}

#[cfg(feature = "parquet")]
#[test]
fn duckdb_reads_the_parquet_file() {
    let world = World::new();
    // More than one row group.
    write_log(&world, 70_000, |seq| {
        let mut draft = decision("coder", "read", &format!("f{}", seq % 100), "allow", "r");
        draft.line = (seq % 2 == 0).then_some(seq);
        draft.would_deny = (seq % 3 == 0).then_some(true);
        if seq == 69_999 {
            draft.path = Some(HOSTILE.to_owned());
            draft.bytes = Some(u64::MAX);
            draft.facts = Some([("a".to_owned(), 1.into())].into());
        }
        (Kind::Decision, draft)
    });
    let file = world.base().join("log.parquet");
    let path = file.to_str().unwrap();
    export(&world, "parquet", &["-o", path]).ok();
    let query = |sql: &str| python("duck.py", &[path, sql]).trim_end().to_owned();
    assert_eq!(
        query("select count(*), sum(line), count(wouldDeny) from log"),
        "[[70000, 1224965000, 23334]]"
    );
    assert_eq!(query("select count(*) from log where path = 'f7' and agent = 'coder'"), "[[700]]");
    assert_eq!(
        query("select min(seq), max(seq), max(bytes) from log"),
        format!("[[0, 69999, {}]]", u64::MAX)
    );
    assert_eq!(
        query(
            "select strftime(t at time zone 'UTC', '%Y-%m-%d %H:%M:%S.%f') from log where seq = 61"
        ),
        "[[\"2026-11-01 00:01:01.000000\"]]"
    );
    let last: Value =
        serde_json::from_str(&query("select path, facts, \"of\" from log where seq = 69999"))
            .unwrap();
    assert_eq!(last, serde_json::json!([[HOSTILE, "{\"a\":1}", null]]));
    assert_eq!(export(&world, "parquet", &[]).code, 2);
}

#[test]
fn a_request_at_a_time_that_is_none_is_damage_not_left_out() {
    let world = World::new();
    write_log(&world, 3, |_| (Kind::Decision, decision("coder", "read", "src/a.rs", "allow", "r")));
    // The last line: nothing links to it.
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replace("2026-11-01T00:00:02", "2026-11-31T00:00:02")).unwrap();
    let formats = [
        ("ocsf", "2 events"),
        #[cfg(feature = "parquet")]
        ("parquet", "2 records"),
    ];
    for (format, written) in formats {
        let done = export(&world, format, &["-o", "exported"]);
        assert_eq!(done.code, 5, "{format}: {done:?}");
        assert!(done.stderr.contains(written), "{format}: {done:?}");
        assert!(done.stderr.contains("line 3 of seg-000000.jsonl: "), "{format}: {done:?}");
    }
    let verified = world.run(&["audit", "verify"]);
    assert_eq!(verified.code, 5, "{verified:?}");
    assert!(verified.text().contains("malformed-record"), "{verified:?}");
}
