//! The mounts that this process sees, from `/proc/self/mountinfo`
//! (proc_pid_mountinfo(5)), and the location of paths in their file systems.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};

use super::process::{no_proc, of_descriptor};

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountEntry {
    pub(super) id: u64,
    /// `major:minor` of the file system.
    pub(super) device: String,
    /// The directory of the file system that is mounted.
    pub(super) root: PathBuf,
    /// The mount point.
    pub(super) point: PathBuf,
    /// Per-mount options, such as `ro` and `nosuid`.
    pub(super) options: Vec<String>,
}

/// A location in a file system, independent of the names that lead to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) device: String,
    pub(super) path: PathBuf,
}

impl Location {
    /// Returns this location, then those that contain it, up to the file
    /// system's root.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = Self> {
        self.path
            .ancestors()
            .map(|path| Self { device: self.device.clone(), path: path.to_owned() })
    }
}

/// All mounts of this process's mount namespace.
#[derive(Debug, Clone)]
pub(super) struct Mounts(Vec<MountEntry>);

impl Mounts {
    /// Reads the table.
    pub(super) fn read() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = open("/proc/self/mountinfo", flags, Mode::empty()).map_err(no_proc)?;
        let mut text = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(table), &mut text)?;
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        text.split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                parse_line(line).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidData, "unexpected line in mountinfo")
                })
            })
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Returns the mount that `path`, which exists, lies on.
    pub(super) fn of(&self, path: &Path) -> io::Result<&MountEntry> {
        let facts = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)?;
        self.0
            .iter()
            .find(|mount| mount.id == facts.stx_mnt_id)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the mount is not in mountinfo"))
    }

    /// Returns the mounts beneath `directory`, without that at it.
    pub(super) fn under(&self, directory: &Path) -> impl Iterator<Item = &MountEntry> {
        self.0.iter().filter(move |m| m.point.starts_with(directory) && m.point != directory)
    }

    /// Returns the location of `path`, which is canonical but need not exist.
    pub(super) fn locate(&self, path: &Path) -> io::Result<Location> {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let mut base = path;
        let mount = loop {
            match self.of(base) {
                Ok(mount) => break mount,
                Err(e) if matches!(e.kind(), NotFound | NotADirectory | PermissionDenied) => {
                    base = base.parent().ok_or(e)?;
                }
                Err(e) => return Err(e),
            }
        };
        let within = path.strip_prefix(&mount.point).map_err(io::Error::other)?;
        Ok(Location { device: mount.device.clone(), path: join(&mount.root, within) })
    }

    /// Returns the locations of the mounts beneath `directory`.
    pub(super) fn locate_under(&self, directory: &Path) -> impl Iterator<Item = Location> {
        self.under(directory)
            .map(|mount| Location { device: mount.device.clone(), path: mount.root.clone() })
    }
}

fn join(root: &Path, within: &Path) -> PathBuf {
    if within.as_os_str().is_empty() { root.to_owned() } else { root.join(within) }
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let _parent = fields.next()?;
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?);
    let options = options.split(',').map(str::to_owned).collect();
    Some(MountEntry { id, device, root, point, options })
}

/// Decodes `\040` and the like: octal codes of the characters that separate
/// fields.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns the canonical path of a path that exists.
pub(super) fn existing(path: &Path) -> io::Result<PathBuf> {
    let handle = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = of_descriptor(&handle);
    let name = rustix::fs::readlink(link, Vec::new()).map_err(no_proc)?;
    let whole = PathBuf::from(OsString::from_vec(name.into_bytes()));
    if !whole.is_absolute() || whole.as_os_str().as_bytes().ends_with(b" (deleted)") {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(whole)
}

/// Opens the file that has this canonical path now; a link that replaces it
/// meanwhile is not followed.
///
/// # Errors
/// If any part of the path is a link.
pub(super) fn without_links(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        let text = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 36 0:21 / /mnt\\0402/proc ro,nosuid - proc proc rw\n";
        let mounts = Mounts::parse(text).unwrap();
        let first = mounts.0.first().unwrap();
        assert_eq!(first.point, Path::new("/mnt 2"));
        assert_eq!(first.root, Path::new("/mnt1"));
        assert_eq!(first.device, "98:0");
        assert_eq!(mounts.under(Path::new("/mnt 2")).count(), 1);
        assert!(Mounts::parse(b"nonsense\n").is_err());
    }

    #[test]
    fn what_is_missing_lies_where_it_would_be_made() {
        let mounts = Mounts::read().unwrap();
        let tmp = tempfile::tempdir().unwrap();
        let base = existing(tmp.path()).unwrap();
        let here = mounts.locate(&base).unwrap();
        let deep = mounts.locate(&base.join("not/there")).unwrap();
        assert!(deep.ancestors().any(|above| above == here));
        let proc = mounts.locate(Path::new("/proc")).unwrap();
        assert!(!here.ancestors().any(|above| above == proc));
    }

    #[test]
    fn a_name_that_became_a_link_is_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let base = existing(tmp.path()).unwrap();
        rustix::fs::mkdir(base.join("real"), Mode::RWXU).unwrap();
        rustix::fs::mkdir(base.join("real/inner"), Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        assert!(without_links(&base.join("real/inner")).is_ok());
        assert!(without_links(&base.join("link/inner")).is_err());
        assert!(without_links(&base.join("link")).is_err());
    }
}
