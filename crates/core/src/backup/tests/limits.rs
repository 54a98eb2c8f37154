//! Retention and a full disk, as a session sees them.

use std::sync::atomic::Ordering;

use super::*;

fn contents(backup_store: &BackupStore, name: &str) -> Vec<String> {
    let listing = backup_store.entries_of(&path(name)).unwrap();
    let text = |entry| String::from_utf8(text(backup_store, entry)).unwrap();
    listing.entries.iter().map(text).collect()
}

fn write(
    fixture: &Fixture,
    backup_store: &BackupStore,
    path: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    fixture.save_bytes(backup_store, path, bytes).and_then(|saved| backup_store.keep(saved))
}

/// Changes a file repeatedly from one version to the next.
fn change_often(
    fixture: &Fixture,
    backup_store: &BackupStore,
    path: &str,
    rounds: std::ops::Range<usize>,
) {
    for round in rounds {
        let (before, after) = (format!("version {round}"), format!("version {}", round + 1));
        fixture.change(backup_store, path, &before, &after).unwrap();
    }
}

#[test]
fn twenty_one_writes_do_not_push_the_original_out() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    change_often(&fixture, &backup_store, "f", 0..50);
    let kept = contents(&backup_store, "f");
    assert_eq!(kept.len(), 21);
    assert_eq!(kept[0], "version 0");
    assert_eq!(kept[1..], (30..50).map(|round| format!("version {round}")).collect::<Vec<_>>());
}

#[test]
fn changes_that_fail_push_nothing_out() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 3, ..ROOMY });
    change_often(&fixture, &backup_store, "f", 0..4);
    let before = contents(&backup_store, "f");
    for _ in 0..30 {
        let saved = fixture.save_bytes(&backup_store, "f", b"never changed").unwrap();
        backup_store.discard(saved).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), before);
}

#[test]
fn every_session_keeps_its_own_first_version() {
    let mut fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 1, ..ROOMY });
    for id in ["one", "two", "three"] {
        fixture.session = session(id);
        for round in 0..5 {
            let (before, after) = (format!("{id} {round}"), format!("{id} {}", round + 1));
            fixture.change(&backup_store, "f", &before, &after).unwrap();
        }
    }
    assert_eq!(contents(&backup_store, "f"), ["one 0", "two 0", "three 0", "three 4"]);
}

#[test]
fn commands_of_one_agent_count_as_one_session() {
    let mut fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 2, ..ROOMY });
    for round in 0..9 {
        fixture.session =
            Session { transport: Transport::Cli, ..session(&format!("command {round}")) };
        fixture.change(&backup_store, "f", format!("{round}"), format!("{}", round + 1)).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), ["0", "7", "8"]);
}

#[test]
fn a_full_backup_store_refuses_the_change_and_keeps_what_it_has() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { size: 10_000, ..ROOMY });
    let version = |round: usize| format!("{round:0500}");
    fixture.change(&backup_store, "a", [1; 4000], version(0)).unwrap();
    write(&fixture, &backup_store, "b", &[2; 4000]).unwrap();
    let files = fixture.files();
    for _ in 0..3 {
        assert!(matches!(write(&fixture, &backup_store, "c", &[3; 4000]), Err(Error::Full { .. })));
    }
    assert!(matches!(write(&fixture, &backup_store, "c", &[3; 10_001]), Err(Error::Full { .. })));
    assert_eq!(fixture.files(), files);
    // Later versions of the same file displace each other.
    for round in 0..20 {
        fixture.change(&backup_store, "a", version(round), version(round + 1)).unwrap();
    }
    assert_eq!(backup_store.entries_of(&path("a")).unwrap().entries[0].bytes, 4000);
    assert!(
        backup_store.entries().unwrap().entries.iter().map(|e| e.name.size).sum::<u64>() <= 10_000
    );
}

#[test]
fn old_backups_go_with_the_first_save_of_a_day() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    let start = 2_000_000_000_000_000;
    backup_store.clock.store(start, Ordering::Relaxed);
    write(&fixture, &backup_store, "old", b"old").unwrap();
    backup_store.clock.store(start + 29 * DAY, Ordering::Relaxed);
    write(&fixture, &backup_store, "young", b"young").unwrap();
    assert_eq!(backup_store.entries().unwrap().entries.len(), 2);
    backup_store.clock.store(start + 31 * DAY, Ordering::Relaxed);
    write(&fixture, &backup_store, "new", b"new").unwrap();
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
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 3, ..ROOMY });
    let start = 2_000_000_000_000_000;
    for round in 0..10 {
        backup_store.clock.store(start - round * DAY / 4, Ordering::Relaxed);
        fixture.change(&backup_store, "f", format!("{round}"), format!("{}", round + 1)).unwrap();
    }
    assert_eq!(contents(&backup_store, "f"), ["0", "7", "8", "9"]);
}

#[test]
fn what_the_session_did_not_store_there_itself_stays() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 2, ..ROOMY });
    change_often(&fixture, &backup_store, "f", 0..5);
    // Moved here, or written here by another process, between two changes.
    fixture.change(&backup_store, "f", "precious", "version 5").unwrap();
    change_often(&fixture, &backup_store, "f", 5..9);
    // A change that stores nothing of its own is followed by unknown content.
    write(&fixture, &backup_store, "f", b"version 9").unwrap();
    fixture.change(&backup_store, "f", "moved here", "version 10").unwrap();
    change_often(&fixture, &backup_store, "f", 10..20);
    let kept = ["version 0", "precious", "moved here", "version 18", "version 19"];
    assert_eq!(contents(&backup_store, "f"), kept);
}

#[test]
fn a_link_is_not_taken_for_a_file_with_the_same_bytes() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { versions: 1, ..ROOMY });
    fixture.change(&backup_store, "f", "old", "target").unwrap();
    let saved = fixture.settled(&backup_store, "f", Origin::Link(b"target")).unwrap();
    backup_store.keep(saved).unwrap();
    change_often(&fixture, &backup_store, "f", 0..5);
    assert!(contents(&backup_store, "f").contains(&"target".to_owned()));
}

#[test]
fn changes_that_are_not_made_cost_no_backups_for_room() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { size: 40_000, ..ROOMY });
    let version = |round: usize| format!("{round:02000}");
    for round in 0..12 {
        fixture.change(&backup_store, "f", version(round), version(round + 1)).unwrap();
    }
    let (files, before) = (fixture.files(), backup_store.size().unwrap());
    for _ in 0..3 {
        let saved = fixture.save_bytes(&backup_store, "big", &[1; 20_000]).unwrap();
        assert_eq!(fixture.files().len(), files.len() + 1);
        backup_store.discard(saved).unwrap();
        let loose =
            backup_store.save(&fixture.permit("big"), &fixture.meta(), Origin::Bytes(&[1; 20_000]));
        backup_store.discard(loose.unwrap()).unwrap();
    }
    assert_eq!((fixture.files(), backup_store.size().unwrap()), (files.clone(), before));
    // A change that was made gets its space.
    write(&fixture, &backup_store, "big", &[1; 20_000]).unwrap();
    assert!(backup_store.size().unwrap() <= 40_000 && fixture.files().len() < files.len());
    assert_eq!(contents(&backup_store, "big").len(), 1);
    assert_eq!(contents(&backup_store, "f").first(), Some(&version(0)));
    assert!(matches!(
        write(&fixture, &backup_store, "more", &[1; 20_000]),
        Err(Error::Full { .. })
    ));
}

#[test]
fn a_lost_or_damaged_account_is_made_anew() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { size: 10_000, ..ROOMY });
    write(&fixture, &backup_store, "a", &[1; 4000]).unwrap();
    let account = fixture.temp.path().join("state/backups/usage");
    for damage in
        ["", "1 00000000000000000000", "nonsense that is longer than an account may be...."]
    {
        fs::write(&account, damage).unwrap();
        let saved = fixture.save_bytes(&backup_store, "b", &[2; 4000]).unwrap();
        assert!(matches!(
            fixture.save_bytes(&backup_store, "c", &[3; 4000]),
            Err(Error::Full { .. })
        ));
        backup_store.discard(saved).unwrap();
    }
}

#[test]
fn a_full_disk_is_said_so_and_leaves_nothing() {
    const TEST: &str = "backup::tests::limits::a_full_disk_is_said_so_and_leaves_nothing";
    if let Some((_, state)) = role() {
        let fixture = Fixture::new();
        let backup_store = open(&state, ROOMY).unwrap();
        let kept = fixture.save_bytes(&backup_store, "small", b"small").unwrap();
        let full = fixture.save_bytes(&backup_store, "large", &vec![1; 2 << 20]);
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        fs::create_dir(fixture.ws("d")).unwrap();
        fs::write(fixture.ws("d/f"), vec![1; 2 << 20]).unwrap();
        assert!(matches!(fixture.save(&backup_store, "d"), Err(Error::NoSpace)));
        assert_eq!(fs::read_dir(state.join("backups/tmp")).unwrap().count(), 0);
        let listing = backup_store.entries().unwrap();
        assert_eq!((listing.entries.len(), listing.damaged.len()), (1, 0));
        assert_eq!(listing.entries[0].id, kept.id);
        // With free space it works again.
        fixture
            .save_bytes(&backup_store, "large", &vec![1; 500_000])
            .map(|s| backup_store.keep(s).unwrap())
            .unwrap();
        return;
    }
    again_with_tmpfs(TEST, TempDir::new().unwrap().path());
}

/// Regression: the change waited for ever.
#[test]
fn a_lock_that_another_process_keeps_fails_the_change_that_waits_for_it() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    fixture.save_bytes(&backup_store, "a", b"before").map(drop).unwrap();
    let lock = File::open(fixture.temp.path().join("state/backups/usage")).unwrap();
    lock.lock().unwrap();
    let refused = fixture.save_bytes(&backup_store, "a", b"refused").unwrap_err();
    assert!(refused.to_string().contains("`backups/usage`"), "{refused}");
    lock.unlock().unwrap();
    fixture.save_bytes(&backup_store, "a", b"after").map(drop).unwrap();
}
