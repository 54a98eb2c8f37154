//! Disks that fail in the middle of a mixed load: what was promised is there
//! when the disk is, and nothing is torn.

use std::{thread, time::Duration};

use super::*;
use crate::{
    hammer::{self, Hammer},
    random::Random,
};

/// The workspace alone fails while the log goes on, so that the gateway can
/// still record how its changes failed; what they left behind goes with the
/// next start.
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
