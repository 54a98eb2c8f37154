//! Links, special files and mounts: nothing outside is ever read or written,
//! and nothing blocks.

use std::{
    os::unix::{ffi::OsStrExt as _, fs::symlink, net::UnixListener},
    path::Path,
    time::Duration,
};

use crate::common::World;

fn world() -> World {
    let world = World::new();
    std::fs::write(world.base().join("outside.txt"), "OUTSIDE").unwrap();
    world.file("in.txt", "inside");
    world.file("dir/in.txt", "deeper");
    world
}

#[test]
fn links_inside_resolve_and_the_record_says_where() {
    let world = world();
    symlink("dir/in.txt", world.path("link")).unwrap();
    symlink("../in.txt", world.path("dir/up")).unwrap();
    symlink("dir", world.path("alias")).unwrap();
    assert_eq!(world.fs(&["read", "link"]).ok().text(), "deeper");
    assert_eq!(world.last()["resolved"], "dir/in.txt");
    assert_eq!(world.fs(&["read", "dir/up"]).ok().text(), "inside");
    assert_eq!(world.fs(&["read", "alias/up"]).ok().text(), "inside");
    world.write("alias/new.txt", "x").ok();
    assert_eq!(world.read("dir/new.txt"), "x");
    assert_eq!(world.requests()[world.requests().len() - 2]["resolved"], "dir/new.txt");
}

#[test]
fn links_outside_are_refused_for_every_operation() {
    let world = world();
    let outside = world.base().join("outside.txt");
    symlink(&outside, world.path("absolute")).unwrap();
    symlink("../outside.txt", world.path("relative")).unwrap();
    symlink("..", world.path("up")).unwrap();
    symlink(world.root(), world.path("self")).unwrap();
    symlink("/proc/self/root", world.path("magic")).unwrap();
    symlink("../missing.txt", world.path("dangling")).unwrap();
    for path in
        ["absolute", "relative", "up/outside.txt", "self/in.txt", "magic/etc/passwd", "dangling"]
    {
        world.fs(&["read", path]).denied("workspace.outside");
        world.write(path, "PWNED").denied("workspace.outside");
        world.fs(&["stat", path]).denied("workspace.outside");
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "OUTSIDE");
    assert!(!world.base().join("missing.txt").exists());
}

/// The gateway followed none of them, but programs of the host do: a file that they took for one of
/// the workspace was outside.
#[test]
fn a_link_was_renamed_to_where_it_leads_out() {
    let world = world();
    for (target, name) in [
        ("../outside.txt", "out"),
        ("/etc/passwd", "absolute"),
        ("../dir/in.txt", "dir/inside"),
        ("missing/../../outside.txt", "dir/climbs"),
        ("in.txt", "dir/fine"),
    ] {
        symlink(target, world.path(name)).unwrap();
    }
    for (from, to) in [
        ("out", "in.txt"),
        ("absolute", "log"),
        ("dir/inside", "inside"),
        ("dir/climbs", "dir/log"),
        ("dir/climbs", "log"),
    ] {
        world.fs(&["mv", from, to]).denied("workspace.outside");
        assert!(world.path(from).is_symlink(), "{from}");
    }
    world.fs(&["mv", "dir/fine", "dir/moved"]).ok();
    world.fs(&["mv", "dir/inside", "dir/still-inside"]).ok();
    assert_eq!(world.read("in.txt"), "inside");
}

/// A link in the directory led through another link at the new place, and out by that.
#[test]
fn a_directory_was_moved_to_where_another_link_leads_its_links_out() {
    let world = world();
    for name in ["a/d/x", "b/d/x"] {
        world.file(name, "x");
    }
    symlink(world.base(), world.path("b/out")).unwrap();
    symlink("../out/outside.txt", world.path("a/d/log")).unwrap();
    symlink("x", world.path("a/d/fine")).unwrap();
    symlink("../../in.txt", world.path("a/d/up")).unwrap();
    world.fs(&["mv", "a/d", "b/e"]).denied("workspace.outside");
    assert!(world.path("a/d/log").is_symlink() && !world.path("b/e").exists());
    let explained =
        world.run(&["policy", "explain", "--json", "rename", "a/d", "--to", "b/e"]).json();
    assert_eq!(explained["decision"]["effect"], "deny", "{explained}");
    std::fs::remove_file(world.path("a/d/log")).unwrap();
    world.fs(&["mv", "a/d", "b/e"]).ok();
    // The operator's own link led out before.
    symlink("../out/outside.txt", world.path("b/e/log")).unwrap();
    world.fs(&["mv", "b/e", "b/f"]).ok();
}

/// Its target cannot be resolved, and need not be where the directory stays in its own one.
#[test]
fn a_directory_with_a_link_that_is_not_utf8_was_not_renamed() {
    let world = world();
    world.file("d/x", "x");
    let target = std::ffi::OsStr::from_bytes(b"\xff");
    symlink(target, world.path("d/odd")).unwrap();
    world.fs(&["mv", "d", "e"]).ok();
    assert!(world.path("e/odd").is_symlink());
}

/// Nobody knows where it leads when a name on its way becomes a link.
#[test]
fn a_link_that_climbs_behind_a_name_was_moved_with_its_directory() {
    let world = world();
    world.file("a/d/x", "x");
    symlink("b/../../x", world.path("a/d/log")).unwrap();
    world.fs(&["mv", "a/d", "d"]).denied("workspace.outside");
    world.fs(&["mv", "a/d", "a/e"]).ok();
}

#[test]
fn a_link_to_a_denied_file_is_denied_whether_or_not_the_file_exists() {
    let world = world();
    world.file(".env", "SECRET=1");
    symlink(".env", world.path("a")).unwrap();
    symlink("dir/.env", world.path("b")).unwrap();
    let one = world.fs(&["read", "a"]);
    let other = world.fs(&["read", "b"]);
    assert_eq!((one.code, other.code), (3, 3));
    let answer =
        |text: &str| text.lines().next().unwrap().split_once("denied").unwrap().1.to_owned();
    assert_eq!(answer(&one.stderr), answer(&other.stderr));
}

#[test]
fn a_dangling_link_inside_creates_its_target() {
    let world = world();
    symlink("dir/made.txt", world.path("dangling")).unwrap();
    world.write("dangling", "made").ok();
    assert_eq!(world.read("dir/made.txt"), "made");
    assert!(world.path("dangling").is_symlink());
}

/// A link whose way leads through a missing name and up again gave a conflict when another link lay
/// behind, and none when the name was there: that disclosed the name.
#[test]
fn a_link_leads_on_whether_or_not_what_it_passes_is_there() {
    let world = world();
    symlink("in.txt", world.path("m")).unwrap();
    symlink("passed/../m", world.path("l")).unwrap();
    symlink(".env/x/../../m", world.path("n")).unwrap();
    for link in ["l", "n"] {
        assert_eq!(world.fs(&["read", link]).ok().text(), "inside");
    }
    world.file("passed", "a file");
    std::fs::create_dir(world.path(".env")).unwrap();
    for link in ["l", "n"] {
        assert_eq!(world.fs(&["read", link]).ok().text(), "inside");
    }
}

#[test]
fn chains_and_loops_end() {
    let world = world();
    symlink("loop", world.path("loop")).unwrap();
    symlink("b", world.path("a")).unwrap();
    symlink("a", world.path("b")).unwrap();
    world.fs(&["read", "loop"]).denied("workspace.links");
    world.fs(&["read", "a/x"]).denied("workspace.links");
    symlink("in.txt", world.path("l0")).unwrap();
    for i in 1..40 {
        symlink(format!("l{}", i - 1), world.path(&format!("l{i}"))).unwrap();
    }
    assert_eq!(world.fs(&["read", "l39"]).ok().text(), "inside");
    symlink("l39", world.path("l40")).unwrap();
    world.fs(&["read", "l40"]).denied("workspace.links");
}

#[test]
fn removing_and_renaming_act_on_the_link_itself() {
    let world = world();
    symlink("dir", world.path("link")).unwrap();
    world.fs(&["mv", "link", "other"]).ok();
    assert!(world.path("other").is_symlink());
    world.fs(&["rm", "-r", "other"]).ok();
    assert_eq!(world.read("dir/in.txt"), "deeper");
}

#[test]
fn special_files_are_refused_at_once() {
    let world = world();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(world.path("socket")).unwrap();
    let started = std::time::Instant::now();
    for path in ["fifo", "socket"] {
        world.fs(&["read", path]).denied("files.type");
        world.write(path, "x").denied("files.type");
        world.fs(&["rm", path]).denied("files.type");
        let into_tree = world.fs(&["read", &format!("{path}/x")]);
        assert_eq!(into_tree.code, 1, "{into_tree:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(300), "something blocked");
    let listing = world.fs(&["ls"]).ok();
    assert!(listing.text().contains("other"), "{}", listing.text());
}

#[test]
fn hard_links_are_denied_for_content_but_may_be_removed() {
    let world = world();
    let outside = world.base().join("outside.txt");
    std::fs::hard_link(&outside, world.path("hard")).unwrap();
    world.fs(&["read", "hard"]).denied("files.hardlinks.read");
    world.write("hard", "PWNED").denied("files.hardlinks.write");
    world.fs(&["rm", "hard"]).ok();
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "OUTSIDE");
}

#[test]
fn symlinks_can_be_denied_altogether() {
    let world = World::with_policy(
        "schema = 1\nname = \"t\"\n[allowedPaths]\nread = [\"**\"]\n[files]\nsymlinks = \"deny\"\n",
    );
    world.file("in.txt", "inside");
    symlink("in.txt", world.path("link")).unwrap();
    world.fs(&["read", "link"]).denied("files.symlinks");
    world.fs(&["read", "in.txt"]).ok();
}

/// Mounts a file system for as long as the value lives. Tests run as root on
/// the machines that run them; where they do not, this fails loudly.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn tmpfs(target: &'a Path) -> Self {
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(target)
            .status()
            .unwrap();
        assert!(done.success(), "this test must be able to mount a tmpfs (run it as root)");
        Self(target)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn another_mount_inside_is_not_entered() {
    let world = world();
    let target = world.path("mnt");
    std::fs::create_dir(&target).unwrap();
    let _mounted = Mounted::tmpfs(&target);
    std::fs::write(target.join("x.txt"), "ELSEWHERE").unwrap();
    world.fs(&["read", "mnt/x.txt"]).denied("workspace.mount");
    world.write("mnt/y.txt", "x").denied("workspace.mount");
    world.fs(&["ls", "mnt"]).denied("workspace.mount");
    world.fs(&["rm", "-r", "mnt"]).denied("workspace.mount");
    assert!(!target.join("y.txt").exists());
}
