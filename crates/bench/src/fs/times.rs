//! What one piece of work took on each side.

use std::time::Duration;

use anyhow::Result;

use super::side::{Kind, Side};
use crate::sample::Samples;
use crate::table::{Bar, Row};

/// Work that mostly changes things: how much slower than FUSE alone it may be.
pub(super) const WRITES: Bar = Bar::RatioAtMost(1.15);
/// Work that mostly looks at things.
pub(super) const READS: Bar = Bar::RatioAtMost(1.03);

#[derive(Debug, Default)]
pub(super) struct Times {
    native: Samples,
    plain: Samples,
    ours: Samples,
    passthrough: Samples,
}

impl Times {
    pub(super) fn push(&mut self, kind: Kind, time: Duration) {
        match kind {
            Kind::Native => self.native.push(time),
            Kind::Plain => self.plain.push(time),
            Kind::Ours => self.ours.push(time),
            Kind::Passthrough => self.passthrough.push(time),
        }
    }

    /// The bar is for what interception adds; what FUSE itself costs is there to compare.
    pub(super) fn rows(&self, name: &str, bar: Bar) -> [Row; 2] {
        [
            Row::compare(name, &self.ours, bar, "FUSE", &self.plain),
            Row::compare("", &self.ours, Bar::None, "native", &self.native),
        ]
    }

    /// What passthrough gains, or costs.
    pub(super) fn passthrough_rows(&self, name: &str, bar: Bar) -> [Row; 2] {
        [
            Row::compare(name, &self.passthrough, bar, "ours", &self.ours),
            Row::compare("", &self.passthrough, Bar::None, "native", &self.native),
        ]
    }
}

/// Runs `work` on every side, as often as asked for, and begins with another one each time.
pub(super) fn rounds(
    sides: &mut [Side; 3],
    count: u32,
    mut work: impl FnMut(&mut Side, u32) -> Result<()>,
) -> Result<()> {
    for round in 0..count {
        for turn in 0..sides.len() {
            let next = (round as usize + turn) % sides.len();
            work(&mut sides[next], round)?;
        }
    }
    Ok(())
}
