//! Names of a directory in a stream, for callers that cannot store all of them.

use std::{ops::ControlFlow, os::fd::AsFd};

use rustix::fs::{FileType, RawDir};

use super::{Error, TempName};
use crate::policy::ObjectKind;

/// Size of the buffer for directory entries, in bytes.
const BUFFER_SIZE: usize = 32 * 1024;

/// Reads the directory behind `dir` and passes each name with the kind that the directory reports
/// (`None` if it does not) to `visit` until that breaks; in no order. Names reserved for the
/// gateway are left out. Returns the number of names that are not UTF-8 and so were not passed.
///
/// # Errors
/// Of the system.
pub(crate) fn stream_names(
    dir: impl AsFd,
    mut visit: impl FnMut(&str, Option<ObjectKind>) -> ControlFlow<()>,
) -> Result<u64, Error> {
    let mut room: Vec<u8> = Vec::with_capacity(BUFFER_SIZE);
    let mut names = RawDir::new(dir, room.spare_capacity_mut());
    let mut not_utf8 = 0;
    while let Some(entry) = names.next() {
        let entry = entry.map_err(Error::os("read the directory"))?;
        let kind = match entry.file_type() {
            FileType::RegularFile => Some(ObjectKind::File),
            FileType::Directory => Some(ObjectKind::Directory),
            FileType::Symlink => Some(ObjectKind::Symlink),
            FileType::Fifo => Some(ObjectKind::Fifo),
            FileType::Socket => Some(ObjectKind::Socket),
            FileType::CharacterDevice | FileType::BlockDevice => Some(ObjectKind::Device),
            FileType::Unknown => None,
        };
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) if TempName::is_reserved_name(name) => {}
            Ok(name) => {
                if visit(name, kind).is_break() {
                    break;
                }
            }
            Err(_) => not_utf8 += 1,
        }
    }
    Ok(not_utf8)
}
