//! Commands that read a log of which records are gone or were changed: none passes it for intact.

use std::{fs, os::unix};

use portcullis_audit::Kind;

use super::{audit, long, text, world};
use crate::{
    common::World,
    review::{decision, write_log},
};

/// Commands that read records, with `record` for `policy explain`.
fn readers(record: &'static str) -> Vec<Vec<&'static str>> {
    vec![
        vec!["log"],
        vec!["audit", "show", "--last", "1"],
        vec!["audit", "query", "--op", "read"],
        vec!["audit", "query", "--stats", "op"],
        vec!["audit", "session"],
        vec!["audit", "session", "last"],
        vec!["audit", "export", "--format", "csv"],
        vec!["audit", "export", "--format", "ocsf"],
        vec!["audit", "blame", "a"],
        vec!["status"],
        vec!["policy", "learn"],
        vec!["policy", "replay", "default"],
        vec!["policy", "diff", "default", "default", "--log"],
        vec!["policy", "diff", "default", "default", "--log", "--no-new-access"],
        vec!["policy", "explain", "--record", record],
    ]
}

#[track_caller]
fn all_end_with(world: &World, record: &'static str, code: i32) {
    end_with(world, readers(record), code);
}

/// Some of them, for a long log.
#[track_caller]
fn some_end_with(world: &World, record: &'static str, code: i32) {
    let some = [
        &["log", "--last", "1"][..],
        &["audit", "query", "--op", "connect"],
        &["policy", "replay", "default"],
        &["policy", "explain", "--record", record],
    ];
    end_with(world, some.map(<[_]>::to_vec).into(), code);
}

#[track_caller]
fn end_with(world: &World, commands: Vec<Vec<&'static str>>, code: i32) {
    let ends = commands.into_iter().map(|args| (world.run(&args).code, args));
    let other: Vec<_> = ends.filter(|(end, _)| *end != code).collect();
    assert!(other.is_empty(), "not {code}: {other:#?}");
}

/// Segments that somebody removed were said to be pruned, or nothing was said.
#[test]
fn a_log_without_its_beginning_is_damaged_unless_a_record_says_that_it_was_pruned() {
    let world = World::new();
    write_log(&world, 65_538, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    all_end_with(&world, "65536", 0);
    fs::remove_file(audit(&world, "seg-000000.jsonl")).unwrap();
    all_end_with(&world, "65536", 5);
    let shown = world.run(&["audit", "query", "--op", "read", "--json"]);
    assert_eq!(shown.text().lines().count(), 2, "what is left is shown: {shown:?}");
    assert!(!shown.stderr.contains("warning"), "{shown:?}");
}

#[test]
fn more_is_not_pruned_than_a_record_says() {
    let world = long(140_000);
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    some_end_with(&world, "65536", 0);
    fs::remove_file(audit(&world, "seg-000001.jsonl")).unwrap();
    some_end_with(&world, "131072", 5);
}

/// The record of the prune must name the record that the first one follows.
#[test]
fn another_segment_does_not_follow_on_what_was_pruned() {
    let world = long(140_000);
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    let first = audit(&world, "seg-000001.jsonl");
    let lines = fs::read_to_string(&first).unwrap();
    let (line, rest) = lines.split_once('\n').unwrap();
    let (kept, _prev) = line.split_once("\"prev\":\"").unwrap();
    fs::write(&first, format!("{kept}\"prev\":\"{:064}\"}}\n{rest}", 0)).unwrap();
    some_end_with(&world, "65537", 5);
}

/// A replay ended at the gap, and so did an undo.
#[test]
fn no_reader_ends_at_a_segment_that_is_missing() {
    let world = long(140_000);
    fs::remove_file(audit(&world, "seg-000001.jsonl")).unwrap();
    some_end_with(&world, "131072", 5);
    let replay = world.run(&["policy", "replay", "default", "--json"]).json();
    assert_eq!(replay["records"], 140_000 - 65_536, "{replay}");
    assert_eq!(world.run(&["undo", "--session", "session of coder", "--dry-run"]).code, 5);
}

/// `status` and all of `policy` ended with 0.
#[test]
fn records_that_are_gone_or_changed_are_damage_to_every_reader() {
    type Damage = fn(&mut Vec<String>);
    let damages: [(&str, Damage); 3] = [
        ("removed", |lines| drop(lines.drain(3..6))),
        ("garbled", |lines| lines[3] = "garbage".to_owned()),
        ("replaced", |lines| lines[3] = lines[5].clone()),
    ];
    for (what, damage) in damages {
        let world = world();
        all_end_with(&world, "4", 0);
        let segment = audit(&world, "seg-000000.jsonl");
        let lines = fs::read_to_string(&segment).unwrap();
        let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
        damage(&mut lines);
        fs::write(&segment, lines.join("\n") + "\n").unwrap();
        assert_eq!(world.run(&["audit", "verify"]).code, 5, "{what}");
        all_end_with(&world, "4", 5);
    }
}

/// It said that the log had no such record.
#[test]
fn another_record_in_the_place_of_one_is_damage() {
    let world = world();
    let segment = audit(&world, "seg-000000.jsonl");
    let lines = fs::read_to_string(&segment).unwrap();
    let count = lines.lines().count();
    let explain = |record: usize| {
        world.run(&["policy", "explain", "--record", &record.to_string(), "--json"]).code
    };
    assert_eq!((explain(4), explain(count)), (0, 1));
    let kept: Vec<_> = lines.lines().enumerate().filter(|(at, _)| *at != 1).collect();
    let kept: Vec<_> = kept.into_iter().map(|(_, line)| line).collect();
    fs::write(&segment, kept.join("\n") + "\n").unwrap();
    // The record itself, one after it, and the place of the last, where nothing is now.
    for record in [1, 4, count - 1] {
        assert_eq!(explain(record), 5, "{record}");
    }
}

/// It said that the text was not kept any more, and ended with 0.
#[test]
fn a_bundle_tells_a_changed_text_of_a_policy_from_one_that_is_gone() {
    for (changed, code) in [(true, 5), (false, 0)] {
        let world = world();
        let kept = fs::read_dir(world.state().join("policies")).unwrap();
        for policy in kept.map(|entry| entry.unwrap().path()) {
            match changed {
                true => fs::write(&policy, "schema = 1\n").unwrap(),
                false => fs::remove_file(&policy).unwrap(),
            }
        }
        let file = world.base().join("evidence.zip");
        let done = world.run(&["audit", "bundle", "-o", text(&file)]);
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.stderr.contains("no longer stored"), !changed, "{done:?}");
        // It holds as far as it goes.
        assert!(file.exists());
        world.run(&["audit", "check-bundle", text(&file)]).ok();
    }
}

/// It wrote a ZIP archive of that name.
#[test]
fn a_bundle_has_no_name_of_another_kind_of_archive() {
    let world = world();
    for name in ["x.tar", "x.tar.gz", "x.TGZ", "x.7z", "x.zst"] {
        let file = world.base().join(name);
        let refused = world.run(&["audit", "bundle", "-o", text(&file)]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(!file.exists());
    }
}

/// A session by its records was shown as complete: a scan of some records asked for none before them.
#[test]
fn a_session_by_its_records_did_not_say_that_the_first_segment_is_gone() {
    let world = long(65_540);
    fs::remove_file(audit(&world, "seg-000000.jsonl")).unwrap();
    let session = ["audit", "session", "session of coder"];
    for options in [&[][..], &["--records"], &["--records", "--no-diff", "--json"]] {
        let done = world.run(&[&session[..], options].concat());
        assert_eq!(done.code, 5, "{options:?} {done:?}");
        assert!(done.stderr.contains("records 0 to 65535 are missing"), "{options:?} {done:?}");
    }
}

/// A log without a readable segment was none: there was nothing to list, and a start began.
#[test]
fn a_log_of_which_no_segment_can_be_read_counted_as_none() {
    let world = world();
    let segment = audit(&world, "seg-000000.jsonl");
    fs::remove_file(&segment).unwrap();
    fs::create_dir(&segment).unwrap();
    for args in [&["git", "import", "--list"][..], &["git", "import"], &["fs", "read", "a"]] {
        let done = world.run(args);
        assert_eq!(done.code, 5, "{args:?} {done:?}");
        assert!(done.stderr.contains("seg-000000.jsonl"), "{args:?} {done:?}");
    }
}

/// The file beside the key, which says that a checkpoint was signed, counted as absent.
#[test]
fn an_emptied_log_passed_for_an_unused_one_where_its_key_cannot_be_looked_at() {
    let world = world();
    fs::remove_dir_all(world.state().join("audit")).unwrap();
    fs::create_dir(world.state().join("audit")).unwrap();
    fs::rename(world.state().join("keys"), world.base().join("keys")).unwrap();
    unix::fs::symlink("keys", world.state().join("keys")).unwrap();
    for args in [&["git", "import", "--list"][..], &["audit", "query"], &["undo"]] {
        let done = world.run(args);
        assert_ne!(done.code, 0, "{args:?} {done:?}");
        assert!(done.stderr.contains("keys/signed"), "{args:?} {done:?}");
    }
}
