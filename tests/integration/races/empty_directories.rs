//! Directories that have to be empty, and get entries while the gateway looks at them.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use portcullis::{
    gateway::ErrorKind,
    model::request::{Remove, Rename},
};

use super::{RunningMount, is_clean, path, rounds};
use crate::{common::Stop, proof::PYTHON};

/// A policy that keeps some files.
const POLICY: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[[rules]]
id = "keep"
effect = "deny"
operations = ["remove", "rename"]
paths = ["**/keep"]
"#;

/// Starts a process that makes the file `made` when another one opens `leased`.
fn make_when_opened(leased: &Path, made: &Path) -> Child {
    let script = "import fcntl, signal, sys\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n\
        file = open(sys.argv[1], 'r+')\n\
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
        print('held', flush=True)\n\
        signal.sigwait([signal.SIGIO])\n\
        open(sys.argv[2], 'w').write('KEEP')\n";
    let mut child = Command::new(PYTHON)
        .args(["-c", script])
        .args([leased, made])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    child
}

/// A file came into the directory before the backup, on which nothing was decided.
#[test]
fn a_rename_over_an_empty_directory_takes_no_file_that_came_meanwhile() {
    let inside = RunningMount::under(POLICY);
    let root = inside.root();
    fs::create_dir_all(root.join("from")).unwrap();
    fs::create_dir_all(root.join("to")).unwrap();
    fs::write(root.join("from/leased"), "INSIDE").unwrap();
    // The gateway reads what moves after it found the other directory empty.
    let mut child = make_when_opened(&root.join("from/leased"), &root.join("to/keep"));
    let rename = Rename { from: path("from"), to: path("to"), replace: true };
    let refused = loop {
        match inside.handle(&rename) {
            // The process was slow to give its lease up.
            Err(ErrorKind::Conflict | ErrorKind::Io) => {}
            other => break other,
        }
    };
    assert!(child.wait().unwrap().success());
    assert_eq!(refused, Err(ErrorKind::NotEmpty));
    assert_eq!(fs::read_to_string(root.join("to/keep")).unwrap(), "KEEP");
    assert!(root.join("from/leased").is_file());
    is_clean(&root);
}

/// The same for a removal that is not recursive.
#[test]
fn a_removal_of_an_empty_directory_takes_no_file_that_came_meanwhile() {
    let inside = RunningMount::new();
    let root = inside.root();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let (mut made, mut there) = (0_u64, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let file = root.join(format!("d/{made}"));
                if fs::write(&file, "INSIDE").is_ok() {
                    made += 1;
                    there.push(file);
                }
                // The gateway may hold the directory under another name for a moment.
                there.retain(|file| fs::remove_file(file).is_err());
                // Sometimes the gateway has the time for a removal.
                thread::sleep(Duration::from_micros(200 * (made % 8)));
            }
            (made, there)
        });
        let over = Stop(&stop);
        let remove = Remove { path: path("d"), recursive: false };
        let mut removed = 0;
        for _ in 0..rounds() / 20 {
            fs::create_dir_all(root.join("d")).unwrap();
            match inside.handle(&remove) {
                Ok(()) => removed += 1,
                Err(ErrorKind::NotEmpty | ErrorKind::Conflict) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        drop(over);
        let (made, mut there) = maker.join().unwrap();
        there.retain(|file| fs::remove_file(file).is_err());
        assert!(removed > 0 && made > 0, "no race: {removed} {made}");
        assert!(there.is_empty(), "of {made}, these are lost: {there:?}");
    });
    is_clean(&root);
}
