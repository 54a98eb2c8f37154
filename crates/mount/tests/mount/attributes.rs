//! Modes, times, links, and refusals.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use portcullis_mount::Options;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use crate::{
    reading::SECRETS,
    rig::{ALL, Rig, eventually, with, with_end, with_options},
};

fn file(root: &Path) {
    fs::write(root.join("file"), "one\ntwo\n").unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Regression: a commit that ran beside chmod(2) lost the mode, or set it over a newer one.
#[test]
fn a_mode_that_was_set_while_the_file_was_stored_was_lost() {
    with(
        ALL,
        |_: &Path| (),
        |rig| {
            let script =
                "for n in $(seq 20); do echo text >f$n; chmod 644 f$n; : >f$n; chmod 600 f$n; done";
            rig.sh(script).ok();
            for n in 1..=20 {
                let file = rig.host(&format!("f{n}"));
                // A file that was emptied is stored a moment after its last close.
                assert!(eventually(|| mode(&file) == 0o600), "{n}: {:o}", mode(&file));
            }
        },
    );
}

/// Regression: a commit that ran beside a look at the attributes gave ESTALE, or the size of the
/// version before.
#[test]
fn attributes_were_those_of_a_file_that_was_being_replaced() {
    let script = "import os\n\
        for n in range(600):\n name = f'e{n % 50}'\n open(name, 'w').write('text' * 300)\n \
        open(name, 'w').close()\n f = os.open(name, os.O_RDONLY)\n os.fchmod(f, 0o755 if n % 2 else 0o644)\n \
        assert os.read(f, 10) == b'' and os.fstat(f).st_size == 0\n os.close(f)";
    // The size is that of a file that was searched for secrets.
    with(
        &format!("{ALL}{SECRETS}"),
        |_: &Path| (),
        |rig| {
            rig.python(script).ok();
        },
    );
}

#[test]
fn modes_and_times_are_set() {
    with(ALL, file, |rig| {
        rig.sh("chmod 750 file; touch -d 2020-01-02T03:04:05.5Z file; stat -c '%a %Y' file").ok();
        let host = fs::metadata(rig.host("file")).unwrap();
        assert_eq!(
            (mode(&rig.host("file")), host.mtime(), host.mtime_nsec()),
            (0o750, 1_577_934_245, 500_000_000)
        );
        assert_eq!(rig.sh("stat -c '%a %Y' file").ok(), "750 1577934245\n");
        // touch(1) opens the file for writing, which begins with a read.
        assert_eq!(
            rig.about("file"),
            [
                "intent setattr -",
                "outcome setattr ok",
                "decision read ok",
                "intent setattr -",
                "outcome setattr ok"
            ]
        );
        // A change to the same mode is no request.
        rig.sh("chmod 750 file").ok();
        assert_eq!(rig.about("file").len(), 5);
        rig.sh("umask 0; (umask 077; echo x >private); cp -p file copy; mkdir d; mv copy d").ok();
        assert_eq!(mode(&rig.host("private")), 0o600);
        rig.sh("mkdir -m 700 own; mkdir common; stat -c %a own common").ok();
        assert_eq!((mode(&rig.host("own")), mode(&rig.host("common"))), (0o700, 0o755));
        let copy = fs::metadata(rig.host("d/copy")).unwrap();
        assert_eq!((copy.mtime(), copy.mode() & 0o777), (1_577_934_245, 0o750));
        assert_eq!(rig.about("copy")[..2], ["intent write -", "outcome write ok"]);
        assert_eq!(rig.about("copy")[2..], ["intent rename -", "outcome rename ok"]);
        rig.sh("printf '#!/bin/sh\\necho ran\\n' >run; chmod +x run; test \"$(./run)\" = ran").ok();
        rig.sh("tar cf a.tar file d; mkdir to; tar xpf a.tar -C to").ok();
        let copy = fs::metadata(rig.host("to/d/copy")).unwrap();
        assert_eq!((copy.mtime(), copy.mode() & 0o777), (1_577_934_245, 0o750));
    });
}

#[test]
fn the_time_of_a_write_stays_after_the_commit() {
    with(ALL, file, |rig| {
        let script = "import os\nf = os.open('new', os.O_RDWR | os.O_CREAT)\nos.write(f, b'x')\na = os.fstat(f)\nos.close(f)\n\
            import time; time.sleep(1.2)\nb = os.stat('new')\nprint(a.st_mtime_ns == b.st_mtime_ns, a.st_ctime_ns == b.st_ctime_ns, a.st_ino == b.st_ino)";
        assert_eq!(rig.python(script).ok(), "True True True\n");
    });
}

#[test]
fn links_are_made_within_the_workspace() {
    with(ALL, file, |rig| {
        assert_eq!(
            rig.sh(
                "ln -s file link; cat link; mkdir d; ln -s ../file d/up; cat d/up; readlink d/up"
            )
            .ok(),
            "one\ntwo\none\ntwo\n../file\n"
        );
        assert_eq!(fs::read_link(rig.host("d/up")).unwrap(), Path::new("../file"));
        rig.sh("ln -s /etc/passwd out").fails("");
        rig.sh("ln -s ../../etc out").fails("");
        assert!(fs::symlink_metadata(rig.host("out")).is_err());
        // A rename, or a change of a directory on the link's path, must not make it lead out
        // either.
        rig.sh("mkdir -p d/e; ln -s ../../file d/e/up; mv d/e/up d/e/stays").ok();
        rig.sh("mv d/e/stays moved").fails("");
        assert!(fs::symlink_metadata(rig.host("moved")).is_err());
        rig.sh("ln -s d d2; ln -s d2/../file out || ln -s d/../file out").fails("");
        assert!(fs::symlink_metadata(rig.host("out")).is_err());
        rig.sh("ln file hard").fails("not permitted");
        rig.sh("mv link moved; rm moved d/up; ls -A d").ok();
        assert!(rig.host("file").exists() && !rig.host("moved").exists());
    });
}

/// Such links were refused, although the same ones relative to their directory were created.
#[test]
fn an_absolute_path_in_the_workspace_is_the_target_of_a_link() {
    with(ALL, file, |rig| {
        rig.sh(
            "mkdir -p d/e; ln -s $PWD/file one; ln -s $PWD/d/../file none || ln -s $PWD//./file d/e/two; \
             ln -s $PWD d/root; cat one d/e/two d/root/file",
        )
        .ok();
        let target = |name: &str| fs::read_link(rig.host(name)).unwrap();
        let targets = ["one", "d/e/two", "d/root"].map(target);
        assert_eq!(targets, ["file", "../../file", ".."].map(Path::new), "{targets:?}");
        let outside = ["$PWD/..", "$PWD/../x", "$PWD/d/../../x", "$PWD-x", "/", "$PWD/../mnt/file"];
        for target in outside {
            rig.sh(&format!("ln -s {target} out")).fails("");
            assert!(fs::symlink_metadata(rig.host("out")).is_err(), "{target}");
        }
    });
}

/// A directory was moved up with a link that then led out, and programs of the host followed it.
#[test]
fn no_link_in_a_directory_leads_out_when_that_is_moved_up() {
    with(ALL, file, |rig| {
        rig.sh("mkdir -p a/b/c; ln -s ../../../file a/b/c/up; ln -s ../x a/b/c/near").ok();
        for (from, to) in [("a/b/c", "c"), ("a/b", "b"), ("a/b/c", "a/c")] {
            rig.sh(&format!("mv {from} {to}")).fails("");
            assert!(rig.host("a/b/c/up").is_symlink() && !rig.host(to).exists(), "{from} {to}");
        }
        rig.sh("mv a/b/c a/b/d; cat a/b/d/up; mkdir -p e/f; mv a/b/d e/f/d; cat e/f/d/up").ok();
        rig.sh("rm e/f/d/up; mv e/f/d near; readlink near/near").ok();
    });
}

#[test]
fn what_would_give_rights_away_is_refused() {
    with(ALL, file, |rig| {
        rig.sh("chmod u+s file").fails("not permitted");
        rig.sh("chown 1000 file").fails("not permitted");
        rig.sh("mknod device c 1 3").fails("not permitted");
        rig.sh("mkfifo pipe").fails("not permitted");
        rig.python("import os; os.setxattr('file', 'user.other', b'x')").fails("Errno 95");
        rig.sh("chown 0:0 file").ok();
        rig.python("import os; os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)").fails("Errno 1");
        assert_eq!(mode(&rig.host("file")), 0o644);
        assert!(rig.records().iter().all(|record| record["kind"] != "intent"));
    });
}

#[test]
fn the_bounds_hold() {
    let options = Options { staged: 1 << 20, handles: 20, ..Options::new(0, 0) };
    with_options(ALL, options, file, |rig| {
        rig.sh("head -c 2000000 /dev/zero >big").fails("");
        // The kernel reports the close of a file after the program has continued.
        let script = "import os, time\nf = os.open('big', os.O_WRONLY | os.O_CREAT)\n\
            try: os.write(f, bytes(2000000))\nexcept OSError as e: print(e.errno)\nos.ftruncate(f, 0)\nos.close(f)\n\
            open('after', 'w').write('x' * 1000000)\n\
            files, end = [], time.time() + 60\n\
            while len(files) < 20 and time.time() < end:\n  try: files.append(open('file'))\n  \
            except OSError: time.sleep(0.05)\n\
            try:\n  while True: files.append(open('file'))\nexcept OSError as e: print(e.errno, len(files))";
        let said = rig.python(script).ok();
        assert_eq!(said, "23 20\n".to_owned(), "{said}");
        assert_eq!(rig.read("after").len(), 1_000_000);
    });
}

/// Each commit has a copy of its content: commits for which there is no room wait, and one larger
/// than the budget waits until it is alone.
#[test]
fn commits_wait_for_memory_and_do_not_fail() {
    let options = Options { commits: 100_000, ..Options::new(0, 0) };
    with_options(ALL, options, file, |rig| {
        let script = "import os\nfor n in range(8):\n  if os.fork() == 0:\n    size = 300000 if n == 3 else 80000\n    \
            f = os.open('f%d' % n, os.O_WRONLY | os.O_CREAT)\n    for _ in range(3): os.pwrite(f, b'%d' % n * size, 0); os.fsync(f)\n    \
            os.close(f); os._exit(0)\nprint([os.wait()[1] for _ in range(8)])";
        assert_eq!(rig.python(script).ok(), "[0, 0, 0, 0, 0, 0, 0, 0]\n");
        for n in 0..8 {
            let size = if n == 3 { 300_000 } else { 80_000 };
            assert_eq!(rig.read(&format!("f{n}")), n.to_string().repeat(size));
        }
    });
}

#[test]
fn a_bound_that_was_reached_is_recorded_once() {
    let files = |root: &Path| {
        fs::write(root.join("big"), vec![b'x'; 2_000_000]).unwrap();
        for number in 0..40 {
            fs::write(root.join(format!("f{number}")), "x").unwrap();
        }
    };
    let options =
        Options { handles: 10, nodes: 30, open: 3 << 19, staged: 1 << 20, ..Options::new(0, 0) };
    // The files of the program before may be released while this one runs.
    let script = "import os, time
end = time.time() + 60
def fails(number, call):
    try: call()
    except OSError as e:
        if e.errno == 23 != number and time.time() < end:
            time.sleep(0.1)
            return fails(number, call)
        assert e.errno == number, e
    else: assert False, number
def many(flags): return [os.open('f%d' % n, flags) for n in range(40)]
def write():
    with open('f0', 'wb') as f: f.write(bytes(1 << 21))
fails(12, lambda: open('big').read())
fails(122, write)
fails(23, lambda: many(os.O_RDONLY))";
    let bounds = |rig: &Rig<'_>| {
        let mut records = rig.records();
        records.retain(|record| record["op"] == "limit");
        let bound =
            |record: &Value| format!("{} {}", record["facts"]["bound"], record["facts"]["max"]);
        let mut bounds: Vec<_> = records.iter().map(bound).collect();
        bounds.sort();
        bounds.join(", ")
    };
    let look = |rig: &Rig<'_>| {
        rig.sh("cat f1").ok();
        assert_eq!(bounds(rig), "");
        for script in [script, &script.replace("os.O_RDONLY", "os.O_PATH")] {
            rig.python(script).ok();
            rig.python(script).ok();
        }
        // A file for which there is no room is not read, so no record says that it was shown.
        assert_eq!(rig.about("big"), [""; 0]);
        rig.sh("sleep 1; for t in $(seq 100); do cat f1 && exit 0; sleep 0.5; done; exit 1").ok();
    };
    with_end(ALL, options, files, look, |rig| {
        let all = r#""handles" 10, "nodes" 30, "openBytes" 1572864, "stagedBytes" 1048576"#;
        assert_eq!(bounds(rig), all);
    });
}

#[test]
fn the_kernel_forgets_nodes_before_there_are_too_many() {
    let fill = |root: &Path| {
        for number in 0..3000 {
            fs::write(root.join(number.to_string()), number.to_string()).unwrap();
        }
    };
    let options = Options { nodes: 2000, ..Options::new(0, 0) };
    with_options(ALL, options, fill, |rig| {
        for _ in 0..2 {
            assert_eq!(rig.sh("ls | wc -l").ok(), "3000\n");
            rig.sh("ls -l >/dev/null 2>&1 || true; sleep 0.5").ok();
        }
        let said = rig
            .sh("for n in $(seq 0 10 2999); do for t in $(seq 20); do cat $n && break; sleep 0.5; done; echo; done | wc -l")
            .ok();
        assert_eq!(said, "300\n");
    });
}

#[test]
fn an_error_that_no_close_told_is_told_by_the_next_open() {
    let limit = "[mount]\nmaxWriteSize = \"4B\"\n";
    with(&format!("{ALL}{limit}"), file, |rig| {
        let script = "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n\
            f = os.open('file', os.O_RDWR)\np = libc.mmap(None, 8, 3, 1, f, ctypes.c_long(0))\nos.close(f)\n\
            ctypes.memmove(p, b'ONE', 3)\nlibc.munmap(ctypes.c_void_p(p), ctypes.c_long(8))\n\
            time.sleep(0.5)\n{TOLD}\nprint(open('file').read())";
        let script = script.replace("{TOLD}", &told("'file'"));
        assert_eq!(rig.python(&script).ok(), "13\none\ntwo\n\n");
        assert_eq!(rig.read("file"), "one\ntwo\n");
    });
}

/// Returns Python that opens a file until an error is told, which it prints: the kernel reports the
/// last close of a mapped file after the program has continued.
fn told(file: &str) -> String {
    format!(
        "end = time.time() + 60\nwhile time.time() < end:\n  try: open({file}).close()\n  \
         except OSError as e: print(e.errno); break\n  time.sleep(0.05)"
    )
}

impl Rig<'_> {
    /// Has a program map a file and close it, runs `replace`, and returns what the program sees of
    /// the file's name then. It does `before` and `after` around the replacement, then `write`.
    fn maps_and_writes(
        &self,
        name: &str,
        (before, after, write): (&str, &str, &str),
        replace: impl FnOnce(),
    ) -> String {
        let told = told("name");
        let script = format!(
            "import ctypes, os, sys, time\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n\
             name = '{name}'\nf = os.open(name, os.O_RDWR)\n\
             p = libc.mmap(None, 8, 3, 1, f, ctypes.c_long(0))\nos.close(f)\n\
             p = ctypes.c_void_p(p)\n{before}\nprint('mapped', flush=True)\nsys.stdin.readline()\n\
             {after}\n{write}\nlibc.munmap(p, ctypes.c_long(8))\ntime.sleep(1.1)\n{told}\n\
             print('another' in str(os.getxattr(name, 'user.portcullis.why')), open(name).read())"
        );
        let mut command = self.command("python3", &["-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
        replace();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }
}

/// The error stayed with the replaced file, which no program opens any more, or was `ESTALE`, after
/// which the kernel opens a file again.
#[test]
fn an_error_about_a_file_that_was_replaced_is_told_by_the_next_open_of_its_name() {
    let write = "ctypes.memmove(p, b'ONE', 3)";
    let sync = "libc.syncfs(os.open('.', os.O_RDONLY))";
    let look = "time.sleep(1.1); os.stat('file')";
    // The content reaches the mount before the replacement, and is refused with the last handle; or
    // it does so afterwards.
    for (before, after) in [
        (format!("{write}; {sync}"), ""),
        (format!("{write}; {sync}"), look),
        (String::new(), look),
    ] {
        with(ALL, file, |rig| {
            let write = if before.is_empty() { write } else { "" };
            let said = rig.maps_and_writes("file", (&before, after, write), || {
                fs::write(rig.host("other"), "other\n").unwrap();
                fs::rename(rig.host("other"), rig.host("file")).unwrap();
            });
            assert_eq!(said, "5\nTrue other\n\n", "{before:?} {after:?}");
            assert_eq!(rig.read("file"), "other\n");
            let conflicts = rig.about("file").into_iter().filter(|r| r.ends_with("conflict"));
            assert_eq!(conflicts.count(), 1, "{before:?} {after:?}");
        });
    }
}

/// The error stayed with the file in the directory that was there before.
#[test]
fn an_error_about_a_file_in_a_directory_that_was_replaced_was_told_to_nobody() {
    let write = "ctypes.memmove(p, b'ONE', 3)";
    let before = format!("{write}; libc.syncfs(os.open('.', os.O_RDONLY))");
    let fill = |root: &Path| {
        fs::create_dir_all(root.join("dir/below")).unwrap();
        file(&root.join("dir/below"));
        fs::create_dir_all(root.join("new/below")).unwrap();
        fs::write(root.join("new/below/file"), "other\n").unwrap();
    };
    // The new file is known when the error comes, or it is not. The kernel writes at any time, so
    // the directory is replaced in one step.
    for (before, after, write) in [
        (&*before, "", ""),
        (&*before, "time.sleep(1.1); os.stat(name)", ""),
        ("", "time.sleep(1.1); os.stat(name)", write),
    ] {
        with(ALL, fill, |rig| {
            let said = rig.maps_and_writes("dir/below/file", (before, after, write), || {
                let (new, dir) = (rig.host("new"), rig.host("dir"));
                renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE).unwrap();
            });
            assert_eq!(said, "5\nTrue other\n\n", "{before:?} {after:?}");
            assert_eq!(rig.read("dir/below/file"), "other\n");
            assert_eq!(rig.read("new/below/file"), "one\ntwo\n");
        });
    }
}

/// The next open of the name was told that the file is missing, which it was when the kernel wrote,
/// and no record told of the write.
#[test]
fn an_error_about_a_file_that_was_missing_is_recorded_and_told() {
    with(ALL, file, |rig| {
        let path = rig.host("file");
        // The mapping that `maps_and_writes` unmaps is another one. The kernel knows the name for a
        // second.
        let write = "ctypes.memmove(p, b'ONE', 3)\nlibc.munmap(p, ctypes.c_long(8))\n\
            p = ctypes.c_void_p(libc.mmap(None, 8, 3, 0x22, -1, ctypes.c_long(0)))\n\
            time.sleep(1.1)\nwhile not os.path.exists(name): time.sleep(0.1)";
        let said = rig.maps_and_writes("file", ("", "", write), || {
            fs::remove_file(&path).unwrap();
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(2));
                fs::write(path, "other\n").unwrap();
            });
        });
        assert_eq!(said, "5\nTrue other\n\n");
        assert!(rig.about("file").iter().any(|r| r.ends_with("conflict")));
    });
}

#[test]
fn the_end_of_the_server_is_an_error_at_once() {
    with(ALL, file, |rig| {
        let script = "import os, sys, time\nf = os.open('file', os.O_RDONLY)\nprint('ready', flush=True)\nsys.stdin.readline()\n\
            begun = time.time()\n\
            for call in [lambda: os.stat('other'), lambda: open('file'), lambda: os.listdir('.')]:\n  \
            try: call()\n  except OSError as e: print(e.errno)\nprint(time.time() - begun < 30)";
        let mut command = rig.command("python3", &["-c", script]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        rig.stop();
        // A request that comes before fails as one that is cut off.
        assert!(eventually(|| rig.is_gone()));
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "107\n107\n107\nTrue\n");
    });
}

const REDACTS: &str = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"token\"\n\
    regex = \"tok_[0-9]{8}\"\n";

/// Each stat(2) used to read a file beyond the limit.
#[test]
fn a_file_is_read_for_its_size_within_the_bound_of_open_files() {
    let fill = |root: &Path| {
        fs::write(root.join("large"), vec![b'x'; 2_000_000]).unwrap();
        fs::write(root.join("small"), "tok_12345678").unwrap();
    };
    let options = Options { open: 1 << 20, ..Options::new(0, 0) };
    let look = |rig: &Rig<'_>| {
        let script = "import os\nassert os.stat('small').st_size > 12\n\
            try: os.stat('large')\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(script).ok(), "12\n");
    };
    with_end(&format!("{ALL}{REDACTS}"), options, fill, look, |rig| {
        let records = rig.records();
        let bound = records.iter().find(|record| record["op"] == "limit").unwrap();
        assert_eq!(bound["facts"]["bound"], "openBytes");
    });
}

/// A READDIRPLUS used to read all files of a directory, and a program that waited for it could not
/// be killed.
#[test]
fn a_list_reads_little_to_tell_sizes() {
    let fill = |root: &Path| {
        fs::create_dir(root.join("d")).unwrap();
        for number in 0..8 {
            let file = fs::File::create(root.join(format!("d/large{number}"))).unwrap();
            file.set_len(3 << 20).unwrap();
            fs::write(root.join(format!("d/small{number}")), "tok_12345678").unwrap();
        }
    };
    with(&format!("{ALL}{REDACTS}"), fill, |rig| {
        // An entry without attributes has no inode number.
        let script = "import os\n\
            bare = [e.name for e in os.scandir('d') if e.inode() == 2 ** 32 - 1]\n\
            assert len(bare) == 7 and all(name.startswith('large') for name in bare), bare\n\
            for e in os.scandir('d'): assert e.is_file(), e.name\n\
            for n in range(8):\n  assert os.stat(f'd/large{n}').st_size == 3 << 20\n  \
            assert os.stat(f'd/small{n}').st_size > 12";
        rig.python(script).ok();
    });
}
