//! Whether a process that serves is kept from what is not its own: tried before
//! and after it is confined.
//!
//! What could be opened before and cannot be opened after is what confinement
//! took away. Nothing is read or changed, but for one file made for the purpose.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

/// What must be out of reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// A file that the process may read and change before it is confined: if it
    /// cannot, the test proves nothing.
    pub control: PathBuf,
    /// Directories and files of others; those that are not there count as out of
    /// reach.
    pub others: Vec<PathBuf>,
}

/// What was found.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// How many places could be opened before.
    pub before: usize,
    /// How many were tried.
    pub tried: usize,
}

/// The process is not kept apart, or that cannot be told.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TooFar {
    /// The control failed.
    #[error("the test of its separation cannot be made: `{}` cannot be opened to begin with", .0.display())]
    NoControl(PathBuf),
    /// A place can still be opened.
    #[error("it can open `{}`, which is not its own", .0.display())]
    Open(PathBuf),
}

impl Outside {
    /// Looks before the process is confined; to be followed by
    /// [`Looked::after`].
    ///
    /// # Errors
    /// When the control cannot be opened.
    pub fn before(&self) -> Result<Looked<'_>, TooFar> {
        if !opens(&self.control, true) {
            return Err(TooFar::NoControl(self.control.clone()));
        }
        let before = 1 + self.others.iter().filter(|path| opens(path, false)).count();
        Ok(Looked { outside: self, before })
    }
}

/// What was there before.
#[derive(Debug)]
pub struct Looked<'a> {
    outside: &'a Outside,
    before: usize,
}

impl Looked<'_> {
    /// Looks again in the confined process.
    ///
    /// # Errors
    /// When anything can still be opened.
    pub fn after(self) -> Result<Apart, TooFar> {
        let Outside { control, others } = self.outside;
        if opens(control, true) || opens(control, false) {
            return Err(TooFar::Open(control.clone()));
        }
        match others.iter().find(|path| opens(path, false)) {
            Some(path) => Err(TooFar::Open(path.clone())),
            None => Ok(Apart { before: self.before, tried: others.len() + 1 }),
        }
    }
}

/// Neither blocks on a FIFO nor takes a terminal.
fn opens(path: &Path, write: bool) -> bool {
    let how = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = how | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    open(path, flags, Mode::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_open_is_found_and_a_missing_control_too() {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control");
        let outside = Outside { control: control.clone(), others: vec![place.path().into()] };
        assert_eq!(outside.before().unwrap_err(), TooFar::NoControl(control.clone()));
        rustix::fs::open(&control, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        let looked = outside.before().unwrap();
        assert_eq!(looked.before, 2);
        assert_eq!(looked.after().unwrap_err(), TooFar::Open(control.clone()));
        rustix::fs::unlink(&control).unwrap();
        let looked = Looked { outside: &outside, before: 2 };
        assert_eq!(looked.after().unwrap_err(), TooFar::Open(place.path().into()));
    }
}
