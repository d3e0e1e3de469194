//! Which addresses were answered for which names, and until when they may be connected to.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::name::HostName;

/// Programs keep an answer longer than its time to live, which is a minute ([`crate::link`]).
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// One more, and the oldest goes.
const MAX_PINS: usize = 4096;
/// Names of one address; large hosts have many.
const MAX_NAMES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Pins {
    of_address: HashMap<Ipv4Addr, Vec<HostName>>,
    /// Numbered in the order in which they were answered, with their end.
    by_age: BTreeMap<u64, (Ipv4Addr, HostName, Instant)>,
    /// The number of each.
    latest: HashMap<(Ipv4Addr, HostName), u64>,
    next: u64,
}

impl Pins {
    pub(crate) fn add(&mut self, address: Ipv4Addr, name: &HostName, now: Instant) {
        self.drop_old(now);
        let key = (address, name.clone());
        if let Some(former) = self.latest.insert(key, self.next) {
            self.by_age.remove(&former);
        } else {
            let names = self.of_address.entry(address).or_default();
            names.push(name.clone());
            if names.len() > MAX_NAMES {
                let oldest = names.remove(0);
                if let Some(age) = self.latest.remove(&(address, oldest)) {
                    self.by_age.remove(&age);
                }
            }
        }
        self.by_age.insert(self.next, (address, name.clone(), now + LIFETIME));
        self.next += 1;
        while self.by_age.len() > MAX_PINS {
            self.drop_oldest();
        }
    }

    /// The names that lead to an address.
    pub(crate) fn names_of(&mut self, address: Ipv4Addr, now: Instant) -> &[HostName] {
        self.drop_old(now);
        self.of_address.get(&address).map_or(&[], Vec::as_slice)
    }

    fn drop_old(&mut self, now: Instant) {
        while self.by_age.first_key_value().is_some_and(|(_, (_, _, until))| *until <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, (address, name, _))) = self.by_age.pop_first() else { return };
        if let Some(names) = self.of_address.get_mut(&address) {
            names.retain(|known| *known != name);
            if names.is_empty() {
                self.of_address.remove(&address);
            }
        }
        self.latest.remove(&(address, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[test]
    fn pins_end_with_their_time_and_begin_anew_with_each_answer() {
        let (mut pins, start) = (Pins::default(), Instant::now());
        let address = Ipv4Addr::new(192, 0, 2, 1);
        pins.add(address, &name("a.example"), start);
        pins.add(address, &name("b.example"), start + LIFETIME / 2);
        assert_eq!(pins.names_of(address, start + LIFETIME / 2).len(), 2);
        assert_eq!(pins.names_of(address, start + LIFETIME), [name("b.example")]);
        pins.add(address, &name("b.example"), start + LIFETIME);
        assert_eq!(pins.names_of(address, start + LIFETIME * 3 / 2), [name("b.example")]);
        assert!(pins.names_of(address, start + LIFETIME * 2).is_empty());
        assert!(pins.of_address.is_empty() && pins.latest.is_empty());
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        for number in 0..20_000_u32 {
            pins.add(Ipv4Addr::from(number / 100), &name(&format!("n{number}.example")), now);
        }
        assert!(pins.by_age.len() <= MAX_PINS && pins.latest.len() == pins.by_age.len());
        assert!(pins.of_address.values().all(|names| names.len() <= MAX_NAMES));
        let names: usize = pins.of_address.values().map(Vec::len).sum();
        assert_eq!(names, pins.by_age.len());
    }
}
