//! Files that are no files, and content that is not what it seems.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::{Siege, is_unharmed, refused, world};
use crate::{common::Stop, disk::Mounted};

/// Longer than a refusal takes on a busy machine, and shorter than what an
/// endless file takes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn devices_pipes_and_sockets_are_refused_at_once() {
    let mut siege = Siege::begin();
    let started = Instant::now();
    let devices = [
        ("null", FileType::CharacterDevice, 1, 3),
        ("zero", FileType::CharacterDevice, 1, 5),
        ("tty", FileType::CharacterDevice, 5, 0),
        ("console", FileType::CharacterDevice, 5, 1),
        ("disk", FileType::BlockDevice, 7, 0),
        ("fifo", FileType::Fifo, 0, 0),
    ];
    for (name, kind, major, minor) in devices {
        let path = siege.world().path(name);
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &path, kind, mode, makedev(major, minor))
            .expect("these tests make devices: run them as root");
        let path = siege.inside(name);
        siege.denied(&path, "files.type");
    }
    let _socket = std::os::unix::net::UnixListener::bind(siege.world().path("socket")).unwrap();
    let path = siege.inside("socket");
    siege.denied(&path, "files.type");
    let world = siege.end();
    for args in [["append", "fifo"], ["rm", "zero"], ["rm", "tty"]] {
        refused(&world, &args, "files.type");
    }
    refused(&world, &["edit", "fifo", "--old", "a", "--new", "b"], "files.type");
    refused(&world, &["mv", "null", "other"], "files.type");
    assert!(started.elapsed() < TIMEOUT, "something blocked");
}

#[test]
fn proc_and_bind_mounts_in_the_workspace_are_not_entered() {
    let mut siege = Siege::begin();
    let world = siege.world();
    for name in ["proc", "outside"] {
        std::fs::create_dir(world.path(name)).unwrap();
    }
    world.file("passwd", "INSIDE");
    let _proc = Mounted::new(&["-t", "proc", "proc"], world.path("proc"));
    let base = world.base().to_str().unwrap().to_owned();
    let outside = Mounted::new(&["--bind", &base], world.path("outside"));
    let _passwd = Mounted::new(&["--bind", "/etc/passwd"], world.path("passwd"));
    let started = Instant::now();
    for name in [
        "proc/kmsg",
        "proc/self/environ",
        "proc/1/root/etc/passwd",
        "proc/version",
        "outside/outside.txt",
        "outside/ws/proof.txt",
        "passwd",
    ] {
        let path = siege.inside(name);
        siege.denied(&path, "workspace.mount");
    }
    assert!(started.elapsed() < TIMEOUT, "something blocked");
    // With it the state directory lies in the workspace, too, and no command trusts its log.
    drop(outside);
    siege.end();
}

#[test]
fn a_sparse_file_of_a_terabyte_is_refused_at_once() {
    let world = world();
    let file = std::fs::File::create(world.path("huge")).unwrap();
    file.set_len(1 << 40).unwrap();
    let started = Instant::now();
    refused(&world, &["read", "huge"], "files.maxReadSize");
    refused(&world, &["read", "huge", "--line", "1", "--limit", "1"], "files.maxReadSize");
    refused(&world, &["append", "huge"], "files.maxWriteSize");
    refused(&world, &["edit", "huge", "--old", "a", "--new", "b"], "files.maxReadSize");
    // An entry that the backup store cannot keep is neither removed nor replaced.
    for args in [["fs", "rm", "huge"], ["fs", "write", "huge"]] {
        let done = world.run_with_input(&args, "small");
        assert_eq!(done.code, 1, "{done:?}");
        assert_eq!(world.last()["result"], "noSpace");
    }
    assert_eq!(file.metadata().unwrap().len(), 1 << 40);
    assert!(started.elapsed() < TIMEOUT, "it was read");
    is_unharmed(&world);
}

#[test]
fn a_file_that_grows_while_it_is_read_is_never_given_beyond_the_limit() {
    let mut siege = Siege::begin();
    let path = siege.world().file("grows", "");
    let stop = AtomicBool::new(false);
    let (mut whole, mut refused) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let piece = "x".repeat(64 * 1024);
            while !stop.load(Ordering::Relaxed) {
                let mut file = std::fs::File::create(&path).unwrap();
                for _ in 0..24 {
                    std::io::Write::write_all(&mut file, piece.as_bytes()).unwrap();
                }
            }
        });
        let _stop = Stop(&stop);
        // Until both were seen, which takes long on a busy machine.
        for _ in 0..20_000 {
            if whole + refused >= 300 && whole > 0 && refused > 0 {
                break;
            }
            let request = siege.relay.read("grows");
            let answer = siege.relay.ask_one(request);
            match answer["result"]["content"].as_str() {
                Some(content) => {
                    assert!(content.len() <= 1 << 20, "{}", content.len());
                    whole += 1;
                }
                None => {
                    let rule = answer["error"]["data"]["rule"].as_str();
                    assert_eq!(rule, Some("files.maxReadSize"), "{answer}");
                    refused += 1;
                }
            }
        }
    });
    assert!(whole > 0 && refused > 0, "{whole} given, {refused} refused");
    siege.end();
}

#[test]
fn content_that_hides_what_it_is_is_binary() {
    let mut siege = Siege::begin();
    let utf16: Vec<u8> = "TOP-SECRET".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let late = [vec![b'x'; 900_000], b"\0TOP-SECRET".to_vec()].concat();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x0b\xf1\x0f\xd0\x0d\x76".to_vec();
    let broken = [vec![b'x'; 900_000], b"\xff".to_vec()].concat();
    let marked = [b"\xff\xfe".to_vec(), utf16.clone()].concat();
    for (name, content) in
        [("utf16", utf16), ("late", late), ("gzip", gzip), ("broken", broken), ("marked", marked)]
    {
        siege.world().file(name, &content);
        let request = siege.relay.read(name);
        let answer = siege.relay.ask_one(request);
        assert_eq!(answer["error"]["data"]["rule"], "files.binary.read", "{name}: {answer}");
        siege.serves_on();
        // Nor can it be hidden in a part that is asked for, or be appended to.
        let args = ["read", name, "--line", "1", "--limit", "1"];
        siege.world().fs(&args).denied("files.binary.read");
        siege.world().run_with_input(&["fs", "append", name], "x").denied("files.binary.write");
    }
    siege.end();
}

#[test]
fn no_way_of_changing_a_file_makes_it_set_id_or_wider() {
    let world = world();
    for mode in [0o4755, 0o2755, 0o6777, 0o1644, 0o600] {
        let path = world.file("tool", "one");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        world.run_with_input(&["fs", "append", "tool"], " two").ok();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode & 0o777, "append {mode:o}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        world.fs(&["edit", "tool", "--old", "two", "--new", "2"]).ok();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode & 0o777, "edit {mode:o}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        world.write("tool", "three").ok();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode & 0o777, "write {mode:o}");
    }
    let made = world.write("new", "x").ok();
    assert_eq!(world.path("new").metadata().unwrap().mode() & 0o7111, 0, "{made:?}");
    is_unharmed(&world);
}
