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
        let places = [("ws", world.root()), ("state", world.state())];
        let bind = || places.each_ref().map(|(name, at)| Disk::bound(&everything.join(name), at));
        for (name, _) in &places {
            fs::create_dir(everything.join(name)).unwrap();
        }
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(everything.join("state"), private).unwrap();
        let bound = bind();
        world.fs(&["ls"]).ok();
        let hammers: Vec<_> = (1..3).map(|n| Hammer::start(&world, round * 10 + n, 5)).collect();
        thread::sleep(Duration::from_millis(100 + random.below(700)));
        hammers.iter().for_each(Hammer::pause);
        disk.cut_off();
        let mut durable = Vec::new();
        for mut hammer in hammers {
            hammer.child.kill().unwrap();
            let lines = hammer.end();
            durable.extend(
                hammer::receipts(&lines).into_iter().filter(|receipt| receipt["durable"] == true),
            );
        }
        promised += durable.len();
        drop(bound);
        disk.again("rw");
        let _bound = bind();
        aftermath::check(&world);
        aftermath::receipts_are_kept(&world, &durable);
        hammer::files_are_whole(&world.root());
    }
    println!("{promised} durable records");
    assert!(promised > 100, "{promised}");
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
        hammers.iter().for_each(Hammer::pause);
        if round % 2 == 0 {
            disk.fail_read_only();
        } else {
            disk.cut_off();
        }
        hammers.iter().for_each(Hammer::resume);
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
