//! Disks that fail in the middle of a mixed load: what was promised is there
//! when the disk is, and nothing is torn.

use std::{fs, thread, time::Duration};

use super::*;
use crate::{
    crash::Random,
    hammer::{self, Hammer},
};

/// Everything on one disk, which loses what was not synced.
#[test]
fn a_power_loss_under_load_loses_nothing_that_was_promised() {
    let mut random = Random::new(5);
    let mut promised = 0;
    for round in 0..8 {
        let world = World::with_policy(POLICY);
        let everything = world.base().join("disk");
        let disk = Disk::ext4(&everything, &world.base().join("image"), 24);
        for (name, place) in [("ws", world.root()), ("state", world.state())] {
            fs::create_dir(everything.join(name)).unwrap();
            let _ = fs::remove_dir(&place);
            fs::create_dir(&place).unwrap();
            bind(&everything.join(name), &place);
        }
        fs::set_permissions(world.state(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        world.fs(&["ls"]).ok();
        let hammers: Vec<_> = (1..3).map(|n| Hammer::start(&world, round * 10 + n, 5)).collect();
        thread::sleep(Duration::from_millis(100 + random.below(700)));
        // Nobody hears a promise after the power is gone; here, a sync that the
        // cut overtakes can be told that it was done.
        let heard: Vec<_> = hammers.iter().map(Hammer::heard).collect();
        disk.cut_off();
        let mut durable = Vec::new();
        for (mut hammer, heard) in hammers.into_iter().zip(heard) {
            hammer.child.kill().unwrap();
            let lines = hammer.end();
            durable.extend(
                hammer::receipts(&lines[..heard])
                    .into_iter()
                    .filter(|receipt| receipt["durable"] == true),
            );
        }
        promised += durable.len();
        for place in [world.root(), world.state()] {
            unbind(&place);
        }
        disk.again("rw");
        for (name, place) in [("ws", world.root()), ("state", world.state())] {
            bind(&everything.join(name), &place);
        }
        aftermath::check(&world);
        aftermath::receipts_are_kept(&world, &durable);
        hammer::files_are_whole(&world.root());
        for place in [world.root(), world.state()] {
            unbind(&place);
        }
    }
    println!("{promised} durable records");
    assert!(promised > 100, "{promised}");
}

fn bind(from: &std::path::Path, to: &std::path::Path) {
    let done = std::process::Command::new("mount").arg("--bind").args([from, to]).status().unwrap();
    assert!(done.success(), "this test mounts file systems, so it must run as root");
}

fn unbind(place: &std::path::Path) {
    let done = std::process::Command::new("umount").arg(place).status().unwrap();
    assert!(done.success());
}

/// The workspace alone fails while the log goes on, so that the gate can still
/// record how its changes failed; what they left behind goes with the next
/// start.
#[test]
fn a_workspace_that_fails_under_load_is_put_right_by_the_next_start() {
    let mut random = Random::new(6);
    for round in 0..8 {
        let world = world();
        let disk = Disk::ext4(&world.root(), &world.base().join("image"), 24);
        world.fs(&["ls"]).ok();
        let hammers: Vec<_> = (1..3).map(|n| Hammer::start(&world, round * 10 + n, 2)).collect();
        thread::sleep(Duration::from_millis(100 + random.below(700)));
        if round % 2 == 0 {
            disk.fail_read_only();
        } else {
            disk.cut_off();
        }
        let mut receipts = Vec::new();
        for hammer in hammers {
            let lines = hammer.end();
            assert_eq!(lines.last().unwrap()["stopped"], true, "the log works");
            receipts.extend(hammer::receipts(&lines));
        }
        disk.again("rw");
        aftermath::check(&world);
        aftermath::receipts_are_kept(&world, &receipts);
        hammer::files_are_whole(&world.root());
    }
}
