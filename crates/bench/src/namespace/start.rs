//! What a sandbox costs a command that does nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use codeagent_namespace::View;

use super::session::{Session, Way};
use crate::place::Place;
use crate::sample::Samples;
use crate::table::{Bar, Row, Value};

/// More than others: one takes milliseconds.
const TIMES: u32 = 10;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = place.scratch(64 << 20)?;
    let session = Session::new(&scratch, scratch.work(), "start")?;
    let mut ways = Way::all();
    ways.push(Way::Ours(View::ReadOnly));
    let mut times: Vec<Samples> = ways.iter().map(|_| Samples::default()).collect();
    for round in 0..repetitions * TIMES {
        for (way, samples) in ways.iter().zip(&mut times) {
            let took = session.run(*way, "true")?;
            // The first ones find nothing in the caches.
            if round > 1 {
                samples.push(took.all);
            }
        }
    }
    let native = times[0].median();
    let bar = Bar::AtMost(Value::Time(Duration::from_millis(30)));
    let rows = ways.iter().zip(&times).skip(1).map(|(way, samples)| {
        let over = samples.median().saturating_sub(native);
        match way {
            Way::Ours(View::Transactional) => Row::time("start and stop, over native", over, bar),
            Way::Ours(View::Live) => {
                Row::time("start and stop, live view, over native", over, Bar::None)
            }
            Way::Ours(View::ReadOnly) => {
                Row::time("start and stop, read-only view, over native", over, Bar::None)
            }
            Way::OverlayAlone => {
                Row::time("start and stop, an overlay alone, over native", over, Bar::None)
            }
            _ => Row::time("start and stop, bubblewrap, over native", over, Bar::None),
        }
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.extend(beside_others(&session, &scratch.path("others"), repetitions)?);
    Ok(rows)
}

/// The same while somebody else writes to this disk, and what he has written waits in memory.
fn beside_others(session: &Session, file: &Path, repetitions: u32) -> Result<Vec<Row>> {
    let written = vec![b'x'; 64 << 20];
    let ways = [Way::Native, Way::OverlayAlone, Way::Ours(View::Transactional)];
    let mut times = [(); 3].map(|()| Samples::default());
    for _ in 0..repetitions {
        for (way, samples) in ways.iter().zip(&mut times) {
            fs::write(file, &written)?;
            samples.push(session.run(*way, "true")?.all);
            fs::remove_file(file)?;
        }
    }
    let [native, overlay, ours] = times.map(|samples| samples.median());
    let row = |name: &str, time: Duration| {
        Row::time(
            format!("start and stop beside a writer, {name}over native"),
            time.saturating_sub(native),
            Bar::None,
        )
    };
    Ok(vec![row("", ours), row("an overlay alone, ", overlay)])
}
