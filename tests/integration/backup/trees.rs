//! Directories with all that is in them.

use std::{
    os::unix::fs::chown,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::seeded_random::Random;

#[test]
fn a_tree_comes_back_whole() {
    let world = World::new();
    world.file("d/a.txt", "alpha");
    world.file("d/sub/b.txt", "beta");
    std::fs::create_dir(world.path("d/empty")).unwrap();
    symlink("sub/b.txt", world.path("d/link")).unwrap();
    symlink("/etc/passwd", world.path("d/outside")).unwrap();
    std::fs::set_permissions(world.path("d/empty"), std::fs::Permissions::from_mode(0o500))
        .unwrap();
    world.fs(&["rm", "-r", "d"]).ok();
    assert!(!world.path("d").exists());
    // A tree that holds the path is found by it.
    assert_eq!(list(&world, &["d/sub/b.txt"])[0]["path"], "d");
    let shown = backup(&world, &["show", "d"]).ok();
    assert_eq!(shown.text().lines().count(), 7, "{}", shown.text());

    backup(&world, &["restore", "d", "--dry-run"]).ok();
    assert!(!world.path("d").exists());
    backup(&world, &["restore", "d"]).ok();
    assert_eq!(world.read("d/a.txt"), "alpha");
    assert_eq!(world.read("d/sub/b.txt"), "beta");
    assert_eq!(std::fs::read_link(world.path("d/link")).unwrap(), Path::new("sub/b.txt"));
    assert_eq!(std::fs::read_link(world.path("d/outside")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(std::fs::metadata(world.path("d/empty")).unwrap().mode() & 0o7777, 0o500);
}

#[test]
fn a_directory_in_the_way_is_kept_and_replaced() {
    let world = World::new();
    world.file("d/a.txt", "old");
    world.fs(&["rm", "-r", "d"]).ok();
    let tree = newest(&world, "d");
    world.file("d/b.txt", "new");
    let done = backup(&world, &["restore", &tree, "--json"]).ok().json();
    assert_eq!(world.read("d/a.txt"), "old");
    assert!(!world.path("d/b.txt").exists());
    assert_eq!(std::fs::read_dir(world.root()).unwrap().count(), 1, "nothing temporary");
    // And back again, also over what is no directory.
    std::fs::remove_dir_all(world.path("d")).unwrap();
    world.file("d", "a file");
    backup(&world, &["restore", done["backup"].as_str().unwrap()]).ok();
    assert_eq!(world.read("d/b.txt"), "new");
    backup(&world, &["restore", "d"]).ok();
    assert_eq!(world.read("d"), "a file");
}

#[test]
fn what_is_in_the_way_must_be_removable() {
    let mut world = World::with_policy(SECRETIVE);
    world.file("d/a.txt", "old");
    world.fs(&["rm", "-r", "d"]).ok();
    world.file("d/keep/this.txt", "new");
    world.set_policy(&policy(
        "[[rules]]\nid = \"keep\"\neffect = \"deny\"\noperations = [\"remove\"]\npaths = [\"d/keep/**\"]\n",
    ));
    let refused = backup(&world, &["restore", "d"]);
    refused.denied("keep");
    assert_eq!(world.read("d/keep/this.txt"), "new");
}

#[test]
fn the_differences_of_a_tree_are_listed() {
    let world = World::new();
    for (name, content) in [("same", "s"), ("changed", "1"), ("gone", "g"), ("sub/deep", "d")] {
        world.file(&format!("d/{name}"), content);
    }
    world.fs(&["rm", "-r", "d"]).ok();
    let everything = backup(&world, &["diff", "d"]).ok();
    assert_eq!(everything.text(), "D d\n");
    backup(&world, &["restore", "d"]).ok();
    let id = newest(&world, "d");
    assert_eq!(backup(&world, &["diff", &id]).ok().text(), "");
    world.file("d/changed", "2");
    std::fs::remove_file(world.path("d/gone")).unwrap();
    world.file("d/sub/new", "n");
    assert_eq!(backup(&world, &["diff", &id]).ok().text(), "M d/changed\nD d/gone\nA d/sub/new\n");
}

#[test]
fn a_tree_with_a_device_or_a_pipe_is_not_removed() {
    let world = World::new();
    world.file("d/a.txt", "x");
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, world.path("d/pipe"), kind, mode, 0).unwrap();
    let refused = world.fs(&["rm", "-r", "d"]);
    assert_ne!(refused.code, 0);
    assert_eq!(world.read("d/a.txt"), "x");
    assert!(list(&world, &[]).is_empty());
}

#[test]
fn killed_while_restoring_a_tree_is_there_whole_or_not_at_all() {
    let world = World::new();
    for file in 0..20 {
        world.file(&format!("d/{}/{file}.txt", file % 4), "old".repeat(1000));
    }
    world.fs(&["rm", "-r", "d"]).ok();
    let tree = newest(&world, "d");
    let started = Instant::now();
    backup(&world, &["restore", &tree]).ok();
    let mut whole = u64::try_from(started.elapsed().as_micros()).unwrap();
    let (mut killed, mut random) = (0, Random::new(0x2545_f491));
    for round in 0..60 {
        if world.path("d").is_dir() {
            std::fs::remove_dir_all(world.path("d")).unwrap();
        } else {
            std::fs::remove_file(world.path("d")).unwrap();
        }
        if round % 2 == 0 {
            world.file("d/new.txt", "new");
        } else {
            world.file("d", "new");
        }
        let mut child = world
            .command(&["backup", "restore", &tree])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(random.below(whole)));
        child.kill().unwrap();
        match child.wait().unwrap().code() {
            None => killed += 1,
            // The one that was measured was held up.
            Some(_) => whole = (whole * 4 / 5).max(1),
        }

        world.fs(&["ls"]).ok();
        let names = consistency::walk(&world.root());
        let names: Vec<_> = names.into_iter().filter(|name| name.is_file()).collect();
        assert!(
            names.iter().all(|name| !name.to_string_lossy().contains(".portcullis-")),
            "round {round}: {names:?}"
        );
        let restored = names.len() == 20 && world.path("d/3/3.txt").exists();
        let untouched = names.len() == 1 && std::fs::read(&names[0]).unwrap() == b"new";
        assert!(restored || untouched, "round {round}: {names:?}");
    }
    assert!(killed > 15, "only {killed} were killed in time");
    world.run(&["audit", "verify"]).ok();
}

/// The same command for a user who may not override modes.
fn without_privileges(command: &std::process::Command) -> std::process::Command {
    let mut plain = if rustix::process::geteuid().is_root() {
        let mut plain = std::process::Command::new("setpriv");
        plain.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(command.get_program());
        plain
    } else {
        std::process::Command::new(command.get_program())
    };
    plain.args(command.get_args()).env_clear();
    plain.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    plain
}

#[test]
fn a_tree_with_read_only_directories_goes_and_comes_back() {
    let world = World::new();
    world.file("d/ro/f", "x");
    world.file("d/ro/sub/f", "y");
    for directory in ["d/ro/sub", "d/ro"] {
        let mode = std::fs::Permissions::from_mode(0o500);
        std::fs::set_permissions(world.path(directory), mode).unwrap();
    }
    let run = |args: &[&str]| {
        let output = without_privileges(&world.command(args)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["fs", "rm", "-r", "d"]);
    assert_eq!(std::fs::read_dir(world.root()).unwrap().count(), 0, "nothing half removed");
    run(&["backup", "restore", "d"]);
    assert_eq!(world.read("d/ro/sub/f"), "y");
    assert_eq!(std::fs::metadata(world.path("d/ro")).unwrap().mode() & 0o777, 0o500);
    run(&["fs", "rm", "-r", "d"]);
}

/// A client that was allowed to remove another user's file could not restore
/// it, nor the tree that contained it.
#[test]
fn what_belonged_to_somebody_else_comes_back_as_the_gateways_own() {
    let world = World::with_policy(SECRETIVE);
    world.file("d/mine.txt", "mine");
    let mode = |path: &str| {
        let look = std::fs::metadata(world.path(path)).unwrap();
        (look.uid(), look.mode() & 0o777)
    };
    let theirs = world.file("d/theirs.txt", "theirs");
    let before = mode("d/mine.txt");
    for path in ["d", "d/theirs.txt"] {
        // The gateway has given up the capability by which root gives files
        // away.
        chown(&theirs, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o664)).unwrap();
        let gone = world.fs(&["rm", "-r", path, "--json"]).ok().json();
        assert!(!world.path(path).exists());
        let done = world.run(&["backup", "restore", gone["backup"].as_str().unwrap()]).ok();
        assert!(done.stderr.contains("objects of other owners"), "{done:?}");
        assert_eq!(
            (world.read("d/theirs.txt"), world.read("d/mine.txt")),
            ("theirs".into(), "mine".into())
        );
        assert_eq!((mode("d/theirs.txt"), mode("d/mine.txt")), ((0, 0o600), before));
        let records = world.requests();
        let intent = records.iter().rfind(|record| record["kind"] == "intent").unwrap();
        assert_eq!(intent["counts"]["ownersNotKept"], 1);
        if path == "d" {
            let there = crate::consistency::tree_hash(&world, "d");
            assert_eq!(intent["after"], there.to_string());
        }
    }
}
