//! Programs that exchange paths while others use them, and databases whose programs are killed.
//! `PORTCULLIS_TEST_BUDGET` multiplies the number of runs.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use crate::rig::{ALL, Rig, budget, with};

const HIDDEN: &str = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\n\
    operations = [\"read\", \"write\", \"list\", \"stat\", \"remove\", \"rename\"]\n\
    paths = [\"hidden\", \"hidden/**\"]\n";

/// Exchanges `dir` for links that lead elsewhere, a given number of times.
const SWAPS: &str = r"
import os, sys
done = 0
for n in range(int(sys.argv[1])):
    link = ['to-other', 'to-hidden', 'to-outside'][n % 3]
    try:
        os.rename('dir', 'aside'); os.rename(link, 'dir')
        done += 1
    except OSError as error: print(n, error, file=sys.stderr)
    try: os.rename('dir', link)
    except OSError as error: print(n, error, file=sys.stderr)
    try: os.rename('aside', 'dir')
    except OSError as error: print(n, error, file=sys.stderr)
print(done)
";

/// Reads and writes beneath `dir` until the input ends and it has read what was written; no other
/// content may appear anywhere.
const USES: &str = r"
import os, select, sys
read, wrote = set(), 0
while 'used' not in read or not select.select([sys.stdin], [], [], 0)[0]:
    for use in [
        lambda: read.add(open('dir/f').read()),
        lambda: read.update(os.listdir('dir')),
        lambda: open('dir/f', 'r+').write('used'),
        lambda: os.rename('dir/new', 'dir/newer'),
        lambda: os.unlink('dir/newer'),
        lambda: open('dir/new', 'w').write('used'),
        lambda: os.chmod('dir/f', 0o600),
        lambda: os.symlink('f', 'dir/link'),
        lambda: os.unlink('dir/link'),
    ]:
        try: use(); wrote += 1
        except OSError: pass
print(wrote, sorted(read))
";

fn places(root: &Path) {
    let outside = root.parent().unwrap().join("home");
    for place in [&outside, &root.join("dir"), &root.join("other"), &root.join("hidden")] {
        fs::create_dir_all(place).unwrap();
    }
    fs::write(root.join("dir/f"), "dir\n").unwrap();
    fs::write(root.join("other/f"), "other\n").unwrap();
    for secret in [root.join("hidden/f"), outside.join("f")] {
        fs::write(secret, "secret\n").unwrap();
    }
    symlink("other", root.join("to-other")).unwrap();
    symlink("hidden", root.join("to-hidden")).unwrap();
    symlink(&outside, root.join("to-outside")).unwrap();
}

/// Starts a program whose output is read at its end.
fn start(mut command: Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[track_caller]
fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Rig<'_> {
    /// Runs the independent verifier on the log.
    pub(crate) fn verify(&self) {
        let verifier = concat!(env!("CARGO_MANIFEST_DIR"), "/../../audit/verify.py");
        let log = self.host("../state/audit");
        let mut command = Command::new("python3");
        let output = command.args([verifier, "log"]).arg(log).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns temporary files of the gateway in the workspace.
    fn temporary_files(&self) -> String {
        self.command("find", &[self.host(".").to_str().unwrap(), "-name", ".portcullis-*"])
            .output()
            .map(said)
            .unwrap()
    }
}

#[test]
fn exchanged_paths_lead_nowhere_else() {
    with(&format!("{ALL}{HIDDEN}"), places, |rig| {
        let users: Vec<_> = (0..2).map(|_| start(rig.command("python3", &["-c", USES]))).collect();
        let swaps = (200 * budget()).to_string();
        let swapper = start(rig.command("python3", &["-c", SWAPS, &swaps]));
        let done: u64 = said(swapper.wait_with_output().unwrap()).trim().parse().unwrap();
        assert!(done >= 100 * budget(), "{done}");
        for user in users {
            let said = said(user.wait_with_output().unwrap());
            assert!(!said.contains("secret") && said.contains("used"), "{said}");
        }
        for untouched in ["hidden/f", "../home/f"] {
            assert_eq!(rig.read(untouched), "secret\n");
            let names = fs::read_dir(rig.host(untouched).parent().unwrap()).unwrap();
            assert_eq!(names.count(), 1, "{untouched}");
        }
        assert_eq!(rig.temporary_files(), "");
        rig.verify();
    });
}

/// Commits rows until it is killed, and prints each committed row.
const ROWS: &str = r"
import sqlite3, sys
connection = sqlite3.connect('rows.db', timeout=20)
connection.execute('pragma journal_mode=' + sys.argv[1])
connection.execute('pragma synchronous=full')
connection.execute('create table if not exists t (a integer primary key, b)')
while True:
    row = connection.execute('insert into t (b) values (?)', ('x' * 5000,)).lastrowid
    connection.commit()
    print(row, flush=True)
";

const CHECK: &str = r"
import sqlite3
connection = sqlite3.connect('rows.db', timeout=20)
print(connection.execute('pragma integrity_check').fetchone()[0], connection.execute('select max(a) from t').fetchone()[0])
";

fn a_killed_program_loses_no_row(mode: &str) {
    with(
        ALL,
        |_: &Path| {},
        |rig| {
            let mut last = 0;
            for round in 0..5 * budget() {
                // Not run by `timeout`, which would be killed instead.
                let mut command = Command::new("python3");
                command.args(["-c", ROWS, mode]).current_dir(rig.host("../mnt"));
                let mut program = start(command);
                let mut rows = BufReader::new(program.stdout.take().unwrap()).lines();
                let first: Vec<_> = rows.by_ref().take(2).map(Result::unwrap).collect();
                thread::sleep(Duration::from_millis(round * 37 % 200));
                program.kill().unwrap();
                // The last line may be cut off.
                let told = first.into_iter().chain(rows.map_while(Result::ok));
                last = told.filter_map(|row| row.parse().ok()).max().unwrap();
                program.wait().unwrap();
                let checked = rig.python(CHECK).ok();
                let found = checked.trim().strip_prefix("ok ").and_then(|rows| rows.parse().ok());
                assert!(found.is_some_and(|found: u64| found >= last), "{last}: {checked}");
            }
            assert!(last > 5, "{last}");
            // The host's file is a database of the same rows, too, once it is closed.
            let mut host = rig.command("python3", &["-c", CHECK]);
            let host = said(host.current_dir(rig.host(".")).output().unwrap());
            assert_eq!(host, rig.python(CHECK).ok());
            assert_eq!(rig.temporary_files(), "");
            rig.verify();
        },
    );
}

#[test]
fn a_database_with_a_rollback_journal_loses_no_row_of_a_killed_program() {
    a_killed_program_loses_no_row("delete");
}

#[test]
fn a_database_with_a_write_ahead_log_loses_no_row_of_a_killed_program() {
    a_killed_program_loses_no_row("wal");
}
