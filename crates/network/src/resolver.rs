//! Who knows the addresses of a name.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use crate::name::HostName;

/// Is asked for names that are allowed, and for no others. May take its time: it is called on
/// threads that have nothing else to do.
pub trait Resolver: Send + Sync + fmt::Debug {
    /// None, if there is no such name.
    fn addresses(&self, name: &HostName) -> io::Result<Vec<Ipv4Addr>>;
}

/// As every other program of this machine finds them: its files, its VPN, its DNS.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn addresses(&self, name: &HostName) -> io::Result<Vec<Ipv4Addr>> {
        let found = (name.as_str(), 0).to_socket_addrs()?;
        Ok(found.filter_map(|found| ipv4(found.ip())).collect())
    }
}

/// An address that is IPv4, in whichever notation.
pub(crate) fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address.to_canonical() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
