//! Packed backups: less space, the same content, and no damage from a kill.

use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
    process::Stdio,
    time::Duration,
};

use super::{super::object::Form, *};

const MANY: Retention = Retention { versions: u64::MAX, ..ROOMY };

fn pack(backup_store: &BackupStore) -> Packed {
    backup_store.pack(&mut |_| ControlFlow::Continue(())).unwrap()
}

/// Returns the bytes on the disk of all files in the store.
fn stored(fixture: &Fixture) -> u64 {
    let mut pending = vec![fixture.temp.path().join("state/backups")];
    let mut bytes = 0;
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => pending.push(entry.path()),
                false => bytes += entry.metadata().unwrap().len(),
            }
        }
    }
    bytes
}

fn account(fixture: &Fixture) -> u64 {
    let text = fs::read_to_string(fixture.temp.path().join("state/backups/usage")).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

fn objects(fixture: &Fixture) -> Vec<String> {
    let mut names = Vec::new();
    for shard in fs::read_dir(fixture.temp.path().join("state/backups/objects")).unwrap() {
        for file in fs::read_dir(shard.unwrap().path()).unwrap() {
            names.push(file.unwrap().file_name().into_string().unwrap());
        }
    }
    names
}

/// Text that compresses as source code does, not as one repeated line.
pub(super) fn source(seed: u64, bytes: usize) -> Vec<u8> {
    let words = ["let ", "fn ", "value", "return ", "match ", "index", "(", ");\n", " = ", "self."];
    let mut state = seed | 1;
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.extend_from_slice(words[(state >> 33) as usize % words.len()].as_bytes());
        if state.is_multiple_of(7) {
            text.extend_from_slice(format!("{:x}", state >> 40).as_bytes());
        }
    }
    text.truncate(bytes);
    text
}

fn edit(text: &mut [u8], round: u64) {
    let at = (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % (text.len() - 40);
    let line = format!("/* edit number {round:>12} */");
    text[at..at + line.len()].copy_from_slice(line.as_bytes());
}

#[test]
fn packed_entries_read_as_before() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.ws("d/empty")).unwrap();
    for file in 0..30 {
        fs::write(fixture.ws(&format!("d/{file}")), source(file, 2000)).unwrap();
    }
    std::os::unix::fs::symlink("elsewhere", fixture.ws("d/link")).unwrap();
    fs::write(
        fixture.ws("image"),
        (0..50_000_u32)
            .flat_map(|i| Hash::of(&i.to_le_bytes()).as_bytes()[..4].to_vec())
            .collect::<Vec<u8>>(),
    )
    .unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let contents =
        [source(1, 100_000), source(1, 100_000), source(2, 200), Vec::new(), source(3, 60_000)];
    let mut kept = Vec::new();
    for content in &contents {
        let saved = fixture.save_bytes(&backup_store, "f", content).unwrap();
        kept.push((saved.id, saved.sha256));
        backup_store.keep(saved).unwrap();
    }
    for path in ["d", "image"] {
        let saved = fixture.save(&backup_store, path).unwrap();
        kept.push((saved.id, saved.sha256));
        backup_store.keep(saved).unwrap();
    }
    let before = backup_store.entries().unwrap().entries;
    let tree = |entry: &Backup| {
        let (mut tree, mut nodes) = (backup_store.tree(entry).unwrap(), Vec::new());
        while let Some(node) = tree.next_node().unwrap() {
            let mut bytes = Vec::new();
            if node.kind == NodeKind::File {
                let mut content = tree.content(&node).unwrap();
                std::io::Read::read_to_end(&mut content, &mut bytes).unwrap();
            }
            nodes.push((node, bytes));
        }
        nodes
    };
    let nodes = tree(before.iter().find(|entry| entry.kind == BackupKind::Tree).unwrap());
    assert!(nodes.len() == 33 && nodes.iter().any(|(_, bytes)| bytes == &source(7, 2000)));

    let room = stored(&fixture);
    let done = pack(&backup_store);
    // Two are small, and the second of the equal ones shares an object.
    assert_eq!((done.entries, done.damaged, done.busy), (5, 0, false));
    assert_eq!(objects(&fixture).len(), 4, "{:?}", objects(&fixture));
    assert!(objects(&fixture).iter().any(|name| name.ends_with(".raw")));
    assert!(stored(&fixture) < room / 2 + 110_000, "{} of {room}", stored(&fixture));
    assert_eq!(fs::read_dir(fixture.temp.path().join("state/backups/tmp")).unwrap().count(), 0);

    let after = backup_store.entries().unwrap();
    assert!(after.damaged.is_empty());
    for ((id, sha256), (old, new)) in kept.iter().zip(before.iter().zip(&after.entries)) {
        assert_eq!((id, sha256), (&new.id, &new.sha256));
        let like_old = Backup { name: old.name, stored: old.stored, ..new.clone() };
        assert_eq!(&like_old, old);
        backup_store.verify(new).unwrap();
        // A description from before packing is still found.
        backup_store.verify(old).unwrap();
        match new.kind {
            BackupKind::Tree => assert_eq!(tree(new), nodes),
            _ => assert_eq!(Hash::of(&text(&backup_store, old)), *sha256),
        }
    }
    assert_eq!(pack(&backup_store), Packed::default());
    assert!(backup_store.forget(&before[0].name).unwrap());
    assert_eq!(backup_store.entries().unwrap().entries.len(), 6);
}

#[test]
fn many_versions_of_one_file_take_little_more_than_their_differences() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(MANY);
    let mut content = source(11, 200_000);
    let mut hashes = Vec::new();
    for round in 0..200 {
        edit(&mut content, round);
        let saved = fixture.save_bytes(&backup_store, "src/main.rs", &content).unwrap();
        hashes.push(saved.sha256);
        backup_store.keep(saved).unwrap();
        if round % 50 == 49 {
            pack(&backup_store);
        }
    }
    let (raw, now) = (200 * 200_000, stored(&fixture));
    assert!(now < raw / 20, "{now} of {raw}");
    assert_eq!(account(&fixture), now - 65, "all but the account itself");
    let listing = backup_store.entries().unwrap();
    let found: Vec<Hash> = listing.entries.iter().map(|entry| entry.sha256).collect();
    assert_eq!(found, hashes);
    listing.entries.iter().for_each(|entry| backup_store.verify(entry).unwrap());
    // Two objects at most for any content: no delta of a delta.
    for name in objects(&fixture) {
        if let Some((_, base)) = name.split_once("delta-") {
            let base = objects(&fixture).into_iter().find(|name| name.starts_with(base)).unwrap();
            assert!(!base.contains("delta"), "{name} needs {base}");
        }
    }
}

#[test]
fn retention_takes_no_content_that_another_entry_needs() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(MANY);
    let mut content = source(5, 50_000);
    for round in 0..40 {
        let before = content.clone();
        edit(&mut content, round);
        fixture.change(&backup_store, "f", &before, &content).unwrap();
        if round % 8 == 7 {
            // A packed backup still has the hash of what was stored in its place.
            pack(&backup_store);
        }
    }
    fixture.change(&backup_store, "f", &content, b"").unwrap();
    // The same content under another path, by another session.
    let other = Fixture { temp: TempDir::new().unwrap(), session: session("two") };
    fs::create_dir(other.ws("")).unwrap();
    other
        .save_bytes(&backup_store, "g", &content)
        .map(|saved| backup_store.keep(saved).unwrap())
        .unwrap();
    pack(&backup_store);
    let few = fixture.backup_store(Retention { versions: 3, ..ROOMY });
    let pruned = few.prune().unwrap();
    assert_eq!((pruned.entries, pruned.left), (37, 5));
    let listing = few.entries().unwrap();
    listing.entries.iter().for_each(|entry| few.verify(entry).unwrap());
    assert!(objects(&fixture).len() <= 5, "{:?}", objects(&fixture));
    assert_eq!(account(&fixture), stored(&fixture) - 65);
    assert_eq!(pruned.total, account(&fixture));
    assert_eq!(few.would_prune().unwrap().entries, 0);
    for entry in listing.entries {
        assert!(few.forget(&entry.name).unwrap());
    }
    few.prune().unwrap();
    assert!(objects(&fixture).is_empty());
    assert_eq!(account(&fixture), 0);
}

#[test]
fn a_packed_backup_store_has_room_for_more() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { size: 400_000, ..MANY });
    let save = |number: u64| {
        fixture
            .save_bytes(&backup_store, &format!("{number}"), &source(number, 100_000))
            .and_then(|saved| backup_store.keep(saved))
    };
    assert!(!backup_store.is_due().unwrap());
    (0..3).for_each(|number| save(number).unwrap());
    assert!(matches!(save(3), Err(Error::Full { .. })));
    assert!(backup_store.is_due().unwrap());
    pack(&backup_store);
    assert!(!backup_store.is_due().unwrap());
    (3..6).for_each(|number| save(number).unwrap());
    assert_eq!(backup_store.entries().unwrap().entries.len(), 6);
}

#[test]
fn damage_is_found_in_what_is_packed_and_never_packed_away() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(MANY);
    let mut content = source(9, 30_000);
    for round in 0..3 {
        edit(&mut content, round);
        fixture
            .save_bytes(&backup_store, "f", &content)
            .map(|saved| backup_store.keep(saved).unwrap())
            .unwrap();
    }
    let entries = backup_store.entries().unwrap().entries;
    let file = |entry: &Backup| {
        let name = entry.name.to_string();
        fixture.temp.path().join("state/backups").join(name.get(..2).unwrap()).join(name)
    };
    // A damaged backup keeps its bytes for examination.
    let mut bytes = fs::read(file(&entries[1])).unwrap();
    bytes[100] ^= 1;
    fs::write(file(&entries[1]), &bytes).unwrap();
    let done = pack(&backup_store);
    assert_eq!((done.entries, done.damaged), (2, 1));
    assert_eq!(fs::read(file(&entries[1])).unwrap(), bytes);

    // The base of the last one: both are damaged then, and neither is returned.
    let base = objects(&fixture).into_iter().find(|name| !name.contains("delta")).unwrap();
    let path =
        fixture.temp.path().join("state/backups/objects").join(base.split_at(2).0).join(&base);
    let whole = fs::read(&path).unwrap();
    for place in [0, 1000, whole.len() - 100, whole.len() - 20] {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        for entry in [&entries[0], &entries[2]] {
            assert!(matches!(backup_store.verify(entry), Err(Error::Damaged(_))), "{place}");
        }
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(backup_store.verify(&entries[0]), Err(Error::Damaged(_))));
    assert!(matches!(backup_store.verify(&entries[2]), Err(Error::Damaged(_))));
    fs::write(&path, &whole).unwrap();
    backup_store.verify(&entries[2]).unwrap();
}

#[test]
fn one_packs_at_a_time_and_saving_goes_on() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(MANY);
    for number in 0..20 {
        // Each differs from the others: an object that a process which another test forks still holds
        // locked is made again, and counted twice until the next count.
        let content = source(2 * number, 20_000);
        fixture
            .save_bytes(&backup_store, "f", &content)
            .map(|saved| backup_store.keep(saved).unwrap())
            .unwrap();
    }
    let (mut busy, mut asked) = (false, 0_u64);
    backup_store
        .pack(&mut |_| {
            asked += 1;
            busy |= pack(&fixture.backup_store(MANY)).busy;
            let saved =
                fixture.save_bytes(&backup_store, "f", &source(100 + asked, 20_000)).unwrap();
            // A failed save leaves nothing, packed or not.
            match asked % 2 {
                0 => backup_store.discard(saved).unwrap(),
                _ => backup_store.keep(saved).unwrap(),
            }
            let damaged = backup_store.entries().unwrap().damaged;
            assert!(damaged.is_empty(), "{damaged:?}");
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(busy);
    assert_eq!(asked, 21);
    let entries = backup_store.entries().unwrap().entries;
    assert_eq!(entries.len(), 31);
    entries.iter().for_each(|entry| backup_store.verify(entry).unwrap());
    assert_eq!(account(&fixture), stored(&fixture) - 65);
}

#[test]
fn killed_while_packing_or_pruning_nothing_is_lost() {
    const TEST: &str = "backup::tests::pack::killed_while_packing_or_pruning_nothing_is_lost";
    if let Some((_, state)) = role() {
        let backup_store = open(&state, Retention { versions: 12, ..ROOMY }).unwrap();
        eprintln!("at work");
        backup_store.pack(&mut |_| ControlFlow::Continue(())).unwrap();
        backup_store.prune().unwrap();
        eprintln!("done");
        return;
    }
    let fixture = Fixture::new();
    let state = fixture.temp.path().join("state");
    fs::create_dir(fixture.ws("d")).unwrap();
    let (mut killed, mut unfinished) = (0, 0);
    let mut content = source(77, 40_000);
    let mut all: Vec<BackupId> = Vec::new();
    for round in 0..30_u64 {
        let backup_store = fixture.backup_store(Retention { versions: 12, ..ROOMY });
        for number in 0..4 {
            edit(&mut content, round * 4 + number);
            fs::write(fixture.ws("d/f"), &content).unwrap();
            for path in ["d", "d/f"] {
                let saved = fixture.save(&backup_store, path).unwrap();
                all.push(saved.id);
                // As a request that dies before it keeps its backup.
                let _ = saved;
            }
        }
        let mut child = again(TEST, "pack", &state)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_micros(round * 7919 % 150_000));
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());
        unfinished += u32::from(lines.map_while(Result::ok).all(|line| line != "done"));

        let backup_store = fixture.backup_store(Retention { versions: 12, ..ROOMY });
        let listing = backup_store.entries().unwrap();
        assert!(listing.damaged.is_empty(), "round {round}: {:?}", listing.damaged);
        listing.entries.iter().for_each(|entry| backup_store.verify(entry).unwrap());
        // The newest twelve of each path exist, and the very first.
        let ids: Vec<BackupId> = listing.entries.iter().map(|entry| entry.id).collect();
        for id in all.iter().rev().take(24).chain(all.iter().take(2)) {
            assert!(ids.contains(id), "round {round}: {id} is lost");
        }
    }
    assert!(killed > 0 && unfinished > 0, "{killed} killed, {unfinished} in the middle");
    let backup_store = fixture.backup_store(Retention { versions: 12, ..ROOMY });
    pack(&backup_store);
    backup_store.prune().unwrap();
    assert_eq!(account(&fixture), stored(&fixture) - 65, "nothing is left that nobody counts");
}

/// Regression: a sweep that had listed the objects before a delta was made could remove its base,
/// between the delta and the backup that needs it.
#[test]
fn what_a_new_delta_needs_stays_as_long_as_that_is_held() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    let (base, content) = (source(1, 4000), source(2, 4000));
    let put = |bytes: &[u8], form| {
        let reserve = |_| Ok(());
        let (hash, size) = (Hash::of(bytes), bytes.len() as u64);
        backup_store.objects.put(hash, size, form, &mut &bytes[..], &reserve).unwrap()
    };
    let listed = put(&base, Form::Raw).name;
    let made = put(&content, Form::Delta(Hash::of(&base)));
    assert!(!backup_store.objects.remove(&listed).unwrap());
    drop(made);
    let found = backup_store.objects.hold(Hash::of(&content)).unwrap().unwrap();
    assert!(!backup_store.objects.remove(&listed).unwrap());
    drop(found);
    assert!(backup_store.objects.remove(&listed).unwrap());
}
