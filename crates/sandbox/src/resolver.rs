//! The files by which the system's resolver finds the addresses of a name (resolver(5), nss(5)).

use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, OFlags, fstat, open, readlink};

use super::process;

const FILES: [&str; 6] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
];

/// Directory in which services replace such a file whenever the network changes. Access to the
/// file's directory is granted there.
const REPLACED: &str = "/run";

/// The files that a connector which is confined now may read, by device and inode. A file that
/// takes the place of one of them is not among them.
#[derive(Debug, PartialEq, Eq)]
pub struct ResolverFiles(Vec<(u64, u64)>);

impl ResolverFiles {
    /// Reads the current ones.
    pub fn look() -> Self {
        let files = files().into_iter().filter_map(|file| fstat(file).ok());
        Self(files.map(|stat| (stat.st_dev, stat.st_ino)).collect())
    }
}

/// Opens the files that exist, as paths only.
pub(super) fn files() -> Vec<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let files = FILES.iter().filter_map(|path| open(*path, flags, Mode::empty()).ok());
    let named = |file: OwnedFd| {
        let path = readlink(process::of_descriptor(&file), Vec::new()).ok();
        let path = path.and_then(|path| path.into_string().ok());
        let directory = path.as_deref().and_then(|path| Path::new(path).parent());
        let directory = directory.filter(|path| path.starts_with(REPLACED));
        directory.and_then(|path| open(path, flags, Mode::empty()).ok()).unwrap_or(file)
    };
    files.map(named).collect()
}
