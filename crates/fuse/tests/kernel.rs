//! Tests with a small file system in memory, mounted and used by separate processes. They
//! need root and `/dev/fuse`, and none skips itself. Each runs this program again in a mount
//! namespace of its own (unshare(1)), so that no mount is left over; timeout(1) ends tests
//! that hang.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use portcullis_fuse::*;
use rustix::io::Result;

#[path = "kernel/changes.rs"]
mod changes;
#[path = "kernel/late.rs"]
mod late;
#[path = "kernel/memory.rs"]
mod memory;

use memory::Memory;

const LONG: Duration = Duration::from_secs(600);

/// Runs a test of this program again in a mount namespace. Returns true inside of that.
fn is_inside(test: &str) -> bool {
    if std::env::var_os("FUSE_INSIDE").is_some() {
        return true;
    }
    let test = ["--exact", test, "--nocapture"];
    let mut inside = Command::new("timeout");
    inside.args(["-s", "KILL", "300", "unshare", "--mount", "--propagation", "private"]);
    let status = inside.arg(std::env::current_exe().unwrap()).args(test).env("FUSE_INSIDE", "1");
    assert!(status.status().unwrap().success());
    false
}

fn mounted(directory: &std::path::Path) -> Session {
    use rustix::{
        fs::{Mode, open},
        mount::{MountFlags, mount},
    };
    use std::os::fd::AsRawFd as _;
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).unwrap();
    mount("portcullis", directory, "fuse.portcullis", MountFlags::NOSUID, options.as_c_str())
        .unwrap();
    Session::begin(device, Instant::now() + Duration::from_secs(60)).unwrap()
}

fn start(directory: &std::path::Path, script: &str) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-euc", script]).current_dir("/").env("M", directory);
    shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn done(directory: &std::path::Path, script: &str) -> String {
    let Output { status, stdout, stderr } = start(directory, script).wait_with_output().unwrap();
    assert!(status.success(), "{script}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Serves a file system while `body` uses it; then stops the session, which must return long
/// before a request takes too long.
fn serving(memory: &Memory, threads: usize, body: impl FnOnce(&std::path::Path, &Session)) {
    let directory = tempfile::tempdir().unwrap();
    let session = mounted(directory.path());
    thread::scope(|scope| {
        let served = scope.spawn(|| session.run(memory, threads));
        body(directory.path(), &session);
        let stopped = Instant::now();
        session.stopper().stop();
        served.join().unwrap().unwrap();
        assert!(stopped.elapsed() < Duration::from_secs(60), "{:?}", stopped.elapsed());
    });
    drop(session);
    rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn files_directories_and_links() {
    if !is_inside("files_directories_and_links") {
        return;
    }
    serving(&Memory::new(), 3, |mount, _| {
        let script = r#"cd "$M"; umask 022
            echo one > a; echo two >> a; cat a; stat -c %a a; chmod 600 a; stat -c %a a
            mkdir d; mv a d/b; ln -s d/b link; cat link; readlink link; ls; ls -l d | wc -l
            echo x > y; mv -n y d/b; : > d/b; stat -c %s d/b; truncate -s 5 d/b; stat -c %s d/b
            head -c 3000000 /dev/zero | tr '\0' z > big; cksum < big; sync big
            head -c 3000000 /dev/zero | tr '\0' z | cksum
            rm d/b big link; rmdir d; mknod n p 2>/dev/null || echo refused; stat -f -c %b ."#;
        let said = done(mount, script);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(
            lines[..11],
            ["one", "two", "644", "600", "one", "two", "d/b", "d", "link", "2", "0"]
        );
        assert_eq!((lines[11], lines[12]), ("5", lines[13]));
        assert_eq!(lines[14..], ["refused", "7"]);
        assert_eq!(
            done(mount, r#"cd "$M"; for i in $(seq 3000); do : > f$i; done; ls | wc -l"#).trim(),
            "3001"
        );
    });
}

#[test]
fn an_open_that_is_not_known_is_no_success() {
    if !is_inside("an_open_that_is_not_known_is_no_success") {
        return;
    }
    let memory = Memory::new();
    serving(&memory, 1, |mount, _| {
        done(mount, r#"echo secret > "$M/a""#);
        memory.no_open.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let said = done(mount, r#"LC_ALL=C cat "$M/a" 2>&1 || true"#);
            assert!(said.contains("Input/output error"), "{said}");
        }
        memory.no_open.store(false, Ordering::Relaxed);
        assert_eq!(done(mount, r#"cat "$M/a""#), "secret\n");
    });
}

#[test]
fn missing_names_are_kept_as_long_as_the_file_system_says() {
    if !is_inside("missing_names_are_kept_as_long_as_the_file_system_says") {
        return;
    }
    let memory = Memory::new();
    serving(&memory, 2, |mount, _| {
        let add = |name: &str| {
            let number = memory.make(FileType::RegularFile, 0o644, b"");
            memory.names.lock().unwrap().insert((1, name.into()), number);
        };
        done(mount, r#"! test -e "$M/a""#);
        add("a");
        done(mount, r#"test -e "$M/a""#);
        memory.keeps_missing.store(true, Ordering::Relaxed);
        done(mount, r#"! test -e "$M/b"; ! test -e "$M/c""#);
        add("b");
        done(mount, r#"! test -e "$M/b""#);
        // A name created through the mount exists at once.
        done(mount, r#"echo c > "$M/c"; test -e "$M/c"; rm "$M/c"; ! test -e "$M/c""#);
    });
}

#[test]
fn a_change_is_seen_after_its_notification() {
    if !is_inside("a_change_is_seen_after_its_notification") {
        return;
    }
    let memory = Memory::new();
    serving(&memory, 2, |mount, session| {
        let notifier = session.notifier();
        done(mount, r#"echo old > "$M/a"; cat "$M/a""#);
        memory.change(NodeId(2), |bytes| *bytes = b"new\n".to_vec());
        assert_eq!(done(mount, r#"cat "$M/a""#), "old\n", "the kernel keeps pages");
        notifier.invalidate_node(NodeId(2)).unwrap();
        assert_eq!(done(mount, r#"cat "$M/a""#), "new\n");
        let root = NodeId::ROOT;
        memory.names.lock().unwrap().clear();
        done(mount, r#"cat "$M/a""#);
        notifier.invalidate_entry(root, OsStr::new("a")).unwrap();
        done(mount, r#"! cat "$M/a" 2>/dev/null"#);
        memory.names.lock().unwrap().insert((1, "a".into()), 2);
        done(mount, r#"cat "$M/a""#);
        notifier.invalidate_node(NodeId(999)).unwrap();
        notifier.invalidate_entry(root, OsStr::new("none")).unwrap();
    });
}

#[test]
fn a_busy_session_stops_and_its_users_end() {
    if !is_inside("a_busy_session_stops_and_its_users_end") {
        return;
    }
    let mut users = Vec::new();
    let mut left = None;
    let memory = Memory::new();
    serving(&memory, 4, |mount, session| {
        left = Some(session.notifier());
        for i in 0..64 {
            // Within the mount, because its path is an ordinary directory again after the
            // unmount.
            let script =
                format!(r#"cd "$M"; while echo {i} > f{i} && cat f{i}; do :; done >/dev/null"#);
            users.push(start(mount, &script));
        }
        while memory.names.lock().unwrap().len() < users.len() {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_secs(3));
        assert!(users.iter_mut().all(|user| user.try_wait().unwrap().is_none()), "all work");
    });
    assert_eq!(left.unwrap().invalidate_node(NodeId::ROOT), Err(Errno::NODEV));
    for mut user in users {
        user.wait().unwrap();
    }
}

#[test]
fn users_of_a_killed_server_end() {
    if !is_inside("users_of_a_killed_server_end") {
        return;
    }
    // The server is this test in another process; it is killed while it serves a request.
    if std::env::var_os("FUSE_MOUNT").is_some() {
        let mount = std::env::var_os("FUSE_MOUNT").unwrap();
        let session = mounted(mount.as_ref());
        thread::scope(|scope| {
            scope.spawn(|| session.run(&Stuck, 2));
        });
    }
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap());
    server.args(["--exact", "users_of_a_killed_server_end"]).env("FUSE_MOUNT", directory.path());
    let mut server = server.stdout(Stdio::null()).spawn().unwrap();
    let is_mounted = r#"until grep -q "/${M##*/} " /proc/self/mountinfo; do sleep 0.05; done"#;
    done(directory.path(), is_mounted);
    let users: Vec<_> =
        (0..8).map(|i| start(directory.path(), &format!(r#"LC_ALL=C stat "$M/{i}""#))).collect();
    thread::sleep(Duration::from_secs(1));
    server.kill().unwrap();
    server.wait().unwrap();
    for user in users {
        let said = user.wait_with_output().unwrap();
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains("connection") || said.contains("not connected"), "{said}");
    }
    rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Never replies to a lookup.
struct Stuck;

impl FileSystem for Stuck {
    fn lookup(&self, _: Caller, _: NodeId, _: &OsStr) -> Result<Option<Entry>> {
        thread::sleep(LONG);
        Err(Errno::IO)
    }

    fn attributes(
        &self,
        caller: Caller,
        n: NodeId,
        h: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        Memory::new().attributes(caller, n, h)
    }
}
