//! The routes of this machine, by which it knows the networks that it is on.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::{Errno, pread},
};

/// Maximum of bytes of a table.
const MAX_TABLE: usize = 4 << 20;
/// Lengths of the shortest prefixes of a network that this machine can be on. Shorter ones without a
/// gateway lead through tunnels to everywhere.
const MIN_LENGTHS: (u32, u32) = (8, 32);
/// `RTF_GATEWAY` and `RTF_REJECT` of `route.h`.
const GATEWAY: u32 = 0x2;
const REJECT: u32 = 0x200;

/// The kernel's tables of routes, opened before this process was confined.
#[derive(Debug)]
pub struct Routes {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl Routes {
    /// Opens the tables. The kernel has none for a version of IP that it does not support.
    ///
    /// # Errors
    /// Of the system.
    pub fn open() -> io::Result<Self> {
        let table = |path| match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(table) => Ok(Some(table)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(io::Error::from(errno)),
        };
        Ok(Self { v4: table("/proc/net/route")?, v6: table("/proc/net/ipv6_route")? })
    }

    /// Returns for each address whether this machine reaches it without a gateway.
    ///
    /// # Errors
    /// When a table cannot be read completely.
    pub(crate) fn are_on_link(&self, addresses: &[IpAddr]) -> io::Result<Vec<bool>> {
        let addresses: Vec<_> = addresses.iter().map(IpAddr::to_canonical).collect();
        // A table that is not needed refuses nothing.
        let v4 = self.v4.as_ref().filter(|_| addresses.iter().any(IpAddr::is_ipv4));
        let v6 = self.v6.as_ref().filter(|_| addresses.iter().any(IpAddr::is_ipv6));
        let (v4, v6) = (read(v4)?, read(v6)?);
        let is_on_link = |address| match address {
            IpAddr::V4(address) => is_on_link_v4(&v4, address),
            IpAddr::V6(address) => is_on_link_v6(&v6, address),
        };
        addresses.into_iter().map(is_on_link).collect()
    }
}

/// Reads a table as it is now.
fn read(table: Option<&OwnedFd>) -> io::Result<String> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let Some(table) = table else { return Ok(String::new()) };
    loop {
        match pread(table, &mut piece, bytes.len() as u64) {
            Ok(0) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(count) => bytes.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if bytes.len() > MAX_TABLE {
            return Err(io::Error::other("the table of routes is larger than 4 MiB"));
        }
    }
}

/// A route: the length of its prefix, and whether it has no gateway.
type Route = (u32, bool);

/// Returns true if the route with the longest prefix has no gateway. `route` parses a line: `None` if
/// it is malformed, `Some(None)` for a route to other addresses.
fn is_direct<'t>(
    mut lines: impl Iterator<Item = &'t str>,
    route: impl Fn(&[&str]) -> Option<Option<Route>>,
    min: u32,
) -> io::Result<bool> {
    let longest = lines.try_fold(None, |longest: Option<Route>, line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        route(&fields).map(|route| longest.max(route))
    });
    let longest = longest.ok_or_else(|| io::Error::other("the table of routes is malformed"))?;
    Ok(longest.is_some_and(|(length, is_direct)| is_direct && length >= min))
}

fn number(fields: &[&str], at: usize) -> Option<u32> {
    u32::from_str_radix(fields.get(at)?, 16).ok()
}

fn is_on_link_v4(table: &str, address: Ipv4Addr) -> io::Result<bool> {
    let address = address.to_bits();
    let route = |fields: &[&str]| {
        // The addresses are printed as numbers of this machine's byte order.
        let network = |at| Some(u32::from_be(number(fields, at)?));
        let (to, flags, mask) = (network(1)?, number(fields, 3)?, network(7)?);
        let is_about = address & mask == to && flags & REJECT == 0;
        Some(is_about.then_some((mask.leading_ones(), flags & GATEWAY == 0)))
    };
    // The first line has the names of the fields.
    is_direct(table.lines().skip(1), route, MIN_LENGTHS.0)
}

fn is_on_link_v6(table: &str, address: Ipv6Addr) -> io::Result<bool> {
    let address = address.to_bits();
    let route = |fields: &[&str]| {
        let to = u128::from_str_radix(fields.first()?, 16).ok()?;
        let (length, flags) = (number(fields, 1)?, number(fields, 8)?);
        let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
        let is_about = address & mask == to && flags & REJECT == 0;
        Some(is_about.then_some((length, flags & GATEWAY == 0)))
    };
    is_direct(table.lines(), route, MIN_LENGTHS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_decides() {
        let route = |to: [u8; 4], flags: u32, mask: [u8; 4]| {
            let [to, mask] = [to, mask].map(u32::from_ne_bytes);
            format!("eth0\t{to:08X}\t00000000\t{flags:04X}\t0\t0\t0\t{mask:08X}\t0\t0\t0\n")
        };
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n".to_owned()
            + &route([0, 0, 0, 0], 1, [0, 0, 0, 0])
            + &route([203, 0, 112, 0], 1, [255, 255, 255, 0])
            + &route([203, 0, 112, 128], 3, [255, 255, 255, 128])
            + &route([198, 51, 0, 0], 0x201, [255, 255, 0, 0]);
        let direct = |last: [u8; 4]| is_on_link_v4(&table, last.into()).unwrap();
        assert!(direct([203, 0, 112, 2]));
        for other in [[203, 0, 112, 129], [203, 0, 113, 2], [8, 8, 8, 8], [198, 51, 1, 1]] {
            assert!(!direct(other), "{other:?}");
        }
        let zero = "0".repeat(32);
        let route = |to: &str, length: &str, flags: &str| {
            format!("{to} {length} {zero} 00 {zero} 00000400 00000001 00000000 {flags} eth0\n")
        };
        let table = route("2a001450400100000000000000000000", "40", "00000001")
            + &route(&zero, "00", "00000003")
            + &route("20000000000000000000000000000000", "03", "00000001");
        assert!(is_on_link_v6(&table, "2a00:1450:4001::2".parse().unwrap()).unwrap());
        for other in ["2a00:1450:4002::2", "2600::1"] {
            assert!(!is_on_link_v6(&table, other.parse().unwrap()).unwrap(), "{other}");
        }
        let cut = "Iface\tDestination\neth0\t0071";
        assert!(is_on_link_v4(cut, [203, 0, 112, 2].into()).is_err());
        assert!(is_on_link_v6("2a00 40", "2600::1".parse().unwrap()).is_err());
    }
}
