//! A list of names alone equals the full list, but for facts that only a
//! look-up of each entry gives.

use portcullis::{
    gateway::Client,
    model::{
        WorkspacePath,
        request::{List, Names},
    },
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
    let (session, path) = (acp_rig::connection(), WorkspacePath::root());
    let list = List { path: path.clone() };
    let list = gateway.handle(&session, &list, Client::default()).unwrap().output;
    let names = Names { path };
    let names = gateway.handle(&session, &names, Client::default()).unwrap().output;
    let bare: Vec<_> =
        list.entries.iter().map(|entry| (entry.path.file_name().unwrap(), entry.kind)).collect();
    assert_eq!(bare, names.iter().collect::<Vec<_>>());
    assert_eq!((list.not_utf8, names.not_utf8()), (1, 1));
    let shown: Vec<_> = names.iter().map(|(name, _)| name).collect();
    assert_eq!(shown, ["a.txt", "dangling", "directory", "fifo", "hard.txt", "link"]);
    assert_eq!(list.entries[0].size, Some(1));
}
