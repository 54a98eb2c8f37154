//! Two entries that a program exchanges, and how that is undone.

use super::*;

const EXCHANGE: &str = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    if libc.renameat2(-100, b'file.txt', -100, b'dir', 2): raise OSError(ctypes.get_errno(), '')\n\
    open('file.txt/inner.txt', 'a').write('more\\n')";

#[test]
fn an_exchange_is_undone_as_the_one_change_that_it_is() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let ended = world.exec(&["--quiet"], &format!("python3 -c \"{EXCHANGE}\""));
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        let read = |name: &str| std::fs::read_to_string(world.at(name)).unwrap();
        assert_eq!(
            (read("ws/dir"), read("ws/file.txt/inner.txt")),
            ("secret\n".to_owned(), "inner\nmore\n".to_owned())
        );
        let records = world.records();
        let renames: Vec<_> = records
            .iter()
            .filter(|record| said(record, "kind") == "intent" && said(record, "op") == "rename")
            .collect();
        assert_eq!(renames.len(), 1, "{records:#?}");
        assert_eq!((said(renames[0], "path"), said(renames[0], "to")), ("file.txt", "dir"));
        assert_eq!(renames[0]["facts"]["exchange"], true);
        // The later write in the directory is undone before, under the name of then.
        let policy = world.at("policies/policy.toml");
        let session = said(renames[0], "session");
        let undo = ["backup", "undo", "--policy", &policy, "--session", session, "--json"];
        let preview = end(world.command(&[&undo[..], &["--dry-run"]].concat()).spawn().unwrap());
        let preview: Value = serde_json::from_str(preview.stdout.lines().last().unwrap()).unwrap();
        let steps = preview["steps"].as_array().unwrap();
        let words = steps.iter().map(|step| (said(step, "action"), said(step, "path")));
        let expected = [("restore", "file.txt/inner.txt"), ("exchange", "file.txt")];
        assert_eq!(words.collect::<Vec<_>>(), expected, "{preview}");
        let undone = end(world.command(&[&undo[..], &["--yes"]].concat()).spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
        assert_eq!(
            (read("ws/file.txt"), read("ws/dir/inner.txt")),
            ("secret\n".to_owned(), "inner\n".to_owned())
        );
        let again = end(world.command(&[&undo[..], &["--yes"]].concat()).spawn().unwrap());
        assert_eq!(again.code, 0, "{again:?}");
        assert_eq!(read("ws/file.txt"), "secret\n");
        // `blame` names for each name the record that brought its content there.
        let args = ["audit", "blame", "--json", "--workspace", &world.at("ws"), "file.txt"];
        let blamed = end(world.command(&args).spawn().unwrap());
        assert_eq!(blamed.code, 0, "{blamed:?}");
        let verified = ["audit", "verify", "--workspace", &world.at("ws")];
        assert_eq!(end(world.command(&verified).spawn().unwrap()).code, 0);
    }
}

const TWICE: &str = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    def exchange(a, b): assert libc.renameat2(-100, a, -100, b, 2) == 0\n\
    def put(name, text):\n  with open(name, 'w') as file: file.write(text)\n\
    put('x', 'A'); put('x', 'B'); exchange(b'x', b'file.txt')\n\
    put('y', 'C'); exchange(b'file.txt', b'y'); exchange(b'y', b'x')\n\
    for n in range(30): put('t', str(n)); os.rename('t', 'x')\n\
    os.unlink('y'); put('file.txt', 'mine')";

/// A version of the agent's own was let go, on the way back through which undo had to go.
#[test]
fn a_session_that_exchanged_twice_was_impossible_to_undo() {
    let world = SandboxWorld::mounted(users()[0]);
    let path = world.at("ws/file.txt");
    let before = std::fs::read_to_string(&path).unwrap();
    let ended = world.exec(&["--quiet"], &format!("python3 -c \"{TWICE}\""));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    let records = world.records();
    let intent = records.iter().find(|record| said(record, "kind") == "intent").unwrap();
    let session = said(intent, "session").to_owned();
    let policy = world.at("policies/policy.toml");
    let undo = ["backup", "undo", "--policy", &policy, "--session", &session, "--yes"];
    let undone = end(world.command(&undo).spawn().unwrap());
    assert_eq!(undone.code, 0, "{undone:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    assert!(!world.base().join("ws/x").exists());
}
