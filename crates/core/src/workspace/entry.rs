//! Attributes of an entry of an open directory: one call and no descriptor, if the kernel reports
//! enough.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags, statx};

use super::{Stat, beneath::open_beneath};

/// Returns the attributes of the entry `name`, one component, of `dir`, without following a link;
/// `None` if it is missing, cannot be looked at, or is a mount point.
///
/// A single component is looked up in an open directory, so nothing leads elsewhere; a mount, which
/// `openat2` refuses, the kernel reports in the attributes.
pub(super) fn look(dir: BorrowedFd<'_>, name: &str) -> Option<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let Ok(raw) = statx(dir, name, flags, StatxFlags::BASIC_STATS) else { return open(dir, name) };
    let tells_mounts = raw.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    let Some(stat) = Stat::from_statx(&raw).filter(|_| tells_mounts) else {
        return open(dir, name);
    };
    (!raw.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)).then_some(stat)
}

/// Opens the entry for its attributes, if the kernel does not report them, or a filter forbids the
/// call.
fn open(dir: BorrowedFd<'_>, name: &str) -> Option<Stat> {
    let handle = open_beneath(dir, name, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
    Stat::of(handle).ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "makes the files that it looks at")]

    use std::os::{fd::AsFd as _, unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn one_call_tells_what_a_handle_tells() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "content").unwrap();
        std::fs::hard_link(at("file"), at("again")).unwrap();
        std::fs::set_permissions(at("file"), std::fs::Permissions::from_mode(0o4750)).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("link")).unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        for name in ["file", "again", "directory", "link"] {
            let (one, other) = (look(fd.as_fd(), name), open(fd.as_fd(), name));
            assert!(one.is_some() && one == other, "{name}: {one:?} {other:?}");
        }
        assert_eq!(look(fd.as_fd(), "nothing"), None);
    }

    #[test]
    fn another_file_system_is_no_entry() {
        let root = std::fs::File::open("/").unwrap();
        assert_eq!((look(root.as_fd(), "proc"), open(root.as_fd(), "proc")), (None, None));
    }
}
