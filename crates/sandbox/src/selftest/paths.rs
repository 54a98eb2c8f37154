//! Attempts of the self-test on the workspaces, the state directory and the operator's files.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode as FileMode, OFlags, StatxFlags, inotify, open, statx},
    io::Errno,
};

use super::attempt::{Attempts, Confinement, RequiredResult, TRACE, create, require};
use crate::messages::{Enter, Target};

/// `FUSE_SUPER_MAGIC` of statfs(2).
const FUSE: i64 = 0x6573_5546;

/// Adds attempts on the workspaces, the state directory and the operator's
/// files.
pub(super) fn add<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    // An unprivileged user that root became first may never have had access.
    let able = spec.mode.is_root() || spec.mode.user().is_none();
    let must = if able { RequiredResult::BecomeRefused } else { RequiredResult::Fail };
    for target in &spec.targets {
        let what = &target.role;
        list.add(must, true, format!("open the {what}"), move || same(target, &target.path, true));
        if spec.mode.is_full() {
            list.add(must, true, format!("stat the {what}"), move || {
                same(target, &target.path, false)
            });
        }
        if confinement.proc {
            for root in ["/proc/self/root", "/proc/1/root", "/proc/1/cwd"] {
                let path = PathBuf::from(format!("{root}{}", target.path.display()));
                list.add(
                    RequiredResult::Fail,
                    false,
                    format!("open the {what} through {root}"),
                    move || same(target, &path, true),
                );
            }
        }
    }
    for (what, path) in spec.workspaces() {
        let trace = path.join(TRACE);
        if confinement.mount {
            // The policy may let nothing be listed.
            let name = format!("look at the {what} through its mount");
            list.add(RequiredResult::Succeed, false, name, move || {
                let facts = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE)?;
                require(FileType::from_raw_mode(facts.stx_mode.into()).is_dir())
            });
            let name = format!("have the mount of the {what} served by the gateway");
            list.add(RequiredResult::Succeed, false, name, move || {
                require(rustix::fs::statfs(path)?.f_type == FUSE)
            });
            // The gateway refuses pipes under every policy, and the name under many.
            let name = format!("be refused a pipe in the {what} through its mount");
            list.add(RequiredResult::Succeed, false, name, move || {
                let made = rustix::fs::mknodat(CWD, &trace, FileType::Fifo, FileMode::RUSR, 0);
                if made.is_ok() {
                    rustix::fs::unlink(&trace)?;
                }
                require(matches!(made, Err(Errno::PERM | Errno::ACCESS)))
            });
        } else {
            let name = format!("create a file in the {what}");
            list.add(RequiredResult::Fail, false, name, move || create(&trace));
            list.add(
                RequiredResult::Fail,
                false,
                format!("change the mode of the {what}"),
                move || Ok(rustix::fs::chmod(path, FileMode::from_raw_mode(0o755))?),
            );
        }
    }
    if !spec.mode.is_full() {
        list.add(RequiredResult::Filtered, true, "watch files", || {
            inotify::init(inotify::CreateFlags::CLOEXEC).map(drop)?;
            Ok(())
        });
    }
}

/// Succeeds if `path` leads to `target`.
fn same(target: &Target, path: &Path, opened: bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let facts = if opened {
        let handle = open(path, flags, FileMode::empty())?;
        statx(handle, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?
    } else {
        statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?
    };
    if (facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino) == target.identity {
        Ok(())
    } else {
        // Another file has that name here.
        Err(Errno::NOENT.into())
    }
}

/// Returns the identity that [`same`] compares.
pub(in super::super) fn identity(path: &Path) -> io::Result<(u32, u32, u64)> {
    let facts = statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?;
    Ok((facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino))
}
