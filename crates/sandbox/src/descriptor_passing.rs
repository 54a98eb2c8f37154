//! Sockets that take no descriptors (`SCM_RIGHTS`). The thread that reads closes a descriptor that
//! was sent and is not taken, and a lingering socket blocks that close for as long as its sender
//! chooses.

use std::{io, os::fd::AsFd};

use nix::{
    errno::Errno,
    libc, setsockopt_impl,
    sys::socket::{setsockopt, sockopt::SetBool},
};

/// Since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// True if descriptors may be sent to the socket.
#[derive(Debug, Clone, Copy)]
struct PassRights;

setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, SetBool);

/// Has the kernel refuse descriptors sent to `socket`, or to connections accepted from it. Has no
/// effect before Linux 6.16.
///
/// # Errors
/// As the system reports.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    match setsockopt(&socket, PassRights, &false) {
        Err(Errno::ENOPROTOOPT) => Ok(()),
        done => Ok(done?),
    }
}
