//! Commands that only look, where they can do nothing else.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, path::Path};

use crate::{common::World, disk::Disk};

/// A text of which two versions are packed as a difference.
fn text(last: &str) -> String {
    (0..3000).map(|line| format!("line {line}\n")).collect::<String>() + last
}

/// Files that were changed, and removed with their directory.
fn varied(world: &World) {
    for last in ["one", "two", "three"] {
        world.write("a.txt", text(last)).ok();
    }
    world.fs(&["mkdir", "d"]).ok();
    world.write("d/b.txt", "b").ok();
    world.fs(&["rm", "-r", "d"]).ok();
    world.run(&["backup", "prune"]).ok();
}

/// Returns the output of each command.
fn looks(world: &World) -> Vec<String> {
    let sessions = world.run(&["audit", "session", "--json"]).ok();
    // The third write's.
    let line = sessions.text().lines().nth(2).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let session = line["session"].as_str().unwrap().to_owned();
    let commands: [&[&str]; 8] = [
        &["audit", "key"],
        &["audit", "verify", "--backups", "--policies", "--json"],
        &["audit", "blame", "a.txt", "--history"],
        &["audit", "blame", "d/b.txt", "--json"],
        &["audit", "session", &session, "--records"],
        &["backup", "list", "--json"],
        &["backup", "list", "d"],
        &["backup", "verify", "--json"],
    ];
    let mut all = vec![sessions.text().to_owned()];
    all.extend(commands.iter().map(|args| world.run(args).ok().text().to_owned()));
    all
}

/// All but the log's own commands made, locked and cleared up things there.
#[test]
fn a_state_directory_that_is_mounted_read_only_can_be_looked_at() {
    let world = World::new();
    std::fs::create_dir_all(world.state()).unwrap();
    let disk = Disk::memory(&world.state(), 64 << 10);
    std::fs::set_permissions(world.state(), Permissions::from_mode(0o700)).unwrap();
    varied(&world);
    let before = looks(&world);
    assert!(before.iter().any(|text| text.contains("-two") && text.contains("+three")));
    disk.remount("ro");
    assert_eq!(looks(&world), before);
    // Commands that disclose content are recorded, and so refused.
    let shown = world.run(&["backup", "show", "a.txt"]);
    assert_eq!((shown.code, shown.text()), (1, ""), "{shown:?}");
}

/// They reported that it belongs to another user, where `audit show` did not
/// mind.
#[test]
fn another_users_state_directory_can_be_looked_at() {
    let world = World::new();
    varied(&world);
    let before = looks(&world);
    own(&world.state());
    assert_eq!(looks(&world), before);
    let refused = world.fs(&["read", "a.txt"]);
    assert_eq!((refused.code, refused.text()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("belongs to another user"), "{refused:?}");
}

/// Gives it to another user.
fn own(path: &Path) {
    std::os::unix::fs::lchown(path, Some(4321), Some(4321)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            own(&entry.unwrap().path());
        }
    }
}

/// A broken policy, and a state directory that is not there, are no reason.
#[test]
fn backups_are_listed_without_a_policy_or_any_state() {
    let world = World::new();
    let listed = world.run(&["backup", "list", "--json"]).ok().json();
    assert_eq!(listed["backups"].as_array().unwrap().len(), 0, "{listed}");
    let verified = world.run(&["backup", "verify", "--json"]).ok().json();
    assert_eq!(verified["backups"], 0, "{verified}");
    assert!(!world.state().exists());
    varied(&world);
    let mut world = world;
    world.set_policy("schema = 1\nsurprise = true\n");
    let listed = world.run(&["backup", "list", "--json"]).ok().json();
    assert_ne!(listed["backups"].as_array().unwrap().len(), 0, "{listed}");
}
