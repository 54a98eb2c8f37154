//! Files that commands write at the operator's request (`-o`): never through a link that an agent
//! may have put there.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use crate::{
    aliases::Mounted,
    common::{World, done},
};

/// Commands that write a file of this name.
fn commands(file: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["audit", "report", "-o", file],
        vec!["audit", "bundle", "-o", file],
        vec!["audit", "export", "--format", "csv", "-o", file],
        vec!["backup", "show", "a.txt", "-o", file],
        vec!["policy", "init", "-o", file],
        vec!["policy", "keygen", "-o", file],
    ]
}

/// The agent had exchanged the directory for a link, and so chose which file was replaced.
#[test]
fn no_link_on_the_way_to_a_file_that_is_written_is_followed() {
    let world = World::new();
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    world.run(&["audit", "checkpoint"]).ok();
    let at = |name: &str| world.base().join(name);
    for directory in ["real/deep", "granted"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    symlink("../real", world.path("link")).unwrap();
    symlink("../real", at("granted/link")).unwrap();
    for (number, name) in
        ["x.html", "x.zip", "x.csv", "x.txt", "x.toml", "x.key"].iter().enumerate()
    {
        let links = [world.path("link"), at("granted/link"), at("granted/link/deep")];
        for link in links.iter().map(|link| link.join(name)) {
            let refused = world.run(&commands(link.to_str().unwrap())[number]);
            assert_eq!(refused.code, 1, "{link:?}: {refused:?}");
            assert!(refused.stderr.contains("symbolic link"), "{link:?}: {refused:?}");
            assert!(!link.exists(), "{link:?}");
        }
        let file = at("real/deep").join(name);
        world.run(&commands(file.to_str().unwrap())[number]).ok();
        assert!(file.is_file(), "{file:?}");
        let entries = fs::read_dir(at("real/deep")).unwrap().count();
        // With the schema beside the policy.
        assert_eq!(entries, number + 1 + usize::from(number >= 4), "{file:?}");
    }
    assert_eq!(fs::read_dir(at("real")).unwrap().count(), 1);
}

/// Backups and manual pages were written through it.
#[test]
fn a_link_in_the_place_of_the_file_is_not_followed() {
    let world = World::new();
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    let at = |name: &str| world.base().join(name);
    fs::create_dir_all(at("granted")).unwrap();
    fs::write(at("precious"), "kept").unwrap();
    for name in ["old.txt", "portcullis.1"] {
        symlink("../precious", at("granted").join(name)).unwrap();
    }
    let (file, pages) = (at("granted/old.txt"), at("granted"));
    for args in [
        &["backup", "show", "a.txt", "-o", file.to_str().unwrap()][..],
        &["man", "-o", pages.to_str().unwrap()],
    ] {
        let refused = world.run(args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert_eq!(fs::read(at("precious")).unwrap(), b"kept", "{args:?}");
    }
}

/// An empty file stayed, which the next try refused to replace.
#[test]
fn a_key_for_which_there_is_no_room_leaves_no_file() {
    let world = World::new();
    let directory = world.base().join("keys");
    fs::create_dir(&directory).unwrap();
    let key = directory.join("policies.key");
    let args = ["policy", "keygen", "-o", key.to_str().unwrap()];
    let made = world.command(&args);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]);
    limited.arg(made.get_program()).args(made.get_args()).env_clear();
    limited.envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let refused = done(limited.output().unwrap());
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    world.run(&args).ok();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read(&key).unwrap();
    assert_eq!(world.run(&args).code, 1);
    assert_eq!(fs::read(&key).unwrap(), text);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
}

/// A file system without flags of a rename refused every key, and said nothing but `Invalid
/// argument`.
#[test]
fn a_key_is_made_where_a_rename_has_no_flags_and_replaces_no_other() {
    let world = World::new();
    let directory = world.base().join("keys");
    fs::create_dir(&directory).unwrap();
    let _mounted = Mounted::like_nfs(&directory);
    let key = directory.join("policies.key");
    let args = ["policy", "keygen", "-o", key.to_str().unwrap()];
    world.run(&args).ok();
    let text = fs::read(&key).unwrap();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(world.run(&args).code, 1);
    assert_eq!(fs::read(&key).unwrap(), text);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
}

/// The log and the keys were replaced by a report.
#[test]
fn no_file_of_a_state_directory_is_replaced() {
    let world = World::new();
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    world.run(&["audit", "checkpoint"]).ok();
    let other = World::new();
    other.write("b.txt", "three").ok();
    for state in [world.state(), other.state()] {
        for name in
            ["audit/seg-000000.jsonl", "keys/checkpoint.key", "format", "backups/new", "x.html"]
        {
            let file = state.join(name);
            let before = fs::read(&file).ok();
            let named = file.to_str().unwrap();
            let summary = vec!["exec", "--summary", named, "--", "true"];
            let pages = vec!["man", "-o", named];
            // A report has a name of its own form.
            let is_named = |args: &Vec<&str>| args[1] != "report" || name.ends_with(".html");
            for args in commands(named).into_iter().chain([summary, pages]).filter(is_named) {
                let refused = world.run(&args);
                assert_eq!(refused.code, 1, "{args:?} {refused:?}");
                assert!(refused.stderr.contains("state directory"), "{args:?} {refused:?}");
                assert_eq!(fs::read(&file).ok(), before, "{args:?}");
            }
        }
    }
    world.run(&["audit", "verify"]).ok();
}
