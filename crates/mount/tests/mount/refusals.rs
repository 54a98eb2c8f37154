//! Refusals after an open, and what is left at the end.

use std::{fs, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio};

use portcullis_mount::Options;

use crate::rig::{ALL, Rig, with, with_end, with_options};

fn file(root: &Path) {
    fs::write(root.join("file"), "one\ntwo\n").unwrap();
}

fn small() -> Options {
    Options { file: 100, ..Options::new(0, 0) }
}

impl Rig<'_> {
    /// Returns the sizes of the recorded writes that were too large, and whether each one closed the
    /// session.
    fn oversized(&self) -> Vec<(u64, bool)> {
        let records = self.records().into_iter();
        let facts = records
            .filter(|record| record.get("rule").is_some_and(|rule| rule == "mount.fileSize"))
            .filter_map(|record| record.get("facts").cloned());
        facts
            .map(|facts| {
                let size = facts.get("size").and_then(|size| size.as_u64()).unwrap();
                (size, facts.get("sessionClosed").is_some_and(|closed| closed == true))
            })
            .collect()
    }
}

/// Only the first of them counted.
#[test]
fn each_oversized_write_counts_against_the_limit_of_denials() {
    let script = "import os\nf = os.open('file', os.O_WRONLY)\nfor size in range(101, 106):\n  \
        try: os.pwrite(f, b'x', size - 1)\n  except OSError as e: print(e.errno)";
    let policy = format!("{ALL}[mount]\ndenials = 3\n");
    with_options(&policy, small(), file, |rig| {
        // Nothing is there for a closed session.
        assert_eq!(rig.python(script).ok(), "27\n27\n27\n2\n2\n");
        assert_eq!(rig.oversized(), [(101, false), (102, false), (103, true)]);
        rig.sh("cat file").fails("");
    });
    with_options(ALL, small(), file, |rig| {
        assert_eq!(rig.python(script).ok(), "27\n".repeat(5));
        assert_eq!(rig.oversized(), [(101, false)]);
    });
}

/// The record had the end of the file that the kernel knew, and the host had made the file longer.
#[test]
fn an_oversized_append_is_recorded_with_the_size_that_the_file_would_have() {
    with_options(ALL, small(), file, |rig| {
        let host = rig.host("file");
        let script = format!(
            "import os\nf = os.open('file', os.O_WRONLY | os.O_APPEND)\nopen('{}', 'a').write('x' * 60)\n\
             try: os.write(f, b'y' * 50)\nexcept OSError as e: print(e.errno)",
            host.display()
        );
        assert_eq!(rig.python(&script).ok(), "27\n");
        assert_eq!(rig.oversized(), [(118, false)]);
    });
}

/// A file that the host had replaced was left out.
#[test]
fn what_was_not_stored_at_the_end_is_recorded_by_its_name() {
    let fill = |root: &Path| {
        for name in ["kept", "gone", "replaced"] {
            fs::write(root.join(name), "old").unwrap();
        }
    };
    let test = |rig: &Rig<'_>| {
        let script = "import os, sys\nfiles = [os.open(n, os.O_WRONLY) for n in ('kept', 'gone', 'replaced')]\n\
            for f in files: os.write(f, b'new')\nos.unlink('gone')\nprint('ready', flush=True)\nsys.stdin.readline()";
        let mut command = rig.command("python3", &["-c", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        fs::write(rig.host("other"), "replaced\n").unwrap();
        fs::rename(rig.host("other"), rig.host("replaced")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1200));
        assert_eq!(rig.sh("cat replaced").ok(), "replaced\n");
        rig.stop();
        child.wait_with_output().unwrap();
    };
    with_end(ALL, Options::new(0, 0), fill, test, |rig| {
        rig.mount.record_unstored().unwrap();
        let records = rig.records();
        let unstored = records.iter().find(|record| record["op"] == "unstored").unwrap();
        assert_eq!(unstored["facts"]["writes"], 2);
        assert_eq!(unstored["facts"]["paths"], serde_json::json!(["kept", "replaced"]));
    });
}

/// The denial of a mode failed the close of a file that was stored, and the mode was shown for a
/// second.
#[test]
fn a_file_is_stored_although_its_mode_is_denied() {
    let rule = "[[rules]]\nid = \"modes\"\neffect = \"deny\"\noperations = [\"setattr\"]\n\
                paths = [\"file\"]\n";
    with(&format!("{ALL}{rule}"), file, |rig| {
        let script = "import os\nmode = lambda: oct(os.stat('file').st_mode & 0o777)\n\
            f = os.open('file', os.O_WRONLY | os.O_TRUNC)\nos.write(f, b'new')\nos.fchmod(f, 0o700)\n\
            print(mode())\nos.close(f)\nprint(mode())\n\
            try: os.chmod('file', 0o700)\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(script).ok(), "0o700\n0o644\n13\n");
        assert_eq!(rig.read("file"), "new");
        assert_eq!(fs::metadata(rig.host("file")).unwrap().permissions().mode() & 0o777, 0o644);
        let expected = [
            "intent write -",
            "outcome write ok",
            "decision setattr denied",
            "decision setattr denied",
        ];
        assert_eq!(rig.about("file"), expected);
        assert_eq!(rig.records().iter().filter(|record| record["rule"] == "modes").count(), 2);
    });
}

/// A refused version must be in no page of the kernel.
#[test]
fn old_descriptors_and_mappings_show_the_stored_content_after_a_refusal() {
    let secrets = "[secrets]\nonWrite = \"deny\"\n[[secrets.rules]]\nid = \"k\"\n\
                   regex = 'tok_[a-z]{8}'\n";
    with(&format!("{ALL}{secrets}"), file, |rig| {
        let script = r"
import mmap, os, subprocess
f = os.open('file', os.O_RDWR); m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
print(m[:])
os.pwrite(f, b'tok_abcdefgh', 0)
try: os.fsync(f)
except OSError as e: print(e.errno)
def read():
    try: return os.pread(f, 100, 0)
    except OSError as e: return e.errno
def load():
    child = os.fork()
    if child == 0: os._exit(m[0])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
# Another thread of the gateway has the kernel drop the pages.
while read() == b'tok_abcdefgh': pass
print(read(), load())
subprocess.run(['cat', 'file'], stdout=subprocess.DEVNULL, check=True)
print(read(), load())
try: os.close(f)
except OSError as e: print(e.errno)
";
        // 7 is SIGBUS, and 111 is `o`.
        let expected = "b'one\\ntwo\\n'\n13\n5 -7\nb'one\\ntwo\\n' 111\n13\n";
        assert_eq!(rig.python(script).ok(), expected);
        assert_eq!(rig.read("file"), "one\ntwo\n");
    });
}
