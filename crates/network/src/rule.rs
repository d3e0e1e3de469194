//! One line of an allowlist, as people write it.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::closed;
use crate::name::HostName;

/// A destination that may be reached: `93.184.216.34`, `10.0.0.0/8`, `example.org`, or
/// `*.example.org` (what lies below it, at any depth). Ports may follow, as `:443`, `:80,443` or
/// `:8000-8100`; without them, every port is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    target: Target,
    /// Empty: all of them.
    ports: Vec<Ports>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Net(Ipv4Net),
    Name(HostName),
    Below(HostName),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    first: u16,
    last: u16,
}

/// Why something is no rule, with what it is about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error("{0:?} names no host: write an address, a network or a name, as example.org")]
    Host(String),
    #[error("{0:?} is an address: write the host alone, as example.org or example.org:443")]
    Url(String),
    #[error("{0:?} names no port from 1 to 65535")]
    Port(String),
    #[error("{0:?} is an IPv6 address, and IPv6 is closed")]
    Ipv6(String),
    #[error("{0:?} is not in ASCII: write it as it is registered, with xn--")]
    NotAscii(String),
}

impl Rule {
    pub fn name(&self) -> Option<&HostName> {
        match &self.target {
            Target::Name(name) => Some(name),
            Target::Net(_) | Target::Below(_) => None,
        }
    }

    /// Whether it names addresses of the machine itself.
    pub fn is_loopback(&self) -> bool {
        matches!(&self.target, Target::Net(net) if closed::covers(LOOPBACK, *net))
    }

    pub(crate) fn allows_name(&self, name: &HostName) -> bool {
        match &self.target {
            Target::Net(_) => false,
            Target::Name(listed) => listed == name,
            Target::Below(domain) => name.is_below(domain),
        }
    }

    /// Whatever names lead there.
    pub(crate) fn allows_address(&self, address: Ipv4Addr) -> bool {
        matches!(&self.target, Target::Net(net) if closed::opens(*net, address))
    }

    pub(crate) fn allows_port(&self, port: u16) -> bool {
        self.ports.is_empty()
            || self.ports.iter().any(|ports| (ports.first..=ports.last).contains(&port))
    }

    /// Whether it allows all that another does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let target = match (&self.target, &other.target) {
            (Target::Net(net), Target::Net(other)) => closed::covers(*net, *other),
            (Target::Name(name), Target::Name(other)) => name == other,
            (Target::Below(domain), Target::Name(other)) => other.is_below(domain),
            (Target::Below(domain), Target::Below(other)) => {
                domain == other || other.is_below(domain)
            }
            _ => false,
        };
        let holds = |part: &Ports| {
            self.ports.iter().any(|ports| ports.first <= part.first && part.last <= ports.last)
        };
        let ports =
            self.ports.is_empty() || (!other.ports.is_empty() && other.ports.iter().all(holds));
        target && ports
    }
}

const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let text = text.trim();
        if text.contains("://") {
            return Err(BadRule::Url(text.into()));
        }
        if text.starts_with('[') || text.bytes().filter(|byte| *byte == b':').count() > 1 {
            return Err(BadRule::Ipv6(text.into()));
        }
        let (host, ports) = match text.split_once(':') {
            Some((host, ports)) => (host, parse_ports(ports)?),
            None => (text, Vec::new()),
        };
        Ok(Self { target: parse_target(host)?, ports })
    }
}

fn parse_target(host: &str) -> Result<Target, BadRule> {
    if !host.is_ascii() {
        return Err(BadRule::NotAscii(host.into()));
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(Target::Net(address.into()));
    }
    if let Ok(net) = host.parse::<Ipv4Net>() {
        return Ok(Target::Net(net.trunc()));
    }
    let target = match host.strip_prefix("*.") {
        Some(domain) => HostName::parse(domain).map(Target::Below),
        None => HostName::parse(host).map(Target::Name),
    };
    target.ok_or_else(|| BadRule::Host(host.into()))
}

fn parse_ports(text: &str) -> Result<Vec<Ports>, BadRule> {
    let bad = || BadRule::Port(text.into());
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad),
        false => Err(bad()),
    };
    text.split(',')
        .map(|part| {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first <= last { Ok(Ports { first, last }) } else { Err(bad()) }
        })
        .collect()
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Net(net) if net.prefix_len() == 32 => write!(f, "{}", net.addr())?,
            Target::Net(net) => write!(f, "{net}")?,
            Target::Name(name) => write!(f, "{name}")?,
            Target::Below(domain) => write!(f, "*.{domain}")?,
        }
        for (nth, ports) in self.ports.iter().enumerate() {
            f.write_str(if nth == 0 { ":" } else { "," })?;
            write!(f, "{}", ports.first)?;
            if ports.last != ports.first {
                write!(f, "-{}", ports.last)?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Rule {
    type Error = BadRule;

    fn try_from(text: String) -> Result<Self, BadRule> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for (text, written) in [
            ("93.184.216.34", "93.184.216.34"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3/8:443", "10.0.0.0/8:443"),
            (" Example.ORG. ", "example.org"),
            ("example.org:80,443", "example.org:80,443"),
            ("*.example.org:8000-8100", "*.example.org:8000-8100"),
            ("localhost:5432", "localhost:5432"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(rule(text).to_string(), written);
            assert_eq!(rule(written).to_string(), written);
            let json = serde_json::to_string(&rule(text)).unwrap();
            assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule(text));
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_a_reason() {
        let bad = |text: &str| text.parse::<Rule>().unwrap_err();
        for text in ["", "*", "*.", "a*.org", "*.*.org", "exa mple.org", "10.0.0.0/33", "10.0.0"] {
            assert!(matches!(bad(text), BadRule::Host(_)), "{text:?}");
        }
        for text in ["a.org:", "a.org:0", "a.org:65536", "a.org:9-8", "a.org:+80", "a.org:80,"] {
            assert!(matches!(bad(text), BadRule::Port(_)), "{text:?}");
        }
        for text in ["::1", "[::1]:80", "2001:db8::/32", "::ffff:1.2.3.4"] {
            assert!(matches!(bad(text), BadRule::Ipv6(_)), "{text:?}");
        }
        assert!(matches!(bad("https://example.org/"), BadRule::Url(_)));
        assert!(matches!(bad("bücher.example"), BadRule::NotAscii(_)));
    }

    #[test]
    fn a_rule_covers_what_it_allows_itself() {
        for (wide, narrow, covered) in [
            ("example.org", "example.org", true),
            ("example.org", "example.org:443", true),
            ("example.org:443", "example.org", false),
            ("example.org:400-500", "example.org:443", true),
            ("example.org:443", "example.org:80,443", false),
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "*.a.example.org", true),
            ("*.example.org", "example.org", false),
            ("a.example.org", "*.example.org", false),
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "10.0.0.1", false),
            ("169.254.0.0/16", "169.254.169.254", false),
            ("0.0.0.0/0", "example.org", false),
        ] {
            assert_eq!(rule(wide).covers(&rule(narrow)), covered, "{wide} {narrow}");
        }
        assert!(rule("127.0.0.5:80").is_loopback() && !rule("0.0.0.0/0").is_loopback());
    }
}
