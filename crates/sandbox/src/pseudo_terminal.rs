//! The pseudo-terminal of a program in the sandbox.
//!
//! It is made in the sandbox, by the stage that becomes the program, in the devpts instance there.
//! So it has a name in the sandbox and none on the host, where any program of the user could open
//! it, and it belongs to the agent's user. The outer end goes to the broker before anything else
//! runs in the sandbox.

use std::os::fd::OwnedFd;

use rustix::{
    process::ioctl_tiocsctty,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
};

/// A pair of ends.
#[derive(Debug)]
pub(super) struct PseudoTerminal {
    /// The end for the process that reads the program's output and writes its input.
    pub(super) outer: OwnedFd,
    /// The program's terminal.
    pub(super) inner: OwnedFd,
}

impl PseudoTerminal {
    /// Makes a pseudo-terminal, which is no process's controlling terminal yet.
    pub(super) fn open() -> rustix::io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let outer = openpt(flags)?;
        grantpt(&outer)?;
        unlockpt(&outer)?;
        let inner = ioctl_tiocgptpeer(&outer, flags)?;
        Ok(Self { outer, inner })
    }
}

/// Makes it the controlling terminal of this process, which leads its session.
pub(super) fn control(inner: &OwnedFd) -> rustix::io::Result<()> {
    ioctl_tiocsctty(inner)
}
