//! Name aliases: names by which a file system finds an entry besides the one in its directory.
//! `ENV~1` and `.env::$DATA` are `.env` on VFAT, NTFS and SMB shares.
//!
//! The policy decides on names, so an entry is served there by the name that its directory has for
//! it, byte for byte, and by no other.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::{
    fs::{FsWord, OFlags, RawDir, fstatfs},
    io::Errno,
};

use super::beneath::open_beneath;

/// Size of the buffer for directory entries, in bytes.
const BUFFER_SIZE: usize = 32 * 1024;

/// The types (`statfs(2)`) of file systems that find an entry by one name alone. Some
/// of them ignore its case, as patterns of a policy do.
///
/// ZFS is not among them: with `normalization` its names are found by others that Unicode takes for
/// the same, of `formKC` and `formKD` also by those that look otherwise, as full-width letters do.
const ONE_NAME: [FsWord; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlay
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
];

/// True if entries of the directory behind `dir` may have name aliases. Everything beneath it is on
/// the same file system: no lookup crosses a mount.
pub(super) fn may_have_aliases(dir: BorrowedFd<'_>) -> bool {
    !fstatfs(dir).is_ok_and(|found| has_one_name(found.f_type))
}

fn has_one_name(file_system: FsWord) -> bool {
    ONE_NAME.contains(&file_system)
}

/// Searches for each component of `path` among the entries of its directory.
///
/// # Errors
/// [`Errno::NOENT`] for a name that is not among them, before it is looked up; errors of the
/// system.
pub(super) fn find_all(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = open_beneath(root, "", flags)?;
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        if !is_entry(&directory, name)? {
            return Err(Errno::NOENT);
        }
        if names.peek().is_some() {
            directory = match open_beneath(directory.as_fd(), name, flags) {
                // Another kind than a directory has no entries; the lookup reports that.
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                opened => opened?,
            };
        }
    }
    Ok(())
}

/// True if `name` is among the entries of the directory behind `dir`, byte for byte.
pub(super) fn lists(dir: BorrowedFd<'_>, name: &str) -> Result<bool, Errno> {
    // A descriptor of its own: other threads may read from the given one.
    is_entry(open_beneath(dir, "", OFlags::RDONLY | OFlags::DIRECTORY)?, name)
}

/// True if `name` is among the entries of a directory whose descriptor was not read from yet.
fn is_entry(directory: impl AsFd, name: &str) -> Result<bool, Errno> {
    let mut room: Vec<u8> = Vec::with_capacity(BUFFER_SIZE);
    let mut entries = RawDir::new(directory, room.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        if entry?.file_name().to_bytes() == name.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::has_one_name;

    /// Regression: `.env` was read with `normalization=formKC` by a name of full-width letters.
    #[test]
    fn zfs_may_find_an_entry_by_several_names() {
        assert!(!has_one_name(0x2fc1_2fc1) && has_one_name(0xef53));
    }
}
