//! Our 9P, with interception, against the 9P that QEMU has built in: the same kernel, the same options
//! of the mount, one message after the other.

use anyhow::Result;
use codeagent_vm::Backend;

use super::side::{Ours, QemuNineP, Side};
use super::small_files;
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row};

const BAR: Bar = Bar::RatioAtMost(1.3);

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let mut ours = Ours::start(place, Backend::NineP, small_files)?;
    let mut theirs = QemuNineP::start(place, small_files)?;
    let mut rows = Vec::new();
    let (mut mine, mut qemus) = <(Samples, Samples)>::default();
    in_turn(
        repetitions,
        || mine.time(|| ours.step("look")),
        || qemus.time(|| theirs.work("look")),
    )?;
    rows.push(Row::compare("stat 2,000 files over 9P", &mine, BAR, "QEMU's", &qemus));
    let (mut mine, mut qemus) = <(Samples, Samples)>::default();
    in_turn(
        repetitions,
        || {
            mine.time(|| ours.step("write"))?;
            ours.undo()
        },
        || {
            qemus.time(|| theirs.work("write"))?;
            theirs.refill(small_files)
        },
    )?;
    let name = "rewrite, append to, replace, remove 2,000 files over 9P";
    rows.push(Row::compare(name, &mine, BAR, "QEMU's", &qemus));
    Ok(rows)
}
