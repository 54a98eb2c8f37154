//! Test that a process that serves cannot reach files of others, made before
//! and after it is confined.
//!
//! Confinement took away what could be opened before and cannot be opened
//! after. Nothing is read or changed, except a file made for the test.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

/// Paths that must be out of reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachablePaths {
    /// A file that the process may read and change before it is confined. If it
    /// cannot, the test proves nothing.
    pub control: PathBuf,
    /// Directories and files of others; those that do not exist count as out of
    /// reach.
    pub others: Vec<PathBuf>,
}

/// Result of the test.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationReport {
    /// Number of paths that could be opened before.
    pub before: usize,
    /// Number of paths that were tried.
    pub tried: usize,
}

/// The process is not kept apart, or that cannot be tested.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsolationError {
    /// The control cannot be opened to begin with.
    #[error("the test of its separation cannot be made: `{}` cannot be opened to begin with", .0.display())]
    NoControl(PathBuf),
    /// A path can still be opened.
    #[error("it can open `{}`, which is not its own", .0.display())]
    Open(PathBuf),
}

impl UnreachablePaths {
    /// Tries the paths before the process is confined; follow it by
    /// [`IsolationBaseline::after`].
    ///
    /// # Errors
    /// If the control cannot be opened.
    pub fn before(&self) -> Result<IsolationBaseline<'_>, IsolationError> {
        if !opens(&self.control, true) {
            return Err(IsolationError::NoControl(self.control.clone()));
        }
        let before = 1 + self.others.iter().filter(|path| opens(path, false)).count();
        Ok(IsolationBaseline { unreachable: self, before })
    }
}

/// Result of the attempts before confinement.
#[derive(Debug)]
pub struct IsolationBaseline<'a> {
    unreachable: &'a UnreachablePaths,
    before: usize,
}

impl IsolationBaseline<'_> {
    /// Tries the paths again in the confined process.
    ///
    /// # Errors
    /// If any path can still be opened.
    pub fn after(self) -> Result<IsolationReport, IsolationError> {
        let UnreachablePaths { control, others } = self.unreachable;
        if opens(control, true) || opens(control, false) {
            return Err(IsolationError::Open(control.clone()));
        }
        match others.iter().find(|path| opens(path, false)) {
            Some(path) => Err(IsolationError::Open(path.clone())),
            None => Ok(IsolationReport { before: self.before, tried: others.len() + 1 }),
        }
    }
}

/// True if the path can be opened. Neither blocks on a FIFO nor takes a
/// controlling terminal.
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
        let unreachable =
            UnreachablePaths { control: control.clone(), others: vec![place.path().into()] };
        assert_eq!(unreachable.before().unwrap_err(), IsolationError::NoControl(control.clone()));
        rustix::fs::open(&control, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        let looked = unreachable.before().unwrap();
        assert_eq!(looked.before, 2);
        assert_eq!(looked.after().unwrap_err(), IsolationError::Open(control.clone()));
        rustix::fs::unlink(&control).unwrap();
        let looked = IsolationBaseline { unreachable: &unreachable, before: 2 };
        assert_eq!(looked.after().unwrap_err(), IsolationError::Open(place.path().into()));
    }
}
