//! A folder in a guest: ours, and virtiofsd's own device and filesystem without interception, in the
//! same kernel and with the same cache; the same over 9P, against QEMU's own. And how long it takes
//! until a guest does something.

mod boot;
mod nine_p;
mod side;
pub(crate) mod upstream;

use std::path::Path;

use anyhow::{Result, ensure};
use codeagent_vm::Backend;

use self::side::{Ours, Side, Upstream};
use crate::groups::Group;
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row};
use crate::tree::exactly;

pub(crate) use side::run_if_asked;

type Measure = fn(&Place, u32) -> Result<Vec<Row>>;

const GROUPS: &[(&str, Measure)] = &[
    ("boot", boot::measure),
    ("read", read),
    ("write", write),
    ("large file", large),
    ("rm -rf", remove),
    ("9p", nine_p::measure),
];

pub(crate) fn groups() -> Vec<Group<'static>> {
    GROUPS.iter().map(|&(name, measure)| Group::new(name, measure)).collect()
}

/// Two guests, whose folders `fill` has filled.
fn both(place: &Place, fill: impl Fn(&Path) -> Result<()>) -> Result<(Ours, Upstream)> {
    Ok((Ours::start(place, Backend::Virtiofs, &fill)?, Upstream::start(place, &fill)?))
}

/// What the workloads are about.
fn small_files(dir: &Path) -> Result<()> {
    Ok(codeagent_test_guest::workload("prepare", dir)?)
}

fn read(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let (mut ours, mut upstream) = both(place, small_files)?;
    let mut rows = Vec::new();
    for (name, workload) in [("read 2,000 small files", "read"), ("stat 2,000 files", "look")] {
        let (mut mine, mut theirs) = <(Samples, Samples)>::default();
        // Once, so that both have made their acquaintance with the files.
        ours.work(workload)?;
        upstream.work(workload)?;
        in_turn(
            repetitions,
            || mine.time(|| ours.step(workload)),
            || theirs.time(|| upstream.work(workload)),
        )?;
        rows.push(Row::compare(name, &mine, Bar::RatioAtMost(1.05), "upstream", &theirs));
    }
    Ok(rows)
}

fn write(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let (mut ours, mut upstream) = both(place, small_files)?;
    let (mut mine, mut theirs) = <(Samples, Samples)>::default();
    in_turn(
        repetitions,
        || {
            mine.time(|| ours.step("write"))?;
            ours.undo()
        },
        || {
            theirs.time(|| upstream.work("write"))?;
            upstream.refill(small_files)
        },
    )?;
    let name = "rewrite, append to, replace, remove 2,000 files";
    Ok(vec![Row::compare(name, &mine, Bar::RatioAtMost(1.15), "upstream", &theirs)])
}

fn large(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let (mut ours, mut upstream) = both(place, |_| Ok(()))?;
    let (mut mine, mut theirs) = <(Samples, Samples)>::default();
    in_turn(
        repetitions,
        || mine.time(|| ours.step("large")),
        || theirs.time(|| upstream.work("large")),
    )?;
    let name = "overwrite 64 MiB in pieces of 128 KiB";
    Ok(vec![Row::compare(name, &mine, Bar::RatioAtMost(1.15), "upstream", &theirs)])
}

fn remove(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let fill = |dir: &Path| Ok(codeagent_test_guest::workload("many", dir)?);
    let (mut ours, mut upstream) = both(place, fill)?;
    let (mut mine, mut theirs, mut undone) = <(Samples, Samples, Samples)>::default();
    let before = exactly(&ours.folder())?;
    in_turn(
        repetitions,
        || {
            mine.time(|| ours.step("remove"))?;
            ensure!(!ours.folder().join("tree").exists(), "something was left");
            undone.time(|| ours.undo())?;
            ensure!(exactly(&ours.folder())? == before, "the tree is not as it was");
            Ok(())
        },
        || {
            theirs.time(|| upstream.work("remove"))?;
            upstream.refill(fill)
        },
    )?;
    let bar = Bar::AtMost(crate::table::Value::Time(std::time::Duration::from_secs(2)));
    Ok(vec![
        Row::compare("rm -rf of 10,000 files", &mine, Bar::RatioAtMost(1.15), "upstream", &theirs),
        Row::time("undo of rm -rf of 10,000 files", undone.median(), bar),
    ])
}
