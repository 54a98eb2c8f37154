//! The scratch directories and files that there are, as they are kept.
//!
//! Each has a directory with a number for its name, and in it `path`, where it is in the
//! workspace, and `d`, itself: so it follows a rename of what is above it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use portcullis_policy::{Scratch as Rules, model::WorkspacePath};
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, mkdirat, renameat},
    io::{Errno, Result},
};

use super::{
    place::{self, kind},
    usage::cost_of,
};

/// How many mounts of one workspace, agent and policy have scratch directories at a time.
const SLOTS: u32 = 64;
/// What one session left, for the next one.
const USAGE: &str = "usage";
/// The longest path that is kept.
const MAX_PATH: u64 = 8192;

/// One scratch directory or file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub(crate) kind: FileType,
    pub(crate) number: u64,
    pub(crate) node: u64,
}

/// All of them, by where they are in the workspace.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    pub(crate) by_path: BTreeMap<WorkspacePath, Root>,
    pub(crate) next: u64,
}

impl Roots {
    /// Those beneath a directory of the workspace, with their paths.
    pub(crate) fn beneath(&self, path: &WorkspacePath) -> Vec<(WorkspacePath, Root)> {
        let is_beneath = |of: &WorkspacePath| of != path && of.is_within(path);
        let found = self.by_path.iter().filter(|(path, _)| is_beneath(path));
        found.map(|(path, root)| (path.clone(), *root)).collect()
    }
}

/// Takes a place beneath `directory` that no other mount has.
///
/// # Errors
/// `EBUSY` where there is none; as the system says.
pub(crate) fn take_slot(directory: &OwnedFd) -> Result<OwnedFd> {
    for slot in 0..SLOTS {
        let name = format!("slot-{slot}");
        match mkdirat(directory, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = place::open(directory, Path::new(&name), flags, Mode::empty())?;
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(opened),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY)
}

/// Where a scratch directory or file is.
pub(crate) fn content(number: u64) -> PathBuf {
    PathBuf::from(format!("{number}/d"))
}

/// Makes an empty one with this mode, if it is a file; it has no path yet.
///
/// # Errors
/// As the system says.
pub(crate) fn make(base: &OwnedFd, number: u64, file: Option<Mode>) -> Result<()> {
    mkdirat(base, number.to_string(), Mode::RWXU)?;
    let Some(mode) = file else {
        return mkdirat(base, content(number), Mode::from_raw_mode(0o755));
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    // Without the bits of this process's umask.
    fchmod(place::open(base, &content(number), flags, mode)?, mode)
}

/// Says where one is in the workspace.
///
/// # Errors
/// As the system says.
pub(crate) fn set_path(base: &OwnedFd, number: u64, path: &WorkspacePath) -> Result<()> {
    write(base, &format!("{number}/new"), path.as_str().as_bytes())?;
    renameat(base, format!("{number}/new"), base, format!("{number}/path"))
}

fn is_root(facts: &Stat) -> bool {
    matches!(kind(facts), FileType::Directory | FileType::RegularFile)
}

/// Removes one with all that is in it.
///
/// # Errors
/// As the system says.
pub(crate) fn remove(base: &OwnedFd, number: u64) -> Result<()> {
    place::remove_all(base, &PathBuf::from(number.to_string()))
}

/// The numbers and paths of all that are kept. What is none that `rules` have is removed.
///
/// # Errors
/// As the system says.
pub(crate) fn load(base: &OwnedFd, rules: &Rules) -> Result<Vec<(u64, WorkspacePath)>> {
    let mut found: Vec<(u64, WorkspacePath)> = Vec::new();
    for entry in place::list(base)? {
        let Some(number) = entry.name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        let path = read(base, &format!("{number}/path"), MAX_PATH).ok();
        let path = path.and_then(|text| WorkspacePath::parse(&text).ok());
        let is_known = |path: &WorkspacePath| found.iter().any(|(_, known)| known == path);
        let has_content = place::stat(base, &content(number)).is_ok_and(|facts| is_root(&facts));
        match path.filter(|path| rules.keep() && rules.matches(path) && !is_known(path)) {
            Some(path) if has_content => found.push((number, path)),
            _ => remove(base, number)?,
        }
    }
    Ok(found)
}

/// The bytes and entries of what is kept: as the last session left them, or counted.
///
/// # Errors
/// As the system says.
pub(crate) fn usage(base: &OwnedFd, kept: &[(u64, WorkspacePath)]) -> Result<(u64, u64)> {
    let noted = read(base, USAGE, 64).ok();
    let noted = noted.as_deref().and_then(|text| text.trim().split_once(' '));
    let noted =
        noted.and_then(|(bytes, entries)| Some((bytes.parse().ok()?, entries.parse().ok()?)));
    if let Some(noted) = noted {
        // Until the end it is not true any more.
        place::remove(base, Path::new(USAGE), false)?;
        return Ok(noted);
    }
    let (mut bytes, mut entries) = (0_u64, 0);
    let mut linked = std::collections::HashSet::new();
    for (number, _) in kept {
        let top = place::stat(base, &content(*number))?;
        bytes = bytes.saturating_add(cost_of(&top));
        entries += 1;
        if kind(&top) != FileType::Directory {
            continue;
        }
        place::walk(base, &content(*number), false, &mut |_, facts| {
            let is_link = kind(facts) == FileType::RegularFile && facts.st_nlink > 1;
            if !is_link || linked.insert(facts.st_ino) {
                bytes = bytes.saturating_add(cost_of(facts));
                entries += 1;
            }
            Ok(())
        })?;
    }
    Ok((bytes, entries))
}

/// Notes what is kept.
///
/// # Errors
/// As the system says.
pub(crate) fn note_usage(base: &OwnedFd, (bytes, entries): (u64, u64)) -> Result<()> {
    write(base, USAGE, format!("{bytes} {entries}\n").as_bytes())
}

fn write(base: &OwnedFd, path: &str, text: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let file = place::open(base, Path::new(path), flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(text).map_err(|error| of(&error))
}

fn read(base: &OwnedFd, path: &str, most: u64) -> Result<String> {
    let file = place::open(base, Path::new(path), OFlags::RDONLY, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(most).read_to_string(&mut text).map_err(|error| of(&error))?;
    Ok(text)
}

fn of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
