//! Another process exchanges names while the gate works: nothing outside is
//! ever read or written, and no content is lost.

use std::{
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::World;

const ROUNDS: usize = 300;

/// Exchanges two names as fast as it can while `work` runs.
fn while_exchanging(one: PathBuf, other: PathBuf, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                    swaps += 1;
                }
            }
            swaps
        });
        work();
        stop.store(true, Ordering::Relaxed);
        assert!(swapper.join().unwrap() > 1000, "the race was not run");
    });
}

fn world() -> World {
    let world = World::new();
    let outside = world.base().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("k"), "OUTSIDE").unwrap();
    world
}

fn outside_is_untouched(world: &World) {
    let outside = world.base().join("outside");
    let names: Vec<_> = std::fs::read_dir(&outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["k"]);
    assert_eq!(std::fs::read_to_string(outside.join("k")).unwrap(), "OUTSIDE");
}

#[test]
fn a_file_exchanged_with_a_link_is_never_followed_outside() {
    let world = world();
    world.file("k", "INSIDE");
    symlink("../outside/k", world.path("link")).unwrap();
    while_exchanging(world.path("k"), world.path("link"), || {
        for _ in 0..ROUNDS {
            let done = world.fs(&["read", "k"]);
            assert!(!done.text().contains("OUTSIDE"), "{done:?}");
            assert!(matches!(done.code, 0 | 1 | 3), "{done:?}");
            let done = world.write("k", "INSIDE");
            assert!(matches!(done.code, 0 | 1 | 3), "{done:?}");
        }
    });
    outside_is_untouched(&world);
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_directory_exchanged_with_a_link_is_never_followed_outside() {
    let world = world();
    world.file("a/k", "INSIDE");
    symlink("../outside", world.path("b")).unwrap();
    while_exchanging(world.path("a"), world.path("b"), || {
        for round in 0..ROUNDS {
            let done = world.fs(&["read", "a/k"]);
            assert!(!done.text().contains("OUTSIDE"), "{done:?}");
            let done = world.write(&format!("a/w{round}"), "new");
            assert!(matches!(done.code, 0 | 1 | 3), "{done:?}");
            if round % 10 == 0 {
                let done = world.fs(&["rm", "a/k"]);
                assert!(matches!(done.code, 0 | 1 | 3), "{done:?}");
            }
        }
    });
    outside_is_untouched(&world);
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn an_ancestor_moved_out_of_the_workspace_takes_no_write_with_it() {
    let world = world();
    world.file("a/b/k", "INSIDE");
    std::fs::create_dir(world.base().join("elsewhere")).unwrap();
    let (inside, elsewhere) = (world.path("a"), world.base().join("elsewhere"));
    while_exchanging(inside, elsewhere.clone(), || {
        for round in 0..ROUNDS {
            let _ = world.write(&format!("a/b/w{round}"), "new");
        }
    });
    // Whichever of the two is outside now must hold nothing that was written
    // while it was there; what was written inside may have moved out with it.
    world.run(&["audit", "verify"]).ok();
    let requests = world.requests();
    let stored = requests.iter().filter(|r| r["kind"] == "outcome" && r["result"] == "ok").count();
    let found = [world.path("a/b"), elsewhere.join("b")]
        .iter()
        .filter_map(|directory| std::fs::read_dir(directory).ok())
        .flatten()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with('w'))
        .count();
    assert_eq!(stored, found, "every write is recorded and in one of the trees");
}

#[test]
fn a_file_that_another_process_rewrites_is_never_lost() {
    let mut world = world();
    world.set_policy(
        "schema = 1\nname = \"patient\"\nversion = 1\nextends = [\"default\"]\n\
         [backups]\nkeep = { versions = 1000, days = 30, size = \"1GiB\" }\n",
    );
    world.file("k", "0");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut last = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                last += 1;
                let temp = world.path("other.tmp");
                std::fs::write(&temp, format!("other {last}")).unwrap();
                std::fs::rename(&temp, world.path("k")).unwrap();
            }
            last
        });
        for round in 0..ROUNDS {
            let done = world.write("k", format!("gate {round}"));
            assert!(matches!(done.code, 0 | 1), "{done:?}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 100, "the race was not run");
    });
    // Every successful write kept exactly what it replaced.
    for record in world.requests().iter().filter(|record| record["kind"] == "intent") {
        let succeeded = world
            .requests()
            .iter()
            .any(|outcome| outcome["of"] == record["seq"] && outcome["result"] == "ok");
        if succeeded && let Some(backup) = record["backup"].as_str() {
            let kept = world.run(&["backup", "show", backup, "--json"]);
            assert_eq!(kept.code, 0, "{kept:?}");
        }
    }
    let leftovers = std::fs::read_dir(world.root())
        .unwrap()
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with(".portcullis")
        })
        .count();
    assert_eq!(leftovers, 0);
    world.run(&["audit", "verify"]).ok();
}
