//! A list of names alone is the list, but for what only a look at each entry
//! tells.

use portcullis::{
    gateway::Output,
    model::{Operation, WorkspacePath},
    ops::{Entries, Source},
};

use crate::acp_rig;

#[test]
fn names_alone_are_those_of_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("ws");
    std::fs::create_dir(&root).unwrap();
    let at = |name: &str| root.join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::create_dir(at("secret")).unwrap();
    std::fs::write(at("a.txt"), "x").unwrap();
    std::fs::write(at("b.exe"), "x").unwrap();
    std::fs::hard_link(at("a.txt"), at("hard.txt")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", at("link")).unwrap();
    std::os::unix::fs::symlink("nothing", at("dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
    let bad: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    std::fs::write(root.join(bad), "x").unwrap();
    let gateway = acp_rig::gateway_under(
        "schema = 1\n[allowedPaths]\nlist = [\"**\"]\n[extensions]\ndeny = [\"exe\"]\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n",
        &root,
        dir.path(),
    );
    let list = |operation: Operation| -> Entries {
        let session = acp_rig::connection();
        match gateway.handle(&session, &operation, Source::Disk).unwrap().output {
            Output::Entries(entries) => entries,
            other => panic!("{other:?}"),
        }
    };
    let path = WorkspacePath::root();
    let (list, names) =
        (list(Operation::List { path: path.clone() }), list(Operation::Names { path }));
    let bare = |entries: &Entries| -> Vec<_> {
        entries.entries.iter().map(|entry| (entry.path.clone(), entry.kind)).collect()
    };
    assert_eq!(bare(&list), bare(&names));
    assert_eq!((list.not_utf8, names.not_utf8), (1, 1));
    let shown: Vec<_> = names.entries.iter().map(|e| e.path.as_str()).collect();
    assert_eq!(shown, ["a.txt", "dangling", "directory", "fifo", "hard.txt", "link"]);
    assert!(names.entries.iter().all(|entry| entry.size.is_none() && entry.modified.is_none()));
    assert_eq!(list.entries[0].size, Some(1));
}
