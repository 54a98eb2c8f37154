//! Formats have versions: a newer one is refused with a message that says so, and nothing is changed.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use portcullis_audit::Hash;
use serde_json::{Value, json};

use crate::{
    approvals::{begin, end, id, waiting, world},
    common::World,
};

/// A world with a log.
fn used() -> World {
    let world = World::new();
    world.file("a.txt", "a\n");
    world.fs(&["read", "a.txt"]).ok();
    world
}

fn set_format(world: &World, text: &str) {
    std::fs::write(world.state().join("format"), text).unwrap();
}

#[test]
fn a_state_directory_of_another_format_is_refused() {
    let world = used();
    assert_eq!(std::fs::read_to_string(world.state().join("format")).unwrap(), "1\n");
    let records = world.records().len();
    for format in ["2", "0"] {
        set_format(&world, format);
        for args in [
            &["fs", "read", "a.txt"][..],
            &["run", "--", "/bin/true"],
            &["mcp"],
            &["status"],
            &["backup", "list"],
            &["approve", "--list"],
            &["log"],
            &["undo"],
            &["audit", "verify"],
            &["audit", "query"],
            &["audit", "session"],
            &["audit", "report", "-o", "/dev/null/r.html"],
            &["policy", "replay", "default"],
            &["policy", "explain", "--record", "1"],
            &["backup", "verify"],
        ] {
            let refused = world.run(args);
            let why = format!("has format {format}, and this portcullis knows format 1 only");
            assert!(refused.code != 0 && refused.stderr.contains(&why), "{args:?} {refused:?}");
        }
    }
    set_format(&world, "new\n");
    let refused = world.fs(&["ls"]);
    assert!(
        refused.stderr.contains("has an invalid format number in its file `format`"),
        "{refused:?}"
    );
    set_format(&world, "1\n");
    assert_eq!(world.records().len(), records);
    world.fs(&["read", "a.txt"]).ok();
}

/// A gateway that is there goes on; another version that has changed the format starts none beside
/// it.
#[test]
fn gateways_of_different_formats_do_not_share_a_log() {
    let world = world();
    let child = begin(&world, &["read", "src/vault/a.txt"], "");
    let asked = id(&waiting(&world, 1)[0]);
    set_format(&world, "2\n");
    assert!(world.fs(&["read", "src/a.ts"]).stderr.contains("has format 2"));
    set_format(&world, "1\n");
    // The same format: they agree.
    world.fs(&["read", "src/a.ts"]).ok();
    world.run(&["approve", "--yes", &asked]).ok();
    end(child).ok();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_record_of_a_newer_version_is_refused_and_not_continued() {
    let world = used();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let log = std::fs::read_to_string(&segment).unwrap();
    let last = log.lines().last().unwrap();
    let leaf = Hash::leaf(last.as_bytes()).to_string();
    let mut record: Value = serde_json::from_str(last).unwrap();
    let seq = record["seq"].as_u64().unwrap() + 1;
    record["v"] = json!(2);
    (record["seq"], record["prev"]) = (json!(seq), json!(leaf));
    let newer = format!("{log}{record}\n");
    std::fs::write(&segment, &newer).unwrap();
    let refused = world.fs(&["read", "a.txt"]);
    assert!(refused.code != 0 && refused.stderr.contains("version 2"), "{refused:?}");
    // It was called damaged, by each command.
    let report = world.base().join("report.html");
    for (args, code) in [
        (&["audit", "verify"][..], 5),
        (&["log"], 5),
        (&["audit", "query", "--no-index"], 5),
        (&["audit", "session"], 5),
        (&["audit", "report", "-o", report.to_str().unwrap()], 5),
        (&["status"], 5),
        (&["doctor"], 1),
        (&["run", "--", "/bin/true"], 5),
        (&["fs", "read", "a.txt"], 5),
    ] {
        let told = world.run(args);
        assert_eq!(told.code, code, "{args:?} {told:?}");
        let all = format!("{}{}", told.text(), told.stderr);
        let words = all.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("a newer portcullis wrote"), "{args:?} {told:?}");
        assert!(words.contains("use the portcullis that wrote it"), "{args:?} {told:?}");
        assert!(!words.contains("is damaged"), "{args:?} {told:?}");
    }
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("A newer Portcullis wrote a part of the log"), "{report}");
    assert!(!report.contains("The log is damaged"), "{report}");
    assert_eq!(std::fs::read_to_string(&segment).unwrap(), newer);
}

#[test]
fn a_policy_of_a_newer_schema_is_refused() {
    let world = World::with_policy("schema = 2\n");
    let refused = world.fs(&["ls"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.stderr.contains("this version reads schema 1 only"), "{refused:?}");
}

fn socket(world: &World, ending: &str) -> PathBuf {
    let entries = std::fs::read_dir(world.state().join("approvals")).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|there| there == ending)).unwrap()
}

#[test]
fn an_approval_by_another_version_is_refused_and_says_so() {
    let world = world();
    let child = begin(&world, &["read", "src/vault/a.txt"], "");
    let asked = id(&waiting(&world, 1)[0]);
    let nonce = std::fs::read_to_string(socket(&world, "nonce")).unwrap();
    let mut stream = UnixStream::connect(socket(&world, "sock")).unwrap();
    let message = json!({ "version": 2, "nonce": nonce, "later": {} });
    writeln!(stream, "{message}").unwrap();
    let mut reply = String::new();
    BufReader::new(&stream).read_line(&mut reply).unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    let why = reply["refused"].as_str().unwrap();
    assert!(why.contains("version 1") && why.contains("version 2"), "{why}");
    world.run(&["approve", "--yes", &asked]).ok();
    end(child).ok();
}
