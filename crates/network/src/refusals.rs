//! What was refused, told once.

use std::collections::HashSet;
use std::fmt;
use std::net::Ipv4Addr;

use parking_lot::Mutex;

/// So many are told; whoever tries more is not trying by accident.
const MAX_TOLD: usize = 256;

/// A destination that could not be reached, because nobody allowed it. All of it can be printed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// A name or an address.
    pub host: String,
    /// None, if only the name was asked for.
    pub port: Option<u16>,
    pub reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    NotListed,
    /// It is not on the internet, or a listed name leads to where that is so.
    Closed {
        address: Ipv4Addr,
        what: &'static str,
    },
    Ipv6,
    /// It is no host name.
    NoName,
    Disabled,
}

impl Refusal {
    /// The rule that would have allowed it, if one can.
    pub fn rule(&self) -> Option<String> {
        let host = match self.reason {
            Reason::NotListed => self.host.clone(),
            Reason::Closed { address, .. } => address.to_string(),
            Reason::Ipv6 | Reason::NoName | Reason::Disabled => return None,
        };
        Some(match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        })
    }

    /// The same without why.
    pub fn destination(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = self.destination();
        match self.reason {
            Reason::NotListed => write!(f, "{destination} is not listed")?,
            Reason::Closed { address, what } if address.to_string() == self.host => {
                write!(f, "{destination} is {what} and not listed")?;
            }
            Reason::Closed { address, what } => {
                write!(f, "{destination} leads to {address}, which is {what} and not listed")?;
            }
            Reason::Ipv6 => write!(f, "{destination} is an IPv6 address, and IPv6 is closed")?,
            Reason::NoName => write!(f, "{destination} is no host name")?,
            Reason::Disabled => {
                write!(f, "{destination} is out of reach: the network is disabled")?;
            }
        }
        match self.rule() {
            Some(rule) => write!(f, "; allow it with --allow-host {rule}"),
            None => Ok(()),
        }
    }
}

/// Tells somebody of each refusal, once for each destination.
pub(crate) struct Refusals {
    told: Mutex<HashSet<(String, Option<u16>)>>,
    tell: Box<dyn Fn(&Refusal) + Send + Sync>,
}

impl Refusals {
    pub(crate) fn new(tell: Box<dyn Fn(&Refusal) + Send + Sync>) -> Self {
        Self { told: Mutex::default(), tell }
    }

    pub(crate) fn add(&self, refusal: &Refusal) {
        let mut told = self.told.lock();
        let is_new = told.len() < MAX_TOLD && told.insert((refusal.host.clone(), refusal.port));
        drop(told);
        if is_new {
            (self.tell)(refusal);
        }
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusals({})", self.told.lock().len())
    }
}
