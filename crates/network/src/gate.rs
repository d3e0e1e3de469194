//! Who decides.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::allowlist::Policy;
use crate::closed::closed;
use crate::name::HostName;
use crate::pins::Pins;
use crate::refusals::{Reason, Refusal, Refusals};
use crate::resolver::{Resolver, SystemResolver, ipv4};

/// So many addresses of one name are used.
pub(crate) const MAX_ADDRESSES: usize = 12;

/// Decides what may be reached, and tells of what may not. For any number of threads.
#[derive(Debug)]
pub struct Gate {
    policy: Policy,
    resolver: Arc<dyn Resolver>,
    pins: Mutex<Pins>,
    refusals: Refusals,
}

/// Why there is no way to a destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0} is not known")]
    Unknown(HostName),
}

impl Gate {
    /// `tell` hears of each destination that is refused, once; it must not wait.
    pub fn new(policy: Policy, tell: impl Fn(&Refusal) + Send + Sync + 'static) -> Self {
        Self::with_resolver(policy, Arc::new(SystemResolver), tell)
    }

    pub fn with_resolver(
        policy: Policy,
        resolver: Arc<dyn Resolver>,
        tell: impl Fn(&Refusal) + Send + Sync + 'static,
    ) -> Self {
        let refusals = Refusals::new(Box::new(tell));
        Self { policy, resolver, pins: Mutex::default(), refusals }
    }

    /// Where a connection to an address may go: the address is listed, or it was the answer to a
    /// listed name not long ago.
    pub fn address(&self, address: IpAddr, port: u16) -> Result<SocketAddrV4, Denied> {
        let refused = |reason| self.refuse(address.to_string(), Some(port), reason);
        let Some(address) = ipv4(address) else { return Err(refused(Reason::Ipv6)) };
        let refused = |reason| self.refuse(address.to_string(), Some(port), reason);
        match &self.policy {
            Policy::Disabled => Err(refused(Reason::Disabled)),
            Policy::Open => Ok(SocketAddrV4::new(address, port)),
            Policy::Allowlist(list) => {
                let is_pinned = || {
                    let mut pins = self.pins.lock();
                    let names = pins.names_of(address, Instant::now());
                    names.iter().any(|name| list.allows_name_at(name, port))
                };
                // What is closed has no pins, so no name opens it.
                if list.allows_address_at(address, port) || is_pinned() {
                    return Ok(SocketAddrV4::new(address, port));
                }
                Err(refused(match closed(address) {
                    Some(closed) => Reason::Closed { address, what: closed.what },
                    None => Reason::NotListed,
                }))
            }
        }
    }

    /// Where a connection to a host may go that was named, by name or by address. The addresses
    /// are to be connected to as they are: a second look at the name might find others. Takes as
    /// long as the resolver.
    pub fn host(&self, host: &str, port: u16) -> Result<Vec<SocketAddrV4>, Denied> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse() {
            return self.address(address, port).map(|address| vec![address]);
        }
        let Some(name) = HostName::parse(host) else {
            let printable = host.escape_default().take(64).collect();
            return Err(self.refuse(printable, Some(port), Reason::NoName));
        };
        self.check_name(&name, Some(port))?;
        let found = self.open_addresses(&name, Some(port))?;
        Ok(found.into_iter().map(|address| SocketAddrV4::new(address, port)).collect())
    }

    /// Whether a name may be looked up.
    pub(crate) fn check_name(&self, name: &HostName, port: Option<u16>) -> Result<(), Denied> {
        let refused = |reason| self.refuse(name.to_string(), port, reason);
        match &self.policy {
            Policy::Disabled => Err(refused(Reason::Disabled)),
            Policy::Open => Ok(()),
            Policy::Allowlist(list) => match port {
                Some(port) if list.allows_name_at(name, port) => Ok(()),
                None if list.allows_name(name) => Ok(()),
                _ => Err(refused(Reason::NotListed)),
            },
        }
    }

    /// The addresses of a name that may be looked up; from now on they may be connected to. Takes
    /// as long as the resolver.
    pub(crate) fn look_up(&self, name: &HostName) -> Result<Vec<Ipv4Addr>, Denied> {
        self.check_name(name, None)?;
        let found = self.open_addresses(name, None)?;
        let (mut pins, now) = (self.pins.lock(), Instant::now());
        for address in found.iter().filter(|address| closed(**address).is_none()) {
            pins.add(*address, name, now);
        }
        Ok(found)
    }

    /// The addresses of a name, without those that are closed: whoever owns a name can let it
    /// lead anywhere.
    fn open_addresses(&self, name: &HostName, port: Option<u16>) -> Result<Vec<Ipv4Addr>, Denied> {
        let found = self.resolver.addresses(name).unwrap_or_default();
        let is_open = |address: Ipv4Addr| match &self.policy {
            Policy::Disabled => false,
            Policy::Open => true,
            Policy::Allowlist(list) => {
                closed(address).is_none()
                    || match port {
                        Some(port) => list.allows_address_at(address, port),
                        None => list.allows_address(address),
                    }
            }
        };
        let open: Vec<_> =
            found.iter().copied().filter(|address| is_open(*address)).take(MAX_ADDRESSES).collect();
        match found.iter().find_map(|address| Some((*address, closed(*address)?))) {
            _ if !open.is_empty() => Ok(open),
            Some((address, closed)) => {
                let reason = Reason::Closed { address, what: closed.what };
                Err(self.refuse(name.to_string(), port, reason))
            }
            None => Err(Denied::Unknown(name.clone())),
        }
    }

    fn refuse(&self, host: String, port: Option<u16>, reason: Reason) -> Denied {
        let refusal = Refusal { host, port, reason };
        self.refusals.add(&refusal);
        Denied::Refused(refusal)
    }
}

#[cfg(test)]
mod tests;
