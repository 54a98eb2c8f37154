//! Attempts of the self-test on sockets.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
        getsockname, socket_with, socketpair,
    },
};

use super::attempt::{Attempts, Confinement, RequiredResult};
use crate::messages::Enter;

/// Adds attempts on sockets.
pub(super) fn add<'a>(spec: &'a Enter, confinement: &Confinement, list: &mut Attempts<'a>) {
    let open = |family, kind, protocol: u32| {
        move || {
            let protocol = std::num::NonZeroU32::new(protocol).map(Protocol::from_raw);
            socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop)?;
            Ok(())
        }
    };
    if spec.udp && confinement.udp_ports {
        list.add(
            RequiredResult::BecomeRefused,
            true,
            "send UDP to a port that is not a name server's",
            || {
                let flags = SocketFlags::CLOEXEC;
                let udp = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
                Ok(connect(
                    udp,
                    &SocketAddrV4::new(Ipv4Addr::LOCALHOST, spec.self_test_targets.port),
                )?)
            },
        );
    }
    if !confinement.udp {
        list.add(
            RequiredResult::Filtered,
            true,
            "open a UDP socket",
            open(AddressFamily::INET, SocketType::DGRAM, 0),
        );
    }
    for (name, family, kind, protocol) in [
        ("an MPTCP socket", AddressFamily::INET, SocketType::STREAM, 262),
        ("a raw socket", AddressFamily::INET, SocketType::RAW, 1),
        ("a VM socket", AddressFamily::VSOCK, SocketType::STREAM, 0),
    ] {
        list.add(
            RequiredResult::Filtered,
            true,
            format!("open {name}"),
            open(family, kind, protocol),
        );
    }
    let self_test_targets = &spec.self_test_targets;
    list.add(RequiredResult::BecomeRefused, true, "connect to a UNIX socket of the host", || {
        let address = SocketAddrUnix::new(&self_test_targets.socket)?;
        connect(unix()?, &address)?;
        Ok(())
    });
    list.add(RequiredResult::Fail, true, "connect to an abstract UNIX socket of the host", || {
        let address =
            SocketAddrUnix::new_abstract_name(self_test_targets.abstract_name.as_bytes())?;
        connect(unix()?, &address)?;
        Ok(())
    });
    let must =
        if spec.ports.is_some() { RequiredResult::BecomeRefused } else { RequiredResult::Fail };
    list.add(must, true, "connect to a TCP port that is not allowed", || {
        Ok(connect(tcp()?, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, self_test_targets.port))?)
    });
    if spec.ports.is_some() {
        list.add(
            RequiredResult::BecomeRefused,
            true,
            "bind to a TCP port that is not allowed",
            || {
                // The permission for port 0 covers no explicit port.
                let (_, address) = bound()?;
                Ok(bind(&tcp()?, &address)?)
            },
        );
    }
    if !confinement.unix {
        // The kernel makes a raw one a datagram one.
        for (name, kind) in [("datagram", SocketType::DGRAM), ("raw", SocketType::RAW)] {
            list.add(
                RequiredResult::Filtered,
                true,
                format!("open a UNIX {name} pair"),
                move || {
                    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map(drop)?;
                    Ok(())
                },
            );
        }
    }
}

pub(super) fn tcp() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Returns a socket bound to a port of 127.0.0.1 that the kernel picks.
pub(super) fn bound() -> io::Result<(OwnedFd, SocketAddrV4)> {
    let socket = tcp()?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    let address = getsockname(&socket)?.try_into().map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, address))
}

fn unix() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}
