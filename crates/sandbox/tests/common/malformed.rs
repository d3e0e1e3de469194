//! Lines that are no requests, always the same ones.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Value, json};

/// A protocol's requests: those that would do harm if a broken one were taken for a whole one, and
/// those that do none, whatever becomes of them.
pub(crate) struct Requests {
    pub(crate) harmful: Vec<Value>,
    pub(crate) harmless: Vec<Value>,
    /// The field that names what is wanted.
    pub(crate) name: &'static str,
    /// Longer lines are not even looked at.
    pub(crate) max_line_bytes: usize,
}

/// One in so many is longer than a line may be.
const ONE_TOO_LONG_IN: usize = 500;

const WRONG: [&str; 12] = [
    "null",
    "true",
    "-1",
    "0.5",
    "1e999",
    "-0",
    "18446744073709551616",
    "\"\"",
    "\"x\"",
    "[]",
    "{}",
    "99999999999999999999999999999999999999",
];

/// What is a line in itself: none of them has a line break in it.
pub(crate) fn malformed_lines(requests: &Requests, count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    (0..count).map(move |number| {
        let mut line = if number % ONE_TOO_LONG_IN == ONE_TOO_LONG_IN - 1 {
            too_long(pick(&requests.harmful, &mut random), requests.max_line_bytes)
        } else {
            malformed(requests, number, &mut random)
        };
        line.retain(|byte| *byte != b'\n');
        line
    })
}

fn malformed(requests: &Requests, number: usize, random: &mut TestRng) -> Vec<u8> {
    let harmful = pick(&requests.harmful, random).to_string().into_bytes();
    let harmless = pick(&requests.harmless, random).clone();
    match number % 10 {
        0 => harmful[..random.random_range(1..harmful.len())].to_vec(),
        1 => with(&harmful, &[random.random_range(0x80..=0xff)], random),
        2 => with(&harmful, &[0], random),
        3 => nested(&harmful, random),
        4 => with_wrong_value(&harmless, random),
        5 => without_field(harmless, random).to_string().into_bytes(),
        6 => unknown(harmless, requests.name, random).to_string().into_bytes(),
        7 => with(harmless.to_string().as_bytes(), &[random.random()], random),
        8 => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
        _ => [harmful, b" trailing".to_vec()].concat(),
    }
}

fn pick<'a>(values: &'a [Value], random: &mut TestRng) -> &'a Value {
    &values[random.random_range(0..values.len())]
}

/// Whole, but for the blanks in front of it.
fn too_long(request: &Value, max_line_bytes: usize) -> Vec<u8> {
    let mut line = vec![b' '; max_line_bytes];
    line.extend(request.to_string().into_bytes());
    line
}

/// With bytes that do not belong there, somewhere between the first and the last.
fn with(line: &[u8], foreign: &[u8], random: &mut TestRng) -> Vec<u8> {
    let (before, after) = line.split_at(random.random_range(1..line.len()));
    [before, foreign, after].concat()
}

/// Deeper than any stack, and never closed.
fn nested(line: &[u8], random: &mut TestRng) -> Vec<u8> {
    let opening: &[u8] = if random.random() { b"[" } else { b"{\"a\":" };
    let at = line.iter().position(|byte| *byte == b':').unwrap() + 1;
    let depth = random.random_range(100..20_000);
    [&line[..at], &opening.repeat(depth), &line[at..]].concat()
}

/// The places of all values in a message but itself.
fn places(value: &Value, here: &str, found: &mut Vec<String>) {
    if let Value::Object(fields) = value {
        for (name, field) in fields {
            let there = format!("{here}/{}", name.replace('/', "~1"));
            places(field, &there, found);
            found.push(there);
        }
    }
}

fn any_place(value: &Value, random: &mut TestRng) -> String {
    let mut found = Vec::new();
    places(value, "", &mut found);
    found.swap_remove(random.random_range(0..found.len()))
}

/// With something else in the place of one value, maybe no number that there is.
fn with_wrong_value(request: &Value, random: &mut TestRng) -> Vec<u8> {
    const HERE: &str = "here-goes-something-else";
    let mut request = request.clone();
    let place = any_place(&request, random);
    *request.pointer_mut(&place).unwrap() = json!(HERE);
    let wrong = WRONG[random.random_range(0..WRONG.len())];
    request.to_string().replace(&format!("\"{HERE}\""), wrong).into_bytes()
}

fn without_field(mut request: Value, random: &mut TestRng) -> Value {
    let place = any_place(&request, random);
    let (parent, name) = place.rsplit_once('/').unwrap();
    request.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(&name.replace("~1", "/"));
    request
}

fn unknown(mut request: Value, field: &str, random: &mut TestRng) -> Value {
    request[field] = json!(format!("session.dance{}\u{0}\u{202e}", random.random::<u64>()));
    request
}
