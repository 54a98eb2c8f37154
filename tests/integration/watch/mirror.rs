//! A subscriber that follows the events, as docs/watch.md describes, knows the tree after any
//! changes.

use std::{collections::BTreeSet, fs, io, path::Path, thread, time::Duration};

use portcullis::{
    gateway::{EntryKind, Event, EventKind, Subscription},
    model::{Session, WatchQuery},
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Fixture, TIMEOUT, path, walk};
use crate::seeded_random::Random;

/// The paths that a subscriber believes to exist, those of directories with a slash at their end.
struct Mirror<'h> {
    fixture: &'h Fixture,
    known: BTreeSet<String>,
    /// Those that do not follow the new name of a directory.
    rescans: usize,
    /// The directory of the last event of a rename.
    renamed: Option<String>,
    /// A name that may not be seen, wherever it is.
    hidden: &'static str,
}

fn name(event: &Event) -> String {
    let slash = if event.kind == EntryKind::Directory { "/" } else { "" };
    format!("{}{slash}", event.path.as_str())
}

impl Mirror<'_> {
    fn sees(&self, path: &str) -> bool {
        self.hidden.is_empty() || path.split('/').all(|name| name != self.hidden)
    }

    fn take(&mut self, event: &Event) {
        let (file, directory) =
            (event.path.as_str().to_owned(), format!("{}/", event.path.as_str()));
        let renamed = self.renamed.take();
        match &event.what {
            EventKind::Created => {
                // Any entry that had the name before is gone.
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
                self.known.insert(name(event));
            }
            EventKind::Modified => {}
            EventKind::Deleted => {
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
            }
            EventKind::Renamed { from } => {
                let (old_file, old_directory) = (from.as_str(), format!("{}/", from.as_str()));
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
                self.known.retain(|name| name != old_file && !name.starts_with(&old_directory));
                self.known.insert(name(event));
                // Its contents are looked up when their event comes.
                self.renamed = (event.kind == EntryKind::Directory).then_some(file);
            }
            EventKind::Rescan => {
                self.rescans += usize::from(renamed.as_ref() != Some(&file));
                self.look(&file);
            }
        }
    }

    /// Looks at what is at and beneath a path.
    fn look(&mut self, path: &str) {
        let path = if path == "." { "" } else { path };
        let directory = format!("{path}/");
        self.known.retain(|name| !path.is_empty() && name != path && !name.starts_with(&directory));
        let at = self.fixture.root.join(path);
        let Ok(meta) = fs::symlink_metadata(&at) else { return };
        if !meta.is_dir() {
            self.known.insert(path.to_owned());
            return;
        }
        let found = loop {
            let mut found = BTreeSet::new();
            if look(&self.fixture.root, &at, &mut found).is_ok() || !at.is_dir() {
                break found;
            }
        };
        let found = found.into_iter().filter(|name| self.sees(name)).collect::<Vec<_>>();
        self.known.extend(found);
        if !path.is_empty() && at.is_dir() {
            self.known.insert(directory);
        }
    }

    /// Takes events until the tree is known.
    fn settle(&mut self, subscription: &Subscription, when: &str) {
        loop {
            let mut there = BTreeSet::new();
            walk(&self.fixture.root, &self.fixture.root, &mut there);
            there.retain(|name| self.sees(name));
            if self.known == there {
                return;
            }
            let Some(event) = subscription.next(TIMEOUT).unwrap() else {
                let missing: Vec<_> = there.difference(&self.known).collect();
                let wrong: Vec<_> = self.known.difference(&there).collect();
                panic!(
                    "{when}, {} rescans: not told {missing:?}, nor that {wrong:?} are gone",
                    self.rescans
                );
            };
            self.take(&event);
        }
    }

    /// Takes all events so far.
    fn catch_up(&mut self, subscription: &Subscription, mark: &str) {
        self.fixture.write(mark, "");
        loop {
            let event = subscription.next(TIMEOUT).unwrap().expect("nothing came");
            self.take(&event);
            if event.path.as_str() == mark || self.known.contains(mark) {
                return;
            }
        }
    }
}

/// The same as `walk`; an error where others move or remove what is looked at.
fn look(root: &Path, directory: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if fs::symlink_metadata(&path)?.is_dir() {
            found.insert(name + "/");
            look(root, &path, found)?;
        } else {
            found.insert(name);
        }
    }
    Ok(())
}

/// Changes something, or tries to.
fn disturb(fixture: &Fixture, random: &mut Random) {
    let mut pick = || {
        let parts: Vec<_> =
            (0..=random.below(3)).map(|_| format!("n{}", random.below(3))).collect();
        (fixture.at(&parts.join("/")), random.below(8))
    };
    let ((one, act), (other, _)) = (pick(), pick());
    // Impossible changes are skipped.
    let _ = match act {
        0 => fs::create_dir_all(one),
        1 => fs::remove_dir_all(one),
        2 => fs::remove_file(one),
        3 | 4 => fs::rename(one, other),
        5 => renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Into::into),
        _ => fs::create_dir_all(one.parent().unwrap()).and_then(|()| fs::write(one, "x")),
    };
}

impl Mirror<'_> {
    /// Checks that the tree is known, and every directory is watched.
    fn check(&mut self, subscription: &Subscription, when: &str) {
        self.settle(subscription, when);
        for directory in self.known.iter().filter(|name| name.ends_with('/')) {
            self.fixture.write(&format!("{directory}late"), "x");
        }
        self.settle(subscription, &format!("{when}, late"));
    }
}

/// Each change is sent before the next is made: nothing has to be looked up again but the contents
/// of a renamed directory.
#[test]
fn a_mirror_made_of_what_is_told_is_true_all_the_time() {
    for seed in 0..6 {
        let fixture = Fixture::new("");
        let all = fixture.watch(".");
        let mut mirror = Mirror {
            fixture: &fixture,
            known: BTreeSet::new(),
            rescans: 0,
            renamed: None,
            hidden: "",
        };
        let mut random = Random::new(seed);
        for step in 0..300 {
            disturb(&fixture, &mut random);
            mirror.catch_up(&all, &format!("mark-{step}"));
            let mut there = BTreeSet::new();
            walk(&fixture.root, &fixture.root, &mut there);
            assert_eq!(mirror.known, there, "seed {seed}, step {step}");
        }
        assert_eq!(mirror.rescans, 0, "seed {seed}");
        mirror.check(&all, &format!("seed {seed}"));
    }
}

/// A few changes at once are sent correctly.
#[test]
fn a_mirror_is_true_after_every_burst_of_changes() {
    for seed in 0..4 {
        let fixture = Fixture::new("");
        let all = fixture.watch(".");
        let mut mirror = Mirror {
            fixture: &fixture,
            known: BTreeSet::new(),
            rescans: 0,
            renamed: None,
            hidden: "",
        };
        let mut random = Random::new(100 + seed);
        for burst in 0..200 {
            (0..random.below(40)).for_each(|_| disturb(&fixture, &mut random));
            mirror.settle(&all, &format!("seed {seed}, burst {burst}"));
        }
        mirror.check(&all, &format!("seed {seed}"));
    }
}

/// The same for a subscriber that does not see all of it, beside one that does: entries that come
/// out of hidden directories and go there are sent correctly.
#[test]
fn a_mirror_of_what_may_be_seen_is_true_after_every_burst_of_changes() {
    let hidden = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"**/n2/**\", \"**/n2\"]\n\
        agents = [\"tester\"]\n";
    for seed in 0..4 {
        let fixture = Fixture::new(hidden);
        let agent = "operator".parse().unwrap();
        let other = Session { agent, id: "0f".repeat(16), ..fixture.session.clone() };
        let some = fixture.watch(".");
        let all = fixture.gateway.watch(&other, &WatchQuery::new(path("."))).unwrap().output;
        let mirror = |hidden| Mirror {
            fixture: &fixture,
            known: BTreeSet::new(),
            rescans: 0,
            renamed: None,
            hidden,
        };
        let (mut sees_some, mut sees_all) = (mirror("n2"), mirror(""));
        let mut random = Random::new(200 + seed);
        for burst in 0..200 {
            (0..random.below(40)).for_each(|_| disturb(&fixture, &mut random));
            sees_some.settle(&some, &format!("some, seed {seed}, burst {burst}"));
            sees_all.settle(&all, &format!("all, seed {seed}, burst {burst}"));
        }
        sees_some.check(&some, &format!("some, seed {seed}"));
    }
}

/// A name moves from entry to entry faster than its events are sent.
#[test]
fn a_mirror_is_true_in_the_end_where_directories_move_faster_than_is_told() {
    for seed in 0..6 {
        let fixture = Fixture::new("");
        let all = fixture.watch(".");
        let mut mirror = Mirror {
            fixture: &fixture,
            known: BTreeSet::new(),
            rescans: 0,
            renamed: None,
            hidden: "",
        };
        thread::scope(|scope| {
            let others: Vec<_> = (0..3)
                .map(|n| {
                    let (fixture, mut random) = (&fixture, Random::new(seed * 10 + n));
                    scope.spawn(move || (0..1_500).for_each(|_| disturb(fixture, &mut random)))
                })
                .collect();
            while others.iter().any(|other| !other.is_finished()) {
                if let Some(event) = all.next(Duration::from_millis(5)).unwrap() {
                    mirror.take(&event);
                }
            }
        });
        mirror.check(&all, &format!("seed {seed}"));
    }
}
