//! Whatever somebody writes into an allowlist: what is a rule is written as it is read, and opens
//! nothing that is closed unless it speaks of it.
#![no_main]

use codeagent_network::{Allowlist, Gate, HostName, Policy, Rule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(name) = HostName::parse(text) {
        assert_eq!(HostName::parse(name.as_str()), Some(name.clone()));
        assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
    }
    let Ok(rule) = text.parse::<Rule>() else { return };
    assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(&rule));
    let is_loopback = rule.is_loopback();
    let gate = Gate::new(Policy::Allowlist(Allowlist::new([rule])), |_| {});
    let opened = gate.address([127, 0, 0, 1].into(), 80).is_ok();
    assert!(!opened || is_loopback);
});
