//! Concurrent changes by other processes.

use std::{
    collections::HashSet,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;

#[test]
fn hash_and_stored_bytes_agree_while_the_file_is_rewritten() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), vec![0; 400_000]).unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let done = AtomicBool::new(false);
    let mut torn = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(fixture.ws("f")).unwrap();
            let mut byte = 0_u8;
            while !done.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                let size = 200_000 + usize::from(byte) * 1000;
                file.set_len(size as u64).unwrap();
                for start in (0..size).step_by(4096) {
                    file.write_all_at(&vec![byte; 4096.min(size - start)], start as u64).unwrap();
                }
            }
        });
        let _done = Raised(&done);
        for round in 0..10_000 {
            // The writer may begin late.
            if round >= 300 && torn > 0 {
                break;
            }
            let saved = fixture.save(&backup_store, "f").unwrap();
            let entry = backup_store.find(&saved.id.to_string()).unwrap();
            let bytes = text(&backup_store, &entry);
            assert_eq!((saved.sha256, saved.bytes), (Hash::of(&bytes), bytes.len() as u64));
            torn += u32::from(bytes.windows(2).any(|pair| pair[0] != pair[1]));
            backup_store.discard(saved).unwrap();
        }
    });
    assert!(torn > 0, "no read of the writer saw an incomplete copy");
}

#[test]
fn a_growing_file_ends_at_the_limit() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), vec![0; 100_000]).unwrap();
    let backup_store = fixture.backup_store(Retention { size: 1_000_000, ..ROOMY });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::OpenOptions::new().append(true).open(fixture.ws("f")).unwrap();
            while !done.load(Ordering::Relaxed) && file.metadata().unwrap().len() < 1 << 26 {
                std::io::Write::write_all(&mut file, &[1; 65536]).unwrap();
            }
        });
        let _done = Raised(&done);
        while fs::metadata(fixture.ws("f")).unwrap().len() < 2_000_000 {
            std::thread::yield_now();
        }
        assert!(matches!(fixture.save(&backup_store, "f"), Err(Error::Full { limit: 1_000_000 })));
    });
    assert!(fixture.files().is_empty());
}

#[test]
fn a_tree_that_is_moved_about_is_refused_or_kept_whole() {
    let fixture = Fixture::new();
    for dir in 0..20 {
        fs::create_dir_all(fixture.ws(&format!("d/{dir}/x"))).unwrap();
        fs::write(fixture.ws(&format!("d/{dir}/x/f")), b"inside").unwrap();
    }
    fs::create_dir_all(fixture.temp.path().join("outside")).unwrap();
    fs::write(fixture.temp.path().join("outside/secret"), b"outside").unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let away = fixture.temp.path().join("outside/x");
            for dir in (0..20).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let home = fixture.ws(&format!("d/{dir}/x"));
                fs::rename(&home, &away).unwrap();
                std::os::unix::fs::symlink("../../../outside", &home).unwrap();
                fs::remove_file(&home).unwrap();
                fs::rename(&away, &home).unwrap();
            }
        });
        let _done = Raised(&done);
        for _ in 0..300 {
            match fixture.save(&backup_store, "d") {
                Ok(saved) => {
                    let entry = backup_store.find(&saved.id.to_string()).unwrap();
                    backup_store.verify(&entry).unwrap();
                    let mut tree = backup_store.tree(&entry).unwrap();
                    while let Some(node) = tree.next_node().unwrap() {
                        assert_ne!(node.name, "secret");
                    }
                    backup_store.discard(saved).unwrap();
                }
                Err(Error::Changed) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(fixture.files().is_empty());
}

#[test]
fn several_gateways_save_at_once_and_lose_nothing() {
    let fixture = Fixture::new();
    let rounds = 60;
    let ids: Vec<BackupId> = std::thread::scope(|scope| {
        let gateways: Vec<_> = (0..4)
            .map(|gateway| {
                let fixture = &fixture;
                scope.spawn(move || {
                    // Each thread has its own descriptors, as another process would.
                    let backup_store = fixture.backup_store(Retention { versions: 1000, ..ROOMY });
                    (0..rounds)
                        .map(|round| {
                            let path = if round % 2 == 0 {
                                "same".to_owned()
                            } else {
                                format!("{gateway}")
                            };
                            let saved =
                                fixture.save_bytes(&backup_store, &path, &[gateway; 100]).unwrap();
                            let id = saved.id;
                            backup_store.keep(saved).unwrap();
                            id
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        gateways.into_iter().flat_map(|gateway| gateway.join().unwrap()).collect()
    });
    let backup_store = fixture.backup_store(ROOMY);
    let listing = backup_store.entries().unwrap();
    assert!(listing.damaged.is_empty());
    let found: HashSet<BackupId> = listing.entries.iter().map(|entry| entry.id).collect();
    assert_eq!(found, ids.iter().copied().collect());
    assert_eq!(found.len(), 4 * rounds);
    for entry in &listing.entries {
        backup_store.verify(entry).unwrap();
    }
    let counted: u64 = listing.entries.iter().map(|entry| entry.name.size).sum();
    let account = fs::read_to_string(fixture.temp.path().join("state/backups/usage")).unwrap();
    assert_eq!(account.split(' ').nth(1).unwrap().parse::<u64>().unwrap(), counted);
}
