//! What the tests of both front ends need: names that lead where a test wants, servers on
//! loopback, and ears for what was refused.

#![allow(dead_code, reason = "each test uses its part of it")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use codeagent_network::{Allowlist, Gate, HostName, Policy, Refusal, Resolver};

#[derive(Debug, Default)]
pub(crate) struct Names {
    table: HashMap<String, Vec<Ipv4Addr>>,
    pub(crate) asked: Mutex<Vec<String>>,
}

impl Resolver for Names {
    fn addresses(&self, name: &HostName) -> io::Result<Vec<Ipv4Addr>> {
        self.asked.lock().unwrap().push(name.to_string());
        self.table.get(name.as_str()).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub(crate) struct Listened {
    pub(crate) gate: Arc<Gate>,
    pub(crate) names: Arc<Names>,
    pub(crate) told: Arc<Mutex<Vec<Refusal>>>,
}

impl Listened {
    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().iter().map(Refusal::destination).collect()
    }
}

pub(crate) fn gate(rules: &[String], names: &[(&str, &[Ipv4Addr])]) -> Listened {
    let policy = Policy::Allowlist(Allowlist::new(rules.iter().map(|rule| rule.parse().unwrap())));
    let table = names.iter().map(|(name, found)| ((*name).to_owned(), found.to_vec())).collect();
    let names = Arc::new(Names { table, asked: Mutex::default() });
    let told: Arc<Mutex<Vec<Refusal>>> = Arc::default();
    let heard = Arc::clone(&told);
    let gate = Gate::with_resolver(policy, names.clone(), move |refusal| {
        heard.lock().unwrap().push(refusal.clone());
    });
    Listened { gate: Arc::new(gate), names, told }
}

/// A server on loopback that sends back what it gets, and counts who came.
pub(crate) struct Echo {
    pub(crate) address: SocketAddrV4,
    visitors: Arc<AtomicUsize>,
}

impl Echo {
    pub(crate) fn at(address: [u8; 4]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::from(address), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let visitors: Arc<AtomicUsize> = Arc::default();
        let counter = Arc::clone(&visitors);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || echo(client));
            }
        });
        Self { address: SocketAddrV4::new(address.into(), port), visitors }
    }

    pub(crate) fn visitors(&self) -> usize {
        self.visitors.load(Ordering::SeqCst)
    }
}

fn echo(mut client: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count) = client.read(&mut bytes) {
        if count == 0 || client.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Polls until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came about: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
