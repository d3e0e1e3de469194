//! Calls of `read_file`, one after the other and many at once.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::server::Server;
use super::{ENOUGH_CALLS, scratch};
use crate::place::Place;
use crate::sample::Samples;
use crate::table::{Bar, Row, Value};

/// In each round.
const CALLS: u32 = 2_000;

/// Unanswered at once, as with an agent that does many things side by side.
const AT_ONCE: u32 = 32;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = scratch(place)?;
    let mut server = Server::start(&scratch.work(), &scratch.path("home"))?;
    let (mut one, mut single, mut many) =
        (Samples::default(), Samples::default(), Samples::default());
    // The first ones find nothing in the caches.
    one_by_one(&mut server, &mut Samples::default())?;
    for _ in 0..repetitions {
        single.time(|| one_by_one(&mut server, &mut one))?;
        many.time(|| at_once(&mut server))?;
    }
    server.end()?;
    let bar = Bar::AtMost(Value::Time(Duration::from_millis(2)));
    Ok(vec![
        Row::time("read_file", one.median(), bar),
        Row::new("calls, one after the other", rate(&single), ENOUGH_CALLS),
        Row::new("calls, 32 at once", rate(&many), ENOUGH_CALLS),
    ])
}

fn one_by_one(server: &mut Server, samples: &mut Samples) -> Result<()> {
    for id in 0..CALLS {
        let started = Instant::now();
        server.ask(id)?;
        server.answer()?;
        samples.push(started.elapsed());
    }
    Ok(())
}

fn at_once(server: &mut Server) -> Result<()> {
    for id in 0..CALLS {
        server.ask(id)?;
        if id >= AT_ONCE {
            server.answer()?;
        }
    }
    (0..AT_ONCE).try_for_each(|_| server.answer())
}

fn rate(rounds: &Samples) -> Value {
    Value::PerSecond(f64::from(CALLS) / rounds.median().as_secs_f64())
}
