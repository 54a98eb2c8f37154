//! File systems that find one file by several names, as VFAT, NTFS and SMB shares do
//! (`ENV~1` and `.env::$DATA` are `.env`): a rule about a file's own name cannot be
//! passed by with another one. A file system of ours over FUSE stands in for them.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use portcullis::acp::SourceMode;
use serde_json::{Value, json};

use crate::{
    acp_rig::{Rig, gateway_under},
    common::{Done, World},
    disk::Disk,
};

const POLICY: &str = r#"schema = 1
name = "aliases"
version = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[[rules]]
id = "hidden"
effect = "deny"
operations = ["read", "write", "list", "stat", "remove", "rename"]
paths = [".env", "secretdir", "secretdir/**", "credentials.json"]
"#;

/// Names by which the file system finds what the policy denies.
const ALIASES: [&str; 7] = [
    "ENV~1",
    "env~1",
    ".env::$DATA",
    "CREDEN~1.JSO",
    "SECRET~1/key.txt",
    "secretdir::$DATA/key.txt",
    "SECRET~1/KEY.TXT",
];
/// The same, where the policy itself takes them for what they are.
const SPELLINGS: [&str; 4] = [".ENV", ".env.", ".env ", "secretdir./key.txt"];

/// It, mounted; unmounted when dropped.
pub(crate) struct Mounted {
    place: PathBuf,
    server: Child,
}

impl Mounted {
    /// The PID of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    #[track_caller]
    pub(crate) fn at(place: &Path) -> Self {
        Self::with(place, &[])
    }

    /// Mounts one that knows no flags of a rename, as NFS does.
    #[track_caller]
    pub(crate) fn like_nfs(place: &Path) -> Self {
        Self::with(place, &["nfs"])
    }

    #[track_caller]
    fn with(place: &Path, options: &[&str]) -> Self {
        let mut server = Command::new("/usr/bin/python3")
            .args(["-c", include_str!("alias_fs.py")])
            .arg(place)
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "this test mounts a file system, so it must run as root");
        Self { place: place.to_owned(), server }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A workspace on it, with things to hide.
fn world() -> (World, Mounted) {
    let world = World::with_policy(POLICY);
    let mounted = Mounted::at(&world.root());
    fill(&world.root());
    (world, mounted)
}

fn fill(root: &Path) {
    fs::create_dir(root.join("secretdir")).unwrap();
    for (name, content) in [
        (".env", "PASSWORD=hunter2\n"),
        ("credentials.json", "{\"key\": 1}\n"),
        ("secretdir/key.txt", "key\n"),
        ("a.txt", "a\n"),
        ("long-file-name.txt", "long\n"),
    ] {
        fs::write(root.join(name), content).unwrap();
    }
}

/// It failed as for a file that is not there.
#[track_caller]
fn is_missing(done: &Done) {
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(done.json()["error"]["kind"], "notFound", "{done:?}");
}

/// It failed, for one of these kinds of reasons.
#[track_caller]
fn fails(world: &World, args: &[&str], kinds: &[&str]) {
    let done = world.run_with_input(&[&["fs", "--json"], args].concat(), "new");
    assert_eq!(done.code, 1, "{args:?} {done:?}");
    let kind = done.json()["error"]["kind"].clone();
    assert!(kinds.iter().any(|expected| kind == *expected), "{args:?} {done:?}");
}

/// All there is, with its content.
fn all(root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.push((path.display().to_string(), String::new()));
            found.extend(all(&path));
        } else {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// `fs read ENV~1` disclosed `.env`.
#[test]
fn no_file_is_disclosed_by_another_name_than_its_own() {
    let (world, _mounted) = world();
    for name in ALIASES {
        assert!(fs::read(world.path(name)).is_ok(), "the file system finds `{name}`");
        for command in ["read", "stat", "ls"] {
            is_missing(&world.fs(&[command, "--json", name]));
        }
    }
    for name in [".env", "secretdir/key.txt", "credentials.json"].iter().chain(&SPELLINGS) {
        world.fs(&["read", name]).denied("hidden");
    }
    // A name is one byte for byte, also where nothing is hidden.
    assert_eq!(world.fs(&["read", "a.txt"]).ok().text(), "a\n");
    assert_eq!(world.fs(&["read", "long-file-name.txt"]).ok().text(), "long\n");
    for name in ["A.TXT", "a.txt.", "a.txt::$DATA", "LONG-F~1.TXT"] {
        is_missing(&world.fs(&["read", "--json", name]));
    }
    assert_eq!(world.records()[0]["facts"]["namesChecked"], true);
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn links_lists_and_searches_lead_to_nothing_by_another_name() {
    let (world, _mounted) = world();
    for (link, target) in [("one", "ENV~1"), ("two", "SECRET~1/key.txt"), ("three", "SECRET~1")] {
        symlink(target, world.path(link)).unwrap();
        is_missing(&world.fs(&["read", "--json", link]));
    }
    is_missing(&world.fs(&["read", "--json", "three/key.txt"]));
    is_missing(&world.fs(&["ls", "--json", "SECRET~1"]));
    for args in
        [&["glob", "**", "SECRET~1"][..], &["grep", "key", "SECRET~1"], &["grep", "P", "ENV~1"]]
    {
        let done = world.fs(args);
        assert!(!done.text().contains("key") && !done.text().contains("PASS"), "{done:?}");
    }
    let listed = world.fs(&["glob", "*"]).ok();
    assert_eq!(listed.text(), "a.txt\nlong-file-name.txt\none\nthree\ntwo\n");
    let found = world.fs(&["grep", "a|long|PASSWORD|key"]).ok();
    assert_eq!(found.text().lines().count(), 2, "{found:?}");
}

#[test]
fn nothing_is_changed_by_another_name_than_its_own() {
    let (world, _mounted) = world();
    let before = all(&world.root());
    for name in ALIASES {
        for args in [
            &["write", name][..],
            &["append", name],
            &["edit", name, "--old", "P", "--new", "Q"],
            &["rm", name],
            &["mv", name, "moved.txt"],
            &["mv", "a.txt", name],
            &["mkdir", name],
            &["mkdir", "-p", name],
        ] {
            fails(&world, args, &["notFound", "invalidInput"]);
        }
    }
    for args in [
        &["rm", "-r", "SECRET~1"][..],
        &["mv", "SECRET~1", "moved"],
        &["write", "SECRET~1/new.txt"],
        &["mkdir", "SECRET~1/new"],
        &["mkdir", "-p", "SECRET~1/new/er"],
        &["mv", "a.txt", "SECRET~1/a.txt"],
    ] {
        fails(&world, args, &["notFound", "invalidInput"]);
    }
    assert_eq!(all(&world.root()), before);
    world.run(&["audit", "verify"]).ok();
}

/// They would be other names than those that were decided on.
#[test]
fn nothing_is_made_under_another_name_than_the_one_asked_for() {
    let (world, _mounted) = world();
    let before = all(&world.root());
    for args in [
        &["write", "new.txt."][..],
        &["write", "new.txt::$DATA"],
        &["mkdir", "new."],
        &["mkdir", "-p", "new./er"],
        &["mv", "a.txt", "b.txt "],
    ] {
        fails(&world, args, &["invalidInput"]);
    }
    assert_eq!(all(&world.root()), before);
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn no_tree_is_put_back_under_other_names_than_its_own() {
    let world = World::with_policy(POLICY);
    world.file("tree/deeper/name.", "x");
    world.file("tree/other", "x");
    let removed = world.fs(&["rm", "-r", "tree", "--json"]).ok().json();
    let _mounted = Mounted::at(&world.root());
    let done = world.run(&["backup", "restore", removed["backup"].as_str().unwrap(), "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(done.json()["error"]["kind"], "invalidInput", "{done:?}");
    assert_eq!(fs::read_dir(world.root()).unwrap().count(), 0);
}

#[test]
fn everything_works_by_its_own_name() {
    let (world, _mounted) = world();
    world.write("new.txt", "1").ok();
    world.write("new.txt", "2").ok();
    world.run_with_input(&["fs", "append", "new.txt"], "3").ok();
    world.fs(&["edit", "new.txt", "--old", "23", "--new", "4"]).ok();
    assert_eq!(world.fs(&["read", "new.txt"]).ok().text(), "4");
    world.write("some directory/deeper/a file.txt", "x").ok();
    world.fs(&["mkdir", "-p", "some directory/other"]).ok();
    world.fs(&["mv", "new.txt", "some directory/moved.txt"]).ok();
    world.fs(&["mv", "some directory", "another directory"]).ok();
    let found = world.fs(&["glob", "another*/**/*.txt"]).ok();
    assert_eq!(found.text(), "another directory/deeper/a file.txt\nanother directory/moved.txt\n");
    let before = all(&world.root());
    let removed = world.fs(&["rm", "-r", "another directory", "--json"]).ok().json();
    world.run(&["backup", "restore", removed["backup"].as_str().unwrap()]).ok();
    assert_eq!(all(&world.root()), before);
    world.run(&["audit", "verify"]).ok();
}

/// An editor looks for a file by the name that it is told.
#[test]
fn no_editor_is_asked_for_a_file_by_another_name() {
    for source in [SourceMode::Auto, SourceMode::Editor] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("ws");
        fs::create_dir(&root).unwrap();
        let _mounted = Mounted::at(&root);
        fill(&root);
        let gateway = Arc::new(gateway_under(POLICY, &root, dir.path()));
        let mut rig = Rig::over(gateway, (dir, root), |config| config.source = source)
            .made_ready(json!({"readTextFile": true, "writeTextFile": true}));
        for (id, name) in (10..).zip(["ENV~1", "SECRET~1/key.txt", "missing.txt"]) {
            let request = rig.read(id, name);
            rig.agent.send(&request);
            let answer: Value = rig.agent.hear();
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32002)));
        }
        for (id, name) in (20..).zip(["ENV~1", "SECRET~1/new.txt"]) {
            let request = rig.write(id, name, "new");
            rig.agent.send(&request);
            let answer: Value = rig.agent.hear();
            assert!(answer["id"] == json!(id) && answer["error"].is_object(), "{answer}");
        }
        rig.editor.hears_nothing();
        assert_eq!(fs::read_to_string(rig.root.join(".env")).unwrap(), "PASSWORD=hunter2\n");
        assert!(!rig.root.join("secretdir/new.txt").exists());
    }
}

#[test]
fn file_systems_with_one_name_for_each_entry_are_not_looked_through() {
    let world = World::with_policy(POLICY);
    let disk = Disk::memory(&world.root(), 512);
    world.file("a.txt", "a\n");
    world.fs(&["read", "a.txt"]).ok();
    drop(disk);
    let _disk = Disk::ext4(&world.root(), &world.base().join("image"), 8);
    world.file("a.txt", "a\n");
    world.fs(&["read", "a.txt"]).ok();
    let starts = world.records().into_iter().filter(|record| record["kind"] == "start");
    assert_eq!(starts.filter(|start| start["facts"]["namesChecked"].is_null()).count(), 2);
}
