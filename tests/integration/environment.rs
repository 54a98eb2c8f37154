//! Effects of other processes on files, and of the environment in which a gateway is started: none
//! delays a gateway, ends it or keeps the next one from starting.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::fs::{Mode, mkdirat};
use serde_json::json;

use crate::{
    common::{Done, Stop, World, done},
    consistency,
    crash::POLICY,
    disk::Disk,
    proof::PYTHON,
};

const TERABYTE: u64 = 1 << 40;

/// `portcullis ARGS…` behind these words and before a deadline.
fn bounded(world: &World, words: &[&str], args: &[&str]) -> Command {
    let own = world.command(args);
    let mut command = Command::new("timeout");
    command.args(["60"]).args(words).arg(own.get_program()).args(own.get_args()).env_clear();
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(own.get_current_dir().unwrap()).stdin(Stdio::null());
    command
}

/// The same, which must end.
fn behind(world: &World, words: &[&str], args: &[&str]) -> Done {
    let output = bounded(world, words, args).output().unwrap();
    assert!(output.status.signal().is_none(), "{args:?}: {output:?}");
    assert_ne!(output.status.code(), Some(124), "{args:?} does not end: {output:?}");
    done(output)
}

fn in_time(world: &World, args: &[&str]) -> Done {
    behind(world, &[], args)
}

fn sparse(path: &Path, length: u64) {
    File::create(path).unwrap().set_len(length).unwrap();
}

/// Their hash was computed first, which takes a quarter of an hour for a terabyte of no content.
/// Twenty such requests took all threads of a gateway.
#[test]
fn huge_sparse_files_are_not_read_to_be_compared() {
    let world = World::new();
    world.file("a.txt", "a");
    sparse(&world.path("huge"), TERABYTE);
    let refused = in_time(&world, &["fs", "mv", "huge", "a.txt"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("larger than `backups.keep.size`"), "{refused:?}");
    assert_eq!(world.last()["result"], "invalidInput");
    assert_eq!(world.read("a.txt"), "a");
    // Where nothing is replaced, nothing need be read.
    in_time(&world, &["fs", "mv", "huge", "moved"]).ok();

    fs::create_dir(world.path("tree")).unwrap();
    fs::rename(world.path("moved"), world.path("tree/huge")).unwrap();
    let refused = in_time(&world, &["fs", "rm", "-r", "tree"]);
    assert!(
        refused.code == 1 && refused.stderr.contains("the backup store is full"),
        "{refused:?}"
    );
    assert_eq!(fs::metadata(world.path("tree/huge")).unwrap().len(), TERABYTE);

    // The file that an undo would restore is another one now.
    world.write("u.txt", "u").ok();
    let made = world.records().iter().rfind(|record| record["kind"] == "intent").unwrap()["seq"]
        .to_string();
    sparse(&world.path("u.txt"), TERABYTE);
    let undone = in_time(&world, &["backup", "undo", "--yes", "--record", &made]);
    assert_ne!(undone.code, 0, "{undone:?}");
    in_time(&world, &["audit", "blame", "u.txt"]).ok();
    assert_eq!(fs::metadata(world.path("u.txt")).unwrap().len(), TERABYTE);
    world.run(&["audit", "verify"]).ok();
}

/// A process that holds a lease; gone when dropped.
struct Lease(Child);

impl Lease {
    fn take(path: &Path) -> Self {
        let script = "import fcntl, signal, sys, time\n\
            signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            file = open(sys.argv[1], 'r+')\n\
            fcntl.fcntl(file, 1024, fcntl.F_WRLCK)\n\
            print('held', flush=True)\n\
            time.sleep(600)\n";
        let mut command = Command::new(PYTHON);
        let mut child =
            command.args(["-c", script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The gateway tried to open it again and again, for as long as the lease lasted.
#[test]
fn a_lease_in_a_tree_is_not_waited_for_awake() {
    let world = World::new();
    world.file("tree/leased.txt", "kept");
    let lease = Lease::take(&world.path("tree/leased.txt"));
    let refused = in_time(&world, &["fs", "rm", "-r", "tree"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("another process keeps a file of the tree"), "{refused:?}");
    let read = in_time(&world, &["fs", "read", "tree/leased.txt"]);
    assert!(read.code == 1 && read.stderr.contains("holds a lease"), "{read:?}");
    drop(lease);
    in_time(&world, &["fs", "rm", "-r", "tree"]).ok();
    world.run(&["audit", "verify"]).ok();
}

/// The result of the removal was `ok`, and immutable entries stayed under a hidden name.
#[test]
fn what_is_immutable_keeps_its_tree() {
    let world = World::new();
    let disk = Disk::ext4(&world.root(), &world.base().join("image"), 16);
    for (place, flag) in [("e/sub", "i"), ("e/sub/k", "i"), ("e/sub", "a"), ("e/sub/k", "a")] {
        world.file("e/sub/k", "kept");
        let change = |sign: &str| {
            let mut command = Command::new("chattr");
            command.arg(format!("{sign}{flag}")).arg(world.path(place));
            assert!(command.status().unwrap().success());
        };
        change("+");
        let refused = world.fs(&["rm", "-r", "e"]);
        change("-");
        assert_eq!(refused.code, 1, "{place} +{flag}: {refused:?}");
        assert_eq!(world.read("e/sub/k"), "kept");
        assert_eq!(fs::read_dir(world.root()).unwrap().count(), 1);
        world.fs(&["rm", "-r", "e"]).ok();
    }
    drop(disk);
}

/// Every write left a file that could not be removed, and a rename over a file hid the renamed one.
#[test]
fn an_append_only_directory_gets_nothing_that_cannot_be_removed() {
    let world = World::new();
    let disk = Disk::ext4(&world.root(), &world.base().join("image"), 16);
    world.file("log/old", "kept");
    world.file("log/gone", "kept");
    world.file("beside", "kept");
    world.fs(&["rm", "log/gone"]).ok();
    let change = |sign: &str| {
        let mut command = Command::new("chattr");
        command.arg(format!("{sign}a")).arg(world.path("log"));
        assert!(command.status().unwrap().success());
    };
    change("+");
    let all = [
        &["fs", "write", "log/new"][..],
        &["fs", "write", "log/old"],
        &["fs", "append", "log/old"],
        &["fs", "edit", "log/old", "--old", "kept", "--new", "lost"],
        &["fs", "rm", "log/old"],
        &["fs", "mv", "log/old", "elsewhere"],
        &["fs", "mv", "beside", "log/old"],
        &["fs", "mv", "beside", "log/new"],
        &["backup", "restore", "log/gone", "--yes"],
    ]
    .map(|args| (world.run(args), world.last()));
    // Adding is what it allows.
    world.fs(&["mkdir", "-p", "log/sub"]).ok();
    world.write("log/sub/dir/a", "new").ok();
    change("-");
    for (refused, record) in all {
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("append-only directory (`chattr +a`)"), "{refused:?}");
        assert_eq!((&record["kind"], &record["result"]), (&json!("decision"), &json!("io")));
    }
    let mut names: Vec<_> = consistency::snapshot(&world.root()).into_keys().collect();
    names.sort();
    assert_eq!(names, ["beside", "log", "log/old", "log/sub", "log/sub/dir", "log/sub/dir/a"]);
    assert_eq!((world.read("beside"), world.read("log/old")), ("kept".into(), "kept".into()));
    consistency::check(&world);
    drop(disk);
}

/// The gateway's hidden names in the workspace.
fn hidden(world: &World) -> Vec<String> {
    let names = fs::read_dir(world.root()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".portcullis-")).collect()
}

/// Makes directories in the open directory from the time at which the gateway has compared it with
/// the backup store, which the second name shows that it gets.
fn fill(world: &World, directory: &File, thread: usize, stop: &AtomicBool) {
    let mut first = None;
    while !stop.load(Ordering::Relaxed) {
        let now = hidden(world).pop();
        first = first.or_else(|| now.clone());
        if now.is_some() && now != first {
            break;
        }
    }
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Once it is gone, nothing can be made in it.
        let _gone = mkdirat(directory, format!("{thread}-{number}"), Mode::RWXU);
    }
}

/// It did not end: the gateway deleted as fast as the other process made.
#[test]
fn a_tree_that_another_process_keeps_filling_is_left_and_named() {
    let world = World::in_memory(POLICY);
    let mut left = None;
    for _ in 0..20 {
        for number in 0..1000 {
            world.file(&format!("tree/{number}"), "kept");
        }
        let (directory, stop) = (File::open(world.path("tree")).unwrap(), AtomicBool::new(false));
        let removed = thread::scope(|scope| {
            for number in 0..2 {
                let (world, directory, stop) = (&world, &directory, &stop);
                scope.spawn(move || fill(world, directory, number, stop));
            }
            let _over = Stop(&stop);
            in_time(&world, &["fs", "rm", "-r", "tree"])
        });
        if removed.code != 0 {
            left = Some(removed);
            break;
        }
        assert!(hidden(&world).is_empty());
    }
    let left = left.expect("nothing was made in the tree in time, twenty times");
    assert_eq!(left.code, 1, "{left:?}");
    let name = hidden(&world).pop().unwrap();
    assert!(left.stderr.contains(&format!("is hidden at `{name}`")), "{left:?}");
    // It is not finished, and the next start records its result.
    assert_eq!(world.last()["kind"], "intent");
    world.fs(&["ls"]).ok();
    assert!(hidden(&world).is_empty());
    let told = world.records().iter().rfind(|record| record["kind"] == "recovered").cloned();
    assert_eq!(told.unwrap()["result"], "committed");
    consistency::check(&world);
}

/// The error was "invalid cross-device link".
#[test]
fn directories_of_a_lower_layer_are_refused_by_that_name() {
    let world = World::new();
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
        let place = world.base().join(name);
        fs::create_dir(&place).unwrap();
        place
    });
    fs::create_dir(lower.join("d")).unwrap();
    fs::write(lower.join("d/f"), "f").unwrap();
    let options = format!(
        "redirect_dir=off,lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(world.root());
    assert!(mount.status().unwrap().success());
    let all = [&["rm", "-r", "d"][..], &["mv", "d", "e"]].map(|args| world.fs(args));
    world.fs(&["rm", "d/f"]).ok();
    assert!(Command::new("umount").arg(world.root()).status().unwrap().success());
    for refused in all {
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("overlay file system"), "{refused:?}");
    }
}

/// A signal ended the gateway before it could record anything.
#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let world = World::new();
    let large = world.base().join("large");
    fs::write(&large, vec![b'x'; 1 << 20]).unwrap();
    let shell = format!("ulimit -f 256; exec \"$@\" < '{}'", large.display());
    let refused = behind(&world, &["sh", "-c", &shell, "sh"], &["fs", "write", "b.txt"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("file too large"), "{refused:?}");
    assert!(!world.path("b.txt").exists());
    assert_eq!(world.last()["result"], "io");
    world.run(&["audit", "verify"]).ok();
}

/// The log's files had no rights at all, and no later gateway could open them.
#[test]
fn an_umask_that_takes_the_owners_rights_breaks_no_state_directory() {
    let world = World::new();
    world.file("a.txt", "a");
    for mask in ["0277", "0777", "0377"] {
        let words = ["sh", "-c", &format!("umask {mask}; exec \"$@\""), "sh"];
        behind(&world, &words, &["fs", "write", "b.txt"]).ok();
        world.fs(&["read", "a.txt"]).ok();
        // Others get as little as they should.
        let mode = fs::metadata(world.state().join("audit/seg-000000.jsonl")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(world.state()).unwrap();
    }
}

/// A backup took all the space, and the log had none left for its next record: any client that
/// could have files removed ended the gateway.
#[test]
fn a_backup_leaves_room_for_the_log() {
    let world = World::new();
    fs::create_dir(world.state()).unwrap();
    let disk = Disk::memory(&world.state(), 32 << 10);
    world.fs(&["ls"]).ok();
    let free = rustix::fs::statvfs(world.state()).unwrap();
    let almost = free.f_bavail * free.f_frsize - (200 << 10);
    sparse(&world.path("big"), almost);
    world.file("tree/small", "s");
    sparse(&world.path("tree/zbig"), almost);
    for args in [&["rm", "big"][..], &["rm", "-r", "tree"]] {
        let refused = world.fs(args);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("no space left for backups"), "{refused:?}");
    }
    assert!(world.path("big").exists() && world.path("tree/zbig").exists());
    sparse(&world.path("big"), almost / 2);
    world.fs(&["rm", "big"]).ok();
    world.run(&["audit", "verify"]).ok();
    drop(disk);
}

/// The agent ended with 0, and `run` with 1: the kernel reported no exit status.
#[test]
fn a_starter_that_ignores_the_end_of_children_is_told_what_to_do() {
    let world = World::new();
    world.file("a.txt", "a");
    let ignoring = ["env", "--ignore-signal=CHLD"];
    for args in [&["run", "--", "true"][..], &["serve"], &["doctor"], &["demo"]] {
        let refused = behind(&world, &ignoring, args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("ignores the signal SIGCHLD"), "{args:?}: {refused:?}");
    }
    behind(&world, &ignoring, &["fs", "read", "a.txt"]).ok();
    let advised = [&ignoring[..], &["env", "--default-signal=CHLD"]].concat();
    behind(&world, &advised, &["run", "--", "true"]).ok();
}

/// The error was "no such file or directory", without a path.
#[test]
fn a_proc_that_is_not_mounted_is_named() {
    let world = World::new();
    let without = ["unshare", "-m", "sh", "-c", "umount -l /proc && exec \"$@\"", "sh"];
    for args in [
        &["fs", "ls"][..],
        &["run", "--", "true"],
        &["serve"],
        &["mcp"],
        &["doctor"],
        &["demo"],
        &["backup", "restore", "a", "--yes"],
    ] {
        let refused = behind(&world, &without, args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("`/proc` is not mounted"), "{args:?}: {refused:?}");
    }
}

/// Threads that could not be counted were taken for one, and others kept their rights.
#[test]
fn threads_that_cannot_be_counted_keep_a_gateway_from_being_confined() {
    let world = World::new();
    world.file("a.txt", "a");
    // Over the directory of the shell that becomes the command.
    let script = "mount -t tmpfs none /proc/$$/task && exec \"$@\"";
    let blind = ["unshare", "-m", "sh", "-c", script, "sh"];
    for args in [&["fs", "read", "a.txt"][..], &["mcp"]] {
        let refused = behind(&world, &blind, args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
    assert!(!world.state().join("audit").exists());
    behind(&world, &["env"], &["fs", "read", "a.txt"]).ok();
}

/// It became empty.
#[test]
fn a_file_is_not_emptied_by_a_stdin_that_was_closed() {
    let world = World::new();
    world.file("a.txt", "kept");
    let shell = |end: &str, args: &[&str]| {
        behind(&world, &["sh", "-c", &format!("exec \"$@\" {end}"), "sh"], args)
    };
    for args in [&["fs", "write", "a.txt"][..], &["fs", "append", "a.txt"], &["fs", "batch"]] {
        let refused = shell("<&-", args);
        assert_eq!(refused.code, 2, "{args:?}: {refused:?}");
        assert_eq!(world.read("a.txt"), "kept");
    }
    shell("< /dev/null", &["fs", "append", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "kept");
    shell("< /dev/null", &["fs", "write", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "");
}

/// There was no message, for as long as the lock was held.
#[test]
fn a_lock_that_another_process_holds_is_waited_for_aloud() {
    let world = World::new();
    world.file("a.txt", "a");
    world.fs(&["read", "a.txt"]).ok();
    let lock = File::open(world.state().join("audit/lock")).unwrap();
    lock.lock().unwrap();
    let mut command = bounded(&world, &[], &["fs", "read", "a.txt"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("waiting for a lock") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    assert!(said.contains("audit/lock"), "{said}");
    lock.unlock().unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"a");
}
