//! Exchanges of entries, files that get their name after they are written, and names of links.

use std::{fs, path::Path};

use crate::rig::{ALL, Rig, with};

/// `no(call, …)` prints the error of a call, or `done`.
const CALLS: &str = r"
import ctypes, os
def exchange(one, other):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2):
        raise OSError(ctypes.get_errno(), 'renameat2')
def unnamed(text, directory='.', flags=os.O_RDWR):
    fd = os.open(directory, os.O_TMPFILE | flags, 0o640)
    os.write(fd, text)
    return fd
def name(fd, path): os.link('/proc/self/fd/%d' % fd, path, src_dir_fd=0, follow_symlinks=True)
def no(do, *arguments):
    try: do(*arguments)
    except OSError as error: print(error.errno)
    else: print('done')
";

impl Rig<'_> {
    fn calls(&self, script: &str) -> String {
        self.python(&format!("{CALLS}{script}")).ok()
    }
}

fn entries(root: &Path) {
    fs::write(root.join("file"), "one\n").unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/inner"), "inner\n").unwrap();
}

/// The mount returned `EINVAL`, and programs that install a complete directory did without.
#[test]
fn two_entries_are_exchanged_as_one_change() {
    with(ALL, entries, |rig| {
        let script = "f = os.open('file', os.O_RDWR); g = os.open('dir/inner', os.O_RDWR)\n\
             number = os.fstat(f).st_ino\nexchange('file', 'dir')\n\
             print(open('dir').read() + open('file/inner').read(), os.stat('dir').st_ino == number)\n\
             os.pwrite(f, b'ONE', 0); os.close(f); os.pwrite(g, b'INNER', 0); os.close(g)\n\
             print(sorted(os.listdir('.')), os.listdir('file'))";
        let said = rig.calls(script);
        assert_eq!(said, "one\ninner\n True\n['dir', 'file'] ['inner']\n");
        assert_eq!((rig.read("dir"), rig.read("file/inner")), ("ONE\n".into(), "INNER\n".into()));
        let renamed = ["decision read ok", "intent rename -", "outcome rename ok"];
        assert_eq!(rig.about("file"), renamed);
        let records = rig.records();
        let intent = records.iter().find(|record| record["op"] == "rename").unwrap();
        assert_eq!((&intent["path"], &intent["to"]), (&"file".into(), &"dir".into()));
        assert_eq!(intent["facts"]["exchange"], true);
        // Both still exist, so there is no backup; the two hashes show after a crash what was
        // done.
        assert!(intent["backup"].is_null() && intent["before"] != intent["after"]);
        assert_eq!(
            rig.calls("no(exchange, 'dir', 'missing'); no(exchange, 'file', 'file/inner')"),
            "2\n22\n"
        );
    });
}

/// An exchange adds an entry at both names, and removes one from both.
#[test]
fn an_exchange_needs_the_rights_to_both_names() {
    let rule = |id: &str, effect: &str, access: &str| {
        format!(
            "[[rules]]\nid = \"{id}\"\neffect = \"{effect}\"\noperations = [\"{access}\"]\npaths = [\"{id}\"]\n"
        )
    };
    let rules = [
        rule("unwritten", "deny", "write"),
        rule("unremoved", "deny", "remove"),
        rule("unread", "deny", "read"),
        rule("asked", "ask", "write"),
        "[[rules]]\nid = \"in\"\neffect = \"deny\"\noperations = [\"remove\"]\npaths = [\"dir/inner\"]\n".to_owned(),
    ];
    let names = ["unwritten", "unremoved", "unread", "asked", "dir"];
    let fill = |root: &Path| {
        entries(root);
        names.iter().take(4).for_each(|name| fs::write(root.join(name), name).unwrap());
    };
    with(&format!("{ALL}{}", rules.concat()), fill, |rig| {
        for name in names {
            let script = format!("no(exchange, 'file', '{name}'); no(exchange, '{name}', 'file')");
            assert_eq!(rig.calls(&script), "13\n13\n", "{name}");
        }
        assert_eq!(rig.read("file"), "one\n");
        assert_eq!(rig.read("dir/inner"), "inner\n");
        assert!(names.iter().take(4).all(|name| rig.read(name) == *name));
        let records = rig.records();
        assert!(records.iter().all(|record| record["kind"] != "intent"), "{records:#?}");
        // Half an exchange is never asked about.
        let asked = |record: &&serde_json::Value| record["rule"] == "exchange";
        assert_eq!(records.iter().filter(asked).count(), 2, "{records:#?}");
        assert!(records.iter().all(|record| record["decision"] != "ask"));
    });
}

#[test]
fn an_exchange_with_scratch_is_left_to_the_program() {
    let policy = format!("{ALL}[scratch]\npaths = [\"target\"]\n");
    with(&policy, entries, |rig| {
        let script = "os.mkdir('target'); os.mkdir('d'); os.mkdir('d/target')\n\
             open('target/a', 'w').write('a'); open('target/b', 'w').write('b')\n\
             no(exchange, 'target', 'dir'); no(exchange, 'target/a', 'file'); no(exchange, 'd', 'dir')\n\
             no(exchange, 'dir', 'd'); no(exchange, 'target/a', 'target/b'); print(open('target/a').read())";
        assert_eq!(rig.calls(script), "18\n18\n18\n18\ndone\nb\n");
        assert_eq!(rig.read("dir/inner"), "inner\n");
    });
}

#[test]
fn a_file_without_a_name_is_stored_when_it_gets_one() {
    with(ALL, entries, |rig| {
        let script = "lost = unnamed(b'lost'); os.fsync(lost); os.close(lost)\n\
             f = unnamed(b'text', 'dir'); print(os.fstat(f).st_size, os.pread(f, 9, 0), os.listdir('dir'))\n\
             no(name, f, 'file'); name(f, 'dir/new'); print(os.stat('dir/new').st_nlink, open('dir/new').read())\n\
             no(name, f, 'again'); os.write(f, b' more'); os.close(f)\n\
             f = unnamed(b'x', '.', os.O_RDWR | os.O_EXCL); no(name, f, 'exclusive')";
        assert_eq!(rig.calls(script), "4 b'text' ['inner']\n17\n1 text\n1\n2\n");
        assert_eq!(rig.read("dir/new"), "text more");
        assert_eq!(rig.read("file"), "one\n");
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(rig.host("dir/new")).unwrap().permissions().mode() & 0o777, 0o640);
        // The name, and what was written to the open file afterwards.
        let stored = ["intent write -", "outcome write ok"];
        assert_eq!(rig.about("dir/new"), [stored, stored].concat());
        let records = rig.records();
        let intents = records.iter().filter(|record| record["kind"] == "intent");
        assert_eq!(intents.count(), 2, "{records:#?}");
        assert_eq!(fs::read_dir(rig.host(".")).unwrap().count(), 2);
    });
}

#[test]
fn a_file_gets_no_name_that_may_not_be_written() {
    let rules = "[[rules]]\nid = \"frozen\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"frozen\"]\n\
        [mount]\nmaxWriteSize = \"8B\"\n";
    with(&format!("{ALL}{rules}"), entries, |rig| {
        let script = "f = unnamed(b'text'); no(name, f, 'frozen'); no(name, f, 'allowed'); os.close(f)\n\
             f = unnamed(b'more than eight'); no(name, f, 'large'); no(os.write, f, b'x'); print(os.path.exists('large'))";
        assert_eq!(rig.calls(script), "13\ndone\n13\n5\nFalse\n");
        assert_eq!(rig.read("allowed"), "text");
        assert!(!rig.host("frozen").exists() && !rig.host("large").exists());
        assert_eq!(rig.about("frozen"), ["decision write denied"]);
    });
}

/// The policy decided on the link's own name alone, and a program of the host executed the agent's
/// file.
#[test]
fn a_link_showed_the_agents_files_at_denied_names() {
    let policy = format!(
        "{ALL}[[rules]]\nid = \"hooks\"\neffect = \"deny\"\npaths = [\"**/hooks/pre-commit\"]\n\
         [[rules]]\nid = \"deploy\"\neffect = \"ask\"\npaths = [\"infra/deploy/run.sh\"]\n"
    );
    with(
        &policy,
        |_| (),
        |rig| {
            rig.sh("mkdir h d i; echo x >h/pre-commit; echo x >i/run.sh; ln -s h link").ok();
            rig.sh("ln -s ../i d/deploy; cat link/pre-commit d/deploy/run.sh").ok();
            for (refused, at) in [
                ("ln -s h hooks", "hooks"),
                ("mv -T link hooks", "hooks"),
                ("ln -s i infra", "infra"),
                ("mv -T d infra", "infra"),
                ("mkdir infra; ln -s ../i infra/deploy", "infra/deploy"),
                ("mv d/deploy infra", "infra/deploy"),
            ] {
                rig.sh(refused).fails("denied");
                assert!(fs::symlink_metadata(rig.host(at)).is_err(), "{refused}");
            }
            let records = rig.records().into_iter();
            let rules: Vec<_> = records.filter_map(|record| record.get("rule").cloned()).collect();
            for rule in ["hooks", "deploy"] {
                let count = rules.iter().filter(|one| *one == rule).count();
                assert!(count >= 2, "{rules:?}");
            }
        },
    );
}
