//! Backups whose gateways died before they were in their place.

use super::*;

/// Returns the only file in `tmp`.
fn unfinished(fixture: &Fixture) -> std::path::PathBuf {
    let mut files = fs::read_dir(fixture.temp.path().join("state/backups/tmp")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

/// Leaves a file in `tmp` as a gateway that dies after a save: `change` changes its bytes.
fn leave(fixture: &Fixture, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> BackupId {
    let backup_store = fixture.backup_store(ROOMY);
    let saved = fixture.save_loose(&backup_store, path).unwrap();
    let (id, file) = (saved.id, unfinished(fixture));
    let mut bytes = fs::read(&file).unwrap();
    backup_store.discard(saved).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
    id
}

#[test]
fn a_copy_is_found_once_it_is_settled_and_its_discard_leaves_nothing() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), "old").unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let mut saved = fixture.save_loose(&backup_store, "f").unwrap();
    let id = saved.id.to_string();
    assert!(matches!(backup_store.find(&id), Err(Error::Unknown(_))));
    // Another gateway leaves a locked file alone.
    fixture.backup_store(ROOMY);
    backup_store.settle(&mut saved).unwrap();
    assert_eq!(text(&backup_store, &backup_store.find(&id).unwrap()), b"old");
    backup_store.settle(&mut saved).unwrap();
    backup_store.discard(saved).unwrap();
    let loose = fixture.save_loose(&backup_store, "f").unwrap();
    backup_store.discard(loose).unwrap();
    assert_eq!(fixture.files(), Vec::<String>::new());
    let account = fs::read_to_string(fixture.temp.path().join("state/backups/usage")).unwrap();
    assert_eq!(account.split(' ').nth(1).unwrap().parse(), Ok(0));
}

#[test]
fn a_whole_copy_is_put_where_it_belongs() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), vec![7; 100_000]).unwrap();
    let id = leave(&fixture, "f", |_| ());
    let backup_store = fixture.backup_store(ROOMY);
    let entry = backup_store.find(&id.to_string()).unwrap();
    assert_eq!(text(&backup_store, &entry), vec![7; 100_000]);
    assert_eq!(fixture.files().len(), 1);
}

#[test]
fn a_torn_copy_goes() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), vec![7; 100_000]).unwrap();
    let torn: [fn(&mut Vec<u8>); 4] = [
        Vec::clear,
        |bytes| bytes.truncate(50_000),
        // Data that was not written yet reads as zeros.
        |bytes| bytes[4096..8192].fill(0),
        |bytes| bytes.iter_mut().rev().take(4096).for_each(|byte| *byte = 0),
    ];
    for change in torn {
        leave(&fixture, "f", change);
        let listing = fixture.backup_store(ROOMY).entries().unwrap();
        assert!(listing.entries.is_empty() && listing.damaged.is_empty());
        assert_eq!(fixture.files(), Vec::<String>::new());
    }
}

#[test]
fn a_tree_is_not_finished_because_its_change_never_began() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.ws("d")).unwrap();
    fs::write(fixture.ws("d/f"), "in it").unwrap();
    leave(&fixture, "d", |_| ());
    assert!(fixture.backup_store(ROOMY).entries().unwrap().entries.is_empty());
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn a_name_that_is_not_the_entrys_own_is_not_believed() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), "old").unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let saved = fixture.save_loose(&backup_store, "f").unwrap();
    let (file, bytes) = (unfinished(&fixture), fs::read(unfinished(&fixture)).unwrap());
    backup_store.discard(saved).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let mut parts: Vec<_> = name.split('.').map(str::to_owned).collect();
    parts[0] = "0".repeat(32);
    fs::write(file.with_file_name(parts.join(".")), bytes).unwrap();
    fixture.backup_store(ROOMY);
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn a_copy_that_is_in_both_places_stays_in_its_own() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("f"), "old").unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let mut saved = fixture.save_loose(&backup_store, "f").unwrap();
    let (id, file, bytes) =
        (saved.id, unfinished(&fixture), fs::read(unfinished(&fixture)).unwrap());
    backup_store.settle(&mut saved).unwrap();
    fs::write(file, bytes).unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    assert_eq!(fixture.files().len(), 1);
    assert_eq!(text(&backup_store, &backup_store.find(&id.to_string()).unwrap()), b"old");
}
