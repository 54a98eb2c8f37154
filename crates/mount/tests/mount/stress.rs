//! Many programs at the same time.

use std::{fs, path::Path, process::Stdio};

use crate::rig::{ALL, Rig, with};

const RANDOM: &str = r"
import os, random, sys
random.seed(int(sys.argv[1]))
names = ['a', 'b', 'c', 'd/a', 'd/b', 'e/a', 'e/f/g']
refused = set()
for n in range(int(sys.argv[2])):
    one, two = random.choice(names), random.choice(names)
    try:
        match random.randrange(10):
            case 0: os.makedirs(os.path.dirname(one) or '.', exist_ok=True)
            case 1: os.unlink(one)
            case 2: os.rename(one, two)
            case 3: os.rename('d', 'e')
            case 4: os.rmdir(random.choice(['d', 'e', 'e/f']))
            case 5: open(one).read()
            case 6: os.listdir(random.choice(['.', 'd', 'e']))
            case 7: open(one, 'a').write('%d ' % n)
            case 8:
                f = os.open(one, os.O_RDWR | os.O_CREAT)
                os.write(f, b'x' * random.randrange(10000))
                if random.randrange(2): os.ftruncate(f, random.randrange(10000))
                os.lseek(f, 0, 0); os.read(f, 100); os.fsync(f); os.close(f)
            case 9: os.stat(one), os.utime(one, (1, 1)), os.chmod(one, 0o600 + random.randrange(64))
    except OSError as error:
        refused.add(error.errno)
print(sorted(refused))
";

/// Prints the tree with its contents, except the copies that a conflict leaves beside a file,
/// which no agent sees.
const TREE: &str = r"
import os, hashlib
for directory, names, files in sorted(os.walk('.')):
    if '.conflict-' in directory: continue
    names, files = [[name for name in each if '.conflict-' not in name] for each in (names, files)]
    print(directory, sorted(names))
    for name in sorted(files):
        path = os.path.join(directory, name)
        stat = os.stat(path)
        print(path, stat.st_size, oct(stat.st_mode), hashlib.sha256(open(path, 'rb').read()).hexdigest())
";

fn same_inside_and_outside(rig: &Rig<'_>) {
    // Waits until the kernel's cached entries have expired.
    let inside = rig.python(&format!("import time\ntime.sleep(1.1)\n{TREE}")).ok();
    let mut outside = rig.command("python3", &["-c", TREE]);
    let outside = outside.args::<[&str; 0], _>([]).current_dir(rig.host(".")).output().unwrap();
    assert_eq!(inside, String::from_utf8(outside.stdout).unwrap());
}

/// Errors that programs may cause each other: missing, existing, not empty, a directory or
/// none, moved, and a version that another program changed.
const EXPECTED: [&str; 9] = ["2", "5", "13", "17", "20", "21", "22", "39", "116"];

#[test]
fn programs_that_change_the_same_tree() {
    with(
        ALL,
        |_: &Path| {},
        |rig| {
            let children: Vec<_> = (0..4)
                .map(|seed: i32| {
                    let mut command =
                        rig.command("python3", &["-c", RANDOM, &seed.to_string(), "300"]);
                    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
                })
                .collect();
            for child in children {
                let output = child.wait_with_output().unwrap();
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{output:?}");
                let refused = text.trim().trim_matches(['[', ']']).split(", ");
                for errno in refused.filter(|errno| !errno.is_empty()) {
                    assert!(EXPECTED.contains(&errno), "{text}");
                }
            }
            same_inside_and_outside(rig);
        },
    );
}

#[test]
fn programs_beside_a_host_that_changes_the_same_tree() {
    with(
        ALL,
        |_: &Path| {},
        |rig| {
            let mut outside = rig.command("python3", &["-c", RANDOM, "77", "1500"]);
            outside.current_dir(rig.host("."));
            let children: Vec<_> = (0..2)
                .map(|seed: i32| rig.command("python3", &["-c", RANDOM, &seed.to_string(), "200"]))
                .chain([outside])
                .map(|mut command| {
                    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
                })
                .collect();
            for child in children {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{output:?}");
            }
            same_inside_and_outside(rig);
            let left = fs::read_dir(rig.host(".")).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> =
                left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
            assert!(left.is_empty(), "{left:?}");
        },
    );
}

/// Makes the same changes to a file in the mount and to one outside, and compares them all
/// the time.
const SAME: &str = r"
import mmap, os, random, sys
seed, count, other = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
random.seed(seed)
paths = ['file-%d' % seed, os.path.join(other, 'file-%d' % seed)]
files = [[], []]
most = 200000

def both(call):
    results = []
    for side in (0, 1):
        try: results.append(call(side))
        except OSError as error: results.append(('errno', error.errno))
    assert results[0] == results[1], (log[-20:], [str(result)[:200] for result in results])

def opened(flags):
    def call(side): files[side].append(os.open(paths[side], flags, 0o644))
    both(call)

def any_file():
    return random.randrange(len(files[0]))

def mapped(side, at, data):
    size = os.fstat(files[side][n]).st_size
    if size < at + len(data): return
    with mmap.mmap(files[side][n], size) as m: m[at:at + len(data)] = data

log = []
opened(os.O_RDWR | os.O_CREAT)
for step in range(count):
    n, at, size = any_file(), random.randrange(most), random.randrange(20000)
    data = bytes([random.randrange(256)]) * size
    what = random.randrange(15)
    log.append((what, n, at, size))
    match what:
        case 0 | 1 | 2: both(lambda side: os.pwrite(files[side][n], data, at))
        case 3 | 4: both(lambda side: os.pread(files[side][n], size, at))
        case 5: both(lambda side: os.ftruncate(files[side][n], at))
        case 6: both(lambda side: os.truncate(paths[side], at))
        case 7: both(lambda side: os.fsync(files[side][n]))
        case 8 | 9 if len(files[0]) < 6:
            opened(os.O_RDWR | os.O_CREAT | random.choice([0, 0, os.O_APPEND, os.O_TRUNC]))
        case 10 if len(files[0]) > 1: both(lambda side: os.close(files[side].pop(n)))
        case 11: both(lambda side: mapped(side, at, data))
        case 12: both(lambda side: (os.fstat(files[side][n]).st_size, os.stat(paths[side]).st_size))
        case 13: both(lambda side: open(paths[side], 'rb').read())
        case 14:
            match random.randrange(6):
                case 0: both(lambda side: os.unlink(paths[side]))
                case 1: both(lambda side: os.posix_fallocate(files[side][n], at, size + 1))
                case 2: both(lambda side: os.rename(paths[side], paths[side] + '.new'))
                case 3: both(lambda side: os.rename(paths[side] + '.new', paths[side]))
                case 4: both(lambda side: os.lseek(files[side][n], at, os.SEEK_HOLE) > 0)
                case 5: both(lambda side: (lambda f: os.close(f))(os.open(paths[side], os.O_WRONLY | os.O_CREAT)))
for n in range(len(files[0])):
    both(lambda side: os.pread(files[side][n], most * 2, 0))
    both(lambda side: os.close(files[side][n]))
for suffix in ['', '.new']:
    both(lambda side: open(paths[side] + suffix, 'rb').read())
";

#[test]
fn a_file_is_what_it_would_be_elsewhere() {
    let beside = tempfile::tempdir().unwrap();
    let other = beside.path().to_str().unwrap();
    with(
        ALL,
        |_: &Path| {},
        |rig| {
            let children: Vec<_> = (0..3)
                .map(|seed: i32| {
                    let arguments = ["-c", SAME, &seed.to_string(), "400", other];
                    let mut command = rig.command("python3", &arguments);
                    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
                })
                .collect();
            for child in children {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            for entry in fs::read_dir(beside.path()).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                assert!(
                    fs::read(entry.path()).unwrap() == fs::read(rig.host(&name)).unwrap(),
                    "{name}"
                );
            }
            assert_eq!(rig.mount.numbers().refusals, 0);
        },
    );
}
