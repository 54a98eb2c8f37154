//! Backups whose gateways died before they were in their place.

use super::*;

/// Returns the only file in `tmp`.
fn unfinished(house: &House) -> std::path::PathBuf {
    let mut files = fs::read_dir(house.temp.path().join("state/backups/tmp")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

/// Leaves a file in `tmp` as a gateway that dies after a save: `change` changes its bytes.
fn leave(house: &House, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> BackupId {
    let backup_store = house.backup_store(ROOMY);
    let saved = house.save_loose(&backup_store, path).unwrap();
    let (id, file) = (saved.id, unfinished(house));
    let mut bytes = fs::read(&file).unwrap();
    backup_store.discard(saved).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
    id
}

#[test]
fn a_copy_is_found_once_it_is_settled_and_its_discard_leaves_nothing() {
    let house = House::new();
    fs::write(house.ws("f"), "old").unwrap();
    let backup_store = house.backup_store(ROOMY);
    let mut saved = house.save_loose(&backup_store, "f").unwrap();
    let id = saved.id.to_string();
    assert!(matches!(backup_store.find(&id), Err(Error::Unknown(_))));
    // Another gateway leaves a locked file alone.
    house.backup_store(ROOMY);
    backup_store.settle(&mut saved).unwrap();
    assert_eq!(text(&backup_store, &backup_store.find(&id).unwrap()), b"old");
    backup_store.settle(&mut saved).unwrap();
    backup_store.discard(saved).unwrap();
    let loose = house.save_loose(&backup_store, "f").unwrap();
    backup_store.discard(loose).unwrap();
    assert_eq!(house.files(), Vec::<String>::new());
    let account = fs::read_to_string(house.temp.path().join("state/backups/usage")).unwrap();
    assert_eq!(account.split(' ').nth(1).unwrap().parse(), Ok(0));
}

#[test]
fn a_whole_copy_is_put_where_it_belongs() {
    let house = House::new();
    fs::write(house.ws("f"), vec![7; 100_000]).unwrap();
    let id = leave(&house, "f", |_| ());
    let backup_store = house.backup_store(ROOMY);
    let entry = backup_store.find(&id.to_string()).unwrap();
    assert_eq!(text(&backup_store, &entry), vec![7; 100_000]);
    assert_eq!(house.files().len(), 1);
}

#[test]
fn a_torn_copy_goes() {
    let house = House::new();
    fs::write(house.ws("f"), vec![7; 100_000]).unwrap();
    let torn: [fn(&mut Vec<u8>); 4] = [
        Vec::clear,
        |bytes| bytes.truncate(50_000),
        // Data that was not written yet reads as zeros.
        |bytes| bytes[4096..8192].fill(0),
        |bytes| bytes.iter_mut().rev().take(4096).for_each(|byte| *byte = 0),
    ];
    for change in torn {
        leave(&house, "f", change);
        let listing = house.backup_store(ROOMY).entries().unwrap();
        assert!(listing.entries.is_empty() && listing.damaged.is_empty());
        assert_eq!(house.files(), Vec::<String>::new());
    }
}

#[test]
fn a_tree_is_not_finished_because_its_change_never_began() {
    let house = House::new();
    fs::create_dir(house.ws("d")).unwrap();
    fs::write(house.ws("d/f"), "in it").unwrap();
    leave(&house, "d", |_| ());
    assert!(house.backup_store(ROOMY).entries().unwrap().entries.is_empty());
    assert_eq!(house.files(), Vec::<String>::new());
}

#[test]
fn a_name_that_is_not_the_entrys_own_is_not_believed() {
    let house = House::new();
    fs::write(house.ws("f"), "old").unwrap();
    let backup_store = house.backup_store(ROOMY);
    let saved = house.save_loose(&backup_store, "f").unwrap();
    let (file, bytes) = (unfinished(&house), fs::read(unfinished(&house)).unwrap());
    backup_store.discard(saved).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let mut parts: Vec<_> = name.split('.').map(str::to_owned).collect();
    parts[0] = "0".repeat(32);
    fs::write(file.with_file_name(parts.join(".")), bytes).unwrap();
    house.backup_store(ROOMY);
    assert_eq!(house.files(), Vec::<String>::new());
}

#[test]
fn a_copy_that_is_in_both_places_stays_in_its_own() {
    let house = House::new();
    fs::write(house.ws("f"), "old").unwrap();
    let backup_store = house.backup_store(ROOMY);
    let mut saved = house.save_loose(&backup_store, "f").unwrap();
    let (id, file, bytes) = (saved.id, unfinished(&house), fs::read(unfinished(&house)).unwrap());
    backup_store.settle(&mut saved).unwrap();
    fs::write(file, bytes).unwrap();
    let backup_store = house.backup_store(ROOMY);
    assert_eq!(house.files().len(), 1);
    assert_eq!(text(&backup_store, &backup_store.find(&id.to_string()).unwrap()), b"old");
}
