//! Trees: backups, refusals, depth.

use std::os::unix::{
    ffi::OsStrExt,
    fs::{PermissionsExt, symlink},
};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use super::*;

fn nodes(backup_store: &BackupStore, entry: &Backup) -> Vec<(u64, String, NodeKind, Vec<u8>)> {
    let mut tree = backup_store.tree(entry).unwrap();
    let mut nodes = Vec::new();
    while let Some(node) = tree.next_node().unwrap() {
        let mut content = node.target.clone().unwrap_or_default();
        if node.kind == NodeKind::File {
            let mut stored = tree.content(&node).unwrap();
            std::io::Read::read_to_end(&mut stored, &mut content).unwrap();
        }
        nodes.push((node.depth, node.name, node.kind, content));
    }
    nodes
}

fn plant(fixture: &Fixture) {
    fs::create_dir_all(fixture.ws("d/sub/empty")).unwrap();
    fs::write(fixture.ws("d/a.txt"), b"alpha").unwrap();
    fs::write(fixture.ws("d/sub/b"), b"").unwrap();
    fs::write(fixture.ws("d/sub/c\n"), vec![9; 300_000]).unwrap();
    symlink("/etc/passwd", fixture.ws("d/link")).unwrap();
    fs::set_permissions(fixture.ws("d/sub/empty"), fs::Permissions::from_mode(0o1705)).unwrap();
}

#[test]
fn a_tree_is_kept_with_empty_directories_modes_and_links() {
    let fixture = Fixture::new();
    plant(&fixture);
    let backup_store = fixture.backup_store(ROOMY);
    let saved = fixture.save(&backup_store, "d").unwrap();
    let dir = File::open(fixture.ws("d")).unwrap();
    assert_eq!(fingerprint(dir.as_fd(), saved.bytes).unwrap(), saved.sha256);
    assert_eq!(saved.bytes, 300_005);

    let entry = backup_store.find(&saved.id.to_string()).unwrap();
    backup_store.verify(&entry).unwrap();
    assert_eq!((entry.kind, entry.nodes), (BackupKind::Tree, Some(7)));
    let (d, f, l) = (NodeKind::Directory, NodeKind::File, NodeKind::Link);
    assert_eq!(
        nodes(&backup_store, &entry),
        [
            (0, "".to_owned(), d, vec![]),
            (1, "a.txt".to_owned(), f, b"alpha".to_vec()),
            (1, "link".to_owned(), l, b"/etc/passwd".to_vec()),
            (1, "sub".to_owned(), d, vec![]),
            (2, "b".to_owned(), f, vec![]),
            (2, "c\n".to_owned(), f, vec![9; 300_000]),
            (2, "empty".to_owned(), d, vec![]),
        ]
    );
    assert_eq!(fixture.files().len(), 1, "one file, nothing unfinished");
}

#[test]
fn the_fingerprint_tells_every_difference() {
    let fixture = Fixture::new();
    plant(&fixture);
    let print = || fingerprint(File::open(fixture.ws("d")).unwrap().as_fd(), u64::MAX).unwrap();
    let mut seen = vec![print()];
    let mut differs = |what: &str| {
        let now = print();
        assert!(!seen.contains(&now), "{what}");
        seen.push(now);
    };
    fs::write(fixture.ws("d/a.txt"), b"alphb").unwrap();
    differs("content");
    fs::set_permissions(fixture.ws("d/a.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    differs("mode");
    fs::rename(fixture.ws("d/a.txt"), fixture.ws("d/b.txt")).unwrap();
    differs("name");
    fs::rename(fixture.ws("d/b.txt"), fixture.ws("d/sub/b.txt")).unwrap();
    differs("place");
    fs::remove_dir(fixture.ws("d/sub/empty")).unwrap();
    differs("an empty directory less");
    fs::remove_file(fixture.ws("d/link")).unwrap();
    symlink("/etc/shadow", fixture.ws("d/link")).unwrap();
    differs("a link's target");
}

#[test]
fn a_tree_that_cannot_be_given_back_is_refused() {
    let fixture = Fixture::new();
    let backup_store = fixture.backup_store(ROOMY);
    let refused = |make: &dyn Fn(&Path)| {
        fs::create_dir(fixture.ws("d")).unwrap();
        make(&fixture.ws("d"));
        let error = fixture.save(&backup_store, "d").unwrap_err();
        assert!(fixture.files().is_empty(), "nothing is left behind");
        fs::remove_dir_all(fixture.ws("d")).unwrap();
        error
    };
    let fifo = refused(&|d| {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, d.join("fifo"), kind, Mode::RUSR, 0).unwrap();
    });
    assert!(matches!(fifo, Error::Special), "{fifo}");
    let socket = refused(&|d| {
        std::os::unix::net::UnixListener::bind(d.join("socket")).unwrap();
    });
    assert!(matches!(socket, Error::Special), "{socket}");
    let name = refused(&|d| {
        fs::write(d.join(std::ffi::OsStr::from_bytes(b"\xff")), b"").unwrap();
    });
    assert!(matches!(name, Error::NotUtf8), "{name}");
}

#[test]
fn a_tree_ten_thousand_deep_is_kept() {
    const DEPTH: u64 = 10_000;
    let fixture = Fixture::new();
    fs::create_dir(fixture.ws("d")).unwrap();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = openat(CWD, fixture.ws("d"), flags, Mode::empty()).unwrap();
    for _ in 0..DEPTH {
        mkdirat(&dir, "n", Mode::RWXU).unwrap();
        dir = openat(&dir, "n", flags, Mode::empty()).unwrap();
    }
    drop(dir);
    let backup_store = fixture.backup_store(ROOMY);
    // A stack as small as that of any thread.
    let saved = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(128 * 1024);
        thread.spawn_scoped(scope, || fixture.save(&backup_store, "d")).unwrap().join().unwrap()
    });
    let saved = saved.unwrap();
    let entry = backup_store.find(&saved.id.to_string()).unwrap();
    backup_store.verify(&entry).unwrap();
    assert_eq!(entry.nodes, Some(DEPTH + 1));
    let dir = File::open(fixture.ws("d")).unwrap();
    assert_eq!(fingerprint(dir.as_fd(), saved.bytes).unwrap(), saved.sha256);
}

#[test]
fn a_mount_inside_a_tree_is_refused() {
    const TEST: &str = "backup::tests::tree::a_mount_inside_a_tree_is_refused";
    if let Some((_, mounted)) = role() {
        let fixture = Fixture::new();
        let backup_store = fixture.backup_store(ROOMY);
        let directory = File::open(mounted.parent().unwrap()).unwrap();
        let permit = fixture.permit("d");
        let saved = backup_store.save(&permit, &fixture.meta(), Origin::Tree(directory.as_fd()));
        assert!(matches!(saved, Err(Error::Mount)), "{saved:?}");
        assert!(fixture.files().is_empty());
        return;
    }
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.ws("d/mounted")).unwrap();
    again_with_tmpfs(TEST, &fixture.ws("d/mounted"));
}
