//! Changes by programs.

use std::{fs, path::Path};

use portcullis_core::{Base, Client, ErrorKind, WriteOver};
use portcullis_policy::model::{WorkspacePath, request::Write};

use crate::rig::{ALL, Rig, with};

fn nothing(_: &Path) {}

fn file(root: &Path) {
    fs::write(root.join("file"), "one\ntwo\n").unwrap();
}

#[test]
fn files_are_stored_when_they_are_closed() {
    with(ALL, file, |rig| {
        rig.sh(
            "echo new >created; echo three >>file; : >empty; mkdir -p a/b/c; cp file a/b/c/copy",
        )
        .ok();
        assert_eq!(
            (rig.read("created"), rig.read("file")),
            ("new\n".to_owned(), "one\ntwo\nthree\n".to_owned())
        );
        assert_eq!((rig.read("empty"), rig.read("a/b/c/copy")), (String::new(), rig.read("file")));
        rig.python("open('once', 'w').write('text')").ok();
        assert_eq!(rig.about("once"), ["intent write -", "outcome write ok"]);
        // A shell closes a duplicate before the program begins, which stores an empty file.
        assert_eq!(rig.about("created").len(), 4);
        rig.sh("sed -i s/two/2/ file; mv file a/moved; dd if=/dev/zero of=zeros bs=64k count=40 status=none; truncate -s 5 created").ok();
        assert_eq!(rig.read("a/moved"), "one\n2\nthree\n");
        assert!(!rig.host("file").exists());
        assert_eq!(fs::read(rig.host("zeros")).unwrap(), vec![0; 64 * 1024 * 40]);
        assert_eq!(fs::read(rig.host("created")).unwrap(), b"new\n\0");
        rig.sh("rm created; rm -r a; rmdir empty 2>/dev/null || true; rm empty zeros once").ok();
        assert_eq!(fs::read_dir(rig.host(".")).unwrap().count(), 0);
        assert_eq!(rig.mount.numbers().refusals, 0);
    });
}

#[test]
fn what_may_not_be_written_is_not_opened() {
    let rule = "[[rules]]\nid = \"frozen\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"file\", \"new\"]\n";
    with(&format!("{ALL}{rule}"), file, |rig| {
        let script = "import os\nfor flags in [os.O_WRONLY | os.O_TRUNC, os.O_RDWR, os.O_WRONLY | os.O_APPEND]:\n  \
            try: os.open('file', flags)\n  except OSError as e: print(e.errno)\n\
            try: os.truncate('file', 0)\nexcept OSError as e: print(e.errno)\n\
            print(os.getxattr('file', 'user.portcullis.why').decode())";
        let said = rig.python(script).ok();
        assert!(said.starts_with("13\n13\n13\n13\n") && said.contains("`frozen`"), "{said}");
        assert_eq!(rig.read("file"), "one\ntwo\n");
        rig.sh(": >file").fails("ermission denied");
        rig.sh("echo x >new").fails("ermission denied");
        assert!(!rig.host("new").exists());
        assert_eq!(rig.about("new"), ["decision write denied"]);
        rig.sh("cat new").fails("No such file");
    });
}

/// A denial of content is known at the commit only.
#[test]
fn a_content_that_is_denied_fails_at_close_and_changes_nothing() {
    let limit = "[mount]\nmaxWriteSize = \"8B\"\n";
    with(&format!("{ALL}{limit}"), file, |rig| {
        let script = "import os\nf = os.open('file', os.O_WRONLY | os.O_TRUNC)\nos.write(f, b'more than 8')\n\
            try: os.close(f)\nexcept OSError as e: print(e.errno)\nprint(open('file').read())";
        assert_eq!(rig.python(script).ok(), "13\none\ntwo\n\n");
        // A handle whose version was refused is unusable; its close tells the refusal.
        let script = "import os\nf = os.open('file', os.O_RDWR)\nos.write(f, b'more than 8')\n\
            try: os.fsync(f)\nexcept OSError as e: print(e.errno)\n\
            try: os.write(f, b'more')\nexcept OSError as e: print(e.errno)\n\
            try: os.close(f)\nexcept OSError as e: print(e.errno)\nprint(open('file').read())";
        assert_eq!(rig.python(script).ok(), "13\n5\n13\none\ntwo\n\n");
        assert_eq!(rig.read("file"), "one\ntwo\n");
    });
}

#[test]
fn a_file_that_was_unlinked_after_its_close_is_still_read() {
    with(ALL, nothing, |rig| {
        let script = "import os\nf = os.open('new', os.O_WRONLY | os.O_CREAT)\nos.write(f, b'text')\nos.close(f)\n\
            f = os.open('new', os.O_RDONLY)\nos.unlink('new')\nprint(os.fstat(f).st_size, os.read(f, 9))";
        assert_eq!(rig.python(script).ok(), "4 b'text'\n");
    });
}

#[test]
fn a_descriptor_that_does_not_append_any_more_writes_where_it_says() {
    with(ALL, file, |rig| {
        let script = "import fcntl, os\nf = os.open('file', os.O_WRONLY | os.O_APPEND)\n\
            fcntl.fcntl(f, fcntl.F_SETFL, 0)\nos.pwrite(f, b'ONE', 0)\n\
            fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND)\nos.write(f, b'end')\nos.close(f)";
        rig.python(script).ok();
        assert_eq!(rig.read("file"), "ONE\ntwo\nend");
    });
}

#[test]
fn a_refused_rename_of_a_directory_removes_nothing() {
    let rule = "[[rules]]\nid = \"kept\"\neffect = \"deny\"\noperations = [\"remove\", \"rename\"]\npaths = [\"from\"]\n";
    with(&format!("{ALL}{rule}"), nothing, |rig| {
        rig.sh("mkdir from to other; echo x >other/f").ok();
        rig.sh("mv -T from to").fails("from");
        rig.sh("mv -T to other").fails("not empty");
        assert!(rig.host("from").exists() && rig.host("to").exists() && rig.host("other").exists());
    });
}

#[test]
fn writers_and_readers_share_one_version() {
    with(ALL, file, |rig| {
        let script = "import os\nw = os.open('file', os.O_WRONLY | os.O_APPEND)\nr = os.open('file', os.O_RDONLY)\n\
            print(os.read(r, 100))\nos.write(w, b'three\\n')\nprint(os.read(r, 100), os.fstat(r).st_size, os.stat('file').st_size)\n\
            print(open('file', 'rb').read())\nos.close(w)\nprint(os.pread(r, 100, 0))";
        assert_eq!(
            rig.python(script).ok(),
            "b'one\\ntwo\\n'\nb'three\\n' 14 14\nb'one\\ntwo\\nthree\\n'\nb'one\\ntwo\\nthree\\n'\n"
        );
        rig.sh("for i in 1 2; do (for n in $(seq 50); do echo $i-$n >>log; done) & done; wait; wc -l <log; sort -u log | wc -l").ok();
        assert_eq!(rig.read("log").lines().count(), 100);
    });
}

#[test]
fn two_processes_append_with_open_handles() {
    with(ALL, nothing, |rig| {
        let script = "import os, sys\nf = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)\nfor _ in range(2):\n  \
            if os.fork() == 0:\n    for n in range(200): os.write(f, b'%d %d\\n' % (os.getpid(), n))\n    os._exit(0)\n\
            os.wait(); os.wait(); os.close(f)";
        rig.python(script).ok();
        let lines = rig.read("log");
        let mut lines: Vec<_> = lines.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 400);
    });
}

#[test]
fn unlinked_and_renamed_files_stay_open() {
    with(ALL, file, |rig| {
        let script = "import os\nf = os.open('file', os.O_RDWR)\nos.unlink('file')\nprint(os.read(f, 100))\n\
            os.write(f, b'three')\nprint(os.fstat(f).st_size, os.pread(f, 100, 8))\nos.close(f)\n\
            f = os.open('temporary', os.O_RDWR | os.O_CREAT | os.O_EXCL)\nos.unlink('temporary')\nos.write(f, b'x')\n\
            print(os.pread(f, 10, 0), os.listdir('.'))\nos.close(f)";
        assert_eq!(rig.python(script).ok(), "b'one\\ntwo\\n'\n13 b'three'\nb'x' []\n");
        assert_eq!(fs::read_dir(rig.host(".")).unwrap().count(), 0);
        assert!(rig.about("temporary").is_empty());
        let script = "import os\na = os.open('a', os.O_RDWR | os.O_CREAT)\nos.write(a, b'a')\nb = os.open('b', os.O_RDWR | os.O_CREAT)\n\
            os.write(b, b'b')\nos.rename('a', 'b')\nprint(os.pread(a, 9, 0), os.pread(b, 9, 0), os.listdir('.'))\nos.write(a, b'!')\n\
            os.close(a)\nos.close(b)\nprint(open('b').read(), os.path.exists('a'))";
        assert_eq!(rig.python(script).ok(), "b'a' b'b' ['b']\na! False\n");
        assert_eq!(rig.read("b"), "a!");
    });
}

#[test]
fn a_directory_is_renamed_under_an_open_file() {
    with(ALL, nothing, |rig| {
        rig.sh("mkdir -p d/e; exec 3>d/e/f; echo 1 >&3; mv d g; echo 2 >&3; exec 3>&-; cat g/e/f")
            .ok();
        assert_eq!(rig.read("g/e/f"), "1\n2\n");
        assert!(!rig.host("d").exists());
    });
}

#[test]
fn a_duplicate_that_is_closed_commits_and_the_other_goes_on() {
    with(ALL, nothing, |rig| {
        rig.python("import os\nf = os.open('f', os.O_WRONLY | os.O_CREAT)\ng = os.dup(f)\nos.write(f, b'1')\nos.close(g)\n\
            ino = os.fstat(f).st_ino\nos.write(f, b'2')\nos.close(f)\nassert os.stat('f').st_ino == ino")
            .ok();
        assert_eq!(rig.read("f"), "12");
        assert_eq!(rig.about("f").len(), 4);
    });
}

#[test]
fn nothing_changed_is_nothing_recorded() {
    with(ALL, file, |rig| {
        rig.python(
            "import os\nf = os.open('file', os.O_RDWR)\nos.read(f, 10)\nos.fsync(f)\nos.close(f)",
        )
        .ok();
        assert_eq!(rig.about("file"), ["decision read ok"]);
    });
}

#[test]
fn directories_that_are_not_empty_stay() {
    with(ALL, file, |rig| {
        rig.sh("mkdir d; echo x >d/f; rmdir d").fails("not empty");
        rig.sh("mkdir d").fails("exists");
        rig.sh("exec 3>d/staged; rm d/f; rmdir d").fails("not empty");
        rig.sh("mkdir e f; mv -T e f; test -d f; test ! -e e; mv -T f d").fails("not empty");
        rig.sh("mv --no-copy -n file d/f; ls; set -C; echo y >file").fails("");
        assert_eq!(rig.read("file"), "one\ntwo\n");
    });
}

#[test]
fn a_rename_takes_the_place_of_an_empty_directory_and_of_a_link() {
    with(ALL, file, |rig| {
        rig.sh("mkdir -p old/a/b new; echo x >old/a/f; chmod 711 new; mv -T old new; cat new/a/f; test ! -e old").ok();
        assert_eq!(rig.read("new/a/f"), "x\n");
        // The replaced entry has a backup, and is an empty directory.
        let records = rig.records();
        let rename = records.iter().find(|r| r["op"] == "rename" && r["kind"] == "intent").unwrap();
        assert!(rename["backup"].is_string(), "{rename}");
        rig.sh("mkdir empty; exec 3>new/a/staged; mv -T empty new/a").fails("not empty");
        rig.sh("mkdir -p one two; mv -T one two; rmdir two").ok();
        // The usual way to replace a link in one step.
        rig.sh("ln -s file current; ln -s new/a/f next; mv -T next current; cat current").ok();
        assert_eq!(fs::read_link(rig.host("current")).unwrap(), Path::new("new/a/f"));
        rig.sh("cp file copy; mv copy current; test ! -L current").ok();
        assert_eq!(
            (rig.read("current"), rig.read("new/a/f")),
            (rig.read("file"), "x\n".to_owned())
        );
        // Nothing else remains.
        let names = fs::read_dir(rig.host(".")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["current", "empty", "file", "new"]);
    });
}

#[test]
fn shared_mappings_are_stored() {
    with(ALL, file, |rig| {
        let script = "import mmap, os\nf = os.open('file', os.O_RDWR)\nm = mmap.mmap(f, 0)\nm[0:3] = b'ONE'\nm.flush()\nm[4:7] = b'TWO'\n\
            os.close(f)\nm.close()\nprint(open('file').read())";
        assert_eq!(rig.python(script).ok(), "ONE\nTWO\n\n");
        assert_eq!(rig.read("file"), "ONE\nTWO\n");
    });
}

#[test]
fn sqlite_works_with_both_journals() {
    with(ALL, nothing, |rig| {
        for mode in ["delete", "wal"] {
            let script = format!(
                "import sqlite3\nfor n in range(3):\n  c = sqlite3.connect('{mode}.db')\n  c.execute('pragma journal_mode={mode}')\n  \
                 c.execute('create table if not exists t (a, b)')\n  \
                 for i in range(20):\n    c.execute('insert into t values (?, ?)', (n, i)); c.commit()\n  \
                 d = sqlite3.connect('{mode}.db')\n  assert d.execute('select count(*) from t').fetchone()[0] == 20 * (n + 1)\n  \
                 d.close()\n  c.close()\nprint(sqlite3.connect('{mode}.db').execute('pragma integrity_check').fetchall())"
            );
            assert_eq!(rig.python(&script).ok(), "[('ok',)]\n");
            let database = rig.host(&format!("{mode}.db"));
            let script = format!(
                "import sqlite3; print(sqlite3.connect('{}').execute('select count(*) from t').fetchone())",
                database.display()
            );
            assert_eq!(rig.python(&script).ok(), "(60,)\n");
        }
    });
}

#[test]
fn git_works_in_the_workspaces_repository() {
    let policy = format!("{ALL}[git]\nrepository = \"workspace\"\n");
    with(&policy, nothing, |rig| {
        let said = rig.sh("git init -q -b main . && git config user.name n && git config user.email n@example.org
            echo one >a; mkdir d; echo two >d/b; git add . && git commit -qm first
            git checkout -qb side; echo more >>a; git commit -qam second; git checkout -q main; echo x >c; git add c; git commit -qm third
            git merge -q -m merge side; git diff-files; git gc -q; git status --porcelain; git fsck; git clone -q . sub; git log --oneline | wc -l >count")
            .ok();
        // The index stays valid: no file is compared.
        assert_eq!(said, "");
        let root = rig.host(".");
        let host = |args: &[&str]| {
            let mut command = rig.command(
                "git",
                &[&["-C", root.to_str().unwrap(), "-c", "safe.directory=*"], args].concat(),
            );
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!(host(&["status", "--porcelain"]), "?? count\n?? sub/\n");
        assert_eq!((rig.read("count").trim(), rig.read("a")), ("4", "one\nmore\n".to_owned()));
    });
}

#[test]
fn archives_are_unpacked() {
    with(ALL, nothing, |rig| {
        rig.sh("mkdir src; for n in $(seq 60); do echo $n >src/$n; done; tar cf a.tar src; mkdir to; tar xf a.tar -C to --no-same-owner; diff -r src to/src").ok();
        assert_eq!(rig.read("to/src/60"), "60\n");
        rig.sh("rm -rf src to").ok();
        assert!(!rig.host("src").exists());
    });
}

#[test]
fn two_handles_see_one_another() {
    with(ALL, file, |rig| {
        let script = "import os\na = os.open('file', os.O_RDWR)\nb = os.open('file', os.O_RDWR)\nos.pwrite(a, b'A', 0)\n\
            print(os.pread(b, 3, 0))\nos.close(a)\nos.pwrite(b, b'B', 1)\nos.close(b)\nprint(open('file').read())\n\
            os.posix_fallocate(os.open('g', os.O_RDWR | os.O_CREAT), 0, 100)";
        assert_eq!(rig.python(script).ok(), "b'Ane'\nABe\ntwo\n\n");
        assert_eq!(rig.read("file"), "ABe\ntwo\n");
        assert_eq!(rig.read("g").len(), 100);
    });
}

#[test]
fn a_change_by_the_host_is_not_overwritten_unseen() {
    with(ALL, file, |rig| {
        let script = "import os, sys\nf = os.open('file', os.O_RDWR | os.O_APPEND)\nos.write(f, b'mine')\nprint('written', flush=True)\n\
            sys.stdin.readline()\ntry: os.close(f)\nexcept OSError as e: print(e.errno)";
        let mut child = rig
            .command("python3", &["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 8];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        fs::write(rig.host("file"), "of the host\n").unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "116\n");
        assert_eq!(rig.read("file"), "of the host\n");
    });
}

#[test]
fn a_rule_that_asks_refuses_at_once() {
    let rule = "[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\", \"remove\"]\n\
        paths = [\"file\", \"new\"]\n";
    with(&format!("{ALL}{rule}"), file, |rig| {
        rig.sh("cp file file.txt").ok();
        for script in ["cat file.txt >file", "cat file.txt >new", "rm -f file"] {
            rig.sh(&format!("timeout 60 sh -c '{script}'")).fails("ermission denied");
        }
        assert_eq!(rig.read("file"), "one\ntwo\n");
        let asked = |op: &str| [format!("decision {op} -"), format!("decision {op} denied")];
        let all = [&["decision read ok".to_owned()], &asked("write")[..], &asked("remove")];
        assert_eq!(rig.about("file"), all.concat());
        assert_eq!(rig.about("new"), asked("write"));
    });
}

#[test]
fn names_that_are_no_text_are_refused() {
    with(ALL, nothing, |rig| {
        rig.python("import os; os.open(b'\\xff', os.O_CREAT | os.O_RDWR)").fails("Errno 84");
        rig.python("import os; os.mkdir(b'\\xff')").fails("Errno 84");
        rig.python("import os; os.stat(b'\\xff')").fails("Errno 2]");
        rig.python("import os; os.mkdir('x' * 256)").fails("Errno 36");
        assert!(rig.records().iter().all(|record| record["kind"] != "intent"));
    });
}

/// Has a program with two handles of `path` write by the first, the host replace the file, and the
/// program look and close both.
fn replaced_while_open(rig: &Rig, path: &str, replace: impl Fn()) -> String {
    let script = "import os, sys, time\npath = sys.argv[1]\nf = os.open(path, os.O_RDWR)\n\
        g = os.open(path, os.O_RDWR)\nos.write(f, b'mine')\nprint('written', flush=True)\n\
        sys.stdin.readline()\ntime.sleep(1.1)\nprint(open(path).read())\n\
        for each in f, g:\n  try: os.close(each)\n  except OSError as e: print(e.errno)\n\
        print(open(path).read())";
    let mut command = rig.command("python3", &["-c", script, path]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 8]).unwrap();
    replace();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_version_that_the_host_replaced_is_not_stored() {
    with(ALL, file, |rig| {
        let said = replaced_while_open(rig, "file", || {
            fs::write(rig.host("other"), "replaced\n").unwrap();
            fs::rename(rig.host("other"), rig.host("file")).unwrap();
        });
        assert_eq!(said, "replaced\n\n116\n116\nreplaced\n\n");
        assert_eq!(rig.read("file"), "replaced\n");
        // There was no record of it.
        let records = rig.about("file");
        assert!(records.contains(&"decision write conflict".to_owned()), "{records:?}");
    });
}

#[test]
fn a_write_in_a_directory_that_the_host_replaced_left_no_record() {
    let fill = |root: &std::path::Path| {
        for (directory, text) in [("d", "one\n"), ("other", "replaced\n")] {
            fs::create_dir(root.join(directory)).unwrap();
            fs::write(root.join(directory).join("file"), text).unwrap();
        }
    };
    with(ALL, fill, |rig| {
        let said = replaced_while_open(rig, "d/file", || {
            fs::rename(rig.host("d"), rig.host("away")).unwrap();
            fs::rename(rig.host("other"), rig.host("d")).unwrap();
        });
        assert_eq!(said, "replaced\n\n116\n116\nreplaced\n\n");
        let records = rig.about("d/file");
        assert!(records.contains(&"decision write conflict".to_owned()), "{records:?}");
    });
}

/// The version used to be compared first and the file stored afterwards: a change by
/// another gateway in between was lost.
#[test]
fn of_two_that_append_to_a_file_at_once_neither_loses_anything() {
    const ROUNDS: usize = 100;
    with(
        ALL,
        |root| fs::write(root.join("log"), "").unwrap(),
        |rig| {
            let script = format!(
                "import errno\nn = 0\nwhile n < {ROUNDS}:\n  try:\n    with open('log', 'ab', 0) as f: f.write(b'p')\n    \
             n += 1\n  except OSError as e: assert e.errno == errno.ESTALE, e"
            );
            let mut program = rig.command("python3", &["-c", &script]).spawn().unwrap();
            let path = WorkspacePath::parse("log").unwrap();
            let (view, mut appended) = (rig.gateway.mount_view(rig.session()), 0);
            let version = || view.lookup(&path).unwrap().unwrap().stat.version();
            while appended < ROUNDS {
                let (base, mut content) = (version(), rig.read("log").into_bytes());
                if version() != base {
                    continue;
                }
                content.push(b'g');
                let write = Write { path: path.clone(), content, mode: None };
                let request = WriteOver { write, base: Base::Version(base), modified: None };
                match rig.gateway.handle(rig.session(), &request, Client::default()) {
                    Ok(_) => appended += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                }
            }
            assert!(program.wait().unwrap().success());
            let log = rig.read("log");
            let count = |wanted: char| log.chars().filter(|each| *each == wanted).count();
            assert_eq!((count('p'), count('g')), (ROUNDS, ROUNDS));
        },
    );
}

/// The empty file was stored and recorded again.
#[test]
fn an_empty_file_is_not_emptied_again() {
    with(ALL, nothing, |rig| {
        rig.python("import os\nopen('empty', 'w').close()\nos.truncate('empty', 0)").ok();
        assert_eq!(rig.about("empty"), ["intent write -", "outcome write ok"]);
    });
}
