//! Whoever keeps track by what is told knows what is there, whatever happened.

use std::{collections::BTreeSet, fs, path::Path};

use portcullis::ops::{EntryKind, Event, EventKind, Subscription};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{House, PATIENCE, walk};
use crate::random::Random;

/// What a subscriber believes to be there: paths, those of directories with a
/// slash at their end.
struct Mirror<'h> {
    house: &'h House,
    known: BTreeSet<String>,
    rescans: usize,
}

fn name(event: &Event) -> String {
    let slash = if event.kind == EntryKind::Directory { "/" } else { "" };
    format!("{}{slash}", event.path.as_str())
}

impl Mirror<'_> {
    fn take(&mut self, event: &Event) {
        let (file, directory) =
            (event.path.as_str().to_owned(), format!("{}/", event.path.as_str()));
        match &event.what {
            EventKind::Created => {
                // Whatever had the name before is gone.
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
                self.known.insert(name(event));
            }
            EventKind::Modified => {}
            EventKind::Deleted => {
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
            }
            EventKind::Renamed { from } => {
                self.known.retain(|name| *name != file && !name.starts_with(&directory));
                let (old_file, old_directory) = (from.as_str(), format!("{}/", from.as_str()));
                let moved: Vec<_> = self
                    .known
                    .iter()
                    .filter(|name| *name == old_file || name.starts_with(&old_directory))
                    .cloned()
                    .collect();
                for old in moved {
                    self.known.remove(&old);
                    self.known.insert(format!("{file}{}", &old[old_file.len()..]));
                }
                // What is told last of what it is counts.
                match event.kind {
                    EntryKind::Directory => drop(self.known.remove(&file)),
                    _ => self.known.retain(|name| !name.starts_with(&directory)),
                }
                self.known.insert(name(event));
            }
            EventKind::Rescan => {
                self.rescans += 1;
                let root = event.path.is_root();
                self.known
                    .retain(|name| !root && *name != directory && !name.starts_with(&directory));
                let at = self.house.root.join(event.path.as_str());
                if at.is_dir() {
                    if !root {
                        self.known.insert(directory);
                    }
                    look(&self.house.root, &at, &mut self.known);
                }
            }
        }
    }

    /// Takes everything that was told so far.
    fn catch_up(&mut self, subscription: &Subscription, mark: &str) {
        self.house.write(mark, "");
        loop {
            let event = subscription.next(PATIENCE).unwrap().expect("nothing came");
            self.take(&event);
            if event.path.as_str() == mark || self.known.contains(mark) {
                return;
            }
        }
    }
}

/// As `walk`, where others remove meanwhile.
fn look(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => {
                found.insert(name + "/");
                look(root, &path, found);
            }
            false => drop(found.insert(name)),
        }
    }
}

/// Changes something, or tries to.
fn disturb(house: &House, random: &mut Random) {
    let mut pick = || {
        let parts: Vec<_> =
            (0..=random.below(3)).map(|_| format!("n{}", random.below(3))).collect();
        (house.at(&parts.join("/")), random.below(8))
    };
    let ((one, act), (other, _)) = (pick(), pick());
    // What is not possible is not done.
    let _ = match act {
        0 => fs::create_dir_all(one),
        1 => fs::remove_dir_all(one),
        2 => fs::remove_file(one),
        3 | 4 => fs::rename(one, other),
        5 => renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Into::into),
        _ => fs::create_dir_all(one.parent().unwrap()).and_then(|()| fs::write(one, "x")),
    };
}

/// Each change is told before the next is made: docs/watch.md says what can go
/// wrong where directories change names faster than they are told of.
#[test]
fn a_mirror_made_of_what_is_told_is_true_all_the_time() {
    for seed in 0..6 {
        let house = House::new("");
        let all = house.watch(".");
        let mut mirror = Mirror { house: &house, known: BTreeSet::new(), rescans: 0 };
        let mut random = Random::new(seed);
        for step in 0..300 {
            disturb(&house, &mut random);
            mirror.catch_up(&all, &format!("mark-{step}"));
            let mut there = BTreeSet::new();
            walk(&house.root, &house.root, &mut there);
            assert_eq!(mirror.known, there, "seed {seed}, step {step}");
        }
        assert!(mirror.rescans < 20, "{} rescans", mirror.rescans);
        // Everything that is there is watched.
        let mut there = BTreeSet::new();
        walk(&house.root, &house.root, &mut there);
        for directory in there.iter().filter(|name| name.ends_with('/')) {
            house.write(&format!("{directory}late"), "x");
        }
        mirror.catch_up(&all, "the-very-end");
        let mut there = BTreeSet::new();
        walk(&house.root, &house.root, &mut there);
        assert_eq!(mirror.known, there, "seed {seed}: a directory is not watched");
    }
}
