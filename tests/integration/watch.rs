//! Subscriptions to changes: the events that are sent, those that are not, and
//! that none is lost without a notice.

mod command;
mod errors;
mod mirror;
mod new_directories;
mod visibility;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use portcullis::{
    gateway::{Changed, Client, EntryKind, Event, EventKind, Gateway, Request, Subscription},
    model::{
        Session, WatchQuery, WorkspacePath,
        request::{Append, Edit, Mkdir, Remove, Rename, Write},
    },
};
use tempfile::TempDir;

use crate::acp_rig;
use crate::common::ALL;

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A gateway in this process, and the workspace behind it.
struct Fixture {
    _dir: TempDir,
    root: PathBuf,
    gateway: Gateway,
    session: Session,
    marks: AtomicU64,
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

impl Fixture {
    fn new(more: &str) -> Self {
        Self::under(&format!("{ALL}{more}"))
    }

    fn under(policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("ws");
        fs::create_dir(&root).unwrap();
        let gateway = acp_rig::gateway_under(policy, &root, dir.path());
        let (session, marks) = (acp_rig::connection(), AtomicU64::new(0));
        Self { _dir: dir, root, gateway, session, marks }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.root.parent().unwrap().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn mkdir(&self, name: &str) {
        fs::create_dir_all(self.at(name)).unwrap();
    }

    fn mv(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }

    fn watch(&self, path: &str) -> Subscription {
        self.watch_query(WatchQuery::new(self::path(path)))
    }

    fn watch_query(&self, query: WatchQuery) -> Subscription {
        self.gateway.watch(&self.session, &query).unwrap().output
    }

    /// Returns all events up to now, in words.
    fn told(&self, subscription: &Subscription) -> Vec<String> {
        self.told_in(subscription, "")
    }

    /// The same for events in one directory.
    fn told_in(&self, subscription: &Subscription, directory: &str) -> Vec<String> {
        let mark = format!("mark-{}", self.marks.fetch_add(1, Ordering::Relaxed));
        // An event about a file could be sent once more, when it is closed.
        fs::create_dir(self.at(directory).join(&mark)).unwrap();
        let mut told = Vec::new();
        loop {
            let event = subscription.next(TIMEOUT).unwrap().expect("nothing came");
            match event.path.file_name() {
                Some(name) if name == mark => break,
                Some(name) if name.starts_with("mark-") => {}
                _ => add(&mut told, &event),
            }
        }
        told
    }

    fn handle(&self, change: &dyn Request<Output = Changed>) {
        self.gateway.handle(&self.session, change, Client::default()).unwrap();
    }
}

/// Adds an event, unless it repeats that a file was changed: the number of
/// these depends on how fast they are read.
fn add(told: &mut Vec<String>, event: &Event) {
    let again = event.what == EventKind::Modified
        && ["create", "modify"].iter().any(|what| {
            let last = told.iter().rfind(|told| told.ends_with(&format!(" {}", event.path)));
            last.is_some_and(|last| last.starts_with(what))
        });
    if !again {
        told.push(words(event));
    }
}

fn words(event: &Event) -> String {
    let slash = if event.kind == EntryKind::Directory { "/" } else { "" };
    match &event.what {
        EventKind::Renamed { from } => {
            format!("rename {from}{slash} {}{slash}", event.path)
        }
        what => format!("{} {}{slash}", what.as_str(), event.path),
    }
}

#[test]
fn what_is_made_changed_renamed_and_removed_is_told() {
    let fixture = Fixture::new("");
    fixture.mkdir("old/deep");
    let all = fixture.watch(".");
    fixture.write("a.txt", "a");
    fixture.mv("a.txt", "b.txt");
    fixture.write("b.txt", "changed");
    fixture.write("old/deep/c.txt", "c");
    assert_eq!(
        fixture.told(&all),
        ["create a.txt", "rename a.txt b.txt", "modify b.txt", "create old/deep/c.txt"]
    );
    std::os::unix::fs::symlink("b.txt", fixture.at("link")).unwrap();
    fs::remove_file(fixture.at("b.txt")).unwrap();
    fixture.mkdir("new");
    fixture.write("new/d.txt", "d");
    let expected = ["create link", "delete b.txt", "create new/", "create new/d.txt"];
    assert_eq!(fixture.told(&all), expected);
    fixture.mv("old", "new/moved");
    assert_eq!(fixture.told(&all), ["rename old/ new/moved/", "rescan new/moved/"]);
    fixture.write("new/moved/deep/e.txt", "e");
    fs::remove_dir_all(fixture.at("new/moved")).unwrap();
    let told = fixture.told(&all);
    let end = ["delete new/moved/deep/", "delete new/moved/"];
    assert_eq!((&*told[0], told[3..].len()), ("create new/moved/deep/e.txt", 2), "{told:?}");
    assert_eq!(told[3..], end);
}

#[test]
fn nothing_is_lost_in_directories_that_are_made_while_watched() {
    let fixture = Fixture::new("");
    let all = fixture.watch(".");
    let root = fixture.root.clone();
    std::thread::scope(|scope| {
        for branch in 0..4 {
            let root = root.clone();
            scope.spawn(move || {
                for tree in 0..60 {
                    let mut directory = root.join(format!("b{branch}-{tree}"));
                    for depth in 0..5 {
                        fs::create_dir(&directory).unwrap();
                        fs::write(directory.join("f"), "x").unwrap();
                        directory.push(format!("d{depth}"));
                    }
                }
            });
        }
    });
    let told = fixture.told(&all);
    let made: Vec<_> = told.iter().filter_map(|event| event.strip_prefix("create ")).collect();
    let unique: BTreeSet<_> = made.iter().copied().collect();
    assert_eq!(made.len(), unique.len(), "something was told twice");
    let mut expected = BTreeSet::new();
    walk(&root, &root, &mut expected);
    expected.retain(|name| !name.starts_with("mark-"));
    assert_eq!(unique, expected.iter().map(String::as_str).collect());
    // They are watched, too.
    fixture.write("b3-59/d0/d1/d2/d3/late", "x");
    assert_eq!(fixture.told(&all), ["create b3-59/d0/d1/d2/d3/late"]);
}

fn walk(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => {
                found.insert(name + "/");
                walk(root, &path, found);
            }
            false => drop(found.insert(name)),
        }
    }
}

#[test]
fn what_the_gateway_changes_is_told_without_its_temporary_names() {
    let fixture = Fixture::new("");
    fixture.mkdir("tree/sub");
    fixture.write("tree/sub/x", "x");
    fixture.write("taken", "t");
    let all = fixture.watch(".");
    let content = || b"content".to_vec();
    let told = |change: &dyn Request<Output = Changed>| {
        fixture.handle(change);
        fixture.told(&all)
    };
    let write = |name| Write { path: path(name), content: content(), mode: None };
    let rename = |from, to| Rename { from: path(from), to: path(to), replace: true };
    assert_eq!(told(&write("a")), ["create a"]);
    assert_eq!(told(&Append { path: path("a"), content: content() }), ["modify a"]);
    let edit = Edit { path: path("a"), old: "tc".into(), new: "t c".into() };
    assert_eq!(told(&edit), ["modify a"]);
    let mkdir = Mkdir { path: path("m/n"), recursive: true, mode: None };
    assert_eq!(told(&mkdir), ["create m/", "create m/n/"]);
    assert_eq!(told(&rename("a", "m/b")), ["rename a m/b"]);
    let remove = Remove { path: path("m/b"), recursive: false };
    assert_eq!(told(&remove), ["delete m/b"]);
    assert_eq!(told(&write("c")), ["create c"]);
    assert_eq!(told(&rename("c", "taken")), ["delete c", "modify taken"]);
    let remove = Remove { path: path("tree"), recursive: true };
    assert_eq!(told(&remove), ["delete tree/"]);
}

#[test]
fn directories_that_nobody_wants_are_left_out() {
    let fixture = Fixture::new("");
    let usual = fixture.watch(".");
    let query = WatchQuery { ignore: vec!["src".to_owned()], ..WatchQuery::new(path(".")) };
    let own = fixture.watch_query(query);
    for name in ["node_modules/x", "a/dist/x", "src/build", ".git/objects"] {
        fixture.mkdir(name);
        fixture.write(&format!("{name}/f"), "x");
    }
    fixture.write("a/build", "a file of that name");
    let mut told = fixture.told(&usual);
    fixture.mv("node_modules", "modules");
    told.extend(fixture.told(&usual));
    fs::remove_dir_all(fixture.at("src")).unwrap();
    told.extend(fixture.told(&usual));
    assert!(!told.iter().any(|event| event.contains("dist") || event.contains(".git")), "{told:?}");
    assert!(told.contains(&"create a/build".to_owned()));
    told.retain(|event| event.contains("modules") || event.contains("src"));
    let expected = [
        "create src/",
        "create modules/",
        "create modules/x/",
        "create modules/x/f",
        "delete src/",
    ];
    assert_eq!(told, expected);
    let told = fixture.told(&own);
    assert!(told.iter().all(|event| !event.contains("src")), "{told:?}");
    assert!(told.contains(&"create a/dist/x/f".to_owned()), "{told:?}");
}

#[test]
fn one_directory_or_one_file_can_be_watched_alone() {
    let fixture = Fixture::new("");
    fixture.mkdir("d/e");
    fixture.write("d/f", "x");
    let flat = WatchQuery { recursive: false, ..WatchQuery::new(path("d")) };
    let (flat, file) = (fixture.watch_query(flat), fixture.watch("d/f"));
    fixture.write("d/e/deep", "x");
    fixture.write("d/f", "y");
    fixture.write("other", "x");
    fixture.mv("d/f", "d/g");
    fixture.write("d/f", "new");
    fs::remove_file(fixture.at("d/f")).unwrap();
    let expected = ["modify d/f", "rename d/f d/g", "create d/f", "delete d/f"];
    assert_eq!(fixture.told_in(&flat, "d"), expected);
    let expected = ["modify d/f", "delete d/f", "create d/f", "delete d/f"];
    let mut told = Vec::new();
    while told.len() < expected.len() {
        add(&mut told, &file.next(TIMEOUT).unwrap().unwrap());
    }
    assert_eq!(told, expected);
}

#[test]
fn a_watched_directory_that_moves_away_and_comes_back_is_followed_by_its_name() {
    let fixture = Fixture::new("");
    fixture.mkdir("a/b/c");
    fixture.write("a/b/c/f", "x");
    let deep = fixture.watch("a/b/c");
    let next = || words(&deep.next(TIMEOUT).unwrap().unwrap());
    fixture.mv("a/b", "elsewhere");
    assert_eq!(next(), "rescan a/b/c/");
    fixture.write("elsewhere/c/unseen", "x");
    fixture.mkdir("a/b");
    fixture.write("a/b/beside", "x");
    fixture.mkdir("a/b/c");
    fixture.write("a/b/c/g", "x");
    assert_eq!(fixture.told_in(&deep, "a/b/c"), ["create a/b/c/", "create a/b/c/g"]);
    fs::rename(fixture.at("a"), fixture.outside("away")).unwrap();
    assert_eq!(next(), "rescan a/b/c/");
    fs::write(fixture.outside("away").join("b/c/unseen"), "x").unwrap();
    fs::rename(fixture.outside("away"), fixture.at("a")).unwrap();
    let told = fixture.told_in(&deep, "a/b/c");
    assert_eq!(told[0], "create a/b/c/", "{told:?}");
    fixture.told_in(&deep, "a/b/c");
    fixture.write("a/b/c/g", "changed");
    assert_eq!(fixture.told_in(&deep, "a/b/c"), ["modify a/b/c/g"]);
}

#[test]
fn links_are_told_of_and_never_followed() {
    let fixture = Fixture::new("");
    fs::create_dir(fixture.outside("outside")).unwrap();
    fixture.mkdir("real");
    std::os::unix::fs::symlink(fixture.outside("outside"), fixture.at("out")).unwrap();
    std::os::unix::fs::symlink("real", fixture.at("in")).unwrap();
    let (all, through) = (fixture.watch("."), fixture.watch("in"));
    assert_eq!(through.path(), &path("real"));
    fs::write(fixture.outside("outside/x"), "x").unwrap();
    fixture.write("real/x", "x");
    // A directory that becomes a link is gone.
    fixture.mkdir("turn");
    fixture.write("turn/t", "t");
    assert_eq!(fixture.told(&all), ["create real/x", "create turn/", "create turn/t"]);
    fixture.mv("turn", "turned");
    assert_eq!(fixture.told(&all), ["rename turn/ turned/", "rescan turned/"]);
    std::os::unix::fs::symlink(fixture.outside("outside"), fixture.at("turn")).unwrap();
    fs::write(fixture.outside("outside/y"), "y").unwrap();
    assert_eq!(fixture.told(&all), ["create turn"]);
    assert_eq!(fixture.told_in(&through, "real"), ["create real/x"]);
}
