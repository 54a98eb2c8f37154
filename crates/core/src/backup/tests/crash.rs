//! Killed at any point, the store is intact.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::*;

#[test]
fn killed_while_saving_leaves_no_torn_entry() {
    const TEST: &str = "backup::tests::crash::killed_while_saving_leaves_no_torn_entry";
    if let Some((_, state)) = role() {
        save_for_ever(&state);
    }
    let fixture = Fixture::new();
    let state = fixture.temp.path().join("state");
    let (mut kills, mut reported) = (0, 0);
    for round in 0..40_u64 {
        let mut child = again(TEST, "save", &state)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // The child is at work, and is killed at another point each time.
        lines.next().unwrap().unwrap();
        let mut ids = Vec::new();
        if round % 2 == 0 {
            ids.push(lines.next().unwrap().unwrap());
        }
        std::thread::sleep(Duration::from_micros(500 + round * 371 % 9000));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        ids.extend(lines.map_while(Result::ok));

        let backup_store = open(&state, Retention { versions: u64::MAX, ..ROOMY }).unwrap();
        assert_eq!(fs::read_dir(state.join("backups/tmp")).unwrap().count(), 0);
        let listing = backup_store.entries().unwrap();
        assert!(listing.damaged.is_empty());
        for id in ids.iter().filter(|id| id.len() == 31) {
            backup_store.verify(&backup_store.find(id).unwrap()).unwrap();
            reported += 1;
        }
        for entry in &listing.entries {
            backup_store.verify(entry).unwrap();
        }
        // The account has at least the bytes that exist.
        let account = fs::read_to_string(state.join("backups/usage")).unwrap();
        let account = account.split(' ').nth(1).map_or(0, |total| total.parse().unwrap());
        assert!(account >= listing.entries.iter().map(|entry| entry.name.size).sum::<u64>());
    }
    assert!(kills == 40 && reported > 0);
}

/// Saves files and trees and reports each on standard error.
fn save_for_ever(state: &Path) -> ! {
    let fixture = Fixture::new();
    fs::create_dir(fixture.ws("d")).unwrap();
    for name in 0..5 {
        fs::write(fixture.ws(&format!("d/{name}")), vec![name; 30_000]).unwrap();
    }
    fs::write(fixture.ws("f"), vec![5; 100_000]).unwrap();
    let backup_store = open(state, Retention { versions: u64::MAX, ..ROOMY }).unwrap();
    let mut out = std::io::stderr();
    writeln!(out, "at work").unwrap();
    loop {
        for path in ["d", "f"] {
            let saved = fixture.save(&backup_store, path).unwrap();
            let id = saved.id;
            backup_store.keep(saved).unwrap();
            writeln!(out, "{id}").unwrap();
        }
    }
}

#[test]
fn opening_beside_a_busy_gateway_leaves_its_files_alone() {
    let fixture = Fixture::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(fixture.backup_store(ROOMY));
            }
        });
        let _stop = Raised(&stop);
        let backup_store = fixture.backup_store(ROOMY);
        for round in 0..300_u32 {
            fixture
                .change(&backup_store, "f", round.to_le_bytes(), (round + 1).to_le_bytes())
                .unwrap();
        }
    });
    assert_eq!(fixture.files().len(), 21);
}

#[test]
fn a_file_that_its_maker_locks_just_now_is_not_cleared_away() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), "old").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // More threads than processors, so that each is interrupted anywhere.
        for _ in 0..6 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(fixture.backup_store(ROOMY));
                }
            });
        }
        let _stop = Raised(&stop);
        let backup_store = fixture.backup_store(ROOMY);
        for _ in 0..1000 {
            let saved = fixture.save_loose(&backup_store, "f").unwrap();
            backup_store.discard(saved).unwrap();
        }
    });
}
