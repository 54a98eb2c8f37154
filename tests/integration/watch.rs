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
struct House {
    _dir: TempDir,
    root: PathBuf,
    gateway: Gateway,
    session: Session,
    marks: AtomicU64,
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

impl House {
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
    let house = House::new("");
    house.mkdir("old/deep");
    let all = house.watch(".");
    house.write("a.txt", "a");
    house.mv("a.txt", "b.txt");
    house.write("b.txt", "changed");
    house.write("old/deep/c.txt", "c");
    assert_eq!(
        house.told(&all),
        ["create a.txt", "rename a.txt b.txt", "modify b.txt", "create old/deep/c.txt"]
    );
    std::os::unix::fs::symlink("b.txt", house.at("link")).unwrap();
    fs::remove_file(house.at("b.txt")).unwrap();
    house.mkdir("new");
    house.write("new/d.txt", "d");
    let expected = ["create link", "delete b.txt", "create new/", "create new/d.txt"];
    assert_eq!(house.told(&all), expected);
    house.mv("old", "new/moved");
    assert_eq!(house.told(&all), ["rename old/ new/moved/", "rescan new/moved/"]);
    house.write("new/moved/deep/e.txt", "e");
    fs::remove_dir_all(house.at("new/moved")).unwrap();
    let told = house.told(&all);
    let end = ["delete new/moved/deep/", "delete new/moved/"];
    assert_eq!((&*told[0], told[3..].len()), ("create new/moved/deep/e.txt", 2), "{told:?}");
    assert_eq!(told[3..], end);
}

#[test]
fn nothing_is_lost_in_directories_that_are_made_while_watched() {
    let house = House::new("");
    let all = house.watch(".");
    let root = house.root.clone();
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
    let told = house.told(&all);
    let made: Vec<_> = told.iter().filter_map(|event| event.strip_prefix("create ")).collect();
    let unique: BTreeSet<_> = made.iter().copied().collect();
    assert_eq!(made.len(), unique.len(), "something was told twice");
    let mut expected = BTreeSet::new();
    walk(&root, &root, &mut expected);
    expected.retain(|name| !name.starts_with("mark-"));
    assert_eq!(unique, expected.iter().map(String::as_str).collect());
    // They are watched, too.
    house.write("b3-59/d0/d1/d2/d3/late", "x");
    assert_eq!(house.told(&all), ["create b3-59/d0/d1/d2/d3/late"]);
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
    let house = House::new("");
    house.mkdir("tree/sub");
    house.write("tree/sub/x", "x");
    house.write("taken", "t");
    let all = house.watch(".");
    let content = || b"content".to_vec();
    let told = |change: &dyn Request<Output = Changed>| {
        house.handle(change);
        house.told(&all)
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
    let house = House::new("");
    let usual = house.watch(".");
    let query = WatchQuery { ignore: vec!["src".to_owned()], ..WatchQuery::new(path(".")) };
    let own = house.watch_query(query);
    for name in ["node_modules/x", "a/dist/x", "src/build", ".git/objects"] {
        house.mkdir(name);
        house.write(&format!("{name}/f"), "x");
    }
    house.write("a/build", "a file of that name");
    let mut told = house.told(&usual);
    house.mv("node_modules", "modules");
    told.extend(house.told(&usual));
    fs::remove_dir_all(house.at("src")).unwrap();
    told.extend(house.told(&usual));
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
    let told = house.told(&own);
    assert!(told.iter().all(|event| !event.contains("src")), "{told:?}");
    assert!(told.contains(&"create a/dist/x/f".to_owned()), "{told:?}");
}

#[test]
fn one_directory_or_one_file_can_be_watched_alone() {
    let house = House::new("");
    house.mkdir("d/e");
    house.write("d/f", "x");
    let flat = WatchQuery { recursive: false, ..WatchQuery::new(path("d")) };
    let (flat, file) = (house.watch_query(flat), house.watch("d/f"));
    house.write("d/e/deep", "x");
    house.write("d/f", "y");
    house.write("other", "x");
    house.mv("d/f", "d/g");
    house.write("d/f", "new");
    fs::remove_file(house.at("d/f")).unwrap();
    let expected = ["modify d/f", "rename d/f d/g", "create d/f", "delete d/f"];
    assert_eq!(house.told_in(&flat, "d"), expected);
    let expected = ["modify d/f", "delete d/f", "create d/f", "delete d/f"];
    let mut told = Vec::new();
    while told.len() < expected.len() {
        add(&mut told, &file.next(TIMEOUT).unwrap().unwrap());
    }
    assert_eq!(told, expected);
}

#[test]
fn a_watched_directory_that_moves_away_and_comes_back_is_followed_by_its_name() {
    let house = House::new("");
    house.mkdir("a/b/c");
    house.write("a/b/c/f", "x");
    let deep = house.watch("a/b/c");
    let next = || words(&deep.next(TIMEOUT).unwrap().unwrap());
    house.mv("a/b", "elsewhere");
    assert_eq!(next(), "rescan a/b/c/");
    house.write("elsewhere/c/unseen", "x");
    house.mkdir("a/b");
    house.write("a/b/beside", "x");
    house.mkdir("a/b/c");
    house.write("a/b/c/g", "x");
    assert_eq!(house.told_in(&deep, "a/b/c"), ["create a/b/c/", "create a/b/c/g"]);
    fs::rename(house.at("a"), house.outside("away")).unwrap();
    assert_eq!(next(), "rescan a/b/c/");
    fs::write(house.outside("away").join("b/c/unseen"), "x").unwrap();
    fs::rename(house.outside("away"), house.at("a")).unwrap();
    let told = house.told_in(&deep, "a/b/c");
    assert_eq!(told[0], "create a/b/c/", "{told:?}");
    house.told_in(&deep, "a/b/c");
    house.write("a/b/c/g", "changed");
    assert_eq!(house.told_in(&deep, "a/b/c"), ["modify a/b/c/g"]);
}

#[test]
fn links_are_told_of_and_never_followed() {
    let house = House::new("");
    fs::create_dir(house.outside("outside")).unwrap();
    house.mkdir("real");
    std::os::unix::fs::symlink(house.outside("outside"), house.at("out")).unwrap();
    std::os::unix::fs::symlink("real", house.at("in")).unwrap();
    let (all, through) = (house.watch("."), house.watch("in"));
    assert_eq!(through.path(), &path("real"));
    fs::write(house.outside("outside/x"), "x").unwrap();
    house.write("real/x", "x");
    // A directory that becomes a link is gone.
    house.mkdir("turn");
    house.write("turn/t", "t");
    assert_eq!(house.told(&all), ["create real/x", "create turn/", "create turn/t"]);
    house.mv("turn", "turned");
    assert_eq!(house.told(&all), ["rename turn/ turned/", "rescan turned/"]);
    std::os::unix::fs::symlink(house.outside("outside"), house.at("turn")).unwrap();
    fs::write(house.outside("outside/y"), "y").unwrap();
    assert_eq!(house.told(&all), ["create turn"]);
    assert_eq!(house.told_in(&through, "real"), ["create real/x"]);
}
