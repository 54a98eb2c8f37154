//! Directories that have just appeared: the next change in them is sent, of any kind, after any
//! quiet time.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use portcullis::gateway::{Event, EventKind, Subscription};

use super::{Fixture, TIMEOUT, add, walk};
use crate::seeded_random::Random;

/// Longer than the watcher needs to see that nothing more happens.
const QUIET: Duration = Duration::from_millis(100);

/// Mark of an entry that was gone when it was looked up.
const UNSEEN: &str = "?";

/// Returns the entry at a path: the content of a file, the target of a link, a directory.
fn look(path: &Path) -> Option<String> {
    let kind = fs::symlink_metadata(path).ok()?.file_type();
    Some(match kind {
        _ if kind.is_symlink() => format!("-> {}", fs::read_link(path).ok()?.display()),
        _ if kind.is_dir() => "directory".to_owned(),
        _ => format!("= {}", fs::read_to_string(path).ok()?),
    })
}

/// A copy of the tree, in which only entries of events are looked up.
struct Picture<'h> {
    fixture: &'h Fixture,
    known: BTreeMap<String, String>,
}

impl Picture<'_> {
    fn forget(&mut self, path: &str) {
        let beneath = format!("{path}/");
        self.known.retain(|name, _| name != path && !name.starts_with(&beneath));
    }

    /// Looks up the entry of an event. It may have been renamed, which the next event says.
    fn look(&mut self, path: &str) {
        let what = look(&self.fixture.at(path)).unwrap_or_else(|| UNSEEN.to_owned());
        self.known.insert(path.to_owned(), what);
    }

    fn take(&mut self, event: &Event) {
        let path = event.path.as_str();
        match &event.what {
            EventKind::Created => {
                self.forget(path);
                self.look(path);
            }
            EventKind::Modified => self.look(path),
            EventKind::Deleted => self.forget(path),
            EventKind::Renamed { from } => self.rename(from.as_str(), path),
            EventKind::Rescan => self.known = there(self.fixture),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let moved: Vec<_> = self
            .known
            .iter()
            .filter_map(|(name, what)| {
                let beneath = name.strip_prefix(from)?.strip_prefix('/')?;
                Some((format!("{to}/{beneath}"), what.clone()))
            })
            .collect();
        self.forget(from);
        self.forget(to);
        self.look(to);
        for (name, what) in moved {
            match &*what {
                UNSEEN => self.look(&name),
                _ => drop(self.known.insert(name, what)),
            }
        }
    }

    /// Takes events until the picture is true.
    fn check(&mut self, all: &Subscription, when: &str) {
        let real = there(self.fixture);
        while self.known != real {
            let Some(event) = all.next(TIMEOUT).unwrap() else {
                let missing: Vec<_> = real
                    .iter()
                    .filter(|(name, what)| self.known.get(*name) != Some(what))
                    .collect();
                let gone: Vec<_> =
                    self.known.keys().filter(|name| !real.contains_key(*name)).collect();
                panic!("{when}: not told {missing:?}, nor that {gone:?} are gone");
            };
            self.take(&event);
        }
    }
}

/// Returns the tree.
fn there(fixture: &Fixture) -> BTreeMap<String, String> {
    let mut names = Default::default();
    walk(&fixture.root, &fixture.root, &mut names);
    let names = names.iter().map(|name| name.trim_end_matches('/'));
    names.map(|name| (name.to_owned(), look(&fixture.at(name)).unwrap())).collect()
}

/// Makes a tree with a file, a link and an empty directory in each directory of it.
fn tree(at: &Path, deep: usize) -> io::Result<()> {
    fs::create_dir(at)?;
    fs::write(at.join("f"), "old")?;
    symlink("old", at.join("l"))?;
    fs::create_dir(at.join("s"))?;
    if deep > 0 { tree(&at.join("t"), deep - 1) } else { Ok(()) }
}

fn one_of<T: Copy>(random: &mut Random, all: [T; 3]) -> T {
    all[usize::try_from(random.below(3)).unwrap()]
}

/// Makes a change of a name in a directory that appeared; a change that needs another name takes
/// one from outside.
fn change(fixture: &Fixture, at: &Path, how: u64) -> io::Result<()> {
    let spare = fixture.outside("spare");
    let beside = at.with_file_name("new");
    match how {
        0 => fs::write(at, "written"),
        1 => fs::write(&beside, "saved").and_then(|()| fs::rename(&beside, at)),
        2 => fs::write(&spare, "moved in").and_then(|()| fs::rename(&spare, at)),
        3 => symlink("elsewhere", &beside).and_then(|()| fs::rename(&beside, at)),
        4 => symlink("outside", &spare).and_then(|()| fs::rename(&spare, at)),
        5 => tree(&spare, 1).and_then(|()| fs::rename(&spare, at)),
        6 => tree(&beside, 0).and_then(|()| fs::rename(&beside, at)),
        7 => fs::remove_file(at).and_then(|()| fs::write(at, "anew")),
        8 => fs::remove_dir(at).and_then(|()| fs::create_dir(at)),
        _ => fs::rename(at, fixture.at("taken out")),
    }
}

/// The first change in a directory that appeared was taken for an entry that had been found in it.
#[test]
fn the_first_change_in_a_directory_that_came_is_told() {
    for (name, how) in
        [("f", 1), ("f", 2), ("f", 4), ("l", 2), ("l", 3), ("l", 4), ("s", 5), ("s", 6)]
    {
        let fixture = Fixture::new("");
        let all = fixture.watch(".");
        tree(&fixture.outside("d"), 0).unwrap();
        fs::rename(fixture.outside("d"), fixture.at("d")).unwrap();
        // No mark here: more changes would hide it.
        let mut came = Vec::new();
        while came.len() < 4 {
            add(&mut came, &all.next(TIMEOUT).unwrap().expect("nothing came"));
        }
        assert_eq!(came, ["create d/", "create d/f", "create d/l", "create d/s/"]);
        thread::sleep(QUIET);
        change(&fixture, &fixture.at("d").join(name), how).unwrap();
        let after = fixture.told(&all);
        let suffix = if name == "s" { "d/s/" } else { &format!("d/{name}") };
        assert!(after.iter().any(|event| event.ends_with(suffix)), "{name}, {how}: {after:?}");
        if name == "s" {
            // It is watched, with all in it.
            fixture.write("d/s/f", "later");
            fixture.mkdir("d/s/s/deep");
            assert_eq!(fixture.told(&all), ["modify d/s/f", "create d/s/s/deep/"]);
        }
    }
}

/// Trees come and are changed at once, a moment later or when it is quiet.
#[test]
fn a_copy_of_trees_that_come_is_true_whatever_is_changed_in_them_and_when() {
    for seed in 0..3 {
        let fixture = Fixture::new("");
        let all = fixture.watch(".");
        let mut picture = Picture { fixture: &fixture, known: BTreeMap::new() };
        let mut random = Random::new(300 + seed);
        for step in 0..40 {
            let came = fixture.at(&format!("d{step}"));
            match random.below(2) {
                0 => tree(&came, 2).unwrap(),
                _ => {
                    tree(&fixture.outside("d"), 2).unwrap();
                    fs::rename(fixture.outside("d"), &came).unwrap();
                }
            }
            let mut done = Vec::new();
            for _ in 0..=random.below(3) {
                thread::sleep(Duration::from_millis(one_of(&mut random, [0, 1, 30])));
                let mut at: PathBuf = came.clone();
                (0..random.below(3)).for_each(|_| at.push("t"));
                at.push(one_of(&mut random, ["f", "l", "s"]));
                let how = random.below(10);
                // Impossible changes are skipped.
                let _ = change(&fixture, &at, how);
                done.push((at, how));
                let _ = fs::remove_file(fixture.outside("spare"));
                let _ = fs::remove_dir_all(fixture.outside("spare"));
            }
            picture.check(&all, &format!("seed {seed}, step {step}: {done:?}"));
        }
        // Every directory is watched.
        for (name, _) in picture.known.iter().filter(|(_, what)| *what == "directory") {
            fixture.write(&format!("{name}/late"), "x");
        }
        picture.check(&all, &format!("seed {seed}, late"));
    }
}
