//! The stored scratch directories and files.
//!
//! Each has a directory named by a number. That contains `path`, its path in the workspace, and
//! `d`, the directory or file itself. So it follows a rename of a directory above it.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use portcullis_policy::{Labelled, Scratch as Rules, model::WorkspacePath};
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fsync, mkdirat, renameat},
    io::{Errno, Result},
};
use serde_json::json;

use super::{
    beneath::{self, kind},
    usage::{BLOCK, cost_of},
};

/// The maximum of mounts of one workspace, agent and policy that have scratch directories at the
/// same time. Each may fill its own up to `maxSize`.
pub const MAX_SLOTS: usize = 16;
/// The name of the file with the usage at the end of a session, for the next one.
const USAGE: &str = "usage";
/// The name of the file with the labels of what the programs of earlier sessions were shown. There is
/// none while a session runs.
const LABELS: &str = "labels";
/// The maximum of bytes of that file.
const MAX_LABELS: u64 = 1 << 20;
/// The name of the file with the session, until its counters are recorded.
const SESSION: &str = "session";
/// The maximum of scratch directories and files of a mount: each list of a directory visits all of
/// them.
pub(crate) const MAX_ROOTS: usize = 4096;
/// The longest stored path, in bytes.
const MAX_PATH: u64 = 8192;

/// A scratch directory or file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScratchRoot {
    pub(crate) kind: FileType,
    pub(crate) number: u64,
    pub(crate) node: u64,
}

/// A path before and after a rename.
pub(crate) type Moved = (WorkspacePath, WorkspacePath);

/// The scratch directories and files, by their paths in the workspace.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    pub(crate) by_path: BTreeMap<WorkspacePath, ScratchRoot>,
    pub(crate) next: u64,
}

impl Roots {
    /// Returns those beneath a directory of the workspace, with their paths.
    pub(crate) fn beneath(&self, path: &WorkspacePath) -> Vec<(WorkspacePath, ScratchRoot)> {
        let is_beneath = |of: &WorkspacePath| of != path && of.is_within(path);
        let found = self.by_path.iter().filter(|(path, _)| is_beneath(path));
        found.map(|(path, root)| (path.clone(), *root)).collect()
    }

    /// Returns the paths of those beneath a directory, each with its path after a rename of that
    /// directory.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub(crate) fn moved(&self, old: &WorkspacePath, new: &WorkspacePath) -> Result<Vec<Moved>> {
        let moved = self.beneath(old).into_iter().map(|(path, _)| {
            // The last name, by which it is scratch, stays.
            let there = path.rebase(old, new).ok_or(Errno::NAMETOOLONG)?;
            Ok((path, there))
        });
        moved.collect()
    }

    /// Changes their paths.
    pub(crate) fn rename(&mut self, moved: &[Moved]) {
        for (path, there) in moved {
            if let Some(root) = self.by_path.remove(path) {
                self.by_path.insert(there.clone(), root);
            }
        }
    }
}

/// Takes a slot beneath `directory` that no other mount uses.
///
/// # Errors
/// `EBUSY` where there is none; the error of the system.
pub(crate) fn take_slot(directory: &OwnedFd) -> Result<OwnedFd> {
    for slot in 0..MAX_SLOTS {
        let name = format!("slot-{slot}");
        match mkdirat(directory, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        if let Some(locked) = lock_slot(directory, &name)? {
            return Ok(locked);
        }
    }
    Err(Errno::BUSY)
}

/// Opens a slot; `None` if another process has it locked.
fn lock_slot(directory: &OwnedFd, name: &str) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let opened = beneath::open(directory, Path::new(name), flags, Mode::empty())?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(opened)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes what `rules` do not keep, and counts the rest, in each slot that has no usage and that no
/// mount uses.
///
/// # Errors
/// The error of the system.
pub(crate) fn settle(directory: &OwnedFd, rules: &Rules) -> Result<()> {
    for slot in 0..MAX_SLOTS {
        let name = format!("slot-{slot}");
        // A slot with a usage must stay free for a mount that begins.
        if beneath::stat(directory, &Path::new(&name).join(USAGE)).is_ok() {
            continue;
        }
        let base = match lock_slot(directory, &name) {
            Ok(Some(base)) => base,
            Ok(None) | Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        let mut kept = load(&base, rules)?;
        note_usage(&base, usage(&base, &mut kept)?)?;
    }
    Ok(())
}

/// Returns the relative path of a scratch directory or file.
pub(crate) fn content(number: u64) -> PathBuf {
    PathBuf::from(format!("{number}/d"))
}

/// Creates an empty directory, or a file with this mode; it has no path yet.
///
/// # Errors
/// The error of the system.
pub(crate) fn make(base: &OwnedFd, number: u64, file: Option<Mode>) -> Result<()> {
    mkdirat(base, number.to_string(), Mode::RWXU)?;
    let Some(mode) = file else {
        return mkdirat(base, content(number), Mode::from_raw_mode(0o755));
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    // The umask of this process must not apply.
    fchmod(beneath::open(base, &content(number), flags, mode)?, mode)
}

/// Stores the path in the workspace.
///
/// # Errors
/// The error of the system.
pub(crate) fn set_path(base: &OwnedFd, number: u64, path: &WorkspacePath) -> Result<()> {
    write(base, &format!("{number}/new"), path.as_str().as_bytes())?;
    renameat(base, format!("{number}/new"), base, format!("{number}/path"))
}

fn is_root(facts: &Stat) -> bool {
    matches!(kind(facts), FileType::Directory | FileType::RegularFile)
}

/// Removes a scratch directory or file with its content.
///
/// # Errors
/// The error of the system.
pub(crate) fn remove(base: &OwnedFd, number: u64) -> Result<()> {
    beneath::remove_all(base, &PathBuf::from(number.to_string()))
}

/// Sets aside an entry that can be neither read nor removed: its content must not keep a mount
/// from starting.
fn set_aside(base: &OwnedFd, number: u64) {
    let name = number.to_string();
    if let Ok(facts) = beneath::stat(base, Path::new(&name)) {
        // The new name may exist for another entry; errors are ignored.
        let _ = renameat(base, &name, base, format!("broken-{name}-{}", facts.st_ino));
    }
}

/// The stored scratch directories and files.
#[derive(Debug, Default)]
pub(crate) struct StoredRoots {
    /// The numbers with the paths.
    pub(crate) all: Vec<(u64, WorkspacePath)>,
    /// The lowest number above all used ones.
    pub(crate) next: u64,
    /// True if an entry is gone that the last session may have counted.
    is_less: bool,
}

/// Finds the stored entries. Those that do not match `rules` are removed.
///
/// # Errors
/// The error of the system.
pub(crate) fn load(base: &OwnedFd, rules: &Rules) -> Result<StoredRoots> {
    let (mut kept, mut known) = (StoredRoots::default(), HashSet::new());
    for entry in beneath::list(base)? {
        let Some(number) = entry.name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        kept.next = kept.next.max(number.saturating_add(1));
        let path = read(base, &format!("{number}/path"), MAX_PATH).ok();
        let path = path.and_then(|text| WorkspacePath::parse(&text).ok());
        let path = path.filter(|path| rules.keep() && rules.matches(path));
        let has_content = beneath::stat(base, &content(number)).is_ok_and(|facts| is_root(&facts));
        match path {
            Some(path) if has_content && known.len() < MAX_ROOTS && known.insert(path.clone()) => {
                kept.all.push((number, path));
            }
            _ => {
                kept.is_less = true;
                if remove(base, number).is_err() {
                    set_aside(base, number);
                }
            }
        }
    }
    Ok(kept)
}

/// Returns bytes and entries in use: as the last session stored them, or counted. Entries that
/// cannot be counted are set aside.
///
/// # Errors
/// The error of the system.
pub(crate) fn usage(base: &OwnedFd, kept: &mut StoredRoots) -> Result<(u64, u64)> {
    let noted = read(base, USAGE, 64).ok();
    let noted = noted.as_deref().and_then(|text| text.trim().split_once(' '));
    let noted =
        noted.and_then(|(bytes, entries)| Some((bytes.parse().ok()?, entries.parse().ok()?)));
    // The stored numbers become invalid with the first change.
    match beneath::remove(base, Path::new(USAGE), false) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    if let Some(noted) = noted.filter(|_| !kept.is_less) {
        return Ok(noted);
    }
    let (mut sum, mut linked) = ((0_u64, 0_u64), HashSet::new());
    kept.all.retain(|(number, _)| match count(base, *number, &mut linked) {
        Ok((bytes, entries)) => {
            sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(entries));
            true
        }
        Err(_) => {
            set_aside(base, *number);
            false
        }
    });
    Ok(sum)
}

/// Counts bytes and entries of one; files whose inodes are in `linked` are counted already.
fn count(base: &OwnedFd, number: u64, linked: &mut HashSet<u64>) -> Result<(u64, u64)> {
    let top = beneath::stat(base, &content(number))?;
    let (mut bytes, mut entries) = (cost_of(&top), 1);
    if kind(&top) == FileType::Directory {
        beneath::walk(base, &content(number), &mut |_, _, facts| {
            let is_link = kind(facts) == FileType::RegularFile && facts.st_nlink > 1;
            let is_new = !is_link || linked.insert(facts.st_ino);
            bytes = bytes.saturating_add(if is_new { cost_of(facts) } else { BLOCK });
            entries += 1;
            Ok(())
        })?;
    }
    Ok((bytes, entries))
}

/// Stores the session, and returns the former one if its end was not recorded.
///
/// # Errors
/// The error of the system.
pub(crate) fn begin_session(base: &OwnedFd, session: &str) -> Result<Option<String>> {
    let before = match read(base, SESSION, 64) {
        Ok(before) => Some(before).filter(|before| !before.is_empty()),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(error),
    };
    write(base, SESSION, session.as_bytes())?;
    Ok(before)
}

/// Notes that the session's counters are recorded.
///
/// # Errors
/// The error of the system.
pub(crate) fn end_session(base: &OwnedFd) -> Result<()> {
    beneath::remove(base, Path::new(SESSION), false)
}

/// Stores labels, each with a path, as the programs may read copies of what they are about.
///
/// # Errors
/// The error of the system.
pub(crate) fn store_labels(base: &OwnedFd, labels: &BTreeMap<String, String>) -> Result<()> {
    write(base, LABELS, json!(labels).to_string().as_bytes())
}

/// Takes the stored labels away and returns them; `None` if they are unknown, as after a session
/// that was killed.
///
/// # Errors
/// The error of the system.
pub(crate) fn take_labels(base: &OwnedFd) -> Result<Option<Labelled>> {
    let stored = read(base, LABELS, MAX_LABELS).unwrap_or_default();
    match beneath::remove(base, Path::new(LABELS), false) {
        Ok(()) => fsync(base)?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let stored: Option<BTreeMap<String, String>> = serde_json::from_str(&stored).ok();
    let path = |(id, path): (String, String)| Some((id, WorkspacePath::parse(&path).ok()?));
    Ok(stored.and_then(|stored| stored.into_iter().map(path).collect()))
}

/// Stores bytes and entries in use.
///
/// # Errors
/// The error of the system.
pub(crate) fn note_usage(base: &OwnedFd, (bytes, entries): (u64, u64)) -> Result<()> {
    write(base, USAGE, format!("{bytes} {entries}\n").as_bytes())
}

fn write(base: &OwnedFd, path: &str, text: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let file = beneath::open(base, Path::new(path), flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(text).map_err(|error| of(&error))
}

fn read(base: &OwnedFd, path: &str, most: u64) -> Result<String> {
    let file = beneath::open(base, Path::new(path), OFlags::RDONLY, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(most).read_to_string(&mut text).map_err(|error| of(&error))?;
    Ok(text)
}

fn of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use portcullis_policy::{PolicySource, compile};

    use super::*;

    #[test]
    fn more_than_can_be_kept_are_removed_and_no_number_is_used_again() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let base = rustix::fs::open(place.path(), flags, Mode::empty()).unwrap();
        let policy = "schema = 1\n[scratch]\npaths = [\"target*\"]\n";
        let policy = compile(&PolicySource::from_text("test.toml", policy)).unwrap();
        let most = u64::try_from(MAX_ROOTS).unwrap();
        for number in 0..most + 5 {
            make(&base, number, None).unwrap();
            let path = WorkspacePath::parse(&format!("target{number}")).unwrap();
            set_path(&base, number, &path).unwrap();
        }
        // A second entry with the same path.
        set_path(&base, 7, &WorkspacePath::parse("target8").unwrap()).unwrap();
        let kept = load(&base, policy.scratch().unwrap()).unwrap();
        assert_eq!((kept.all.len(), kept.next), (MAX_ROOTS, most + 5));
        assert_eq!(beneath::list(&base).unwrap().len(), MAX_ROOTS);
    }

    #[test]
    fn the_number_of_mounts_that_fill_one_place_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let place = rustix::fs::open(place.path(), flags, Mode::empty()).unwrap();
        let mut taken: Vec<_> = (0..MAX_SLOTS).map(|_| take_slot(&place).unwrap()).collect();
        assert_eq!(take_slot(&place).unwrap_err(), Errno::BUSY);
        assert_eq!(beneath::list(&place).unwrap().len(), 16);
        taken.swap_remove(3);
        // A free slot is taken again.
        taken.push(take_slot(&place).unwrap());
        assert_eq!(beneath::list(&place).unwrap().len(), 16);
    }
}
