//! What may be reached, as plain data.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::name::HostName;
use crate::rule::Rule;

/// What commands may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    #[default]
    Disabled,
    Allowlist(Allowlist),
    /// Whatever this machine can.
    Open,
}

/// Everything is closed but what is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Allowlist {
    rules: Vec<Rule>,
}

impl Allowlist {
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect() }
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What of another list this one allows as well, and whether that is all of it.
    pub fn narrowed_to(&self, other: &Self) -> (Self, bool) {
        let covered = |rule: &&Rule| self.rules.iter().any(|wide| wide.covers(rule));
        let kept = Self::new(other.rules.iter().filter(covered).cloned());
        let is_all = kept.rules.len() == other.rules.len();
        (kept, is_all)
    }

    /// Whether anything at that name may be reached.
    pub(crate) fn allows_name(&self, name: &HostName) -> bool {
        self.rules.iter().any(|rule| rule.allows_name(name))
    }

    pub(crate) fn allows_name_at(&self, name: &HostName, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.allows_name(name) && rule.allows_port(port))
    }

    /// Listed by itself, whatever names lead there.
    pub(crate) fn allows_address(&self, address: Ipv4Addr) -> bool {
        self.rules.iter().any(|rule| rule.allows_address(address))
    }

    pub(crate) fn allows_address_at(&self, address: Ipv4Addr, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.allows_address(address) && rule.allows_port(port))
    }
}
