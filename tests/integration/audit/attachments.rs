//! `portcullis audit verify --policies --backups`: what the log names outside of it.

use std::{
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::common::{Done, World, done};

/// A world whose log names one backup.
fn world() -> World {
    let world = World::new();
    world.write("a", "one").ok();
    world.write("a", "two").ok();
    world
}

fn segment(world: &World) -> PathBuf {
    world.state().join("audit/seg-000000.jsonl")
}

/// The file of the only backup.
fn backup(world: &World) -> PathBuf {
    let mut files = Vec::new();
    for shard in std::fs::read_dir(world.state().join("backups")).unwrap() {
        let shard = shard.unwrap();
        if shard.file_name().len() == 2 {
            let entries = std::fs::read_dir(shard.path()).unwrap();
            files.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// Takes the end away, where the backup describes itself.
fn damage(backup: &Path) {
    let file = std::fs::File::options().write(true).open(backup).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&[0; 8], length - 8).unwrap();
}

/// Runs `portcullis ARGS…` in this directory, which alone determines the log.
fn run_in(world: &World, directory: &Path, args: &[&str]) -> Done {
    let mut command = world.command(args);
    command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    done(command.current_dir(directory).output().unwrap())
}

const VERIFY: [&str; 5] = ["audit", "verify", "--policies", "--backups", "--json"];

/// A path without a directory in it was taken for one that lies nowhere: no policy was
/// found there, and no backup was missed.
#[test]
fn a_log_that_is_named_from_within_has_its_policies_and_backups_beside_it() {
    let world = world();
    let (state, log) = (world.state(), world.state().join("audit"));
    let link = world.base().join("link");
    std::os::unix::fs::symlink(&log, &link).unwrap();
    let link = link.to_str().unwrap();
    let places: [(&Path, &str); 4] =
        [(&state, "audit"), (&log, "."), (&log, "../audit/"), (world.base(), link)];
    let verify =
        |(at, dir): (&Path, &str)| run_in(&world, at, &[&VERIFY, &["--dir", dir][..]].concat());
    for place in places {
        let found = verify(place).ok().json();
        assert_eq!(
            found["attached"],
            json!({"faults":[],"policies":1,"backups":1,"backupsGone":0})
        );
        let (at, dir) = place;
        let out = world.base().join("report.json");
        let out = out.to_str().unwrap();
        run_in(&world, at, &["audit", "report", "--dir", dir, "-o", out]).ok();
        let report: Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
        assert_eq!(report["policies"][0]["textIsGenuine"], true, "{report}");
        let out = world.base().join("bundle.zip");
        let out = out.to_str().unwrap();
        let bundled = run_in(&world, at, &["audit", "bundle", "--dir", dir, "-o", out]).ok();
        assert!(!bundled.stderr.contains("not kept"), "{bundled:?}");
    }
    damage(&backup(&world));
    for place in places {
        let found = verify(place);
        assert_eq!(found.code, 5, "{place:?}: {found:?}");
    }
}

#[test]
fn backups_that_cannot_be_found_are_not_said_to_be_whole() {
    let world = world();
    let copy = world.base().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::rename(world.state().join("audit"), copy.join("audit")).unwrap();
    let found = run_in(&world, &copy, &["audit", "verify", "--backups", "--dir", "audit"]);
    assert_eq!(found.code, 5, "{found:?}");
    let place = copy.canonicalize().unwrap().join("backups");
    let words = format!("damaged: there are no backups at {}\n", place.display());
    assert!(found.text().contains(&words), "{found:?}");
    // An emptied directory ended the command with 1, and without a report.
    std::fs::create_dir(&place).unwrap();
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let found = run_in(&world, &copy, &["audit", "verify", "--backups", "--dir", "audit"]);
    assert_eq!(found.code, 5, "{found:?}");
    assert!(found.text().contains(&words), "{found:?}");
}

/// The first line said that all was intact, and the last that each backup had its hash.
#[test]
fn a_damaged_backup_leaves_no_verdict_of_an_intact_log() {
    let world = world();
    let verify = || world.run(&["audit", "verify", "--policies", "--backups"]);
    let before = verify().ok();
    let text = before.text();
    assert!(text.starts_with("intact: ") && text.ends_with("\nbackups: 1 intact\n"), "{text}");
    damage(&backup(&world));
    let found = verify();
    let text = found.text();
    assert!(found.code == 5 && text.starts_with("the links are intact: "), "{found:?}");
    assert!(text.contains("\ndamaged: ") && !text.contains("backups: 1 intact"), "{found:?}");
}

/// The only output was an error that advised to run `audit verify`.
#[test]
fn a_damaged_log_is_reported_with_its_backups() {
    let world = world();
    let verify = |kind: &str| {
        let found = world.run(&VERIFY);
        assert_eq!(found.code, 5, "{found:?}");
        let report = found.json();
        assert_eq!(
            (&report["valid"], &report["damages"][0]["kind"]),
            (&json!(false), &json!(kind))
        );
        let attached = &report["attached"];
        assert_eq!(attached["backups"], 1);
        let faults = attached["faults"].as_array().unwrap();
        let of = |fault: &&Value| fault.as_str().unwrap().contains("not every record");
        assert_eq!(faults.iter().filter(of).count(), 1, "{faults:?}");
    };
    let mut log = std::fs::File::options().append(true).open(segment(&world)).unwrap();
    log.write_all(&vec![b'x'; 2 << 20]).unwrap();
    verify("long-line");
    std::fs::remove_file(segment(&world)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, segment(&world), rustix::fs::Mode::RWXU).unwrap();
    verify("unexpected-file");
}

/// A backup that is still there was counted as if it had been removed for its age.
#[test]
fn a_damaged_backup_is_not_counted_as_gone() {
    let world = world();
    let backup = backup(&world);
    damage(&backup);
    let found = world.run(&VERIFY);
    assert_eq!(found.code, 5, "{found:?}");
    let attached = &found.json()["attached"];
    assert_eq!((&attached["backups"], &attached["backupsGone"]), (&json!(0), &json!(0)));
    assert_eq!(attached["faults"].as_array().unwrap().len(), 1, "{attached}");
    std::fs::remove_file(backup).unwrap();
    let found = world.run(&VERIFY);
    assert_eq!(found.code, 5, "{found:?}");
    let attached = &found.json()["attached"];
    assert_eq!((&attached["backups"], &attached["backupsGone"]), (&json!(0), &json!(0)));
    assert_eq!(attached["faults"].as_array().unwrap().len(), 1, "{attached}");
}

/// They were reported as old ones that retention had removed.
#[test]
fn backups_of_seconds_ago_that_are_gone_are_missed() {
    let world = World::new();
    for content in ["1", "2", "3"] {
        world.write("a", content).ok();
    }
    world.fs(&["mkdir", "d"]).ok();
    world.write("d/x", "x").ok();
    world.fs(&["rm", "-r", "d"]).ok();
    for shard in std::fs::read_dir(world.state().join("backups")).unwrap() {
        let shard = shard.unwrap();
        if shard.file_name().len() == 2 {
            std::fs::remove_dir_all(shard.path()).unwrap();
        }
    }
    let found = world.run(&VERIFY);
    assert_eq!(found.code, 5, "{found:?}");
    let attached = &found.json()["attached"];
    // The second of the agent's own versions may go for others.
    let faults = attached["faults"].as_array().unwrap();
    assert_eq!((faults.len(), &attached["backupsGone"]), (2, &json!(1)), "{attached}");
}

/// It was counted as one that had been removed for its age.
#[test]
fn a_change_that_was_not_made_leaves_no_backup_to_be_missed() {
    let world = world();
    let log = segment(&world);
    let text = std::fs::read_to_string(&log).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let answer = lines.iter().rposition(|line| line.contains("\"kind\":\"outcome\"")).unwrap();
    lines[answer] = lines[answer].replace("\"result\":\"ok\"", "\"result\":\"conflict\"");
    std::fs::write(&log, lines.join("\n") + "\n").unwrap();
    std::fs::remove_file(backup(&world)).unwrap();
    let attached = &world.run(&VERIFY).json()["attached"];
    assert_eq!(attached, &json!({"faults":[],"policies":1,"backups":0,"backupsGone":0}));
}
