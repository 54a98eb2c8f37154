//! Links that a hostile repository brings along, and names that the gateway
//! itself uses.

use std::os::unix::fs::symlink;

use super::{Siege, is_unharmed, refused, world};

#[test]
fn links_through_the_root_and_through_proc_are_refused() {
    let mut siege = Siege::begin();
    let root = siege.world().root().canonicalize().unwrap();
    let up = "../".repeat(30);
    for (name, target) in [
        ("cwd", "/proc/self/cwd/secret/key.txt".to_owned()),
        ("fd", "/proc/self/fd/3".to_owned()),
        ("root", "/proc/self/root/etc/passwd".to_owned()),
        ("thread", "/proc/thread-self/root".to_owned()),
        ("stdin", "/dev/stdin".to_owned()),
        ("environ", format!("{up}proc/self/environ")),
        ("passwd", format!("{up}etc/passwd")),
        ("own", root.join("secret/key.txt").to_str().unwrap().to_owned()),
        ("sibling", "../outside.txt".to_owned()),
        ("made", "../made.txt".to_owned()),
        ("again", "../ws/secret/key.txt".to_owned()),
        ("chain", "sibling".to_owned()),
    ] {
        symlink(target, siege.world().path(name)).unwrap();
        let path = siege.inside(name);
        siege.denied(&path, "workspace.outside");
    }
    let world = siege.end();
    assert!(!world.base().join("made.txt").exists());
}

#[test]
fn another_name_of_a_denied_file_is_denied() {
    let mut siege = Siege::begin();
    symlink("secret/key.txt", siege.world().path("soft")).unwrap();
    symlink("secret", siege.world().path("all")).unwrap();
    symlink("a/../secret/key.txt", siege.world().path("round")).unwrap();
    std::fs::create_dir(siege.world().path("a")).unwrap();
    symlink("../all", siege.world().path("a/b")).unwrap();
    for name in ["soft", "all/key.txt", "round", "a/b/key.txt", "all/new.txt"] {
        let path = siege.inside(name);
        siege.denied(&path, "keys");
    }
    std::fs::hard_link(siege.world().path("secret/key.txt"), siege.world().path("hard")).unwrap();
    let path = siege.inside("hard");
    let [read, written] = siege.try_path(&path);
    assert_eq!(read.unwrap().1["rule"], "files.hardlinks.read");
    assert_eq!(written.unwrap().1["rule"], "files.hardlinks.write");
    let world = siege.end();
    // By another name it is neither edited nor moved to where it is readable.
    refused(&world, &["append", "hard"], "files.hardlinks.write");
    refused(&world, &["edit", "hard", "--old", "TOP", "--new", "x"], "files.hardlinks.read");
    refused(&world, &["mv", "all/key.txt", "free.txt"], "keys");
    refused(&world, &["ls", "all"], "keys");
    refused(&world, &["rm", "-r", "all/key.txt"], "keys");
    is_unharmed(&world);
}

#[test]
fn a_denied_file_is_not_moved_to_where_it_may_be_read() {
    let world = world();
    for args in [
        ["mv", "secret/key.txt", "free.txt"].as_slice(),
        &["mv", "secret", "free"],
        &["mv", "proof.txt", "secret/proof.txt"],
        &["mv", "proof.txt", "secret/key.txt"],
        &["rm", "secret/key.txt"],
        &["rm", "-r", "secret"],
        &["mkdir", "secret/new"],
        &["append", "secret/key.txt"],
        &["edit", "secret/key.txt", "--old", "TOP", "--new", "LOW"],
        &["stat", "secret/key.txt"],
        &["ls", "secret"],
    ] {
        refused(&world, args, "keys");
    }
    world.fs(&["rm", "-r", "."]).denied("workspace.hidden");
    assert_eq!(world.last()["rule"], "keys");
    is_unharmed(&world);
}

/// The names cannot be guessed; one that is planted is not served, not taken
/// for the gateway's own, and goes and comes back with what holds it.
#[test]
fn planted_temporary_names_are_left_alone() {
    let world = world();
    let name = format!(".portcullis-{}.tmp", "5eed".repeat(8));
    world.file(&name, "PLANTED");
    world.file(&format!("dir/{name}"), "PLANTED");
    world.file("dir/k.txt", "old");
    symlink("../outside.txt", world.path(&format!(".portcullis-{}.tmp", "0".repeat(32)))).unwrap();
    for args in [
        ["read", &name].as_slice(),
        &["write", &name],
        &["append", &name],
        &["stat", &name],
        &["rm", &name],
        &["mv", &name, "mine.txt"],
        &["mv", "proof.txt", &name],
        &["mkdir", &name],
        &["write", &format!("{name}/x")],
    ] {
        refused(&world, args, "names.reserved");
    }
    assert!(!world.fs(&["ls", "dir"]).ok().text().contains("portcullis"));
    world.write("dir/k.txt", "new").ok();
    assert_eq!(world.read(&format!("dir/{name}")), "PLANTED");
    // A start does not take it for something that was left behind.
    assert_eq!(world.read(&name), "PLANTED");
    world.fs(&["rm", "-r", "dir"]).ok();
    world.run(&["backup", "restore", "dir"]).ok();
    assert_eq!(world.read("dir/k.txt"), "new");
    is_unharmed(&world);
}
