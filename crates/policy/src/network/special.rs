//! Addresses that are not globally routable: those of the special-purpose registries of IANA,
//! and those by which clouds give out credentials.
//!
//! Each of them leads to this machine or its surroundings, or through a translation or tunnel whose
//! far end was not decided on.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// IPv4 networks that are not globally routable, each with its kind.
const IPV4: [(Ipv4Net, &str); 17] = [
    (v4([0, 0, 0, 0], 8), "of this network"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared by customers of a provider"),
    (v4([127, 0, 0, 0], 8), "a loopback address"),
    (v4([168, 63, 129, 16], 32), "a metadata address"),
    (v4([169, 254, 169, 254], 32), "a metadata address"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "reserved for protocols"),
    (v4([192, 0, 2, 0], 24), "for documentation"),
    (v4([192, 88, 99, 0], 24), "a 6to4 relay"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "for benchmarks"),
    (v4([198, 51, 100, 0], 24), "for documentation"),
    (v4([203, 0, 113, 0], 24), "for documentation"),
    (v4([224, 0, 0, 0], 4), "a multicast address"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// IPv6 networks that are not globally routable, each with its kind. Of the other addresses only
/// those in 2000::/3 are global unicast.
const IPV6: [(Ipv6Net, &str); 15] = [
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "a loopback address"),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "an IPv4-mapped address"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "an IPv4-compatible address"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "a NAT64 address"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "a NAT64 address"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "a Teredo address"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "reserved for protocols"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "for documentation"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "for documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a 6to4 address"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "a multicast address"),
];

/// The network that is assigned for global unicast.
const GLOBAL_IPV6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// Returns the kind of an address that is not globally routable, as in "the address is KIND".
pub(super) fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => {
            IPV4.iter().find(|(network, _)| network.contains(&address)).map(|(_, kind)| *kind)
        }
        IpAddr::V6(address) => {
            let listed = IPV6.iter().find(|(network, _)| network.contains(&address));
            let reserved = (!GLOBAL_IPV6.contains(&address)).then_some("reserved");
            listed.map(|(_, kind)| *kind).or(reserved)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_globally_routable_has_a_kind() {
        for (address, wanted) in [
            ("0.0.0.0", "of this network"),
            ("10.1.2.3", "private"),
            ("100.100.100.200", "shared by customers of a provider"),
            ("127.255.0.1", "a loopback address"),
            ("168.63.129.16", "a metadata address"),
            ("169.254.169.254", "a metadata address"),
            ("169.254.170.2", "link-local"),
            ("172.31.255.255", "private"),
            ("192.0.0.192", "reserved for protocols"),
            ("192.168.0.1", "private"),
            ("198.19.255.255", "for benchmarks"),
            ("224.0.0.251", "a multicast address"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "a loopback address"),
            ("::ffff:93.184.216.34", "an IPv4-mapped address"),
            ("::93.184.216.34", "an IPv4-compatible address"),
            ("64:ff9b::7f00:1", "a NAT64 address"),
            ("64:ff9b:1::1", "a NAT64 address"),
            ("100::1", "reserved"),
            ("2001::1", "a Teredo address"),
            ("2001:20::1", "reserved for protocols"),
            ("2001:db8::1", "for documentation"),
            ("2002:7f00:1::", "a 6to4 address"),
            ("3fff::1", "for documentation"),
            ("5f00::1", "reserved"),
            ("fd00:ec2::254", "private"),
            ("fe80::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "a multicast address"),
        ] {
            assert_eq!(kind(address.parse().unwrap()), Some(wanted), "{address}");
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.32.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::1",
            "2003::1",
            "2a00:1450::1",
        ] {
            assert_eq!(kind(address.parse().unwrap()), None, "{address}");
        }
    }
}
