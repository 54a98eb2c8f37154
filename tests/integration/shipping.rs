//! Copies of the log elsewhere: in directories, over HTTP to a failing target, and to a real S3
//! server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::{Done, World, done};

mod gaps;
#[cfg(feature = "full")]
mod reads;
#[cfg(feature = "full")]
mod remote;
#[cfg(feature = "full")]
mod replies;
#[cfg(feature = "full")]
mod server;

/// The copies beneath a target, the oldest first.
pub(crate) fn copies(target: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(target).unwrap().map(|entry| entry.unwrap());
    let mut copies: Vec<_> = entries
        .map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        .collect();
    copies.sort();
    copies.into_iter().map(|(_, path)| path).collect()
}

/// The only copy beneath a target.
#[track_caller]
pub(crate) fn the_copy(target: &Path) -> PathBuf {
    let mut copies = copies(target);
    assert_eq!(copies.len(), 1, "{copies:?}");
    copies.remove(0)
}

/// A configuration whose target is `copies`, beside the world.
fn configure(base: &Path) -> PathBuf {
    let (target, file) = (base.join("copies"), base.join("portcullis.toml"));
    fs::write(file, format!("[audit]\nship = [{{ to = {target:?} }}]\n")).unwrap();
    target
}

/// Makes a workspace whose log has a copy in a directory, the target.
fn shipped() -> (World, PathBuf) {
    let world = World::new();
    let target = configure(world.base());
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    (world, target)
}

/// Runs a command with the configuration in `base`.
fn run(world: &World, base: &Path, args: &[&str]) -> Done {
    let config = base.join("portcullis.toml");
    done(world.command(args).env("PORTCULLIS_CONFIG", config).output().unwrap())
}

/// Returns the records of a copy when it is verified by itself.
#[track_caller]
fn records(world: &World, copy: &Path) -> u64 {
    let mut command =
        world.command(&["audit", "verify", "--json", "--dir", copy.to_str().unwrap()]);
    command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    let report = done(command.output().unwrap()).ok().json();
    report["signed"]["records"].as_u64().unwrap()
}

/// A single configuration for all workspaces is usual: the second log overwrote the copy of the
/// first, and both were reported as stored.
#[test]
fn two_logs_with_one_target_have_a_copy_each() {
    let worlds = [World::new(), World::new()];
    let base = worlds[0].base();
    let target = configure(base);
    for (reads, world) in [5, 2].into_iter().zip(&worlds) {
        world.file("a", "x");
        for _ in 0..reads {
            world.fs(&["read", "a"]).ok();
        }
        world.run(&["audit", "checkpoint"]).ok();
        run(world, base, &["audit", "ship"]).ok();
    }
    for world in &worlds {
        run(world, base, &["audit", "ship"]).ok();
    }
    let mut there: Vec<_> = copies(&target).iter().map(|copy| records(&worlds[0], copy)).collect();
    let own = worlds.each_ref().map(|world| world.run(&["audit", "verify", "--json"]).ok().json());
    let mut own = own.map(|own| own["records"].as_u64().unwrap());
    there.sort_unstable();
    own.sort_unstable();
    assert_eq!(there, own);
}

/// Pieces of the recovered log were added to the copy of the damaged one, which was
/// then damaged for good.
#[test]
fn a_recovered_log_leaves_the_copy_of_what_it_was_alone() {
    let world = World::new();
    let target = configure(world.base());
    world.file("a", "x");
    for _ in 0..5 {
        world.fs(&["read", "a"]).ok();
    }
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let first = the_copy(&target);
    let sent = records(&world, &first);
    let segment = world.state().join("audit/seg-000000.jsonl");
    let log = fs::read_to_string(&segment).unwrap();
    let damaged: Vec<_> =
        log.lines()
            .enumerate()
            .map(|(number, line)| {
                if number == 7 {
                    line.replacen("\"t\":\"2", "\"t\":\"3", 1)
                } else {
                    line.to_owned()
                }
            })
            .collect();
    fs::write(&segment, damaged.join("\n") + "\n").unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    // As many records as were sent, fewer, and more.
    for _ in 0..12 {
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "checkpoint"]).ok();
        let shipped = run(&world, world.base(), &["audit", "ship"]).ok();
        assert_eq!(records(&world, &first), sent, "{shipped:?}");
    }
    let there = copies(&target);
    assert_eq!(there.len(), 2, "{there:?}");
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, there.last().unwrap())), own["records"].as_u64());
}

/// The records were reported as stored where nothing was, and later ones were refused.
#[test]
fn a_copy_that_is_gone_is_said_to_be_and_made_again() {
    let (world, target) = shipped();
    let sent = records(&world, &the_copy(&target));
    for and_goes_on in [false, true] {
        fs::remove_dir_all(&target).unwrap();
        let status =
            run(&world, world.base(), &["audit", "ship", "--status", "--json"]).ok().json();
        assert!(
            status["records"] == 0
                && status["behind"].as_u64() >= Some(sent)
                && status["error"].is_string(),
            "{status}"
        );
        let checks = run(&world, world.base(), &["doctor", "--json"]).json();
        let checks = checks["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "copies of the log").unwrap();
        assert_eq!(check["status"], "warning", "{check}");
        if and_goes_on {
            world.fs(&["read", "a"]).ok();
            world.run(&["audit", "checkpoint"]).ok();
        }
        run(&world, world.base(), &["audit", "ship"]).ok();
        let own = world.run(&["audit", "verify", "--json"]).ok().json();
        let there = records(&world, &the_copy(&target));
        assert_eq!(Some(there), own["signed"]["records"].as_u64());
    }
}

/// The live log was cut to the first piece that was sent.
#[test]
fn a_target_in_the_state_directory_is_refused() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    let before = fs::read(world.state().join("audit/seg-000000.jsonl")).unwrap();
    for within in ["audit", "", "backups", "new/deep"] {
        let target = world.state().join(within);
        let file = world.base().join("portcullis.toml");
        fs::write(file, format!("[audit]\nship = [{{ to = {target:?} }}]\n")).unwrap();
        let refused = run(&world, world.base(), &["audit", "ship"]);
        assert!(refused.code == 1 && refused.stderr.contains("state directory"), "{refused:?}");
    }
    assert_eq!(fs::read(world.state().join("audit/seg-000000.jsonl")).unwrap(), before);
    world.run(&["audit", "verify"]).ok();
}

/// A party with access to the other machine had the gateway's host write to the target of a link.
#[test]
fn a_link_in_a_copy_has_nothing_written_elsewhere() {
    let world = World::new();
    let target = configure(world.base());
    world.file("a", "x");
    let victim = world.base().join("victim");
    fs::write(&victim, "mine").unwrap();
    let ship = || {
        world.fs(&["read", "a"]).ok();
        world.run(&["audit", "checkpoint"]).ok();
        run(&world, world.base(), &["audit", "ship"])
    };
    ship().ok();
    let copy = the_copy(&target);
    for name in [".incoming", "checkpoint", "key.vkey", "seg-000000.jsonl"] {
        let place = copy.join(name);
        let _ = fs::remove_file(&place);
        std::os::unix::fs::symlink(&victim, &place).unwrap();
        ship();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{name}");
    }
    // Another copy has everything by now.
    ship().ok();
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    let newest = copies(&target).pop().unwrap();
    assert_eq!(Some(records(&world, &newest)), own["signed"]["records"].as_u64());
}

/// `frontier` is not signed. One that named a segment far away had segments sealed without end.
#[test]
fn a_frontier_that_says_what_is_not_so_sends_nothing() {
    let world = World::new();
    let target = configure(world.base());
    world.file("a", "x");
    let ship = || run(&world, world.base(), &["audit", "ship"]);
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    ship().ok();
    let sent = records(&world, &the_copy(&target));
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    let frontier = world.state().join("audit/frontier");
    let good = fs::read_to_string(&frontier).unwrap();
    let far = good.replace("\"segment\":0", "\"segment\":1000000000000000");
    assert_ne!(good, far);
    for wrong in [
        far,
        good.replace("\"offset\":", "\"offset\":1"),
        good.replace("\"offset\":", "\"offset\":0."),
    ] {
        fs::write(&frontier, wrong).unwrap();
        let _ = ship();
        assert_eq!(records(&world, &the_copy(&target)), sent);
    }
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    ship().ok();
    assert!(records(&world, &the_copy(&target)) > sent);
}

/// Nothing was sent while there was no new record.
#[test]
fn a_new_key_and_its_checkpoint_reach_the_copy() {
    let (world, target) = shipped();
    world.run(&["audit", "key", "--new"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
    run(&world, world.base(), &["audit", "ship"]).ok();
    let (copy, own) = (the_copy(&target), world.state().join("audit"));
    for name in ["key.vkey", "checkpoint"] {
        assert_eq!(fs::read(copy.join(name)).unwrap(), fs::read(own.join(name)).unwrap(), "{name}");
    }
    records(&world, &copy);
}

/// The agent read the token, or could write one.
#[test]
fn a_token_for_copies_in_the_workspace_was_no_trusted_path() {
    let world = World::new();
    let config = world.base().join("portcullis.toml");
    let token = world.file("token", "secret");
    let names = ["aws_web_identity_token_file", "container_authorization_token_file"];
    for option in names {
        let ship =
            format!("[[audit.ship]]\nto = \"s3://b/p\"\noptions = {{ {option} = {token:?} }}\n");
        fs::write(&config, ship).unwrap();
        let refused = run(&world, world.base(), &["fs", "read", "token"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("token for copies of the log"), "{refused:?}");
    }
    for to in ["s3://b/p".to_owned(), world.base().join("copies").display().to_string()] {
        fs::write(&config, format!("[[audit.ship]]\nto = {to:?}\n")).unwrap();
        let mut command = world.command(&["fs", "read", "token"]);
        command.env("PORTCULLIS_CONFIG", &config).env("AWS_Web_Identity_Token_File", &token);
        let answer = done(command.output().unwrap());
        let is_named = answer.stderr.contains("token for copies of the log");
        assert_eq!(
            (is_named, answer.code == 1),
            (to.starts_with("s3"), to.starts_with("s3")),
            "{answer:?}"
        );
    }
}

/// The last checkpoint was not sent, without a message, if another process sent an earlier one at
/// that moment: it stayed behind until the next gateway.
#[test]
fn the_last_checkpoint_is_sent_after_another_process_has_sent() {
    let (world, target) = shipped();
    let entries = fs::read_dir(world.state().join("ship")).unwrap();
    let mut locks = entries.map(|entry| entry.unwrap().path());
    let lock = locks.find(|path| path.extension().is_some_and(|end| end == "lock")).unwrap();
    // A broker waits three seconds for its copies, also on a machine that is too busy for that.
    let is_sent = |_| {
        let lock = fs::File::open(&lock).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let config = world.base().join("portcullis.toml");
        let stops = || world.records().iter().filter(|record| record["kind"] == "stop").count();
        let before = stops();
        let mut command = world.command(&["exec", "--", "true"]);
        let mut broker = command.env("PORTCULLIS_CONFIG", config).spawn().unwrap();
        while stops() == before && broker.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(lock);
        assert!(broker.wait().unwrap().success());
        let own = world.run(&["audit", "verify", "--json"]).ok().json();
        Some(records(&world, &the_copy(&target))) == own["signed"]["records"].as_u64()
    };
    assert!((0..5).any(is_sent));
}
