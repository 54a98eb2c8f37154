//! Attempts of the self-test, and what they have in common.

use std::{io, path::Path};

use rustix::fs::{Mode, OFlags, open};

/// A file name that nothing else uses.
pub(super) const TRACE: &str = ".portcullis-self-test";

/// Permissions of the sandbox, as far as the self-test must know them.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Confinement {
    /// UDP sockets are allowed.
    pub(in super::super) udp: bool,
    /// UDP sockets reach name servers only.
    pub(in super::super) udp_ports: bool,
    /// UNIX sockets are allowed.
    pub(in super::super) unix: bool,
    /// Processes outside cannot be signalled.
    pub(in super::super) signals: bool,
    /// There is a `/proc`.
    pub(in super::super) proc: bool,
    /// There is a mount at the path of each workspace.
    pub(in super::super) mount: bool,
}

/// Required result of an attempt in the finished sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredResult {
    /// It fails, whatever the result was before.
    Fail,
    /// It fails, and succeeded before.
    BecomeRefused,
    /// It fails with `EPERM`, the error of the system call filter.
    Filtered,
    /// It succeeds.
    Succeed,
}

/// An attempt.
pub(super) struct Attempt<'a> {
    pub(super) name: String,
    pub(super) must: RequiredResult,
    /// True if it may be tried before confinement.
    pub(super) early: bool,
    pub(super) action: Box<dyn Fn() -> io::Result<()> + 'a>,
}

/// A list of attempts.
pub(super) struct Attempts<'a>(pub(super) Vec<Attempt<'a>>);

impl<'a> Attempts<'a> {
    pub(super) fn add(
        &mut self,
        must: RequiredResult,
        early: bool,
        name: impl Into<String>,
        action: impl Fn() -> io::Result<()> + 'a,
    ) {
        self.0.push(Attempt { name: name.into(), must, early, action: Box::new(action) });
    }
}

/// Creates and removes a file.
pub(super) fn create(path: &Path) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    open(path, flags, Mode::RUSR | Mode::WUSR).map(drop)?;
    Ok(rustix::fs::unlink(path)?)
}

/// Fails unless a condition holds.
pub(super) fn require(holds: bool) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
