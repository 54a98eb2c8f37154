//! Operations that wait for a slow commit, and operations that must not.

use std::fs;

use crate::rig::{ALL, with};

/// Waits until the request of a thread that closes a file is with the mount, or ahead of it.
const CLOSES: &str = r"
import os, threading, time
def closes(thread):
    # close(2) has one of these numbers.
    path = '/proc/self/task/%d/syscall' % thread.native_id
    try:
        while open(path).read().split()[0] not in ('3', '57'): time.sleep(0.01)
    except OSError: pass
";

/// Policy for which a commit of a large file takes long: it is searched for secrets.
const SEARCHES: &str = "[secrets]\nonWrite = \"deny\"\nmaxScanTime = \"1h\"\n\
    [[secrets.rules]]\nid = \"k\"\nregex = '[a-z]+ [a-z]+[0-9]{9}'\n";

/// Commits a large file, renames another one and the directory above it, and uses unrelated
/// paths meanwhile.
const BUSY: &str = r"
# The kernel has the directory of a rename wait for it, so the others are open.
third, other = [os.open(name, os.O_RDONLY) for name in ['third', 'other']]
big = os.open('big/f', os.O_WRONLY | os.O_CREAT)
for n in range(48): os.write(big, b'one two three 44\n' * (1 << 16))
ended = {}
def run(name, do):
    begun = time.time(); do(); ended[name] = (begun, time.time())
def start(name, do):
    thread = threading.Thread(target=run, args=(name, do)); thread.start(); return thread
threads = [start('commit', lambda: os.close(big))]
closes(threads[0])
time.sleep(0.3)
threads.append(start('waits', lambda: os.rename('big', 'moved')))
threads.append(start('other', lambda: os.rename('x', 'y', src_dir_fd=other, dst_dir_fd=other)))
rounds = made = 0
while 'commit' not in ended:
    for name in ['missing-%d' % made, 'target', 'f']:
        try: os.stat(name, dir_fd=third)
        except FileNotFoundError: pass
    os.close(os.open('f', os.O_RDONLY, dir_fd=third))
    new = os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=third); os.write(new, b'x'); os.close(new)
    os.listdir(third)
    made += 1
    # Those that were done before the commit was.
    rounds += 'commit' not in ended
for thread in threads: thread.join()
print(rounds > 1, ended['other'][1] < ended['commit'][1], ended['waits'][1] >= ended['commit'][1], rounds, ended)
";

/// A rename used to wait for all commits, and every lookup for the rename.
#[test]
fn a_commit_and_a_rename_that_waits_for_it_keep_no_other_path_waiting() {
    let fill = |root: &std::path::Path| {
        for name in ["big", "other", "third"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("third/f"), "f\n").unwrap();
        fs::write(root.join("other/x"), "x\n").unwrap();
    };
    let policy = format!("{ALL}[scratch]\npaths = [\"target\"]\n{SEARCHES}");
    with(&policy, fill, |rig| {
        let said = rig.python(&format!("{CLOSES}{BUSY}")).ok();
        assert!(said.starts_with("True True True "), "{said}");
        assert_eq!(fs::metadata(rig.host("moved/f")).unwrap().len(), (48 << 16) * 17);
        assert_eq!(rig.read("other/y"), "x\n");
    });
}

/// Closes many descriptors of a large file at once, so that as many requests wait for its commit.
const MANY: &str = r"
big = os.open('big', os.O_WRONLY | os.O_CREAT)
for n in range(48): os.write(big, b'one two three 44\n' * (1 << 16))
copies, ended = [os.dup(big) for _ in range(32)], []
def close(copy): os.close(copy); ended.append(copy)
threads = [threading.Thread(target=close, args=(copy,)) for copy in copies]
for thread in threads: thread.start()
for thread in threads: closes(thread)
time.sleep(0.3)
opens = 0
while not ended:
    os.close(os.open('f', os.O_RDONLY))
    # Those that were done before the commit was.
    opens += not ended
for thread in threads: thread.join()
print(opens > 1, opens)
";

/// Sixteen such requests kept all other programs waiting.
#[test]
fn programs_go_on_while_many_requests_wait_for_a_commit() {
    let fill = |root: &std::path::Path| fs::write(root.join("f"), "f\n").unwrap();
    with(&format!("{ALL}{SEARCHES}"), fill, |rig| {
        let said = rig.python(&format!("{CLOSES}{MANY}")).ok();
        assert!(said.starts_with("True "), "{said}");
    });
}

/// The version made by a change of time or mode was taken for another program's, if something
/// was written between that change and the commit before.
#[test]
fn what_is_written_beside_a_commit_that_sets_attributes_is_no_conflict() {
    let script = r"
import os, threading
file, done, errors = os.open('a', os.O_WRONLY | os.O_CREAT), [], []
os.ftruncate(file, 1 << 12)
os.fsync(file)
def write():
    n = 0
    while not done:
        try: os.pwrite(file, b'%08d' % n, 0)
        except OSError as error: return errors.append(error)
        n += 1
thread = threading.Thread(target=write); thread.start()
for n in range(50):
    try:
        os.utime(file, (n, n)); os.fchmod(file, 0o600 + n % 2 * 0o40)
        # fsync(2) would keep the writer waiting.
        os.close(os.dup(file))
        os.rename('a', 'b'); os.rename('b', 'a')
    except OSError as error: errors.append(error); break
done.append(1); thread.join()
try: os.close(file)
except OSError as error: errors.append(error)
print(errors)
";
    with(
        ALL,
        |_| {},
        |rig| {
            assert_eq!(rig.python(script).ok(), "[]\n");
            assert_eq!(rig.read("a").len(), 1 << 12);
        },
    );
}
