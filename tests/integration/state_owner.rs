//! A state directory belongs to the workspace that its `start` records name.

mod adoption;

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cap_std::fs::Dir;
use portcullis::gateway::AuditLog;
use portcullis_audit::{Draft, Kind};
use serde_json::Value;

use crate::common::{Done, World, done};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A workspace with a file that was written through the gateway, and another one with the same
/// file, both as the system names them.
struct Two {
    world: World,
    own: PathBuf,
    other: PathBuf,
}

fn two() -> Two {
    let world = World::new();
    world.file("f.txt", "A1");
    world.write("f.txt", "A2").ok();
    let other = world.base().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("f.txt"), "B1").unwrap();
    let (own, other) = (world.root().canonicalize().unwrap(), other.canonicalize().unwrap());
    Two { world, own, other }
}

impl Two {
    fn starts(&self) -> Vec<Value> {
        let mut records = self.world.records();
        records.retain(|record| record["kind"] == "start");
        records
    }

    #[track_caller]
    fn refused(&self, args: &[&str]) {
        let before = self.starts().len();
        let refused = self.world.run(args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        let all = format!("{}{}", refused.text(), refused.stderr);
        for path in [&self.own, &self.other] {
            assert!(all.contains(&format!("`{}`", path.display())), "{args:?}: {refused:?}");
        }
        assert_eq!(self.starts().len(), before, "{args:?}");
    }

    /// Runs `portcullis ARGS…` in another directory, with the state as its only setting.
    fn elsewhere(&self, args: &[&str]) -> Done {
        let mut command = self.world.command(args);
        command.env_remove("PORTCULLIS_WORKSPACE").current_dir("/");
        done(command.output().unwrap())
    }
}

/// `restore` and `undo` overwrote files of the other workspace.
#[test]
fn a_state_directory_serves_one_workspace() {
    let two = two();
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let there = ["--workspace", text(&two.other)];
    for args in [
        &["backup", "restore", "f.txt"][..],
        &["backup", "undo", "--session", &session, "--overwrite", "--yes"],
        &["backup", "diff", "f.txt"],
        &["backup", "show", "f.txt"],
        &["fs", "read", "f.txt", "--json"],
        &["fs", "rm", "f.txt"],
        &["mcp"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["policy", "explain", "--record", "1"],
    ] {
        two.refused(&[args, &there].concat());
    }
    two.refused(&["run", "--workspace", text(&two.other), "--", "/bin/true"]);
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "B1");
    let found = two.world.run(&["doctor", "--workspace", text(&two.other), "--json"]);
    assert_eq!(found.code, 1, "{found:?}");
    two.world.run(&["backup", "restore", "f.txt"]).ok();
    assert_eq!(two.world.read("f.txt"), "A1");
}

/// An older state directory has only its log to determine its workspace.
#[test]
fn the_start_records_say_whose_a_state_directory_is() {
    let two = two();
    let noted = two.world.state().join("workspace");
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
    std::fs::remove_file(&noted).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
    assert!(!noted.exists());
    two.world.fs(&["read", "f.txt"]).ok();
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
}

/// The file decided, so `undo` took changes of the first workspace back in the second.
#[test]
fn a_file_that_contradicts_the_start_records_named_the_workspace() {
    let two = two();
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let noted = two.world.state().join("workspace");
    std::fs::write(two.other.join("f.txt"), "A2").unwrap();
    std::fs::write(&noted, text(&two.other)).unwrap();
    for root in [&two.own, &two.other] {
        for args in [
            &["fs", "read", "f.txt"][..],
            &["backup", "undo", "--session", &session, "--yes"],
            &["backup", "restore", "f.txt"],
        ] {
            two.refused(&[args, &["--workspace", text(root)]].concat());
        }
    }
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "A2");
    let refused = two.world.fs(&["read", "f.txt"]);
    assert!(refused.stderr.contains(&format!("remove the file `{}`", noted.display())));
    std::fs::remove_file(&noted).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
    two.world.fs(&["read", "f.txt"]).ok();
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
}

/// It also decided where the newest `start` record is far from the end of the log.
#[test]
fn a_file_contradicts_a_start_record_before_many_others() {
    let two = two();
    let state = Dir::from_std_file(std::fs::File::open(two.world.state()).unwrap());
    let log = AuditLog::open(&state).unwrap();
    for _ in 0..300 {
        let draft = Draft { path: Some("x".repeat(8000)), ..Draft::default() };
        log.note(Kind::Decision, draft, false).unwrap();
    }
    drop(log);
    std::fs::write(two.world.state().join("workspace"), text(&two.other)).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
}

/// The advice was to adopt a path that the file did not name.
#[test]
fn a_file_that_was_cut_says_how_to_mend_it() {
    let two = two();
    let noted = two.world.state().join("workspace");
    for cut in [two.own.parent().unwrap().to_str().unwrap(), "", "\n", "garbage"] {
        std::fs::write(&noted, cut).unwrap();
        let refused = two.world.fs(&["read", "f.txt"]);
        assert_eq!(refused.code, 1, "{cut:?}: {refused:?}");
        assert!(refused.stderr.contains(&format!("remove the file `{}`", noted.display())));
        std::fs::remove_file(&noted).unwrap();
        two.world.fs(&["read", "f.txt"]).ok();
    }
}

#[test]
fn a_workspace_has_one_identity_by_all_its_names() {
    let two = two();
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    two.world.fs(&["read", "f.txt", "--workspace", text(&link)]).ok();
    let dotted = two.own.join("../ws/.");
    two.world.fs(&["read", "f.txt", "--workspace", text(&dotted)]).ok();
    symlink(&two.other, two.world.base().join("to-other")).unwrap();
    let link = two.world.base().join("to-other");
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&link)]);
}

/// Regression: `--workspace` was not compared with the owner of `--state`, so the log of another
/// workspace was changed.
#[test]
fn a_log_of_another_workspace_than_the_named_one_was_changed() {
    let two = two();
    let there = ["--workspace", text(&two.other)];
    let log = || std::fs::read(two.world.state().join("audit/seg-000000.jsonl")).unwrap();
    let before = log();
    let keys = std::fs::read(two.world.state().join("audit/key.vkey")).unwrap();
    for args in [
        &["audit", "checkpoint"][..],
        &["audit", "compress"],
        &["audit", "key", "--new"],
        &["audit", "prune", "--before", "2027-01-01", "--yes"],
        &["audit", "recover", "--yes"],
    ] {
        two.refused(&[args, &there].concat());
    }
    let config = two.world.base().join("ship.toml");
    let copy = two.world.base().join("shipped");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(&config, format!("[[audit.ship]]\nto = {:?}\n", text(&copy))).unwrap();
    two.refused(&["audit", "ship", "--config", text(&config), there[0], there[1]]);
    assert_eq!((log(), std::fs::read_dir(copy).unwrap().count()), (before, 0));
    assert_eq!(std::fs::read(two.world.state().join("audit/key.vkey")).unwrap(), keys);
    // The owner, by each of its names, also once it is gone.
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    two.world.run(&["audit", "checkpoint", "--workspace", text(&link)]).ok();
    two.elsewhere(&["audit", "checkpoint"]).ok();
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    two.world.run(&["audit", "checkpoint", "--workspace", text(&two.own)]).ok();
    two.elsewhere(&["audit", "checkpoint"]).ok();
}

/// Regression: nothing said whose log it is.
#[test]
fn a_log_of_another_workspace_than_the_named_one_was_shown_without_a_note() {
    let two = two();
    for args in
        [&["audit", "verify"][..], &["audit", "show"], &["audit", "query"], &["audit", "key"]]
    {
        let note = |root: &Path| {
            let shown = two.world.run(&[args, &["--workspace", text(root)]].concat()).ok();
            shown.stderr.matches("note: the log is of the workspace").count()
        };
        assert_eq!((note(&two.other), note(&two.own)), (1, 0), "{args:?}");
    }
}

/// Run in another directory it reported that the file had been removed.
#[test]
fn blame_looks_at_the_workspace_of_the_log() {
    let two = two();
    let blame = |more: &[&str]| two.elsewhere(&[&["audit", "blame", "--json"], more].concat());
    let absolute = two.own.join("f.txt");
    for path in ["f.txt", text(&absolute)] {
        let found = blame(&[path]).ok().json();
        assert_eq!((&found["state"], &found["path"]), (&"same".into(), &"f.txt".into()));
        assert_eq!(found["workspace"], text(&two.own));
        assert_eq!(found["notChecked"], Value::Null);
    }
    // A copy of the log names it, too.
    let copy = two.world.base().join("copy");
    std::fs::rename(two.world.state().join("audit"), &copy).unwrap();
    let found = blame(&["f.txt", "--dir", text(&copy)]).ok().json();
    assert_eq!((&found["state"], &found["workspace"]), (&"same".into(), &text(&two.own).into()));
}

#[test]
fn what_is_not_the_workspace_of_the_log_is_not_looked_at() {
    let two = two();
    let check = |more: &[&str]| {
        let found = two.elsewhere(&[&["audit", "blame", "f.txt", "--json"], more].concat()).ok();
        assert!(found.stderr.contains("not checked"), "{found:?}");
        let found = found.json();
        assert_eq!(found["state"], "notChecked", "{found}");
        assert!(found["notChecked"].as_str().unwrap().contains(text(&two.own)), "{found}");
        assert_eq!(found["changes"][0]["op"], "write");
    };
    check(&["--workspace", text(&two.other)]);
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let content = || {
        let events = two.elsewhere(&["audit", "session", &session, "--records", "--json"]).ok();
        let events = events.text().lines().map(|line| serde_json::from_str(line).unwrap());
        let mut contents = events.filter_map(|event: Value| event.get("content").cloned());
        contents.next().unwrap()
    };
    assert_eq!(content(), "text");
    std::fs::rename(&two.own, two.own.with_file_name("away")).unwrap();
    check(&[]);
    assert_eq!(content(), "notChecked");
}

#[test]
fn absolute_paths_are_those_of_the_workspace_of_the_log() {
    let two = two();
    let absolute = two.own.join("f.txt");
    let query = ["audit", "query", "--json", "--kind", "intent", "--path", text(&absolute)];
    assert_eq!(two.elsewhere(&query).ok().text().lines().count(), 1);
    let listed = two.elsewhere(&["backup", "list", "--json", text(&absolute)]).ok();
    assert!(listed.text().contains("f.txt"), "{listed:?}");
}

/// Regression: of two first starts at once, the one that did not get the directory left the newest
/// `start` record.
#[test]
fn a_start_without_the_state_directory_left_a_record() {
    let world = World::new();
    for attempt in 0..12 {
        let state = world.base().join(format!("state-{attempt}"));
        let children = ["one", "two"].map(|name| {
            let root = world.base().join(name);
            std::fs::create_dir_all(&root).unwrap();
            let mut command = world.command(&["fs", "ls"]);
            command.env("PORTCULLIS_WORKSPACE", root).env("PORTCULLIS_STATE", &state);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let ended = children.map(|child| done(child.wait_with_output().unwrap()));
        let owner = std::fs::read_to_string(state.join("workspace")).unwrap();
        let log = std::fs::read_to_string(state.join("audit/seg-000000.jsonl")).unwrap();
        let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        for start in records.filter(|record| record["kind"] == "start") {
            assert_eq!(start["facts"]["workspace"], *owner, "{start}");
        }
        let refused: Vec<_> = ended.iter().filter(|end| end.code != 0).collect();
        assert_eq!(refused.len(), 1, "{ended:?}");
        assert!(refused[0].stderr.contains(&format!("`{owner}`")), "{refused:?}");
    }
}
