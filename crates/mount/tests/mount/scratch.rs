//! Scratch directories: operations of programs in them, and their isolation.

use std::{fs, os::unix::fs::symlink, path::Path};

use portcullis_mount::Options;

use crate::rig::{ALL, Rig, eventually, with, with_end};

fn policy(more: &str) -> String {
    format!("{ALL}[scratch]\npaths = [\"target\", \"node_modules\", \"dist\"]\n{more}")
}

fn scratch(test: impl FnOnce(&Rig<'_>) + Send) {
    with(&policy(""), |_| {}, test);
}

/// Returns the operations of all records.
fn operations(rig: &Rig<'_>) -> Vec<String> {
    let records = rig.records();
    records.iter().filter_map(|record| Some(record["op"].as_str()?.to_owned())).collect()
}

#[test]
fn what_is_written_is_outside_the_workspace_and_on_no_record() {
    scratch(|rig| {
        rig.sh(
            "mkdir target; mkdir -p target/a/b; echo one > target/a/f; echo two >> target/a/f; \
             mv target/a/f target/a/b/g; ln -s b/g target/a/l; cp -a target/a target/c; \
             test \"$(cat target/c/l)\" = \"$(printf 'one\\ntwo')\"; test -h target/c/l; \
             truncate -s 3 target/a/b/g; test \"$(cat target/a/l)\" = one; chmod 700 target/a/b/g; \
             test -x target/a/b/g; touch -d @5 target/a/b/g; test $(stat -c %Y target/a/b/g) = 5; \
             ls -A > listed; grep -qx target listed; test \"$(ls -A target)\" = \"$(printf 'a\\nc')\"",
        )
        .ok();
        assert!(!rig.host("target").exists());
        assert!(rig.beside("slot-0/0/d/a/b/g").exists());
        assert_eq!(rig.about("target"), [""; 0]);
        assert!(
            operations(rig).iter().all(|op| op != "mkdir" && op != "remove"),
            "{:?}",
            rig.records()
        );
        let numbers = rig.mount.scratch().unwrap();
        assert_eq!((numbers.entries, numbers.refused), (8 + 1, 0), "{numbers:?}");
        rig.sh("rm -rf target; test ! -e target; ! rmdir target; mkdir target; rmdir target").ok();
        rig.comes_to_count(0, 0);
        assert_eq!(fs::read_dir(rig.beside("slot-0")).unwrap().count(), 0);
    });
}

#[test]
fn the_workspaces_own_directory_of_that_name_is_not_there() {
    let fill = |ws: &std::path::Path| {
        fs::create_dir_all(ws.join("target")).unwrap();
        fs::write(ws.join("target/secret"), "s").unwrap();
        fs::create_dir_all(ws.join("web/dist")).unwrap();
        fs::create_dir_all(ws.join("list")).unwrap();
        symlink("/etc", ws.join("node_modules")).unwrap();
    };
    with(&policy(""), fill, |rig| {
        rig.sh(
            "test ! -e target; test ! -h node_modules; test \"$(ls -A)\" = \"$(printf 'list\\nweb')\"; \
             test -z \"$(ls -A web)\"; mkdir target node_modules web/dist; test ! -e target/secret; \
             echo x > target/secret; echo y > node_modules/passwd; echo z > list/f",
        )
        .ok();
        assert_eq!(rig.read("target/secret"), "s");
        assert_eq!(rig.read("list/f"), "z\n");
        rig.sh("rm -r target node_modules web/dist").ok();
        assert_eq!(rig.read("target/secret"), "s");
        assert!(rig.host("node_modules").is_symlink());
    });
}

#[test]
fn links_in_scratch_lead_where_the_kernel_follows_them() {
    scratch(|rig| {
        let victim = rig.host("../victim");
        fs::write(&victim, "mine").unwrap();
        fs::write(rig.host("f"), "workspace").unwrap();
        rig.sh(
            "mkdir -p target/d; ln -s ../.. target/d/up; test \"$(cat target/d/up/f)\" = workspace",
        )
        .ok();
        // `..` of the top of a scratch directory is the workspace, not its place in the
        // store.
        rig.sh("test \"$(cat target/../f)\" = workspace; ! ls target/../path; ! ls target/../../0")
            .ok();
        // The server does not follow a link that replaces a directory.
        let place = rig.beside("slot-0/0/d");
        fs::rename(place.join("d"), place.join("moved")).unwrap();
        symlink(rig.host(".."), place.join("d")).unwrap();
        let said = rig
            .python(
                "import os\ndef no(do, *a):\n  try: do(*a)\n  except OSError as e: print(e.errno)\n\
                 \x20 else: print('done')\nv = 'target/d/victim'\n\
                 no(open, v); no(open, v, 'w'); no(os.unlink, v); no(os.mkdir, 'target/d/new')\n\
                 no(os.rename, v, 'target/v'); no(os.link, v, 'target/v'); no(os.listdir, 'target/d')\n\
                 no(os.symlink, 'x', 'target/d/new'); no(os.chmod, 'target/d', 0o777)",
            )
            .ok();
        assert!(!said.contains("done"), "{said}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert!(!rig.host("../new").exists());
    });
}

#[test]
fn nothing_is_moved_or_linked_across() {
    scratch(|rig| {
        fs::write(rig.host("f"), "f").unwrap();
        let said = rig
            .python(
                "import os\nos.mkdir('target'); os.mkdir('node_modules'); open('target/t','w').close()\n\
                 os.mkdir('target/d'); os.mkdir('w')\n\
                 def no(do, *a):\n  try: do(*a)\n  except OSError as e: print(e.errno, end=' ')\n\
                 \x20 else: print('done', end=' ')\n\
                 no(os.rename, 'target/t', 'x'); no(os.rename, 'f', 'target/f')\n\
                 no(os.rename, 'target/t', 'node_modules/t'); no(os.link, 'target/t', 'x')\n\
                 no(os.link, 'f', 'target/f'); no(os.link, 'target/t', 'node_modules/t')\n\
                 no(os.rename, 'target', 'w/x'); no(os.rename, 'target/d', 'd')\n\
                 no(os.rename, 'f', 'w/target'); no(os.symlink, '/etc', 'w/target')\n\
                 no(open, 'w/target', 'w'); no(os.link, 'f', 'w/target'); no(open, 'target', 'w')\n\
                 no(os.mkdir, 'target'); no(os.unlink, 'target'); no(os.unlink, 'w/target')\n\
                 no(os.rmdir, 'target')\n\
                 no(os.chmod, 'target/t', 0o4755); no(os.chmod, 'target/t', 0o2755)\n\
                 no(os.mknod, 'target/p', 0o010600); no(os.chown, 'target/t', 7, 7)",
            )
            .ok();
        assert_eq!(said.trim(), "18 18 18 18 18 18 18 18 18 13 done 17 21 17 21 done 39 1 1 1 1");
        assert!(!rig.host("w/target").exists() && rig.host("f").exists());
        rig.sh("mv target/t out").ok();
        assert!(rig.host("out").is_file());
        assert!(rig.about("out").contains(&"outcome write ok".to_owned()));
    });
}

#[test]
fn the_semantics_are_those_of_a_file_system() {
    scratch(|rig| {
        rig.python(
            "import os, mmap\nos.mkdir('target'); p = 'target/f'\n\
             fd = os.open(p, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)\n\
             try: os.open(p, os.O_CREAT | os.O_EXCL | os.O_RDWR); assert 0\n\
             except FileExistsError: pass\n\
             os.write(fd, b'a' * 10000)\n\
             m = mmap.mmap(fd, 10000); m[5000:5004] = b'mmap'; m.flush(); m.close()\n\
             assert os.pread(fd, 4, 5000) == b'mmap'\n\
             a = os.open(p, os.O_WRONLY | os.O_APPEND); os.write(a, b'end'); os.close(a)\n\
             assert os.fstat(fd).st_size == 10003 and os.stat(p).st_mode & 0o777 == 0o640\n\
             os.link(p, 'target/g'); os.pwrite(fd, b'LINK', 0)\n\
             assert open('target/g','rb').read(4) == b'LINK' and os.stat(p).st_nlink == 2\n\
             assert os.stat(p).st_ino == os.stat('target/g').st_ino < 2**53\n\
             os.rename(p, 'target/g'); os.unlink(p); assert os.stat('target/g').st_nlink == 1\n\
             os.unlink('target/g'); assert os.fstat(fd).st_nlink == 0\n\
             os.pwrite(fd, b'still', 0); assert os.pread(fd, 5, 0) == b'still'\n\
             os.ftruncate(fd, 3); os.fchmod(fd, 0o600); os.utime(fd, (7, 8)); assert os.fstat(fd).st_mtime == 8\n\
             os.close(fd)\n\
             h = os.open('target/h', os.O_RDWR | os.O_CREAT); os.posix_fallocate(h, 0, 5000)\n\
             assert os.fstat(h).st_size == 5000; os.fsync(h); os.close(h)\n\
             os.makedirs('target/x/y'); open('target/x/y/z','w').write('z')\n\
             os.rename('target/x', 'target/w'); assert open('target/w/y/z').read() == 'z'\n\
             os.mkdir('target/e'); os.rename('target/w', 'target/e'); assert open('target/e/y/z').read() == 'z'\n\
             open('target/h','w').write('new'); assert open('target/h').read() == 'new'\n\
             i = os.open('target/e/y/z', os.O_RDONLY); open('target/n','w').write('n')\n\
             os.rename('target/n', 'target/e/y/z'); assert os.read(i, 9) == b'z'\n\
             assert open('target/e/y/z').read() == 'n'; os.close(i)\n\
             s = os.statvfs('target'); assert s.f_blocks * s.f_frsize == 20 << 30",
        )
        .ok();
        rig.sh("printf '#!/bin/sh\\necho ran' > target/run; chmod +x target/run; test $(target/run) = ran")
            .ok();
        rig.sh(
            "cd target; seq 2000 | xargs touch; test $(ls | wc -l) = 2003; rm [0-9]*; ls | wc -l",
        )
        .ok();
        rig.sh("rm -rf target").ok();
        rig.comes_to_count(0, 0);
        assert_eq!(rig.mount.scratch().unwrap().refused, 0);
    });
}

#[test]
fn a_few_files_become_scratch_by_a_rename() {
    scratch(|rig| {
        rig.sh(
            "mkdir -p targetAbc/d; echo tag > targetAbc/CACHEDIR.TAG; echo x > targetAbc/d/x; \
             mv -T targetAbc target; mkdir target/debug; test \"$(cat target/CACHEDIR.TAG)\" = tag; \
             echo y > target/d/y; test \"$(cat target/d/x)\" = x; test ! -e targetAbc; sleep 1.2; \
             test \"$(cat target/d/x target/d/y)\" = \"$(printf 'x\\ny')\"; ls target/debug",
        )
        .ok();
        assert!(!rig.host("targetAbc").exists() && !rig.host("target").exists());
        assert!(rig.about("targetAbc").iter().any(|line| line == "outcome remove ok"));
        // Larger directories are copied.
        rig.sh("rm -rf target; mkdir big; cd big; seq 65 | xargs touch").ok();
        let python =
            "import os\ntry: os.rename('big', 'target')\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(python).ok().trim(), "18");
        rig.sh("mv -T big target; test $(ls target | wc -l) = 65").ok();
        assert!(!rig.host("big").exists() && !rig.host("target").exists());
    });
}

#[test]
fn what_may_not_be_removed_does_not_become_scratch() {
    let denied = "[[rules]]\nid = \"kept\"\neffect = \"deny\"\noperations = [\"remove\"]\npaths = \
        [\"keep/**\"]\n[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"part/secret\"]\n";
    let fill = |ws: &std::path::Path| {
        for directory in ["keep", "part"] {
            fs::create_dir(ws.join(directory)).unwrap();
        }
        fs::write(ws.join("keep/f"), "f").unwrap();
        fs::write(ws.join("part/secret"), "s").unwrap();
        fs::write(ws.join("part/f"), "f").unwrap();
    };
    with(&policy(denied), fill, |rig| {
        let said = rig
            .python(
                "import os\nfor name in ('keep', 'part'):\n  try: os.rename(name, 'target')\n\
                 \x20 except OSError as e: print(e.errno)\n  else: print('done')",
            )
            .ok();
        assert_eq!(said.trim(), "13\n18");
        assert_eq!((rig.read("keep/f"), rig.read("part/secret")), ("f".into(), "s".into()));
        rig.sh("test ! -e target; mkdir target; test -z \"$(ls -A target)\"").ok();
    });
}

#[test]
fn a_scratch_directory_follows_a_rename_of_what_is_above() {
    scratch(|rig| {
        rig.sh(
            "mkdir -p a/b/target web/dist; echo x > a/b/target/f; echo d > web/dist/f; mv a c; \
             test \"$(cat c/b/target/f)\" = x; test ! -e a; ! rmdir c/b; ! rmdir c; \
             mv c/b/target c/b/node_modules; test \"$(cat c/b/node_modules/f)\" = x; \
             rm -r c; test ! -e c; ls",
        )
        .ok();
        rig.sh("mv web net; test \"$(cat net/dist/f)\" = d").ok();
    });
}

/// A directory that is not shown must not be moved out of the workspace with it.
#[test]
fn a_directory_with_a_hidden_one_of_a_scratch_name_does_not_become_scratch() {
    let fill = |ws: &std::path::Path| {
        fs::create_dir_all(ws.join("new/target")).unwrap();
        fs::write(ws.join("new/target/built"), "built").unwrap();
    };
    with(&policy(""), fill, |rig| {
        let python =
            "import os\ntry: os.rename('new', 'target')\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(python).ok().trim(), "18");
        assert_eq!(rig.read("new/target/built"), "built");
    });
}

/// Regression: a file that may be removed, but not listed or read, was removed with its directory
/// and was not in scratch.
#[test]
fn a_directory_with_a_hidden_file_does_not_become_scratch() {
    let hidden = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\noperations = [\"list\", \"read\"]\n\
        paths = [\"**/hidden\"]\n";
    let fill = |ws: &std::path::Path| {
        fs::create_dir_all(ws.join("new/d")).unwrap();
        for name in ["new/d/hidden", "new/d/f"] {
            fs::write(ws.join(name), "f").unwrap();
        }
    };
    with(&policy(hidden), fill, |rig| {
        let python =
            "import os\ntry: os.rename('new', 'target')\nexcept OSError as e: print(e.errno)";
        assert_eq!(rig.python(python).ok().trim(), "18");
        assert_eq!((rig.read("new/d/hidden"), rig.read("new/d/f")), ("f".into(), "f".into()));
    });
}

#[test]
fn there_is_a_bound() {
    with(
        &policy("maxSize = \"1MiB\"\n"),
        |_| {},
        |rig| {
            rig.sh("mkdir target; head -c 900000 /dev/zero > target/a").ok();
            rig.sh("head -c 900000 /dev/zero > target/b").fails("No space left");
            rig.sh("truncate -s 10M target/a").fails("No space left");
            rig.sh("truncate -s 900000 target/a; rm target/b; exec 3<> target/a; rm target/a; \
                ! head -c 900000 /dev/zero > target/b 2>/dev/null; exec 3>&-; \
                for t in $(seq 200); do rm -f target/b; \
                head -c 900000 /dev/zero > target/b 2>/dev/null && exit 0; sleep 0.3; done; exit 1")
                .ok();
            rig.sh("cd target; seq 300 | xargs touch").fails("No space left");
            assert!(rig.mount.scratch().unwrap().refused > 0);
            assert!(rig.mount.scratch().unwrap().bytes <= 1 << 20);
            rig.sh("rm -rf target; mkdir target; for t in $(seq 200); do \
                head -c 900000 /dev/zero > target/a 2>/dev/null && exit 0; sleep 0.3; done; exit 1")
                .ok();
        },
    );
}

/// The limit includes lists in the workspace, where the kernel cannot cache one: while a file
/// is new.
#[test]
fn lists_of_open_directories_have_a_bound() {
    let fill = |root: &Path| {
        fs::create_dir(root.join("many")).unwrap();
        for number in 0..500 {
            fs::write(root.join(format!("many/{number:0100}")), "").unwrap();
        }
    };
    let options = Options { lists: 1 << 20, ..Options::new(0, 0) };
    // The kernel reports the close of a directory after the program has continued.
    let script = "import os, time\nos.mkdir('target')\n\
        def count(place):\n  end = time.time() + 60\n  while True:\n    try: return len(os.listdir(place))\n    \
        except OSError:\n      if time.time() > end: raise\n      time.sleep(0.05)\n\
        for n in range(500): os.close(os.open('target/%0100d' % n, os.O_CREAT))\n\
        new = os.open('many/new', os.O_CREAT | os.O_WRONLY)\n\
        for place in ['target', 'many']:\n  lists = []\n  \
        try:\n    for n in range(30): lists.append(os.scandir(place)); next(lists[-1])\n  \
        except OSError as error: print(error.errno, 5 < n < 20)\n  \
        lists.clear()\n  print(count(place))";
    with_end(
        &policy(""),
        options,
        fill,
        |rig| {
            assert_eq!(rig.python(script).ok(), "12 True\n500\n12 True\n501\n");
        },
        |rig| {
            let records = rig.records();
            let mut bounds = records.iter().filter(|record| record["op"] == "limit");
            assert_eq!(bounds.next().unwrap()["facts"]["bound"], "listBytes");
        },
    );
}

#[test]
fn each_name_of_a_file_takes_space() {
    with(
        &policy("maxSize = \"1MiB\"\n"),
        |_| {},
        |rig| {
            let script =
                "mkdir target; echo >target/f; for i in $(seq 400); do ln target/f target/$i; done";
            rig.sh(script).fails("No space left");
            let numbers = rig.mount.scratch().unwrap();
            assert_eq!((numbers.bytes, numbers.entries), (1 << 20, 256));
            rig.sh("rm target/4; mv target/1 target/one; ln -f target/2 target/3; rm -r target")
                .ok();
            rig.comes_to_count(0, 0);
        },
    );
}

impl Rig<'_> {
    /// Waits until so much is counted in scratch: the kernel reports the last close of a file after
    /// the program has ended.
    #[track_caller]
    pub(crate) fn comes_to_count(&self, entries: u64, bytes: u64) {
        let counted = || {
            let numbers = self.mount.scratch().unwrap();
            (numbers.entries, numbers.bytes)
        };
        assert!(eventually(|| counted() == (entries, bytes)), "{:?}", counted());
    }
}

/// Such a file was counted for ever: its close is never reported.
#[test]
fn a_removed_file_that_is_open_at_the_end_is_not_counted_in_the_next_session() {
    let hold = "import os, time\nos.mkdir('target'); f = open('target/f', 'wb', 0); \
                f.write(bytes(1 << 20)); os.unlink('target/f'); print(flush=True); time.sleep(50)";
    let mut held = None;
    with_end(
        &policy(""),
        Options::new(0, 0),
        |_| {},
        |rig| {
            let mut command = rig.command("python3", &["-c", hold]);
            let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
            let mut line = [0];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            held = Some(child);
        },
        |rig| {
            let noted = fs::read_to_string(rig.beside("slot-0/usage"));
            assert!(noted.as_ref().map_or(true, |noted| noted == "4096 1\n"), "{noted:?}");
        },
    );
    let mut child = held.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Entries that a move into scratch had no room for were counted.
#[test]
fn what_finds_no_room_in_scratch_is_not_counted() {
    let fill = |ws: &Path| {
        fs::create_dir_all(ws.join("made/d")).unwrap();
        fs::write(ws.join("made/d/f"), vec![b'x'; 100_000]).unwrap();
    };
    with(&policy("maxSize = \"64KiB\"\n"), fill, |rig| {
        rig.sh("mv made target").fails("");
        rig.comes_to_count(0, 0);
        rig.sh("mkdir target; ! head -c 100000 /dev/zero >target/f; test -s target/f; rm target/f")
            .ok();
        rig.comes_to_count(1, 4096);
    });
}

/// Two programs that created, emptied and removed the same names caused wrong counts.
#[test]
fn what_many_programs_do_with_the_same_names_is_counted_right() {
    let script = "import os, threading\nos.mkdir('target')\n\
        def make(n):\n  \
          for i in range(300):\n    \
            try:\n      \
              f = os.open('target/%d' % (i % 3), os.O_RDWR | os.O_CREAT | (os.O_TRUNC if n % 2 else 0))\n      \
              os.write(f, bytes(10000 * (1 + i % 5)))\n      \
              if i % 2: os.unlink('target/%d' % (i % 3))\n      \
              os.ftruncate(f, 5000 * (i % 4)); os.close(f)\n    \
            except FileNotFoundError: os.close(f)\n\
        threads = [threading.Thread(target=make, args=(n,)) for n in range(6)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]\n\
        for name in os.listdir('target'): os.unlink('target/' + name)";
    scratch(|rig| {
        rig.python(script).ok();
        rig.comes_to_count(1, 4096);
    });
}
