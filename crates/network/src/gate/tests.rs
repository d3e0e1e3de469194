use std::collections::HashMap;
use std::io;

use super::*;
use crate::allowlist::Allowlist;

#[derive(Debug)]
struct Table(HashMap<&'static str, Vec<Ipv4Addr>>, Mutex<Vec<String>>);

impl Resolver for Table {
    fn addresses(&self, name: &HostName) -> io::Result<Vec<Ipv4Addr>> {
        self.1.lock().push(name.to_string());
        self.0.get(name.as_str()).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn list(rules: &[&str]) -> Policy {
    Policy::Allowlist(Allowlist::new(rules.iter().map(|rule| rule.parse().unwrap())))
}

struct Fixture {
    gate: Gate,
    table: Arc<Table>,
    told: Arc<Mutex<Vec<Refusal>>>,
}

fn fixture(policy: Policy) -> Fixture {
    let table = [
        ("example.org", vec!["93.184.216.34"]),
        ("two.example.org", vec!["10.0.0.5", "93.184.216.35"]),
        ("rebound.example.org", vec!["127.0.0.1", "169.254.169.254"]),
        ("other.net", vec!["1.2.3.4"]),
    ];
    let addresses = |texts: Vec<&str>| texts.iter().map(|text| text.parse().unwrap()).collect();
    let table = table.into_iter().map(|(name, texts)| (name, addresses(texts))).collect();
    let table = Arc::new(Table(table, Mutex::default()));
    let told: Arc<Mutex<Vec<Refusal>>> = Arc::default();
    let heard = Arc::clone(&told);
    let gate = Gate::with_resolver(policy, table.clone(), move |refusal| {
        heard.lock().push(refusal.clone());
    });
    Fixture { gate, table, told }
}

#[test]
fn what_is_listed_is_reached_and_nothing_else() {
    let f = fixture(list(&["example.org:443", "*.example.org", "8.8.0.0/16:53", "127.0.0.5"]));
    for (host, port, reached) in [
        ("example.org", 443, true),
        ("EXAMPLE.org.", 443, true),
        ("example.org", 80, false),
        ("two.example.org", 80, true),
        ("other.net", 443, false),
        ("8.8.4.4", 53, true),
        ("8.8.4.4", 443, false),
        ("[::ffff:8.8.4.4]", 53, true),
        ("127.0.0.5", 1, true),
        ("127.0.0.1", 1, false),
        ("[::ffff:127.0.0.1]", 1, false),
        ("[::1]", 1, false),
        ("2001:db8::1", 443, false),
        ("127.1", 1, false),
        ("2130706433", 1, false),
        ("localhost", 1, false),
        ("93.184.216.34", 443, false),
        ("169.254.169.254", 80, false),
        ("a b", 80, false),
    ] {
        assert_eq!(f.gate.host(host, port).is_ok(), reached, "{host}:{port}");
    }
    let refused = |text: &str| f.table.1.lock().contains(&text.to_owned());
    assert!(!refused("other.net") && !refused("localhost"), "names were looked up");
}

#[test]
fn a_name_cannot_lead_to_what_is_closed() {
    let f = fixture(list(&["*.example.org"]));
    assert!(matches!(
        f.gate.host("rebound.example.org", 80),
        Err(Denied::Refused(Refusal { reason: Reason::Closed { .. }, .. }))
    ));
    let two = f.gate.host("two.example.org", 80).unwrap();
    assert_eq!(two, ["93.184.216.35:80".parse().unwrap()]);
    let name = HostName::parse("rebound.example.org").unwrap();
    assert!(f.gate.look_up(&name).is_err());
    assert!(f.gate.address([127, 0, 0, 1].into(), 80).is_err());
    let said = f.told.lock()[0].to_string();
    assert!(said.contains("leads to 127.0.0.1") && said.contains("--allow-host 127.0.0.1:80"));
}

#[test]
fn a_name_can_lead_to_what_is_listed_by_address() {
    let f = fixture(list(&["rebound.example.org:80", "127.0.0.1:80"]));
    assert!(f.gate.host("rebound.example.org", 80).is_ok());
    assert!(f.gate.host("rebound.example.org", 81).is_err());
    let name = HostName::parse("rebound.example.org").unwrap();
    assert_eq!(f.gate.look_up(&name).unwrap(), [Ipv4Addr::LOCALHOST]);
    assert!(f.gate.address([127, 0, 0, 1].into(), 80).is_ok());
    assert!(f.gate.address([127, 0, 0, 1].into(), 81).is_err());
}

#[test]
fn an_address_can_be_connected_to_once_it_was_the_answer_for_a_listed_name() {
    let f = fixture(list(&["example.org:443"]));
    let address = "93.184.216.34".parse().unwrap();
    assert!(f.gate.address(address, 443).is_err());
    f.gate.look_up(&HostName::parse("example.org").unwrap()).unwrap();
    assert!(f.gate.address(address, 443).is_ok());
    assert!(f.gate.address(address, 80).is_err());
}

#[test]
fn each_destination_is_told_once_and_not_without_end() {
    let f = fixture(list(&[]));
    for _ in 0..3 {
        let _ = f.gate.host("other.net", 443);
    }
    assert_eq!(f.told.lock().len(), 1);
    assert_eq!(
        f.told.lock()[0].to_string(),
        "other.net:443 is not listed; allow it with --allow-host other.net:443"
    );
    for port in 1..2000 {
        let _ = f.gate.host("other.net", port);
    }
    assert!(f.told.lock().len() <= 256);
}

#[test]
fn open_and_disabled_mean_what_they_say() {
    let open = fixture(Policy::Open);
    assert!(open.gate.host("other.net", 80).is_ok());
    assert!(open.gate.host("10.0.0.1", 80).is_ok());
    assert!(open.gate.host("::1", 80).is_err());
    let disabled = fixture(Policy::Disabled);
    assert!(disabled.gate.host("other.net", 80).is_err());
    assert!(disabled.gate.host("10.0.0.1", 80).is_err());
    assert!(disabled.table.1.lock().is_empty());
}
