//! The file of segments' roots: reading and repairing it.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _},
};

use portcullis_audit::{Hash, ROOT_LINE, ROOTS, read_root_line};
use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};

use super::{Error, disk::Folder, quarantine, small_file};

/// Writes `count` lines, with those of `right` in place of the stored ones. Sets the old file aside
/// if it differs.
pub(super) fn mend(audit: &Folder, right: &BTreeMap<u64, Hash>, count: u64) -> Result<(), Error> {
    let open = || match audit.file(ROOTS, OFlags::RDONLY) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(audit.opening("open the segments' roots", ROOTS)(errno)),
    };
    let old = match open() {
        Err(Error::Irregular(..)) => return quarantine::take(audit, "roots", ROOTS),
        old => old?,
    };
    let Some(old) = old else { return Ok(()) };
    let length = old.metadata().map_err(Error::std("read the segments' roots"))?.len();
    let (mut new, is_same) =
        lines(old, right, count).map_err(Error::std("read the segments' roots"))?;
    if is_same && new.len() as u64 == length {
        return Ok(());
    }
    if length > quarantine::MAX_ASIDE {
        return Err(Error::TooLong(ROOTS.to_owned(), length));
    }
    if let Some(old) = open()? {
        quarantine::keep(audit, "roots", old).map_err(|error| error.of(ROOTS))?;
    }
    // The next root must begin a line.
    if new.last().is_some_and(|byte| *byte != b'\n') {
        new.push(b'\n');
    }
    small_file::write(audit, ROOTS, &new, RenameFlags::empty())
}

/// Reads the first stored roots, at most `count`, up to an invalid line: a torn root counts as
/// missing, and none after it is valid.
pub(super) fn read(audit: &Folder, count: u64) -> Result<Vec<Hash>, Error> {
    let file = match audit.file(ROOTS, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(audit.opening("open the segments' roots", ROOTS)(errno)),
    };
    let (mut file, mut roots, mut line) = (BufReader::new(file), Vec::new(), Vec::new());
    while (roots.len() as u64) < count {
        line.clear();
        let read = (&mut file).take(ROOT_LINE).read_until(b'\n', &mut line);
        read.map_err(Error::std("read the segments' roots"))?;
        let text = str::from_utf8(line.strip_suffix(b"\n").unwrap_or(&line));
        let Some(root) = text.ok().and_then(|text| text.parse().ok()) else { break };
        roots.push(root);
    }
    Ok(roots)
}

/// Returns the lines that stay, read as a verifier reads them, and true if all are the stored ones.
fn lines(
    old: impl io::Read,
    right: &BTreeMap<u64, Hash>,
    count: u64,
) -> io::Result<(Vec<u8>, bool)> {
    let mut old = BufReader::new(old);
    let (mut new, mut line, mut is_same) = (Vec::new(), Vec::new(), true);
    for number in 0..count {
        line.clear();
        let length = read_root_line(&mut old, &mut line)?;
        if length == 0 {
            break;
        }
        match right.get(&number) {
            Some(root) => {
                new.extend(format!("{root}\n").bytes());
                is_same = false;
            }
            // An invalid root becomes an empty line, which is none either.
            None if length > ROOT_LINE => {
                new.push(b'\n');
                is_same = false;
            }
            None => new.extend(&line),
        }
    }
    Ok((new, is_same))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_stays_one_line() {
        let root = Hash::of(b"x");
        let old = format!("{}\n{root}\n", "x".repeat(70));
        let (new, is_same) = lines(old.as_bytes(), &BTreeMap::new(), 2).unwrap();
        assert_eq!((String::from_utf8(new).unwrap(), is_same), (format!("\n{root}\n"), false));
        let right = BTreeMap::from([(0, root)]);
        let (new, _) = lines(old.as_bytes(), &right, 2).unwrap();
        assert_eq!(String::from_utf8(new).unwrap(), format!("{root}\n{root}\n"));
    }
}
