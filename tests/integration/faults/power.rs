//! Disks that fail in the middle of a mixed load: what was promised is there
//! when the disk is, and nothing is torn.

use std::{thread, time::Duration};

use super::*;
use crate::{
    load::{self, LoadGenerator},
    seeded_random::Random,
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
        let load_generators: Vec<_> =
            (1..3).map(|n| LoadGenerator::start(&world, round * 10 + n, 2)).collect();
        // No gateway opens on a disk that has failed.
        load_generators.iter().for_each(LoadGenerator::wait_for_request);
        thread::sleep(Duration::from_millis(random.below(800)));
        load_generators.iter().for_each(LoadGenerator::pause);
        if round % 2 == 0 {
            disk.fail_read_only();
        } else {
            disk.cut_off();
        }
        load_generators.iter().for_each(LoadGenerator::resume);
        let mut receipts = Vec::new();
        for load_generator in load_generators {
            let lines = load_generator.end();
            assert_eq!(lines.last().unwrap()["stopped"], true, "the log works");
            receipts.extend(load::receipts(&lines));
        }
        disk.again("rw");
        consistency::check(&world);
        consistency::receipts_are_kept(&world, &receipts);
        load::files_are_whole(&world.root());
    }
}
