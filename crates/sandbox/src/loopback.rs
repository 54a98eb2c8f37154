//! The loopback interface of a new network namespace, which is down there
//! (rtnetlink(7)).

use std::{io, os::fd::OwnedFd};

use nix::libc;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink, recv,
    sendto, socket_with,
};

/// The kernel gives the loopback interface this number in every namespace.
const LOOPBACK: i32 = 1;

/// Sets up the loopback interface of this network namespace.
pub(super) fn up() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // `NETLINK_ROUTE` has the number 0.
        None,
    )?;
    sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    acknowledged(&socket)
}

/// `RTM_NEWLINK` with the flag `IFF_UP`: `struct nlmsghdr`, then `struct ifinfomsg`.
fn request() -> Vec<u8> {
    let up = libc::IFF_UP.to_ne_bytes();
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or_default();
    let parts: [&[u8]; 8] = [
        &32_u32.to_ne_bytes(),
        &libc::RTM_NEWLINK.to_ne_bytes(),
        &flags.to_ne_bytes(),
        // Sequence and port.
        &[0; 8],
        // Family, padding and type.
        &[0; 4],
        &LOOPBACK.to_ne_bytes(),
        // The flags, and which of them to change.
        &up,
        &up,
    ];
    parts.concat()
}

/// Reads the kernel's answer: `struct nlmsghdr` and a negative error number or 0.
fn acknowledged(socket: &OwnedFd) -> io::Result<()> {
    let mut answer = [0; 256];
    let (length, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    let answer = answer.get(..length).unwrap_or_default();
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match error {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
