//! Policy reloads while programs have files open.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use portcullis_policy::{PolicySource, compile};

use crate::rig::{ALL, Rig, eventually, with};

fn files(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    for name in ["a", "b", "d/f"] {
        fs::write(root.join(name), vec![b'x'; 100_000]).unwrap();
    }
}

/// Loads a policy that adds `rule`.
fn reload(rig: &Rig<'_>, rule: &str) {
    reload_as(rig, 2, rule);
}

fn reload_as(rig: &Rig<'_>, version: u32, rule: &str) {
    let text = format!("{}{rule}", ALL.replace("version = 1", &format!("version = {version}")));
    let policy = compile(&PolicySource::from_text("test.toml", &text)).unwrap();
    rig.gateway.reload(rig.session(), policy, "test").unwrap().unwrap();
}

/// A Python program that prints `ready`, waits for a line, and continues.
struct Waiting(Child, BufReader<std::process::ChildStdout>);

impl Waiting {
    fn start(rig: &Rig<'_>, before: &str, after: &str) -> Self {
        let script = format!(
            "import os, sys, mmap\n{before}\nprint('ready', flush=True)\nsys.stdin.readline()\n{after}"
        );
        let mut command = rig.command("python3", &["-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, output)
    }

    fn go_on(mut self) -> String {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut output = String::new();
        std::io::Read::read_to_string(&mut self.1, &mut output).unwrap();
        output.push_str(&self.0.wait().unwrap().to_string());
        output
    }
}

const NO_A: &str =
    "[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"a\"]\n";

#[test]
fn an_open_handle_is_decided_again() {
    with(ALL, files, |rig| {
        let waiting = Waiting::start(
            rig,
            "a = os.open('a', os.O_RDONLY)\nb = os.open('b', os.O_RDONLY)\nos.read(a, 1000), os.read(b, 1000)",
            "try: os.pread(a, 1000, 0)\nexcept OSError as e: print(e.errno)\n\
             print(len(os.pread(b, 1000, 0)))\n\
             try: open('a')\nexcept OSError as e: print(e.errno)",
        );
        reload(rig, NO_A);
        assert_eq!(waiting.go_on(), "13\n1000\n13\nexit status: 0");
    });
}

#[test]
fn a_mapping_gives_nothing_more() {
    with(ALL, files, |rig| {
        let waiting = Waiting::start(
            rig,
            "f = os.open('a', os.O_RDONLY)\nm = mmap.mmap(f, 0, prot=mmap.PROT_READ)\nm[0:100000]",
            "print(m[50000])",
        );
        reload(rig, NO_A);
        assert_eq!(waiting.go_on(), "signal: 7 (SIGBUS)");
    });
}

/// Runs programs in the background, some of which wait for a request in a directory.
const LOAD: &str = "import os, threading, time
end = time.time() + 2
def write(n):
    while time.time() < end:
        with open('load/%d' % n, 'wb') as f: f.write(bytes(1 << 18))
        os.rename('load/%d' % n, 'load/r%d' % n)
threads = [threading.Thread(target=write, args=(n,)) for n in range(15)]
for t in threads: t.start()
for t in threads: t.join()";

#[test]
fn a_reload_under_load_is_in_force_when_it_returns() {
    let many = |root: &Path| {
        files(root);
        fs::create_dir(root.join("load")).unwrap();
        fs::create_dir(root.join("many")).unwrap();
        for number in 0..500 {
            fs::write(root.join(format!("many/{number}")), "x").unwrap();
        }
    };
    let rule =
        "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"a\", \"d/**\", \"d\", \"many/7\"]\n";
    with(ALL, many, |rig| {
        rig.sh("cat d/f many/* >/dev/null; stat many/* >/dev/null").ok();
        let mapped = Waiting::start(
            rig,
            "f = os.open('a', os.O_RDONLY)\nm = mmap.mmap(f, 0, prot=mmap.PROT_READ)\nm[0:100000]",
            "print(m[50000])",
        );
        let named = Waiting::start(
            rig,
            "os.stat('d/f'); os.stat('many/7')",
            "print(os.path.exists('d/f'), os.path.exists('many/7'), os.path.exists('b'))",
        );
        let mut load = rig.command("python3", &["-c", LOAD]).spawn().unwrap();
        assert!(eventually(|| fs::read_dir(rig.host("load")).unwrap().next().is_some()));
        thread::sleep(Duration::from_millis(500));
        let begun = std::time::Instant::now();
        reload(rig, rule);
        let took = begun.elapsed();
        eprintln!("a reload under load took {took:?}");
        assert_eq!(named.go_on(), "False False True\nexit status: 0");
        assert_eq!(mapped.go_on(), "signal: 7 (SIGBUS)");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(load.wait().unwrap().success());
    });
}

#[test]
fn what_is_hidden_now_is_gone() {
    let fill = |root: &Path| {
        files(root);
        for name in ["d/w", "d/p"] {
            fs::write(root.join(name), "old").unwrap();
        }
    };
    let before = "os.chdir('d')\nd = os.open('.', os.O_RDONLY)\np = os.open('p', os.O_PATH)\n\
        f = os.open('f', os.O_RDONLY)\nw = os.open('w', os.O_WRONLY)\n\
        m = mmap.mmap(f, 0, prot=mmap.PROT_READ)\nos.read(f, 1000), m[0:100000]";
    let after = r"
path = '/proc/self/fd/%d' % p
for name, call in [
    ('pread', lambda: os.pread(f, 1000, 0)), ('write', lambda: os.write(w, b'evil')),
    ('close', lambda: os.close(w)), ('fstat', lambda: os.fstat(f).st_size),
    ('stat O_PATH', lambda: os.stat(path)), ('open O_PATH', lambda: open(path)),
    ('open', lambda: open('f')), ('openat', lambda: os.open('f', os.O_RDONLY, dir_fd=d)),
    ('list cwd', lambda: os.listdir('.')), ('list', lambda: os.listdir(d)),
    ('mkdir', lambda: os.mkdir('new')),
]:
    try: print(name, call(), flush=True)
    except OSError as e: print(name, e.errno, flush=True)
print(m[50000])";
    let rule = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"d/**\", \"d\"]\n";
    with(ALL, fill, |rig| {
        rig.sh("cat d/f >/dev/null; ls d").ok();
        let waiting = Waiting::start(rig, before, after);
        reload(rig, rule);
        rig.sh("stat d").fails("No such file");
        rig.sh("cat d/f").fails("No such file");
        let said = waiting.go_on();
        // 116 is `ESTALE`: the directory's name is gone. An open file has its last known size.
        let expected = [
            "pread 5",
            "write 116",
            "close None",
            "fstat 100000",
            "stat O_PATH 116",
            "open O_PATH 116",
            "open 116",
            "openat 116",
            "list cwd 116",
            "list 116",
            "mkdir 116",
            "signal: 7 (SIGBUS)",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        assert_eq!(rig.read("d/w"), "old");
    });
}

#[test]
fn what_is_staged_is_decided_under_the_policy_of_the_commit() {
    let rule = "[[rules]]\nid = \"frozen\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"a\", \"new\"]\n";
    with(ALL, files, |rig| {
        let waiting = Waiting::start(
            rig,
            "a = os.open('a', os.O_WRONLY | os.O_TRUNC)\nos.write(a, b'evil')\nn = os.open('new', os.O_WRONLY | os.O_CREAT)\nos.write(n, b'evil')",
            "for f in [a, n]:\n  try: os.close(f)\n  except OSError as e: print(e.errno)\nprint(os.path.exists('new'), os.stat('a').st_size)",
        );
        reload(rig, rule);
        assert_eq!(waiting.go_on(), "13\n13\nFalse 100000\nexit status: 0");
        assert_eq!((rig.read("a").len(), rig.host("new").exists()), (100_000, false));
    });
}

const HIDES: &str = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"a\", \"b\", \"new\"]\n";

/// The error was that another program had replaced the file, and there was no record.
#[test]
fn what_was_written_to_a_file_that_is_hidden_now_is_denied_on_record() {
    with(ALL, files, |rig| {
        let waiting = Waiting::start(
            rig,
            "a = os.open('a', os.O_WRONLY)\nos.write(a, b'evil')\nb = os.open('b', os.O_WRONLY)",
            "for call in [lambda: os.fsync(a), lambda: os.write(b, b'evil')]:\n  try: print(call())\n  \
             except OSError as e: print(e.errno)\n\
             print(['rule `no`' in str(os.getxattr(f, 'user.portcullis.why')) for f in [a, b]])\n\
             print(os.getxattr(a, 'user.portcullis.why').decode())",
        );
        reload(rig, HIDES);
        // The file is hidden from lookups.
        rig.sh("stat a b").fails("No such file");
        let said = waiting.go_on();
        assert!(said.starts_with("13\n13\n") && !said.contains("another program"), "{said}");
        for (name, times) in [("a", 1), ("b", 1)] {
            let mut denied = rig.records();
            denied.retain(|r| r["path"] == name && r["op"] == "write" && r["decision"] == "deny");
            assert_eq!(denied.len(), times, "{name}: {denied:?}");
            assert_eq!(denied[0]["rule"], "no");
            assert_eq!(rig.read(name).len(), 100_000);
        }
    });
}

/// The content was lost, although the file was not replaced.
#[test]
fn what_was_written_to_a_file_that_was_hidden_for_a_while_is_stored() {
    with(ALL, files, |rig| {
        let waiting = Waiting::start(
            rig,
            "a = os.open('a', os.O_WRONLY | os.O_TRUNC)\nos.write(a, b'good')",
            "os.close(a)",
        );
        reload(rig, HIDES);
        rig.sh("stat a").fails("No such file");
        reload_as(rig, 3, "");
        assert_eq!(waiting.go_on(), "exit status: 0");
        assert_eq!(rig.read("a"), "good");
    });
}

/// Such content is read again like content shown under the former policy.
#[test]
fn what_is_open_to_be_written_is_read_again_under_another_policy() {
    let secret = |root: &Path| {
        for name in ["clean", "dirty"] {
            fs::write(root.join(name), "key = tok_abcdefgh\n").unwrap();
        }
    };
    let rule = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                keywords = [\"tok_\"]\n";
    with(ALL, secret, |rig| {
        let waiting = Waiting::start(
            rig,
            "c = os.open('clean', os.O_RDWR)\nd = os.open('dirty', os.O_RDWR)\nos.pwrite(d, b'KEY', 0)",
            "for f in [c, d]:\n  try: print('tok_' in os.pread(f, 100, 0).decode())\n  except OSError as e: print(e.errno)\n\
             for n in ['clean', 'dirty']:\n  try: print('tok_' in open(n).read())\n  except OSError as e: print(e.errno)",
        );
        reload(rig, rule);
        let said = waiting.go_on();
        assert!(!said.contains("True"), "{said}");
        assert_eq!(said.lines().count(), 5, "{said}");
    });
}

/// Placeholders of secrets depend on the path.
#[test]
fn a_file_in_a_renamed_directory_is_read_again() {
    let secret = |root: &Path| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "one\nkey = tok_abcdefgh\n").unwrap();
    };
    let rule = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                keywords = [\"tok_\"]\n";
    with(&format!("{ALL}{rule}"), secret, |rig| {
        rig.sh("sleep 0.1; cat d/f >/dev/null; cat d/f >/dev/null; mv d e").ok();
        let edit = "text = open('e/f').read()\n\
                    with open('e/f', 'w') as f: f.write(text.replace('one', 'ONE'))";
        rig.python(edit).ok();
        assert_eq!(rig.read("e/f"), "ONE\nkey = tok_abcdefgh\n");
        let records = rig.about("e/f");
        assert!(records.iter().any(|record| record.starts_with("decision read")), "{records:?}");
    });
}

/// The first close in a shell's redirection must not store an empty file.
#[test]
fn a_redacted_file_is_replaced_by_a_redirection() {
    let secret = |root: &Path| fs::write(root.join("f"), "key = tok_abcdefgh\n").unwrap();
    let rule = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                keywords = [\"tok_\"]\n";
    with(&format!("{ALL}{rule}"), secret, |rig| {
        rig.sh("text=$(cat f); echo \"$text\" >f").ok();
        assert_eq!(rig.read("f"), "key = tok_abcdefgh\n");
    });
}

/// Editors write another file and rename it over the first. A placeholder is valid for the path of
/// its file only, so neither a placeholder nor a guess of one is stored there.
#[test]
fn a_redacted_file_is_not_replaced_by_a_renamed_copy() {
    let secret = |root: &Path| {
        fs::write(root.join("f"), "key = tok_abcdefgh\n").unwrap();
        fs::write(root.join("plain"), "plain\n").unwrap();
    };
    let rule = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                keywords = [\"tok_\"]\n";
    with(&format!("{ALL}{rule}"), secret, |rig| {
        let script = "import os\ntext = open('f').read()\n\
             def store(path, text):\n  f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n  os.write(f, text.encode())\n\
             \x20 try: os.close(f)\n  except OSError as e: print(e.errno, os.path.exists(path))\n\
             store('f.new', '# comment\\n' + text)\n\
             f = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(f, text.encode())\n\
             try: os.link('/proc/self/fd/%d' % f, 'g', src_dir_fd=0)\nexcept OSError as e: print(e.errno)\n\
             store('f', '# comment\\n' + text)";
        assert_eq!(rig.python(script).ok(), "13 False\n13\n");
        assert_eq!(rig.read("f"), "# comment\nkey = tok_abcdefgh\n");
        assert!(!rig.host("f.new").exists() && !rig.host("g").exists());
        for name in ["f.new", "g"] {
            let records = rig.records();
            let denied = records.iter().find(|record| record["path"] == *name).unwrap();
            assert_eq!(denied["result"], "denied", "{denied}");
            assert_eq!(denied["rule"], "secrets.placeholder", "{denied}");
        }
        // A file without secrets is what it was before.
        rig.sh("sed -i s/plain/changed/ plain").ok();
        assert_eq!(rig.read("plain"), "changed\n");
    });
}
