//! Sockets that take no descriptors (`SCM_RIGHTS`). The kernel closes a descriptor that
//! was sent and is not taken in the thread that reads, and a socket that lingers keeps
//! that thread for as long as its sender likes.

use std::{io, os::fd::AsFd};

use nix::{
    errno::Errno,
    libc, setsockopt_impl,
    sys::socket::{setsockopt, sockopt::SetBool},
};

/// Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// True if descriptors may be sent to the socket.
#[derive(Debug, Clone, Copy)]
struct PassRights;

setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, SetBool);

/// Has the kernel refuse descriptors to those who send to `socket`, or to what is
/// accepted from it. Before Linux 6.16 nothing does.
///
/// # Errors
/// As the system says.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    match setsockopt(&socket, PassRights, &false) {
        Err(Errno::ENOPROTOOPT) => Ok(()),
        done => Ok(done?),
    }
}
