//! The file of segments' roots, when a repair puts it right.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _},
};

use portcullis_audit::{Hash, ROOT_LINE, ROOTS};
use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{Error, disk::Folder, quarantine, signing};

/// Keeps `count` lines, with those of `right` in place of what stands there. What
/// the file held is set aside, where that is something else.
pub(super) fn mend(audit: &Folder, right: &BTreeMap<u64, Hash>, count: u64) -> Result<(), Error> {
    let open = || match audit.file(ROOTS, OFlags::RDONLY) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::io("open the segments' roots")(errno)),
    };
    let Some(old) = open()? else { return Ok(()) };
    let length = old.metadata().map_err(Error::std("read the segments' roots"))?.len();
    let (mut new, is_same) =
        lines(old, right, count).map_err(Error::std("read the segments' roots"))?;
    if is_same && new.len() as u64 == length {
        return Ok(());
    }
    if let Some(old) = open()? {
        quarantine::keep(audit, "roots", old)?;
    }
    // What follows begins a line.
    if new.last().is_some_and(|byte| *byte != b'\n') {
        new.push(b'\n');
    }
    signing::write(audit, ROOTS, &new, RenameFlags::empty())
}

/// The lines that stay, read as a verifier reads them, and whether all are those
/// that stand there.
fn lines(
    old: impl io::Read,
    right: &BTreeMap<u64, Hash>,
    count: u64,
) -> io::Result<(Vec<u8>, bool)> {
    let mut old = BufReader::new(old);
    let (mut new, mut line, mut is_same) = (Vec::new(), Vec::new(), true);
    for number in 0..count {
        line.clear();
        if (&mut old).take(ROOT_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match right.get(&number) {
            Some(root) => {
                new.extend(format!("{root}\n").bytes());
                is_same = false;
            }
            None => new.extend(&line),
        }
    }
    Ok((new, is_same))
}
