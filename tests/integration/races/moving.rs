//! Names that another process takes while the gateway moves something to them.

use std::{
    fs,
    io::Write as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use portcullis::{gateway::ErrorKind, model::request::Rename};

use super::{RunningMount, is_clean, path};
use crate::common::Stop;

/// Number of times that each outcome must be seen; a move syncs.
const OUTCOMES: u32 = 100;

/// Timeout of the race where the machine has other work.
const TIMEOUT: Duration = Duration::from_secs(120);

/// `move_file` of the reference tools looked first, and replaced what came then.
#[test]
fn a_rename_that_replaces_nothing_leaves_what_took_the_name_meanwhile() {
    let inside = RunningMount::new();
    let root = inside.root();
    let (from, to) = (root.join("from"), root.join("to"));
    let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let rename = Rename { from: path("from"), to: path("to"), replace: false };
    let (mut moved, mut refused) = (0, 0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let Ok(mut file) = fs::File::create_new(&to) else { continue };
                file.write_all(b"theirs").unwrap();
                taken.fetch_add(1, Ordering::Relaxed);
                for _ in 0..8 {
                    assert_eq!(fs::read_to_string(&to).unwrap(), "theirs");
                }
                fs::remove_file(&to).unwrap();
                // Free for up to as long as a request takes: one decided on while the
                // name is free may find it taken, and may not.
                thread::sleep(Duration::from_micros(taken.load(Ordering::Relaxed) % 8 * 250));
            }
        });
        let over = Stop(&stop);
        fs::write(&from, "INSIDE").unwrap();
        let started = Instant::now();
        while (moved < OUTCOMES || refused < OUTCOMES) && started.elapsed() < TIMEOUT {
            match inside.handle(&rename) {
                Ok(_) => {
                    moved += 1;
                    // The rename is this process's: the other one only makes the file where nothing
                    // is.
                    fs::rename(&to, &from).unwrap();
                }
                Err(ErrorKind::AlreadyExists | ErrorKind::Conflict) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
            assert_eq!(fs::read_to_string(&from).unwrap(), "INSIDE");
        }
        drop(over);
        other.join().unwrap();
    });
    let taken = taken.into_inner();
    assert!(
        moved >= OUTCOMES && refused >= OUTCOMES && taken > 100,
        "{moved} moved, {refused} refused, {taken} times taken: the race was not run"
    );
    is_clean(&root);
}
