//! Locations of directories and files, independent of the names that lead to
//! them, and which of many lie in which.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::mounts::{Location, Mounts};

/// An identity of a directory or file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Its canonical path.
    Name(PathBuf),
    /// Its location in a file system, independent of mount points.
    Location(Location),
    /// Its device and inode: a file system may have several names for it.
    Inode(u32, u32, u64),
}

/// The location of a directory or file.
#[derive(Default)]
pub(super) struct FileLocation {
    /// All keys of itself, and the locations of the mounts in it.
    own: Vec<Key>,
    /// The keys of everything that contains these.
    above: Vec<Key>,
}

impl FileLocation {
    /// True if both are at least partly on one file system, by their mounts or
    /// their inodes: some file systems report different devices for the two.
    pub(super) fn shares_device(&self, other: &Self) -> bool {
        let others: BTreeSet<_> = other.devices().collect();
        self.devices().any(|device| others.contains(&device))
    }

    fn devices(&self) -> impl Iterator<Item = String> {
        self.own.iter().filter_map(|key| match key {
            Key::Name(_) => None,
            Key::Location(location) => Some(location.device.clone()),
            Key::Inode(major, minor, _) => Some(format!("{major}:{minor}")),
        })
    }
}

/// The machine's mounts, and a cache of the directories that were looked up.
pub(super) struct FileLocator {
    mounts: Mounts,
    seen: RefCell<HashMap<PathBuf, Rc<[Key]>>>,
}

impl FileLocator {
    pub(super) fn read() -> io::Result<Self> {
        Ok(Self { mounts: Mounts::read()?, seen: RefCell::default() })
    }

    /// Returns the location of a file or directory, with all mounts in it. Only
    /// the beginnings of its canonical paths need exist.
    pub(super) fn location<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> io::Result<FileLocation> {
        let mut location = FileLocation::default();
        for path in paths {
            self.add(&mut location, path)?;
            for mounted in self.mounts.locate_under(path) {
                location.above.extend(mounted.ancestors().skip(1).map(Key::Location));
                location.own.push(Key::Location(mounted));
            }
        }
        Ok(location)
    }

    /// Returns the location of a directory itself.
    pub(super) fn directory(&self, path: &Path) -> io::Result<FileLocation> {
        let mut location = FileLocation::default();
        self.add(&mut location, path)?;
        Ok(location)
    }

    fn add(&self, location: &mut FileLocation, path: &Path) -> io::Result<()> {
        location.own.extend_from_slice(&self.keys(path)?);
        for above in path.ancestors().skip(1) {
            location.above.extend_from_slice(&self.keys(above)?);
        }
        let here = self.mounts.locate(path)?;
        location.above.extend(here.ancestors().skip(1).map(Key::Location));
        Ok(())
    }

    fn keys(&self, path: &Path) -> io::Result<Rc<[Key]>> {
        use rustix::io::Errno;
        if let Some(keys) = self.seen.borrow().get(path) {
            return Ok(keys.clone());
        }
        let mut keys = vec![Key::Name(path.to_owned()), Key::Location(self.mounts.locate(path)?)];
        match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO) {
            Ok(facts) => {
                keys.push(Key::Inode(facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino));
            }
            // A path that does not exist yet has no inode.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
        let keys: Rc<[Key]> = keys.into();
        self.seen.borrow_mut().insert(path.to_owned(), keys.clone());
        Ok(keys)
    }
}

/// Places by number, found by what lies in them.
pub(super) struct Index(HashMap<Key, Vec<usize>>);

impl Index {
    pub(super) fn of<'a>(locations: impl Iterator<Item = &'a FileLocation>) -> Self {
        let mut index: HashMap<_, Vec<_>> = HashMap::new();
        for (number, location) in locations.enumerate() {
            for key in &location.own {
                index.entry(key.clone()).or_default().push(number);
            }
        }
        Self(index)
    }

    /// Returns the numbers of the locations that are `location` or contain it, or
    /// contain a mount in it.
    pub(super) fn around(&self, location: &FileLocation) -> impl Iterator<Item = usize> {
        self.found(location.own.iter().chain(&location.above))
    }

    /// Returns the same without those that are `location` itself.
    pub(super) fn above(&self, location: &FileLocation) -> impl Iterator<Item = usize> {
        let own: BTreeSet<_> = self.found(location.own.iter()).collect();
        self.found(location.above.iter()).filter(move |number| !own.contains(number))
    }

    fn found<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> impl Iterator<Item = usize> {
        let found: BTreeSet<_> =
            keys.filter_map(|key| self.0.get(key)).flatten().copied().collect();
        found.into_iter()
    }
}
