//! Files of a state directory with a length that no reader could read.

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::{
    common::{World, ticks},
    proof,
};

/// Longer than any segment, and than anyone could read in [`MAX_TICKS`].
const ENORMOUS: u64 = 1 << 40;
/// The maximum length of a segment, and nearly that to read.
const LARGE: u64 = 60 << 30;
/// Hundredths of a second of processor time of a command that reads without end. A busy machine
/// takes longer, and no more of that.
const MAX_TICKS: u64 = 2000;
/// Timeout of a command that waits without end.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Every command that reads the log, and its exit code where a segment of it is damaged.
const COMMANDS: [&[&str]; 17] = [
    &["verify"],
    &["verify", "--json"],
    &["show"],
    &["show", "--last", "3"],
    &["query"],
    &["query", "--last", "3", "--json"],
    &["query", "--no-index", "--stats", "agent"],
    &["blame", "a"],
    &["session"],
    &["report", "-o", "report.html"],
    &["report", "-o", "report.json"],
    &["export", "--format", "csv"],
    &["export", "--format", "ocsf"],
    &["prove", "0"],
    &["bundle", "-o", "bundle.zip"],
    &["checkpoint"],
    &["prune", "--before", "2020-01-01", "--yes"],
];

fn world() -> World {
    let world = World::new();
    world.write("a", "one").ok();
    world.write("a", "two").ok();
    world
}

fn segment(world: &World, number: u64) -> PathBuf {
    world.state().join(format!("audit/seg-{number:06}.jsonl"))
}

fn lengthen(path: &Path, length: u64) {
    let file: File =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

/// The exit code of `portcullis ARGS…`, which ends before it has taken [`MAX_TICKS`].
#[track_caller]
fn code(world: &World, args: &[&str]) -> i32 {
    let mut child =
        world.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap();
        }
        if ticks(child.id()) > MAX_TICKS || begun.elapsed() > TIMEOUT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?} reads on and on");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn find_damage(world: &World) {
    let codes = COMMANDS.map(|args| (args, code(world, &[&["audit"], args].concat())));
    let others: Vec<_> = codes.iter().filter(|(_, code)| *code != 5).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[track_caller]
fn all_find_damage(world: &World) {
    find_damage(world);
    // No gateway serves on it.
    assert_eq!(code(world, &["fs", "read", "a"]), 5);
}

#[test]
fn a_segment_of_a_tebibyte_is_refused_before_it_is_read() {
    let world = world();
    lengthen(&segment(&world, 0), ENORMOUS);
    all_find_damage(&world);
    let verified = world.run(&["audit", "verify", "--json"]);
    let damage = &verified.json()["damages"][0];
    assert_eq!(damage["kind"], "bad-segment");
    assert_eq!(damage["segment"], "seg-000000.jsonl");
    let second = proof::second(&["log", world.state().join("audit").to_str().unwrap()]);
    assert_eq!(second.code, 5, "{second:?}");
    for part in ["kind", "segment", "seq"] {
        assert_eq!(second.json()[part], damage[part], "{second:?}");
    }
    assert_eq!(code(&world, &["audit", "recover", "--yes"]), 5);
    assert!(!world.state().join("audit/quarantine").exists());
}

#[test]
fn a_hole_in_a_segment_is_not_read_to_its_end() {
    let world = world();
    lengthen(&segment(&world, 0), LARGE);
    all_find_damage(&world);
    code(&world, &["status"]);
}

#[test]
fn a_log_of_nothing_but_a_hole_is_damaged() {
    let world = world();
    std::fs::remove_file(segment(&world, 0)).unwrap();
    lengthen(&segment(&world, 0), ENORMOUS);
    all_find_damage(&world);
}

/// Records behind it are still found.
#[test]
fn a_full_segment_of_a_tebibyte_hides_no_later_one() {
    let world = world();
    lengthen(&segment(&world, 1), ENORMOUS);
    assert_eq!(code(&world, &["audit", "query"]), 5);
    let found = world.run(&["audit", "query", "--json", "--kind", "intent"]);
    assert_eq!((found.code, found.text().lines().count()), (5, 2), "{found:?}");
}

/// All other files that a gateway keeps.
#[test]
fn no_other_file_of_the_state_is_read_without_an_end() {
    let world = world();
    let mut files = Vec::new();
    let mut folders = vec![world.state()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.retain(|path| path.extension().is_none_or(|extension| extension != "jsonl"));
    assert!(files.len() > 8, "{files:?}");
    for file in files.iter().chain([&world.state().join("audit/roots")]) {
        let before = std::fs::read(file).ok();
        lengthen(file, ENORMOUS);
        for args in [
            &["audit", "verify", "--policies", "--backups"][..],
            &["audit", "prove", "0"],
            &["audit", "report", "-o", "report.json"],
            &["audit", "checkpoint"],
            &["audit", "query", "--last", "1"],
            &["backup", "list"],
            &["backup", "verify"],
            &["backup", "restore", "a"],
            &["fs", "read", "a"],
            &["doctor"],
        ] {
            code(&world, args);
        }
        match before {
            Some(before) => std::fs::write(file, before).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
    }
}
