//! Content and description of a backup.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::{XattrFlags, fsetxattr};

use super::*;

/// `user::rw-,user:1000:r--,group::r--,mask::r--,other::---` as acl(5) is
/// encoded in the extended attribute: version 2, then tag, permissions, id.
pub(crate) const ACL: &[u8] = &[
    2, 0, 0, 0, //
    1, 0, 6, 0, 255, 255, 255, 255, //
    2, 0, 4, 0, 0xe8, 3, 0, 0, //
    4, 0, 4, 0, 255, 255, 255, 255, //
    16, 0, 4, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255,
];

#[test]
fn a_file_comes_back_with_all_that_belongs_to_it() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("a.txt"), b"old words").unwrap();
    let file = File::open(fixture.ws("a.txt")).unwrap();
    fsetxattr(&file, "system.posix_acl_access", ACL, XattrFlags::empty()).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o6750)).unwrap();
    let facts = file.metadata().unwrap();

    let backup_store = fixture.backup_store(ROOMY);
    let saved = fixture.save(&backup_store, "a.txt").unwrap();
    assert_eq!((saved.sha256, saved.bytes), (Hash::of(b"old words"), 9));
    fs::write(fixture.ws("a.txt"), b"new words, written to the same inode").unwrap();

    let entry = backup_store.find(&saved.id.to_string()).unwrap();
    backup_store.keep(saved).unwrap();
    backup_store.verify(&entry).unwrap();
    assert_eq!(text(&backup_store, &entry), b"old words");
    assert_eq!(entry.path.as_str(), "a.txt");
    assert_eq!((entry.session.as_str(), entry.agent.as_str()), ("one", "tester"));
    assert_eq!((entry.kind, entry.operation), (BackupKind::File, OperationKind::Write));
    let attributes = entry.attributes.unwrap();
    assert_eq!(attributes.mode, facts.mode() & 0o7777);
    assert_eq!(attributes.mode & 0o6000, 0o6000);
    assert_eq!((attributes.uid, attributes.gid), (facts.uid(), facts.gid()));
    assert_eq!(attributes.mtime, facts.mtime());
    assert_eq!(i64::from(attributes.mtime_nanos), facts.mtime_nsec());
    // The mask follows the mode that was set after it.
    let acl = attributes.acl.unwrap();
    assert_eq!(acl.len(), ACL.len());
    assert_eq!(acl[12..20], ACL[12..20]);
}

#[test]
fn the_backup_store_is_private_and_shares_no_inode() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("a"), b"x").unwrap();
    fs::set_permissions(fixture.ws("a"), fs::Permissions::from_mode(0o777)).unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    fixture.save(&backup_store, "a").map(|saved| backup_store.keep(saved).unwrap()).unwrap();
    assert_eq!(fs::metadata(fixture.ws("a")).unwrap().nlink(), 1);
    let mut pending = vec![fixture.temp.path().join("state/backups")];
    let mut files = 0;
    while let Some(path) = pending.pop() {
        let facts = fs::symlink_metadata(&path).unwrap();
        assert_eq!(facts.mode() & 0o077, 0, "{path:?}");
        if facts.is_dir() {
            pending.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files += 1;
        }
    }
    assert_eq!(files, 2, "an entry and the account");
}

#[test]
fn links_and_buffers_are_kept_as_such() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    let link = fixture.settled(&backup_store, "l", Origin::Link(b"../\xff")).unwrap();
    let buffer = fixture.save_bytes(&backup_store, "b", b"").unwrap();
    let listing = backup_store.entries().unwrap();
    let kinds: Vec<_> =
        listing.entries.iter().map(|e| (e.id, e.kind, text(&backup_store, e))).collect();
    assert_eq!(
        kinds,
        [
            (link.id, BackupKind::Link, b"../\xff".to_vec()),
            (buffer.id, BackupKind::Buffer, Vec::new())
        ]
    );
}

#[test]
fn only_regular_files_are_kept_as_files() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    for path in ["/dev/null", "/"] {
        let file = File::open(path).unwrap();
        let saved =
            backup_store.save(&fixture.permit("x"), &fixture.meta(), Origin::File(file.as_fd()));
        assert!(matches!(saved, Err(Error::NotRegular)), "{path}");
    }
    assert!(fixture.files().is_empty());
}

#[test]
fn a_discarded_copy_leaves_nothing_and_frees_its_room() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(Retention { size: 1000, ..ROOMY });
    for _ in 0..10 {
        let saved = fixture.save_bytes(&backup_store, "a", &[7; 400]).unwrap();
        backup_store.discard(saved).unwrap();
    }
    assert!(fixture.files().is_empty());
}

#[test]
fn a_planted_link_or_file_is_not_taken_for_the_backup_store() {
    let fixture = Fixture::new();
    let elsewhere = fixture.temp.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let state = fixture.temp.path().join("state");
    symlink(&elsewhere, state.join("backups")).unwrap();
    assert!(matches!(open(&state, ROOMY), Err(Error::Foreign("backups"))));
    fs::remove_file(state.join("backups")).unwrap();
    fs::write(state.join("backups"), b"").unwrap();
    assert!(matches!(open(&state, ROOMY), Err(Error::Foreign("backups"))));
    fs::remove_file(state.join("backups")).unwrap();
    fs::create_dir(state.join("backups")).unwrap();
    symlink(elsewhere.join("usage"), state.join("backups/usage")).unwrap();
    assert!(matches!(open(&state, ROOMY), Err(Error::Foreign("backups/usage"))));
    fs::remove_file(state.join("backups/usage")).unwrap();
    fs::set_permissions(state.join("backups"), fs::Permissions::from_mode(0o755)).unwrap();
    let backup_store = open(&state, ROOMY).unwrap();
    assert_eq!(fs::metadata(state.join("backups")).unwrap().mode() & 0o777, 0o700);

    let saved = fixture.save_bytes(&backup_store, "a", b"").unwrap();
    backup_store.discard(saved).unwrap();
    let key = super::super::name::PathKey::of(&path("a")).prefix();
    let shard = state.join("backups").join(key.get(..2).unwrap());
    fs::remove_dir(&shard).unwrap();
    symlink(&elsewhere, shard).unwrap();
    assert!(fixture.save_bytes(&backup_store, "a", b"").is_err());
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn ids_may_be_shortened_while_they_are_unique() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    backup_store.clock.store(1_793_707_262_000_000, std::sync::atomic::Ordering::Relaxed);
    let first = fixture.save_bytes(&backup_store, "a", b"1").unwrap();
    backup_store.clock.store(1_793_707_263_000_000, std::sync::atomic::Ordering::Relaxed);
    let second = fixture.save_bytes(&backup_store, "b", b"2").unwrap();
    assert_eq!(backup_store.find(first.id.to_string().split_at(15).0).unwrap().id, first.id);
    assert_eq!(backup_store.find(&second.id.to_string()).unwrap().id, second.id);
    assert!(matches!(backup_store.find("20261103T"), Err(Error::Ambiguous(_))));
    assert!(matches!(backup_store.find(""), Err(Error::Ambiguous(_))));
    assert!(matches!(backup_store.find("2025"), Err(Error::Unknown(_))));
}

#[test]
fn damage_is_found_before_content_is_used() {
    let fixture = Fixture::new();
    fs::write(fixture.ws("a"), b"good content").unwrap();
    let backup_store = fixture.backup_store(ROOMY);
    let saved = fixture.save(&backup_store, "a").unwrap();
    let entry = backup_store.find(&saved.id.to_string()).unwrap();
    let name = entry.name.to_string();
    let file = fixture.temp.path().join("state/backups").join(name.get(..2).unwrap()).join(name);
    let whole = fs::read(&file).unwrap();

    let mut bytes = whole.clone();
    bytes[3] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(backup_store.verify(&entry), Err(Error::Damaged(_))));
    let read =
        std::io::Read::read_to_end(&mut backup_store.content(&entry).unwrap(), &mut Vec::new());
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::InvalidData);

    for cut in [0, 1, 11, 13, 60, whole.len() - 1] {
        fs::write(&file, &whole[..cut]).unwrap();
        let listing = backup_store.entries().unwrap();
        assert_eq!((listing.entries.len(), listing.damaged.as_slice()), (0, &[entry.id][..]));
    }
    for place in 12..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x20;
        fs::write(&file, &bytes).unwrap();
        assert!(
            matches!(backup_store.find(&entry.id.to_string()), Err(Error::Damaged(_))),
            "{place}"
        );
    }
}
