//! The private keys of the machine, beside the certificates in `/etc` that every agent gets.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use rustix::fs::{Dir, FileType, Mode, OFlags, open};

use super::resolve::resolve;

/// Directories of `/etc` that programs read; read-only.
pub(super) const ETC_DIRECTORIES: [&str; 5] =
    ["/etc/ssl", "/etc/ca-certificates", "/etc/pki", "/etc/alternatives", "/etc/crypto-policies"];

/// Name of directories of private keys in these.
const KEYS: &str = "private";

/// Returns the directories of `/etc` that contain private keys beside what programs read, each with
/// the keys' directories: such as `/etc/ssl` and `/etc/ssl/private`. No agent gets those keys
/// unless they are granted by name: its user may be in their group, or root.
pub(super) fn with_keys() -> Vec<(PathBuf, Vec<PathBuf>)> {
    let found = ETC_DIRECTORIES.iter().filter_map(|directory| resolve(Path::new(directory)).ok());
    let keys = |directory: PathBuf| {
        let mut above = children(&directory);
        above.push(directory.clone());
        let keys = above.iter().map(|above| above.join(KEYS)).filter(|keys| is_directory(keys));
        (directory, keys.collect())
    };
    found
        .map(|found| keys(found.target))
        .filter(|(_, keys): &(_, Vec<_>)| !keys.is_empty())
        .collect()
}

/// Returns the contents of `directory` without its keys: a rule of Landlock cannot exclude paths.
pub(super) fn without_keys(directory: &Path, keys: &[PathBuf]) -> Vec<PathBuf> {
    let mut shown = Vec::new();
    for path in children(directory).into_iter().filter(|path| !keys.contains(path)) {
        match keys.iter().any(|keys| keys.starts_with(&path)) {
            true => shown.extend(without_keys(&path, keys)),
            false => shown.push(path),
        }
    }
    shown
}

fn children(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(handle) = open(directory, flags, Mode::empty()) else { return Vec::new() };
    let names = Dir::new(handle).into_iter().flatten().flatten();
    let names = names.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    names.filter(|name| name != "." && name != "..").map(|name| directory.join(name)).collect()
}

fn is_directory(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_dir())
}
