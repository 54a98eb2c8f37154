//! Retention and a full disk, as a session sees them.

use std::sync::atomic::Ordering;

use super::*;

fn contents(backup_store: &BackupStore, name: &str) -> Vec<String> {
    let listing = backup_store.entries_of(&path(name)).unwrap();
    let text = |entry| String::from_utf8(text(backup_store, entry)).unwrap();
    listing.entries.iter().map(text).collect()
}

fn write(house: &House, backup_store: &BackupStore, path: &str, bytes: &[u8]) -> Result<(), Error> {
    house.save_bytes(backup_store, path, bytes).and_then(|saved| backup_store.keep(saved))
}

/// Changes a file repeatedly from one version to the next.
fn change_often(
    house: &House,
    backup_store: &BackupStore,
    path: &str,
    rounds: std::ops::Range<usize>,
) {
    for round in rounds {
        let (before, after) = (format!("version {round}"), format!("version {}", round + 1));
        house.change(backup_store, path, &before, &after).unwrap();
    }
}

#[test]
fn twenty_one_writes_do_not_push_the_original_out() {
    let house = House::new();
    let backup_store = house.backup_store(ROOMY);
    change_often(&house, &backup_store, "f", 0..50);
    let kept = contents(&backup_store, "f");
    assert_eq!(kept.len(), 21);
    assert_eq!(kept[0], "version 0");
    assert_eq!(kept[1..], (30..50).map(|round| format!("version {round}")).collect::<Vec<_>>());
}

#[test]
fn changes_that_fail_push_nothing_out() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { versions: 3, ..ROOMY });
    change_often(&house, &backup_store, "f", 0..4);
    let before = contents(&backup_store, "f");
    for _ in 0..30 {
        let saved = house.save_bytes(&backup_store, "f", b"never changed").unwrap();
        backup_store.discard(saved).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), before);
}

#[test]
fn every_session_keeps_its_own_first_version() {
    let mut house = House::new();
    let backup_store = house.backup_store(Retention { versions: 1, ..ROOMY });
    for id in ["one", "two", "three"] {
        house.session = session(id);
        for round in 0..5 {
            let (before, after) = (format!("{id} {round}"), format!("{id} {}", round + 1));
            house.change(&backup_store, "f", &before, &after).unwrap();
        }
    }
    assert_eq!(contents(&backup_store, "f"), ["one 0", "two 0", "three 0", "three 4"]);
}

#[test]
fn commands_of_one_agent_count_as_one_session() {
    let mut house = House::new();
    let backup_store = house.backup_store(Retention { versions: 2, ..ROOMY });
    for round in 0..9 {
        house.session =
            Session { transport: Transport::Cli, ..session(&format!("command {round}")) };
        house.change(&backup_store, "f", format!("{round}"), format!("{}", round + 1)).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), ["0", "7", "8"]);
}

#[test]
fn a_full_backup_store_refuses_the_change_and_keeps_what_it_has() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { size: 10_000, ..ROOMY });
    let version = |round: usize| format!("{round:0500}");
    house.change(&backup_store, "a", [1; 4000], version(0)).unwrap();
    write(&house, &backup_store, "b", &[2; 4000]).unwrap();
    let files = house.files();
    for _ in 0..3 {
        assert!(matches!(write(&house, &backup_store, "c", &[3; 4000]), Err(Error::Full { .. })));
    }
    assert!(matches!(write(&house, &backup_store, "c", &[3; 10_001]), Err(Error::Full { .. })));
    assert_eq!(house.files(), files);
    // Later versions of the same file displace each other.
    for round in 0..20 {
        house.change(&backup_store, "a", version(round), version(round + 1)).unwrap();
    }
    assert_eq!(backup_store.entries_of(&path("a")).unwrap().entries[0].bytes, 4000);
    assert!(
        backup_store.entries().unwrap().entries.iter().map(|e| e.name.size).sum::<u64>() <= 10_000
    );
}

#[test]
fn old_backups_go_with_the_first_save_of_a_day() {
    let house = House::new();
    let backup_store = house.backup_store(ROOMY);
    let start = 2_000_000_000_000_000;
    backup_store.clock.store(start, Ordering::Relaxed);
    write(&house, &backup_store, "old", b"old").unwrap();
    backup_store.clock.store(start + 29 * DAY, Ordering::Relaxed);
    write(&house, &backup_store, "young", b"young").unwrap();
    assert_eq!(backup_store.entries().unwrap().entries.len(), 2);
    backup_store.clock.store(start + 31 * DAY, Ordering::Relaxed);
    write(&house, &backup_store, "new", b"new").unwrap();
    let paths: Vec<_> = backup_store
        .entries()
        .unwrap()
        .entries
        .iter()
        .map(|e| e.path.as_str().to_owned())
        .collect();
    assert_eq!(paths, ["young", "new"]);
}

#[test]
fn a_clock_that_is_set_back_does_not_make_new_versions_the_oldest() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { versions: 3, ..ROOMY });
    let start = 2_000_000_000_000_000;
    for round in 0..10 {
        backup_store.clock.store(start - round * DAY / 4, Ordering::Relaxed);
        house.change(&backup_store, "f", format!("{round}"), format!("{}", round + 1)).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), ["0", "7", "8", "9"]);
}

#[test]
fn what_the_session_did_not_store_there_itself_stays() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { versions: 2, ..ROOMY });
    change_often(&house, &backup_store, "f", 0..5);
    // Moved here, or written here by another process, between two changes.
    house.change(&backup_store, "f", "precious", "version 5").unwrap();
    change_often(&house, &backup_store, "f", 5..9);
    // A change that stores nothing of its own is followed by unknown content.
    write(&house, &backup_store, "f", b"version 9").unwrap();
    house.change(&backup_store, "f", "moved here", "version 10").unwrap();
    change_often(&house, &backup_store, "f", 10..20);
    let kept = ["version 0", "precious", "moved here", "version 18", "version 19"];
    assert_eq!(contents(&backup_store, "f"), kept);
}

#[test]
fn a_link_is_not_taken_for_a_file_with_the_same_bytes() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { versions: 1, ..ROOMY });
    house.change(&backup_store, "f", "old", "target").unwrap();
    let saved = house.settled(&backup_store, "f", Origin::Link(b"target")).unwrap();
    backup_store.keep(saved).unwrap();
    change_often(&house, &backup_store, "f", 0..5);
    assert!(contents(&backup_store, "f").contains(&"target".to_owned()));
}

#[test]
fn changes_that_are_not_made_cost_no_backups_for_room() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { size: 40_000, ..ROOMY });
    let version = |round: usize| format!("{round:02000}");
    for round in 0..12 {
        house.change(&backup_store, "f", version(round), version(round + 1)).unwrap();
    }
    let (files, before) = (house.files(), backup_store.size().unwrap());
    for _ in 0..3 {
        let saved = house.save_bytes(&backup_store, "big", &[1; 20_000]).unwrap();
        assert_eq!(house.files().len(), files.len() + 1);
        backup_store.discard(saved).unwrap();
        let loose =
            backup_store.save(&house.permit("big"), &house.meta(), Origin::Bytes(&[1; 20_000]));
        backup_store.discard(loose.unwrap()).unwrap();
    }
    assert_eq!((house.files(), backup_store.size().unwrap()), (files.clone(), before));
    // A change that was made gets its space.
    write(&house, &backup_store, "big", &[1; 20_000]).unwrap();
    assert!(backup_store.size().unwrap() <= 40_000 && house.files().len() < files.len());
    assert_eq!(contents(&backup_store, "big").len(), 1);
    assert_eq!(contents(&backup_store, "f").first(), Some(&version(0)));
    assert!(matches!(write(&house, &backup_store, "more", &[1; 20_000]), Err(Error::Full { .. })));
}

#[test]
fn a_lost_or_damaged_account_is_made_anew() {
    let house = House::new();
    let backup_store = house.backup_store(Retention { size: 10_000, ..ROOMY });
    write(&house, &backup_store, "a", &[1; 4000]).unwrap();
    let account = house.temp.path().join("state/backups/usage");
    for damage in
        ["", "1 00000000000000000000", "nonsense that is longer than an account may be...."]
    {
        fs::write(&account, damage).unwrap();
        let saved = house.save_bytes(&backup_store, "b", &[2; 4000]).unwrap();
        assert!(matches!(
            house.save_bytes(&backup_store, "c", &[3; 4000]),
            Err(Error::Full { .. })
        ));
        backup_store.discard(saved).unwrap();
    }
}

#[test]
fn a_full_disk_is_said_so_and_leaves_nothing() {
    const TEST: &str = "backup::tests::limits::a_full_disk_is_said_so_and_leaves_nothing";
    if let Some((_, state)) = role() {
        let house = House::new();
        let backup_store = open(&state, ROOMY).unwrap();
        let kept = house.save_bytes(&backup_store, "small", b"small").unwrap();
        let full = house.save_bytes(&backup_store, "large", &vec![1; 2 << 20]);
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        fs::create_dir(house.ws("d")).unwrap();
        fs::write(house.ws("d/f"), vec![1; 2 << 20]).unwrap();
        assert!(matches!(house.save(&backup_store, "d"), Err(Error::NoSpace)));
        assert_eq!(fs::read_dir(state.join("backups/tmp")).unwrap().count(), 0);
        let listing = backup_store.entries().unwrap();
        assert_eq!((listing.entries.len(), listing.damaged.len()), (1, 0));
        assert_eq!(listing.entries[0].id, kept.id);
        // With free space it works again.
        house
            .save_bytes(&backup_store, "large", &vec![1; 500_000])
            .map(|s| backup_store.keep(s).unwrap())
            .unwrap();
        return;
    }
    again_with_tmpfs(TEST, TempDir::new().unwrap().path());
}

/// Before, the change waited for ever.
#[test]
fn a_lock_that_another_process_keeps_fails_the_change_that_waits_for_it() {
    let house = House::new();
    let backup_store = house.backup_store(ROOMY);
    house.save_bytes(&backup_store, "a", b"before").map(drop).unwrap();
    let lock = File::open(house.temp.path().join("state/backups/usage")).unwrap();
    lock.lock().unwrap();
    let refused = house.save_bytes(&backup_store, "a", b"refused").unwrap_err();
    assert!(refused.to_string().contains("`backups/usage`"), "{refused}");
    lock.unlock().unwrap();
    house.save_bytes(&backup_store, "a", b"after").map(drop).unwrap();
}
