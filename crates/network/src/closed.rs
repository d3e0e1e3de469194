//! Addresses that are nobody's on the internet: closed unless they are listed by themselves.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// A block of such addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    net: Ipv4Net,
    /// What one of its addresses is.
    pub(crate) what: &'static str,
}

const fn block(address: [u8; 4], prefix: u8, what: &'static str) -> Closed {
    let [a, b, c, d] = address;
    Closed { net: Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix), what }
}

/// Within others that hold them, so that a rule for a whole block does not open these.
const METADATA: &str = "an address at which clouds give out credentials";
const RESERVED: &str = "a reserved address";

static BLOCKS: [Closed; 23] = [
    block([169, 254, 169, 254], 32, METADATA),
    block([169, 254, 169, 253], 32, METADATA),
    block([169, 254, 170, 2], 32, METADATA),
    block([169, 254, 170, 23], 32, METADATA),
    block([169, 254, 0, 23], 32, METADATA),
    block([100, 100, 100, 200], 32, METADATA),
    block([192, 0, 0, 192], 32, METADATA),
    block([168, 63, 129, 16], 32, METADATA),
    // Linux takes these for loopback.
    block([0, 0, 0, 0], 8, "an unspecified address"),
    block([127, 0, 0, 0], 8, "an address of this machine itself"),
    block([10, 0, 0, 0], 8, "a private address"),
    block([172, 16, 0, 0], 12, "a private address"),
    block([192, 168, 0, 0], 16, "a private address"),
    block([100, 64, 0, 0], 10, "an address that a provider shares out"),
    block([169, 254, 0, 0], 16, "a link-local address"),
    block([192, 0, 0, 0], 24, RESERVED),
    block([192, 0, 2, 0], 24, RESERVED),
    block([192, 88, 99, 0], 24, RESERVED),
    block([198, 18, 0, 0], 15, RESERVED),
    block([198, 51, 100, 0], 24, RESERVED),
    block([203, 0, 113, 0], 24, RESERVED),
    block([224, 0, 0, 0], 4, "a multicast address"),
    block([240, 0, 0, 0], 4, RESERVED),
];

/// The smallest block that holds all of a network.
fn block_of(net: Ipv4Net) -> Option<&'static Closed> {
    let holds = |closed: &&Closed| closed.net.contains(&net);
    BLOCKS.iter().filter(holds).max_by_key(|closed| closed.net.prefix_len())
}

/// What keeps an address closed, if anything does.
pub(crate) fn closed(address: Ipv4Addr) -> Option<&'static Closed> {
    block_of(address.into())
}

/// Whether a listed network opens an address. One that is larger than a closed block, as
/// 0.0.0.0/0 is, does not speak of that block.
pub(crate) fn opens(net: Ipv4Net, address: Ipv4Addr) -> bool {
    covers(net, address.into())
}

/// Whether a listed network opens all that another would.
pub(crate) fn covers(net: Ipv4Net, other: Ipv4Net) -> bool {
    net.contains(&other) && block_of(other).is_none_or(|closed| closed.net.contains(&net))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_nobodys_are_closed() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.1",
            "168.63.129.16",
            "169.254.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(closed(address.parse().unwrap()).is_some(), "{address}");
        }
        for address in
            ["1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.0.1", "100.128.0.1", "172.32.0.1"]
        {
            assert_eq!(closed(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_table_agrees_with_the_standard_library() {
        for high in 0..=u16::MAX {
            for low in [0_u16, 1, 0x1234, 0xffff] {
                let address = Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
                let known = address.is_private()
                    || address.is_loopback()
                    || address.is_link_local()
                    || address.is_multicast()
                    || address.is_broadcast()
                    || address.is_documentation()
                    || address.is_unspecified();
                assert!(!known || closed(address).is_some(), "{address}");
            }
        }
    }

    #[test]
    fn a_network_opens_what_it_speaks_of() {
        for (net, address, open) in [
            ("93.184.0.0/16", "93.184.216.34", true),
            ("93.184.0.0/16", "93.185.0.1", false),
            ("0.0.0.0/0", "93.184.216.34", true),
            ("0.0.0.0/0", "127.0.0.1", false),
            ("0.0.0.0/0", "10.0.0.1", false),
            ("0.0.0.0/0", "169.254.169.254", false),
            ("8.0.0.0/6", "10.0.0.1", false),
            ("10.0.0.0/8", "10.0.0.1", true),
            ("10.1.0.0/16", "10.1.2.3", true),
            ("10.1.0.0/16", "10.2.2.3", false),
            ("127.0.0.5/32", "127.0.0.5", true),
            ("169.254.0.0/16", "169.254.1.1", true),
            ("169.254.0.0/16", "169.254.169.254", false),
            ("169.254.169.254/32", "169.254.169.254", true),
            ("100.64.0.0/10", "100.100.100.200", false),
            ("168.63.0.0/16", "168.63.129.16", false),
        ] {
            let opened = opens(net.parse().unwrap(), address.parse().unwrap());
            assert_eq!(opened, open, "{net} {address}");
        }
    }
}
