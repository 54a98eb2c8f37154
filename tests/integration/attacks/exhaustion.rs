//! Excessive sizes and numbers of everything.

use std::{
    os::fd::OwnedFd,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use super::{POLICY, Siege, is_unharmed, world};
use crate::{
    common::{World, done},
    consistency,
    disk::Disk,
    scripted_agent::{ScriptedAgent, failure, receipt},
};

/// Directories in directories, deeper than a path can be long.
fn dig(start: &Path, depth: usize) {
    let open = |dir: &OwnedFd| openat(dir, "d", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty());
    mkdirat(CWD, start, Mode::RWXU).unwrap();
    let mut here = openat(CWD, start, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = open(&here).unwrap();
    }
}

/// Removes what [`dig`] made; `remove_dir_all` would hold a descriptor each.
fn fill(start: &Path) {
    let gone = Command::new("rm").arg("-rf").arg(start).status().unwrap();
    assert!(gone.success());
}

#[test]
fn ten_thousand_directories_deep_is_refused_and_a_thousand_is_served() {
    let world = world();
    dig(&world.path("abyss"), 10_000);
    world.fs(&["ls", "abyss"]).ok();
    for args in [["rm", "-r", "abyss"].as_slice(), &["mv", "abyss", "other"]] {
        let started = Instant::now();
        let done = world.fs(args);
        assert_eq!(done.code, 1, "{args:?}: {done:?}");
        assert!(done.stderr.contains("too long"), "{}", done.stderr);
        assert_eq!(world.last()["result"], "invalidInput");
        assert!(started.elapsed() < Duration::from_secs(60));
    }
    assert!(world.path("abyss/d/d/d").is_dir());
    fill(&world.path("abyss"));
    dig(&world.path("well"), 1_000);
    world.fs(&["mv", "well", "moved"]).ok();
    world.fs(&["rm", "-r", "moved"]).ok();
    assert!(!world.path("moved").exists());
    world.run(&["backup", "restore", "moved"]).ok();
    assert!(world.path("moved").join("d/".repeat(999)).is_dir());
    fill(&world.path("moved"));
    is_unharmed(&world);
}

#[test]
fn a_crowded_directory_is_listed_and_removed_whole() {
    let mut world = world();
    let rule = "[[rules]]\nid = \"deep\"\neffect = \"deny\"\npaths = [\"**/*.key\"]\n";
    world.set_policy(&format!("{POLICY}{rule}"));
    std::fs::create_dir(world.path("many")).unwrap();
    for number in 0..20_000 {
        std::fs::write(world.path(&format!("many/{number}")), number.to_string()).unwrap();
    }
    let listed = world.fs(&["ls", "--json", "many"]).ok().json();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 20_000);
    world.fs(&["mv", "many", "moved"]).ok();

    // Each entry is decided: one that may not be removed keeps them all.
    let key = world.file("moved/deep/er/one.key", "TOP-SECRET");
    let all = consistency::snapshot(&world.root());
    assert!(all.len() > 20_000, "{}", all.len());
    world.fs(&["rm", "-r", "moved"]).denied("workspace.hidden");
    assert_eq!(world.last()["rule"], "deep");
    assert!(consistency::snapshot(&world.root()) == all, "something is gone");

    std::fs::remove_file(key).unwrap();
    let all = consistency::snapshot(&world.root());
    world.fs(&["rm", "-r", "moved"]).ok();
    assert!(!world.path("moved").exists());
    world.run(&["backup", "restore", "moved"]).ok();
    assert!(consistency::snapshot(&world.root()) == all, "something did not come back");
    is_unharmed(&world);
}

#[test]
fn without_inodes_a_request_fails_and_the_gateway_serves_on() {
    let world = World::with_policy(POLICY);
    let disk = Disk::ext4_for_files(&world.root(), &world.base().join("image"), 64);
    world.file("a.txt", "old");
    world.file("b.txt", "old");
    let mut scripted_agent = ScriptedAgent::start(&world);
    receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "served")));
    disk.take_all_inodes();
    let before = consistency::snapshot(&world.root());
    for name in ["a.txt", "b.txt", "new.txt", "new/deep.txt"] {
        let (kind, message) = failure(&scripted_agent.ask(scripted_agent.write(name, "late")));
        assert_eq!(kind, "noSpace", "{message}");
        assert!(message.contains("no space left"), "{message}");
        assert_eq!(world.last()["result"], "noSpace");
        let read = scripted_agent.ask(scripted_agent.read("a.txt"));
        assert_eq!(read["result"]["content"], "served");
        assert_eq!(consistency::snapshot(&world.root()), before, "{name}");
    }
    // The same over the other transport, for operations that only it has.
    for (args, fits) in [
        (["fs", "append", "a.txt"].as_slice(), false),
        (&["fs", "edit", "a.txt", "--old", "served", "--new", "late"], false),
        (&["fs", "mkdir", "d"], false),
        (&["backup", "restore", "a.txt"], false),
        (&["fs", "mv", "b.txt", "c.txt"], true),
        (&["fs", "mv", "c.txt", "b.txt"], true),
        (&["fs", "ls"], true),
    ] {
        let done = world.run_with_input(args, "late");
        assert_eq!(done.code == 0, fits, "{args:?}: {done:?}");
        assert!(fits || done.stderr.contains("no space left"), "{args:?}: {done:?}");
    }
    assert_eq!(consistency::snapshot(&world.root()), before);

    // Removing needs none, and gives one back.
    world.fs(&["rm", "b.txt"]).ok();
    receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "with one inode")));
    disk.give_inodes_back();
    receipt(&scripted_agent.ask(scripted_agent.write("new/deep.txt", "new")));
    assert_eq!(
        scripted_agent.ask(scripted_agent.read("a.txt"))["result"]["content"],
        "with one inode"
    );
    assert!(scripted_agent.end().0.success());
    world.run(&["backup", "restore", "b.txt"]).ok();
    assert_eq!(world.read("b.txt"), "old");
    consistency::check(&world);
}

#[test]
fn without_inodes_for_backups_nothing_is_replaced() {
    let world = World::with_policy(POLICY);
    let disk = Disk::ext4_for_files(&world.state(), &world.base().join("image"), 128);
    world.file("a.txt", "old");
    world.file("tree/b.txt", "old");
    let mut scripted_agent = ScriptedAgent::start(&world);
    receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "served")));
    disk.take_all_inodes();
    let before = consistency::snapshot(&world.root());
    let state = consistency::snapshot(&world.state().join("backups"));
    for name in ["a.txt", "tree/b.txt"] {
        let (kind, message) = failure(&scripted_agent.ask(scripted_agent.write(name, "late")));
        assert_eq!(kind, "noSpace", "{message}");
        assert!(message.contains("no space left for backups"), "{message}");
        assert_eq!(world.last()["result"], "noSpace");
        let read = scripted_agent.ask(scripted_agent.read(name));
        assert_eq!(read["result"]["content"], before[name].split_once(' ').unwrap().1);
    }
    assert_eq!(consistency::snapshot(&world.root()), before);
    assert_eq!(consistency::snapshot(&world.state().join("backups")), state);
    // Where nothing is replaced, no backup is needed.
    receipt(&scripted_agent.ask(scripted_agent.write("new.txt", "new")));
    // A gateway that would have to leave a lock does not start.
    for args in [["fs", "read", "a.txt"].as_slice(), &["fs", "rm", "-r", "tree"]] {
        let done = world.run(args);
        assert_eq!(done.code, 1, "{args:?}: {done:?}");
        assert!(done.stderr.contains("No space left"), "{args:?}: {done:?}");
    }
    assert_eq!(world.read("tree/b.txt"), "old");

    disk.give_inodes_back();
    receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "late")));
    assert!(scripted_agent.end().0.success());
    world.fs(&["rm", "-r", "tree"]).ok();
    world.run(&["backup", "restore", "tree"]).ok();
    assert_eq!(world.read("tree/b.txt"), "old");
    consistency::check(&world);
}

/// `portcullis fs ARGS…` with at most so many descriptors.
fn with_descriptors(world: &World, most: u32, args: &[&str]) -> crate::common::Done {
    let inner = world.command(&[&["fs"], args].concat());
    let mut outer = Command::new("sh");
    outer
        .args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))))
        .current_dir(world.base());
    done(outer.output().unwrap())
}

/// Every start that fails leaves the lock of a dead gateway behind; all of them
/// were opened at once by the next, until no start could.
#[test]
fn without_descriptors_a_request_fails_and_harms_nothing() {
    let world = world();
    dig(&world.path("tree"), 100);
    world.file("tree/a.txt", "old");
    world.fs(&["read", "proof.txt"]).ok();
    let (mut served, mut failed) = (0, 0);
    for most in 4..28 {
        for args in [["read", "proof.txt"].as_slice(), &["ls", "tree"], &["rm", "-r", "tree"]] {
            let done = with_descriptors(&world, most, args);
            assert!(matches!(done.code, 0 | 1 | 101 | 127), "{most} {args:?}: {done:?}");
            assert!(!done.stderr.contains("panicked"), "{most} {args:?}: {}", done.stderr);
            if done.code == 0 {
                served += 1
            } else {
                failed += 1
            }
            // A tree is there intact, or removed and backed up.
            if !world.path("tree").exists() {
                world.run(&["backup", "restore", "tree"]).ok();
            }
            assert_eq!(world.read("tree/a.txt"), "old");
        }
    }
    assert!(served > 0 && failed > 0, "{served} served, {failed} failed");
    is_unharmed(&world);
}

#[test]
fn large_requests_are_served_or_refused_and_the_gateway_goes_on() {
    let mut siege = Siege::begin();
    let path = siege.inside("large.txt");
    for (size, fits) in [(1 << 20, true), ((1 << 20) + 1, false), (6 << 20, false)] {
        let request = siege.relay.write_at(&path, &"x".repeat(size));
        let answer = siege.relay.ask_one(request);
        assert_eq!(answer["result"].is_object(), fits, "{size}");
        if !fits {
            assert_eq!(answer["error"]["data"]["rule"], "files.maxWriteSize");
        }
        siege.serves_on();
    }
    // Escapes make a line six times as long as its content.
    let control = "\u{1}".repeat(1 << 19);
    let request = siege.relay.write_at(&path, &control);
    assert!(siege.relay.ask_one(request)["result"].is_object());
    let request = siege.relay.read("large.txt");
    assert_eq!(siege.relay.ask_one(request)["result"]["content"], control);
    // As many as fit, all at once.
    let requests: Vec<_> = (0..3_000).map(|n| siege.relay.read(&format!("none{n}"))).collect();
    let answers = siege.relay.ask(&requests);
    assert!(answers.iter().all(|answer| answer["error"]["code"] == -32002));
    siege.serves_on();
    siege.end();
}

#[test]
fn numbers_past_every_end_are_served_or_refused() {
    let world = world();
    let most = u64::MAX.to_string();
    assert_eq!(world.fs(&["read", "proof.txt", "--line", &most]).ok().text(), "");
    assert_eq!(world.fs(&["read", "proof.txt", "--limit", &most]).ok().text(), "PROOF");
    assert_eq!(world.fs(&["read", "proof.txt", "--limit", "0"]).ok().text(), "");
    for bad in ["-1", "1.5", "18446744073709551616", "0x1", "1e3", "NaN", ""] {
        let done = world.fs(&["read", "proof.txt", &format!("--line={bad}")]);
        assert_eq!(done.code, 2, "{bad:?}: {done:?}");
    }
    is_unharmed(&world);
}
