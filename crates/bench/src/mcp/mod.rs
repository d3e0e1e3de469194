//! The MCP server: how long an agent waits for a call, and how many calls it gets done.

mod calls;
mod inspector;
mod server;

use anyhow::Result;

use crate::groups::Group;
use crate::place::{Place, Scratch};
use crate::table::{Bar, Row, Value};

type Measure = fn(&Place, u32) -> Result<Vec<Row>>;

const GROUPS: &[(&str, Measure)] = &[("calls", calls::measure), ("inspector", inspector::measure)];

/// A second.
const ENOUGH_CALLS: Bar = Bar::AtLeast(Value::PerSecond(1_000.0));

pub(crate) fn groups() -> Vec<Group<'static>> {
    GROUPS.iter().map(|&(name, measure)| Group::new(name, measure)).collect()
}

/// A folder with a file to read, and a home.
fn scratch(place: &Place) -> Result<Scratch> {
    let scratch = place.scratch(64 << 20)?;
    std::fs::create_dir(scratch.path("home"))?;
    let lines: String = (0..100).map(|line| format!("line {line} of a file\n")).collect();
    std::fs::write(scratch.work().join(server::FILE), lines)?;
    Ok(scratch)
}
