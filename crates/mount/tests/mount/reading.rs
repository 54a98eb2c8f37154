//! The workspace as programs see it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use portcullis_mount::Options;
use serde_json::Value;

use crate::rig::{ALL, Rig, eventually, with, with_end, with_options};

const HIDDEN: &str = "[[rules]]\nid = \"keys\"\neffect = \"deny\"\n\
    operations = [\"read\", \"write\", \"list\", \"stat\", \"remove\", \"rename\"]\n\
    paths = [\"secret/**\", \"**/*.key\"]\n";

pub(crate) const SECRETS: &str = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"token\"\n\
    regex = '\\btok_[0-9a-z]{8}\\b'\nkeywords = [\"tok_\"]\n";

fn tree(root: &Path) {
    fs::create_dir_all(root.join("src/deep")).unwrap();
    fs::write(root.join("README"), "hello\n").unwrap();
    fs::write(root.join("src/main.rs"), "fn main() {}\n").unwrap();
    fs::write(root.join("src/deep/run.sh"), "#!/bin/sh\necho ran \"$@\"\n").unwrap();
    fs::set_permissions(root.join("src/deep/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.join("secret")).unwrap();
    fs::write(root.join("secret/a.txt"), "hidden\n").unwrap();
    fs::write(root.join("src/my.key"), "hidden\n").unwrap();
    symlink("src/main.rs", root.join("link")).unwrap();
    symlink("/etc/passwd", root.join("out")).unwrap();
    symlink("secret/a.txt", root.join("to-hidden")).unwrap();
}

#[test]
fn programs_read_what_is_there() {
    with(ALL, tree, |rig| {
        assert_eq!(
            rig.sh("cat README src/main.rs link").ok(),
            "hello\nfn main() {}\nfn main() {}\n"
        );
        assert_eq!(rig.sh("src/deep/run.sh a b").ok(), "ran a b\n");
        let list = rig.sh("find . -type f | LC_ALL=C sort").ok();
        assert_eq!(
            list,
            "./README\n./secret/a.txt\n./src/deep/run.sh\n./src/main.rs\n./src/my.key\n"
        );
        assert_eq!(rig.sh("ls -a src").ok(), ".\n..\ndeep\nmain.rs\nmy.key\n");
        let stat = rig.sh("stat -c '%F %a %s %h %u %g' README src src/deep/run.sh link").ok();
        assert_eq!(
            stat,
            "regular file 644 6 1 0 0\ndirectory 755 4096 2 0 0\nregular file 755 24 1 0 0\n\
             symbolic link 777 11 1 0 0\n"
        );
        assert_eq!(rig.sh("readlink link").ok(), "src/main.rs\n");
        rig.sh("cat out").fails("");
        rig.sh("cat missing").fails("No such file");
        assert!(rig.sh("df . | tail -1").ok().contains("portcullis"));
        let copied = rig.sh("cmp src/main.rs link && tar c . | tar t | wc -l").ok();
        assert_eq!(copied, "11\n", "all but the link that leads out");
    });
}

#[test]
fn what_is_hidden_is_missing() {
    with(&format!("{ALL}{HIDDEN}"), tree, |rig| {
        assert_eq!(rig.sh("ls").ok(), "README\nlink\nout\nsrc\nto-hidden\n");
        assert_eq!(rig.sh("ls src").ok(), "deep\nmain.rs\n");
        for path in ["secret", "secret/a.txt", "src/my.key", "src/other.key"] {
            let say = |program: &str| rig.sh(&format!("{program} {path}")).fails("").stderr;
            assert!(say("stat").contains("No such file or directory"), "{path}");
            assert!(say("cat").contains("No such file or directory"), "{path}");
        }
        rig.sh("cat to-hidden").fails("No such file");
        for path in ["secret", "src/my.key", "src/other.key"] {
            rig.sh(&format!("echo x >{path}")).fails("ermission denied");
            rig.sh(&format!("mv README {path}")).fails("ermission denied");
            rig.sh(&format!("mkdir {path}")).fails("ermission denied");
        }
        assert_eq!(
            (rig.read("src/my.key"), rig.read("secret/a.txt")),
            ("hidden\n".to_owned(), "hidden\n".to_owned())
        );
        assert!(!rig.host("src/other.key").exists());
    });
}

#[test]
fn what_leads_to_something_allowed_is_passed() {
    let policy = "schema = 1\n[allowedPaths]\nread = [\"a/b/**\"]\nlist = [\"a/b/**\"]\n";
    let fill = |root: &Path| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("other")).unwrap();
        fs::write(root.join("a/b/f"), "text").unwrap();
        fs::write(root.join("a/no"), "text").unwrap();
    };
    with(policy, fill, |rig| {
        assert_eq!(rig.sh("ls; ls a; cat a/b/f; stat -c %a a").ok(), "a\nb\ntext333\n");
        rig.sh("cat a/no").fails("No such file");
        rig.sh("cat other").fails("No such file");
    });
}

/// The kernel denied it by the mode of the directory, without a record.
#[test]
fn nothing_was_made_in_a_directory_that_is_only_passed() {
    let policy = "schema = 1\n[allowedPaths]\nread = [\"a/*\"]\nlist = [\"a/*\"]\n\
                  write = [\"a/*.md\"]\nremove = [\"a/*\"]\n";
    let fill = |root: &Path| {
        fs::create_dir(root.join("a")).unwrap();
        fs::write(root.join("a/old"), "text").unwrap();
    };
    with(policy, fill, |rig| {
        rig.sh("echo x >a/new.md && rm a/old && mv a/new.md a/moved.md && cat a/moved.md").ok();
        assert_eq!((rig.read("a/moved.md").as_str(), rig.host("a/old").exists()), ("x\n", false));
        rig.sh("echo x >a/new").fails("ermission denied");
        assert_eq!(rig.about("a/new"), ["decision write denied"]);
    });
}

#[test]
fn an_open_is_recorded_once_for_each_version() {
    with(ALL, tree, |rig| {
        // Old enough for its version to be trusted.
        rig.sh("sleep 0.1").ok();
        for _ in 0..3 {
            assert_eq!(rig.sh("cat README").ok(), "hello\n");
        }
        assert_eq!(rig.about("README"), ["decision read ok"]);
        let numbers = rig.mount.numbers();
        assert_eq!((numbers.opens, numbers.repeats), (1, 2));
        let records = rig.records();
        let record = records.iter().find(|record| record["path"] == "README").unwrap();
        assert_eq!((&record["transport"], &record["agent"]), (&"mount".into(), &"tester".into()));
        let process = &record["facts"]["process"];
        assert_eq!(process["program"], "cat");
        let hash = rig.sh("sha256sum README").ok();
        assert!(record.to_string().contains(hash.split(' ').next().unwrap()), "{record}");
        fs::write(rig.host("README"), "later\n").unwrap();
        rig.sh("sleep 1.2").ok();
        assert_eq!(rig.sh("cat README").ok(), "later\n");
        assert_eq!(rig.about("README").len(), 2);
    });
}

/// A record does not wait long for the arguments, so that a busy machine leaves some out.
#[test]
fn the_arguments_of_a_program_are_recorded() {
    with(ALL, tree, |rig| {
        let mut number = 0;
        let recorded = || {
            number += 1;
            let name = format!("file{number}");
            fs::write(rig.host(&name), "text").unwrap();
            rig.sh(&format!("cat {name}")).ok();
            let records = rig.records();
            let record = records.iter().find(|record| record["path"] == *name).unwrap();
            let arguments = &record["facts"]["process"]["arguments"];
            assert!(
                arguments.is_null() || *arguments == serde_json::json!(["cat", name]),
                "{record}"
            );
            !arguments.is_null()
        };
        assert!(eventually(recorded));
    });
}

/// Returns the facts of the records of repeats: all opens and denials, and those of
/// each path.
fn repeats(rig: &Rig<'_>) -> Vec<(u64, u64, Vec<String>)> {
    let records = rig.records();
    let facts = records.iter().filter(|record| record["op"] == "repeats").map(|r| &r["facts"]);
    let line = |path: &Value| {
        format!("{} {} {}", path["path"].as_str().unwrap(), path["opens"], path["denials"])
    };
    let paths = |facts: &Value| facts["paths"].as_array().unwrap().iter().map(line).collect();
    facts
        .map(|f| (f["opens"].as_u64().unwrap(), f["denials"].as_u64().unwrap(), paths(f)))
        .collect()
}

const NO_SRC: &str =
    "[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"src/**\"]\n";

#[test]
fn repeats_are_written_to_the_log_once_in_an_interval() {
    let options = Options { repeats: Duration::from_millis(500), ..Options::new(0, 0) };
    with_options(&format!("{ALL}{NO_SRC}"), options, tree, |rig| {
        rig.sh("sleep 0.1").ok();
        rig.sh("for i in 1 2 3; do cat README link; done").fails("Permission denied");
        rig.sh("for i in 1 2 3; do cat README >/dev/null; cat src/main.rs || true; done").ok();
        assert_eq!(rig.about("src/main.rs"), ["decision read denied"]);
        let sums = || {
            let found = repeats(rig);
            (found.iter().map(|one| one.0).sum::<u64>(), found.iter().map(|one| one.1).sum::<u64>())
        };
        assert!(eventually(|| sums() == (3, 3)), "{:?}", repeats(rig));
        let found = repeats(rig);
        // Without further opens there is no further record.
        thread::sleep(Duration::from_millis(600));
        assert_eq!(repeats(rig), found);
    });
}

#[test]
fn repeats_are_written_to_the_log_when_the_mount_ends() {
    with_end(
        &format!("{ALL}{NO_SRC}"),
        Options::new(0, 0),
        tree,
        |rig| {
            rig.sh("sleep 0.1; for i in 1 2 3 4; do cat README; done >/dev/null").ok();
            rig.sh("for i in 1 2 3; do cat src/main.rs || true; done").ok();
            assert_eq!(repeats(rig), []);
        },
        |rig| {
            let paths = vec!["README 3 0".to_owned(), "src/main.rs 0 2".to_owned()];
            assert_eq!(repeats(rig), [(3, 2, paths)]);
        },
    );
}

#[test]
fn each_open_is_recorded_where_that_is_chosen() {
    let options = Options { records_each_open: true, ..Options::new(0, 0) };
    with_options(&format!("{ALL}{NO_SRC}"), options, tree, |rig| {
        rig.sh("sleep 0.1; for i in 1 2 3; do cat README; cat src/main.rs || true; done").ok();
        assert_eq!(rig.about("README"), ["decision read ok"; 3]);
        assert_eq!(rig.about("src/main.rs"), ["decision read denied"; 3]);
        assert_eq!(rig.mount.numbers().repeats, 0);
    });
}

/// Each denial counts towards a limit of the session, and a verifier can count them.
#[test]
fn denials_that_are_limited_are_recorded_each() {
    let limit = "[mount]\ndenials = 3\n";
    with(&format!("{ALL}{NO_SRC}{limit}"), tree, |rig| {
        rig.sh("sleep 0.1; for i in 1 2 3; do cat src/main.rs || true; done").ok();
        assert_eq!(rig.about("src/main.rs"), ["decision read denied"; 3]);
        rig.sh("cat README").fails("No such file");
    });
}

#[test]
fn a_denied_read_is_eacces_and_recorded() {
    let rule = "[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"src/**\"]\n";
    with(&format!("{ALL}{rule}"), tree, |rig| {
        rig.sh("cat src/main.rs").fails("Permission denied");
        assert_eq!(rig.about("src/main.rs"), ["decision read denied"]);
        assert_eq!(rig.sh("stat -c %s src/main.rs").ok(), "13\n");
        let reason =
            rig.python("import os; print(os.getxattr('src/main.rs', 'user.portcullis.why'))");
        assert!(reason.ok().contains("denied by rule `no`"));
    });
}

#[test]
fn secrets_are_replaced_and_the_size_is_that_of_the_view() {
    let fill = |root: &Path| fs::write(root.join("app.conf"), "a = tok_a1b2c3d4\nb = 1\n").unwrap();
    with(&format!("{ALL}{SECRETS}"), fill, |rig| {
        let seen = rig.sh("cat app.conf").ok();
        assert!(!seen.contains("tok_a1b2") && seen.ends_with("\nb = 1\n"), "{seen}");
        let size = rig.sh("stat -c %s app.conf").ok();
        assert_eq!(size.trim(), seen.len().to_string());
        assert_eq!(rig.sh("wc -c <app.conf").ok().trim(), seen.len().to_string());
        // The secret is preserved when the file is written back.
        rig.sh("sed -i 's/b = 1/b = 2/' app.conf").fails("");
        rig.python("f = open('app.conf', 'r+'); s = f.read(); f.seek(0); f.write(s.replace('b = 1', 'b = 2')); f.close()").ok();
        assert_eq!(rig.read("app.conf"), "a = tok_a1b2c3d4\nb = 2\n");
    });
}

#[test]
fn a_file_that_the_host_replaces_is_seen_within_a_second() {
    with(ALL, tree, |rig| {
        let script = "exec 3<README; head -c 3 <&3; read go; sleep 1.1; cat <&3; cat README";
        let mut command = rig.command("sh", &["-ec", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut begin = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
        assert_eq!(begin, *b"hel");
        fs::write(rig.host("new"), "another, longer text\n").unwrap();
        fs::rename(rig.host("new"), rig.host("README")).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "lo\nanother, longer text\n");
    });
}

/// Texts of changing length; none begins with another.
const TEXTS: [&str; 4] = [
    "first END\n",
    "the second one, which is much longer END\n",
    "3 END\n",
    "the fourth one END\n",
];

/// The number of reads: an invalidation beside one of them cut it, which was rare.
const ROUNDS: usize = 200;

/// Opens and reads a file that the host overwrites in between: before the open, which follows a
/// stat(2), or after it.
const READER: &str = r#"
import os, sys
mode, when = getattr(os, sys.argv[1]), sys.argv[2]
def change():
    print("ready", flush=True)
    sys.stdin.readline()
for _ in range(ROUNDS):
    os.stat("README")
    if when == "before": change()
    file = os.open("README", mode)
    if when == "after": change()
    text = b""
    while part := os.read(file, 65536): text += part
    assert os.fstat(file).st_size == len(text)
    print(text.decode(), end="", flush=True)
    os.close(file)
"#;

fn reads_whole_texts(mode: &str, when: &str, options: Options) {
    let fill = |root: &Path| fs::write(root.join("README"), TEXTS[0]).unwrap();
    with_options(ALL, options, fill, |rig| {
        let script = READER.replace("ROUNDS", &ROUNDS.to_string());
        let arguments = ["-c", &*script, mode, when];
        let mut command = rig.command("python3", &arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut go, lines) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lines = BufReader::new(lines).lines().map(Result::unwrap);
        for text in TEXTS.iter().cycle().skip(1).take(ROUNDS) {
            assert_eq!(lines.next().unwrap(), "ready");
            fs::write(rig.host("README"), text).unwrap();
            go.write_all(b"\n").unwrap();
            assert_eq!(lines.next().unwrap(), text.trim_end(), "{mode} {when}");
        }
        assert!(child.wait().unwrap().success());
    });
}

/// Regression: the kernel cut a new version to the length of the one that a program had looked up.
#[test]
fn a_file_that_changes_between_its_look_up_and_its_open_is_not_cut() {
    for mode in ["O_RDONLY", "O_RDWR"] {
        reads_whole_texts(mode, "before", Options::new(0, 0));
    }
}

/// Regression: the kernel cut the version of the open to the length of a later one.
#[test]
fn a_file_that_changes_between_its_open_and_its_first_read_is_not_cut() {
    for mode in ["O_RDONLY", "O_RDWR"] {
        let options = Options { timeout: Duration::ZERO, ..Options::new(0, 0) };
        reads_whole_texts(mode, "after", options);
    }
}

#[test]
fn a_long_list_is_whole() {
    let fill = |root: &Path| {
        for number in 0..3000 {
            fs::write(root.join(format!("a-file-with-a-rather-long-name-{number:05}")), "")
                .unwrap();
        }
    };
    with(ALL, fill, |rig| {
        assert_eq!(rig.sh("ls | sort -u | wc -l; ls -l | wc -l").ok(), "3000\n3001\n");
    });
}

#[test]
fn a_list_that_is_kept_follows_changes_from_both_sides() {
    with(ALL, tree, |rig| {
        rig.sh("sleep 0.1; for i in 1 2 3; do ls src >/dev/null; done").ok();
        fs::write(rig.host("src/of-host"), "").unwrap();
        assert_eq!(rig.sh("ls src").ok(), "deep\nmain.rs\nmy.key\nof-host\n");
        rig.sh("echo >src/inside; rm src/my.key").ok();
        assert_eq!(rig.sh("ls src").ok(), "deep\ninside\nmain.rs\nof-host\n");
        let said = rig.sh("exec 3>src/staged; ls src; sleep 0.1; ls src | wc -l; mv src/inside src/deep; ls src").ok();
        assert_eq!(
            said,
            "deep\ninside\nmain.rs\nof-host\nstaged\n5\ndeep\nmain.rs\nof-host\nstaged\n"
        );
        fs::remove_file(rig.host("src/of-host")).unwrap();
        assert_eq!(rig.sh("ls src").ok(), "deep\nmain.rs\nstaged\n");
    });
}

#[test]
fn large_files_and_mappings() {
    let content: Vec<u8> = (0..5_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let fill = |root: &Path| fs::write(root.join("big"), &content).unwrap();
    with(ALL, fill, |rig| {
        rig.command("cmp", &["big", rig.host("big").to_str().unwrap()]).status().unwrap();
        let script = "import mmap\nf = open('big', 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
            print(int.from_bytes(m[4*4999999:], 'little'), len(m))";
        assert_eq!(rig.python(script).ok(), "4999999 20000000\n");
    });
}
